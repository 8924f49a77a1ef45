r"""Weighted conformal p-values (Tibshirani, Barber, Candès, Ramdas, 2019), from scores with importance weights.

If the weights w turn the distribution of the known samples into that of a new sample x, which has the score s(x), then

.. math:: p(x) = \frac{\sum_i w_i \, 1[s_i \ge s(x)] + w(x)}{\sum_i w_i + w(x)}

is at most ε with a probability of at most ε. The new sample's own weight w(x) is included, so a sample that is unlike
all known ones has a large weight and therefore a large p-value. The functions take the logarithms of the weights.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from compshift.core.arrays import FloatArray, IntArray


class Ranks(NamedTuple):
    """Order of the known scores in each column, and the place of the new scores in it."""

    order: IntArray  # (r, c) row numbers of the known scores, by ascending score
    n_below: IntArray  # (n, c) number of known scores below each new score

    @classmethod
    def of(cls, known: FloatArray, new: FloatArray) -> Ranks:
        """Return the ranks of new scores (n, c) among known scores (r, c)."""
        order = np.argsort(known, axis=0, kind="stable")
        columns = [np.searchsorted(one[rows], other) for one, rows, other in zip(known.T, order.T, new.T, strict=True)]
        return cls(order, np.stack(columns, axis=1))

    def p_values(self, column: int, log_weight: FloatArray, new_log_weight: FloatArray) -> FloatArray:
        """Return the p-value (n,) of every new score of one column.

        ``log_weight`` (r,) belongs to the known samples and may hold −inf; ``new_log_weight`` is (n,) or a number.
        """
        largest = float(np.max(log_weight))
        ascending = np.exp(log_weight[self.order[:, column]] - largest)  # (r,)
        at_least = np.append(np.cumsum(ascending[::-1])[::-1], 0.0)  # (r + 1,) weight from each score upwards
        shift = np.maximum(new_log_weight, largest)
        own, others = np.exp(new_log_weight - shift), np.exp(largest - shift)
        return np.asarray((others * at_least[self.n_below[:, column]] + own) / (others * at_least[0] + own))


def effective_sample_size(log_weight: FloatArray) -> float:
    r"""Return the effective sample size of weights whose logarithms (r,) may hold −inf; 0 if all of them are −inf.

    .. math:: \frac{(\sum_i w_i)^2}{\sum_i w_i^2}
    """
    largest = np.max(log_weight)
    if largest == -np.inf:
        return 0.0
    weight = np.exp(log_weight - largest)
    return float(weight.sum() ** 2 / (weight @ weight))
