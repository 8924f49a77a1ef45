r"""Test for interactions: does a fitted additive model improve if its correction need not be additive?

A fitted model gives log p(z|x) of the seen groups, which is additive over attributes. Two corrections of it are fitted
to the same labelled rows and compared on other rows:

.. math:: \text{additive: } \log p(z|x) + \langle \sigma(z), V x \rangle + b_z, \qquad
    \text{saturated: } \log p(z|x) + W_z x + b_z

Both are ridge logistic regressions that start from the model, and each chooses its ridge by a validation part of the
rows that it is fitted to. The saturated one has separate weights for every group. Both correct additive errors of the
model equally well (too little training, too strong a ridge, other group frequencies). The difference of their
likelihoods is therefore due to interactions between attributes, as far as these rows can show them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from compshift._progress import steps
from compshift.core.arrays import BoolArray, FloatArray, IntArray, log_softmax
from compshift.core.folds import row_folds
from compshift.crm.blocks import one_thread_for_scipy
from compshift.crm.problem import standardise
from compshift.crm.solver import Solution, solve
from compshift.estimators.logit_adjusted import LogitProblem

RIDGES = (100.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
"""Ridge strengths that each correction chooses from, strongest first; 100 leaves only the biases free."""

INNER_FOLDS = 4
"""Number of parts into which rows are split to choose the ridge; one part is for validation, the others for fitting."""

CORRECTION_TOL = 1e-3
"""Gradient tolerance of the corrections; a smaller one hardly changes their likelihoods."""


class CorrectionLikelihoods(NamedTuple):
    """Log-likelihood of each row's group, (n,) each; the corrections were fitted to other rows."""

    uncorrected: FloatArray  # by the model itself
    additive: FloatArray  # with the additive correction
    saturated: FloatArray  # with the saturated correction


def compare_corrections(
    X: FloatArray,
    position: IntArray,
    log_proba: FloatArray,
    one_hot: FloatArray,
    n_folds: int,
    random: np.random.Generator,
) -> CorrectionLikelihoods:
    """Compare the model with both corrections in ``n_folds`` folds.

    ``position`` (n,) is the group of each row, ``log_proba`` (n, k) the model's log-probabilities, ``one_hot`` (k, D)
    the groups' codes. Every group must have at least three rows.
    """
    features, standard = standardise(X, np.ones(len(X)))
    rows = _GroupRows(features, position, log_proba, standard.spread)
    identity = np.eye(len(one_hot))
    fold = row_folds(position, n_folds, random)
    additive, saturated = np.empty(len(X)), np.empty(len(X))
    with one_thread_for_scipy(), steps("folds", n_folds) as advance:
        for number in range(n_folds):
            held_out = rows.part(np.flatnonzero(fold == number))
            others = rows.part(np.flatnonzero(fold != number))
            inner = row_folds(others.position, INNER_FOLDS, random) == 0
            for result, codes in ((additive, one_hot), (saturated, identity)):
                ridge = _best_ridge(others, inner, codes)
                correction = next(islice(others.corrections(codes), ridge, None))
                result[fold == number] = held_out.true_log_proba(codes, correction)
            advance()
    return CorrectionLikelihoods(entries_at(log_proba, position), additive, saturated)


def _best_ridge(rows: _GroupRows, held_out: BoolArray, codes: FloatArray) -> int:
    """Return the position in ``RIDGES`` of the last ridge before the held-out likelihood first stops rising."""
    fitting, judging = rows.part(np.flatnonzero(~held_out)), rows.part(np.flatnonzero(held_out))
    best = -np.inf
    for number, correction in enumerate(fitting.corrections(codes)):
        likelihood = float(judging.true_log_proba(codes, correction).mean())
        if likelihood <= best:
            return number - 1
        best = likelihood
    return len(RIDGES) - 1


class _GroupRows(NamedTuple):
    """Rows with their groups and the model's log-probabilities."""

    features: FloatArray  # (n, p) standardised
    position: IntArray  # (n,) index of each row's group, from 0 to k − 1
    log_proba: FloatArray  # (n, k)
    spread: float  # unevenness of the features' variance over directions, see ``Standard.spread``

    def part(self, rows: IntArray) -> _GroupRows:
        """Select some of the rows."""
        return self._replace(features=self.features[rows], position=self.position[rows], log_proba=self.log_proba[rows])

    def corrections(self, codes: FloatArray) -> Iterator[Solution]:
        """Yield the correction fitted with each of ``RIDGES``; every fit is warm-started from the previous one.

        ``codes`` (k, d) are the groups' one-hot codes for the additive correction, the identity for the saturated one.
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
            solution = solve(problem, tol=CORRECTION_TOL, max_iter=300, start=start)
            start = solution.start
            yield solution

    def true_log_proba(self, codes: FloatArray, correction: Solution) -> FloatArray:
        """Return the corrected log p(z|x) of each row's group z, (n,)."""
        logits = self.log_proba + self.features @ (codes @ correction.weight).T + correction.bias
        return entries_at(log_softmax(logits), self.position)


def entries_at(values: FloatArray, position: IntArray) -> FloatArray:
    """Return one entry of each row of ``values`` (n, k): the one at the row's ``position`` (n,)."""
    return np.asarray(values[np.arange(len(values)), position])
