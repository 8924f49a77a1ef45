"""Which groups unlabelled inputs cannot tell apart."""

from __future__ import annotations

import numpy as np

from compshift.core.arrays import FloatArray, IntArray
from compshift.core.logspace import log_softmax

PAIR_CELLS = 1 << 27
"""About so many differences of log ratios are looked at in search of groups that cannot be told apart."""

FEWEST_PAIR_ROWS = 50
"""At least so many rows are looked at for it, however many groups there are."""


def told_apart(log_ratio: FloatArray, sample_weight: FloatArray, log_prior: FloatArray) -> FloatArray:
    r"""Share of the information on the split of two groups that inputs keep, (g, g): 0 if they look the same, 1 if not.

    .. math:: \frac{\sum_x t_x \tanh^2 \tfrac12 (l(x, z) - l(x, z'))}{\sum_x t_x}, \qquad
        t_x = \omega_x (r(x, z) + r(x, z'))

    It is the observed information on the split of a half and half mixture by that of known groups, over the rows that
    either group is responsible for. With many groups, evenly spaced rows stand for all.
    """
    n_rows, n_groups = log_ratio.shape
    step = max(1, n_rows // max(FEWEST_PAIR_ROWS, PAIR_CELLS // n_groups**2))
    ratio, weight = log_ratio[::step], sample_weight[::step]
    responsibility = weight[:, None] * np.exp(log_softmax(ratio + log_prior))  # (n, g)
    result = np.ones((n_groups, n_groups))
    for group in range(n_groups - 1):
        others = slice(group + 1, n_groups)
        with np.errstate(invalid="ignore"):
            difference = ratio[:, others] - ratio[:, group, None]
        both = np.nan_to_num(np.tanh(difference / 2) ** 2, nan=0.0)  # −inf less −inf: rows of neither
        rows = responsibility[:, others] + responsibility[:, group, None]
        total = rows.sum(axis=0)
        share = np.where(total > 0, (rows * both).sum(axis=0) / np.where(total > 0, total, 1.0), 1.0)
        result[group, others] = result[others, group] = share
    return result


def confused_pairs(apart: FloatArray, share: float) -> IntArray:
    """Pairs of groups (q, 2) that keep less than ``share`` of the information, the worst first."""
    left, right = np.nonzero(np.triu(apart < share, k=1))
    order = np.argsort(apart[left, right], kind="stable")
    return np.stack([left[order], right[order]], axis=1)
