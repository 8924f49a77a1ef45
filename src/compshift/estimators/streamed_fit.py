"""The two steps of CRM on rows that are read again and again instead of being held (paper, Algorithm 1).

Every quantity is a sum over rows: the mean and the scale of the features, the risk and its gradient, the sums of B*,
the moments of the energies. What is not, the tails of B*'s weights, is left out. A search takes as many passes over the
rows as it evaluates the risk.
"""

from __future__ import annotations

import numpy as np

from compshift._errors import InputError
from compshift.core.arrays import FloatArray, row_blocks
from compshift.core.bias import BiasSums, extrapolated_bias, merge_sums, sums_over
from compshift.core.candidates import Candidates
from compshift.core.cumulant_bias import EnergyMoments, cumulant_bias, no_lower_than_samples
from compshift.core.energy import GroupTable, linear_energies
from compshift.core.objective import log_evidence
from compshift.estimators.crm_fit import Recipe
from compshift.estimators.crm_model import CRMModel
from compshift.estimators.row_sums import Block, RowSums, Sums
from compshift.estimators.solver import Solution, solve
from compshift.estimators.standardise import Standard, standard_of
from compshift.estimators.step_one_problem import StepOneProblem


def fit_streamed(rows: RowSums, candidates: Candidates, recipe: Recipe, *, tol: float, max_iter: int) -> CRMModel:
    """Solve step 1 on the seen groups, then compute the bias of every candidate."""
    if recipe.anchor != "zero" or recipe.cross_fit:
        raise InputError(
            "rows that are streamed are fitted with anchor='zero' and cross_fit=False: the others need all rows at once"
        )
    standard = standard_of(rows)
    seen = GroupTable.of(candidates.space, candidates.seen_groups)
    total = float(candidates.seen_weight.sum())
    frequency = candidates.seen_weight / total
    problem = StepOneProblem(
        rows, seen, frequency, recipe.alpha, standard=standard, total_weight=total, spread=standard.spread
    )
    solution = solve(problem, tol=tol, max_iter=max_iter)
    return _step_two(rows, standard, seen, candidates, solution)


def _step_two(
    rows: RowSums, standard: Standard, seen: GroupTable, candidates: Candidates, solution: Solution
) -> CRMModel:
    """Bias of every candidate, in two further passes."""
    weight = solution.weight
    log_score = np.log(candidates.seen_weight / candidates.seen_weight.sum()) - solution.bias
    in_candidates = candidates.space.locate(candidates.seen_groups, candidates.groups)  # (k,)
    tables = (candidates.table,) if (in_candidates >= 0).all() else (candidates.table, seen)
    sums = rows.total(_bias_sums, _merge_all, standard, seen, weight, log_score, tables)
    found, *own = (extrapolated_bias(table, part) for table, part in zip(tables, sums, strict=True))
    seen_bias = own[0].bias if own else found.bias[in_candidates]
    moments = _moments(rows, standard, candidates.seen_weight, weight)
    by_moments = cumulant_bias(candidates.space, candidates.groups, candidates.seen_groups, solution.bias, moments)
    return CRMModel(
        candidates=candidates,
        coef=weight / standard.scale,
        feature_mean=standard.mean,
        bias=found.bias,
        learned_bias=np.where(candidates.in_seen >= 0, solution.bias[candidates.in_seen], 0.0),
        cumulant_bias=no_lower_than_samples(by_moments, found),
        effective_sample_size=found.effective_sample_size,
        pareto_k=np.full(len(candidates.groups), np.nan),
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
    energies = linear_energies(standard.of(block.features), weight)
    evidence = np.empty(len(energies))
    for part in row_blocks(len(energies), seen.width + energies.shape[1]):
        evidence[part] = log_evidence(energies[part], seen, log_score)
    return tuple(sums_over(table, energies, evidence, block.weight) for table in tables)


def _merge_all(one: tuple[BiasSums, ...], other: tuple[BiasSums, ...]) -> tuple[BiasSums, ...]:
    return tuple(merge_sums(left, right) for left, right in zip(one, other, strict=True))


def _moments(rows: RowSums, standard: Standard, seen_weight: FloatArray, weight: FloatArray) -> EnergyMoments:
    """Mean energies of each seen group, and the covariance about them, pooled."""
    sums, squares = rows.total(_energy_sums, Sums.add, standard, weight, len(seen_weight)).arrays
    mean = sums / seen_weight[:, None]  # (k, D)
    between = (mean * seen_weight[:, None]).T @ mean
    return EnergyMoments(mean, (squares - between) / seen_weight.sum())


def _energy_sums(block: Block, standard: Standard, weight: FloatArray, n_seen: int) -> Sums:
    """Sums of the energies by group (k, D), and of their products (D, D)."""
    energies = linear_energies(standard.of(block.features), weight)
    weighted = energies * block.weight[:, None]
    by_group = np.stack([np.bincount(block.position, weights=column, minlength=n_seen) for column in weighted.T])
    return Sums((by_group.T, weighted.T @ energies))
