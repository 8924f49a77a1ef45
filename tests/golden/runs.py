"""Golden cases that train networks, and that run a benchmark."""

import json
import tempfile
from pathlib import Path

import numpy as np

import compshift as cs


def grouped_data(n=30, seed=23):
    """Two attributes that each move the features; the group (water, forest) is in the test split only."""
    rng = np.random.default_rng(seed)
    codes = np.repeat([[0, 0], [0, 1], [1, 0], [1, 1]], [3 * n, n, n, 2 * n], axis=0)
    X = rng.normal(size=(len(codes), 5)) + codes[:, :1] * [2, 0, 1, 0, 0] + codes[:, 1:] * [0, 2, 1, 0, 0]
    split = rng.integers(0, 3, size=len(codes))
    split[(codes == [1, 0]).all(axis=1)] = 2
    space = cs.GroupSpace(("bird", "place"), (("land", "water"), ("forest", "sea")))
    return cs.data.GroupedDataset(X, space, codes, split)


def trained_numbers(clf, samples):
    found = {
        "predict_proba": clf.predict_proba(samples),
        "predict": [str(value) for value in clf.predict(samples)],
        "squared_weights": np.array([float((w.double() ** 2).sum()) for w in clf.model.parameters()]),
    }
    if hasattr(clf.head_, "bias_"):
        found["bias"] = clf.head_.bias_
        found["effective_sample_size"] = clf.head_.effective_sample_size_
    return found


def training(method, **hyperparameters):
    """15 steps of one method, of a small network on features."""

    def case():
        data, made = grouped_data(), cs.methods.make_method(method, hyperparameters)
        settings = cs.training.Settings(steps=15, batch_size=16, eval_every=5, learning_rate=0.05, seed=3)
        clf = cs.training.train(data, made, "mlp", settings, device="cpu")
        return trained_numbers(clf, data.X[::15])

    return case


def training_images():
    """15 steps of CRM on small images."""
    rng = np.random.default_rng(24)
    codes = np.repeat([[0, 0], [0, 1], [1, 0], [1, 1]], 24, axis=0)
    pixels = rng.integers(0, 120, size=(len(codes), 16, 16, 3), dtype=np.uint8)
    pixels[:, 2:8, 2:8] += (100 * codes[:, :1, None, None]).astype(np.uint8)
    pixels[:, 9:14, :, :1] += (100 * codes[:, 1:, None, None]).astype(np.uint8)
    split = np.arange(len(codes)) % 3
    split[(codes == [1, 0]).all(axis=1)] = 2
    data = cs.data.GroupedDataset(image_samples(pixels), cs.GroupSpace.from_cardinalities([2, 2]), codes, split)
    settings = cs.training.Settings(steps=15, batch_size=16, eval_every=5, seed=3)
    clf = cs.training.train(data, "crm", "small-cnn", settings, device="cpu", workers=0)
    return trained_numbers(clf, pixels[::12])


def image_samples(pixels):
    from tests.golden.internals import ImageArrays

    return ImageArrays(pixels)


def write_feature_file(path, seed=25):
    """2 × 3 groups in every split, which overlap so that methods differ."""
    rng = np.random.default_rng(seed)
    groups = [(y, a) for y in range(2) for a in range(3)]
    codes = np.repeat(groups, [60, 20, 15, 10, 40, 50], axis=0)
    X = rng.normal(size=(len(codes), 4)) + 0.9 * codes @ rng.normal(size=(2, 4))
    values = '{"bird": ["land", "water"], "place": ["forest", "sea", "sand"]}'
    split = np.arange(len(codes)) % 3
    np.savez(path, X=X, Z=codes, split=split, attribute_names=["bird", "place"], value_names=values)


def bench_features():
    from tests.golden.internals import command

    with tempfile.TemporaryDirectory() as folder:
        write_feature_file(Path(folder) / "birds.npz")
        options = ["--features", "--methods", "erm,groupdro,lc,sla,crm", "--drop", "water,sea", "--drop", "land,sand"]
        arguments = ["bench", "birds.npz", *options, "--draws", "2", "--seeds", "2", "--jobs", "1", "-o", "out"]
        outcome = json.loads(command(*arguments, "--json", cwd=folder))
        again = json.loads(command(*arguments, "--json", cwd=folder))
        markdown = command("tables", "out", cwd=folder)
        table = command("tables", "out", "--format", "csv", cwd=folder)
    rows = outcome["results"]
    return {
        "rows": [" / ".join(str(row[name]) for name in ("table", "dataset", "method", "metric")) for row in rows],
        "mean": np.array([row["mean"] for row in rows]),
        "error": np.array([np.nan if row["error"] is None else row["error"] for row in rows]),
        "jobs": np.array([outcome["new"], outcome["known"], again["new"], again["known"]]),
        "markdown": "\n".join(line for line in markdown.splitlines() if line.startswith("|")),
        "csv": "\n".join(line for line in table.splitlines() if line.count(",") > 2),
    }
