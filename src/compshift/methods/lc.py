"""Logit correction with known attributes (Liu et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass

from compshift._checks import check_positive
from compshift.core.arrays import FloatArray
from compshift.core.logit_offsets import correction_offset
from compshift.methods.logit_offset import LogitOffset
from compshift.methods.task import Task


@dataclass(frozen=True)
class LC(LogitOffset):
    r"""Cross-entropy of ``logits + log(p̂(y, a) + ε)``.

    With the attribute known, ``log p̂(a)`` is the same for every class and cancels in the softmax: but for the
    treatment of groups that training lacks (ε here, added counts there) this is the same as sLA.
    """

    epsilon: float = 1e-8

    name = "lc"
    summary = "logits corrected by log p(y, a)"

    def __post_init__(self) -> None:
        check_positive(self.epsilon, "epsilon", allow_zero=True)

    def offset(self, task: Task) -> FloatArray:
        """From the frequencies in the whole of training."""
        return correction_offset(task.class_by_attribute(), self.epsilon)
