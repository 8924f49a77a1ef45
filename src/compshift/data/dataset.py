"""A data set whose rows belong to groups."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from compshift._checks import InputError, check_codes, check_finite, check_same_rows, listing, unknown_name
from compshift.core.arrays import BoolArray, FloatArray, IntArray
from compshift.core.groups import GroupSpace

SPLITS = ("train", "val", "test")
"""Names of the split codes 0, 1 and 2."""


@dataclass(frozen=True, eq=False)
class GroupedDataset:
    """Features with the attributes of every row, and the split that a row belongs to.

    ``space`` and ``codes`` are None for rows whose attributes are not known, as at prediction time.
    """

    X: Any  # (n, p)
    space: GroupSpace | None = None
    codes: IntArray | None = None  # (n, m)
    split: IntArray | None = None  # (n,) 0, 1, 2 for train, val, test
    feature_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if np.ndim(self.X) != 2:
            raise InputError(f"X has {np.ndim(self.X)} dimensions: pass one row of features per sample")
        if (self.space is None) != (self.codes is None):
            raise InputError("space and codes belong together: pass both or neither")
        if self.codes is not None and self.space is not None:
            object.__setattr__(self, "codes", check_codes(self.codes, self.space.cardinalities, "Z"))
            check_same_rows(len(self.X), self.codes, "Z")
        if self.split is not None:
            split = np.asarray(self.split)
            check_same_rows(len(self.X), split, "split")
            if split.dtype.kind not in "iu" or not np.isin(split, range(len(SPLITS))).all():
                raise InputError("split must hold 0 (train), 1 (val) or 2 (test) for each row")
            object.__setattr__(self, "split", split.astype(np.int64))

    def __len__(self) -> int:
        return len(self.X)

    def part(self, name: str) -> GroupedDataset:
        """The rows of one split; ``"all"``, or a set without splits, gives every row."""
        if name not in (*SPLITS, "all"):
            raise unknown_name("split", name, (*SPLITS, "all"))
        if name == "all" or self.split is None:
            return self
        chosen = self.split == SPLITS.index(name)
        if not chosen.any():
            raise InputError(f"there are no {name} rows: the splits that occur are {listing(self.splits)}")
        return self.rows(chosen)

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits that have rows."""
        return () if self.split is None else tuple(SPLITS[code] for code in np.unique(self.split))

    def rows(self, chosen: BoolArray | IntArray) -> GroupedDataset:
        """The chosen rows, by mask or by number."""
        return replace(
            self,
            X=self.X[chosen],
            codes=None if self.codes is None else self.codes[chosen],
            split=None if self.split is None else self.split[chosen],
        )

    def columns(self, names: list[str]) -> Any:
        """Values (n, len(names)) of some attributes, as a DataFrame."""
        if self.space is None or self.codes is None:
            raise InputError("the data have no attribute columns: they hold features only")
        for name in names:
            if name not in self.space.names:
                raise unknown_name("attribute", name, self.space.names)
        return self.space.frame(self.codes)[names]

    def check_features(self) -> FloatArray:
        """X, once it is known to be finite."""
        check_finite(self.X)
        return np.asarray(self.X)
