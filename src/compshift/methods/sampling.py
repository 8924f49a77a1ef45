"""Distributions of hyper-parameters, and how training rows are drawn. Imports no PyTorch."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from compshift._errors import InputError
from compshift.core.arrays import FloatArray, IntArray

RANGE = re.compile(r"(int )?([+-]?\d+(?:\.\d+)?)\^U\(([+-]?\d+(?:\.\d+)?), ?([+-]?\d+(?:\.\d+)?)\)(?: of (\d+) steps)?")
"""Notation of a ``LogUniform``, such as ``int 2^U(5, 7)`` or ``int 10^U(0, 4) of 10000 steps``."""


@dataclass(frozen=True)
class LogUniform:
    """Log-uniform distribution: ``base`` to a power that is uniform between ``low`` and ``high``.

    Parameters
    ----------
    low, high : float
        Bounds of the exponent.
    base : float, default=10.0
        Number that is raised to the exponent.
    whole : bool, default=False
        Whether to round down to an integer, but not below 1.
    steps : int, optional
        For a hyper-parameter that is a step number: the length of a run, in steps, for which ``low`` and ``high`` hold.
        Values for a run of another length are scaled in proportion.

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

    @classmethod
    def parse(cls, text: str) -> LogUniform:
        """Read the notation that ``str`` gives, such as ``10^U(-5, -3)``."""
        found = RANGE.fullmatch(text.strip())
        if found is None or float(found[2]) <= 0 or float(found[3]) > float(found[4]):
            raise InputError(f"{text!r} is not a range: write one such as 10^U(-5, -3) or int 2^U(5, 7)")
        whole, base, low, high, steps = found.groups()
        number = {text: float(text) if "." in text else int(text) for text in (base, low, high)}
        power = 10.0 if number[base] == 10 else number[base]
        return cls(number[low], number[high], power, whole is not None, None if steps is None else int(steps))

    def __str__(self) -> str:
        scale = "" if self.steps is None else f" of {self.steps} steps"
        return f"{'int ' if self.whole else ''}{self.base:g}^U({self.low:g}, {self.high:g}){scale}"

    @property
    def middle(self) -> float | int:
        """Value at the middle of the exponent's range."""
        return self.middle_for(None)

    def middle_for(self, steps: int | None) -> float | int:
        """Return ``middle``; if ``self.steps`` is set, scaled to a run of ``steps`` steps."""
        return self._value((self.low + self.high) / 2, steps)

    def draw(self, rng: np.random.Generator, steps: int | None = None) -> float | int:
        """Draw a value; if ``self.steps`` is set, scale it to a run of ``steps`` steps."""
        return self._value(rng.uniform(self.low, self.high), steps)

    def _value(self, exponent: float, steps: int | None) -> float | int:
        """Return the value at an exponent: scaled to a run of ``steps`` steps, and rounded down if ``whole``."""
        value = float(self.base**exponent)
        if self.steps is not None and steps is not None:
            value *= steps / self.steps
        return max(1, int(value)) if self.whole else value


@dataclass(frozen=True)
class Fixed:
    """A hyper-parameter that is not drawn but has the same value in every draw."""

    value: float | int | str

    def __str__(self) -> str:
        return str(self.value)

    @property
    def middle(self) -> float | int | str:
        """The fixed value."""
        return self.value

    def middle_for(self, steps: int | None) -> float | int | str:
        """Return the value; it does not depend on the length of a run."""
        return self.value

    def draw(self, rng: np.random.Generator, steps: int | None = None) -> float | int | str:
        """Return the value; the generator is not used."""
        return self.value


@dataclass(frozen=True, eq=False)
class Sampling:
    """How training rows are drawn: the relative frequency of a row by its group, and a limit of rows per group."""

    weight: FloatArray | None = None  # (k,) of a row of each group; None: all rows are equally likely
    limit: int | None = None  # maximum number of rows per group; None: no limit

    @classmethod
    def balanced(cls, counts: FloatArray) -> Sampling:
        """Draw all groups equally often; ``counts`` (k,) are their numbers of rows."""
        return cls(weight=1 / counts)

    @classmethod
    def subsampled(cls, counts: FloatArray) -> Sampling:
        """Use as many rows of every group as the smallest group has; ``counts`` (k,) are their numbers of rows."""
        return cls(limit=int(counts.min()))

    def rows(self, group: IntArray, rng: np.random.Generator) -> IntArray:
        """Return the positions of the rows to use, ascending; ``group`` (n,) is the group of each row.

        With a limit, at most ``limit`` random rows of each group are used, otherwise all rows.
        """
        if self.limit is None:
            return np.arange(len(group))
        order = rng.permutation(len(group))
        return np.sort(np.concatenate([order[group[order] == g][: self.limit] for g in np.unique(group)]))
