"""Maximum likelihood of additive Gaussians: one covariance in closed form, precisions by value in a trust region.

Energies that Gaussians with additive means and one covariance have: where a ridge may pull instead of to zero.
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
from compshift.crm.solver import Start

LARGEST = 1e100
"""Features that differ by more than this, or less than its inverse, may have variances that float64 does not hold."""


class Columns(NamedTuple):
    """Features with each column in its own unit."""

    features: FloatArray  # (n, p) of mean 0 and mean square 1; 0 where a column is constant
    mean: FloatArray  # (p,)
    scale: FloatArray  # (p,) root mean square; of constant columns the geometric mean of the others'
    rounding: FloatArray  # (p,) by how much the features may vary without a column that varies


def own_units(X: FloatArray, sample_weight: FloatArray) -> Columns:
    """Take its mean and its scale out of each column."""
    noise = ROUNDING * np.abs(X).max(axis=0)  # (p,)
    _check_extent(X, noise)
    share = sample_weight / sample_weight.sum()
    mean = share @ X  # (p,)
    mean += share @ (X - mean)  # the first mean's rounding, which a large offset makes felt
    features = X - mean
    scale = np.sqrt(share @ features**2)  # (p,)
    varies = (np.abs(features).max(axis=0) > noise) & (scale > 0)
    features[:, ~varies] = 0.0
    scale[~varies] = np.exp(np.log(scale[varies]).mean()) if varies.any() else 1.0
    return Columns(features / scale, mean, scale, noise / scale)


def _check_extent(X: FloatArray, noise: FloatArray) -> None:
    """Refuse columns whose squares float64 may not hold."""
    with np.errstate(over="ignore"):
        extent = X.max(axis=0) - X.min(axis=0)
    extreme = np.flatnonzero((extent > LARGEST) | ((extent < 1 / LARGEST) & (extent > noise)))
    if extreme.size:
        raise InputError(
            f"X has values that differ by {extent[extreme[0]]:.1g} in column {extreme[0]}, whose square may not be a "
            f"number that float64 holds: choose a unit in which they differ by {1 / LARGEST:g} to {LARGEST:g}"
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
    """Additive means and one covariance by maximum likelihood, then shrunk; and the shrinkage that was used.

    Features are of mean square 1, all together or each. They are shrunk in units of their standard deviations within
    groups, in which the mean diagonal is 1, so that the units they came in do not matter. Unless the shrinkage is 0, a
    column that does not vary within groups is treated as if one row were off by the column's root mean square.
    ``rounding`` is what features may vary by without meaning it.
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
            f"the covariance within groups of the {len(values)} features is singular (at a shrinkage of "
            f"{shrinkage:.2g}): some features, or combinations of them, do not vary within groups; raise shrinkage, or "
            "leave them out"
        )
    return SharedGaussians(space, value_means, covariance * np.outer(unit, unit)), shrinkage


def _units_within_groups(
    X: FloatArray, residuals: FloatArray, share: FloatArray, rounding: FloatArray | float
) -> tuple[FloatArray, BoolArray]:
    """Standard deviation of the residuals of each column (p,), and whether it varies within groups at all, (p,).

    Where it does not, the unit is the column's root mean square, or 1 if that is 0.
    """
    noise = np.maximum(rounding, ROUNDING * math.sqrt(len(X)) * np.abs(X).max(axis=0))  # sums have rounding too
    within, overall = np.sqrt(share @ residuals**2), np.sqrt(share @ X**2)
    varies = within > noise
    return np.where(varies, within, np.where(overall > rounding, overall, 1.0)), varies


class PerValueFit(NamedTuple):
    """Precisions by value, and how close to the optimum the search came."""

    model: PerValueGaussians
    gradient: float
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
    """Minimise the penalised risk by Newton's method in a trust region, from the shared solution.

    Coordinates are whitened by the shared covariance, so that the search starts at Λ = I for every group. A step that
    leaves the cone of positive definite precisions meets an infinite risk, and the region shrinks.
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
    """The risk and its derivatives as functions of one vector, evaluated once for each point."""

    def __init__(self, risk: PerValueRisk) -> None:
        self.risk = risk
        self.shape = risk.start_precision.shape
        self._last: tuple[FloatArray, RiskPoint | None] | None = None

    def theta(self, precision: FloatArray, natural: FloatArray) -> FloatArray:
        """Both kinds of parameters in one vector."""
        return np.concatenate([precision.ravel(), natural.ravel()])

    def parameters(self, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Precisions (D, p, p) and natural parameters (D, p)."""
        split = math.prod(self.shape)
        return theta[:split].reshape(self.shape), theta[split:].reshape(self.shape[:2])

    def value(self, theta: FloatArray) -> float:
        """Penalised risk, infinite outside the cone."""
        point = self._at(theta)
        return math.inf if point is None else point.value

    def gradient(self, theta: FloatArray) -> FloatArray:
        """Its derivative; asked for inside the cone only."""
        point = self._at(theta)
        assert point is not None
        return self.theta(*self.risk.gradient(*self.parameters(theta), point))

    def hessian_product(self, theta: FloatArray, direction: FloatArray) -> FloatArray:
        """Change of the gradient along a direction."""
        point = self._at(theta)
        assert point is not None
        return self.theta(*self.risk.hessian_product(*self.parameters(direction), point))

    def _at(self, theta: FloatArray) -> RiskPoint | None:
        if self._last is None or not np.array_equal(self._last[0], theta):
            self._last = (theta.copy(), self.risk.at(*self.parameters(theta)))
        return self._last[1]


def gaussian_energies(features: FloatArray, position: IntArray, sample_weight: FloatArray, seen: GroupTable) -> Start:
    r"""Weights (D, p) and biases (k,) of the energies of x | z ~ N(μ_z, C), μ_z = Σ_i μ_{i, z_i}.

    .. math:: \log p(x|z) = \langle \sigma(z), M C^{-1} x \rangle - \tfrac12 \mu_z^\top C^{-1} \mu_z + \ldots

    They are 0 if nothing varies within groups.

    ``sample_weight`` (n,) sums to 1.
    """
    try:
        model, _ = fit_shared(features, position, sample_weight * len(features), seen.space, seen.codes, None)
    except InputError:
        return Start(np.zeros((seen.space.width, features.shape[1])), np.zeros(len(seen.codes)))
    weight = np.asarray(-np.linalg.solve(model.covariance, model.value_means.T).T)
    codes = seen.space.one_hot(seen.codes)  # (k, D)
    return Start(weight, -0.5 * np.einsum("kp,kp->k", codes @ weight, codes @ model.value_means))
