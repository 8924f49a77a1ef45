"""Confidence interval of a proportion."""

from statistics import NormalDist
from typing import Any

import numpy as np

from compshift.core.arrays import FloatArray


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
