"""The two steps of CRM on rows that are read again and again instead of being held (paper, Algorithm 1).

Every quantity is a sum over rows: the mean and the scale of the features, the risk and its gradient, the sums of B*,
the moments of the energies. What is not, the tails of B*'s weights, is left out. A search takes as many passes over the
rows as it evaluates the risk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from compshift._checks import check_finite
from compshift._errors import InputError
from compshift.core.arrays import FloatArray, row_blocks
from compshift.core.bias import BiasSums, extrapolated_bias, merge_sums, sums_over
from compshift.core.candidates import Candidates
from compshift.core.cumulant_bias import EnergyMoments, cumulant_bias
from compshift.core.energy import GroupTable
from compshift.core.objective import log_evidence
from compshift.estimators.crm_fit import Recipe
from compshift.estimators.crm_model import CRMModel
from compshift.estimators.row_sums import Block, RowSums
from compshift.estimators.solver import ROUNDING, Evaluation, Solution, solve
from compshift.estimators.step_one_problem import blocked_risk


class Sums(NamedTuple):
    """Arrays that add up entry by entry."""

    arrays: tuple[Any, ...]

    @staticmethod
    def add(one: Sums, other: Sums) -> Sums:
        """The sums over the rows of both."""
        return Sums(tuple(left + right for left, right in zip(one.arrays, other.arrays, strict=True)))


class Standard(NamedTuple):
    """What makes features standardised ones: (x − mean) / scale."""

    mean: FloatArray  # (p,)
    scale: float

    def energies(self, features: Any, weight: FloatArray) -> FloatArray:
        """Energies (b, D) of rows by weights (D, p) of standardised features."""
        return (np.asarray(features, dtype=np.float64) - self.mean) @ (weight.T / self.scale)


def fit_streamed(rows: RowSums, candidates: Candidates, recipe: Recipe, *, tol: float, max_iter: int) -> CRMModel:
    """Solve step 1 on the seen groups, then compute the bias of every candidate."""
    if recipe.anchor != "zero" or recipe.cross_fit:
        raise InputError(
            "rows that are streamed are fitted with anchor='zero' and cross_fit=False: the others need all rows at once"
        )
    standard = standard_of(rows)
    seen = GroupTable.of(candidates.space, candidates.seen_groups)
    problem = StreamedProblem(rows, standard, seen, candidates.seen_weight, recipe.alpha)
    solution = solve(problem, tol=tol, max_iter=max_iter)
    return _step_two(problem, candidates, solution)


def standard_of(rows: RowSums) -> Standard:
    """Mean and root mean square of the features, in two passes."""
    total, weighted, largest = rows.total(_first_sums, _add_and_max).arrays
    mean = weighted / total
    correction, squares, spread = rows.total(_second_sums, _add_and_max, mean).arrays
    mean = mean + correction / total  # the first mean's rounding
    if float(spread) <= ROUNDING * float(largest):
        return Standard(mean, 1.0)
    scale = math.sqrt(float(squares) / (float(total) * rows.n_features))
    return Standard(mean, scale)


def _first_sums(block: Block) -> Sums:
    """Weight, weighted sum of the features, and their largest entry."""
    features = np.asarray(block.features, dtype=np.float64)
    check_finite(features, "the store")
    return Sums((np.asarray(block.weight.sum()), block.weight @ features, np.abs(features).max(initial=0.0)))


def _second_sums(block: Block, mean: FloatArray) -> Sums:
    """Weighted sums of the centred features and of their squares, and their largest entry."""
    centred = np.asarray(block.features, dtype=np.float64) - mean
    squares = block.weight @ np.einsum("ij,ij->i", centred, centred)
    return Sums((block.weight @ centred, np.asarray(squares), np.abs(centred).max(initial=0.0)))


def _add_and_max(one: Sums, other: Sums) -> Sums:
    """The first two added, the last the larger."""
    (a, b, c), (d, e, f) = one.arrays, other.arrays
    return Sums((a + d, b + e, np.maximum(c, f)))


@dataclass(frozen=True, eq=False)
class StreamedProblem:
    """Step 1 as something to minimise, each evaluation a pass over the rows."""

    rows: RowSums
    standard: Standard
    seen: GroupTable
    seen_weight: FloatArray  # (k,) of the rows of each seen group
    alpha: float

    @property
    def shape(self) -> tuple[int, int]:
        """Of the weights."""
        return self.seen.space.width, self.rows.n_features

    @cached_property
    def frequency(self) -> FloatArray:
        """p̂ of the seen groups, (k,)."""
        return np.asarray(self.seen_weight / self.seen_weight.sum())

    def evaluate(self, weight: FloatArray, bias: FloatArray) -> Evaluation:
        """Penalised risk and gradient."""
        log_score = np.log(self.frequency) - bias
        found = self.rows.total(_risk, Sums.add, self.standard, self.seen, weight, log_score)
        value, weight_gradient, score_gradient = (part / self.seen_weight.sum() for part in found.arrays)
        return Evaluation(
            value=float(value) + 0.5 * self.alpha * float(np.vdot(weight, weight)),
            weight_gradient=self.alpha * weight + weight_gradient,
            bias_gradient=-score_gradient,
        )


def _risk(block: Block, standard: Standard, seen: GroupTable, weight: FloatArray, log_score: FloatArray) -> Sums:
    """Risk of the rows of a block, by their own weights, and its gradient."""
    features = (np.asarray(block.features, dtype=np.float64) - standard.mean) / standard.scale
    risk = blocked_risk(features @ weight.T, block.position, block.weight, seen, log_score)
    return Sums((np.asarray(risk.value), risk.energy_gradient.T @ features, risk.score_gradient))


def _step_two(problem: StreamedProblem, candidates: Candidates, solution: Solution) -> CRMModel:
    """Bias of every candidate, in two further passes."""
    rows, standard, seen, weight = problem.rows, problem.standard, problem.seen, solution.weight
    log_score = np.log(problem.frequency) - solution.bias
    in_candidates = candidates.space.locate(candidates.seen_groups, candidates.groups)  # (k,)
    tables = (candidates.table,) if (in_candidates >= 0).all() else (candidates.table, seen)
    sums = rows.total(_bias_sums, _merge_all, standard, seen, weight, log_score, tables)
    found, *own = (extrapolated_bias(table, part) for table, part in zip(tables, sums, strict=True))
    seen_bias = own[0].bias if own else found.bias[in_candidates]
    moments = _moments(problem, weight)
    n_groups = len(candidates.groups)
    return CRMModel(
        candidates=candidates,
        coef=weight / standard.scale,
        feature_mean=standard.mean,
        bias=found.bias,
        learned_bias=np.where(candidates.in_seen >= 0, solution.bias[candidates.in_seen], 0.0),
        cumulant_bias=cumulant_bias(
            candidates.space, candidates.groups, candidates.seen_groups, solution.bias, moments
        ),
        effective_sample_size=found.effective_sample_size,
        pareto_k=np.full(n_groups, np.nan),
        temperature=1.0,
        bias_gap=float(np.abs(seen_bias - solution.bias).max()),
        gradient=solution.gradient,
        n_iter=solution.n_iter,
        converged=solution.converged,
    )


def _bias_sums(
    block: Block,
    standard: Standard,
    seen: GroupTable,
    weight: FloatArray,
    log_score: FloatArray,
    tables: tuple[GroupTable, ...],
) -> tuple[BiasSums, ...]:
    """Sums of B* over the rows of a block, for each of the tables."""
    energies = standard.energies(block.features, weight)
    evidence = np.empty(len(energies))
    for part in row_blocks(len(energies), seen.width + energies.shape[1]):
        evidence[part] = log_evidence(energies[part], seen, log_score)
    return tuple(sums_over(table, energies, evidence, block.weight) for table in tables)


def _merge_all(one: tuple[BiasSums, ...], other: tuple[BiasSums, ...]) -> tuple[BiasSums, ...]:
    return tuple(merge_sums(left, right) for left, right in zip(one, other, strict=True))


def _moments(problem: StreamedProblem, weight: FloatArray) -> EnergyMoments:
    """Mean energies of each seen group, and the covariance about them, pooled."""
    n_seen = len(problem.seen_weight)
    sums, squares = problem.rows.total(_energy_sums, Sums.add, problem.standard, weight, n_seen).arrays
    mean = sums / problem.seen_weight[:, None]  # (k, D)
    between = (mean * problem.seen_weight[:, None]).T @ mean
    return EnergyMoments(mean, (squares - between) / problem.seen_weight.sum())


def _energy_sums(block: Block, standard: Standard, weight: FloatArray, n_seen: int) -> Sums:
    """Sums of the energies by group (k, D), and of their products (D, D)."""
    energies = standard.energies(block.features, weight)
    weighted = energies * block.weight[:, None]
    by_group = np.stack([np.bincount(block.position, weights=column, minlength=n_seen) for column in weighted.T])
    return Sums((by_group.T, weighted.T @ energies))
