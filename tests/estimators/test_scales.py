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
