"""CRM whose linear head is solved again, to its optimum, on the final features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from compshift._checks import check_positive
from compshift._errors import InputError
from compshift.methods.crm import CRM, energy_head
from compshift.methods.method import TrainingRows
from compshift.nn.classifier import BackboneClassifier

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
        from compshift.estimators.held_out_groups import choose_alpha, fit_codes

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
