"""Supervised logit adjustment (Tsirigotis et al., 2024)."""

from __future__ import annotations

from dataclasses import dataclass

from compshift._checks import MAX_FACTOR, check_positive
from compshift.core.arrays import FloatArray
from compshift.core.logit_offsets import adjustment_offset
from compshift.methods.logit_offset import LogitOffset
from compshift.methods.task import Task


@dataclass(frozen=True)
class SLA(LogitOffset):
    """Cross-entropy of ``logits + τ · log p̂(y | a)``, with ``smoothing`` added to every count."""

    tau: float = 1.0
    smoothing: float = 1.0

    name = "sla"
    summary = "logits adjusted by log p(y | a)"

    def __post_init__(self) -> None:
        check_positive(self.tau, "tau", allow_zero=True, most=MAX_FACTOR)
        check_positive(self.smoothing, "smoothing", allow_zero=True, most=MAX_FACTOR)

    def offset(self, task: Task) -> FloatArray:
        """From the frequencies in the whole of training."""
        return adjustment_offset(task.class_by_attribute(), self.tau, self.smoothing)
