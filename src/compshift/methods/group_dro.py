"""Group distributionally robust optimisation (Sagawa et al., 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from compshift._checks import check_positive
from compshift.methods.base import Batch, Method, State, Task
from compshift.methods.erm import row_losses
from compshift.methods.sampling import LogUniform
from compshift.nn.networks import BackboneClassifier


@dataclass(frozen=True)
class GroupDRO(Method):
    r"""Group DRO: weighted mean of the training groups' losses; the weight of a group grows with its loss.

    .. math:: q_g \propto q_g \exp(\eta \bar L_g) \text{ for the groups of the batch}, \qquad L = \sum_g q_g \bar L_g

    Only training groups have a weight: weight on an unseen group would shrink the loss without training anything.
    """

    eta: float = 0.01

    ranges: ClassVar[Mapping[str, LogUniform]] = {"eta": LogUniform(-3, -1)}

    name = "groupdro"
    summary = "group losses with weights by exponentiated-gradient ascent"

    def __post_init__(self) -> None:
        check_positive(self.eta, "eta", allow_zero=True)

    def state(self, task: Task) -> State:
        """Make the initial group weights, which are all equal."""
        return {"group_weight": torch.full((task.n_groups,), 1 / task.n_groups)}

    def loss(self, model: BackboneClassifier, batch: Batch, state: State, step: int) -> tuple[Tensor, State]:
        """Weighted sum of the groups' mean losses."""
        means, _ = batch.means_by(row_losses(model, batch), batch.group, batch.task.n_groups)
        # A group without rows in the batch has mean 0, so its weight is multiplied by 1.
        log_weight = state["group_weight"].log() + self.eta * means.detach()
        weight = log_weight.softmax(dim=0)
        return (weight * means).sum(), {"group_weight": weight}
