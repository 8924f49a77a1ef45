r"""Whether log probabilities of groups add up over attributes, or want interactions between them.

A fitted model gives log p(z|x) of the seen groups, which is additive. Two corrections of it are learned from the same
labelled rows, and judged on the same other rows:

.. math:: \text{additive: } \log p(z|x) + \langle \sigma(z), V x \rangle + b_z, \qquad
    \text{saturated: } \log p(z|x) + W_z x + b_z

Both are ridge logistic regressions that begin at the model; each chooses its ridge within the rows it is fitted to. The
saturated one has weights of its own for every group. Whatever is wrong with the model in an additive way (too little
training, too strong a ridge, other group frequencies here than in training) both mend alike, so that their difference
is about interactions alone, as far as these rows can show them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from compshift.core.arrays import BoolArray, FloatArray, IntArray
from compshift.core.logspace import log_softmax
from compshift.estimators.curvature import softmax_curvature
from compshift.estimators.logit_problem import LogitProblem
from compshift.estimators.row_folds import row_folds
from compshift.estimators.solver import Evaluation, Solution, solve
from compshift.estimators.standardise import standardise
from compshift.estimators.threads import one_thread_for_scipy

RIDGES = (100.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
"""What each correction chooses from, strongest first: at 100 nothing but the biases is corrected."""

INNER_FOLDS = 4
"""The ridge is chosen on one of so many parts of the rows."""

TOL, MAX_ITER = 1e-3, 300
"""Of the fits. Beyond them, likelihoods do not change to speak of."""


class Comparison(NamedTuple):
    """Log-likelihood of each row's own group, (n,) each, by fits that did not have the row."""

    given: FloatArray  # by the model as it is
    additive: FloatArray
    saturated: FloatArray


class Correction(NamedTuple):
    """Correction of known logits; with ``codes`` its weights are sums over attribute values."""

    logits: LogitProblem  # of the groups, without ridge
    codes: FloatArray  # (k, d) one-hot rows σ(z), or the identity
    alpha: float

    @property
    def coarse(self) -> None:
        """There is none."""

    @property
    def curvature(self) -> FloatArray:
        """About that along the weights of each value, or of each group, (d,)."""
        return softmax_curvature(self.frequency @ self.codes, self.logits.spread, self.alpha)

    @property
    def shape(self) -> tuple[int, int]:
        """Of the weights."""
        return self.codes.shape[1], self.logits.features.shape[1]

    @property
    def frequency(self) -> FloatArray:
        """Of the groups, (k,)."""
        return self.logits.frequency

    def evaluate(self, weight: FloatArray, bias: FloatArray) -> Evaluation:
        """Penalised risk and gradient."""
        value, gradient, bias_gradient = self.logits.evaluate(self.codes @ weight, bias)
        penalty = 0.5 * self.alpha * float(np.vdot(weight, weight))
        return Evaluation(value + penalty, self.alpha * weight + self.codes.T @ gradient, bias_gradient)


class GroupRows(NamedTuple):
    """Rows with their groups and what the model says of them."""

    features: FloatArray  # (n, p) standardised
    position: IntArray  # (n,) of the k groups
    log_proba: FloatArray  # (n, k)
    spread: float  # of the features, about

    def part(self, rows: IntArray) -> GroupRows:
        """Some of the rows."""
        return self._replace(features=self.features[rows], position=self.position[rows], log_proba=self.log_proba[rows])

    def corrections(self, codes: FloatArray) -> Iterator[Solution]:
        """Corrections at each of ``RIDGES``, every search beginning where the last one ended."""
        n, k = self.log_proba.shape
        frequency = np.bincount(self.position, minlength=k) / n
        logits = LogitProblem(
            self.features, self.position, np.arange(n), self.log_proba, np.full(n, 1 / n), frequency, 0.0, self.spread
        )
        found = None
        for alpha in RIDGES:
            start = None if found is None else found.start
            found = solve(Correction(logits, codes, alpha), tol=TOL, max_iter=MAX_ITER, start=start)
            yield found

    def own_log_proba(self, codes: FloatArray, correction: Solution) -> FloatArray:
        """Corrected log p(z|x) of each row's own group, (n,)."""
        logits = self.log_proba + self.features @ (codes @ correction.weight).T + correction.bias
        return own_entries(log_softmax(logits), self.position)


def own_entries(values: FloatArray, position: IntArray) -> FloatArray:
    """The entry of each row (n, k) at its position (n,)."""
    return np.asarray(values[np.arange(len(values)), position])


def compare(
    X: FloatArray,
    position: IntArray,
    log_proba: FloatArray,
    one_hot: FloatArray,
    n_folds: int,
    random: np.random.Generator,
) -> Comparison:
    """Likelihoods by the model and by both corrections, from ``n_folds`` folds.

    ``log_proba`` (n, k) is the model's, ``position`` (n,) the group of each row, ``one_hot`` (k, D) are the groups'
    codes. Every group has rows in more than two folds.
    """
    features, standard = standardise(X, np.ones(len(X)))
    everything = GroupRows(features, position, log_proba, standard.spread)
    identity = np.eye(len(one_hot))
    fold = row_folds(position, n_folds, random)
    additive, saturated = np.empty(len(X)), np.empty(len(X))
    with one_thread_for_scipy():
        for number in range(n_folds):
            held_out = everything.part(np.flatnonzero(fold == number))
            others = everything.part(np.flatnonzero(fold != number))
            inner = row_folds(others.position, INNER_FOLDS, random) == 0
            for result, codes in ((additive, one_hot), (saturated, identity)):
                ridge = _best_ridge(others, inner, codes)
                correction = next(islice(others.corrections(codes), ridge, None))
                result[fold == number] = held_out.own_log_proba(codes, correction)
    return Comparison(own_entries(log_proba, position), additive, saturated)


def _best_ridge(rows: GroupRows, held_out: BoolArray, codes: FloatArray) -> int:
    """Position of the ridge whose correction, fitted to some rows, suits the held-out ones best.

    The search ends at the first ridge that suits them worse than the one before.
    """
    fitting, judging = rows.part(np.flatnonzero(~held_out)), rows.part(np.flatnonzero(held_out))
    best = -np.inf
    for number, found in enumerate(fitting.corrections(codes)):
        likelihood = float(judging.own_log_proba(codes, found).mean())
        if likelihood <= best:
            return number - 1
        best = likelihood
    return len(RIDGES) - 1
