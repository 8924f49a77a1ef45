"""Train, val and test splits, stored as code 0, 1 or 2 for every row, and random splits stratified by group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from compshift._checks import as_array, check_generator, check_positive, check_same_rows
from compshift._errors import InputError, check_name, listing
from compshift.core.arrays import BoolArray, IntArray
from compshift.core.groups import GroupSpace

SPLITS = ("train", "val", "test")
"""Names of the split codes 0, 1 and 2."""

TRAIN, VAL, TEST = range(len(SPLITS))  # split codes

DEFAULT_SHARES = {"train": 0.7, "val": 0.1, "test": 0.2}
"""Default shares of the rows for a random split."""

Rows = BoolArray | IntArray | slice
"""Selection of rows: a mask, row numbers or a slice."""


def check_split(split: Any, n_rows: int) -> IntArray:
    """Check splits given as codes 0, 1, 2 or as names, and return them as codes (n,)."""
    try:
        array = as_array(split, "split")
    except InputError:
        raise
    except ValueError:
        raise InputError("split has rows of different lengths: pass one split per row") from None
    if array.ndim != 1:
        raise InputError(f"split has {array.ndim} dimensions: pass one split per row")
    check_same_rows(n_rows, array, "split")
    if array.dtype == bool:
        raise InputError(f"split contains True and False: use 0, 1, 2 or {listing(SPLITS)}")
    known: dict[Any, int] = {name: code for code, name in enumerate(SPLITS)}
    known |= {code: code for code in range(3)} | {str(code): code for code in range(3)}
    values, position = np.unique(
        np.array([str(value) for value in array]) if array.dtype == object else array, return_inverse=True
    )
    unknown = [value for value in values.tolist() if value not in known]
    if unknown:
        raise InputError(f"the split {unknown[0]!r} is not known: use 0, 1, 2 or {listing(SPLITS)}")
    return np.array([known[value] for value in values.tolist()], dtype=np.int64)[position]


def split_names(split: IntArray | None) -> tuple[str, ...]:
    """Return the names of the splits that have rows."""
    return () if split is None else tuple(SPLITS[code] for code in np.unique(split))


def split_rows(split: IntArray | None, name: str) -> Rows:
    """Select the rows of one split; all rows if the name is ``"all"`` or ``split`` is None."""
    check_name("split", name, (*SPLITS, "all"))
    if name == "all" or split is None:
        return slice(None)
    chosen = split == SPLITS.index(name)
    if not chosen.any():
        raise InputError(f"there are no {name} rows: use one of {listing(split_names(split))}")
    return np.asarray(chosen)


def stratified_split(space: GroupSpace, codes: IntArray, shares: Mapping[str, float], random_state: int) -> IntArray:
    """Split the rows of every group at random by the given shares; return split codes (n,).

    Every group has at least one training row. The result depends only on ``codes``, ``shares`` and the seed.
    """
    for name, share in shares.items():
        check_name("split", name, SPLITS)
        check_positive(share, f"the share of {name}", allow_zero=True)
    total = sum(shares.values())
    if abs(total - 1) > 1e-6 or not shares.get("train", 0) > 0:
        raise InputError(f"the shares {dict(shares)} sum to {total:g}: they must sum to 1, with a share > 0 for train")
    cuts = np.cumsum([shares.get(name, 0.0) for name in SPLITS])[:2]  # cumulative shares at which val and test begin
    groups, position = space.distinct(codes)
    rng = check_generator(random_state)
    split = np.zeros(len(codes), dtype=np.int64)
    for group in range(len(groups)):
        rows = rng.permutation(np.flatnonzero(position == group))
        bounds = np.maximum(np.rint(cuts * len(rows)).astype(np.int64), 1)
        split[rows] = np.searchsorted(bounds, np.arange(len(rows)), side="right")
    return split
