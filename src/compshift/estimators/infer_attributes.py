"""infer_attributes: guess an unrecorded attribute from the mistakes of cross-fitted models (cross-mistakes, XRM)."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator

from compshift._checks import check_count, check_positive, check_same_order
from compshift._errors import InputError
from compshift.core.arrays import BoolArray, FloatArray, IntArray, log_softmax
from compshift.core.folds import row_folds
from compshift.crm.inputs import random_numbers, read_labels, training_features
from compshift.crm.problem import standardise
from compshift.crm.solver import Parameters, solve
from compshift.estimators.logit_adjusted import LogitProblem

logger = logging.getLogger(__name__)

RELABEL_TOL, RELABEL_MAX_ITER = 1e-3, 300
"""Tolerance and iteration limit of the fits; a tighter fit hardly changes a prediction."""

MIN_CLASS_ROWS = 4
"""Smallest number of rows of a class: each half of the rows needs two."""


def infer_attributes(
    X: Any, y: Any, *, alpha: float = 1e-2, rounds: int = 10, random_state: Any = 0
) -> np.ndarray[Any, Any]:
    """Infer an attribute for each row where none is recorded: the class that a biased model predicts for it.

    Two logistic regressions are each fitted to one half of the rows and predict the other half. Where a prediction
    differs from the label, it replaces the label of the next round, with a probability that grows with its confidence.
    Both models thus rely more and more on whatever is easiest to learn and correlates with the class. The final
    prediction of each row, by the model that was not fitted to it, is its attribute: rows predicted as their own class
    have what usually goes with it, the others do not (cross-mistakes; Pezeshki et al., *Discovering environments with
    XRM*, 2023). Pass the result as ``attributes`` to ``CRMClassifier``, whose uniform prior removes the correlation.

    It helps where something easier than the class correlates with it in most rows but not all, such as the background
    of a bird. If the class itself is the easiest, its hard rows become the minority, and nothing is gained; if the two
    always coincide, they cannot be separated. Recorded attributes are better in every case.

    Parameters
    ----------
    X : array or DataFrame (n, p)
        Features, all finite numbers.
    y : array (n,)
        Class of each row.
    alpha : float, default=1e-2
        Strength of the ridge, as in ``CRMClassifier``.
    rounds : int, default=10
        Number of rounds of relabelling. The round with the most changed labels is returned.
    random_state : int, RandomState or None, default=0
        Seed of the halves and of the relabelling.

    Returns
    -------
    array (n,)
        The inferred attribute of each row, one of the classes.

    Raises
    ------
    InputError
        If the data cannot be read, or a class has fewer than four rows.

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
    if rare < MIN_CLASS_ROWS:
        name = labels.space.values[0][int(np.argmin(np.bincount(truth)))]
        raise InputError(f"class {name!r} has {rare} rows: infer_attributes halves the rows and needs four or more")
    random = random_numbers(random_state)
    standardised, standard = standardise(features, np.ones(len(features)))
    second = row_folds(truth, 2, random) == 1
    found = _Twins(standardised, truth, n_classes, second, alpha, standard.spread).run(rounds, random)
    return np.array(labels.space.values[0])[found]


class _Twins(NamedTuple):
    """Two models, each fitted to one half of the rows, that relabel the other half."""

    features: FloatArray  # (n, p) standardised
    truth: IntArray  # (n,) classes as given
    n_classes: int
    second: BoolArray  # (n,) whether a row is in the second half
    alpha: float
    spread: float  # of the standardised features

    def run(self, rounds: int, random: np.random.RandomState) -> IntArray:
        """Return the out-of-half predictions (n,) of the round with the most changed labels."""
        classes, best, most = self.truth, self.truth, -1
        first_start: Parameters | None = None
        second_start: Parameters | None = None
        for number in range(rounds):
            by_first, first_start = self._fit(~self.second, classes, first_start)
            by_second, second_start = self._fit(self.second, classes, second_start)
            log_proba = np.where(self.second[:, None], by_first, by_second)  # (n, c)
            predicted = np.argmax(log_proba, axis=1)
            changed = int((predicted != self.truth).sum())
            logger.info("round %d: %d of %d rows are predicted as another class", number + 1, changed, len(predicted))
            if changed > most:
                most, best = changed, predicted
            # confidence above chance, from 0 to 1, is the probability that the label changes
            sure = (np.exp(log_proba.max(axis=1)) - 1 / self.n_classes) * self.n_classes / (self.n_classes - 1)
            flipped = np.where(random.uniform(size=len(predicted)) < sure, predicted, classes)
            if all(len(np.unique(flipped[half])) == self.n_classes for half in (self.second, ~self.second)):
                classes = flipped
        return best

    def _fit(self, half: BoolArray, classes: IntArray, start: Parameters | None) -> tuple[FloatArray, Parameters]:
        """Fit a model to one half; return log-probabilities (n, c) of all rows, and the warm start of the next fit."""
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
        solution = solve(problem, tol=RELABEL_TOL, max_iter=RELABEL_MAX_ITER, start=start)
        logits = self.features @ solution.weight.T + solution.bias
        return log_softmax(logits), solution.start
