"""Seeds and numbers of jobs, as scikit-learn takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from compshift._errors import InputError

MOST_JOBS = 1024
"""More processes at once are a mistake."""


def random_numbers(random_state: Any) -> np.random.RandomState:
    """A source of random numbers from a seed, a RandomState, or None for the global one."""
    try:
        return check_random_state(random_state)  # type: ignore[no-any-return]
    except (TypeError, ValueError):
        raise InputError(
            f"random_state is {random_state!r}: pass a whole number from 0 to 2**32 − 1, a numpy.random.RandomState, "
            "or None"
        ) from None


def seed_of(random_state: Any) -> int:
    """One number that stands for all."""
    return int(random_numbers(random_state).randint(2**31))


def check_jobs(n_jobs: Any) -> int | None:
    """How many processes work at once: None, or a whole number other than 0, negative ones counted from all cores."""
    if n_jobs is None:
        return None
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, int | np.integer) or n_jobs == 0 or n_jobs > MOST_JOBS:
        raise InputError(f"n_jobs is {n_jobs!r}: pass a whole number up to {MOST_JOBS}, −1 for all cores, or None")
    return int(n_jobs)
