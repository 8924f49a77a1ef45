"""Invariance penalties: IRM (Arjovsky et al., 2019) and V-REx (Krueger et al., 2021).

In both, the weight of the penalty is 1 before step ``anneal`` and ``penalty`` from that step on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import cross_entropy

from compshift._checks import check_count, check_positive
from compshift._errors import check_name
from compshift.methods.base import Batch, Method, State
from compshift.methods.erm import row_losses
from compshift.methods.sampling import LogUniform
from compshift.nn.networks import BackboneClassifier


@dataclass(frozen=True)
class Penalised(Method):
    """Base class of methods whose penalty has weight 1 before step ``anneal`` and weight ``penalty`` from then on.

    ``reset`` says whether the optimiser's moments are cleared at that step: "yes" or "no".
    """

    penalty: float = 100.0
    anneal: int = 500
    reset: str = "yes"

    later: ClassVar[tuple[str, ...]] = ("reset",)
    ranges: ClassVar[Mapping[str, LogUniform]] = {
        "penalty": LogUniform(-1, 5),
        "anneal": LogUniform(0, 4, whole=True, steps=10_000),
    }

    def __post_init__(self) -> None:
        check_positive(self.penalty, "penalty", allow_zero=True)
        check_count(self.anneal, "anneal")
        check_name("reset", self.reset, ("yes", "no"))

    def penalty_weight(self, step: int) -> float:
        """Weight of the penalty in a step."""
        return self.penalty if step >= self.anneal else 1.0

    def settles_at(self) -> int:
        """Return the step at which the weight of the penalty changes."""
        return self.anneal

    def resets_optimiser(self, step: int) -> bool:
        """Return whether to clear the optimiser's moments: at the step ``anneal``, if ``reset`` is "yes".

        The loss changes at that step, so moments from before belong to another loss.
        """
        return self.reset == "yes" and step == self.anneal


@dataclass(frozen=True)
class IRM(Penalised):
    r"""Invariant risk minimisation: mean over environments of the risk plus a weighted gradient penalty.

    The environments are the combinations of all attributes but the class. The gradient is that of the risk with respect
    to a factor s that multiplies the logits z. The penalty of an environment is the product of the gradients on its
    even and odd rows,

    .. math::

        \left\langle \nabla_s \mathrm{CE}(s z_{even}), \nabla_s \mathrm{CE}(s z_{odd}) \right\rangle_{s=1}, \qquad
        \nabla_s \mathrm{CE}(s z, y) = \langle \mathrm{softmax}(z), z \rangle - z_y

    which is computed in closed form and averaged over the environments of the batch. The penalty of an environment
    with a single row is 0. With full batches, the even and the odd rows are the same in every step.
    """

    name = "irm"
    summary = "risk and invariance penalty over attributes"

    def loss(self, model: BackboneClassifier, batch: Batch, state: State, step: int) -> tuple[Tensor, State]:
        """Mean over the environments of risk plus weighted penalty."""
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
    """Risk extrapolation: mean of the groups' risks plus their variance, weighted as a penalty.

    ``variance`` is "population" (divided by the number of groups in the batch) or "sample" (by one less).
    """

    variance: str = "population"

    name = "vrex"
    summary = "mean and variance of the risks of groups"
    later = ("reset", "variance")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("variance", self.variance, ("population", "sample"))

    def loss(self, model: BackboneClassifier, batch: Batch, state: State, step: int) -> tuple[Tensor, State]:
        """Mean plus weighted variance over the groups of the batch."""
        risks, count = batch.means_by(row_losses(model, batch), batch.group, batch.task.n_groups)
        present = risks[count > 0]
        variance = ((present - present.mean()) ** 2).mean()
        if self.variance == "sample":
            variance = variance * len(present) / max(1, len(present) - 1)
        return present.mean() + self.penalty_weight(step) * variance, state
