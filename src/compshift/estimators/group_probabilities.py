"""Probabilities of the seen groups by any scikit-learn classifier: cross-fitted, floored and calibrated.

``AffineExtrapolation`` uses them. The probabilities of a training row come from a fit to other rows, because a
classifier is overconfident on the rows that it was fitted to.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.dummy import DummyClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import _safe_indexing
from sklearn.utils.parallel import delayed

from compshift._checks import check_numbers
from compshift._errors import InputError, InputTypeError, reason, shown
from compshift._progress import in_parallel
from compshift.core.affine import inverse_temperature, log_floored, log_loss, value_weights
from compshift.core.arrays import FloatArray, IntArray, log_softmax
from compshift.core.candidates import Candidates
from compshift.crm.fit import FitParams, fit_crm
from compshift.crm.inputs import LabelledSamples
from compshift.crm.model import CRMModel

NEGATIVE_TOLERANCE = 1e-6
"""Largest size of a negative probability that is accepted as a rounding error."""

SUM_TOLERANCE = 1e-2
"""Largest amount by which the sum of a row's probabilities may differ from 1."""

CALIBRATIONS = ("additive", "temperature")

CALIBRATION_TOL = 1e-4
"""Gradient tolerance of the additive calibration; a smaller one does not change accuracies."""


@dataclass(frozen=True, eq=False)
class GroupFits:
    """Fits of one classifier to the seen groups of the training rows."""

    estimator: Any  # unfitted; it is cloned for every fit
    X: Any  # (n, p) an array or a DataFrame, as it was passed
    position: IntArray  # (n,) index of each row's seen group, from 0 to k − 1
    sample_weight: FloatArray | None  # (n,)

    def cross_fit(self, folds: IntArray, n_jobs: int | None, *, ensemble: bool) -> tuple[FloatArray, list[Any]]:
        """Return out-of-fold probabilities (n, k), and the estimators to predict with.

        These are the clones of the folds for an ``ensemble``, otherwise a single clone fitted to all rows.
        """
        parts = [np.flatnonzero(folds == fold) for fold in range(int(folds.max()) + 1)]
        jobs = [delayed(self._held_out)(rows, ensemble) for rows in parts]
        if not ensemble:
            jobs.append(delayed(self._fit)(np.arange(len(self.X))))
        results = in_parallel("fits of the estimator", jobs, n_jobs)
        proba = np.empty((len(self.X), int(self.position.max()) + 1))
        estimators = []
        for rows, (part, estimator) in zip(parts, results, strict=False):
            proba[rows] = part
            estimators.append(estimator)
        return proba, estimators if ensemble else results[-1:]

    def _fit(self, rows: Any) -> Any:
        """Fit a clone to some of the rows."""
        weights = {} if self.sample_weight is None else {"sample_weight": self.sample_weight[rows]}
        with _report_failure(self.estimator, "its fit to the groups, numbered from 0"):
            return clone(self.estimator).fit(_safe_indexing(self.X, rows), self.position[rows], **weights)

    def _held_out(self, rows: IntArray, keep: bool) -> tuple[FloatArray, Any]:
        """Return probabilities (b, k) of the rows from a clone fitted to all other rows; with ``keep``, also the clone.

        Otherwise None takes its place, so that it is not sent between processes.
        """
        others = np.setdiff1d(np.arange(len(self.X)), rows)
        if len(np.unique(self.position[others])) > 1:
            clone_of_fold = self._fit(others)
        else:  # most classifiers cannot be fitted to a single group
            clone_of_fold = DummyClassifier().fit(np.zeros((len(others), 1)), self.position[others])
        proba = group_probabilities([clone_of_fold], _safe_indexing(self.X, rows), int(self.position.max()) + 1)
        return proba, clone_of_fold if keep else None


def group_probabilities(estimators: Sequence[Any], X: Any, n_groups: int) -> FloatArray:
    """Return the probability of each seen group, (n, k), averaged over fitted estimators."""
    total = _group_probabilities(estimators[0], X, n_groups)
    for estimator in estimators[1:]:
        total += _group_probabilities(estimator, X, n_groups)
    return total / len(estimators)


def _group_probabilities(estimator: Any, X: Any, n_groups: int) -> FloatArray:
    """Return the probability of each seen group, (n, k); it is 0 for groups that the estimator was not fitted to."""
    who = f"estimator ({type(estimator).__name__})"
    classes = _fitted_groups(who, getattr(estimator, "classes_", None), n_groups)
    with _report_failure(estimator, "its predict_proba"):
        predicted = estimator.predict_proba(X)
    given = check_numbers(predicted, f"the predict_proba of {who}", "it must return an array of numbers")
    if given.shape != (len(X), len(classes)):
        raise InputError(
            f"{who} gives probabilities of shape {given.shape} for {len(X)} rows and {len(classes)} groups: its "
            "predict_proba must return one column for each of its classes_"
        )
    _check_probabilities(who, given)
    proba = np.zeros((len(X), n_groups))
    proba[:, classes] = given
    return proba


