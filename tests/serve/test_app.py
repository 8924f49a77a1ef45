import contextlib
import gzip
import json
import socket
import threading
import time

import numpy as np
import pytest

import compshift as cs
from compshift import InputError

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from compshift.serve.app import Limits, create_app, open_socket
from compshift.serve.metrics import MAX_RECENT_ROWS, DriftMonitor
from tests.serve.service import JSON, features, fitted, labels, served, served_classifier, serving

ROW = [0.0, 0.0, 0.0]
LIMITS = Limits(max_rows=50, max_bytes=20_000, timeout=5.0, max_concurrency=8, workers=2)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return fitted("unnamed", tmp_path_factory.mktemp("models"))[0]


@pytest.fixture(scope="module")
def client(path):
    with serving(create_app(served(path), LIMITS)) as found:
        yield found


def test_predictions_are_those_of_the_library(client, path):
    answer = client.post(rows=features()[:7].tolist())
    wanted = cs.load(path).predict_proba(features()[:7])
    assert answer.status == 200
    np.testing.assert_allclose(answer.content["predictions"]["bird"]["probabilities"], wanted, rtol=1e-12)
    assert client.post("/explain", rows=[ROW]).content["explanations"][0]["group"]["bird"] in ("duck", "gull")
    assert client.post("/predict_set", rows=[ROW], coverage=0.5).content["coverage"] == 0.5


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "the body is not JSON"),
        (b"{", "the body is not JSON"),
        (b'{"rows": [[1, 2, NaN]]}', "the body is not JSON"),
        (b'{"rows": [[1, 2, Infinity]]}', "the body is not JSON"),
        (b'{"rows": [[1, 2, 1e999]]}', "'feature 2' is infinite in row 0"),
        (b'{"rows": [[1, 2, "a"]]}', "'feature 2' is 'a' in row 0"),
        (b'{"rows": [[1, 2]]}', "row 0 has 2 values, but the model takes 3"),
        (b'{"rows": ' + b"[" * 50_00 + b"]" * 50_00 + b"}", "the body is not JSON (recursion limit"),
        (b'{"a":' * 1000 + b"1" + b"}" * 1000, "the body is not JSON (recursion limit"),
        (b'{"rows": [[1, 2, ' + b"9" * 9000 + b"]]}", "the body is not JSON (number out of range"),
        (b"\xff\xfe", "the body is not JSON"),
        (b'{"rows": ["\\ud800"]}', "the body is not JSON"),
        (b'{"rows": [{"a": 1}]}', "row 0 is an object"),
        (b'{"rows": [[1, 2, 3]], "attributes": [{"place": "moon"}]}', "a value that training lacks"),
        (b'{"rows": [[1, 2, 3]], "prior": "none"}', "prior 'none' is not known"),
        (b'{"rows": [[1, 2, 3]], "coverage": 0.9}', "key 'coverage' is not known"),
    ],
)
def test_content_that_cannot_be_read_is_422(client, body, sentence):
    answer = client.send("POST", "/predict", body)
    assert answer.status == 422
    assert list(answer.content) == ["error"]
    assert sentence in answer.content["error"]
    assert "\n" not in answer.content["error"]


def test_too_many_rows_or_bytes_are_413(client):
    answer = client.post(rows=[ROW] * 51)
    assert (answer.status, answer.content["error"]) == (
        413,
        "rows has 51 items, but at most 50 are accepted: split the request",
    )
    for size in (20_001, 3_000_000):
        answer = client.send("POST", "/predict", b" " * size)
        assert (answer.status, answer.content["error"]) == (
            413,
            "the body has more than 20000 bytes: send fewer rows per request",
        )

    def chunks():
        for _ in range(300):
            yield b" " * 10_000

    assert client.send("POST", "/predict", chunks()).status == 413


