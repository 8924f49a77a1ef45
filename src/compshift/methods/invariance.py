"""Methods that add a penalty, weakly at first and then, from one step on, with its full weight.

Invariant risk minimisation (Arjovsky et al., 2019).

Risk extrapolation (Krueger et al., 2021).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import cross_entropy

from compshift._checks import check_count, check_positive
from compshift.methods.base import Batch, LogUniform, Method, State
from compshift.methods.erm import row_losses
from compshift.nn.networks import BackboneClassifier


@dataclass(frozen=True)
class Penalised(Method):
    """Weight 1 before step ``anneal``, ``penalty`` from then on; the optimiser starts afresh at the switch."""

    penalty: float = 100.0
    anneal: int = 500

    ranges: ClassVar[Mapping[str, LogUniform]] = {
        "penalty": LogUniform(-1, 5),
        "anneal": LogUniform(0, 4, whole=True, steps=10_000),
    }

    def __post_init__(self) -> None:
        check_positive(self.penalty, "penalty", allow_zero=True)
        check_count(self.anneal, "anneal")

    def penalty_weight(self, step: int) -> float:
        """The weight in this step."""
        return self.penalty if step >= self.anneal else 1.0

    def settles_at(self) -> int:
        """The switch."""
        return self.anneal

    def resets_optimiser(self, step: int) -> bool:
        """At the switch, since moments were gathered on another loss."""
        return step == self.anneal


@dataclass(frozen=True)
class IRM(Penalised):
    r"""Mean risk over environments, the attribute combinations, plus a penalty on what a rescaling would gain.

    .. math::

        \left\langle \nabla_s \mathrm{CE}(s z_{even}), \nabla_s \mathrm{CE}(s z_{odd}) \right\rangle_{s=1}, \qquad
        \nabla_s \mathrm{CE}(s z, y) = \langle \mathrm{softmax}(z), z \rangle - z_y

    over every other row of an environment and the remaining ones, averaged over the environments of the batch. The
    derivative is in closed form. An environment with a single row has no odd rows, and no penalty. With full batches
    the halves are the same in every step.
    """

    name = "irm"
    summary = "risk and invariance penalty over attributes"

    def loss(self, model: BackboneClassifier, batch: Batch, state: State, step: int) -> tuple[Tensor, State]:
        """Mean of the environments' risks and weighted penalties."""
        logits, classes, size = model(batch.inputs).float(), batch.classes, batch.task.n_attributes
        environment = batch.attributes
        risks, count = batch.means_by(cross_entropy(logits, classes, reduction="none"), environment, size)
        slope = (logits.softmax(dim=1) * logits).sum(dim=1) - logits.gather(1, classes[:, None])[:, 0]  # (b,)
        half = batch.rank_within(environment, size) % 2
        slopes, _ = batch.means_by(slope, 2 * environment + half, 2 * size)
        penalty = slopes[0::2] * slopes[1::2]  # (size,)
        total = risks + self.penalty_weight(step) * penalty
        return total.sum() / (count > 0).sum(), state


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
