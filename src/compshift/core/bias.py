r"""Step 2: the bias of every group, seen or not, from the energies of the training inputs.

.. math::

    B^*(z) = \log \frac{\sum_x \omega_x w_x(z)}{\sum_x \omega_x}, \qquad
    w_x(z) = \exp(-\langle \sigma(z), E(x) \rangle - c(x))

Paper, eq. "qz"; ω are the sample weights, which c(x) must describe too. The sums run over blocks of samples, so that
inputs can be streamed, and sums made apart can be merged.

A low-variance bias: from each seen group to every other by two moments of their energy difference.

With p(x|z) = h(x) exp(−E_z(x) − B(z)), whatever h is, and for any seen group s,

.. math::

    B(z) = B(s) + \log \mathbb{E}_{x|s} \, e^{-\Delta(x)}
         \approx B(s) - \mathbb{E}_{s}[\Delta] + \tfrac12 \mathrm{Var}[\Delta], \qquad \Delta = E_z - E_s

with the variance pooled over the seen groups. It is exact if energies are linear and groups Gaussian with one
covariance. Where groups lie far apart it takes the place of the importance-weighted mean, which then rests on a few
samples. Where groups are not Gaussian it can be far too low, so that an unseen group takes the rows of seen ones; but
the samples bound it from below.

Tails of importance weights: whether the mean that gives a bias can be trusted, whatever its sample size.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from array_api_compat import device

from compshift.core.arrays import Array, FloatArray, IntArray, log_moments, namespace, row_blocks, safe_log
from compshift.core.energy import GroupTable, group_energies
from compshift.core.groups import GroupSpace

BLOCK_CELLS_OF_SUMS = 1 << 21
"""How many numbers a block of samples holds: more than elsewhere, because every block's sums are merged."""


class BiasSums(NamedTuple):
    """What the samples so far contribute to the bias of each cell of a table."""

    log_first: Array  # (l, r) log Σ ω w
    log_second: Array  # (l, r) log Σ (ω w)²
    total_weight: float  # Σ ω


class ExtrapolatedBias(NamedTuple):
    """Bias of each group, and how many samples it effectively rests on."""

    bias: Array  # (g,)
    effective_sample_size: Array  # (g,)


def empty_sums(table: GroupTable, reference: Array) -> BiasSums:
    """Sums over no samples, of the library, precision and device of ``reference``."""
    xp = namespace(reference)
    nothing = xp.full(table.shape, -math.inf, dtype=reference.dtype, device=device(reference))
    return BiasSums(nothing, nothing, 0.0)


def block_sums(table: GroupTable, energies: Array, log_evidence: Array, sample_weight: Array | None = None) -> BiasSums:
    """Sums over one block of samples: matrix products in log space.

    ``energies`` (n, D) and ``log_evidence`` (n,) belong to the same training samples; every weight must be above 0.
    Fastest where the energies of a value are next to each other in memory, as ``linear_energies`` has them.
    """
    xp = namespace(energies)
    total = float(energies.shape[0])
    log_share = -log_evidence  # (n,)
    if sample_weight is not None:
        log_share = log_share + safe_log(sample_weight)  # a weight of 0 may be one that underflowed
        total = float(xp.sum(sample_weight))

    def log_factors() -> tuple[Array, Array]:
        left, right = (half.T for half in table.halves(energies))  # (l, n), (r, n), and nobody else's
        left += log_share
        return left, right

    return BiasSums(*log_moments(log_factors), total)


def sums_over(table: GroupTable, energies: Array, log_evidence: Array, sample_weight: Array | None = None) -> BiasSums:
    """Sums over any number of samples, a block at a time, so that no more than a cache is filled."""
    sums = empty_sums(table, energies)
    for rows in row_blocks(energies.shape[0], 1, rows_worth_merging(table)):
        own = None if sample_weight is None else sample_weight[rows]
        sums = merge_sums(sums, block_sums(table, energies[rows], log_evidence[rows], own))
    return sums


def rows_worth_merging(table: GroupTable) -> int:
    """How many samples a block has that is worth the merging of its sums."""
    cells = max(BLOCK_CELLS_OF_SUMS, 4 * len(table.left) * len(table.right))
    return cells // (table.width + table.space.width) + 1


