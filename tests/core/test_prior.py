import numpy as np
import pytest

from compshift import InputError
from compshift.core.prior import log_probabilities, uniform_log_prior


def test_uniform_over_the_chosen():
    np.testing.assert_allclose(uniform_log_prior(np.array([True, False, True])), [np.log(0.5), -np.inf, np.log(0.5)])
    with pytest.raises(InputError, match="no group to stand on"):
        uniform_log_prior(np.array([False, False]))


def test_zero_is_a_legal_probability():
    np.testing.assert_array_equal(log_probabilities([0.0, 1.0]), [-np.inf, 0.0])


@pytest.mark.parametrize(
    ("values", "message"),
    [([0.5, 0.6], "sums to 1.1"), ([1.5, -0.5], r"negative entry \(-0.5\)"), ([np.nan, 1.0], "NaN")],
)
def test_bad_probabilities(values, message):
    with pytest.raises(InputError, match=message):
        log_probabilities(values)
