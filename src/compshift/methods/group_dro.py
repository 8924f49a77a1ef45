"""Group distributionally robust optimisation (Sagawa et al., 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from compshift._checks import check_positive
from compshift._errors import check_name
from compshift.methods.base import Batch, Method, State, Task
from compshift.methods.erm import row_losses
from compshift.methods.sampling import LogUniform
from compshift.nn.networks import BackboneClassifier


@dataclass(frozen=True)
class GroupDRO(Method):
    r"""Group DRO: weighted mean of the training groups' losses; the weight of a group grows with its loss.

    .. math:: q_g \propto q_g \exp(\eta \bar L_g) \text{ for the groups of the batch}, \qquad L = \sum_g q_g \bar L_g

    By default only training groups have a weight q_g, because the weight of an unseen group would only scale down the
    loss. With ``groups="all"`` unseen groups have a weight too, as in the code of the paper's authors.
    """

    eta: float = 0.01
    groups: str = "seen"

    ranges: ClassVar[Mapping[str, LogUniform]] = {"eta": LogUniform(-3, -1)}

    name = "groupdro"
    summary = "group losses with weights by exponentiated-gradient ascent"
    later = ("groups",)

    def __post_init__(self) -> None:
        check_positive(self.eta, "eta", allow_zero=True)
        check_name("groups", self.groups, ("seen", "all"))

    def state(self, task: Task) -> State:
        """Make the initial group weights, which are all equal; those of unseen groups, if any, come last."""
        count = task.space.n_groups if self.groups == "all" else task.n_groups
        return {"group_weight": torch.full((count,), 1 / count)}

    def loss(self, model: BackboneClassifier, batch: Batch, state: State, step: int) -> tuple[Tensor, State]:
        """Weighted sum of the groups' mean losses."""
        means, _ = batch.means_by(row_losses(model, batch), batch.group, len(state["group_weight"]))
        # A group without rows in the batch has mean 0, so its weight is multiplied by 1.
        log_weight = state["group_weight"].log() + self.eta * means.detach()
        weight = log_weight.softmax(dim=0)
        return (weight * means).sum(), {"group_weight": weight}
