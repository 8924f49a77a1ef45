"""Features without a unit: centred, and divided by one common scale."""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import numpy as np

from compshift._checks import MAX_FEATURE, check_finite, check_sums
from compshift._errors import InputError
from compshift.core.arrays import FloatArray
from compshift.estimators.curvature import probes, spread_of
from compshift.estimators.row_sums import ArrayRows, Block, RowSums, Sums, over_blocks

ROUNDING = 16 * float(np.finfo(np.float64).eps)
"""Features that differ by less than this, relative to their size, do not differ."""


MAX_SCALES = 1e6
"""Ratio of two features' extents from which a warning is given."""

SMALLEST = 1e-303
"""Weights of features that spread by less would be too large to hold."""


class Standard(NamedTuple):
    """What makes features standardised ones: (x − mean) / scale."""

    mean: FloatArray  # (p,)
    scale: float
    constant: bool = False  # whether all rows are alike, so that nothing but rounding is left
    spread: float = 1.0  # of the standardised features, about

    def of(self, features: Any) -> FloatArray:
        """Rows (b, p) with this taken out."""
        result: FloatArray = np.subtract(features, self.mean, dtype=np.float64)
        result /= np.inf if self.constant else self.scale
        return result


def standardise(X: FloatArray, sample_weight: FloatArray) -> tuple[FloatArray, Standard]:
    """Centred features of mean square 1, and what was taken out."""
    standard = standard_of(ArrayRows(X, np.zeros(len(X), dtype=np.int64), sample_weight))
    result = np.empty_like(X)

    def fill(rows: slice) -> None:
        result[rows] = standard.of(X[rows])

    list(over_blocks(fill, len(X)))
    return result, standard


def standard_of(rows: RowSums) -> Standard:
    """Mean and root mean square of the features, in two passes."""
    with np.errstate(over="ignore", invalid="ignore"):
        total, weighted, largest = rows.total(_first_sums, _add_and_max).arrays
        mean = weighted / total
    if not np.isfinite(mean).all():
        raise InputError(
            f"features up to {float(largest):.3g} times their sample_weight are too large to add up: divide the "
            "weights by their mean, or the features"
        )
    unit = float(largest) or 1.0  # in which squares of very large or very small features stay representable
    correction, squares, products, extents = rows.total(_second_sums, _add_and_max, mean, unit).arrays
    mean = mean + correction / total  # the first mean's rounding, which a large offset makes felt
    if float(extents.max()) <= ROUNDING * float(largest):
        return Standard(mean, 1.0, constant=True)
    _warn_of_scales(mean, extents)
    variance = float(squares) / (float(total) * rows.n_features)
    scale = unit * math.sqrt(variance)
    if scale < SMALLEST:
        raise InputError(
            f"the features spread by {scale:.3g}, too little for numbers of 64 bits to keep their digits: multiply "
            "them, for example by 1e300"
        )
    return Standard(mean, scale, spread=spread_of(products / (total * variance)))


def _first_sums(block: Block) -> Sums:
    """Weight, weighted sum of the features, and their largest entry."""
    features = np.asarray(block.features, dtype=np.float64)
    largest = _largest(features)
    if not largest <= MAX_FEATURE:
        check_finite(features)
        check_sums(features)
    with np.errstate(over="ignore", invalid="ignore"):  # by the weights, which is told of once all are added
        weighted = block.weight @ features
    return Sums((np.asarray(block.weight.sum()), weighted, np.asarray(largest)))


def _second_sums(block: Block, mean: FloatArray, unit: float) -> Sums:
    """Weighted sums of the centred features, of their squares and products in some unit, and their extents."""
    centred = np.subtract(block.features, mean, dtype=np.float64)
    correction = block.weight @ centred
    extents = np.stack([centred.max(axis=0, initial=-np.inf), -centred.min(axis=0, initial=np.inf)])  # (2, p)
    centred /= unit
    squares = block.weight @ np.einsum("ij,ij->i", centred, centred)
    along = centred @ probes(centred.shape[1])  # (b, q)
    products = centred.T @ (block.weight[:, None] * along)  # (p, q)
    return Sums((correction, np.asarray(squares), products, extents))


def _warn_of_scales(mean: FloatArray, extents: FloatArray) -> None:
    """Say so when some features are so large that the ridge, which is common to all, leaves others without effect.

    ``extents`` (2, p) tell how far they go up and down; of a constant one, both are the rounding of its mean.
    """
    extent = extents.max(axis=0)
    varies = extents.sum(axis=0) > ROUNDING * (np.abs(mean) + extent)
    if not varies.any():
        return
    small, large = (int(pick(np.where(varies, extent, fill))) for pick, fill in ((np.argmin, np.inf), (np.argmax, 0.0)))
    if extent[small] < extent[large] / MAX_SCALES:
        warnings.warn(
            f"feature {large} extends to {extent[large]:.2g} from its mean, feature {small} to {extent[small]:.2g}: "
            "the ridge leaves the latter without effect; divide each by its standard deviation, and look for outliers",
            stacklevel=2,
        )


def _largest(values: FloatArray) -> float:
    """The largest absolute value; 0 of none."""
    return max(float(values.max(initial=0.0)), -float(values.min(initial=0.0)))


def _add_and_max(one: Sums, other: Sums) -> Sums:
    """All added but the last, of which the larger is kept."""
    return Sums((*Sums.add(one, other).arrays[:-1], np.maximum(one.arrays[-1], other.arrays[-1])))
