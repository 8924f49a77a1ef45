"""Sums in log space over columns that belong together."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from compshift.core.arrays import FloatArray, IntArray
from compshift.core.logspace import safe_log


class ColumnSets(NamedTuple):
    """Which of g columns belong to each of ``size`` sets."""

    order: IntArray  # (g,) the columns, set by set
    start: IntArray  # (q,) where each set that has columns begins among them
    present: IntArray  # (q,) which sets those are
    size: int

    @classmethod
    def of(cls, member: IntArray, size: int) -> ColumnSets:
        """From the set of each column, (g,)."""
        order = np.argsort(member, kind="stable")
        present, start = np.unique(member[order], return_index=True)
        return cls(order, start, present, size)

    def logsumexp(self, values: FloatArray) -> FloatArray:
        r"""Log-sum-exp over the columns (n, g) of every set, (n, size); −inf for a set without columns.

        .. math:: \text{out}_{js} = \log \sum_{z \in s} \exp(a_{jz})
        """
        ordered = values[:, self.order]  # (n, g), nobody else's
        largest = np.maximum.reduceat(ordered, self.start, axis=1)  # (n, q)
        shift = np.where(largest > -np.inf, largest, 0.0)
        ordered -= np.repeat(shift, np.diff(self.start, append=len(self.order)), axis=1)
        sums = np.add.reduceat(np.exp(ordered, out=ordered), self.start, axis=1)
        result = np.full((len(values), self.size), -np.inf)
        result[:, self.present] = safe_log(sums) + shift
        return result
