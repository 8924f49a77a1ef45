"""How far a group is from what training has: the variance of its extrapolation."""

import numpy as np

from compshift.core.affine_weights import least_squares_weights
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.hull import AffineHull


def extrapolation_leverage(hull: AffineHull, codes: IntArray) -> FloatArray:
    r"""Variance at each group (q, m) of an additive function that is known with variance 1 at each seen group, (q,).

    .. math:: h(z') = \min \Big\{ \sum_z \alpha_z^2 : \sigma(z') = \sum_z \alpha_z \sigma(z) \Big\}

    It is at most 1 for seen groups and grows with the length of the way from the seen groups to an unseen one; where
    several ways lead there it falls, as resistances in parallel do. Groups outside the hull are infinitely far.
    """
    inside = hull.contains(codes)
    result = np.full(len(codes), np.inf)
    weights = least_squares_weights(hull, codes[inside], np.ones(len(hull.observed)))
    result[inside] = (weights**2).sum(axis=1)
    return result
