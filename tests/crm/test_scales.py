"""Features and weights at the ends of what numbers of 64 bits hold."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

from compshift import AffineExtrapolation, CRMClassifier, InputError, LogitAdjustedClassifier
from compshift.crm.problem import standardise
from tests.estimators.made_data import make_data


@pytest.mark.parametrize("clf", [CRMClassifier(), LogitAdjustedClassifier()], ids=lambda clf: type(clf).__name__)
def test_denormal_features_are_refused(clf):
    """Their weights would be infinite, and every probability NaN."""
    X = np.random.default_rng(0).normal(size=(30, 2))
    codes = np.array([[0, 0], [0, 1], [1, 1]])[np.arange(30) % 3]
    with pytest.raises(InputError, match="multiply them, for example by 1e300"):
        clf.fit(X * 5e-320, codes[:, 0], attributes=codes[:, 1])
    same = clf.fit(np.ldexp(X, -996), codes[:, 0], attributes=codes[:, 1]).predict_proba(np.ldexp(X, -996))
    np.testing.assert_allclose(same, clf.fit(X, codes[:, 0], attributes=codes[:, 1]).predict_proba(X), atol=1e-9)


@pytest.mark.parametrize("spoil", [lambda X: X * [1e-9, 1], lambda X: np.where(X.max() == X, 1e12, X)])
def test_features_that_others_leave_without_effect_are_told(spoil):
    X = spoil(np.random.default_rng(0).normal(size=(30, 2)))
    codes = np.array([[0, 0], [0, 1], [1, 1]])[np.arange(30) % 3]
    with pytest.warns(UserWarning, match="leaves the latter without effect; divide each by its standard deviation"):
        CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1])


@pytest.mark.parametrize("vanishing", [5e-324, 1e-320, 1e-309])
@pytest.mark.parametrize("rows", ["some", "a group"])
@pytest.mark.parametrize(
    "clf",
    [
        CRMClassifier(),
        CRMClassifier(anchor="gaussian"),
        AffineExtrapolation(LogisticRegression(), cv=2, random_state=0),
    ],
)
def test_weights_that_vanish_beside_the_others_are_zero(clf, rows, vanishing):
    """They give the model of the other rows, without a warning; pytest would make one an error."""
    X, codes = make_data(missing=())
    vanished = np.arange(len(X)) < 6 if rows == "some" else (codes == [1, 2]).all(axis=1)
    one, other = (
        clone(clf).fit(X, codes[:, 0], attributes=codes[:, 1], sample_weight=np.where(vanished, weight, 1.0))
        for weight in (vanishing, 0.0)
    )
    np.testing.assert_array_equal(one.predict_proba(X), other.predict_proba(X))
    np.testing.assert_array_equal(one.seen_, other.seen_)


def test_a_class_whose_weights_vanish_is_none():
    X, codes = make_data()
    weight = np.where(codes[:, 0] == 1, 1e-320, 1.0)
    with pytest.raises(InputError, match=r"only one class \(0\) in the rows with a weight above 0"):
        CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1], sample_weight=weight)


@pytest.mark.parametrize("constant", [0.1, 1e-17 * 7, -1 / 3, 1e9 + 0.1])
def test_a_constant_feature_has_no_scale(constant):
    """The rounding of its mean is none either."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4001, 3))
    X[:, 1] = constant
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        standardise(X, rng.random(4001))
    X[:, 1] += 1e-9 * rng.normal(size=4001)
    if constant < 1:
        with pytest.warns(UserWarning, match="feature 1 to"):
            standardise(X, rng.random(4001))
