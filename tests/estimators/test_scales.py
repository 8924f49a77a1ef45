"""Features at the ends of what numbers of 64 bits hold."""

import numpy as np
import pytest

from compshift import CRMClassifier, InputError, LogitAdjustedClassifier


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


def test_weights_that_underflow_are_zero():
    """They are no reason to warn of a logarithm; pytest makes that warning an error."""
    X = np.random.default_rng(0).normal(size=(60, 2))
    codes = np.array([[0, 0], [0, 1], [1, 1]])[np.arange(60) % 3]
    weight = np.where(np.arange(60) < 6, 1e-320, 1e10)
    clf = CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1], sample_weight=weight)
    assert np.isfinite(clf.predict_proba(X)).all()