@contextmanager
def _report_failure(estimator: Any, step: str) -> Iterator[None]:
    """Turn any exception of the user's estimator into an InputError that names the estimator and the failed step."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:
        kind = InputTypeError if isinstance(error, TypeError) else InputError
        raise kind(
            f"estimator ({type(estimator).__name__}) failed in {step} ({type(error).__name__}: {reason(error)}): "
            "change its parameters or the features, or choose another estimator"
        ) from error


def _fitted_groups(who: str, classes: Any, n_groups: int) -> IntArray:
    """Check and return ``classes_`` of a fitted estimator, the group index of each column of ``predict_proba``."""
    array = np.asarray(classes)
    distinct_integers = array.ndim == 1 and array.dtype.kind in "iu" and len(np.unique(array)) == len(array)
    if not distinct_integers or not np.isin(array, np.arange(n_groups)).all():
        raise InputError(
            f"{who} has classes_ of {shown(classes)}, but it was fitted to groups numbered from 0 to {n_groups - 1}: "
            "classes_ must hold the numbers that were passed to its fit as y"
        )
    return array.astype(np.int64)


def _check_probabilities(who: str, given: FloatArray) -> None:
    """Check that each row (n, c) holds probabilities that sum to 1, up to rounding."""
    with np.errstate(over="ignore", invalid="ignore"):
        sums = given.sum(axis=1)
    finite = np.isfinite(given).all(axis=1)
    negative = finite & (given < -NEGATIVE_TOLERANCE).any(axis=1)
    wrong_sum = finite & ~(np.abs(sums - 1) <= SUM_TOLERANCE)
    for bad, problem, remedy in (
        (~finite, "a probability that is NaN or infinite", "rescale the features"),
        (negative, "a negative probability", "correct its predict_proba"),
        (wrong_sum, "probabilities that do not sum to 1", "correct its predict_proba"),
    ):
        if bad.any():
            row = int(np.argmax(bad))
            raise InputError(f"{who} gives {problem} at row {row}: {remedy}, or choose another estimator")


def best_floor(floors: list[float], proba: FloatArray, position: IntArray, sample_weight: FloatArray) -> float:
    """Return the floor that gives the rows' groups the highest likelihood, each floor at its best temperature.

    ``proba`` (n, k) are out-of-fold probabilities.
    """
    if len(floors) == 1:
        return floors[0]
    losses = []
    for floor in floors:
        log_proba, _ = log_floored(proba, floor)
        beta = inverse_temperature(log_proba, position, sample_weight)
        losses.append(log_loss(beta * log_proba, position, sample_weight))
    return floors[int(np.argmin(losses))]


@dataclass(frozen=True, eq=False)
class GroupCalibration:
    """Map from an estimator's log-probabilities of the seen groups to calibrated log p(z|x), (n, k) each."""

    temperature: float | None = None
    value_weights: FloatArray | None = None  # (D, k) weights that give the evidence for each attribute value
    model: CRMModel | None = None  # CRM fitted to that evidence; its candidates are the seen groups

    def __call__(self, log_proba: FloatArray) -> FloatArray:
        if self.model is None or self.value_weights is None:
            return np.asarray(log_softmax(log_proba / (self.temperature or 1.0)))
        seen = self.model.candidates
        log_score = np.log(seen.seen_weight / seen.seen_weight.sum()) - self.model.learned_bias
        return self.model.log_posterior(log_proba @ self.value_weights.T, log_score)


def calibrate(
    kind: str | None,
    log_proba: FloatArray,
    position: IntArray,
    sample_weight: FloatArray,
    candidates: Candidates,
    alpha: float,
) -> GroupCalibration:
    """Fit a calibration to out-of-fold log-probabilities (n, k) and the seen group (n,) of each row."""
    if kind is None:
        return GroupCalibration()
    if kind == "temperature":
        return GroupCalibration(temperature=1 / inverse_temperature(log_proba, position, sample_weight))
    weights = value_weights(candidates.hull)  # (D, k)
    seen = Candidates(candidates.hull, candidates.seen_weight, candidates.seen_groups)
    evidence = log_proba @ weights.T  # (n, D)
    data = LabelledSamples(evidence, position, sample_weight, seen, n_targets=1, one_dimensional=True)
    model = fit_crm(data, FitParams(alpha), tol=CALIBRATION_TOL, max_iter=1000)
    if not model.converged:
        warnings.warn(
            f"the additive calibration stopped after {model.n_iter} iterations at a gradient of {model.gradient:.1e}: "
            f"raise alpha (now {alpha:g})",
            ConvergenceWarning,
            stacklevel=3,
        )
    return GroupCalibration(value_weights=weights, model=model)
