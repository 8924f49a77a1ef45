r"""The strength of the ridge: a typical value from the shape of the data, and the choice among several.

A ridge ``alpha`` is a Gaussian prior on the weights. For standardised features, whose mean square is 1, it gives every
energy of a typical sample the prior variance :math:`p / (n\,\alpha)`, for p features and n samples. The typical ridge
sets this variance to 2,

.. math:: \alpha_0 = \min\left(\frac{p}{2n},\; 0.3\right)

Accuracy on seen groups cannot choose the ridge, because seen groups prefer a weaker one than unseen groups need. Groups
that were held out can, but there are few of them, or none. So a choice minimises

.. math::

    \left(\frac{\bar a_{\max} - \bar a(\alpha)}{\mathrm{SE}}\right)^2
    + \left(\log_{10} \frac{\alpha}{\alpha_0}\right)^2

where :math:`\bar a` is the mean accuracy on held-out groups and SE the standard error of its difference from the best.
With many held-out groups the first term decides. Without any, it is left out, and the choice is :math:`\alpha_0`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from compshift.core.arrays import FloatArray

ENERGY_VARIANCE = 2.0
"""Prior variance of an energy at the typical alpha; on real data, values from 1.5 to 3 are about equally good."""

MAX_TYPICAL_ALPHA = 0.3
"""Largest typical alpha: a stronger ridge costs seen groups more than unseen groups gain."""

DECADES = np.arange(-3, 4) / 2
"""Default alphas to choose from, as base-10 logarithms of their ratios to the typical alpha."""

MAX_DECADES = 5.0
"""Largest distance from the typical alpha, in powers of ten, to which a search extends the default alphas."""

GROUP_SPREAD = 0.2
"""Standard deviation over groups of a difference in accuracy that is assumed beforehand; it counts as much as one
group. So the standard error is not close to 0 if two or three groups happen to agree."""


def typical_alpha(n_features: int, sample_weight: FloatArray) -> float:
    """Return the typical alpha, to two digits, for samples with weights (n,), which count as (Σω)² / Σω² samples."""
    relative = sample_weight / sample_weight.max()
    n_samples = float(relative.sum() ** 2 / np.square(relative).sum())
    return _rounded(min(n_features / (ENERGY_VARIANCE * n_samples), MAX_TYPICAL_ALPHA))


def _rounded(alpha: float) -> float:
    """Return alpha to two significant digits, which are easier to read and to pass on."""
    return float(f"{alpha:.1e}")


def default_alphas(typical: float) -> tuple[float, ...]:
    """Return the alphas to choose from around a typical alpha, ascending."""
    return tuple(_rounded(typical * 10.0**decades) for decades in DECADES)


def further_alphas(alphas: Sequence[float], best: float, typical: float) -> tuple[float, ...]:
    """Return two more alphas beyond the end of ``alphas`` at which the best one lies; none if it lies inside.

    No alpha is further than ``MAX_DECADES`` from the typical one.
    """
    step = math.sqrt(10.0)
    if best == min(alphas):
        found = (best / step**2, best / step)
    elif best == max(alphas):
        found = (best * step, best * step**2)
    else:
        return ()
    limit = MAX_DECADES + 0.1  # of rounded alphas
    return tuple(_rounded(alpha) for alpha in found if abs(math.log10(alpha / typical)) <= limit)


def ridge_criterion(
    accuracy: FloatArray, score: FloatArray, alphas: FloatArray, typical: float, spread: float = GROUP_SPREAD
) -> FloatArray:
    """Return the criterion (s,) that the choice among alphas (s,) minimises; the module's docstring defines it.

    ``accuracy`` (s, h) is the accuracy on each held-out group, or another score on each fold. ``score`` (s,) summarises
    each row, for example by its mean. ``spread`` is explained at ``GROUP_SPREAD``.
    """
    distance = np.square(np.log10(alphas / typical))
    n = accuracy.shape[1]
    if not n:
        return np.asarray(distance)
    best = int(np.argmax(score))
    difference = accuracy[best] - accuracy  # (s, h), paired
    variance = (difference.var(axis=1) * n + spread**2) / (n + 1) / n
    return np.asarray(np.square(score[best] - score) / variance + distance)
