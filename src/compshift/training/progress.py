"""What a run tells while it goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from compshift.metrics import GroupReport


@dataclass(frozen=True)
class ValidationStep:
    """Validation after a number of steps."""

    step: int
    loss: float  # mean over the steps since the last evaluation
    learning_rate: float
    report: GroupReport | None  # None without validation rows
    is_best: bool

    def record(self) -> dict[str, Any]:
        """For the log."""
        content: dict[str, Any] = {"step": self.step, "loss": self.loss, "learning_rate": self.learning_rate}
        if self.report is not None:
            content |= {name: getattr(self.report, name) for name in ("average", "balanced", "worst")}
            content |= {"worst_group": list(self.report.worst_group), "best": self.is_best}
        return content


class Listener:
    """Hears of a run's progress, and does nothing about it unless a subclass does."""

    def started(self, step: int, steps: int) -> None:
        """Training goes on from ``step``."""

    def stepped(self, step: int, loss: float) -> None:
        """A step was made."""

    def evaluated(self, evaluation: ValidationStep) -> None:
        """Validation was looked at."""
