"""Cross-entropy of logits that are shifted, in training only, by log frequencies of class and attribute.

LC is logit correction with known attributes (Liu et al., 2022), SLA supervised logit adjustment (Tsirigotis et al.,
2024).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from compshift._checks import MAX_FACTOR, check_positive
from compshift._errors import check_name
from compshift.core.arrays import FloatArray
from compshift.core.candidates import adjustment_offset, correction_offset
from compshift.methods.base import Batch, Method, State, Task
from compshift.nn.networks import BackboneClassifier

FREQUENCIES = ("train", "batch")
"""Choices of ``frequencies``: of class and attribute as expected under the sampler, or as counted in each batch."""


class LogitOffset(Method):
    """Base class of methods that add an offset per class and attribute combination to the logits.

    With ``frequencies="batch"`` the frequencies are those of each batch, otherwise those expected under the sampler.
    """

    frequencies: str

    @abstractmethod
    def offset(self, table: FloatArray) -> FloatArray:
        """Offset (c, a) of each class and attribute combination, from their numbers of rows (c, a)."""

    def state(self, task: Task) -> State:
        """Make the offsets (a, c) from the frequencies under the sampler; unused with ``frequencies="batch"``."""
        return {"offset": torch.as_tensor(self.offset(task.class_by_attribute()).T.astype(np.float32))}

    def loss(self, model: BackboneClassifier, batch: Batch, state: State, step: int) -> tuple[Tensor, State]:
        """Mean cross-entropy of the shifted logits over the rows."""
        offset = state["offset"]
        if self.frequencies == "batch":
            task = batch.task
            index = batch.classes * task.n_attributes + batch.attributes
            _, count = batch.means_by(
                torch.ones_like(index, dtype=torch.float64), index, task.n_classes * task.n_attributes
            )
            table = count.cpu().numpy().reshape(task.n_classes, task.n_attributes)
            offset = torch.as_tensor(self.offset(table).T.astype(np.float32), device=offset.device)
        logits = model(batch.inputs).float() + offset[batch.attributes]  # (b, c)
        return batch.mean(cross_entropy(logits, batch.classes, reduction="none")), state


@dataclass(frozen=True)
class LC(LogitOffset):
    r"""Logit correction: cross-entropy of ``logits + log(p̂(y, a) + ε)``.

    Since ``log p̂(a)`` is the same for every class, it cancels in the softmax. LC therefore equals SLA with τ = 1,
    except for the smoothing: LC adds ε to the frequencies, SLA adds ``smoothing`` to the counts.
    """

    epsilon: float = 1e-8
    frequencies: str = "train"

    name = "lc"
    summary = "logits corrected by log p(y, a)"
    later = ("frequencies",)

    def __post_init__(self) -> None:
        check_positive(self.epsilon, "epsilon", allow_zero=True)
        check_name("frequencies", self.frequencies, FREQUENCIES)

    def offset(self, table: FloatArray) -> FloatArray:
        """Return log(p̂(y, a) + ε) of each class y and attribute combination a, (c, a)."""
        return correction_offset(table, self.epsilon)


@dataclass(frozen=True)
class SLA(LogitOffset):
    """Supervised logit adjustment: cross-entropy of ``logits + τ · log(p̂(y | a) + ε)``.

    ``smoothing`` is added to the count of every class and attribute combination before p̂ is computed.
    """

    tau: float = 1.0
    smoothing: float = 1.0
    epsilon: float = 0.0
    frequencies: str = "train"

    name = "sla"
    summary = "logits adjusted by log p(y | a)"
    later = ("epsilon", "frequencies")

    def __post_init__(self) -> None:
        check_positive(self.tau, "tau", allow_zero=True, most=MAX_FACTOR)
        check_positive(self.smoothing, "smoothing", allow_zero=True, most=MAX_FACTOR)
        check_positive(self.epsilon, "epsilon", allow_zero=True)
        check_name("frequencies", self.frequencies, FREQUENCIES)

    def offset(self, table: FloatArray) -> FloatArray:
        """Return τ · log(p̂(y | a) + ε) of each class y and attribute combination a, (c, a), from smoothed counts."""
        return adjustment_offset(table, self.tau, self.smoothing, self.epsilon)
