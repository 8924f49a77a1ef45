r"""Step 1 of CRM as a convex problem: transformed and standardised features, the risk with its ridge, and units.

Features are centred and divided by one common scale, so that the ridge does not depend on their unit. The same passes
measure how unevenly the variance is spread over directions, which determines the optimiser's units. The Hessian of a
softmax with respect to the weights of one attribute value, of frequency f, is about :math:`f (1 - f)\, C` with C the
second moments of the features. The variances of directions differ, and the directions that separate groups need not be
those that vary most. The unit of the weights is therefore the geometric mean of the unit for a direction of mean
variance and the unit for the leading directions. On embeddings of images, whose leading directions have two hundred
times the mean variance, a search then takes two thirds of the steps; on other data between a third fewer and a fifth
more.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from compshift._checks import MAX_FEATURE, check_finite, check_magnitude
from compshift._errors import InputError
from compshift.core.arrays import (
    BLOCK_CELLS,
    DEVICE_BLOCK_CELLS,
    Array,
    FloatArray,
    is_other_library,
    like,
    namespace,
    row_blocks,
    safe_log,
    to_numpy,
)
from compshift.core.energy import GroupTable, Risk, expected_risk, linear_energies, step_one_risk
from compshift.core.sparse import Features, SparseRows, stored_entries
from compshift.crm.blocks import ArrayRows, Block, SummableRows, Sums, over_blocks
from compshift.crm.solver import Parameters, RiskGradient

if TYPE_CHECKING:
    from compshift.crm.inputs import LabelledSamples

TRANSFORMS = ("none", "signed_root", "unit_length")
"""Transforms of each row of features, applied first in fits and in predictions. ``CRMClassifierCV`` keeps
the first unless another is clearly better."""

ROUNDING = 16 * float(np.finfo(np.float64).eps)
"""Relative difference up to which two feature values count as equal."""

MAX_EXTENT_RATIO = 1e6
"""Ratio of the extents of two features above which a warning is given."""

MIN_SCALE = 1e-303
"""Smallest root mean square of the features: the weights of smaller features would overflow."""

PROBES = 16
"""Number of random directions along which second moments are measured. It need not be large: a spread accurate to a
factor of two is sufficient."""


def signed_root(X: Array) -> Array:
    r"""Return the signed square root of features (n, p): :math:`x \mapsto \mathrm{sign}(x) \sqrt{|x|}`."""
    xp = namespace(X)
    return xp.sign(X) * xp.sqrt(xp.abs(X))


def unit_length(X: Array) -> Array:
    r"""Return features (n, p) with rows of length 1: :math:`x \mapsto x / \lVert x \rVert_2`; rows of zeros stay zero.

    Rows are first divided by their largest absolute value, so that squares neither overflow nor underflow.
    """
    xp = namespace(X)
    largest = xp.max(xp.abs(X), axis=1, keepdims=True)  # (n, 1)
    scaled = X / xp.where(largest > 0, largest, xp.ones_like(largest))
    length = xp.sqrt(xp.einsum("ij,ij->i", scaled, scaled))[:, None]  # (n, 1), at least 1 unless the row is zero
    return scaled / xp.where(length > 0, length, xp.ones_like(length))


def transformed(X: Features, transform: str) -> Features:
    """Return features (n, p) after one of ``TRANSFORMS``; ``X`` itself for ``"none"``."""
    if transform == "none":
        return X
    if isinstance(X, SparseRows):
        return X.signed_root() if transform == "signed_root" else X.unit_length()
    return signed_root(X) if transform == "signed_root" else unit_length(X)


def transformed_samples(data: LabelledSamples, transform: str) -> LabelledSamples:
    """Return training samples, complete and incomplete ones, with transformed features."""
    if transform == "none":
        return data
    incomplete = data.incomplete
    if incomplete is not None:
        incomplete = incomplete._replace(X=transformed(incomplete.X, transform))
    return data._replace(X=transformed(data.X, transform), incomplete=incomplete)


class Standard(NamedTuple):
    """Centre and scale of the features; standardised features are (x − mean) / scale."""

    mean: FloatArray  # (p,)
    scale: float
    constant: bool = False  # whether all samples are equal up to rounding; standardised features are then 0
    spread: float = 1.0  # unevenness of the standardised features, see ``_spread``

    def of(self, features: Features) -> Features:
        """Return the standardised features of samples (b, p)."""
        if isinstance(features, SparseRows):
            return (features - self.mean) / (np.inf if self.constant else self.scale)
        if is_other_library(features):
            return (features - like(self.mean, features)) / (np.inf if self.constant else self.scale)
        result: FloatArray = np.subtract(features, self.mean, dtype=np.float64)
        result /= np.inf if self.constant else self.scale
        return result


def standardise(X: Features, sample_weight: FloatArray) -> tuple[Features, Standard]:
    """Return the standardised features, centred and with mean square 1, and their centre and scale."""
    standard = standard_of(ArrayRows(X, np.zeros(len(X), dtype=np.int64), sample_weight))
    if isinstance(X, SparseRows) or is_other_library(X):
        return standard.of(X), standard
    result = np.empty_like(X)

    def fill(rows: slice) -> None:
        result[rows] = standard.of(X[rows])

    for _ in over_blocks(fill, len(X)):
        pass
    return result, standard


def standard_of(rows: SummableRows) -> Standard:
    """Return the centre, scale (root mean square) and spread of the features, in two passes over the samples."""
    with np.errstate(over="ignore", invalid="ignore"):
        total, weighted, largest = rows.total(_first_sums, _add_and_max).arrays
        mean = weighted / total
    if not np.isfinite(mean).all():
        raise InputError(
            f"the sum of sample_weight times the features, which reach {float(largest):.3g}, overflows: divide "
            "sample_weight by its mean, or rescale the features"
        )
    unit = float(largest) or 1.0  # avoids overflow and underflow of the squares
    correction, squares, products, extents = rows.total(_second_sums, _add_and_max, mean, unit).arrays
    mean = mean + correction / total  # corrects the rounding error of the first mean, large for features far from 0
    if float(extents.max()) <= ROUNDING * float(largest):
        return Standard(mean, 1.0, constant=True)
    _warn_of_unequal_extents(mean, extents)
    variance = float(squares) / (float(total) * rows.n_features)
    scale = unit * math.sqrt(variance)
    if scale < MIN_SCALE:
        raise InputError(
            f"the features have a root mean square deviation of {scale:.3g}, too small for 64-bit arithmetic: rescale "
            "the features, for example multiply them by 1e300"
        )
    return Standard(mean, scale, spread=_spread(products / (total * variance)))


def _first_sums(block: Block) -> Sums:
    """Return the total weight, the weighted sum of the features (p,), and their largest absolute value."""
    if is_other_library(block.features):  # of finite numbers, in double precision
        xp = namespace(block.features)
        weighted, largest = block.weight @ block.features, xp.max(xp.abs(block.features))
        return Sums((to_numpy(xp.sum(block.weight)), to_numpy(weighted), to_numpy(largest)))
    features = block.features if isinstance(block.features, SparseRows) else np.asarray(block.features, np.float64)
    entries = stored_entries(features)
    largest = max(float(entries.max(initial=0.0)), -float(entries.min(initial=0.0)))
    if not largest <= MAX_FEATURE:
        check_finite(entries)
        check_magnitude(entries)
    with np.errstate(over="ignore", invalid="ignore"):  # an overflow is reported once all blocks are added
        weighted = block.weight @ features
    return Sums((np.asarray(block.weight.sum()), weighted, np.asarray(largest)))


def _second_sums(block: Block, mean: FloatArray, unit: float) -> Sums:
    """Return weighted sums of the centred features, their squares and products with the probes, and the extents."""
    centred: Features
    if isinstance(block.features, SparseRows):
        centred = block.features - mean
        low, high = centred.extremes()
        correction = block.weight @ centred
        centred = centred / unit
        row_squares = centred.row_squares()
    else:
        if is_other_library(block.features):
            xp, centred = namespace(block.features), block.features - like(mean, block.features)
            low, high = to_numpy(xp.min(centred, axis=0)), to_numpy(xp.max(centred, axis=0))
        else:
            xp, centred = np, np.subtract(block.features, mean, dtype=np.float64)
            low, high = centred.min(axis=0, initial=np.inf), centred.max(axis=0, initial=-np.inf)
        correction = block.weight @ centred
        centred /= unit
        row_squares = xp.einsum("ij,ij->i", centred, centred)
    probes = _probes(centred.shape[1])
    along = centred @ (like(probes, centred) if is_other_library(centred) else probes)  # (b, q)
    products = ((block.weight[:, None] * along).T @ centred).T  # (p, q)
    squares = block.weight @ row_squares
    return Sums((to_numpy(correction), np.asarray(to_numpy(squares)), to_numpy(products), np.stack([high, -low])))


def _add_and_max(one: Sums, other: Sums) -> Sums:
    """Add all arrays except the last, and take the elementwise maximum of the last."""
    return Sums((*Sums.add(one, other).arrays[:-1], np.maximum(one.arrays[-1], other.arrays[-1])))


def _warn_of_unequal_extents(mean: FloatArray, extents: FloatArray) -> None:
    """Warn if some features are so large that the ridge makes the smallest feature ineffective.

    ``extents`` (2, p) are the largest deviations above and below the mean. Features that are constant up to rounding,
    of themselves or of the median feature, do not count: some networks have outputs of 1e-33.
    """
    extent = extents.max(axis=0)
    varies = extents.sum(axis=0) > ROUNDING * np.maximum(np.abs(mean) + extent, np.median(extent))
    if not varies.any():
        return
    small = int(np.argmin(np.where(varies, extent, np.inf)))
    large = int(np.argmax(np.where(varies, extent, 0.0)))
    if extent[small] < extent[large] / MAX_EXTENT_RATIO:
        warnings.warn(
            f"feature {large} deviates from its mean by up to {extent[large]:.2g} but feature {small} by only "
            f"{extent[small]:.2g}, so the ridge makes feature {small} ineffective: divide each feature by its standard "
            "deviation, and look for outliers",
            stacklevel=2,
        )


@cache
def _probes(n_features: int) -> FloatArray:
    """Return fixed random directions, orthogonal and of length √p, (p, q)."""
    found = np.random.default_rng(0).normal(size=(n_features, min(PROBES, n_features)))
    return np.asarray(np.linalg.qr(found).Q) * math.sqrt(n_features)


def _spread(products: FloatArray) -> float:
    r"""Return the mean of the variances λ of the principal directions of standardised features, weighted by λ.

    .. math:: \frac{\sum_j \lambda_j^2}{\sum_j \lambda_j} = \frac{\lVert C \rVert_F^2}{p}, \qquad
        \lVert C \rVert_F^2 = E\, \lVert C r \rVert^2

    ``products`` (p, q) are C r for the probes r. The result is at least 1, its value if all variances are equal.
    """
    return max(1.0, float(np.square(products).mean()))


def softmax_curvature(frequency: FloatArray, spread: float, alpha: float) -> FloatArray:
    """Return the approximate curvature of a ridge-penalised softmax risk along the weights of each value, (d,).

    ``frequency`` (d,) is the share of samples with each value. The result is at least 1. The factor 2 and the square
    root were chosen empirically, on embeddings and on Gaussians.
    """
    return np.sqrt(np.maximum(2 * spread * frequency * (1 - frequency) + alpha, 1.0))


@dataclass(frozen=True, eq=False)
class StepOneProblem:
    """Risk of step 1 (paper, label "CRM1" in docs/maths.md) for energies ``features · weightᵀ``, with a ridge.

    Each evaluation is one pass over the samples.
    """

    rows: SummableRows
    seen: GroupTable
    frequency: FloatArray  # (k,) p̂(z)
    alpha: float
    anchor: Parameters | None = None  # weights that the ridge pulls towards, with matching biases; None for zero
    standard: Standard | None = None  # centre and scale of the features; None if they are standardised already
    total_weight: float = 1.0  # sum of the samples' weights
    spread: float = 1.0  # unevenness of the features, see ``_spread``
    precision: type = np.float64  # dtype of the standardised features; unused without ``standard``

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the weight matrix, (D, p)."""
        return self.seen.space.width, self.rows.n_features

    @property
    def curvature(self) -> FloatArray:
        """Approximate curvature along the weights of each attribute value, (D,)."""
        return value_curvature(self.seen, self.frequency, self.spread, self.alpha)

    @property
    def single_precision(self) -> StepOneProblem | None:
        """The same problem in single precision, or None if that would not save time.

        Samples in memory are copied to float32; streamed samples are converted block by block.
        """
        if self.standard is not None:
            return replace(self, precision=np.float32)
        rows = getattr(self.rows, "single_precision", None)
        return None if rows is None else replace(self, rows=rows)

    def evaluate(self, weight: FloatArray, bias: FloatArray) -> RiskGradient:
        """Return the penalised risk and its gradient."""
        risk = self.rows.total(
            block_risk,
            Sums.add,
            self.seen,
            weight,
            safe_log(self.frequency) - bias,
            self.standard,
            self.precision,
            self.total_weight,
        )
        return penalised(risk, weight, self.anchor, self.alpha)


