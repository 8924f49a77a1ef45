"""Accuracy and how far to trust it: intervals of proportions, calibration, and the accuracy a model itself expects."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from compshift.core.arrays import BoolArray, FloatArray, IntArray, logsumexp, row_blocks, safe_log
from compshift.core.energy import group_energies
from compshift.core.groups import GroupSpace

MIN_BIN_ROWS = 25
"""Smallest number of samples per calibration bin, unless there are fewer samples in all."""

MAX_BINS = 15
"""Largest number of calibration bins."""

DRAW_CELLS = 1 << 21
"""Target size of a block of simulated outcomes, in array elements."""


def wilson_interval(successes: Any, trials: Any, confidence: float) -> tuple[FloatArray, FloatArray]:
    r"""Return the lower and upper ends of Wilson's score interval; NaN where there was no trial.

    .. math:: \frac{\hat p + \frac{z^2}{2n} \pm z \sqrt{\frac{\hat p (1 - \hat p)}{n} + \frac{z^2}{4n^2}}}{1 + z^2/n}

    Unlike p̂ ± z·s.e. it stays within [0, 1] and does not shrink to a point at 0 or n successes.
    """
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    n = np.where(np.asarray(trials) > 0, trials, np.nan).astype(np.float64)
    share = np.asarray(successes) / n
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    lower, upper = np.clip(centre - half, 0.0, 1.0), np.clip(centre + half, 0.0, 1.0)
    return np.minimum(lower, share), np.maximum(upper, share)  # rounding must not exclude the share itself


class Calibration(NamedTuple):
    """Calibration error of confidences, and its distribution if all probabilities were right."""

    error: float  # expected calibration error (ECE)
    noise: float  # mean ECE by chance
    noise_limit: float  # 95 % quantile of the ECE by chance
    overconfidence: float  # mean confidence less accuracy
    overconfidence_error: float  # standard deviation of the overconfidence by chance
    accuracy: float

    @property
    def off(self) -> bool:
        """Whether the error is beyond the 95 % quantile by chance."""
        return self.error > self.noise_limit


def calibration(
    confidence: FloatArray, right: BoolArray, random: np.random.Generator, n_draws: int = 400
) -> Calibration:
    """Return the calibration of confidences (n,) of predictions that are right or not (n,).

    The ECE is above 0 even if every probability is right, because the accuracies of finite bins scatter. Its
    distribution by chance comes from ``n_draws`` simulations in which each sample is right with probability equal to
    its confidence.
    """
    bins = confidence_bins(confidence)
    error = float(expected_calibration_error(confidence, right[None].astype(np.float64), bins)[0])
    by_chance = np.empty(n_draws)
    for part in row_blocks(n_draws, len(confidence), cells=DRAW_CELLS):
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


def confidence_bins(confidence: FloatArray) -> IntArray:
    """Return the bin (n,) of each sample: at most ``MAX_BINS`` bins of equal count, in ascending order of confidence.

    Samples of equal confidence share a bin, even if the counts then differ.
    """
    n = len(confidence)
    n_bins = min(MAX_BINS, max(1, n // MIN_BIN_ROWS))
    rounded = np.round(confidence, 12)
    ordered = np.sort(rounded)
    middle = (np.searchsorted(ordered, rounded) + np.searchsorted(ordered, rounded, side="right") - 1) // 2  # rank
    return np.asarray(middle * n_bins // n)


def expected_calibration_error(confidence: FloatArray, right: FloatArray, bins: IntArray) -> FloatArray:
    r"""Return the ECE (r,) of confidences (n,) for each row of outcomes ``right`` (r, n), given the bins (n,).

    .. math:: \mathrm{ECE} = \sum_b \frac{n_b}{n} \left|\text{accuracy}_b - \text{mean confidence}_b\right|
    """
    member = bins[:, None] == np.arange(bins.max() + 1)  # (n, b)
    return np.asarray(np.abs((right - confidence) @ member).sum(axis=1) / len(confidence))


def importance_accuracy(
    space: GroupSpace,
    groups: IntArray,
    energies: FloatArray,
    log_evidence: FloatArray,
    sample_weight: FloatArray,
    log_marginals: list[FloatArray],
) -> FloatArray:
    r"""Return the accuracy (g,) that a model expects on each group: the mean probability of the group's own targets.

    .. math:: a(z) = \frac{\sum_x \omega_x w_x(z) \, \hat q(y_z | x)}{\sum_x \omega_x w_x(z)}, \qquad
        w_x(z) = \exp(-\langle \sigma(z), E(x) \rangle - c(x))

    The importance weights w are those of B*, which turn p(x) into the model's p(x|z). ``energies`` (n, D),
    ``log_evidence`` (n,) and ``log_marginals``, log q̂ of each target's values (n, d_i), are those of the training
    samples; ``groups`` is (g, m). The result is right if the model is, and comparable between groups if it is not.
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
