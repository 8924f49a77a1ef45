"""Log priors over candidate groups."""

from typing import Any

import numpy as np

from compshift._checks import check_probabilities
from compshift._errors import InputError
from compshift.core.arrays import BoolArray, FloatArray


def log_probabilities(values: Any, name: str = "prior") -> FloatArray:
    """Logarithm of probabilities that sum to 1; an entry of 0 becomes −inf."""
    probabilities = check_probabilities(values, name)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(probabilities), dtype=np.float64)


def uniform_log_prior(chosen: BoolArray) -> FloatArray:
    """Equal probability for each chosen group (g,), none for the others."""
    count = int(np.count_nonzero(chosen))
    if count == 0:
        raise InputError("the prior has no group to stand on: none of the candidate groups is inside the hull")
    return np.where(chosen, -np.log(count), -np.inf)
