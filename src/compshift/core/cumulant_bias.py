r"""A low-variance bias: from each seen group to every other by two moments of their energy difference.

With p(x|z) = h(x) exp(−E_z(x) − B(z)), whatever h is, and for any seen group s,

.. math::

    B(z) = B(s) + \log \mathbb{E}_{x|s} \, e^{-\Delta(x)}
         \approx B(s) - \mathbb{E}_{s}[\Delta] + \tfrac12 \mathrm{Var}[\Delta], \qquad \Delta = E_z - E_s

with the variance pooled over the seen groups. It is exact if energies are linear and groups Gaussian with one
covariance. Where groups lie far apart it takes the place of the importance-weighted mean, which then rests on a few
samples. Where groups are not Gaussian it can be far too low, so that an unseen group takes the rows of seen ones; but
the samples bound it from below.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from compshift.core.arrays import FloatArray, IntArray, row_blocks
from compshift.core.bias import ExtrapolatedBias
from compshift.core.groups import GroupSpace

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
