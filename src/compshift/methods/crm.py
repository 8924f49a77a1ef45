"""Compositional risk minimisation (Mahajan et al., 2025)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from compshift._errors import ExtrapolationWarning, check_name
from compshift.core.hull import AffineHull
from compshift.methods.batch import Batch
from compshift.methods.method import Method, Predictor, State, TrainingRows
from compshift.methods.task import Task
from compshift.nn.classifier import BackboneClassifier
from compshift.nn.head import AdditiveEnergyHead

PRIORS = ("uniform", "hull", "train")


@dataclass(frozen=True)
class CRM(Method):
    """One energy per attribute, the bias of every group from the training inputs, predictions under any prior.

    ``prior`` is that of the reported predictor; ``hidden`` the width of a hidden layer of each attribute's energies,
    0 for linear ones.
    """

    prior: str = "uniform"
    hidden: int = 0

    uses_prior = True
    name = "crm"
    summary = "additive energies with extrapolated bias"

    def __post_init__(self) -> None:
        check_name("prior", self.prior, PRIORS)

    def head(self, in_features: int, task: Task) -> AdditiveEnergyHead:
        """Energies, knowing the groups of the batches."""
        head = AdditiveEnergyHead(in_features, task.space, self.hidden or None)
        head.set_train_groups(task.seen, task.weight)
        return head

    def announce(self, task: Task) -> None:
        """Say if predictions will count on groups that training does not determine."""
        hull = AffineHull(task.space, task.seen)
        if self.prior == "uniform" and not hull.is_complete:
            warnings.warn(
                f"the training groups determine {hull.coverage():.0%} of all combinations: predictions count on the "
                "others too, unless the method's prior is 'hull'",
                ExtrapolationWarning,
                stacklevel=2,
            )

    def loss(self, model: BackboneClassifier, batch: Batch, state: State, step: int) -> tuple[Tensor, State]:
        """Mean negative log-likelihood of the groups."""
        total = energy_head(model).loss(model.features(batch.inputs), batch.codes, reduction="sum")
        return batch.mean_of(total), state

    def refresh(self, model: BackboneClassifier, rows: TrainingRows) -> None:
        """The bias of every group, from these rows."""
        batches = ((model.features(inputs), weight) for inputs, _, weight in rows.batches())
        energy_head(model).extrapolate(batches, weighted=True, processes=rows.processes)

    def finish(self, model: BackboneClassifier, rows: TrainingRows) -> dict[str, Any]:
        """The bias of every group, from all rows."""
        self.refresh(model, rows)
        return {"bias_gap": energy_head(model).bias_gap}

    def predictors(self, model: BackboneClassifier, prior: Any = None) -> dict[str, Predictor]:
        """Extrapolated or learned bias, under a prior that is the method's own or that of the rows in question."""
        head = energy_head(model)

        def predictor(bias: str, prior: Any) -> Predictor:
            return lambda features: head.marginal_log_prob(features, 0, prior, bias=bias)

        priors = {self.prior: self.prior, **({} if prior is None else {"empirical": prior})}
        return {
            f"{bias}-{name}": predictor(bias, given)
            for bias in ("extrapolated", "learned")
            for name, given in priors.items()
        }


def energy_head(model: BackboneClassifier) -> AdditiveEnergyHead:
    """The head of a model that CRM trains."""
    assert isinstance(model.head, AdditiveEnergyHead)
    return model.head
