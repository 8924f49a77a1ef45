"""Deep feature reweighting (Kirichenko et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from compshift._checks import MAX_FACTOR, check_positive
from compshift.methods.base import TrainingRows
from compshift.methods.erm import ERM
from compshift.nn.networks import BackboneClassifier


@dataclass(frozen=True)
class DFR(ERM):
    """Deep feature reweighting: ERM, then a refit of the last layer with equal weight on every training group.

    The refit is a logistic regression with ridge penalty ``alpha`` on the features of the training rows, standardised
    and weighted so that every group has the same total weight. (The paper refits on held-out rows; here these are
    needed to select checkpoints.) Checkpoints are selected with the head before the refit.
    """

    alpha: float = 1e-2

    name = "dfr"
    summary = "erm, then the last layer refitted with equal group weights"

    def __post_init__(self) -> None:
        check_positive(self.alpha, "alpha", most=MAX_FACTOR)

    def finish(self, model: BackboneClassifier, rows: TrainingRows) -> dict[str, Any]:
        """Refit the last layer; report the number of iterations."""
        from sklearn.linear_model import LogisticRegression

        X, group, _ = rows.features(model)
        task = rows.task
        weight = 1 / np.bincount(group, minlength=task.n_groups)[group]
        weight *= len(X) / weight.sum()
        mean = np.average(X, axis=0, weights=weight)
        scale = np.sqrt(np.average((X - mean) ** 2, axis=0, weights=weight))
        scale[scale == 0] = 1
        solver = LogisticRegression(C=1 / (self.alpha * len(X)), max_iter=2000)
        solver.fit((X - mean) / scale, task.class_of[group], sample_weight=weight)
        coefficients, intercept = solver.coef_ / scale, solver.intercept_
        if task.n_classes == 2:  # scikit-learn returns the difference of the two logits
            coefficients, intercept = (
                np.stack([-coefficients[0], coefficients[0]]) / 2,
                np.stack([-intercept[0], intercept[0]]) / 2,
            )
        head = model.head
        assert isinstance(head, nn.Linear)
        with torch.no_grad():
            head.weight.copy_(torch.as_tensor(coefficients))
            head.bias.copy_(torch.as_tensor(intercept - coefficients @ mean))
        return {"iterations": int(solver.n_iter_.max())}
