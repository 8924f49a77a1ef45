r"""The prior over groups that unlabelled inputs came from (Saerens, Latinne, Decaestecker, 2002).

With log ratios l(x, z) = log q(z|x) − log q(z), in which any term of x alone cancels, the prior is the maximiser of

.. math:: F(\pi) = \sum_x \omega_x \log \sum_z \pi_z e^{l(x, z)} + (a - 1) \sum_z \log \pi_z

over the simplex. F is concave. Each EM step replaces π by mean responsibilities, which never lowers F:

.. math:: \pi_z \leftarrow \frac{\sum_x \omega_x r(x, z) + a - 1}{\sum_x \omega_x + g (a - 1)}, \qquad
    r(x, z) = \frac{\pi_z e^{l(x, z)}}{\sum_{z'} \pi_{z'} e^{l(x, z')}}
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from compshift.core.arrays import FloatArray
from compshift.core.mixture import Mixture, normalised
from compshift.core.prior_intervals import effective_rows, intervals
from compshift.core.told_apart import told_apart

FARTHEST = 10.0
"""A leap changes no log probability by more than this."""

INTERVAL_TOL = 1e-3
"""Nats to which the likelihood is maximised for the intervals: they are off by a twentieth of a standard error."""


class PriorEstimate(NamedTuple):
    """The most probable prior, how far it is known, and how it was found."""

    log_prior: FloatArray  # (g,)
    lower: FloatArray  # (g,) ends of the interval of each probability
    upper: FloatArray  # (g,)
    effective_rows: FloatArray  # (g,) rows with known groups that would tell as much, pseudo-rows included
    told_apart: FloatArray  # (g, g) share of the information about a split between two groups, 1 on the diagonal
    log_likelihood: float  # Σ ω log Σ π exp(l), relative to that of the ratios' own scale
    objective: float  # the same with the Dirichlet prior's Σ (a − 1) log π
    gap: float  # bound on what the objective may still gain, in nats
    n_iter: int
    converged: bool


def estimate_log_prior(
    log_ratio: FloatArray,
    sample_weight: FloatArray,
    *,
    concentration: float = 2.0,
    confidence: float = 0.9,
    tol: float = 1e-6,
    max_iter: int = 10_000,
) -> PriorEstimate:
    """The prior π (g,) that maximises F, by EM; ``log_ratio`` (n, g) is l(x, z), ``sample_weight`` (n,) is ω > 0.

    A ``concentration`` a of 1 is maximum likelihood; above it, a − 1 pseudo-rows of each group pull to the uniform
    prior. Two EM steps and a leap along their direction (SQUAREM; Varadhan, Roland, 2008) make an iteration; a leap
    that would lower F is not taken. It has converged if F is known to be within ``tol`` of its maximum; since F is in
    nats, π then is within √(2 tol) standard errors of the maximiser.

    Intervals are those of the likelihood alone, at its own maximum: pseudo-rows would keep them away from 0, where the
    share of an absent group is. They are widened to hold the estimate, if need be. That of an absent group is as wide
    as rows which are surely of other groups allow: Wilson's, if all of them are.
    """
    mixture = Mixture.of(log_ratio, sample_weight, concentration)
    n_groups = log_ratio.shape[1]
    log_prior, gap, n_iter = _maximise(mixture, np.full(n_groups, -math.log(n_groups)), tol, max_iter)
    likelihood = mixture._replace(pseudo=0.0)
    most_likely = log_prior if mixture.pseudo == 0 else _maximise(likelihood, log_prior, INTERVAL_TOL, max_iter)[0]
    squared = NormalDist().inv_cdf(0.5 + confidence / 2) ** 2
    lower, upper = intervals(likelihood, np.exp(most_likely), squared)
    prior = np.exp(log_prior)
    return PriorEstimate(
        log_prior=log_prior,
        lower=np.minimum(lower, prior),
        upper=np.maximum(upper, prior),
        effective_rows=effective_rows(mixture, prior),
        told_apart=told_apart(log_ratio, sample_weight, log_prior),
        log_likelihood=mixture.log_likelihood(log_prior),
        objective=mixture.objective(log_prior),
        gap=gap,
        n_iter=n_iter,
        converged=gap <= tol,
    )


def _maximise(mixture: Mixture, log_prior: FloatArray, tol: float, max_iter: int) -> tuple[FloatArray, float, int]:
    """The maximiser of F from a prior without zeros, what F may still gain there, and the iterations it took."""
    n_iter, gap = 0, _gap(mixture, log_prior)
    while gap > tol and n_iter < max_iter:
        log_prior = _leap(mixture, log_prior)
        n_iter, gap = n_iter + 1, _gap(mixture, log_prior)
    return log_prior, gap, n_iter


def _gap(mixture: Mixture, log_prior: FloatArray) -> float:
    """What F may still gain, at most."""
    return mixture.total * math.expm1(max(float(mixture.log_growth(log_prior).max()), 0.0))


def _leap(mixture: Mixture, start: FloatArray) -> FloatArray:
    """Two EM steps, or a point beyond them if F is no lower there."""
    first = mixture.em_step(start)
    second = mixture.em_step(first)
    alive = second > -np.inf
    step = first[alive] - start[alive]
    bend = second[alive] - first[alive] - step
    size = float(np.linalg.norm(bend))
    if size == 0:
        return second
    length = max(float(np.linalg.norm(step)) / size, 1.0)  # 1 gives the second EM step
    beyond = second.copy()
    leap = start[alive] + 2 * length * step + length**2 * bend
    beyond[alive] = np.clip(leap, second[alive] - FARTHEST, second[alive] + FARTHEST)
    beyond = mixture.em_step(normalised(beyond))
    return beyond if mixture.objective(beyond) >= mixture.objective(second) else second
