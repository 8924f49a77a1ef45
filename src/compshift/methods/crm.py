"""Compositional risk minimisation (Mahajan et al., 2025), and a variant that solves for its optimal head."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from compshift._checks import check_positive
from compshift._errors import ExtrapolationWarning, InputError, check_name
from compshift.core.bias import ExtrapolatedBias
from compshift.core.candidates import PRIORS
from compshift.core.hull import AffineHull
from compshift.methods.base import Batch, Method, Predictor, State, Task, TrainingRows
from compshift.nn.head import AdditiveEnergyHead
from compshift.nn.networks import BackboneClassifier


@dataclass(frozen=True)
class CRM(Method):
    """Compositional risk minimisation: additive energies, extrapolated bias, prediction under any prior.

    ``prior`` is the prior of the reported predictor. ``hidden`` is the width of the hidden layer between the features
    and the energies of each attribute; 0 makes the energies linear. ``init`` is the initialisation of the energies'
    weights: "zero", or "random" for PyTorch's default.
    """

    prior: str = "uniform"
    hidden: int = 0
    init: str = "zero"

    uses_prior = True
    name = "crm"
    summary = "additive energies with extrapolated bias"
    later: ClassVar[tuple[str, ...]] = ("init",)

    def __post_init__(self) -> None:
        check_name("prior", self.prior, PRIORS)
        check_name("init", self.init, ("zero", "random"))

    def head(self, in_features: int, task: Task) -> AdditiveEnergyHead:
        """Make the energy head; its group frequencies are those of the batches, not of the data set."""
        head = AdditiveEnergyHead(in_features, task.space, self.hidden or None)
        if self.init == "random":
            for layer in head.layers.modules():
                if isinstance(layer, nn.Linear):
                    layer.reset_parameters()
        head.set_train_groups(task.seen, task.weight)
        return head

    def announce(self, task: Task) -> None:
        """Warn if predictions will include groups outside the affine hull of the training groups."""
        hull = AffineHull(task.space, task.seen)
        if self.prior == "uniform" and not hull.is_complete:
            warnings.warn(
                f"the training groups determine {hull.coverage():.0%} of all combinations, but predictions include "
                "the remaining ones too: set the method's prior to 'hull' to exclude them",
                ExtrapolationWarning,
                stacklevel=2,
            )

    def loss(self, model: BackboneClassifier, batch: Batch, state: State, step: int) -> tuple[Tensor, State]:
        """Mean negative log-likelihood of the rows' groups."""
        total = energy_head(model).loss(model.features(batch.inputs), batch.codes, reduction="sum")
        return batch.mean_of(total), state

    def refresh(self, model: BackboneClassifier, rows: TrainingRows) -> None:
        """Compute the bias of every group from ``rows``."""
        batches = ((model.features(inputs), weight) for inputs, _, weight in rows.batches())
        energy_head(model).extrapolate(batches, weighted=True, processes=rows.processes)

    def finish(self, model: BackboneClassifier, rows: TrainingRows) -> dict[str, Any]:
        """Compute the bias of every group from all training rows."""
        self.refresh(model, rows)
        return {"bias_gap": energy_head(model).bias_gap}

    def predictors(self, model: BackboneClassifier, prior: Any = None) -> dict[str, Predictor]:
        """Return a predictor for each bias and each prior, with names such as ``extrapolated-uniform``.

        The priors are ``self.prior`` and, under the name ``empirical``, the argument ``prior``.
        """
        head = energy_head(model)

        def predictor(bias: str, prior: Any) -> Predictor:
            return lambda features: head.marginal_log_prob(features, 0, prior, bias=bias)

        priors = {self.prior: self.prior, **({} if prior is None else {"empirical": prior})}
        return {
            f"{bias}-{name}": predictor(bias, values)
            for bias in ("extrapolated", "learned")
            for name, values in priors.items()
        }


def energy_head(model: BackboneClassifier) -> AdditiveEnergyHead:
    """Return the energy head of a model trained by CRM."""
    assert isinstance(model.head, AdditiveEnergyHead)
    return model.head


@dataclass(frozen=True)
class CRMResolved(CRM):
    """CRM whose linear head is solved to its optimum on the final features.

    The extrapolated bias assumes a head that minimises the training loss (step 1 of CRM), but fine-tuning leaves the
    head far from it. The ridge penalty is ``alpha``; if ``alpha`` is 0, it is chosen on held-out training groups as
    ``CRMClassifierCV`` does. Checkpoints are selected with the unsolved head, because solving it at every evaluation
    would take longer than training.

    If the run has unlabelled samples, their features are used too, by EM as in ``CRMClassifier.fit``. With
    ``use_unlabelled="auto"`` they are used only if this helps on held-out training groups, with "always" in any case.
    """

    alpha: float = 0.0
    use_unlabelled: str = "auto"

    uses_unlabelled = True
    name = "crm-resolved"
    summary = "crm, then its head solved to the optimum"
    later = ("init", "use_unlabelled")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self.alpha, "alpha", allow_zero=True)
        check_name("use_unlabelled", self.use_unlabelled, ("auto", "always"))
        if self.hidden:
            raise InputError(
                f"hidden is {self.hidden}, but only linear energies can be solved to the optimum: pass hidden=0, or "
                "use the method 'crm'"
            )

    def finish(self, model: BackboneClassifier, rows: TrainingRows) -> dict[str, Any]:
        """Fit the head to its optimum on the final features, then compute every group's bias from all training rows.

        If unlabelled samples are used, energies and biases are computed from both kinds of rows.
        """
        from compshift.crm.coded import choose_alpha, choose_pool, fit_codes

        X, group, weight = rows.features(model)
        pool, reason = rows.pool_features(model), "the pool is used, as asked"
        codes, task = rows.task.seen[group], rows.task
        alpha = self.alpha or choose_alpha(X, codes, task.space, np.random.default_rng(rows.seed), weight)
        about = {}
        if pool is not None:
            if self.use_unlabelled == "auto":
                used, reason, *_ = choose_pool(X, codes, task.space, alpha, pool, weight)
                pool = pool if used else None
            about = {"unlabelled": reason}
        clf = fit_codes(X, codes, task.space, alpha, sample_weight=weight, tol=1e-6, unlabelled=pool)
        head = energy_head(model)
        with torch.no_grad():
            split = np.split(clf.coef_, task.space.offsets[1:])
            for layer, coefficients in zip(head.layers, split, strict=True):
                layer.weight.copy_(torch.as_tensor(coefficients))  # type: ignore[operator]
            # The classifier centres the features and the head does not. This adds a constant to the energy of each
            # group, which is subtracted from the group's bias.
            constant = (clf.coef_ @ clf.feature_mean_)[clf.groups_ + task.space.offsets].sum(axis=1)
            head.learned_bias.copy_(torch.as_tensor(clf.learned_bias_ - constant))
        if pool is None:
            self.refresh(model, rows)
        else:  # B* averages over training rows and pool; ``head.extrapolate`` accepts training rows only
            found = ExtrapolatedBias(clf.bias_ - constant, clf.effective_sample_size_)
            head._store_bias(found, clf.coef_ @ clf.feature_mean_)
        return {"alpha": alpha, "bias_gap": head.bias_gap, **about}