@dataclass(frozen=True, eq=False)
class ExpectedProblem(StepOneProblem):
    """Step 1 for samples whose groups are known only in expectation.

    ``rows.position`` holds the expected one-hot code of each sample, (n, D), and ``frequency`` the mean responsibility
    of each group of ``seen``. The weights of the samples sum to 1.
    """

    def evaluate(self, weight: FloatArray, bias: FloatArray) -> RiskGradient:
        """Return the penalised risk and its gradient."""
        log_score = safe_log(self.frequency) - bias
        risk = self.rows.total(
            block_risk, Sums.add, self.seen, weight, log_score, None, self.precision, 1.0, expected_risk
        )
        value, weight_gradient, score_gradient = risk.arrays
        whole = Sums((value - self.frequency @ log_score, weight_gradient, score_gradient - self.frequency))
        return penalised(whole, weight, self.anchor, self.alpha)


def penalised(risk: Sums, weight: FloatArray, anchor: Parameters | None, alpha: float) -> RiskGradient:
    """Add the ridge ``alpha/2 · ‖weight − anchor‖²`` to a risk.

    The arrays of ``risk`` are its value, weight gradient and score gradient.
    """
    value, weight_gradient, score_gradient = risk.arrays
    moved = weight if anchor is None else weight - anchor.weight
    return RiskGradient(
        value=float(value) + 0.5 * alpha * float(np.vdot(moved, moved)),
        weight_gradient=alpha * moved + weight_gradient,
        bias_gradient=-score_gradient,
    )


