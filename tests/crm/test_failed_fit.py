"""A fit that fails leaves its estimator as it was, however late it fails."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.naive_bayes import GaussianNB

import compshift
from compshift import (
    AdditiveGaussian,
    AffineExtrapolation,
    CombinationKFold,
    CRMClassifier,
    CRMClassifierCV,
    InputError,
    LogitAdjustedClassifier,
)
from compshift.crm.inputs import restored_on_error
from tests.estimators.made_data import make_data

ESTIMATORS = [
    CRMClassifier(),
    CRMClassifierCV([0.1], cv=CombinationKFold(2), bias="extrapolated", anchor="zero", unseen_offset=0.0),
    LogitAdjustedClassifier(),
    AffineExtrapolation(GaussianNB(), random_state=0),
    AdditiveGaussian("per-value"),
]


@pytest.fixture(params=ESTIMATORS, ids=lambda estimator: type(estimator).__name__)
def refitted(request):
    """An estimator fitted to a frame, and the rows that it was fitted to."""
    X, codes = make_data()
    frame = pd.DataFrame(X, columns=list("abcd"))
    return request.param.fit(frame, codes[:, 0], attributes=codes[:, 1]), frame, codes


def test_refused_input_changes_nothing(refitted):
    clf, frame, codes = refitted
    before, predicted = dict(vars(clf)), clf.predict_proba(frame)
    with pytest.raises(InputError, match="attributes has 3 rows but X has 400"):
        clf.fit(frame[["a", "b"]], codes[:, 0], attributes=codes[:3, 1])
    with pytest.raises(InputError, match="attributes has 3 rows but X has 400"):
        clf.fit(frame.to_numpy()[:, :2], codes[:, 0], attributes=codes[:3, 1])
    assert vars(clf).keys() == before.keys()
    assert all(vars(clf)[name] is value for name, value in before.items())
    np.testing.assert_array_equal(clf.predict_proba(frame), predicted)


@pytest.mark.parametrize("estimator", [CRMClassifier(), LogitAdjustedClassifier(), AdditiveGaussian("per-value")])
def test_a_search_that_ends_in_an_error_changes_nothing(estimator):
    X, codes = make_data()
    clf = estimator.fit(X, codes[:, 0], attributes=codes[:, 1]).set_params(max_iter=1, tol=1e-12)
    before = dict(vars(clf))
    with pytest.raises(ConvergenceWarning):  # an error here, as every warning is
        clf.fit(X[:, :2], codes[:, 0], attributes=codes[:, 1])
    assert all(vars(clf)[name] is value for name, value in before.items())


def test_what_was_never_fitted_still_is_not():
    X, codes = make_data()
    clf = CRMClassifier()
    with pytest.raises(InputError):
        clf.fit(X, codes[:, 0], attributes=codes[:3, 1])
    assert not hasattr(clf, "n_features_in_")
    with pytest.raises(NotFittedError):
        clf.predict(X)


def test_a_model_can_be_saved_after_a_refused_fit(tmp_path):
    X, codes = make_data()
    clf = CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1])
    with pytest.raises(InputError):
        clf.fit(pd.DataFrame(X[:, :2], columns=["a", "b"]), codes[:, 0], attributes=codes[:3, 1])
    clf.save(tmp_path / "model")
    np.testing.assert_array_equal(compshift.load(tmp_path / "model").predict_proba(X), clf.predict_proba(X))


def test_an_interrupted_fit_counts_too():
    class Interrupted(BaseEstimator):
        def fit(self):
            with restored_on_error(self):
                self.kept_, self.new_ = 2, 3
                raise KeyboardInterrupt

    estimator = Interrupted()
    estimator.kept_ = 1
    with pytest.raises(KeyboardInterrupt):
        estimator.fit()
    assert vars(estimator) == {"kept_": 1}