@pytest.mark.parametrize(
    ("method", "endpoint", "headers", "status", "sentence"),
    [
        ("POST", "/predict", {}, 415, "the content type is '': send JSON, with Content-Type: application/json"),
        ("POST", "/predict", {"Content-Type": "text/plain"}, 415, "the content type is 'text/plain'"),
        ("POST", "/predict", {**JSON, "Content-Encoding": "gzip"}, 415, "the content encoding is 'gzip'"),
        ("GET", "/predict", {}, 405, "'/predict' does not take GET: use POST"),
        ("DELETE", "/explain", {}, 405, "'/explain' does not take DELETE: use POST"),
        ("POST", "/health", JSON, 405, "'/health' does not take POST: use GET"),
        ("GET", "/nothing", {}, 404, "there is no endpoint '/nothing': the endpoints are /predict"),
        ("POST", "/predict/", JSON, 404, "there is no endpoint '/predict/'"),
    ],
)
def test_wrong_requests_name_the_right_one(client, method, endpoint, headers, status, sentence):
    answer = client.send(method, endpoint, gzip.compress(b"{}") if method == "POST" else None, headers)
    assert answer.status == status
    assert sentence in answer.content["error"]


class Blocking:
    """A classifier that waits until it may go on."""

    def __init__(self, model):
        self.entered, self.go = threading.Semaphore(0), threading.Event()
        self._predict, self.calls = model.predict, 0

    def __call__(self, query):
        self.calls += 1
        self.entered.release()
        assert self.go.wait(20)
        return self._predict(query)


@contextlib.contextmanager
def blocked(path, limits):
    """A service whose predictions wait."""
    model = served(path)
    model.predict = waiting = Blocking(model)
    waiting.go.set()
    app = create_app(model, limits)  # which predicts once
    waiting.go.clear()
    assert waiting.entered.acquire(timeout=1)
    with serving(app) as client:
        try:
            yield client, waiting
        finally:
            waiting.go.set()


def test_more_requests_than_the_limit_are_503_and_the_others_are_answered(path):
    with blocked(path, Limits(max_concurrency=3, workers=1)) as (client, waiting):
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(client.post(rows=[ROW]))) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert waiting.entered.acquire(timeout=10)
        while client.metric("compshift_active_requests") < 3:
            time.sleep(0.01)
        answer = client.post(rows=[ROW])
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        assert answer.content["error"] == "3 requests are in progress, which is the limit: try again in a second"
        assert client.get("/health").status == 200
        waiting.go.set()
        for thread in threads:
            thread.join(10)
        assert [answer.status for answer in answers] == [200, 200, 200]
        assert client.post(rows=[ROW]).status == 200
        assert client.metric("compshift_active_requests") == 0


def test_an_answer_that_takes_too_long_is_504_and_keeps_its_place_until_it_ends(path):
    with blocked(path, Limits(timeout=0.3, max_concurrency=1, workers=1)) as (client, waiting):
        answer = client.post(rows=[ROW])
        assert answer.status == 504
        assert answer.content["error"].startswith("the answer took longer than 0.3 s: send fewer rows")
        assert client.post(rows=[ROW]).status == 503
        waiting.go.set()
        while client.metric("compshift_active_requests") > 0:
            time.sleep(0.01)
        assert client.post(rows=[ROW]).status == 200


