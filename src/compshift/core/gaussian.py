r"""Gaussian groups whose energies add up over the attributes: densities, moments, likelihood and additive means.

Value v of attribute i contributes a precision P and a natural parameter η. A group z has the sums over its values,

.. math:: \Lambda_z = \sum_i P_{i,z_i}, \quad \eta_z = \sum_i \eta_{i,z_i}, \qquad
    \log p(x|z) = \tfrac12 \log|\Lambda_z| - \tfrac p2 \log 2\pi - \tfrac12 x^\top \Lambda_z x + \eta_z^\top x
    - \tfrac12 \eta_z^\top \Lambda_z^{-1} \eta_z

This is an additive energy distribution (paper, label "n2" in docs/maths.md) with a partition function in closed form;
unseen groups have the density labelled "test-train-cond-density-rel". A whitening matrix W has W'W = Λ, so W(x − μ) is
standard normal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from compshift.core.arrays import BoolArray, FloatArray, IntArray
from compshift.core.groups import GroupSpace, one_hot_rows
from compshift.core.span import Span

CANCELLATION_THRESHOLD = 1e6
"""Size of the terms of a difference above which too many digits cancel, so that it is recomputed in another way.

``squared_distances`` measures the size relative to the result (or to 1, if that is larger), ``relative_exponents``
absolutely.
"""


class GroupMoments(NamedTuple):
    """Weights and first two moments of the seen groups; they determine the likelihood."""

    weight: FloatArray  # (k,) summing to 1
    mean: FloatArray  # (k, p)
    second: FloatArray  # (k, p, p) E[x x'] within each group


def group_means(X: FloatArray, position: IntArray, sample_weight: FloatArray) -> FloatArray:
    """Return the weighted mean of each group, (k, p).

    ``position`` (n,) is the group of each sample, a number from 0 to k − 1; every group must have samples.
    """
    order = np.argsort(position, kind="stable")
    starts = np.searchsorted(position[order], np.arange(position.max() + 1))
    sums = np.add.reduceat(sample_weight[order, None] * X[order], starts, axis=0)
    return np.asarray(sums / np.bincount(position, weights=sample_weight)[:, None])


def second_moments(X: FloatArray, position: IntArray, sample_weight: FloatArray) -> FloatArray:
    """Return the weighted mean of x x' within each group, (k, p, p); ``position`` (n,) is the group of each sample."""
    moments = np.empty((int(position.max()) + 1, X.shape[1], X.shape[1]))
    for group in range(len(moments)):
        rows, weight = X[position == group], sample_weight[position == group]
        moments[group] = (rows.T * weight) @ rows / weight.sum()
    return moments


def ledoit_wolf_shrinkage(residuals: FloatArray, sample_weight: FloatArray) -> float:
    r"""Return the weight (0 to 1) with which to shrink a covariance towards a multiple of the identity.

    This weight gives the least expected squared error:

    .. math:: \frac{\tfrac1n (\overline{\|r\|^4} - \|S\|^2)}{\|S - \tfrac{\operatorname{tr} S}{p} I\|^2}

    Ledoit and Wolf (2004), with sample weights: a weight of 2 counts as two samples, and n is the sum of the weights.
    ``residuals`` (n, p) have mean 0; S is their covariance.
    """
    total = float(sample_weight.sum())
    covariance = (residuals.T * sample_weight) @ residuals / total
    spread = float((covariance**2).sum()) - float(np.trace(covariance)) ** 2 / len(covariance)
    fourth = float(sample_weight @ (residuals**2).sum(axis=1) ** 2) / total
    noise = (fourth - float((covariance**2).sum())) / total
    return min(1.0, max(0.0, noise) / spread) if spread > 0 and len(covariance) > 1 else 0.0


