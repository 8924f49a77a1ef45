"""Compositional risk minimisation (Mahajan et al., 2025).

CRM whose linear head is solved again, to its optimum, on the final features.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compshift._checks import check_positive
from compshift._errors import ExtrapolationWarning, InputError, check_name
from compshift.core.hull import AffineHull
from compshift.methods.base import Batch, Method, Predictor, State, Task, TrainingRows
from compshift.nn.head import AdditiveEnergyHead
from compshift.nn.networks import BackboneClassifier

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


ALPHAS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
TOL = 1e-6


@dataclass(frozen=True)
class CRMResolved(CRM):
    """Fine-tuning leaves a head far from its optimum, and the bias of unseen groups rests on the optimum.

    The ridge is ``alpha`` or, if that is 0, the one of five that predicts training groups best that were held out and
    lie inside the hull of the others. Checkpoints are selected with the head as it was trained: solving it at every
    evaluation would cost more than the training.
    """

    alpha: float = 0.0

    name = "crm-resolved"
    summary = "crm, then its head solved to the optimum"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self.alpha, "alpha", allow_zero=True)
        if self.hidden:
            raise InputError(f"hidden is {self.hidden}: only linear energies can be solved; use 0, or the method 'crm'")

    def finish(self, model: BackboneClassifier, rows: TrainingRows) -> dict[str, Any]:
        """Solve step 1 and compute the bias of every group."""
        from compshift.crm.cv import choose_alpha, fit_codes

        X, group, weight = rows.features(model)
        codes, task = rows.task.seen[group], rows.task
        alpha = self.alpha or choose_alpha(X, codes, task.space, ALPHAS, np.random.default_rng(rows.seed))
        clf = fit_codes(X, codes, task.space, alpha, sample_weight=weight, tol=TOL)
        head = energy_head(model)
        with torch.no_grad():
            split = np.split(clf.coef_, task.space.offsets[1:])
            for layer, coefficients in zip(head.layers, split, strict=True):
                layer.weight.copy_(torch.as_tensor(coefficients))  # type: ignore[operator]
            # Energies there are of centred features; the constants that this leaves out belong to the bias.
            constant = (clf.coef_ @ clf.feature_mean_)[clf.groups_ + task.space.offsets].sum(axis=1)
            head.learned_bias.copy_(torch.as_tensor(clf.learned_bias_ - constant))
        self.refresh(model, rows)
        return {"alpha": alpha, "bias_gap": head.bias_gap}
