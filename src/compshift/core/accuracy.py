r"""Confidence interval of a proportion.

Whether probabilities can be believed: expected calibration error, with what chance alone would give.

Rows are sorted by confidence and cut into bins of equal count, and

.. math:: \mathrm{ECE} = \sum_b \frac{n_b}{n} \left|\text{accuracy}_b - \text{mean confidence}_b\right|

It is above 0 even if every probability is right, because accuracies of finite bins scatter. So it comes with its
distribution under that assumption: a row is right with a chance of its confidence, and the error is computed again.

What a model itself expects to get right on a group, seen or not.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from compshift.core.arrays import BoolArray, FloatArray, IntArray, logsumexp, row_blocks, safe_log
from compshift.core.energy import group_energies
from compshift.core.groups import GroupSpace


def wilson_interval(successes: Any, trials: Any, confidence: float = 0.95) -> tuple[FloatArray, FloatArray]:
    r"""Wilson's score interval, lower and upper ends; NaN where there was no trial.

    .. math:: \frac{\hat p + \frac{z^2}{2n} \pm z \sqrt{\frac{\hat p (1 - \hat p)}{n} + \frac{z^2}{4n^2}}}{1 + z^2/n}

    Unlike p̂ ± z·s.e. it stays within [0, 1] and does not shrink to a point at 0 or n successes.
    """
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    n = np.where(np.asarray(trials) > 0, trials, np.nan).astype(np.float64)
    share = np.asarray(successes) / n
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    lower, upper = np.clip(centre - half, 0.0, 1.0), np.clip(centre + half, 0.0, 1.0)
    return np.minimum(lower, share), np.maximum(upper, share)  # rounding leaves no share outside


BIN_ROWS = 25
"""A bin has at least so many rows, if there are as many."""

MOST_BINS = 15


class Calibration(NamedTuple):
    """How far confidence and accuracy differ, and by how much they would if all probabilities were right."""

    error: float  # ECE
    noise: float  # mean of ECE by chance
    noise_limit: float  # its quantile of 95 %
    overconfidence: float  # mean confidence less accuracy
    overconfidence_error: float  # its standard deviation by chance
    accuracy: float

    @property
    def off(self) -> bool:
        """Whether chance alone would hardly give such an error."""
        return self.error > self.noise_limit


def confidence_bins(confidence: FloatArray) -> IntArray:
    """Bin (n,) of each row: ``MOST_BINS`` or fewer of equal count, in order of confidence.

    Rows of the same confidence are in the same bin, whatever that does to the counts.
    """
    n = len(confidence)
    n_bins = min(MOST_BINS, max(1, n // BIN_ROWS))
    rounded = np.round(confidence, 12)
    ordered = np.sort(rounded)
    middle = (np.searchsorted(ordered, rounded) + np.searchsorted(ordered, rounded, side="right") - 1) // 2  # rank
    return np.asarray(middle * n_bins // n)


def expected_calibration_error(confidence: FloatArray, right: FloatArray, bins: IntArray) -> FloatArray:
    """ECE of confidences (n,), for each row of ``right`` (r, n), (r,)."""
    member = bins[:, None] == np.arange(bins.max() + 1)  # (n, b)
    return np.asarray(np.abs((right - confidence) @ member).sum(axis=1) / len(confidence))


def calibration(
    confidence: FloatArray, right: BoolArray, random: np.random.Generator, n_draws: int = 400
) -> Calibration:
    """Calibration of the confidences (n,) of predictions that are right or not (n,), against ``n_draws`` by chance."""
    bins = confidence_bins(confidence)
    error = float(expected_calibration_error(confidence, right[None].astype(np.float64), bins)[0])
    by_chance = np.empty(n_draws)
    for part in row_blocks(n_draws, len(confidence), cells=1 << 21):
        drawn = random.random((part.stop - part.start, len(confidence))) < confidence
        by_chance[part] = expected_calibration_error(confidence, drawn.astype(np.float64), bins)
    return Calibration(
        error=error,
        noise=float(by_chance.mean()),
        noise_limit=float(np.quantile(by_chance, 0.95)),
        overconfidence=float(confidence.mean() - right.mean()),
        overconfidence_error=math.sqrt(float((confidence * (1 - confidence)).sum())) / len(confidence),
        accuracy=float(right.mean()),
    )


def importance_accuracy(
    space: GroupSpace,
    groups: IntArray,
    energies: FloatArray,
    log_evidence: FloatArray,
    sample_weight: FloatArray,
    log_marginals: list[FloatArray],
) -> FloatArray:
    r"""Mean probability of the right targets on each of the groups (g, m), over training samples weighted to be it.

    .. math:: a(z) = \frac{\sum_x \omega_x w_x(z) \, \hat q(y_z | x)}{\sum_x \omega_x w_x(z)}, \qquad
        w_x(z) = \exp(-\langle \sigma(z), E(x) \rangle - c(x))

    The weights are those of B*, by which p(x) becomes the model's p(x|z). ``energies`` (n, D), ``log_evidence`` (n,)
    and ``log_marginals``, log q̂ of each target's values (n, d_i), are those of the training samples. It is the model's
    own opinion: right if the model is, and comparable between groups where it is not.
    """
    n = len(energies)
    log_sample = safe_log(sample_weight) - log_evidence  # (n,)
    result = np.empty(len(groups))
    for part in row_blocks(len(groups), n):
        codes = groups[part]
        log_weight = log_sample[:, None] - group_energies(energies, space, codes)  # (n, q)
        log_right = sum(marginal[:, codes[:, target]] for target, marginal in enumerate(log_marginals))
        result[part] = np.exp(logsumexp(log_weight + log_right, axis=0) - logsumexp(log_weight, axis=0))
    return result