@dataclass(frozen=True, eq=False)
class Gaussians:
    """Gaussian densities of q groups."""

    means: FloatArray  # (q, p); NaN where Λ is not positive definite
    whitening: FloatArray  # (q, p, p) W, or (1, p, p) if all groups share it
    proper: BoolArray  # (q,) whether Λ is positive definite; otherwise the group has no density

    def log_density(self, X: FloatArray) -> FloatArray:
        """Return log p(x|z), (n, q); NaN for groups without a density."""
        constant = self._log_determinants() - 0.5 * X.shape[1] * math.log(2.0 * math.pi)
        if len(self.whitening) == 1:
            return np.asarray(constant - 0.5 * squared_distances(*self._white(X)))
        return np.asarray(constant + self._exponents(X))

    def log_posterior_terms(self, X: FloatArray) -> FloatArray:
        """Return log p(x|z), (n, q), up to a term that depends on x alone and so cancels in posteriors.

        If all groups share W, the large ‖Wx‖² is left out this way, which avoids rounding errors far from the means.
        """
        if len(self.whitening) == 1:
            return relative_exponents(*self._white(X))
        return np.asarray(self._exponents(X) + self._log_determinants())

    def _white(self, X: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return Wx (n, p) and Wμ (q, p) for groups that share W."""
        return X @ self.whitening[0].T, self.means @ self.whitening[0].T

    def _exponents(self, X: FloatArray) -> FloatArray:
        """Return −½‖W(x − μ)‖², (n, q), for groups with different W."""
        logs = np.empty((len(X), len(self.means)))
        for group, (mean, whitening) in enumerate(zip(self.means, self.whitening, strict=True)):
            logs[:, group] = -0.5 * (((X - mean) @ whitening.T) ** 2).sum(axis=1)
        return logs

    def covariances(self) -> FloatArray:
        """Return the covariance of each group, (q, p, p), or (1, p, p) if all groups share it."""
        inverse = np.linalg.inv(self.whitening)
        return np.asarray(inverse @ inverse.transpose(0, 2, 1))

    def sample(self, noise: FloatArray) -> FloatArray:
        """Return samples (q, n, p) from standard normal ``noise`` (q, n, p): μ + W⁻¹ε."""
        return np.asarray(self.means[:, None, :] + noise @ np.linalg.inv(self.whitening).transpose(0, 2, 1))

    def _log_determinants(self) -> FloatArray:
        """Return ½ log|Λ| = log|W|, (q,) or (1,)."""
        return np.asarray(np.log(np.abs(np.diagonal(self.whitening, axis1=1, axis2=2))).sum(axis=1))


@dataclass(frozen=True, eq=False)
class SharedGaussians:
    """Gaussians whose means are sums over attribute values, with one covariance for all groups."""

    space: GroupSpace
    value_means: FloatArray  # (D, p) contribution of each attribute value
    covariance: FloatArray  # (p, p)

    def groups(self, codes: IntArray) -> Gaussians:
        """Return the densities of the groups (q, m)."""
        factor = np.linalg.cholesky(self.covariance)
        whitening = solve_triangular(factor, np.eye(len(factor)), lower=True)
        means = sums_over_values(self.value_means, self.space, codes)
        return Gaussians(means, whitening[None], np.ones(len(codes), dtype=np.bool_))


@dataclass(frozen=True, eq=False)
class PerValueGaussians:
    """Gaussians whose precisions and natural parameters are sums over attribute values."""

    space: GroupSpace
    precision: FloatArray  # (D, p, p) P of each attribute value
    natural: FloatArray  # (D, p) η of each attribute value

    def precisions(self, codes: IntArray) -> FloatArray:
        """Return Λ (q, p, p) of the groups (q, m), positive definite or not."""
        return sums_over_values(self.precision, self.space, codes)

    def groups(self, codes: IntArray) -> Gaussians:
        """Return the densities of the groups (q, m); ``proper`` is False where Λ is not positive definite."""
        natural = sums_over_values(self.natural, self.space, codes)  # (q, p)
        means, whitening = np.full_like(natural, np.nan), self.precisions(codes)
        proper = np.ones(len(codes), dtype=np.bool_)
        for group, precision in enumerate(whitening):
            try:
                factor = np.linalg.cholesky(precision)
            except np.linalg.LinAlgError:
                proper[group], whitening[group] = False, np.nan
                continue
            means[group], whitening[group] = cho_solve((factor, True), natural[group]), factor.T
        return Gaussians(means, whitening, proper)


def sums_over_values(contributions: FloatArray, space: GroupSpace, codes: IntArray) -> FloatArray:
    """Return (q, …): for each group (q, m), the sum of the contributions (D, …) of its attribute values."""
    columns = codes + space.offsets  # (q, m)
    total = contributions[columns[:, 0]]
    for column in columns.T[1:]:
        total = total + contributions[column]
    return np.asarray(total)


def squared_distances(points: FloatArray, centres: FloatArray) -> FloatArray:
    """Return ‖x − μ‖² (n, q) between points (n, p) and centres (q, p).

    One matrix product gives all distances. Those that are small compared with ‖x‖² + ‖μ‖² have lost digits and are
    recomputed from x − μ.
    """
    size = (points**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1)
    result = size - 2.0 * (points @ centres.T)
    cancelled = size > CANCELLATION_THRESHOLD * np.maximum(result, 1.0)
    for centre in np.flatnonzero(cancelled.any(axis=0)):
        rows = cancelled[:, centre]
        result[rows, centre] = ((points[rows] - centres[centre]) ** 2).sum(axis=1)
    return np.asarray(result)


def relative_exponents(points: FloatArray, centres: FloatArray) -> FloatArray:
    r"""Return −½‖x − μ‖² (n, q) of points (n, p) and centres (q, p), up to a term that depends on x alone.

    .. math:: \langle x - o, \mu - o \rangle - \tfrac12 \|\mu - o\|^2

    for any origin o. The origin is 0, or the centre nearest to x if some of these terms are so large that differences
    between them would lose digits.
    """
    result = points @ centres.T - 0.5 * (centres**2).sum(axis=1)
    if np.abs(result).max(initial=0.0) > CANCELLATION_THRESHOLD:
        nearest = result.argmax(axis=1)  # (n,)
        for origin in np.unique(nearest):
            rows, offset = nearest == origin, centres - centres[origin]
            result[rows] = (points[rows] - centres[origin]) @ offset.T - 0.5 * (offset**2).sum(axis=1)
    return np.asarray(result)


class RiskPoint(NamedTuple):
    """Penalised risk, means and covariances of the seen groups for given parameters."""

    value: float
    mean: FloatArray  # (k, p)
    covariance: FloatArray  # (k, p, p)


@dataclass(frozen=True, eq=False)
class PerValueRisk:
    r"""Penalised mean negative log-likelihood of the seen groups, convex in precisions P and natural parameters η.

    .. math:: -\sum_s f_s \mathrm E_s \log p(x|s)
        + \tfrac\lambda2 \sum_{i,v} \left(\tfrac12 \|P_{i,v} - P^0_{i,v}\|^2 + \|\eta_{i,v} - \eta^0_{i,v}\|^2\right)

    Here f_s is the weight of the seen group s, E_s the mean over its samples, and λ is ``penalty``. P⁰ and η⁰ are the
    parameters towards which the penalty pulls. The risk is infinite if a seen group's Λ is not positive definite. Scale
    the features so that the covariance within groups is about the identity; then one λ suits data of any scale.
    """

    one_hot: FloatArray  # (k, D) one-hot rows of the seen groups
    moments: GroupMoments
    start_precision: FloatArray  # (D, p, p) P⁰
    start_natural: FloatArray  # (D, p) η⁰
    penalty: float  # λ

    def at(self, precision: FloatArray, natural: FloatArray) -> RiskPoint | None:
        """Return the risk and the Gaussians at P (D, p, p) and η (D, p), or None if the risk is infinite."""
        total, eta = self._sums(precision), self.one_hot @ natural
        try:
            factor = np.linalg.cholesky(total)
        except np.linalg.LinAlgError:
            return None
        inverse = np.linalg.inv(factor)
        covariance = inverse.transpose(0, 2, 1) @ inverse
        mean = np.einsum("kij,kj->ki", covariance, eta)
        log_det = 2.0 * np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)
        quadratic = np.einsum("kij,kij->k", total, self.moments.second)
        linear = np.einsum("ki,ki->k", eta, mean - 2.0 * self.moments.mean)
        size = eta.shape[1]
        risk = 0.5 * self.moments.weight @ (size * math.log(2.0 * math.pi) - log_det + quadratic + linear)
        distance = 0.5 * ((precision - self.start_precision) ** 2).sum() + ((natural - self.start_natural) ** 2).sum()
        return RiskPoint(float(risk + 0.5 * self.penalty * distance), mean, covariance)

    def gradient(self, precision: FloatArray, natural: FloatArray, point: RiskPoint) -> tuple[FloatArray, FloatArray]:
        """Return the gradient with respect to P (D, p, p) and η (D, p), from the moments of data and model."""
        model_second = point.covariance + point.mean[:, :, None] * point.mean[:, None, :]
        by_precision = self._collect(0.5 * (self.moments.second - model_second))
        by_natural = self._collect(point.mean - self.moments.mean)
        return (
            by_precision + 0.5 * self.penalty * (precision - self.start_precision),
            by_natural + self.penalty * (natural - self.start_natural),
        )

    def hessian_product(
        self, precision: FloatArray, natural: FloatArray, point: RiskPoint
    ) -> tuple[FloatArray, FloatArray]:
        """Return the product of the Hessian at ``point`` with a direction: changes of P (D, p, p) and of η (D, p)."""
        change, eta = self._sums(precision), self.one_hot @ natural
        mean = eta - np.einsum("kij,kj->ki", change, point.mean)
        mean = np.einsum("kij,kj->ki", point.covariance, mean)  # (k, p)
        outer = mean[:, :, None] * point.mean[:, None, :]
        second = outer + outer.transpose(0, 2, 1) - point.covariance @ change @ point.covariance
        return (
            self._collect(-0.5 * second) + 0.5 * self.penalty * precision,
            self._collect(mean) + self.penalty * natural,
        )

    def _sums(self, precision: FloatArray) -> FloatArray:
        """Return Λ of the seen groups, (k, p, p), made symmetric."""
        total = np.tensordot(self.one_hot, precision, axes=1)
        return np.asarray(0.5 * (total + total.transpose(0, 2, 1)))

    def _collect(self, by_group: FloatArray) -> FloatArray:
        """Return (D, …): for each attribute value, the weighted sum of ``by_group`` (k, …) over the groups with it."""
        return np.tensordot(self.one_hot.T * self.moments.weight, by_group, axes=1)


def additive_means(space: GroupSpace, groups: IntArray, weight: FloatArray, mean: FloatArray) -> FloatArray:
    r"""Return the contribution M (D, p) of each attribute value to additive group means, by weighted least squares.

    .. math:: \min_M \sum_s f_s \, \| m_s - \sigma(s)^\top M \|^2

    ``groups`` (k, m) are the distinct groups s, ``weight`` (k,) is f > 0, ``mean`` (k, p) is m. The codes σ are rank
    deficient, so there are many minimisers, which agree on the means of groups inside the hull; the one of least norm
    is returned. If all groups have the same covariance, this is maximum likelihood.

    The result is accurate even if the weights differ by many orders of magnitude. The fitted means θ of a basis B of
    the seen groups determine the means Tθ of the remaining groups R. If B is the heaviest basis, each remaining group
    depends only on heavier groups (otherwise it could replace a lighter one in B), and the normal equations

    .. math:: (W_B + T^\top W_R T) \, (\theta - m_B) = T^\top W_R \, (m_R - T m_B)

    with W the diagonal matrices of the weights, are well conditioned once θ is measured in units of 1/√W_B. A
    pseudo-inverse of the weighted codes would be inaccurate: the rounding errors of heavy groups would be larger than
    the contributions of light groups.
    """
    order = np.argsort(-weight, kind="stable")
    columns = groups[order] + space.offsets
    basis = np.array(Span(space.width).add_all(columns, limit=space.width - len(space.names) + 1), dtype=np.int64)
    rest = np.setdiff1d(np.arange(len(groups)), basis)
    codes = one_hot_rows(columns, space.width)  # (k, D)
    weight, mean = np.maximum(weight[order] / weight.max(), np.finfo(np.float64).tiny), mean[order]
    inverse = np.linalg.pinv(codes[basis])  # (D, r)
    combination = codes[rest] @ inverse  # (k − r, r) T
    combination[rest[:, None] < basis] = 0.0  # a group does not depend on lighter groups
    parts = np.zeros((space.width, mean.shape[1]))
    for _ in range(2):  # the second pass corrects rounding
        residual = mean - codes @ parts
        parts += inverse @ _fitted(weight[basis], residual[basis], weight[rest], residual[rest], combination)
    return parts


def _fitted(
    weight: FloatArray, mean: FloatArray, rest_weight: FloatArray, rest_mean: FloatArray, combination: FloatArray
) -> FloatArray:
    """Return the fitted means θ of the basis, (r, p), from the means of the basis and of the remaining groups."""
    root = np.sqrt(weight)[:, None]  # (r, 1)
    scaled = np.sqrt(rest_weight)[:, None] * combination / root.T  # (k − r, r), no larger than T
    missed = np.sqrt(rest_weight)[:, None] * (rest_mean - combination @ mean)  # (k − r, p)
    factor = cho_factor(np.eye(len(weight)) + scaled.T @ scaled, lower=True)
    return np.asarray(mean + cho_solve(factor, scaled.T @ missed) / root)
