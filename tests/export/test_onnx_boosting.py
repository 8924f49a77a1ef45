"""Exported files of ``CRMBoostingClassifier`` predict what the classifier predicts for tables of mixed columns."""

import json

import numpy as np
import pandas as pd
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("lightgbm")

import compshift
from compshift import CRMBoostingClassifier, InputError, export_onnx
from compshift.crm.trees import CATEGORICAL
from tests.export.onnx_session import CLOSE, run

QUICK = {"max_iter": 15, "n_jobs": 1, "min_samples_leaf": 5}
ENERGIES = {"boosted": "boosted", "linear": "linear", "auto": "both"}


def made_table(n=900, seed=0):
    """Return a table of numbers of any size and categories, with gaps, and codes of three attributes.

    Numbers are rounded to 32 bits, so that files of both precisions predict the same.
    """
    rng = np.random.default_rng(seed)
    codes = rng.integers(3, size=(n, 2))
    means = rng.normal(size=(2, 3, 5))
    X = means[0, codes[:, 0]] + means[1, codes[:, 1]] + rng.normal(size=(n, 5))
    X[:, 1] = np.where(codes[:, 0] == 2, np.abs(X[:, 1]), X[:, 1])  # not linear
    X[:, 2] = 1e6 + X[:, 2].round(1)
    X = (X * [1.0, 1.0, 1.0, 1e-25, 1e25]).astype(np.float32).astype(np.float64)
    frame = pd.DataFrame(X, columns=["a", "b", "far", "tiny", "huge"])
    town = np.where(rng.random(n) < 0.6, 12 * codes[:, 0] + rng.integers(12, size=n), rng.integers(40, size=n))
    frame["town"] = pd.Series([f"town {number}" for number in town], dtype=object)
    frame["wet"] = rng.random(n) < 0.2 + 0.3 * codes[:, 1]
    frame.loc[::7, "a"] = np.nan
    frame.loc[::11, "town"] = None
    codes = np.column_stack([codes, rng.integers(2, size=n)])
    return frame, codes, (codes[:, :2] != (0, 0)).any(axis=1)


def fit(energies="boosted", n_targets=1, **options):
    frame, codes, kept = made_table()
    y, further = codes[kept, :n_targets], codes[kept, n_targets : 2 if n_targets == 1 else 3]
    clf = CRMBoostingClassifier(energies=energies, **QUICK, **options)
    y = y[:, 0] if n_targets == 1 else y
    return clf.fit(frame[kept], y, attributes=further if further.size else None), frame


def metadata(path):
    """Return the metadata of a file."""
    return json.loads(onnx.load(path).metadata_props[0].value)


def as_numbers(frame, about):
    """Return the input of a file: categories become their positions in the list of the metadata."""
    columns = []
    for name, categories in zip(about["feature_names"], about["categories"], strict=True):
        values = frame[name]
        if categories is not None:
            number = {category: position for position, category in enumerate(categories)}
            values = values.map(lambda value, number=number: number.get(value, np.nan))
        columns.append(values.to_numpy(dtype=np.float64))
    return np.column_stack(columns)


@pytest.fixture(scope="module", params=list(ENERGIES))
def fitted(request):
    """A classifier of each kind of energies, and a table."""
    clf, frame = fit(request.param)
    assert clf.energies_ == ENERGIES[request.param]
    return clf, frame


