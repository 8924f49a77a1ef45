"""A data set whose rows belong to groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from compshift._checks import check_codes, check_same_rows
from compshift._errors import InputError, listing, unknown_name
from compshift.core.arrays import BoolArray, IntArray
from compshift.core.groups import GroupSpace

if TYPE_CHECKING:
    import pandas as pd

SPLITS = ("train", "val", "test")
"""Names of the split codes 0, 1 and 2."""


@dataclass(frozen=True, eq=False)
class GroupedDataset:
    """Features with the attributes of every row, and the split that a row belongs to."""

    X: Any  # (n, p)
    space: GroupSpace
    codes: IntArray  # (n, m)
    split: IntArray | None = None  # (n,) 0, 1, 2 for train, val, test

    def __post_init__(self) -> None:
        if np.ndim(self.X) != 2:
            raise InputError(f"X has {np.ndim(self.X)} dimensions: pass one row of features per sample")
        object.__setattr__(self, "codes", check_codes(self.codes, self.space.cardinalities, "Z"))
        check_same_rows(len(self.X), self.codes, "Z")
        if self.split is not None:
            object.__setattr__(self, "split", check_split(self.split, len(self.X)))

    def __len__(self) -> int:
        return len(self.X)

    def part(self, name: str) -> GroupedDataset:
        """The rows of one split; ``"all"``, or a set without splits, gives every row."""
        return self.rows(split_rows(self.split, name))

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits that have rows."""
        return split_names(self.split)

    def rows(self, chosen: BoolArray | IntArray | slice) -> GroupedDataset:
        """The chosen rows, by mask or by number."""
        split = None if self.split is None else self.split[chosen]
        return replace(self, X=self.X[chosen], codes=self.codes[chosen], split=split)

    def columns(self, names: Sequence[str]) -> pd.DataFrame:
        """Values (n, len(names)) of some attributes."""
        for name in names:
            if name not in self.space.names:
                raise unknown_name("attribute", name, self.space.names)
        return self.space.frame(self.codes)[list(names)]


def check_split(split: Any, n_rows: int) -> IntArray:
    """Split codes (n,), from 0, 1, 2 or the names of the splits."""
    array = np.asarray(split)
    if array.ndim != 1:
        raise InputError(f"split has {array.ndim} dimensions: pass one split per row")
    check_same_rows(n_rows, array, "split")
    known: dict[Any, int] = {name: code for code, name in enumerate(SPLITS)} | {code: code for code in range(3)}
    values, position = np.unique(array.astype(str) if array.dtype == object else array, return_inverse=True)
    odd = [value for value in values.tolist() if value not in known]
    if odd:
        raise InputError(f"the split {odd[0]!r} is not known: use 0, 1, 2 or {listing(SPLITS)}")
    return np.array([known[value] for value in values.tolist()], dtype=np.int64)[position]


def split_names(split: IntArray | None) -> tuple[str, ...]:
    """Names of the splits that occur."""
    return () if split is None else tuple(SPLITS[code] for code in np.unique(split))


def split_rows(split: IntArray | None, name: str) -> BoolArray | slice:
    """Which rows one split has; all of them for ``"all"`` or where there are no splits."""
    if name not in (*SPLITS, "all"):
        raise unknown_name("split", name, (*SPLITS, "all"))
    if name == "all" or split is None:
        return slice(None)
    chosen = split == SPLITS.index(name)
    if not chosen.any():
        raise InputError(f"there are no {name} rows: the splits that occur are {listing(split_names(split))}")
    return np.asarray(chosen)
