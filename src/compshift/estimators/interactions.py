r"""Test for interactions: does a fitted additive model improve if its correction need not be additive?

A fitted model gives log p(z|x) of the seen groups, which is additive over attributes. Two corrections of it are fitted
to the same labelled rows and compared on other rows:

.. math:: \text{additive: } \log p(z|x) + \langle \sigma(z), V x \rangle + b_z, \qquad
    \text{saturated: } \log p(z|x) + W_z x + b_z

Both are ridge logistic regressions that start from the model, and each chooses its ridge within the rows it is fitted
to. The saturated one has separate weights for every group. Both repair additive errors of the model alike (too little
training, too strong a ridge, other group frequencies), so that their difference in likelihood is due to interactions
between attributes, as far as these rows can show them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from compshift.core.arrays import BoolArray, FloatArray, IntArray, log_softmax
from compshift.core.folds import row_folds
from compshift.crm.blocks import one_thread_for_scipy
from compshift.crm.problem import standardise
from compshift.crm.solver import Solution, solve
from compshift.estimators.logit_adjusted import LogitProblem

RIDGES = (100.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
"""Ridge strengths that each correction chooses from, strongest first; 100 leaves only the biases free."""

INNER_FOLDS = 4
"""The ridge is chosen on one of this many parts of the rows, after a fit to the other parts."""

CORRECTION_TOL, CORRECTION_MAX_ITER = 1e-3, 300
"""Tolerance and iteration limit of the corrections; a tighter fit hardly changes their likelihoods."""


class Comparison(NamedTuple):
    """Log-likelihood of each row's own group, (n,) each; the corrections are predicted out of fold."""

    given: FloatArray  # by the model without a correction
    additive: FloatArray
    saturated: FloatArray


def compare(
    X: FloatArray,
    position: IntArray,
    log_proba: FloatArray,
    one_hot: FloatArray,
    n_folds: int,
    random: np.random.Generator,
) -> Comparison:
    """Compare the model with both corrections in ``n_folds`` folds.

    ``position`` (n,) is the group of each row, ``log_proba`` (n, k) the model's log-probabilities, ``one_hot`` (k, D)
    the groups' codes. Every group must have at least three rows.
    """
    features, standard = standardise(X, np.ones(len(X)))
    rows = _GroupRows(features, position, log_proba, standard.spread)
    identity = np.eye(len(one_hot))
    fold = row_folds(position, n_folds, random)
    additive, saturated = np.empty(len(X)), np.empty(len(X))
    with one_thread_for_scipy():
        for number in range(n_folds):
            held_out = rows.part(np.flatnonzero(fold == number))
            others = rows.part(np.flatnonzero(fold != number))
            inner = row_folds(others.position, INNER_FOLDS, random) == 0
            for result, codes in ((additive, one_hot), (saturated, identity)):
                ridge = _best_ridge(others, inner, codes)
                correction = next(islice(others.corrections(codes), ridge, None))
                result[fold == number] = held_out.own_log_proba(codes, correction)
    return Comparison(own_entries(log_proba, position), additive, saturated)


def _best_ridge(rows: _GroupRows, held_out: BoolArray, codes: FloatArray) -> int:
    """Return the position in ``RIDGES`` of the last ridge before the held-out likelihood first falls."""
    fitting, judging = rows.part(np.flatnonzero(~held_out)), rows.part(np.flatnonzero(held_out))
    best = -np.inf
    for number, correction in enumerate(fitting.corrections(codes)):
        likelihood = float(judging.own_log_proba(codes, correction).mean())
        if likelihood <= best:
            return number - 1
        best = likelihood
    return len(RIDGES) - 1


class _GroupRows(NamedTuple):
    """Rows with their groups and the model's log-probabilities."""

    features: FloatArray  # (n, p) standardised
    position: IntArray  # (n,) group of each row, of k
    log_proba: FloatArray  # (n, k)
    spread: float  # of the standardised features, for ``LogitProblem``

    def part(self, rows: IntArray) -> _GroupRows:
        """Select some of the rows."""
        return self._replace(features=self.features[rows], position=self.position[rows], log_proba=self.log_proba[rows])

    def corrections(self, codes: FloatArray) -> Iterator[Solution]:
        """Fit the correction at each of ``RIDGES``, each fit warm-started from the one before.

        ``codes`` (k, d) are one-hot codes for the additive correction, the identity for the saturated one.
        """
        n, k = self.log_proba.shape
        problem = LogitProblem(
            features=self.features,
            classes=self.position,
            attribute=np.arange(n),
            offset=self.log_proba,
            sample_weight=np.full(n, 1 / n),
            frequency=np.bincount(self.position, minlength=k) / n,
            alpha=0.0,
            spread=self.spread,
            codes=codes,
        )
        start = None
        for alpha in RIDGES:
            problem = problem._replace(alpha=alpha)
            solution = solve(problem, tol=CORRECTION_TOL, max_iter=CORRECTION_MAX_ITER, start=start)
            start = solution.start
            yield solution

    def own_log_proba(self, codes: FloatArray, correction: Solution) -> FloatArray:
        """Return the corrected log p(z|x) of each row's own group, (n,)."""
        logits = self.log_proba + self.features @ (codes @ correction.weight).T + correction.bias
        return own_entries(log_softmax(logits), self.position)


def own_entries(values: FloatArray, position: IntArray) -> FloatArray:
    """Return the entry of each row (n, k) at its position (n,)."""
    return np.asarray(values[np.arange(len(values)), position])