def value_curvature(seen: GroupTable, frequency: FloatArray, spread: float, alpha: float) -> FloatArray:
    """Return the approximate curvature along the weights of each attribute value, (D,), for group frequencies (k,)."""
    return softmax_curvature(frequency @ seen.space.one_hot(seen.codes), spread, alpha)


def block_risk(
    block: Block,
    seen: GroupTable,
    weight: FloatArray,
    log_score: FloatArray,
    standard: Standard | None = None,
    precision: type = np.float64,
    total_weight: float = 1.0,
    kernel: Callable[..., Risk] = step_one_risk,
) -> Sums:
    """Return a block's contribution to the risk of step 1: value, weight gradient (D, p) and score gradient (k,).

    The passes over the samples are computed in the library of their features, and the sums are NumPy arrays. ``kernel``
    computes the risk from energies; it decides what ``block.position`` means.
    """
    features = block.features if standard is None else standard.of(block.features).astype(precision, copy=False)
    energies = linear_energies(features, weight)  # (b, D)
    risk = _risk(energies, block.position, block.weight / total_weight, seen, log_score, kernel)
    gradient = to_numpy(risk.energy_gradient.T @ features).astype(np.float64, copy=False)
    value = risk.value if isinstance(risk.value, float) else to_numpy(risk.value)
    return Sums((np.asarray(value), gradient, to_numpy(risk.score_gradient)))


