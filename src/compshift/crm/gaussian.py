"""Maximum-likelihood fits of additive Gaussians.

``fit_shared`` fits additive means and one shared covariance in closed form; ``fit_per_value`` fits one precision matrix
per attribute value by a trust-region Newton method. ``AdditiveGaussian`` uses both. ``gaussian_energies`` turns the
shared fit into linear energies, the anchor of ``CRMClassifier(anchor="gaussian")``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from compshift._errors import InputError
from compshift.core.arrays import BoolArray, FloatArray, IntArray
from compshift.core.candidates import Candidates
from compshift.core.energy import GroupTable
from compshift.core.gaussian import (
    GroupMoments,
    PerValueGaussians,
    PerValueRisk,
    RiskPoint,
    SharedGaussians,
    additive_means,
    group_means,
    ledoit_wolf_shrinkage,
    second_moments,
)
from compshift.core.groups import GroupSpace
from compshift.crm.blocks import one_thread_for_scipy
from compshift.crm.problem import ROUNDING
from compshift.crm.solver import Parameters

MAX_EXTENT = 1e100
"""Largest range of a feature column; the smallest is ``1 / MAX_EXTENT``. The variance of a column outside these bounds
may overflow or underflow."""


class StandardisedColumns(NamedTuple):
    """Features with each column centred and scaled."""

    features: FloatArray  # (n, p) mean 0 and mean square 1 in each column; a constant column is 0
    mean: FloatArray  # (p,)
    scale: FloatArray  # (p,) root mean square; for a constant column the geometric mean of the other scales
    rounding: FloatArray  # (p,) deviation up to which a column of ``features`` counts as constant


def standardise_columns(X: FloatArray, sample_weight: FloatArray) -> StandardisedColumns:
    """Centre each column and divide it by its root mean square."""
    noise = ROUNDING * np.abs(X).max(axis=0)  # (p,)
    _check_extent(X, noise)
    share = sample_weight / sample_weight.sum()
    mean = share @ X  # (p,)
    mean += share @ (X - mean)  # corrects the rounding error of the first mean, which is large for features far from 0
    features = X - mean
    scale = np.sqrt(share @ features**2)  # (p,)
    varies = (np.abs(features).max(axis=0) > noise) & (scale > 0)
    features[:, ~varies] = 0.0
    scale[~varies] = np.exp(np.log(scale[varies]).mean()) if varies.any() else 1.0
    return StandardisedColumns(features / scale, mean, scale, noise / scale)


def _check_extent(X: FloatArray, noise: FloatArray) -> None:
    """Check that the variance of every column neither overflows nor underflows."""
    with np.errstate(over="ignore"):
        extent = X.max(axis=0) - X.min(axis=0)
    extreme = np.flatnonzero((extent > MAX_EXTENT) | ((extent < 1 / MAX_EXTENT) & (extent > noise)))
    if extreme.size:
        raise InputError(
            f"column {extreme[0]} of X has a range of {extent[extreme[0]]:.1g}, and its variance may overflow or "
            f"underflow: rescale the column to a range between {1 / MAX_EXTENT:g} and {MAX_EXTENT:g}"
        )


def fit_shared(
    X: FloatArray,
    position: IntArray,
    sample_weight: FloatArray,
    space: GroupSpace,
    seen_groups: IntArray,
    shrinkage: float | None,
    rounding: FloatArray | float = ROUNDING,
) -> tuple[SharedGaussians, float]:
    """Fit additive means and one shared covariance by maximum likelihood; return the model and the shrinkage used.

    The features must have mean square 1, in each column or on average over columns. The covariance is shrunk towards
    the identity after each column is divided by its standard deviation within groups, so that the units of the features
    do not matter. A ``shrinkage`` of None means Ledoit and Wolf's estimate. Unless ``shrinkage`` is 0, a column that is
    constant within groups is treated as if one row deviated by the column's root mean square. A column counts as
    constant if it varies by no more than ``rounding``.
    """
    total = sample_weight.sum()
    one_hot = space.one_hot(seen_groups)  # (k, D)
    seen_weight = np.bincount(position, weights=sample_weight) / total
    value_means = additive_means(space, seen_groups, seen_weight, group_means(X, position, sample_weight))
    residuals = X - (one_hot @ value_means)[position]
    unit, varies = _units_within_groups(X, residuals, sample_weight / total, rounding)
    residuals[:, ~varies] = 0.0
    residuals /= unit
    covariance = (residuals.T * sample_weight) @ residuals / total
    filler = 0.0 if shrinkage == 0 or not varies.any() else min(1.0, 1.0 / total)
    if shrinkage is None:
        shrinkage = ledoit_wolf_shrinkage(residuals[:, varies], sample_weight) if varies.any() else 0.0
    covariance = (1.0 - shrinkage) * covariance + np.diag(np.where(varies, shrinkage, filler))
    values = np.linalg.eigvalsh(covariance)
    if values[0] <= len(values) * float(np.finfo(np.float64).eps) * max(values[-1], 1.0):
        raise InputError(
            f"the within-group covariance of the {len(values)} features is singular (at a shrinkage of "
            f"{shrinkage:.2g}): some features, or linear combinations of them, do not vary within groups; raise "
            "shrinkage, or leave out these features"
        )
    return SharedGaussians(space, value_means, covariance * np.outer(unit, unit)), shrinkage


def _units_within_groups(
    X: FloatArray, residuals: FloatArray, share: FloatArray, rounding: FloatArray | float
) -> tuple[FloatArray, BoolArray]:
    """Return the standard deviation of each column's residuals, (p,), and whether it varies within groups, (p,).

    For a column that does not vary within groups, its root mean square replaces the standard deviation, or 1 if that is
    0.
    """
    accumulated = ROUNDING * math.sqrt(len(X)) * np.abs(X).max(axis=0)  # rounding errors of sums of n terms
    noise = np.maximum(rounding, accumulated)
    within, overall = np.sqrt(share @ residuals**2), np.sqrt(share @ X**2)
    varies = within > noise
    return np.where(varies, within, np.where(overall > rounding, overall, 1.0)), varies


class PerValueFit(NamedTuple):
    """Result of ``fit_per_value``."""

    model: PerValueGaussians
    gradient: float  # largest absolute gradient entry at the end
    n_iter: int
    converged: bool


def fit_per_value(
    X: FloatArray,
    position: IntArray,
    sample_weight: FloatArray,
    candidates: Candidates,
    shared: SharedGaussians,
    penalty: float,
    tol: float,
    max_iter: int,
) -> PerValueFit:
    """Minimise the penalised risk of one precision matrix per attribute value, starting from the shared covariance.

    The trust-region Newton method runs on features whitened by the shared covariance, so that the search starts at
    Λ = I for every group. The risk is infinite outside the cone of positive definite precisions; the trust region
    shrinks if a step leaves the cone.
    """
    space, size = candidates.space, X.shape[1]
    whitening = shared.groups(candidates.seen_groups[:1]).whitening[0]
    white = X @ whitening.T
    moments = GroupMoments(
        candidates.seen_weight / sample_weight.sum(),
        group_means(white, position, sample_weight),
        second_moments(white, position, sample_weight),
    )
    risk = PerValueRisk(
        one_hot=space.one_hot(candidates.seen_groups),
        moments=moments,
        start_precision=np.tile(np.eye(size) / len(space.names), (space.width, 1, 1)),
        start_natural=shared.value_means @ whitening.T,
        penalty=penalty,
    )
    search = _GaussianSearch(risk)
    with one_thread_for_scipy():
        found = minimize(
            search.value,
            search.theta(risk.start_precision, risk.start_natural),
            jac=search.gradient,
            hessp=search.hessian_product,
            method="trust-ncg",
            options={
                "gtol": tol,
                "maxiter": max_iter,
                "initial_trust_radius": math.sqrt(size),
                "max_trust_radius": 1e6,
            },
        )
    precision, natural = search.parameters(found.x)
    precision = 0.5 * (precision + precision.transpose(0, 2, 1))
    gradient = float(np.abs(search.gradient(found.x)).max())
    model = PerValueGaussians(space, whitening.T @ precision @ whitening, natural @ whitening)
    return PerValueFit(model, gradient, max(int(found.nit), 1), gradient <= tol)


class _GaussianSearch:
    """Risk and its derivatives as functions of one parameter vector; the last evaluated point is cached."""

    def __init__(self, risk: PerValueRisk) -> None:
        self.risk = risk
        self.shape = risk.start_precision.shape
        self._last: tuple[FloatArray, RiskPoint | None] | None = None

    def theta(self, precision: FloatArray, natural: FloatArray) -> FloatArray:
        """Concatenate precisions and natural parameters into one vector."""
        return np.concatenate([precision.ravel(), natural.ravel()])

    def parameters(self, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Split the vector into precisions (D, p, p) and natural parameters (D, p)."""
        split = math.prod(self.shape)
        return theta[:split].reshape(self.shape), theta[split:].reshape(self.shape[:2])

    def value(self, theta: FloatArray) -> float:
        """Return the penalised risk; infinite if the precision of a group is not positive definite."""
        point = self._at(theta)
        return math.inf if point is None else point.value

    def gradient(self, theta: FloatArray) -> FloatArray:
        """Return the gradient of the risk; ``theta`` must be inside the cone."""
        point = self._at(theta)
        assert point is not None
        return self.theta(*self.risk.gradient(*self.parameters(theta), point))

    def hessian_product(self, theta: FloatArray, direction: FloatArray) -> FloatArray:
        """Return the product of the Hessian with a direction; ``theta`` must be inside the cone."""
        point = self._at(theta)
        assert point is not None
        return self.theta(*self.risk.hessian_product(*self.parameters(direction), point))

    def _at(self, theta: FloatArray) -> RiskPoint | None:
        """Return the evaluated point, or None outside the cone of positive definite precisions."""
        if self._last is None or not np.array_equal(self._last[0], theta):
            self._last = (theta.copy(), self.risk.at(*self.parameters(theta)))
        return self._last[1]


def gaussian_energies(
    features: FloatArray, position: IntArray, sample_weight: FloatArray, seen: GroupTable
) -> Parameters:
    r"""Return the weights (D, p) and biases (k,) of the linear energies of x | z ~ N(μ_z, C) with μ_z = Σ_i μ_{i, z_i}.

    .. math:: \log p(x|z) = \langle \sigma(z), M C^{-1} x \rangle - \tfrac12 \mu_z^\top C^{-1} \mu_z + \ldots

    The rows of M (D, p) are the contributions μ_{i, v} of the attribute values to the means. Weights and biases are all
    0 if the within-group covariance C is singular. ``sample_weight`` (n,) sums to 1.
    """
    try:
        model, _ = fit_shared(features, position, sample_weight * len(features), seen.space, seen.codes, None)
    except InputError:
        return Parameters(np.zeros((seen.space.width, features.shape[1])), np.zeros(len(seen.codes)))
    weight = np.asarray(-np.linalg.solve(model.covariance, model.value_means.T).T)
    codes = seen.space.one_hot(seen.codes)  # (k, D)
    return Parameters(weight, -0.5 * np.einsum("kp,kp->k", codes @ weight, codes @ model.value_means))
