"""Progress of a training run, reported to listeners. Imports no PyTorch, so that benchmarks without it can use this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from compshift.metrics import GroupReport


@dataclass(frozen=True)
class ValidationStep:
    """Result of one evaluation on the validation rows."""

    step: int
    loss: float  # mean over the steps since the previous evaluation
    learning_rate: float
    report: GroupReport | None  # None if there are no validation rows
    is_best: bool

    def record(self) -> dict[str, Any]:
        """Return the evaluation's record in the log, as JSON values."""
        content: dict[str, Any] = {"step": self.step, "loss": self.loss, "learning_rate": self.learning_rate}
        if self.report is not None:
            content |= {name: getattr(self.report, name) for name in ("average", "balanced", "worst")}
            content |= {"worst_group": list(self.report.worst_group), "best": self.is_best}
        return content

    def scalars(self) -> dict[str, float]:
        """Return the evaluation's numbers under the names by which experiment trackers know them."""
        numbers = {"train/loss": self.loss, "train/learning_rate": self.learning_rate}
        if self.report is not None:
            numbers |= {f"validation/{name}": getattr(self.report, name) for name in ("average", "balanced", "worst")}
        return numbers


class Listener:
    """Base class for objects that follow a run's progress; override any of its methods, which do nothing."""

    def started(self, step: int, steps: int) -> None:
        """Called when training starts or resumes at ``step`` of ``steps``."""

    def stepped(self, step: int, loss: float) -> None:
        """Called after every step with its loss."""

    def evaluated(self, evaluation: ValidationStep) -> None:
        """Called after every evaluation."""
