"""Maximum likelihood of additive Gaussians: one covariance in closed form, precisions by value in a trust region."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from compshift._errors import InputError
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.candidates import Candidates
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
    shrunk_covariance,
)
from compshift.core.groups import GroupSpace
from compshift.estimators.threads import one_thread_for_scipy


def fit_shared(
    X: FloatArray,
    position: IntArray,
    sample_weight: FloatArray,
    space: GroupSpace,
    seen_groups: IntArray,
    shrinkage: float | None,
) -> tuple[SharedGaussians, float]:
    """Additive means and one covariance by maximum likelihood, then shrunk; and the shrinkage that was used."""
    total = sample_weight.sum()
    one_hot = space.one_hot(seen_groups)  # (k, D)
    seen_weight = np.bincount(position, weights=sample_weight) / total
    value_means = additive_means(one_hot, seen_weight, group_means(X, position, sample_weight))
    residuals = X - (one_hot @ value_means)[position]
    covariance = (residuals.T * sample_weight) @ residuals / total
    if shrinkage is None:
        shrinkage = ledoit_wolf_shrinkage(residuals, sample_weight)
    covariance = shrunk_covariance(covariance, shrinkage)
    values = np.linalg.eigvalsh(covariance)
    if values[0] <= len(values) * float(np.finfo(np.float64).eps) * max(values[-1], 1.0):
        raise InputError(
            f"the covariance within groups of the {len(values)} features is singular (at a shrinkage of "
            f"{shrinkage:.2g}): some features, or combinations of them, do not vary within groups; raise shrinkage, or "
            "leave them out"
        )
    return SharedGaussians(space, value_means, covariance), shrinkage


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
    search = _Search(risk)
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


class _Search:
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
