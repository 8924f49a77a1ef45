"""A trained head as a classifier of features, like those that are fitted."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from compshift._checks import check_finite
from compshift._errors import InputError
from compshift.core.arrays import FloatArray
from compshift.core.candidates import Candidates
from compshift.core.groups import GroupSpace
from compshift.core.hull import AffineHull
from compshift.estimators.crm import CRMClassifier
from compshift.estimators.crm_model import CRMModel
from compshift.methods.method import Method
from compshift.methods.task import Task
from compshift.nn.head import AdditiveEnergyHead


def head_classifier(head: nn.Module, method: Method, task: Task) -> Any:
    """The head's classifier: a ``CRMClassifier``, or one of classes alone."""
    if isinstance(head, AdditiveEnergyHead):
        return _energy_classifier(head, getattr(method, "prior", "uniform"), task)
    assert isinstance(head, nn.Linear)
    return LinearHead(head, task)


class LinearHead:
    """Class logits that are linear in the features; it knows nothing of groups beyond what training had of them."""

    def __init__(self, head: nn.Linear, task: Task) -> None:
        self._head = head
        self.space_ = task.space
        self.targets_ = GroupSpace(task.space.names[:1], task.space.values[:1])
        self.classes_ = np.array(task.space.values[0])
        self.coef_ = head.weight.detach().cpu().double().numpy()  # (c, p)
        self.intercept_ = head.bias.detach().cpu().double().numpy()  # (c,)
        self.groups_ = task.seen
        self.seen_ = np.ones(len(task.seen), dtype=np.bool_)
        self.group_weight_ = task.counts

    def predict_log_proba(self, X: Any) -> FloatArray:
        """Log-probability of each class, (n, c)."""
        X = np.asarray(X, dtype=np.float64)
        if X.ndim != 2 or X.shape[1] != self.coef_.shape[1]:
            raise InputError(f"X has shape {X.shape}: pass one row of {self.coef_.shape[1]} features per sample")
        check_finite(X)
        logits = X @ self.coef_.T + self.intercept_
        logits -= logits.max(axis=1, keepdims=True)
        return np.asarray(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))

    def predict_proba(self, X: Any) -> FloatArray:
        """Probability of each class, (n, c)."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: Any) -> Any:
        """Most probable class, (n,)."""
        return self.classes_[np.argmax(self.predict_log_proba(X), axis=1)]


def _energy_classifier(head: AdditiveEnergyHead, prior: str, task: Task) -> CRMClassifier:
    """The classifier whose features are those of the head's last layers."""
    model = CRMModel(
        candidates=Candidates(AffineHull(head.space, task.seen), task.counts, head.groups),
        coef=head.last_weights().detach().cpu().double().numpy(),
        feature_mean=np.zeros(head.last_weights().shape[1]),
        bias=head.bias.cpu().double().numpy(),
        learned_bias=head.centred_learned_bias().cpu().double().numpy(),
        cumulant_bias=np.full(len(head.groups), np.nan),
        effective_sample_size=head.effective_sample_size.cpu().double().numpy(),
        pareto_k=np.full(len(head.groups), np.nan),
        temperature=1.0,
        bias_gap=head.bias_gap,
        gradient=float("nan"),
        n_iter=0,
        converged=True,
    )
    return CRMClassifier.from_model(model, prior=prior)