class TestProbabilities:
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_tables_with_gaps_and_categories(self, fitted, dtype, tmp_path):
        clf, frame = fitted
        frame = frame.assign(town=frame["town"].replace("town 3", "a town that training lacks"))
        written = export_onnx(clf, tmp_path / "m.onnx", dtype=dtype, group_probabilities=True)
        assert written.inputs == {"X": (None, 7), "prior": (9,)}
        found = run(tmp_path / "m.onnx", as_numbers(frame, metadata(tmp_path / "m.onnx")), dtype)
        close = CLOSE if dtype == "float32" else 1e-9
        np.testing.assert_allclose(found["probabilities"], clf.predict_proba(frame), atol=close)
        np.testing.assert_allclose(found["group_probabilities"], np.exp(clf.group_log_proba(frame)), atol=close)
        np.testing.assert_array_equal(found["label"], clf.predict(frame))

    def test_gaps_and_categories_matter(self, fitted):
        """Otherwise the test above would show little."""
        clf, frame = fitted
        for name, value in (("a", 0.0), ("town", "town 1")):
            assert np.abs(clf.predict_proba(frame.assign(**{name: value})) - clf.predict_proba(frame)).max() > 0.1
        trees = getattr(clf._model.basis, "trees", clf._model.basis)
        assert clf.energies_ == "linear" or (trees.decision & CATEGORICAL).any()

    def test_categories_are_in_the_metadata(self, fitted, tmp_path):
        clf, frame = fitted
        export_onnx(clf, tmp_path / "m.onnx")
        about = metadata(tmp_path / "m.onnx")
        assert about["feature_names"] == list(frame.columns)
        assert about["categories"][:5] == [None] * 5
        assert about["categories"][5] == sorted(frame["town"].dropna().unique())
        assert about["categories"][6] == [False, True]

    def test_another_prior(self, fitted, tmp_path):
        clf, frame = fitted
        prior = np.random.default_rng(0).dirichlet(np.ones(9)).reshape(3, 3)
        export_onnx(clf, tmp_path / "m.onnx")
        export_onnx(clf, tmp_path / "fixed.onnx", prior=prior, fixed_prior=True)
        X = as_numbers(frame, metadata(tmp_path / "m.onnx"))
        before = clf.log_prior_
        expected = clf.set_prior(prior).predict_proba(frame)
        clf.log_prior_ = before
        assert np.abs(expected - clf.predict_proba(frame)).max() > 0.1
        found = run(tmp_path / "m.onnx", X, prior=prior.ravel())["probabilities"]
        np.testing.assert_allclose(found, expected, atol=CLOSE)
        np.testing.assert_allclose(run(tmp_path / "fixed.onnx", X)["probabilities"], expected, atol=CLOSE)

    def test_a_saved_copy(self, fitted, tmp_path):
        clf, _ = fitted
        clf.save(tmp_path / "m.safetensors")
        export_onnx(clf, tmp_path / "a.onnx")
        export_onnx(compshift.load(tmp_path / "m.safetensors"), tmp_path / "b.onnx")
        assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()

    def test_no_rows(self, fitted, tmp_path):
        export_onnx(fitted[0], tmp_path / "m.onnx")
        assert run(tmp_path / "m.onnx", np.zeros((0, 7)))["probabilities"].shape == (0, 3)


@pytest.mark.parametrize("options", [{"bias": "learned"}, {"unseen_offset": 1.5}, {"support": "hull"}], ids=str)
def test_options(options, tmp_path):
    clf, frame = fit(**options)
    export_onnx(clf, tmp_path / "m.onnx")
    found = run(tmp_path / "m.onnx", as_numbers(frame, metadata(tmp_path / "m.onnx")))
    np.testing.assert_allclose(found["probabilities"], clf.predict_proba(frame), atol=CLOSE)


def test_several_targets(tmp_path):
    """The third attribute has two values, for which trees have a single output."""
    clf, frame = fit(n_targets=2)
    assert clf._model.basis.n_outputs == 7
    export_onnx(clf, tmp_path / "m.onnx")
    found = run(tmp_path / "m.onnx", as_numbers(frame, metadata(tmp_path / "m.onnx")))
    for name, expected, labels in zip(clf.targets_.names, clf.predict_proba(frame), clf.predict(frame).T, strict=True):
        np.testing.assert_allclose(found[f"probabilities_{name}"], expected, atol=CLOSE)
        np.testing.assert_array_equal(found[f"label_{name}"], labels)


def test_arrays_of_numbers(tmp_path):
    """Values equal to a threshold, which lie halfway between training samples, go left."""
    rng = np.random.default_rng(0)
    codes = np.repeat([[0, 1], [1, 0], [1, 1]], 200, axis=0)
    X = (rng.normal(size=codes.shape) + 2 * codes).round(2)
    clf = CRMBoostingClassifier(**QUICK).fit(X, codes[:, 0], attributes=codes[:, 1])
    trees = clf._model.basis
    at = [trees.threshold[trees.feature == column] / trees.scale[column] for column in range(2)]
    X = np.column_stack([rng.choice(values, 500) for values in at]).astype(np.float32)
    export_onnx(clf, tmp_path / "m.onnx")
    assert metadata(tmp_path / "m.onnx")["categories"] == [None, None]
    found = run(tmp_path / "m.onnx", X)["probabilities"]
    np.testing.assert_allclose(found, clf.predict_proba(X.astype(np.float64)), atol=CLOSE)


@pytest.mark.parametrize("energies", ["boosted", "linear"])
def test_numbers_of_64_bits_alone(energies, tmp_path):
    frame, codes, kept = made_table()
    frame = frame.assign(tiny=frame["b"] * 1e-150)[["a", "tiny"]]
    clf = CRMBoostingClassifier(energies=energies, **QUICK)
    clf.fit(frame[kept], codes[kept, 0], attributes=codes[kept, 1])
    with pytest.raises(
        InputError, match=r"^column 'tiny' of X has numbers near \de-1[45]\d, which 32 bits cannot hold"
    ):
        export_onnx(clf, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())
    export_onnx(clf, tmp_path / "m.onnx", dtype="float64")
    found = run(tmp_path / "m.onnx", frame.to_numpy(), np.float64)["probabilities"]
    np.testing.assert_allclose(found, clf.predict_proba(frame), atol=1e-9)
