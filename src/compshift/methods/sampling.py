"""Ranges of hyper-parameters and sampling of rows: the parts of methods that benchmarks need without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from compshift.core.arrays import FloatArray, IntArray


@dataclass(frozen=True)
class LogUniform:
    """Log-uniform distribution: ``base`` to a power that is uniform between ``low`` and ``high``.

    Parameters
    ----------
    low, high : float
        Range of the power.
    base : float, default=10.0
        Base of the power.
    whole : bool, default=False
        Whether to round down to a whole number, at least 1.
    steps : int, optional
        For a hyper-parameter that is a step number: the run length that ``low`` and ``high`` refer to. Draws for a run
        of another length are scaled.

    Examples
    --------
    >>> LogUniform(5, 7, base=2, whole=True).draw(np.random.default_rng(0))
    77
    """

    low: float
    high: float
    base: float = 10.0
    whole: bool = False
    steps: int | None = None

    def draw(self, rng: np.random.Generator, steps: int | None = None) -> float | int:
        """Draw a value, scaled to a run of ``steps`` steps if the range depends on the length of a run."""
        value = float(self.base ** rng.uniform(self.low, self.high))
        if self.steps is not None and steps is not None:
            value *= steps / self.steps
        return max(1, int(value)) if self.whole else value


@dataclass(frozen=True, eq=False)
class Sampling:
    """How often a row of each seen group is drawn, relative to others, and how many of its rows are used."""

    weight: FloatArray | None = None  # (k,) per row of the group; None if all rows are equally likely
    limit: int | None = None  # largest number of rows of a group

    @classmethod
    def balanced(cls, counts: FloatArray) -> Sampling:
        """Draw every group equally often, given its number of rows, (k,)."""
        return cls(weight=1 / counts)

    @classmethod
    def subsampled(cls, counts: FloatArray) -> Sampling:
        """Use as many rows of every group as the smallest one has."""
        return cls(limit=int(counts.min()))

    def rows(self, group: IntArray, rng: np.random.Generator) -> IntArray:
        """Return the rows that are used, in order: all of them, or ``limit`` random ones of each group in (n,)."""
        if self.limit is None:
            return np.arange(len(group))
        order = rng.permutation(len(group))
        return np.sort(np.concatenate([order[group[order] == g][: self.limit] for g in np.unique(group)]))
