"""Columns of numbers and categories as features of linear energies.

The features are standardised numbers, and indicators (0 or 1) of categories and of missing values. As ``trees`` does,
this module turns the columns of a table into the features of linear energies, by arrays that a model file holds.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from compshift._checks import MAX_FEATURE
from compshift._errors import InputError
from compshift.core.arrays import FloatArray, IntArray
from compshift.crm.trees import Trees

NUMERIC_LEVEL = -1
"""``level`` of a feature that is the number in its column."""

MISSING = -2
"""``level`` of a feature that is 1 where the value of its column is missing, and 0 elsewhere."""

MAX_LEVELS = 50
"""Largest number of categories per column that have an indicator; these are the most frequent ones."""

MAX_LINEAR_FEATURES = 1_000_000
"""Largest accepted number of features in a model file."""


@dataclass(frozen=True, eq=False)
class LinearColumns:
    """Conversion of columns (n, p), with NaN for missing values and numbers for categories, to features (n, q)."""

    n_features: int  # p
    column: IntArray  # (q,) column of each feature
    level: IntArray  # (q,) category whose indicator the feature is, or NUMERIC_LEVEL or MISSING
    fill: FloatArray  # (q,) number that replaces a missing value
    mean: FloatArray  # (q,)
    scale: FloatArray  # (q,)

    @classmethod
    def of(cls, X: FloatArray, categorical: tuple[int, ...]) -> LinearColumns:
        """Return the conversion for training samples (n, p); ``categorical`` are the columns that hold categories."""
        features: list[tuple[int, int, float, float, float]] = []
        for index, column in enumerate(X.T):
            known = column[~np.isnan(column)]
            if index in categorical:
                values, counts = np.unique(known, return_counts=True)
                kept = values[np.argsort(-counts, kind="stable")[:MAX_LEVELS]]
                features += [(index, int(level), 0.0, 0.0, 1.0) for level in np.sort(kept)]
            elif len(known):
                features.append((index, NUMERIC_LEVEL, *number_statistics(known)))
            if 0 < len(known) < len(column):
                features.append((index, MISSING, 0.0, 0.0, 1.0))
        if not features:  # every value is missing
            features = [(0, MISSING, 0.0, 0.0, 1.0)]
        column, level, fill, mean, scale = zip(*features, strict=True)
        return cls(X.shape[1], np.array(column), np.array(level), np.array(fill), np.array(mean), np.array(scale))

    def scores(self, X: FloatArray) -> FloatArray:
        """Return the features (n, q) of samples (n, p)."""
        values = X[:, self.column]
        missing = np.isnan(values)
        indicator = np.where(self.level == MISSING, missing, values == self.level)
        number = (np.where(missing, self.fill, values) - self.mean) / self.scale
        return np.asarray(np.where(self.level == NUMERIC_LEVEL, number, indicator))

    @classmethod
    def array_types(cls) -> dict[str, Any]:
        """Return the type of the entries of each array."""
        names = [field.name for field in fields(cls) if field.name != "n_features"]
        return {name: np.int64 if name in ("column", "level") else np.float64 for name in names}

    @property
    def arrays(self) -> dict[str, Any]:
        """The arrays by name."""
        return {name: getattr(self, name) for name in self.array_types()}


class TreesAndColumns(NamedTuple):
    """The outputs of trees and the features of linear energies, side by side."""

    trees: Trees
    columns: LinearColumns

    @property
    def n_features(self) -> int:
        """Number of columns of the table."""
        return self.trees.n_features

    def scores(self, X: FloatArray) -> FloatArray:
        """Return the outputs and the features (n, w + q) of samples (n, p)."""
        return np.concatenate([self.trees.scores(X), self.columns.scores(X)], axis=1)


def number_statistics(values: FloatArray) -> tuple[float, float, float]:
    """Return the median, the mean and the standard deviation of numbers; a standard deviation of 0 is replaced by 1."""
    largest = float(np.abs(values).max(initial=0.0)) or 1.0  # dividing by it first avoids overflow
    values = values / largest
    scale = float(values.std()) * largest
    return float(np.median(values)) * largest, float(values.mean()) * largest, scale if scale > 0 else 1.0


def check_linear_columns(columns: LinearColumns) -> None:
    """Check that arrays from a file describe features of the columns."""
    q = len(columns.column)
    valid = 0 < q <= MAX_LINEAR_FEATURES and all(len(array) == q for array in columns.arrays.values())
    valid = valid and bool(((columns.column >= 0) & (columns.column < columns.n_features)).all())
    valid = valid and bool((columns.level >= MISSING).all())
    numbers = np.stack([columns.fill, columns.mean, columns.scale]) if valid else np.full((3, 1), np.nan)
    if not (np.abs(numbers) <= MAX_FEATURE).all() or not (columns.scale > 0).all():
        raise InputError("the columns of the model are damaged: save the model again")
