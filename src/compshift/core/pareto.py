"""Tails of importance weights: whether the mean that gives a bias can be trusted, whatever its sample size."""

from __future__ import annotations

import math

import numpy as np

from compshift.core.arrays import FloatArray, IntArray
from compshift.core.energy import group_energies
from compshift.core.groups import GroupSpace
from compshift.core.logspace import safe_log

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
