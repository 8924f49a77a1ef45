"""The two steps of Compositional Risk Minimization on fixed features, and what they result in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from compshift.core.arrays import BLOCK_CELLS, FloatArray, IntArray, row_blocks
from compshift.core.bias import ExtrapolatedBias, block_sums, empty_sums, extrapolated_bias, merge_sums
from compshift.core.candidates import Candidates
from compshift.core.energy import GroupTable
from compshift.core.objective import log_evidence
from compshift.core.posterior import group_log_posterior, marginal_log_posterior
from compshift.estimators.solver import Solution, solve, standardise
from compshift.estimators.step_one_problem import StepOneProblem


@dataclass(frozen=True, eq=False)
class CRMModel:
    """Linear energies, and the biases of the candidate groups. Everything here goes into a model file."""

    candidates: Candidates
    coef: FloatArray  # (D, p)
    feature_mean: FloatArray  # (p,)
    bias: FloatArray  # (g,) B*
    learned_bias: FloatArray  # (g,) B, 0 on unseen groups
    effective_sample_size: FloatArray  # (g,)
    bias_gap: float  # max |B* − B| over the seen groups
    gradient: float  # largest entry at the end of step 1
    n_iter: int
    converged: bool

    def energies(self, X: FloatArray) -> FloatArray:
        """Energy of every attribute value, (n, D), above the lowest of its attribute.

        What is common to an attribute's values cancels in every probability, but far from the data it is large enough
        to take the others' digits with it.
        """
        energies = (X - self.feature_mean) @ self.coef.T
        for start, size in zip(self.candidates.space.offsets, self.candidates.space.cardinalities, strict=True):
            block = energies[:, start : start + size]
            block -= block.min(axis=1, keepdims=True)
        return np.asarray(energies)

    def marginals(self, X: FloatArray, log_score: FloatArray, attributes: range) -> list[FloatArray]:
        """Log q(z_i|x) for each of the attributes, (n, d_i) each."""
        results = [np.empty((len(X), self.candidates.space.cardinalities[attribute])) for attribute in attributes]
        for rows, energies in self._blocks(X, self.candidates.table.width):
            for attribute, result in zip(attributes, results, strict=True):
                result[rows] = marginal_log_posterior(energies, self.candidates.table, log_score, attribute)
        return results

    def joint(self, X: FloatArray, log_score: FloatArray, position: IntArray | None = None) -> FloatArray:
        """Log q(z|x) of the candidates (n, g), or of those at ``position`` (n, q), −1 standing for any other group."""
        result = np.empty((len(X), len(self.candidates.groups) if position is None else len(position)))
        for rows, energies in self._blocks(X, result.shape[1] + self.candidates.table.width):
            result[rows] = group_log_posterior(energies, self.candidates.table, log_score, position)
        return result

    def best_group(self, X: FloatArray, log_score: FloatArray) -> tuple[IntArray, FloatArray]:
        """Position of the most probable candidate and its log q(z|x), (n,) each."""
        best, log_proba = np.empty(len(X), dtype=np.int64), np.empty(len(X))
        for rows, energies in self._blocks(X, len(self.candidates.groups)):
            posterior = group_log_posterior(energies, self.candidates.table, log_score)
            best[rows] = np.argmax(posterior, axis=1)
            log_proba[rows] = np.max(posterior, axis=1)
        return best, log_proba

    def _blocks(self, X: FloatArray, width: int) -> Iterator[tuple[slice, FloatArray]]:
        for rows in row_blocks(len(X), width + X.shape[1]):
            yield rows, self.energies(X[rows])


def fit_crm(
    X: FloatArray,
    position: IntArray,
    sample_weight: FloatArray,
    candidates: Candidates,
    *,
    alpha: float,
    tol: float,
    max_iter: int,
) -> CRMModel:
    """Solve step 1 on the seen groups, then compute the bias of every candidate (paper, Algorithm 1).

    ``X`` (n, p); ``position`` (n,), the seen group of each row; ``sample_weight`` (n,), every weight above 0.
    """
    seen = GroupTable.of(candidates.space, candidates.seen_groups)
    total = sample_weight.sum()
    features, mean, scale = standardise(X, sample_weight)
    problem = StepOneProblem(features, position, sample_weight / total, seen, candidates.seen_weight / total, alpha)
    solution = solve(problem, tol=tol, max_iter=max_iter)

    candidate_bias = _extrapolate(problem, solution, candidates.table)
    in_candidates = candidates.space.locate(candidates.seen_groups, candidates.groups)  # (k,)
    if (in_candidates >= 0).all():
        seen_bias = candidate_bias.bias[in_candidates]
    else:
        seen_bias = _extrapolate(problem, solution, seen).bias
    return CRMModel(
        candidates=candidates,
        coef=solution.weight / scale,
        feature_mean=mean,
        bias=candidate_bias.bias,
        learned_bias=np.where(candidates.in_seen >= 0, solution.bias[candidates.in_seen], 0.0),
        effective_sample_size=candidate_bias.effective_sample_size,
        bias_gap=float(np.abs(seen_bias - solution.bias).max()),
        gradient=solution.gradient,
        n_iter=solution.n_iter,
        converged=solution.converged,
    )


def _extrapolate(problem: StepOneProblem, solution: Solution, table: GroupTable) -> ExtrapolatedBias:
    """Step 2 over the training inputs, a block of rows at a time."""
    log_score = np.log(problem.frequency) - solution.bias
    sums = empty_sums(table, problem.features)
    cells = max(BLOCK_CELLS, len(table.left) * len(table.right))  # a block is worth the merging of its sums
    for rows in row_blocks(len(problem.features), table.width + problem.features.shape[1], cells):
        energies = problem.features[rows] @ solution.weight.T
        evidence = log_evidence(energies, problem.seen, log_score)
        sums = merge_sums(sums, block_sums(table, energies, evidence, problem.sample_weight[rows]))
    return extrapolated_bias(table, sums)
