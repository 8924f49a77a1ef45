"""Which rows a step's batch has: a function of the seed and the step alone, so that a run can go on from any step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from compshift.core.arrays import FloatArray, IntArray
from compshift.methods.method import Sampling

SHUFFLE, DRAW, CUT = range(3)
"""What a generator is for; each has a stream of its own."""


@dataclass(frozen=True, eq=False)
class Sampler:
    """Batches of training rows: in shuffled passes over all rows or, with weights, drawn with replacement."""

    rows: IntArray  # (n,)
    row_weight: FloatArray | None  # (n,) relative frequency
    batch_size: int
    seed: int

    @classmethod
    def of(cls, group: IntArray, sampling: Sampling, batch_size: int, seed: int) -> Sampler:
        """A sampler of rows whose groups are ``group`` (n,)."""
        rows = np.arange(len(group))
        if sampling.limit is not None:
            rng = np.random.default_rng([seed, CUT])
            order = rng.permutation(len(group))
            rows = np.sort(np.concatenate([order[group[order] == g][: sampling.limit] for g in np.unique(group)]))
        weight = None if sampling.weight is None else sampling.weight[group[rows]]
        return cls(rows, weight, batch_size, seed)

    def batch(self, step: int) -> IntArray:
        """Rows of the whole batch of a step."""
        if self.row_weight is not None:
            draw = np.random.default_rng([self.seed, DRAW, step]).random(self.batch_size)
            return self.rows[np.searchsorted(self._cumulative, draw, side="right")]
        n = len(self.rows)
        if self.batch_size == n:
            return self.rows[_shuffled(n, self.seed, 0)]  # all of them, so that the loss is one function
        parts, position, end = [], step * self.batch_size, (step + 1) * self.batch_size
        while position < end:
            epoch, first = divmod(position, n)
            parts.append(_shuffled(n, self.seed, epoch)[first : first + end - position])
            position += len(parts[-1])
        chosen: IntArray = self.rows[np.concatenate(parts)]
        return chosen

    def group_weight(self, group: IntArray, n_groups: int) -> FloatArray:
        """How often each group is drawn, (k,), adding up to the number of training rows."""
        weight = np.bincount(group[self.rows], weights=self.row_weight, minlength=n_groups).astype(np.float64)
        return np.asarray(weight * len(group) / weight.sum())

    @cached_property
    def _cumulative(self) -> FloatArray:
        assert self.row_weight is not None
        total = np.cumsum(self.row_weight)
        return np.asarray(total[:-1] / total[-1])


@lru_cache(maxsize=4)
def _shuffled(n: int, seed: int, epoch: int) -> IntArray:
    return np.random.default_rng([seed, SHUFFLE, epoch]).permutation(n)
