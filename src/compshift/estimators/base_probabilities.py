"""Probabilities of the seen groups by any classifier, each from a fit that did not have its row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils.parallel import Parallel, delayed

from compshift._errors import InputError
from compshift.core.arrays import FloatArray, IntArray


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


def named(X: FloatArray, names: Any) -> Any:
    """The features as a DataFrame, if their columns have names: a base estimator may ask for some of them."""
    if names is None:
        return X
    import pandas as pd

    return pd.DataFrame(X, columns=names)


def group_probabilities(estimator: Any, X: FloatArray, n_groups: int, names: Any = None) -> FloatArray:
    """Probability of each seen group, (n, k), 0 for those that the estimator has not been fitted to."""
    proba = np.zeros((len(X), n_groups))
    given = np.asarray(estimator.predict_proba(named(X, names)))
    if given.shape != (len(X), len(estimator.classes_)):
        raise InputError(
            f"base_estimator ({type(estimator).__name__}) gives probabilities of shape {given.shape} for {len(X)} rows "
            f"and {len(estimator.classes_)} groups: its predict_proba must have one column for each of its classes_"
        )
    proba[:, estimator.classes_] = given
    if not np.isfinite(proba).all():
        row = int(np.argmin(np.isfinite(proba).all(axis=1)))
        raise InputError(
            f"base_estimator ({type(estimator).__name__}) gives a probability that is NaN or infinite at row {row}: "
            "scale the features, or choose another base_estimator"
        )
    return proba
