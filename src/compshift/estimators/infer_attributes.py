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
from compshift.crm.features import training_features
from compshift.crm.inputs import random_numbers, read_labels
from compshift.crm.problem import standardise
from compshift.crm.solver import Parameters, solve
from compshift.estimators.logit_adjusted import LogitProblem

logger = logging.getLogger(__name__)

RELABEL_TOL = 1e-3
"""Gradient tolerance of the fits; a smaller one hardly changes a prediction."""

MIN_CLASS_ROWS = 4
"""Smallest number of rows of a class, so that each half of the data has at least two."""


def infer_attributes(
    X: Any, y: Any, *, alpha: float = 1e-2, rounds: int = 10, random_state: Any = 0
) -> np.ndarray[Any, Any]:
    """Infer an attribute for each row where none is recorded: the class that a biased model predicts for it.

    Two logistic regressions are each fitted to one half of the rows and predict the other half. Where a prediction
    differs from the label, it replaces the label in the next round, with a probability that grows with its confidence.
    Both models thus rely more and more on the feature that is easiest to learn among those that correlate with the
    class. The inferred attribute of a row is the prediction of the model that was not fitted to it. If it equals the
    class, the row has the value that usually occurs with its class; if not, the row is an exception (cross-mistakes;
    Pezeshki et al., *Discovering environments with XRM*, 2023). Pass the result as ``attributes`` to ``CRMClassifier``,
    whose uniform prior removes the correlation.

    This helps if an attribute that is easier to learn than the class, such as the background of a bird, agrees with the
    class in most rows but not in all. If the class itself is easiest to learn, the exceptions are merely its hard rows,
    and nothing is gained. If attribute and class always agree, they cannot be separated. Recorded attributes are always
    better than inferred ones.

    Parameters
    ----------
    X : array or DataFrame (n, p)
        Features, all finite numbers.
    y : array (n,)
        Class of each row.
    alpha : float, default=1e-2
        Strength of the ridge penalty, as in ``CRMClassifier``.
    rounds : int, default=10
        Number of rounds of relabelling. The round whose predictions differ from ``y`` most often is returned.
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
    >>> water = np.where(rng.random(2000) < 0.9, bird, 1 - bird)  # agrees with the class in 90 % of rows
    >>> X = np.stack([bird + rng.normal(size=2000), 6 * water + rng.normal(size=2000)], axis=1)
    >>> round(float((infer_attributes(X, bird) == water).mean()), 2)
    0.99
    """
    alpha = check_positive(alpha, "alpha")
    rounds = check_count(rounds, "rounds")
    check_same_order({"X": X, "y": y})
    features = training_features(BaseEstimator(), X)
    if y is None:
        raise InputError("y is None: pass the class of each row")
    labels = read_labels(y, None, None, np.ones(len(features), dtype=np.bool_))
    if labels.n_targets != 1:
        raise InputError(f"y has {labels.n_targets} columns: pass one target, (n,)")
    truth, n_classes = labels.codes[:, 0], labels.space.cardinalities[0]
    rare = int(np.bincount(truth).min())
    if rare < MIN_CLASS_ROWS:
        name = labels.space.values[0][int(np.argmin(np.bincount(truth)))]
        raise InputError(
            f"class {name!r} has {rare} rows, but infer_attributes needs at least {MIN_CLASS_ROWS} of each class: "
            "collect more rows of it, or leave the class out"
        )
    random = random_numbers(random_state)
    standardised, standard = standardise(features, np.ones(len(features)))
    second = row_folds(truth, 2, random) == 1
    predicted = _Twins(standardised, truth, n_classes, second, alpha, standard.spread).run(rounds, random)
    return np.array(labels.space.values[0])[predicted]


class _Twins(NamedTuple):
    """Two models, each fitted to one half of the rows, that relabel the other half."""

    features: FloatArray  # (n, p) standardised
    truth: IntArray  # (n,) classes that the caller passed
    n_classes: int
    second: BoolArray  # (n,) whether a row is in the second half
    alpha: float
    spread: float  # unevenness of the features' variance over directions, see ``Standard.spread``

    def run(self, rounds: int, random: np.random.RandomState) -> IntArray:
        """Return the predictions (n,) of the round in which most of them differ from the classes.

        Each row is predicted by the model of the other half.
        """
        classes, best, most_changed = self.truth, self.truth, -1
        first_start: Parameters | None = None
        second_start: Parameters | None = None
        for number in range(rounds):
            by_first, first_start = self._fit(~self.second, classes, first_start)
            by_second, second_start = self._fit(self.second, classes, second_start)
            log_proba = np.where(self.second[:, None], by_first, by_second)  # (n, c)
            predicted = np.argmax(log_proba, axis=1)
            changed = int((predicted != self.truth).sum())
            logger.info("round %d: %d of %d rows are predicted as another class", number + 1, changed, len(predicted))
            if changed > most_changed:
                most_changed, best = changed, predicted
            # a label is replaced with a probability that grows from 0 at chance level to 1 at full confidence
            confidence = (np.exp(log_proba.max(axis=1)) - 1 / self.n_classes) * self.n_classes / (self.n_classes - 1)
            relabelled = np.where(random.uniform(size=len(predicted)) < confidence, predicted, classes)
            if all(len(np.unique(relabelled[half])) == self.n_classes for half in (self.second, ~self.second)):
                classes = relabelled
        return best

    def _fit(self, half: BoolArray, classes: IntArray, start: Parameters | None) -> tuple[FloatArray, Parameters]:
        """Fit a model to one half; return log-probabilities (n, c) of all rows, and the warm start of the next fit."""
        half_classes = classes[half]
        n = len(half_classes)
        problem = LogitProblem(
            features=self.features[half],
            classes=half_classes,
            attribute=np.zeros(n, dtype=np.int64),
            offset=np.zeros((1, self.n_classes)),
            sample_weight=np.full(n, 1 / n),
            frequency=np.bincount(half_classes, minlength=self.n_classes) / n,
            alpha=self.alpha,
            spread=self.spread,
        )
        solution = solve(problem, tol=RELABEL_TOL, max_iter=300, start=start)
        logits = self.features @ solution.weight.T + solution.bias
        return log_softmax(logits), solution.start
