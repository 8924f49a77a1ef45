"""Methods that add a penalty, weakly at first and then, from one step on, with its full weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from compshift._checks import check_count, check_positive
from compshift.methods.method import Method
from compshift.methods.ranges import LogUniform


@dataclass(frozen=True)
class Penalised(Method):
    """Weight 1 before step ``anneal``, ``penalty`` from then on; the optimiser starts afresh at the switch."""

    penalty: float = 100.0
    anneal: int = 500

    ranges: ClassVar[Mapping[str, LogUniform]] = {
        "penalty": LogUniform(-1, 5),
        "anneal": LogUniform(0, 4, whole=True, steps=10_000),
    }

    def __post_init__(self) -> None:
        check_positive(self.penalty, "penalty", allow_zero=True)
        check_count(self.anneal, "anneal")

    def penalty_weight(self, step: int) -> float:
        """The weight in this step."""
        return self.penalty if step >= self.anneal else 1.0

    def settles_at(self) -> int:
        """The switch."""
        return self.anneal

    def resets_optimiser(self, step: int) -> bool:
        """At the switch, since moments were gathered on another loss."""
        return step == self.anneal
