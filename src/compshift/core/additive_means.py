r"""Means that add up over the attributes, by least squares whose weights may differ by any factor.

The fitted means of a basis of seen groups determine all others: those of the groups that are left are Tθ. If the basis
is the heaviest there is, a group that is left depends on heavier ones alone (otherwise it could take the place of a
lighter one), and the normal equations

.. math:: (W_B + T^\top W_R T) \, (\theta - m_B) = T^\top W_R \, (m_R - T m_B)

are well conditioned whatever the weights, in units of 1/√W_B. A pseudo-inverse of weighted codes is not: what light
groups say is lost among the rounding of heavy ones.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from compshift.core.arrays import FloatArray, IntArray
from compshift.core.groups import GroupSpace
from compshift.core.span import Span


def additive_means(space: GroupSpace, groups: IntArray, weight: FloatArray, mean: FloatArray) -> FloatArray:
    r"""Part (D, p) of each attribute value in means that add up, by weighted least squares.

    .. math:: \min_M \sum_s f_s \, \| m_s - \sigma(s)^\top M \|^2

    Of all minimisers the smallest: codes are rank deficient, but the sums of groups inside the hull are determined.
    ``groups`` (k, m) are distinct, ``weight`` (k,) is above 0, ``mean`` (k, p). With one covariance for all groups this
    is maximum likelihood.
    """
    order = np.argsort(-weight, kind="stable")
    basis, rest = _split(space, groups[order])
    codes = space.one_hot(groups[order])  # (k, D)
    weight, mean = np.maximum(weight[order] / weight.max(), np.finfo(np.float64).tiny), mean[order]
    inverse = np.linalg.pinv(codes[basis])  # (D, r)
    combination = codes[rest] @ inverse  # (k − r, r) T
    combination[rest[:, None] < basis] = 0.0  # lighter ones have no part in it
    parts = np.zeros((space.width, mean.shape[1]))
    for _ in range(2):  # the second time for what rounding left over
        left = mean - codes @ parts
        parts += inverse @ _fitted(weight[basis], left[basis], weight[rest], left[rest], combination)
    return parts


def _split(space: GroupSpace, groups: IntArray) -> tuple[IntArray, IntArray]:
    """Positions of the first basis of the groups (k, m), and of those that are left."""
    basis = Span(space.width).add_all(groups + space.offsets, limit=space.width - len(space.names) + 1)
    rest = np.setdiff1d(np.arange(len(groups)), basis)
    return np.array(basis, dtype=np.int64), rest


def _fitted(
    weight: FloatArray, mean: FloatArray, rest_weight: FloatArray, rest_mean: FloatArray, combination: FloatArray
) -> FloatArray:
    """Fitted means of the basis, (r, p), from its own and those of the groups that are left."""
    root = np.sqrt(weight)[:, None]  # (r, 1)
    scaled = np.sqrt(rest_weight)[:, None] * combination / root.T  # (k − r, r), no larger than T
    missed = np.sqrt(rest_weight)[:, None] * (rest_mean - combination @ mean)  # (k − r, p)
    factor = cho_factor(np.eye(len(weight)) + scaled.T @ scaled, lower=True)
    return np.asarray(mean + cho_solve(factor, scaled.T @ missed) / root)
