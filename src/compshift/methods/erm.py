"""Empirical risk minimisation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import cross_entropy

from compshift.methods.base import Batch, Method, State
from compshift.nn.networks import BackboneClassifier


@dataclass(frozen=True)
class ERM(Method):
    """Empirical risk minimisation: the mean cross-entropy of the classes."""

    name = "erm"
    summary = "mean cross-entropy"

    def loss(self, model: BackboneClassifier, batch: Batch, state: State, step: int) -> tuple[Tensor, State]:
        """Mean cross-entropy over the rows."""
        return batch.mean(row_losses(model, batch)), state


def row_losses(model: BackboneClassifier, batch: Batch) -> Tensor:
    """Cross-entropy of each row, (b,)."""
    return cross_entropy(model(batch.inputs).float(), batch.classes, reduction="none")
