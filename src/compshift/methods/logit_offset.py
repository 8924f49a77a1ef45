"""Cross-entropy of logits that are shifted, in training only, by how class and attribute occur together."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from compshift.core.arrays import FloatArray
from compshift.methods.batch import Batch
from compshift.methods.method import Method, State
from compshift.methods.task import Task
from compshift.nn.classifier import BackboneClassifier


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
