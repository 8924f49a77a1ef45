r"""Step 2: the bias of every group, seen or not, from the energies of the training inputs.

.. math::

    B^*(z) = \log \frac{\sum_x \omega_x w_x(z)}{\sum_x \omega_x}, \qquad
    w_x(z) = \exp(-\langle \sigma(z), E(x) \rangle - c(x))

Paper, label "qz" in docs/maths.md. E are the energies, ω the sample weights, and c(x) is the log evidence of step 1,
from a classifier trained with the same weights. The sums are computed block by block, in one process or several:
``block_sums`` for each block, ``merge_sums`` for two results, ``extrapolated_bias`` at the end. ``cumulant_bias`` is an
approximation of lower variance, and ``tail_indices`` returns the Pareto k̂ of the importance weights w.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from array_api_compat import device

from compshift.core.arrays import Array, FloatArray, IntArray, log_moments, namespace, row_blocks, safe_log
from compshift.core.energy import GroupTable, group_energies
from compshift.core.groups import GroupSpace, locate_codes

SUM_BLOCK_CELLS = 1 << 21
"""Target size of a block, in array elements. Larger than BLOCK_CELLS because merging partial sums costs O(groups)."""

MAX_PAIRS = 50_000_000
"""Largest number of (candidate, seen group) pairs for which ``cumulant_bias`` is computed."""

STANDARD_ERRORS = 3.0
"""Largest number of standard errors of B* by which ``no_lower_than_samples`` lets a bias lie below B*."""

WEIGHT_TIE = 1e-12
"""Largest difference at which ``pareto_k`` treats two log weights as equal."""

MIN_TAIL = 5
"""Minimum number of weights in the tail for ``pareto_k``; a shorter tail gives NaN."""

MIN_QUARTILE = 1e-300
"""Lower limit for the first quartile of the excesses in ``pareto_k``, which could otherwise underflow to 0."""

ENOUGH_SAMPLES = 30
"""Effective sample size below which a bias is uncertain; ``"shrunk"`` weights both biases equally at it."""

HEAVY_TAIL = 0.7
"""Pareto k̂ above which the mean of importance weights is unreliable."""


class BiasSums(NamedTuple):
    """Sums over samples for each cell of a group table; they determine the bias and its effective sample size."""

    log_first: Array  # (l, r) log Σ ω w
    log_second: Array  # (l, r) log Σ (ω w)²
    total_weight: float  # Σ ω


class ExtrapolatedBias(NamedTuple):
    """Bias of each group and its effective sample size."""

    bias: Array  # (g,)
    effective_sample_size: Array  # (g,)


def empty_sums(table: GroupTable, reference: Array) -> BiasSums:
    """Return the sums over no samples, in the library, precision and device of ``reference``."""
    xp = namespace(reference)
    log_zero = xp.full(table.shape, -math.inf, dtype=reference.dtype, device=device(reference))
    return BiasSums(log_zero, log_zero, 0.0)


def block_sums(table: GroupTable, energies: Array, log_evidence: Array, sample_weight: Array | None = None) -> BiasSums:
    """Return the sums over one block of samples, by matrix products in log space.

    ``energies`` (n, D), ``log_evidence`` (n,) and ``sample_weight`` (n,) > 0 belong to the same training samples.
    Fastest if each column of ``energies`` is contiguous, as in the result of ``linear_energies``.
    """
    xp = namespace(energies)
    total = float(energies.shape[0])
    log_share = -log_evidence  # (n,)
    if sample_weight is not None:
        log_share = log_share + safe_log(sample_weight)  # a weight may have underflowed to 0
        total = float(xp.sum(sample_weight))

    def log_factors() -> tuple[Array, Array]:
        left, right = table.halves(energies)
        left, right = left.T, right.T  # (l, n), (r, n)
        left += log_share
        return left, right

    return BiasSums(*log_moments(log_factors), total)


def sums_over(table: GroupTable, energies: Array, log_evidence: Array, sample_weight: Array | None = None) -> BiasSums:
    """Return the sums over any number of samples, computed block by block to limit memory."""
    sums = empty_sums(table, energies)
    for rows in row_blocks(energies.shape[0], 1, rows_worth_merging(table)):
        weight = None if sample_weight is None else sample_weight[rows]
        sums = merge_sums(sums, block_sums(table, energies[rows], log_evidence[rows], weight))
    return sums


def rows_worth_merging(table: GroupTable) -> int:
    """Return the number of samples per block at which merging costs little compared with summing the block."""
    cells = max(SUM_BLOCK_CELLS, 4 * len(table.left) * len(table.right))
    return cells // (table.width + table.space.width) + 1


def merge_sums(first: BiasSums, second: BiasSums) -> BiasSums:
    """Return the sums over the samples of both arguments."""
    xp = namespace(first.log_first)
    return BiasSums(
        xp.logaddexp(first.log_first, second.log_first),
        xp.logaddexp(first.log_second, second.log_second),
        first.total_weight + second.total_weight,
    )


def extrapolated_bias(table: GroupTable, sums: BiasSums) -> ExtrapolatedBias:
    r"""Return B*(z) and its effective sample size for each group of the table, seen or unseen.

    .. math:: \mathrm{ESS}(z) = \frac{(\sum_x \omega_x w_x(z))^2}{\sum_x (\omega_x w_x(z))^2}

    A bias with a small ESS is unreliable, even if there are many samples. A sample of weight 2 counts as one sample in
    the ESS, not as two: it carries no more information.
    """
    xp = namespace(sums.log_first)
    log_first = table.pick(sums.log_first)
    size = xp.exp(2 * log_first - table.pick(sums.log_second))
    return ExtrapolatedBias(log_first - math.log(sums.total_weight), size)


class EnergyMoments(NamedTuple):
    """Mean and pooled covariance of the energies within the seen groups."""

    mean: FloatArray  # (k, D) mean energies of each seen group
    covariance: FloatArray  # (D, D) within groups, pooled over the groups


def energy_moments(energies: FloatArray, position: IntArray, sample_weight: FloatArray, n_seen: int) -> EnergyMoments:
    """Return the weighted mean of the energies (n, D) in each seen group, and the pooled covariance within groups.

    ``position`` (n,) is the position of each sample's group among the ``n_seen`` seen groups.
    """
    total = np.bincount(position, weights=sample_weight, minlength=n_seen)  # (k,)
    sums = [np.bincount(position, weights=sample_weight * column, minlength=n_seen) for column in energies.T]
    mean = (np.stack(sums) / total).T  # (k, D)
    rest = energies - mean[position]
    return EnergyMoments(mean, (rest * sample_weight[:, None]).T @ rest / total.sum())


def cumulant_bias(
    space: GroupSpace, groups: IntArray, seen_groups: IntArray, seen_bias: FloatArray, moments: EnergyMoments
) -> FloatArray:
    r"""Return the bias of each of the groups (g, m) from the bias (k,) and energy moments of the seen groups (k, m).

    Let E_z(x) = ⟨σ(z), E(x)⟩ be the energy of group z. With p(x|z) = h(x) exp(−E_z(x) − B(z)), for any h and any seen
    group s,

    .. math::

        B(z) = B(s) + \log \mathbb{E}_{x|s} \, e^{-\Delta(x)}
             \approx B(s) - \mathbb{E}_{s}[\Delta] + \tfrac12 \mathrm{Var}[\Delta], \qquad \Delta = E_z - E_s

    with the variance pooled over the seen groups. This is exact if energies are linear and the groups are Gaussian with
    the same covariance. It replaces B* if groups lie far apart, where B* depends on a few samples. For groups that are
    not Gaussian it can be far too low, so that an unseen group attracts samples of seen groups;
    ``no_lower_than_samples`` prevents this.

    Each seen group gives one estimate. They are averaged with weights Var[Δ]⁻³, because the error is of third order in
    Δ, so its square grows as Var³. A seen group keeps its ``seen_bias``. With more than ``MAX_PAIRS`` pairs, the bias
    of unseen groups is NaN.
    """
    in_seen = locate_codes(groups, seen_groups, space.cardinalities)  # (g,) −1 for unseen groups
    result = np.full(len(groups), np.nan)
    if len(groups) * len(seen_groups) > MAX_PAIRS:
        return np.where(in_seen >= 0, seen_bias[in_seen], result)
    seen_codes = space._one_hot(seen_groups)  # (k, D)
    to_seen = moments.covariance @ seen_codes.T  # (D, k)
    seen_variance = np.einsum("kd,dk->k", seen_codes, to_seen)
    seen_mean = np.einsum("kd,kd->k", seen_codes, moments.mean)
    for rows in row_blocks(len(groups), len(seen_groups) + space.width):
        codes = space._one_hot(groups[rows])  # (q, D)
        variance = np.einsum("qd,dq->q", codes, moments.covariance @ codes.T)[:, None] - 2 * codes @ to_seen
        variance = np.maximum(variance + seen_variance, 0.0)  # (q, k)
        values = seen_bias - (codes @ moments.mean.T - seen_mean) + variance / 2
        nearest = np.maximum(variance.min(axis=1, keepdims=True), np.finfo(np.float64).tiny)
        weight = (nearest / np.maximum(variance, nearest)) ** 3  # (q, k), 1 for the nearest seen group
        result[rows] = np.einsum("qk,qk->q", weight, values) / weight.sum(axis=1)
    return np.where(in_seen >= 0, seen_bias[in_seen], result)


def no_lower_than_samples(bias: FloatArray, by_samples: ExtrapolatedBias) -> FloatArray:
    r"""Return the bias (g,), raised where it is implausibly low given the training samples.

    .. math:: \max\Bigl( B(z), \; B^*(z) - 3 / \sqrt{\mathrm{ESS}(z)} \Bigr)

    For given energies, exp B*(z) is a mean of positive terms whose expectation is exp B(z). A few samples may miss the
    largest terms, so B* can be far below B, but it is hardly ever far above. With an ESS of 1 the bound is B* − 3: by
    Markov's inequality the mean exceeds 20 times its expectation, and so B* exceeds B by log 20 ≈ 3 nats, with a
    probability of at most 1/20. With a large ESS, 1/√ESS is the standard error of B*, and the bound is 3 standard
    errors below B*.
    """
    lowest: FloatArray = by_samples.bias - STANDARD_ERRORS / np.sqrt(by_samples.effective_sample_size)
    return np.maximum(bias, lowest)


def tail_indices(
    space: GroupSpace, groups: IntArray, energies: FloatArray, log_evidence: FloatArray, sample_weight: FloatArray
) -> FloatArray:
    """Return the Pareto k̂ of the importance weights in the bias B* of each of the groups (g, m), (g,).

    ``energies`` (n, D), ``log_evidence`` (n,) and ``sample_weight`` (n,) belong to the training samples. For k̂ below
    0.5 the weighted mean has a finite variance; above 0.7 it is unreliable (Vehtari et al., 2024).
    """
    log_sample = safe_log(sample_weight) - log_evidence
    return pareto_k(log_sample[:, None] - group_energies(energies, space, groups))


def pareto_k(log_weights: FloatArray) -> FloatArray:
    r"""Return the shape k̂ of a generalised Pareto distribution fitted to the largest weights of each column, (q,).

    ``log_weights`` is (n, q). The tail consists of the min(n/5, 3√n) largest weights, from which the next largest
    weight is subtracted (Vehtari, Simpson, Gelman, Yao, Gabry). The fit is the quasi-Bayesian estimate of Zhang and
    Stephens (2009), with a prior that pulls k towards 0.5 in small samples. Equal weights count once, because ties
    (for example from features with few distinct values) carry no information about the tail. The result is NaN if the
    tail is too short, and −inf if all weights are equal.
    """
    n = len(log_weights)
    size = int(min(n / 5, 3 * math.sqrt(n)))
    if size < MIN_TAIL:
        return np.full(log_weights.shape[1], np.nan)
    ordered = np.sort(np.partition(log_weights, n - size - 1, axis=0)[n - size - 1 :], axis=0)  # (size + 1, q)
    scaled = np.exp(ordered - ordered[-1:])
    tied = (np.diff(ordered, axis=0) <= WEIGHT_TIE).any(axis=0)
    result = np.empty(log_weights.shape[1])
    if not tied.all():
        result[~tied] = _generalised_pareto_shape(scaled[1:, ~tied] - scaled[:1, ~tied])
    for column in np.flatnonzero(tied):
        distinct = np.sort(log_weights[:, column])
        distinct = distinct[np.r_[True, np.diff(distinct) > WEIGHT_TIE]]
        all_equal = len(distinct) == 1
        result[column] = -np.inf if all_equal else pareto_k(distinct[:, None])[0]
    return result


def _generalised_pareto_shape(excess: FloatArray) -> FloatArray:
    """Return Zhang and Stephens' estimate of k, (q,), for the excesses (s, q), ascending in each column."""
    size = len(excess)
    quartile = np.maximum(excess[int(size / 4 + 0.5) - 1], MIN_QUARTILE)  # (q,)
    n_points = 30 + int(math.sqrt(size))
    point = 1 - np.sqrt(n_points / (np.arange(1, n_points + 1) - 0.5))  # (t,)
    theta = 1 / excess[-1] + point[:, None] / (3 * quartile)  # (t, q) candidates for −k divided by the scale
    shape = np.stack([np.log1p(-row * excess).mean(axis=0) for row in theta])  # (t, q)
    profile = size * (np.log(-theta / shape) - shape - 1)
    weight = np.exp(profile - profile.max(axis=0))
    best = (weight * theta).sum(axis=0) / weight.sum(axis=0)  # (q,)
    k = np.log1p(-best * excess).mean(axis=0)
    return np.asarray((size * k + 10 * 0.5) / (size + 10))
