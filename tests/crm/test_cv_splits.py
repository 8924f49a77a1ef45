"""Splits that a caller passes to CRMClassifierCV as cv."""

import numpy as np
import pytest

from compshift import CRMClassifierCV, InputError

CODES = np.array([[0, 0], [0, 1], [1, 0], [1, 1], [2, 0], [2, 1]])[np.arange(60) % 6]
X = np.random.default_rng(0).normal(size=(60, 3)) + CODES @ [[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]
HELD = (CODES == [2, 1]).all(axis=1)


def fit(cv):
    return CRMClassifierCV([0.1], cv=cv, bias="extrapolated", anchor="zero").fit(X, CODES[:, 0], attributes=CODES[:, 1])


@pytest.mark.parametrize(
    ("cv", "message"),
    [
        ([], "no splits"),
        ({}, "no splits"),
        (["zero"], "cv yields splits that cannot be used"),
        (np.array(0.1), "cv yields splits that cannot be used"),
        ([([0, 1], [60])], "cv yields splits that cannot be used"),
        ([([0.5], [1])], "cv yields splits that cannot be used"),
        ([([[0]], [[1]])], "cv yields splits that cannot be used"),
    ],
)
def test_bad_splits_raise(cv, message):
    with pytest.raises(InputError, match=message):
        fit(cv)


def test_masks_and_indices_hold_out_the_same_group():
    masks, indices = fit([(~HELD, HELD)]), fit([(np.flatnonzero(~HELD), np.flatnonzero(HELD))])
    np.testing.assert_array_equal(masks.cv_results_["group_accuracy"], indices.cv_results_["group_accuracy"])
    assert (~np.isnan(masks.cv_results_["group_accuracy"])).sum() == 1
