"""An exported file predicts what the classifier predicts; wrong models, paths and arguments are rejected."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import compshift
from compshift import (
    AdditiveGaussian,
    AffineExtrapolation,
    CRMClassifier,
    CRMClassifierCV,
    InputError,
    LogitAdjustedClassifier,
    export_onnx,
)
from compshift.export.model import output_names
from compshift.export.sources import classifier_source
from tests.estimators.made_data import make_data
from tests.export.onnx_session import CLOSE, run


def exported(clf, tmp_path, X, **options):
    """Export a model; return the outputs of the file for X, and X rounded to the precision of the file."""
    export_onnx(clf, tmp_path / "model.onnx", **options)
    dtype = np.dtype(options.get("dtype", "float32"))
    return run(tmp_path / "model.onnx", X, dtype), np.asarray(X, dtype).astype(np.float64)


def fit(cardinalities=(2, 3), n_targets=1, clf=None, shift=0.0, missing=(0,), **data):
    X, codes = make_data(cardinalities, missing=missing, **data)
    y, further = codes[:, :n_targets], codes[:, n_targets:]
    clf = CRMClassifier() if clf is None else clf
    X = X + shift
    return clf.fit(X, y[:, 0] if n_targets == 1 else y, attributes=further if further.size else None), X


class TestClassifier:
    """Every parameter of a classifier has its effect in the exported file."""

    @pytest.mark.parametrize("transform", ["signed_root", "unit_length"])
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_transforms_of_rows_of_zeros_and_of_any_size(self, tmp_path, transform, dtype):
        clf, X = fit(clf=CRMClassifier(feature_transform=transform))
        X = X[:40] * np.logspace(-25, 25, 40)[:, None] if transform == "unit_length" else X[:40]
        found, X = exported(clf, tmp_path, np.concatenate([np.zeros((1, 4)), X]), dtype=dtype)
        np.testing.assert_allclose(found["probabilities"], clf.predict_proba(X), atol=CLOSE)

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"bias": "learned"},
            {"bias": "cumulant"},
            {"bias": "shrunk"},
            {"unseen_offset": 1.5},
            {"feature_transform": "signed_root"},
            {"feature_transform": "unit_length"},
            {"prior": "train"},
            {"prior": "hull", "support": "hull"},
            {"anchor": "gaussian"},
            {"cross_fit": True, "alpha": 1e-4},
            {"support": [[0, 0], [1, 2], [0, 1]]},
        ],
        ids=str,
    )
    def test_options(self, options, tmp_path):
        clf, X = fit(clf=CRMClassifier(**options))
        found, X = exported(clf, tmp_path, X, group_probabilities=True)
        np.testing.assert_allclose(found["probabilities"], clf.predict_proba(X), atol=CLOSE)
        np.testing.assert_allclose(found["group_probabilities"], np.exp(clf.group_log_proba(X)), atol=CLOSE)
        assert (found["label"] == clf.predict(X)).mean() > 0.99  # equal except for ties
        if options and "support" not in options:
            plain, _ = fit()
            assert not np.allclose(found["probabilities"], plain.predict_proba(X), atol=10 * CLOSE)

    def test_changes_after_the_fit_are_exported(self, tmp_path):
        clf, X = fit()
        clf.set_params(bias="learned", unseen_offset=-2.0)
        clf.set_prior({(0, 0): 0.5, (1, 1): 0.25, (1, 2): 0.25})
        found, X = exported(clf, tmp_path, X)
        np.testing.assert_allclose(found["probabilities"], clf.predict_proba(X), atol=CLOSE)
        before = clf.log_prior_
        found, _ = exported(clf, tmp_path, X, prior="train")
        assert clf.log_prior_ is before
        np.testing.assert_allclose(found["probabilities"], clf.set_prior("train").predict_proba(X), atol=CLOSE)

    def test_a_cross_validated_classifier_and_its_saved_copy(self, tmp_path):
        X, codes = make_data((3, 3), n=600)
        clf = CRMClassifierCV([1e-2, 1.0], prior="hull").fit(X, codes[:, 0], attributes=codes[:, 1])
        assert clf.unseen_offset_ != 0
        clf.save(tmp_path / "model.safetensors")
        for model in (clf, compshift.load(tmp_path / "model.safetensors")):
            found, X32 = exported(model, tmp_path, X)
            np.testing.assert_allclose(found["probabilities"], clf.predict_proba(X32), atol=CLOSE)

    def test_the_prior_can_be_replaced_at_prediction(self, tmp_path):
        """The order of the groups is in the metadata."""
        clf, X = fit((2, 40), n=2000)
        export_onnx(clf, tmp_path / "model.onnx")
        about = json.loads({p.key: p.value for p in onnx.load(tmp_path / "model.onnx").metadata_props}["compshift"])
        assert about["groups"] == "all"
        assert about["names"] == list(clf.space_.names)
        assert [tuple(values) for values in about["values"]] == list(clf.space_.values)
        assert about["compshift_version"] == compshift.__version__
        share = np.random.default_rng(0).dirichlet(np.ones(80)).reshape(2, 40)
        found = run(tmp_path / "model.onnx", X, prior=share.ravel())["probabilities"]
        X32 = X.astype(np.float32).astype(np.float64)
        np.testing.assert_allclose(found, clf.set_prior(share).predict_proba(X32), atol=CLOSE)

    def test_a_fixed_prior_removes_the_input(self, tmp_path):
        clf, X = fit()
        written = export_onnx(clf, tmp_path / "a.onnx", fixed_prior=True)
        assert list(written.inputs) == ["X"]
        assert export_onnx(clf, tmp_path / "b.onnx").inputs == {"X": (None, 4), "prior": (6,)}
        fixed, free = (run(tmp_path / name, X)["probabilities"] for name in ("a.onnx", "b.onnx"))
        np.testing.assert_allclose(fixed, free, atol=1e-7)

    def test_listed_groups_are_in_the_metadata(self, tmp_path):
        clf, _ = fit(clf=CRMClassifier(support=[[1, 2], [0, 0]]))
        export_onnx(clf, tmp_path / "model.onnx")
        about = json.loads(onnx.load(tmp_path / "model.onnx").metadata_props[0].value)
        assert about["groups"] == clf.groups_.tolist() == [[0, 0], [1, 2]]

    @pytest.mark.parametrize("n_rows", [0, 1, 7])
    @pytest.mark.parametrize("cardinalities", [(2, 3), (9, 9)])
    def test_any_number_of_rows(self, cardinalities, n_rows, tmp_path):
        clf, X = fit(cardinalities)
        found, X32 = exported(clf, tmp_path, X[:n_rows])
        assert found["probabilities"].shape == (n_rows, cardinalities[0])
        assert found["label"].shape == (n_rows,)
        if n_rows:
            np.testing.assert_allclose(found["probabilities"], clf.predict_proba(X32), atol=CLOSE)

    @pytest.mark.parametrize(
        ("values", "dtype"),
        [
            (["land bird", "Küstenvogel"], object),
            ([10, 20], np.int64),
            ([False, True], np.bool_),
            ([1.0, 2.0], np.float64),
        ],
    )
    def test_labels_are_the_values(self, values, dtype, tmp_path):
        X, codes = make_data()
        clf = CRMClassifier().fit(X, np.array(values)[codes[:, 0]], attributes=codes[:, 1])
        found, X = exported(clf, tmp_path, X)
        assert found["label"].dtype == dtype
        assert (found["label"] == clf.predict(X)).mean() > 0.99
        assert set(found["label"].tolist()) == set(values)

    def test_several_targets(self, tmp_path):
        X, codes = make_data((2, 3, 2), n=600)
        y = pd.DataFrame({"the bird": codes[:, 0], "place": np.array(["land", "sea", "sky"])[codes[:, 1]]})
        frame = pd.DataFrame(X, columns=list("abcd"))
        clf = CRMClassifier().fit(frame, y, attributes=codes[:, 2])
        found, X = exported(clf, tmp_path, X)
        assert list(found) == ["label_the_bird", "probabilities_the_bird", "label_place", "probabilities_place"]
        first, second = clf.predict_proba(pd.DataFrame(X, columns=list("abcd")))
        np.testing.assert_allclose(found["probabilities_the_bird"], first, atol=CLOSE)
        np.testing.assert_allclose(found["probabilities_place"], second, atol=CLOSE)
        assert found["label_place"].tolist()[:3] == [["land", "sea", "sky"][code] for code in second[:3].argmax(axis=1)]
        about = json.loads(onnx.load(tmp_path / "model.onnx").metadata_props[0].value)
        assert about["targets"]["the bird"]["label"] == "label_the_bird"
        assert about["feature_names"] == ["a", "b", "c", "d"]

    def test_output_names_that_collide_are_numbered(self):
        assert output_names(("a b", "a_b")) == [
            ("label_a_b_1", "probabilities_a_b_1"),
            ("label_a_b_2", "probabilities_a_b_2"),
        ]

    @pytest.mark.parametrize("shift", [1e3, 1e6])
    @pytest.mark.parametrize("cardinalities", [(2, 3), (9, 9)])
    def test_features_far_from_zero(self, cardinalities, shift, tmp_path):
        """File and classifier agree on features that are rounded to float32, wherever the features are centred."""
        clf, X = fit(cardinalities, shift=shift, n=800)
        found, X32 = exported(clf, tmp_path, X)
        np.testing.assert_allclose(found["probabilities"], clf.predict_proba(X32), atol=CLOSE)
        found, _ = exported(clf, tmp_path, X, dtype="float64")
        np.testing.assert_allclose(found["probabilities"], clf.predict_proba(X), atol=1e-9)

    @pytest.mark.parametrize("cardinalities", [(2, 3), (9, 9)])
    def test_energies_common_to_an_attribute_cancel(self, cardinalities, tmp_path):
        clf, X = fit(cardinalities)
        common = 1e4 * np.random.default_rng(0).normal(size=X.shape[1])
        coef = clf.coef_ + np.where(np.arange(len(clf.coef_)) < cardinalities[0], 1, -2)[:, None] * common
        shifted = CRMClassifier._from_model(replace(clf._model, coef=coef))
        found, X = exported(shifted, tmp_path, X)
        np.testing.assert_allclose(found["probabilities"], clf.predict_proba(X), atol=CLOSE)

    def test_export_is_one_file_and_deterministic(self, tmp_path):
        clf, _ = fit()
        written = export_onnx(clf, tmp_path / "model.onnx")
        first = (tmp_path / "model.onnx").read_bytes()
        assert len(first) == written.size
        export_onnx(clf, str(tmp_path / "model.onnx"))
        assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
        assert (tmp_path / "model.onnx").read_bytes() == first


def test_the_source_does_not_change_the_classifier():
    clf, _ = fit()
    before = clf.log_prior_.copy()
    source = classifier_source(clf, "train")
    np.testing.assert_array_equal(clf.log_prior_, before)
    np.testing.assert_allclose(source.log_weight, -clf.bias_)


class TestRejected:
    """Models that cannot be exported and paths that cannot be written raise one sentence; no file is left."""

    @pytest.fixture(autouse=True)
    def nothing_written(self, tmp_path):
        yield
        assert not list(tmp_path.glob("**/*.onnx"))

    @pytest.mark.parametrize("model", [CRMClassifier(), make_pipeline(StandardScaler(), CRMClassifier())])
    def test_an_unfitted_classifier(self, model, tmp_path):
        with pytest.raises(NotFittedError, match="not fitted"):
            export_onnx(model, tmp_path / "model.onnx")

    @pytest.mark.parametrize(
        "model",
        [
            LogitAdjustedClassifier(),
            AdditiveGaussian(),
            AffineExtrapolation(None),
            "model.safetensors",
        ],
        ids=lambda model: type(model).__name__,
    )
    def test_models_that_cannot_be_exported(self, model, tmp_path):
        with pytest.raises(InputError, match=f"an? {type(model).__name__} cannot be .*: pass a fitted CRMClassifier"):
            export_onnx(model, tmp_path / "model.onnx")

    def test_a_class_instead_of_an_instance(self, tmp_path):
        with pytest.raises(InputError, match="the class CRMClassifier cannot be"):
            export_onnx(CRMClassifier, tmp_path / "model.onnx")

    def test_paths_that_cannot_be_written(self, tmp_path):
        clf, _ = fit()
        with pytest.raises(InputError, match="there is no folder"):
            export_onnx(clf, tmp_path / "nowhere" / "model.onnx")
        with pytest.raises(InputError, match=r"does not end in '\.onnx'"):
            export_onnx(clf, tmp_path / "model.safetensors")

    def test_options(self, tmp_path):
        clf, _ = fit()
        with pytest.raises(InputError, match="dtype 'float16' is not known"):
            export_onnx(clf, tmp_path / "model.onnx", dtype="float16")
        with pytest.raises(InputError, match="prior 'even' is not known"):
            export_onnx(clf, tmp_path / "model.onnx", prior="even")

    def test_too_many_groups(self, monkeypatch, tmp_path):
        clf, _ = fit()
        monkeypatch.setattr("compshift.export.model.MAX_GROUP_COLUMNS", 5)
        with pytest.raises(
            InputError, match="6 groups, but group probabilities can be exported for at most 5: export without them"
        ):
            export_onnx(clf, tmp_path / "model.onnx", group_probabilities=True)

    def test_too_large_for_a_file(self, monkeypatch, tmp_path):
        clf, _ = fit()
        monkeypatch.setattr("compshift.export.model.MAX_ONNX_BYTES", 100)
        with pytest.raises(InputError, match="GB, but an ONNX file holds at most 2 GB: fit with fewer features"):
            export_onnx(clf, tmp_path / "model.onnx")

    def test_without_the_package_onnx(self, monkeypatch, tmp_path):
        clf, _ = fit()
        monkeypatch.setitem(sys.modules, "onnx", None)
        with pytest.raises(InputError, match=r'pip install "compshift\[onnx\]"'):
            export_onnx(clf, tmp_path / "model.onnx")


def sentence(text):
    """Return a pattern that matches a one-line message that contains this text."""
    return rf"^[^\n]*{re.escape(text)}[^\n]*$"


@pytest.fixture(scope="module")
def fitted():
    return fit()[0]


class TestArguments:
    """Wrong arguments raise one sentence, before anything is written."""

    def test_arguments_in_the_wrong_order(self, fitted):
        message = (
            "the first argument is 'z.onnx' and the second a CRMClassifier: pass the model first, then the path, as in "
            "export_onnx(model, 'z.onnx')"
        )
        for path in ("z.onnx", Path("z.onnx")):
            with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
                export_onnx(path, fitted)

    def test_wrong_paths_and_models(self, fitted, tmp_path):
        with pytest.raises(InputError, match=sentence("path is an int: pass the path of a file, as in 'model.onnx'")):
            export_onnx(fitted, 5)
        with pytest.raises(InputError, match=sentence("for example compshift.load('m.safetensors')")):
            export_onnx("m.safetensors", tmp_path / "m.onnx")
        with pytest.raises(InputError, match=sentence("an AdditiveGaussian cannot be written as ONNX")):
            export_onnx(AdditiveGaussian(), tmp_path / "m.onnx")

    @pytest.mark.parametrize(
        ("dtype", "name"),
        [(np.float32, "float32"), ("f4", "float32"), (np.dtype("float64"), "float64"), (float, "float64")],
    )
    def test_dtype_accepts_anything_that_numpy_does(self, fitted, tmp_path, dtype, name):
        export_onnx(fitted, tmp_path / "found.onnx", dtype=dtype)
        export_onnx(fitted, tmp_path / "expected.onnx", dtype=name)
        assert (tmp_path / "found.onnx").read_bytes() == (tmp_path / "expected.onnx").read_bytes()

    @pytest.mark.parametrize(
        ("dtype", "name"),
        [(np.float16, "'float16'"), (int, "'int64'"), ("half a", "'half a'"), (None, "None"), (3, "3")],
    )
    def test_unsupported_dtypes(self, fitted, tmp_path, dtype, name):
        with pytest.raises(InputError, match=sentence(f"dtype {name} is not known: use one of 'float32', 'float64'")):
            export_onnx(fitted, tmp_path / "m.onnx", dtype=dtype)
        assert not list(tmp_path.iterdir())