def merge_sums(first: BiasSums, second: BiasSums) -> BiasSums:
    """Sums over the samples of both."""
    xp = namespace(first.log_first)
    return BiasSums(
        xp.logaddexp(first.log_first, second.log_first),
        xp.logaddexp(first.log_second, second.log_second),
        first.total_weight + second.total_weight,
    )


def extrapolated_bias(table: GroupTable, sums: BiasSums) -> ExtrapolatedBias:
    r"""B*(z) and its effective sample size for each group of the table.

    .. math:: \mathrm{ESS}(z) = \frac{(\sum_x \omega_x w_x(z))^2}{\sum_x (\omega_x w_x(z))^2}

    A bias that rests on a handful of samples is not to be trusted, however many rows there are. A row of weight 2
    counts as one sample here, not as two: it holds no more information.
    """
    xp = namespace(sums.log_first)
    log_first = table.pick(sums.log_first)
    size = xp.exp(2 * log_first - table.pick(sums.log_second))
    return ExtrapolatedBias(log_first - math.log(sums.total_weight), size)


MAX_PAIRS = 50_000_000
"""Up to so many pairs of a candidate and a seen group are looked at."""

STANDARD_ERRORS = 3.0
"""By so many a bias may lie below the mean over samples. It is log 20 too: the bound by a single sample."""


class EnergyMoments(NamedTuple):
    """Moments of the energies within the seen groups."""

    mean: FloatArray  # (k, D) in each group
    covariance: FloatArray  # (D, D) pooled over the groups


def energy_moments(energies: FloatArray, position: IntArray, sample_weight: FloatArray, n_seen: int) -> EnergyMoments:
    """Mean energies (n, D) of each seen group, and the covariance about them, by weighted samples."""
    total = np.bincount(position, weights=sample_weight, minlength=n_seen)  # (k,)
    sums = [np.bincount(position, weights=sample_weight * column, minlength=n_seen) for column in energies.T]
    mean = (np.stack(sums) / total).T  # (k, D)
    rest = energies - mean[position]
    return EnergyMoments(mean, (rest * sample_weight[:, None]).T @ rest / total.sum())


def cumulant_bias(
    space: GroupSpace, groups: IntArray, seen_groups: IntArray, seen_bias: FloatArray, moments: EnergyMoments
) -> FloatArray:
    r"""Bias of each of the groups (g, m) from the bias (k,) and moments of the seen ones.

    The expansions about the seen groups are averaged with weights Var[Δ]⁻³: what they leave out is of third order in Δ,
    so that its square grows as Var³. A seen group keeps its own bias. The others' are NaN if there are too many pairs.
    """
    own = space.locate(groups, seen_groups)
    result = np.full(len(groups), np.nan)
    if len(groups) * len(seen_groups) > MAX_PAIRS:
        return np.where(own >= 0, seen_bias[own], result)
    seen_codes = space.one_hot(seen_groups)  # (k, D)
    to_seen = moments.covariance @ seen_codes.T  # (D, k)
    own_variance = np.einsum("kd,dk->k", seen_codes, to_seen)
    own_mean = np.einsum("kd,kd->k", seen_codes, moments.mean)
    for rows in row_blocks(len(groups), len(seen_groups) + space.width):
        codes = space.one_hot(groups[rows])  # (q, D)
        variance = np.einsum("qd,dq->q", codes, moments.covariance @ codes.T)[:, None] - 2 * codes @ to_seen
        variance = np.maximum(variance + own_variance, 0.0)  # (q, k)
        values = seen_bias - (codes @ moments.mean.T - own_mean) + variance / 2
        nearest = np.maximum(variance.min(axis=1, keepdims=True), np.finfo(np.float64).tiny)
        weight = (nearest / np.maximum(variance, nearest)) ** 3  # 1 for the nearest
        result[rows] = np.einsum("qk,qk->q", weight, values) / weight.sum(axis=1)
    return np.where(own >= 0, seen_bias[own], result)


