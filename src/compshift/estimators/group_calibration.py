"""Calibration of a classifier of the seen groups, on probabilities of rows that it was not fitted to."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from compshift.core.affine_posterior import inverse_temperature, log_floored, log_loss
from compshift.core.affine_weights import value_weights
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.candidates import Candidates
from compshift.core.logspace import log_softmax
from compshift.estimators.crm_fit import Recipe, fit_crm
from compshift.estimators.crm_model import CRMModel

CALIBRATIONS = ("additive", "temperature")

TOL, MAX_ITER = 1e-4, 1000
"""Of the additive calibration; beyond them no accuracy changes."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """Turns log probabilities of the base estimator into log p(z|x) of the seen groups, (n, k) each."""

    temperature: float | None = None
    value_weights: FloatArray | None = None  # (D, k)
    model: CRMModel | None = None  # of the evidence per value, with the seen groups as candidates

    def __call__(self, log_proba: FloatArray) -> FloatArray:
        if self.model is None or self.value_weights is None:
            return np.asarray(log_softmax(log_proba / (self.temperature or 1.0)))
        seen = self.model.candidates
        log_score = np.log(seen.seen_weight / seen.seen_weight.sum()) - self.model.learned_bias
        return self.model.joint(log_proba @ self.value_weights.T, log_score)


def calibrate(
    kind: str | None,
    log_proba: FloatArray,
    position: IntArray,
    sample_weight: FloatArray,
    candidates: Candidates,
    alpha: float,
) -> Calibration:
    """Fit the calibration to out-of-fold log probabilities (n, k) and the groups that the rows have."""
    if kind is None:
        return Calibration()
    if kind == "temperature":
        return Calibration(temperature=1 / inverse_temperature(log_proba, position, sample_weight))
    reading = value_weights(candidates.hull)  # (D, k)
    seen = Candidates(candidates.hull, candidates.seen_weight, candidates.seen_groups)
    evidence = log_proba @ reading.T  # (n, D)
    model = fit_crm(evidence, position, sample_weight, seen, Recipe(alpha), tol=TOL, max_iter=MAX_ITER)
    if not model.converged:
        warnings.warn(
            f"the additive calibration stopped after {model.n_iter} iterations at a gradient of {model.gradient:.1e}: "
            f"raise alpha (now {alpha:g})",
            ConvergenceWarning,
            stacklevel=3,
        )
    return Calibration(value_weights=reading, model=model)


def best_floor(floors: list[float], proba: FloatArray, position: IntArray, sample_weight: FloatArray) -> float:
    """The floor at which out-of-fold probabilities (n, k), at their best temperature, fit the rows' groups best."""
    losses = []
    for floor in floors if len(floors) > 1 else []:
        log_proba, _ = log_floored(proba, floor)
        beta = inverse_temperature(log_proba, position, sample_weight)
        losses.append(log_loss(beta * log_proba, position, sample_weight))
    return floors[int(np.argmin(losses))] if losses else floors[0]
