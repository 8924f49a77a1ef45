"""From where hyper-parameters are drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class LogUniform:
    """``base`` to a power that is uniform between ``low`` and ``high``.

    ``steps`` says that what is drawn is a point in a training run of so many steps; it moves with a run's length.

    >>> LogUniform(5, 7, base=2, whole=True).draw(np.random.default_rng(0))
    77
    """

    low: float
    high: float
    base: float = 10.0
    whole: bool = False
    steps: int | None = None

    def draw(self, rng: np.random.Generator, steps: int | None = None) -> float | int:
        """A number, for a run of ``steps`` steps if those matter."""
        value = float(self.base ** rng.uniform(self.low, self.high))
        if self.steps is not None and steps is not None:
            value *= steps / self.steps
        return max(1, int(value)) if self.whole else value
