r"""Whether probabilities can be believed: expected calibration error, with what chance alone would give.

Rows are sorted by confidence and cut into bins of equal count, and

.. math:: \mathrm{ECE} = \sum_b \frac{n_b}{n} \left|\text{accuracy}_b - \text{mean confidence}_b\right|

It is above 0 even if every probability is right, because accuracies of finite bins scatter. So it comes with its
distribution under that assumption: a row is right with a chance of its confidence, and the error is computed again.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from compshift.core.arrays import BoolArray, FloatArray, IntArray, row_blocks

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
