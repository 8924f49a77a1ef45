"""Pipelines that end in a classifier over groups: scalers folded into it, and functions that take pipelines."""

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

import compshift as cs
from compshift.crm.pipelines import as_classifier_and_features, without_scalers
from compshift.estimators.prior_estimate import estimate_prior
from tests.estimators.made_data import make_data

X, CODES = make_data()
X = X * np.geomspace(1, 1e4, X.shape[1]) + 100
LABELS = {"y": CODES[:, 0], "classifier__attributes": CODES[:, 1]}


def fitted(*steps, clf=None):
    named = [(f"step{number}", step) for number, step in enumerate(steps)]
    return Pipeline([*named, ("classifier", clf or cs.CRMClassifier())]).fit(X, **LABELS)


@pytest.mark.filterwarnings("ignore:the standard deviation of column")  # some of the scalers do not scale
@pytest.mark.parametrize(
    "steps",
    [
        [StandardScaler()],
        [StandardScaler(with_mean=False)],
        [StandardScaler(with_std=False)],
        [StandardScaler(with_mean=False, with_std=False)],
        [StandardScaler(), None, StandardScaler(), "passthrough"],
    ],
)
def test_scalers_are_folded_exactly(steps):
    pipe = fitted(*steps)
    clf, left = without_scalers(pipe)
    assert left == []
    assert isinstance(clf, cs.CRMClassifier)
    np.testing.assert_allclose(clf.predict_proba(X), pipe.predict_proba(X), rtol=1e-9)
    assert pipe[-1] is not clf
    nested = nested_pipeline()
    np.testing.assert_allclose(without_scalers(nested)[0].predict_proba(X), nested.predict_proba(X), rtol=1e-9)


def nested_pipeline():
    return make_pipeline(StandardScaler(), make_pipeline(StandardScaler(), cs.CRMClassifier())).fit(
        X, CODES[:, 0], pipeline__crmclassifier__attributes=CODES[:, 1]
    )


def test_the_fit_without_a_pool_is_folded_too():
    pool = StandardScaler().fit(X).transform(X)
    pipe = Pipeline([("scale", StandardScaler()), ("classifier", cs.CRMClassifier(prior="hull"))])
    pipe.fit(X, **LABELS, classifier__unlabelled=pool)
    clf, _ = without_scalers(pipe)
    expected = pipe[-1].without_unlabelled().predict_proba(pool)
    np.testing.assert_allclose(clf.without_unlabelled().predict_proba(X), expected, rtol=1e-9)
    assert not np.allclose(clf.predict_proba(X), expected, atol=1e-4)


def test_names_are_those_of_the_first_scaler():
    frame = pd.DataFrame(X).add_prefix("f")
    pipe = make_pipeline(StandardScaler(), cs.CRMClassifier()).fit(
        frame, CODES[:, 0], crmclassifier__attributes=CODES[:, 1]
    )
    clf, _ = without_scalers(pipe)
    assert clf.feature_names_in_.tolist() == list(frame)
    named = fitted(StandardScaler().set_output(transform="pandas"))
    assert hasattr(named[-1], "feature_names_in_")
    assert not hasattr(without_scalers(named)[0], "feature_names_in_")


def test_other_steps_are_left():
    pipe = fitted(StandardScaler(), MinMaxScaler(), StandardScaler())
    clf, left = without_scalers(pipe)
    assert [name for name, _ in left] == ["step0", "step1"]
    np.testing.assert_allclose(clf.predict_proba(pipe[:2].transform(X)), pipe.predict_proba(X), rtol=1e-9)
    outer = Pipeline([("bounds", MinMaxScaler().fit(X)), ("inner", pipe)])
    assert [name for name, _ in without_scalers(outer)[1]] == ["bounds", "step0", "step1"]
    rooted = fitted(StandardScaler(), clf=cs.CRMClassifier(feature_transform="signed_root"))
    assert without_scalers(rooted) == (rooted[-1], rooted.steps[:1])
    with pytest.raises(NotFittedError):
        without_scalers(make_pipeline(StandardScaler(), cs.CRMClassifier()))


def test_the_last_step_and_its_features():
    pipe = fitted(StandardScaler(), "passthrough")
    clf, features = as_classifier_and_features(pipe, X)
    assert clf is pipe[-1]
    np.testing.assert_array_equal(features, pipe[0].transform(X))
    assert as_classifier_and_features(clf, X) == (clf, X)
    nested = nested_pipeline()
    clf, features = as_classifier_and_features(nested, X)
    np.testing.assert_allclose(clf.predict_proba(features), nested.predict_proba(X))


def test_diagnosis_and_prior_of_a_pipeline():
    pipe = fitted(StandardScaler())
    features = pipe[0].transform(X)
    found = cs.diagnose(pipe, X, CODES[:, 0], CODES[:, 1], cv=3)
    assert str(found) == str(cs.diagnose(pipe[-1], features, CODES[:, 0], CODES[:, 1], cv=3))
    np.testing.assert_array_equal(estimate_prior(pipe, X).log_prior, pipe[-1].estimate_prior(features).log_prior)
    with pytest.raises(cs.InputError, match="clf is a MinMaxScaler: pass a fitted classifier over groups"):
        cs.diagnose(make_pipeline(StandardScaler(), MinMaxScaler()).fit(X), X, CODES[:, 0], CODES[:, 1])


class TestOnnx:
    def test_scalers_become_part_of_the_weights(self, tmp_path):
        onnxruntime = pytest.importorskip("onnxruntime")
        pipe = fitted(StandardScaler())
        cs.export_onnx(pipe, tmp_path / "m.onnx", dtype="float64")
        session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
        np.testing.assert_allclose(session.run(None, {"X": X})[1], pipe.predict_proba(X), rtol=1e-6)

    def test_other_steps_are_named(self, tmp_path):
        pytest.importorskip("onnx")
        sentence = r"^the step 'step0' \(MinMaxScaler\) of the pipeline cannot be written as ONNX: export the last step"
        with pytest.raises(cs.InputError, match=sentence):
            cs.export_onnx(fitted(MinMaxScaler()), tmp_path / "m.onnx")

    def test_steps_before_boosted_energies_are_named(self, tmp_path):
        pytest.importorskip("onnx")
        pytest.importorskip("lightgbm")
        pipe = fitted(StandardScaler(), clf=cs.CRMBoostingClassifier(max_iter=2, n_jobs=1))
        with pytest.raises(cs.InputError, match=r"^the step 'step0' \(StandardScaler\) of the pipeline cannot"):
            cs.export_onnx(pipe, tmp_path / "m.onnx")