def test_a_body_that_does_not_arrive_is_408(path):
    with serving(create_app(served(path), Limits(timeout=0.3))) as client:
        with socket.create_connection(("127.0.0.1", client.port), timeout=10) as connection:
            connection.sendall(b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n")
            connection.sendall(b"Content-Length: 100\r\n\r\n{")
            answer = connection.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"the body did not arrive within 0.3 s" in answer
        assert b"connection: close" in answer.lower()
        assert client.metric("compshift_active_requests") == 0


def test_a_client_that_leaves_does_not_keep_its_place(client):
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", client.port), timeout=10) as connection:
            connection.sendall(b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n")
            connection.sendall(b"Content-Length: 100\r\n\r\n{")
    deadline = time.monotonic() + 10
    while client.metric("compshift_active_requests") > 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert client.metric("compshift_active_requests") == 0
    assert client.post(rows=[ROW]).status == 200


def test_metrics_count_requests_errors_and_rows(path):
    with serving(create_app(served(path), LIMITS)) as client:
        for rows in ([ROW], [ROW] * 4, [[1]]):
            client.post(rows=rows)
        client.get("/secret")
        assert client.metric('compshift_requests_total{endpoint="/predict",status="200"}') == 2
        assert client.metric('compshift_errors_total{endpoint="/predict",status="422"}') == 1
        assert client.metric('compshift_errors_total{endpoint="other",status="404"}') == 1
        assert client.metric('compshift_rows_total{endpoint="/predict"}') == 5
        assert client.metric('compshift_request_seconds_count{endpoint="/predict"}') == 3
        assert client.get("/metrics").headers["Content-Type"].startswith("text/plain; version=")
        assert "secret" not in client.get("/metrics").content


def test_drift_shows_groups_that_training_lacks(path, monkeypatch):
    monkeypatch.setattr("compshift.serve.metrics.SECONDS_BETWEEN_ESTIMATES", 0.0)
    rng = np.random.default_rng(3)
    with serving(create_app(served(path), Limits())) as client:
        assert client.metric("compshift_drift_rows") == 0
        assert client.metric("compshift_drift_total_variation") is None
        client.post(rows=features().tolist())  # as in training
        assert client.metric("compshift_drift_rows") == 180
        assert client.metric("compshift_drift_total_variation") < 0.03
        assert client.metric("compshift_drift_unseen_share") < 0.03
        client.post(rows=rng.normal(size=(540, 3)).tolist())  # (duck, lake), never seen
        assert client.metric("compshift_drift_total_variation") == pytest.approx(0.75, abs=0.05)
        assert client.metric("compshift_drift_unseen_share") == pytest.approx(0.75, abs=0.05)
        unseen = 'compshift_group_frequency{group="bird=duck, place=lake"}'
        assert client.metric(unseen) == client.metric("compshift_drift_unseen_share")
        assert client.metric('compshift_group_training_frequency{group="bird=gull, place=sea"}') == pytest.approx(1 / 3)


def test_drift_remembers_the_latest_rows_only(path):
    monitor = DriftMonitor.of(served(path))
    for number in range(30):
        monitor.add(np.full((200, 3), float(number)))
    assert sum(map(len, monitor._blocks)) == MAX_RECENT_ROWS
    assert monitor._blocks[0][0, 0] == 20
    monitor.add(np.zeros((5000, 3)))
    assert [len(block) for block in monitor._blocks] == [MAX_RECENT_ROWS]
    assert monitor.estimate().n_rows == MAX_RECENT_ROWS
    latest = monitor.estimate()
    monitor.add(np.zeros((1, 3)))
    assert monitor.estimate() is latest  # too soon for another one


def test_groups_beyond_the_limit_of_gauges_are_summed(path, monkeypatch):
    monkeypatch.setattr("compshift.serve.metrics.MAX_GROUP_GAUGES", 1)
    monitor = DriftMonitor.of(served(path))
    monitor.add(features())
    families = {family.name: family for family in monitor.collect()}
    for name in ("compshift_group_frequency", "compshift_group_training_frequency"):
        samples = families[name].samples
        assert [sample.labels["group"] for sample in samples][1:] == ["other"]
        assert sum(sample.value for sample in samples) == pytest.approx(1)


def test_the_page_and_openapi_describe_this_model(client):
    page = client.get("/docs")
    assert "duck, gull" in page.content
    assert "script-src 'sha256-" in page.headers["Content-Security-Policy"]
    for outside in ("http://", "https://", "//"):
        links = [text for text in page.content.split('"') if text.startswith(outside)]
        assert links == []
    assert client.get("/").content == page.content
    schema = client.get("/openapi.json").content
    row = schema["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert row["rows"]["items"] == {"type": "array", "items": {"type": "number"}, "minItems": 3, "maxItems": 3}
    assert row["attributes"]["items"]["properties"]["place"]["enum"] == ["lake", "sea", None]
    assert set(schema["paths"]) == {"/predict", "/predict_set", "/explain", "/health", "/metrics", "/example"}
    example = client.get("/example").content
    assert client.send("POST", "/predict", json.dumps(example)).status == 200


def test_text_of_a_model_cannot_become_markup():
    y = labels().replace({"bird": {"duck": "<script>alert(1)</script>", "gull": "$title & 'x'"}})
    clf = cs.CRMClassifier().fit(features(), y["bird"], attributes=y[["place"]])
    with serving(create_app(served_classifier(clf), LIMITS)) as client:
        page = client.get("/docs").content
        assert "<script>alert" not in page
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
        assert "$title &amp; &#x27;x&#x27;" in page


def test_unexpected_errors_are_500_with_a_sentence(path):
    model = served(path)
    app = create_app(model, LIMITS)
    model.clf.predict_log_proba = lambda *_: 1 / 0
    with serving(app) as client:
        answer = client.post(rows=[ROW])
    assert (answer.status, list(answer.content)) == (500, ["error"])
    assert "ZeroDivisionError" in answer.content["error"]
    assert "Traceback" not in answer.content["error"]


def test_many_clients_at_once_get_their_own_answers(client, path):
    X = features()
    wanted = cs.load(path).predict_proba(X)
    failures = []

    def ask(number):
        for row in range(number, 180, 6):
            answer = client.post(rows=[X[row].tolist()])
            if not np.allclose(answer.content["predictions"]["bird"]["probabilities"][0], wanted[row]):
                failures.append(row)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []


def test_requests_that_wait_are_predicted_together_and_answered_separately(path):
    X = features()
    wanted = cs.load(path).predict_proba(X)
    bodies = [{"rows": X[row : row + 1 + row % 3].tolist()} for row in range(12)]
    bodies[4] = {"rows": [[1.0, 2.0, "three"]]}
    bodies[7] = {"rows": X[7:8].tolist(), "attributes": [{"place": "sea"}]}
    for left_out, expected_calls in (((4, 7), 1), ((4,), 2), ((7,), 10), ((), 11)):
        with blocked(path, Limits(workers=1)) as (client, waiting):
            answers = {}
            first = threading.Thread(target=client.post, kwargs={"rows": [ROW]})
            first.start()
            assert waiting.entered.acquire(timeout=10)
            asked = [row for row in range(12) if row not in left_out]
            ask = lambda row, client=client, answers=answers: answers.update({row: client.post(**bodies[row])})  # noqa: E731
            threads = [threading.Thread(target=ask, args=(row,)) for row in asked]
            for thread in threads:
                thread.start()
            while client.metric("compshift_active_requests") < 1 + len(asked):
                time.sleep(0.01)
            waiting.go.set()
            for thread in [first, *threads]:
                thread.join(20)
            calls = waiting.calls - 2  # the check of the model, and the first request
        assert calls == expected_calls
        for row in asked:
            if row == 4:
                assert answers[row].status == 422
                assert "'feature 2' is 'three' in row 0" in answers[row].content["error"]
            elif row != 7:
                found = answers[row].content["predictions"]["bird"]
                np.testing.assert_allclose(found["probabilities"], wanted[row : row + 1 + row % 3], rtol=1e-9)
                assert len(found["predicted"]) == 1 + row % 3


def test_a_taken_port_is_one_sentence():
    with open_socket("127.0.0.1", 0) as taken:
        assert taken.proto == socket.IPPROTO_TCP  # otherwise asyncio leaves Nagle's delay of 40 ms on
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"cannot listen on port {port} of '127.0.0.1' .*in use"):
            open_socket("127.0.0.1", port)
    with pytest.raises(InputError, match="cannot listen on port 80 of 'no such host'"):
        open_socket("no such host", 80)
