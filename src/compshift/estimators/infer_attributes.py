"""Attributes that nobody wrote down: what a row is taken for by models that lean on something else than its class."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple, cast

import numpy as np
from sklearn.base import BaseEstimator

from compshift._checks import check_count, check_positive, check_same_order
from compshift._errors import InputError
from compshift.core.arrays import BoolArray, FloatArray, IntArray, log_softmax
from compshift.crm.inputs import random_numbers, read_labels, row_folds, training_features
from compshift.crm.problem import standardise
from compshift.crm.solver import Start, solve
from compshift.estimators.logit_adjusted import LogitProblem

logger = logging.getLogger(__name__)

TOL, MAX_ITER = 1e-3, 300
"""Of the fits: beyond them hardly a prediction changes."""


def infer_attributes(
    X: Any, y: Any, *, alpha: float = 1e-2, rounds: int = 10, random_state: Any = 0
) -> np.ndarray[Any, Any]:
    """An attribute for each row, if none is known: the class that a biased model takes it for, (n,).

    Two logistic regressions learn from one half of the rows each, and predict the other half. Where they are sure of
    another class than the label says, the label of the next round is theirs, at random with their confidence, so that
    both lean more and more on whatever is easiest to learn and goes with the class. What a row is taken for in the end,
    by the model that never saw it, is its attribute: rows that are taken for their own class have what usually goes
    with it, the others do not (cross-mistakes; Pezeshki et al., *Discovering environments with XRM*, 2023). Pass it on
    as ``attributes`` of ``CRMClassifier``, whose uniform prior then stops counting on it.

    It helps where something easier than the class goes with it in most rows and not in all, as a background with a
    bird. If the class itself is what is easiest, its hard rows become the minority, and nothing is gained; if the two
    always go together, nothing can be told apart. Known attributes are better in every case.

    Parameters
    ----------
    X : array or DataFrame (n, p)
        Features, all finite numbers.
    y : (n,)
        The class of each row.
    alpha : float, default=1e-2
        Strength of the ridge, as in ``CRMClassifier``.
    rounds : int, default=10
        How often labels are changed. That with the most changed labels counts.
    random_state : int, RandomState or None, default=0
        Which rows are in which half, and which labels are changed.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> bird = rng.integers(0, 2, size=2000)
    >>> water = np.where(rng.random(2000) < 0.9, bird, 1 - bird)  # usually, a bird's background gives it away
    >>> X = np.stack([bird + rng.normal(size=2000), 6 * water + rng.normal(size=2000)], axis=1)
    >>> round(float((infer_attributes(X, bird) == water).mean()), 2)
    0.99
    """
    alpha = check_positive(alpha, "alpha")
    rounds = check_count(rounds, "rounds")
    check_same_order({"X": X, "y": y})
    features = training_features(BaseEstimator(), X)
    if y is None:
        raise InputError("infer_attributes needs the class of each row, but y is None: pass it")
    labels = read_labels(y, None, None, np.ones(len(features), dtype=np.bool_))
    if labels.n_targets != 1:
        raise InputError(f"y has {labels.n_targets} columns: pass one target, (n,)")
    truth, n_classes = labels.codes[:, 0], labels.space.cardinalities[0]
    rare = int(np.bincount(truth).min())
    if rare < 4:
        name = labels.space.values[0][int(np.argmin(np.bincount(truth)))]
        raise InputError(f"class {name!r} has {rare} rows: infer_attributes halves the rows and needs four or more")
    random = random_numbers(random_state)
    standardised, standard = standardise(features, np.ones(len(features)))
    second = row_folds(truth, 2, random) == 1
    found = _Twins(standardised, truth, n_classes, second, alpha, standard.spread).run(rounds, random)
    return np.array(labels.space.values[0])[found]


class _Fit(NamedTuple):
    """Log-probabilities (n, c) of all rows by a model of one half, and where its search ended."""

    log_proba: FloatArray
    start: Start


class _Twins(NamedTuple):
    """Two models that learn from one half of the rows each, and relabel the other's."""

    features: FloatArray  # (n, p) standardised
    truth: IntArray  # (n,)
    n_classes: int
    second: BoolArray  # (n,) which rows are in the second half
    alpha: float
    spread: float  # of the features, about

    def run(self, rounds: int, random: np.random.RandomState) -> IntArray:
        """What each row is taken for by the model that never saw it, (n,), in the round that changed most labels."""
        classes, best = self.truth, self.truth
        halves, starts = (~self.second, self.second), cast("list[Start | None]", [None, None])
        most = -1
        for number in range(rounds):
            fits = [self._fit(half, classes, start) for half, start in zip(halves, starts, strict=True)]
            starts = [fit.start for fit in fits]
            log_proba = np.where(self.second[:, None], fits[0].log_proba, fits[1].log_proba)  # of the other half's
            taken = np.argmax(log_proba, axis=1)
            changed = int((taken != self.truth).sum())
            logger.info("round %d: %d of %d rows are taken for another class", number + 1, changed, len(taken))
            if changed > most:
                most, best = changed, taken
            sure = (np.exp(log_proba.max(axis=1)) - 1 / self.n_classes) * self.n_classes / (self.n_classes - 1)
            flipped = np.where(random.uniform(size=len(taken)) < sure, taken, classes)
            if _halves_keep_all(flipped, self.second, self.n_classes):
                classes = flipped
        return best

    def _fit(self, half: BoolArray, classes: IntArray, start: Start | None) -> _Fit:
        """Learn from one half, and predict all rows."""
        own = classes[half]
        n = len(own)
        problem = LogitProblem(
            features=self.features[half],
            classes=own,
            attribute=np.zeros(n, dtype=np.int64),
            offset=np.zeros((1, self.n_classes)),
            sample_weight=np.full(n, 1 / n),
            frequency=np.bincount(own, minlength=self.n_classes) / n,
            alpha=self.alpha,
            spread=self.spread,
        )
        solution = solve(problem, tol=TOL, max_iter=MAX_ITER, start=start)
        logits = self.features @ solution.weight.T + solution.bias
        return _Fit(log_softmax(logits), solution.start)


def _halves_keep_all(classes: IntArray, second: BoolArray, n_classes: int) -> bool:
    """Whether both halves still have rows of every class."""
    return all(len(np.unique(classes[half])) == n_classes for half in (second, ~second))