def no_lower_than_samples(bias: FloatArray, by_samples: ExtrapolatedBias) -> FloatArray:
    r"""The bias (g,), raised where it is lower than the training samples allow.

    .. math:: \max\Bigl( B(z), \; B^*(z) - 3 / \sqrt{\mathrm{ESS}(z)} \Bigr)

    For given energies exp B*(z) is a mean of positive terms whose expectation is exp B(z). Few samples may miss what
    makes it large, so that B* says little about how high B is; but Markov's inequality allows no mean above 20 times
    its expectation, which is 3 nats, more often than one time in 20. With many samples 1/√ESS is the standard error of
    B*, and 3 of them are the bound.
    """
    lowest: FloatArray = by_samples.bias - STANDARD_ERRORS / np.sqrt(by_samples.effective_sample_size)
    return np.maximum(bias, lowest)


TIE = 1e-12
"""Logarithms of weights that differ by less than this do not differ."""

FEWEST = 5
"""A tail of fewer weights says nothing."""


def tail_indices(
    space: GroupSpace, groups: IntArray, energies: FloatArray, log_evidence: FloatArray, sample_weight: FloatArray
) -> FloatArray:
    """Pareto k̂ of the samples' weights in the bias of each of the groups (g, m), (g,).

    ``energies`` (n, D) and ``log_evidence`` (n,) are those of the training samples. Below 0.5 the mean has a variance;
    above 0.7 it is not to be trusted (Vehtari et al., 2024).
    """
    log_sample = safe_log(sample_weight) - log_evidence
    return pareto_k(log_sample[:, None] - group_energies(energies, space, groups))


SMALLEST = 1e-300
"""An excess below this has underflowed: the tail is as heavy as can be told."""


def pareto_k(log_weights: FloatArray) -> FloatArray:
    r"""Shape k̂ of a generalised Pareto distribution fitted to the largest weights of each column (n, q), (q,).

    The tail are the min(n/5, 3√n) largest, in excess of the next one (Vehtari, Simpson, Gelman, Yao, Gabry). The fit is
    the quasi-Bayesian one of Zhang and Stephens (2009), with their prior on k that pulls small samples to 0.5. Equal
    weights count once: a few values that many samples share, as with features of few values, are not a tail's end.
    """
    n = len(log_weights)
    size = int(min(n / 5, 3 * math.sqrt(n)))
    if size < FEWEST:
        return np.full(log_weights.shape[1], np.nan)
    ordered = np.sort(np.partition(log_weights, n - size - 1, axis=0)[n - size - 1 :], axis=0)  # (size + 1, q)
    scaled = np.exp(ordered - ordered[-1:])
    tied = (np.diff(ordered, axis=0) <= TIE).any(axis=0)
    result = np.empty(log_weights.shape[1])
    if not tied.all():
        result[~tied] = _generalised_pareto_shape(scaled[1:, ~tied] - scaled[:1, ~tied])
    for column in np.flatnonzero(tied):
        distinct = np.sort(log_weights[:, column])
        distinct = distinct[np.r_[True, np.diff(distinct) > TIE]]
        alone = len(distinct) == 1  # weights that are all alike have no tail
        result[column] = -np.inf if alone else pareto_k(distinct[:, None])[0]
    return result


def _generalised_pareto_shape(excess: FloatArray) -> FloatArray:
    """Zhang and Stephens' estimate of k for ascending excesses (s, q), (q,)."""
    size = len(excess)
    quartile = np.maximum(excess[int(size / 4 + 0.5) - 1], SMALLEST)  # (q,)
    n_points = 30 + int(math.sqrt(size))
    point = 1 - np.sqrt(n_points / (np.arange(1, n_points + 1) - 0.5))  # (t,)
    theta = 1 / excess[-1] + point[:, None] / (3 * quartile)  # (t, q) minus k over the scale
    shape = np.stack([np.log1p(-row * excess).mean(axis=0) for row in theta])  # (t, q)
    profile = size * (np.log(-theta / shape) - shape - 1)
    weight = np.exp(profile - profile.max(axis=0))
    best = (weight * theta).sum(axis=0) / weight.sum(axis=0)  # (q,)
    k = np.log1p(-best * excess).mean(axis=0)
    return np.asarray((size * k + 10 * 0.5) / (size + 10))
