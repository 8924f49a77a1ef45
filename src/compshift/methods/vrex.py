"""Risk extrapolation (Krueger et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from compshift.methods.batch import Batch
from compshift.methods.erm import row_losses
from compshift.methods.method import State
from compshift.methods.penalty import Penalised
from compshift.nn.classifier import BackboneClassifier


@dataclass(frozen=True)
class VREx(Penalised):
    """Mean risk over environments, the groups, plus the weighted population variance of their risks."""

    name = "vrex"
    summary = "mean and variance of the risks of groups"

    def loss(self, model: BackboneClassifier, batch: Batch, state: State, step: int) -> tuple[Tensor, State]:
        """Mean and variance over the groups of the batch."""
        risks, count = batch.means_by(row_losses(model, batch), batch.group, batch.task.n_groups)
        present = risks[count > 0]
        variance = ((present - present.mean()) ** 2).mean()
        return present.mean() + self.penalty_weight(step) * variance, state