def _risk(
    energies: FloatArray,
    position: Any,
    weight: FloatArray,
    seen: GroupTable,
    log_score: FloatArray,
    kernel: Callable[..., Risk] = step_one_risk,
) -> Risk:
    """Compute the kernel's risk in blocks of samples that fit into a core's cache, or in large ones on a device."""
    cells = max(2 * BLOCK_CELLS, len(seen.left) * len(seen.right))
    if is_other_library(energies):
        cells = max(DEVICE_BLOCK_CELLS, cells)
    blocks = list(row_blocks(len(energies), seen.width + energies.shape[1], cells))
    if len(blocks) == 1:
        return kernel(energies, position, weight, seen, log_score)
    value = 0.0
    energy_gradient = namespace(energies).empty_like(energies)
    score_gradient = np.zeros(len(log_score))
    for rows in blocks:
        risk = kernel(energies[rows], position[rows], weight[rows], seen, log_score)
        value += float(risk.value)
        energy_gradient[rows] = risk.energy_gradient
        score_gradient += to_numpy(risk.score_gradient)
    return Risk(value, energy_gradient, score_gradient)


@dataclass(frozen=True, eq=False)
class TemperatureProblem:
    """Risk of step 1 for a weighted sum of fixed energies, as a function of its factors and of the biases."""

    rows: SummableRows  # samples whose features are r kinds of energies, (n, r · D), with weights that sum to 1
    seen: GroupTable
    frequency: FloatArray  # (k,) p̂(z)
    n_factors: int = 1  # r

    alpha = 0.0
    single_precision = None

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the factors, (r, 1)."""
        return self.n_factors, 1

    @property
    def curvature(self) -> FloatArray:
        """Approximate curvature along each factor, (r,)."""
        return np.ones(self.n_factors)

    def evaluate(self, weight: FloatArray, bias: FloatArray) -> RiskGradient:
        """Return the risk and its gradient."""
        log_score = safe_log(self.frequency) - bias
        found = self.rows.total(_scaled_risk, Sums.add, self.seen, weight[:, 0], log_score)
        value, factor_gradient, score_gradient = found.arrays
        return RiskGradient(float(value), factor_gradient, -score_gradient)


def _scaled_risk(block: Block, seen: GroupTable, factors: FloatArray, log_score: FloatArray) -> Sums:
    """Return the contribution of a block to the risk of the sum of its energies times their ``factors`` (r,).

    The arrays are the value, the gradient with respect to the factors (r, 1) and the score gradient (k,).
    """
    energies = block.features.reshape(len(block.features), len(factors), -1)  # (b, r, D)
    risk = _risk(np.einsum("r,brd->bd", factors, energies), block.position, block.weight, seen, log_score)
    gradient = np.array([[np.vdot(risk.energy_gradient, energies[:, kind])] for kind in range(len(factors))])
    return Sums((np.asarray(risk.value), gradient, risk.score_gradient))
