r"""The posterior of groups that training lacks, from the posterior of those that it has.

.. math::

    \log q(z'|x) = \log q(z') + s(x, z') - \log \mathbb{E}_{x \sim p(x)} \exp s(x, z') + \text{const}(x), \qquad
    s(x, z') = \sum_z \alpha_z \log p(z|x)

Paper, eq. "test-train-classifier-rel"; α are the affine weights of z'. Nothing here depends on what gave p(z|x).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from compshift.core.arrays import BoolArray, FloatArray, IntArray, row_blocks
from compshift.core.logspace import log_softmax, logsumexp, safe_log

LOWEST, HIGHEST = 1e-3, 1e3
"""Between these the inverse temperature is looked for."""


class LogPartition(NamedTuple):
    """Log expectation of exp s(x, z') for each group, and how many samples it effectively rests on."""

    value: FloatArray  # (g,)
    effective_sample_size: FloatArray  # (g,)


def log_floored(probabilities: FloatArray, floor: float) -> tuple[FloatArray, BoolArray]:
    """Logarithm of probabilities (n, k), none below ``floor``, and which were below it."""
    low = probabilities < floor
    return np.log(np.where(low, floor, probabilities)), low


def log_loss(logits: FloatArray, position: IntArray, sample_weight: FloatArray) -> float:
    """Mean negative log-likelihood of the groups ``position`` (n,) under logits (n, k)."""
    own = log_softmax(logits)[np.arange(len(position)), position]
    return -float(np.average(own, weights=sample_weight))


def inverse_temperature(log_proba: FloatArray, position: IntArray, sample_weight: FloatArray) -> float:
    r"""The β that makes ``softmax(β · log_proba)`` the most likely, between 1e-3 and 1e3.

    .. math:: \min_\beta \; -\sum_x \omega_x \, \log \mathrm{softmax}(\beta \, \ell(x))_{z(x)}

    It is convex in β: the derivative is the mean of ℓ under the model less that of the groups ``position`` (n,) that
    rows have, and its own derivative is the variance of ℓ under the model. Newton's steps, inside a bracket.
    """
    weight = sample_weight / sample_weight.sum()
    observed = float(weight @ log_proba[np.arange(len(position)), position])

    def derivatives(beta: float) -> tuple[float, float]:
        proba = np.exp(log_softmax(beta * log_proba))
        mean = (proba * log_proba).sum(axis=1)  # (n,)
        variance = (proba * (log_proba - mean[:, None]) ** 2).sum(axis=1)
        return float(weight @ mean) - observed, float(weight @ variance)

    if derivatives(LOWEST)[0] >= 0:
        return LOWEST
    if derivatives(HIGHEST)[0] <= 0:
        return HIGHEST
    low, high, beta = LOWEST, HIGHEST, 1.0
    for _ in range(100):
        slope, curvature = derivatives(beta)
        low, high = (beta, high) if slope < 0 else (low, beta)
        step = beta - slope / curvature if curvature > 0 else math.inf
        previous, beta = beta, step if low < step < high else math.sqrt(low * high)
        if abs(beta - previous) <= 1e-10 * beta:
            break
    return beta


def log_partition(log_proba: FloatArray, weights: FloatArray, sample_weight: FloatArray) -> LogPartition:
    r"""Log mean of exp s(x, z') over training samples, and its effective sample size.

    .. math:: \log \frac{\sum_x \omega_x e^{s(x, z')}}{\sum_x \omega_x}, \qquad
        \mathrm{ESS} = \frac{(\sum_x \omega_x e^{s(x, z')})^2}{\sum_x (\omega_x e^{s(x, z')})^2}

    ``log_proba`` (n, k) are log p(z|x) of the seen groups, ``weights`` (g, k) are α, ``sample_weight`` (n,) is ω > 0.
    """
    log_first = log_second = np.full(len(weights), -np.inf)
    for rows in row_blocks(len(log_proba), len(weights)):
        terms = log_proba[rows] @ weights.T + safe_log(sample_weight[rows])[:, None]  # (b, g)
        log_first = np.logaddexp(log_first, logsumexp(terms, axis=0))
        log_second = np.logaddexp(log_second, logsumexp(2 * terms, axis=0))
    return LogPartition(log_first - math.log(sample_weight.sum()), np.exp(2 * log_first - log_second))


def affine_log_posterior(log_proba: FloatArray, weights: FloatArray, log_score: FloatArray) -> FloatArray:
    """Log q(z'|x) of each candidate, (n, g); ``log_score`` (g,) is log q(z') less the log partition."""
    return np.asarray(log_softmax(log_proba @ weights.T + log_score))
