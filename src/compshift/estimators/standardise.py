"""Features without a unit: centred, and divided by one common scale."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from compshift._checks import check_finite
from compshift.core.arrays import FloatArray
from compshift.estimators.row_sums import Block, RowSums, Sums

ROUNDING = 16 * float(np.finfo(np.float64).eps)
"""Features that differ by less than this, relative to their size, do not differ."""


def standardise(X: FloatArray, sample_weight: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """Centred features of mean square 1, with the mean (p,) and the scale that were taken out."""
    total = sample_weight.sum()
    mean = (sample_weight @ X) / total  # (p,)
    mean += (sample_weight @ (X - mean)) / total  # the first mean's rounding, which a large offset makes felt
    centred = X - mean
    largest = float(np.abs(centred).max(initial=0.0))
    if largest <= ROUNDING * float(np.abs(X).max(initial=0.0)):  # constant: what is left is the mean's rounding
        return np.zeros_like(centred), mean, 1.0
    # Divided by the largest entry first, so that squares of very large or very small features stay representable.
    centred /= largest
    scale = math.sqrt(float(sample_weight @ np.einsum("ij,ij->i", centred, centred)) / (total * X.shape[1]))
    centred /= scale
    return centred, mean, scale * largest


class Standard(NamedTuple):
    """What makes features standardised ones: (x − mean) / scale."""

    mean: FloatArray  # (p,)
    scale: float

    def of(self, features: Any) -> FloatArray:
        """Rows (b, p) with this taken out."""
        return (np.asarray(features, dtype=np.float64) - self.mean) / self.scale


def standard_of(rows: RowSums) -> Standard:
    """Mean and root mean square of the features, in two passes."""
    total, weighted, largest = rows.total(_first_sums, _add_and_max).arrays
    mean = weighted / total
    correction, squares, spread = rows.total(_second_sums, _add_and_max, mean).arrays
    mean = mean + correction / total  # the first mean's rounding
    if float(spread) <= ROUNDING * float(largest):
        return Standard(mean, 1.0)
    scale = math.sqrt(float(squares) / (float(total) * rows.n_features))
    return Standard(mean, scale)


def _first_sums(block: Block) -> Sums:
    """Weight, weighted sum of the features, and their largest entry."""
    features = np.asarray(block.features, dtype=np.float64)
    check_finite(features, "the store")
    return Sums((np.asarray(block.weight.sum()), block.weight @ features, np.abs(features).max(initial=0.0)))


def _second_sums(block: Block, mean: FloatArray) -> Sums:
    """Weighted sums of the centred features and of their squares, and their largest entry."""
    centred = np.asarray(block.features, dtype=np.float64) - mean
    squares = block.weight @ np.einsum("ij,ij->i", centred, centred)
    return Sums((block.weight @ centred, np.asarray(squares), np.abs(centred).max(initial=0.0)))


def _add_and_max(one: Sums, other: Sums) -> Sums:
    """The first two added, the last the larger."""
    (a, b, c), (d, e, f) = one.arrays, other.arrays
    return Sums((a + d, b + e, np.maximum(c, f)))
