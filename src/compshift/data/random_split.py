"""A random split into train, val and test that keeps the share of every group."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compshift._checks import check_generator, check_positive
from compshift._errors import InputError, check_name
from compshift.core.arrays import IntArray
from compshift.core.groups import GroupSpace
from compshift.data.dataset import SPLITS

DEFAULT_SHARES = {"train": 0.7, "val": 0.1, "test": 0.2}


def stratified_split(space: GroupSpace, codes: IntArray, shares: Mapping[str, float], random_state: int) -> IntArray:
    """Split codes (n,): each group's rows, shuffled, are cut at the given shares; a lone row goes to train.

    The result depends on the order of the rows and the seed alone.
    """
    cuts = _cuts(shares)
    groups, position = space.distinct(codes)
    rng = check_generator(random_state)
    split = np.zeros(len(codes), dtype=np.int64)
    for group in range(len(groups)):
        rows = rng.permutation(np.flatnonzero(position == group))
        bounds = np.maximum(np.rint(cuts * len(rows)).astype(np.int64), 1)
        split[rows] = np.searchsorted(bounds, np.arange(len(rows)), side="right")
    return split


def _cuts(shares: Mapping[str, float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Where val and test begin, as shares of a group."""
    for name, share in shares.items():
        check_name("split", name, SPLITS)
        check_positive(share, f"the share of {name}", allow_zero=True)
    total = sum(shares.values())
    if abs(total - 1) > 1e-6 or not shares.get("train", 0) > 0:
        raise InputError(f"the shares {dict(shares)} sum to {total:g}: they must sum to 1, with some for train")
    return np.cumsum([shares.get(name, 0.0) for name in SPLITS])[:2]
