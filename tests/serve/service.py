"""Small models of several kinds, and a service in a thread that requests are sent to."""

import http.client
import json
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd

import compshift as cs
from compshift.serve.model import ServedModel
from compshift.training.load import LoadedModel, load_model_parts

LABELS = {"bird": ["duck", "gull"], "place": ["lake", "sea"]}
CODES = np.repeat([[0, 1], [1, 0], [1, 1]], 60, axis=0)  # (duck, lake) is never seen
JSON = {"Content-Type": "application/json"}


def features(seed=0):
    X = np.random.default_rng(seed).normal(size=(len(CODES), 3))
    X[:, :2] += 4 * CODES
    return X.round(6)


def labels():
    return pd.DataFrame(
        {name: np.array(values)[code] for (name, values), code in zip(LABELS.items(), CODES.T, strict=True)}
    )


def table():
    """A raw table of all kinds of columns, with missing values."""
    rng = np.random.default_rng(1)
    X = features()
    frame = pd.DataFrame({"length": X[:, 0], "width": X[:, 1]})
    frame["job"] = np.array(["cook", "vet", "clerk"])[rng.integers(0, 3, len(X))]
    frame["member"] = rng.random(len(X)) < 0.5
    frame["since"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, len(X)), unit="D")
    frame.loc[5, ["length", "job"]] = None
    return frame


def fitted(kind, folder):
    """Fit and save a model of a kind; return its path, and rows that it takes, as they are in a request."""
    path, attributes, bird = folder / f"{kind}.safetensors", labels()[["place"]], labels()["bird"]
    X = features()
    if kind == "unnamed":
        cs.CRMClassifier(cross_fit=True).fit(X, bird, attributes=attributes).save(path)
        return path, X.tolist()
    if kind == "named":
        frame = pd.DataFrame(X, columns=["a", "b", "c"])
        cs.CRMClassifier().fit(frame, bird, attributes=attributes).save(path)
        return path, frame.to_dict("records")
    if kind == "mixed":
        frame = table()[["length", "job"]]
        cs.CRMBoostingClassifier(max_iter=3, early_stopping=False).fit(frame, bird, attributes=attributes).save(path)
    else:
        frame = table()
        clf = cs.table_classifier("linear" if kind == "table" else "boosted")
        if kind == "boosted table":
            clf.set_params(classifier__max_iter=3, classifier__early_stopping=False)
        cs.save(clf.fit(frame, bird, classifier__attributes=attributes), path)
    return path, json.loads(frame.to_json(orient="records", date_format="iso", double_precision=15))


def served(path):
    return ServedModel(load_model_parts(path))


def served_classifier(clf):
    return ServedModel(LoadedModel(Path("model"), clf, None, getattr(clf, "inputs_", None)))


class Client:
    """Sends requests to a service, one connection for each."""

    def __init__(self, port):
        self.port = port

    def send(self, method, path, body=None, headers=JSON, timeout=20):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        kind = response.headers.get("Content-Type", "")
        found = json.loads(content) if kind.startswith("application/json") else content.decode()
        return SimpleNamespace(status=response.status, content=found, headers=response.headers)

    def post(self, path="/predict", headers=JSON, **body):
        return self.send("POST", path, json.dumps(body), headers)

    def get(self, path):
        return self.send("GET", path, headers={})

    def metric(self, line):
        """The value of a metric, by its name with labels."""
        found = [text for text in self.get("/metrics").content.splitlines() if text.startswith(f"{line} ")]
        return float(found[0].split()[-1]) if found else None


@contextmanager
def serving(app):
    """Serve an application in a thread."""
    import uvicorn

    from compshift.serve.app import open_socket

    with open_socket("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=5))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield Client(port)
        finally:
            server.should_exit = True
            thread.join(20)
    assert not thread.is_alive()
