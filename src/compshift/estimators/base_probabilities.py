"""Probabilities of the seen groups by any classifier, each from a fit that did not have its row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils.parallel import Parallel, delayed

from compshift._checks import check_numbers
from compshift._errors import InputError, reason, shown
from compshift.core.arrays import FloatArray, IntArray

ROUNDING = 1e-6
"""By so much a probability may be below 0."""

ABOUT = 1e-2
"""By so much the probabilities of a row may differ from 1 in sum."""


@dataclass(frozen=True, eq=False)
class BaseFits:
    """Fits of one base estimator to the seen groups."""

    base_estimator: Any
    X: FloatArray
    position: IntArray  # (n,) the seen group of each row
    sample_weight: FloatArray | None
    names: Any = None  # (p,) of the columns, if X was a DataFrame

    def fitted(self, rows: Any) -> Any:
        """A clone, fitted to some rows."""
        further = {} if self.sample_weight is None else {"sample_weight": self.sample_weight[rows]}
        with _told(self.base_estimator, "its fit to the groups, numbered from 0"):
            return clone(self.base_estimator).fit(named(self.X[rows], self.names), self.position[rows], **further)

    def held_out(self, rows: IntArray) -> FloatArray:
        """Probabilities (b, k) of the rows, from a clone fitted to all others."""
        n_groups = int(self.position.max()) + 1
        others = np.setdiff1d(np.arange(len(self.X)), rows)
        present = np.unique(self.position[others])
        if len(present) > 1:
            return group_probabilities(self.fitted(others), self.X[rows], n_groups, self.names)
        proba = np.zeros((len(rows), n_groups))  # one group is left: no classifier is needed to predict it
        proba[:, present] = 1.0
        return proba

    def cross_fit(self, folds: IntArray, n_jobs: int | None) -> tuple[FloatArray, Any]:
        """Probabilities (n, k), each from a fit that did not have its row, and a clone fitted to all rows."""
        parts = [np.flatnonzero(folds == fold) for fold in range(int(folds.max()) + 1)]
        jobs = [delayed(self.held_out)(rows) for rows in parts]
        *held_out, estimator = Parallel(n_jobs=n_jobs)([*jobs, delayed(self.fitted)(slice(None))])
        proba = np.empty((len(self.X), int(self.position.max()) + 1))
        for rows, part in zip(parts, held_out, strict=True):
            proba[rows] = part
        return proba, estimator


@contextmanager
def _told(estimator: Any, what: str) -> Iterator[None]:
    """Anyone's estimator can fail in every way there is: say in one sentence that it did, and of what."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:
        raise InputError(
            f"base_estimator ({type(estimator).__name__}) failed in {what} ({type(error).__name__}: {reason(error)}): "
            "change its parameters or the features, or choose another"
        ) from error


def named(X: FloatArray, names: Any) -> Any:
    """The features as a DataFrame, if their columns have names: a base estimator may ask for some of them."""
    if names is None:
        return X
    import pandas as pd

    return pd.DataFrame(X, columns=names)


def group_probabilities(estimator: Any, X: FloatArray, n_groups: int, names: Any = None) -> FloatArray:
    """Probability of each seen group, (n, k), 0 for those that the estimator has not been fitted to."""
    who = f"base_estimator ({type(estimator).__name__})"
    classes = _fitted_groups(who, getattr(estimator, "classes_", None), n_groups)
    with _told(estimator, "its predict_proba"):
        found = estimator.predict_proba(named(X, names))
    given = check_numbers(found, f"the predict_proba of {who}", "it must be numbers")
    if given.shape != (len(X), len(classes)):
        raise InputError(
            f"{who} gives probabilities of shape {given.shape} for {len(X)} rows and {len(classes)} groups: its "
            "predict_proba must have one column for each of its classes_"
        )
    _check_rows(who, given)
    proba = np.zeros((len(X), n_groups))
    proba[:, classes] = given
    return proba


def _fitted_groups(who: str, classes: Any, n_groups: int) -> IntArray:
    """The groups that the columns of ``predict_proba`` stand for: those numbers that the base was fitted to."""
    found = np.asarray(classes)
    numbers = found.ndim == 1 and found.dtype.kind in "iu" and len(np.unique(found)) == len(found)
    if not numbers or not np.isin(found, np.arange(n_groups)).all():
        raise InputError(
            f"{who} has classes_ of {shown(classes)}, but it was fitted to groups numbered from 0 to {n_groups - 1}: "
            "classes_ must be the numbers that its fit got as y"
        )
    return found.astype(np.int64)


def _check_rows(who: str, given: FloatArray) -> None:
    """Refuse rows (n, c) that are no probabilities, but for rounding."""
    with np.errstate(over="ignore", invalid="ignore"):
        sums = given.sum(axis=1)
    finite = np.isfinite(given).all(axis=1)
    for bad, what, remedy in (
        (~finite, "a probability that is NaN or infinite", "scale the features"),
        (finite & (given < -ROUNDING).any(axis=1), "a negative probability", "correct its predict_proba"),
        (finite & ~(np.abs(sums - 1) <= ABOUT), "probabilities that do not sum to 1", "correct its predict_proba"),
    ):
        if bad.any():
            row = int(np.argmax(bad))
            raise InputError(f"{who} gives {what} at row {row}: {remedy}, or choose another base_estimator")
