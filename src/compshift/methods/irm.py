"""Invariant risk minimisation (Arjovsky et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import cross_entropy

from compshift.methods.batch import Batch
from compshift.methods.method import State
from compshift.methods.penalty import Penalised
from compshift.nn.classifier import BackboneClassifier


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
