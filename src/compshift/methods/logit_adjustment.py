"""Cross-entropy of logits that are shifted, in training only, by how class and attribute occur together.

Logit correction with known attributes (Liu et al., 2022).

Supervised logit adjustment (Tsirigotis et al., 2024).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from compshift._checks import MAX_FACTOR, check_positive
from compshift.core.arrays import FloatArray
from compshift.core.candidates import adjustment_offset, correction_offset
from compshift.methods.base import Batch, Method, State, Task
from compshift.nn.networks import BackboneClassifier


class LogitOffset(Method):
    """Logits plus an offset of class and attribute."""

    @abstractmethod
    def offset(self, task: Task) -> FloatArray:
        """Offset (c, a) of each class, given the attribute combination."""

    def state(self, task: Task) -> State:
        """The offsets, (a, c)."""
        return {"offset": torch.as_tensor(self.offset(task).T.astype(np.float32))}

    def loss(self, model: BackboneClassifier, batch: Batch, state: State, step: int) -> tuple[Tensor, State]:
        """Mean over rows."""
        logits = model(batch.inputs).float() + state["offset"][batch.attributes]  # (b, c)
        return batch.mean(cross_entropy(logits, batch.classes, reduction="none")), state


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
