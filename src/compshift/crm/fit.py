"""Step 1 of CRM on fixed features, as something to minimise.

The two steps of Compositional Risk Minimization on fixed features (paper, Algorithm 1).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple, Protocol

import numpy as np

from compshift._checks import check_count
from compshift._errors import InputError, check_name
from compshift.core.arrays import BLOCK_CELLS, FloatArray, IntArray, like, row_blocks, safe_log
from compshift.core.bias import (
    BiasSums,
    EnergyMoments,
    ExtrapolatedBias,
    cumulant_bias,
    energy_moments,
    extrapolated_bias,
    merge_sums,
    no_lower_than_samples,
    rows_worth_merging,
    sums_over,
    tail_indices,
)
from compshift.core.candidates import Candidates
from compshift.core.energy import GroupTable, Risk, linear_energies, log_evidence, step_one_risk
from compshift.crm.blocks import (
    ArrayRows,
    Block,
    RowSums,
    Standard,
    Sums,
    in_threads,
    one_thread_for_numpy,
    over_blocks,
    softmax_curvature,
    standardise,
)
from compshift.crm.gaussian import gaussian_energies
from compshift.crm.inputs import row_folds
from compshift.crm.model import CRMModel
from compshift.crm.solver import RiskGradient, Solution, Start, solve


@dataclass(frozen=True, eq=False)
class StepOneProblem:
    """Energies are features · weightᵀ; there is a bias for each seen group. The ridge pulls weights to the anchor.

    Each evaluation is a pass over the rows.
    """

    rows: RowSums
    seen: GroupTable
    frequency: FloatArray  # (k,) p̂(z)
    alpha: float
    anchor: Start | None = None  # with the biases that go with it; None for zero
    standard: Standard | None = None  # of the rows' features; None if they are standardised
    total_weight: float = 1.0  # of the rows
    spread: float = 1.0  # of the features, about
    precision: type = np.float64  # in which features that are not standardised yet are taken

    @property
    def shape(self) -> tuple[int, int]:
        """Of the weights."""
        return self.seen.space.width, self.rows.n_features

    @property
    def curvature(self) -> FloatArray:
        """About that along the energies' weights, (D,)."""
        return value_curvature(self.seen, self.frequency, self.spread, self.alpha)

    @property
    def coarse(self) -> StepOneProblem | None:
        """The same in single precision: rows in memory by a copy, others as they are read."""
        if self.standard is not None:
            return replace(self, precision=np.float32)
        rows = getattr(self.rows, "coarse", None)
        return None if rows is None else replace(self, rows=rows)

    def evaluate(self, weight: FloatArray, bias: FloatArray) -> RiskGradient:
        """Penalised risk and gradient."""
        log_score = safe_log(self.frequency) - bias
        found = self.rows.total(
            block_risk, Sums.add, self.seen, weight, log_score, self.standard, self.precision, self.total_weight
        )
        value, weight_gradient, score_gradient = found.arrays
        moved = weight if self.anchor is None else weight - self.anchor.weight
        return RiskGradient(
            value=float(value) + 0.5 * self.alpha * float(np.vdot(moved, moved)),
            weight_gradient=self.alpha * moved + weight_gradient,
            bias_gradient=-score_gradient,
        )


def value_curvature(seen: GroupTable, frequency: FloatArray, spread: float, alpha: float) -> FloatArray:
    """About the curvature along the weights of each attribute value, (D,), if groups have these frequencies (k,)."""
    return softmax_curvature(frequency @ seen.space.one_hot(seen.codes), spread, alpha)


def block_risk(
    block: Block,
    seen: GroupTable,
    weight: FloatArray,
    log_score: FloatArray,
    standard: Standard | None = None,
    precision: type = np.float64,
    total_weight: float = 1.0,
) -> Sums:
    """Share of a block in the risk and in its gradient: value, (D, p) and (k,)."""
    features = block.features if standard is None else standard.of(block.features).astype(precision, copy=False)
    energies = linear_energies(features, like(weight, features))  # (n, D)
    risk = blocked_risk(energies, block.position, block.weight / total_weight, seen, log_score)
    gradient = (risk.energy_gradient.T @ features).astype(np.float64, copy=False)
    return Sums((np.asarray(risk.value), gradient, risk.score_gradient))


@dataclass(frozen=True, eq=False)
class TemperatureProblem:
    """Energies are given, and only their common factor and the biases are sought."""

    rows: RowSums  # whose features are the energies (n, D); their weights sum to 1
    seen: GroupTable
    frequency: FloatArray  # (k,) p̂(z)

    coarse = None
    curvature = np.ones(1)

    @property
    def alpha(self) -> float:
        """There is no ridge."""
        return 0.0

    @property
    def shape(self) -> tuple[int, int]:
        """One weight, the factor."""
        return 1, 1

    def evaluate(self, weight: FloatArray, bias: FloatArray) -> RiskGradient:
        """Risk and gradient."""
        log_score = safe_log(self.frequency) - bias
        found = self.rows.total(_scaled_risk, Sums.add, self.seen, float(weight[0, 0]), log_score)
        value, factor_gradient, score_gradient = found.arrays
        return RiskGradient(float(value), factor_gradient, -score_gradient)


def _scaled_risk(block: Block, seen: GroupTable, factor: float, log_score: FloatArray) -> Sums:
    """Risk of the rows of a block by a multiple of their energies, and its gradient: value, (1, 1) and (k,)."""
    risk = blocked_risk(factor * block.features, block.position, block.weight, seen, log_score)
    factor_gradient = np.full((1, 1), np.vdot(risk.energy_gradient, block.features))
    return Sums((np.asarray(risk.value), factor_gradient, risk.score_gradient))


def blocked_risk(
    energies: FloatArray, position: IntArray, sample_weight: FloatArray, seen: GroupTable, log_score: FloatArray
) -> Risk:
    """Risk and gradient of step 1, with the sums over groups in blocks of samples that fit a core's cache."""
    cells = max(2 * BLOCK_CELLS, len(seen.left) * len(seen.right))  # a block is worth its share of the table
    blocks = list(row_blocks(len(energies), seen.width + energies.shape[1], cells))
    if len(blocks) == 1:
        return step_one_risk(energies, position, sample_weight, seen, log_score)
    value = 0.0
    energy_gradient, score_gradient = np.empty_like(energies), np.zeros(len(log_score))
    for rows in blocks:
        risk = step_one_risk(energies[rows], position[rows], sample_weight[rows], seen, log_score)
        value += float(risk.value)
        energy_gradient[rows] = risk.energy_gradient
        score_gradient += risk.score_gradient
    return Risk(value, energy_gradient, score_gradient)


ANCHORS = ("zero", "gaussian")

MAX_TAIL_WEIGHTS = 20_000_000
"""Up to so many weights (samples times groups) are sorted; of more, tails are not looked at."""

TAIL_BLOCK = 1 << 20
"""How many weights a thread sorts at a time: it has many small things to do with them, which need Python's lock."""

PARTS = 5
"""Of cross-fitting, unless another number is given."""


class FitParams(NamedTuple):
    """How energies and their biases are fitted."""

    alpha: float
    anchor: str = "zero"  # what the ridge pulls to
    cross_fit: int = 0  # parts whose energies are fitted on the others; 0 for none


def check_parts(cross_fit: bool | int) -> int:
    """Number of parts to cross-fit in, 0 for none."""
    if isinstance(cross_fit, bool | np.bool_):
        return PARTS if cross_fit else 0
    parts = check_count(cross_fit, "cross_fit")
    if parts < 2:
        raise InputError(f"cross_fit is {parts}: pass True, False, or 2 parts or more")
    return parts


class StandardisedRows(NamedTuple):
    """Standardised features with their groups."""

    features: FloatArray  # (n, p)
    standard: Standard  # what was taken out of them
    position: IntArray  # (n,) seen group of each row
    weight: FloatArray  # (n,) summing to 1
    seen: GroupTable

    @classmethod
    def of(
        cls, X: FloatArray, position: IntArray, sample_weight: FloatArray, candidates: Candidates
    ) -> StandardisedRows:
        """``position`` (n,) is the seen group of each row; every weight is above 0."""
        features, standard = standardise(X, sample_weight)
        seen = GroupTable.of(candidates.space, candidates.seen_groups)
        return cls(features, standard, position, sample_weight / sample_weight.sum(), seen)

    @property
    def frequency(self) -> FloatArray:
        """p̂ of the seen groups, (k,)."""
        return _sums(self.position, self.weight, len(self.seen.row))

    def moments(self, energies: FloatArray) -> EnergyMoments:
        """Moments of the energies (n, D) within the seen groups."""
        return energy_moments(energies, self.position, self.weight, len(self.seen.row))

    def problem(self, recipe: FitParams) -> StepOneProblem:
        """Step 1 on all rows."""
        return self._problem(recipe, np.arange(len(self.position)), self.position, self.seen)

    def part(self, recipe: FitParams, rows: IntArray) -> tuple[StepOneProblem, IntArray]:
        """Step 1 on some of the rows and on the seen groups that they have, with the positions of those groups."""
        present, position = np.unique(self.position[rows], return_inverse=True)
        seen = GroupTable.of(self.seen.space, self.seen.codes[present])
        return self._problem(recipe, rows, position.reshape(-1), seen), present

    def _problem(self, recipe: FitParams, rows: IntArray, position: IntArray, seen: GroupTable) -> StepOneProblem:
        check_name("anchor", recipe.anchor, ANCHORS)
        features, weight = (
            (self.features, self.weight)
            if len(rows) == len(self.weight)
            else (
                self.features[rows],
                self.weight[rows] / self.weight[rows].sum(),
            )
        )
        anchor = gaussian_energies(features, position, weight, seen) if recipe.anchor == "gaussian" else None
        frequency = _sums(position, weight, len(seen.row))
        own = ArrayRows(features, position, weight)
        return StepOneProblem(own, seen, frequency, recipe.alpha, anchor, spread=self.standard.spread)


def _sums(position: IntArray, weight: FloatArray, size: int) -> FloatArray:
    """Sum of the weights (n,) at each position (n,), (size,)."""
    return np.bincount(position, weights=weight, minlength=size).astype(np.float64)


class FittedRows(Protocol):
    """What the second step asks of rows whose energies are fitted."""

    @property
    def standard(self) -> Standard:
        """What was taken out of the features."""

    @property
    def weight(self) -> FloatArray:
        """Of the rows, (n,), summing to 1."""

    @property
    def seen(self) -> GroupTable:
        """The seen groups."""

    @property
    def frequency(self) -> FloatArray:
        """p̂ of the seen groups, (k,)."""

    def moments(self, energies: FloatArray) -> EnergyMoments:
        """Moments of the energies (n, D) within the seen groups."""


class StepOne(NamedTuple):
    """Energies of the training rows, by the model itself or by models that did not see them, and biases to match."""

    solution: Solution
    temperature: float
    energies: FloatArray  # (n, D)
    bias: FloatArray  # (k,)


def fit_crm(
    X: FloatArray,
    position: IntArray,
    sample_weight: FloatArray,
    candidates: Candidates,
    recipe: FitParams,
    *,
    tol: float,
    max_iter: int,
) -> CRMModel:
    """Solve step 1 on the seen groups, then compute the bias of every candidate."""
    rows = StandardisedRows.of(X, position, sample_weight, candidates)
    return step_two(rows, candidates, step_one(rows, recipe, tol=tol, max_iter=max_iter))


def step_one(
    rows: StandardisedRows, recipe: FitParams, *, tol: float, max_iter: int, start: Start | None = None
) -> StepOne:
    """Fit energies and biases to the seen groups."""
    problem = rows.problem(recipe)
    solution = solve(problem, tol=tol, max_iter=max_iter, start=problem.anchor if start is None else start)
    if not recipe.cross_fit:
        return StepOne(solution, 1.0, linear_energies(rows.features, solution.weight), solution.bias)
    energies = _out_of_fold_energies(rows, recipe, solution, tol=max(tol, CROSS_FIT_TOL), max_iter=max_iter)
    calibration = TemperatureProblem(ArrayRows(energies, rows.position, rows.weight), rows.seen, rows.frequency)
    scaled = solve(calibration, tol=tol, max_iter=max_iter, start=Start(np.ones((1, 1)), solution.bias))
    temperature = max(float(scaled.weight[0, 0]), 0.0)
    return StepOne(solution, temperature, temperature * energies, scaled.bias)


CROSS_FIT_TOL = 1e-4
"""Of the fits whose energies on other rows are wanted: beyond it those do not change to speak of."""


def _out_of_fold_energies(
    rows: StandardisedRows, recipe: FitParams, solution: Solution, *, tol: float, max_iter: int
) -> FloatArray:
    """Energies (n, D) of each row by a fit to the rows of other folds; every group is spread over the folds."""
    fold = row_folds(rows.position, recipe.cross_fit, np.random.default_rng(0))
    energies = np.empty((rows.seen.space.width, len(fold))).T
    for number in range(recipe.cross_fit):
        own = fold == number
        if not own.any():
            continue
        problem, present = rows.part(recipe, np.flatnonzero(~own))
        found = solve(problem, tol=tol, max_iter=max_iter, start=Start(solution.weight, solution.bias[present]))
        energies[own] = linear_energies(rows.features[own], found.weight)
    return energies


def step_two(rows: FittedRows, candidates: Candidates, fitted: StepOne, *, tails: bool = True) -> CRMModel:
    """Bias of every candidate, by each way there is; ``tails`` asks for the Pareto tail indices too."""
    evidence = evidence_of(fitted.energies, rows.seen, np.log(rows.frequency) - fitted.bias)
    found = extrapolate(fitted.energies, evidence, rows.weight, candidates.table)
    in_candidates = candidates.space.locate(candidates.seen_groups, candidates.groups)  # (k,)
    if (in_candidates >= 0).all():
        seen_bias = found.bias[in_candidates]
    else:
        seen_bias = extrapolate(fitted.energies, evidence, rows.weight, rows.seen).bias
    by_moments = cumulant_bias(
        candidates.space, candidates.groups, candidates.seen_groups, fitted.bias, rows.moments(fitted.energies)
    )
    return CRMModel(
        candidates=candidates,
        coef=fitted.temperature * fitted.solution.weight / rows.standard.scale,
        feature_mean=rows.standard.mean,
        bias=found.bias,
        learned_bias=np.where(candidates.in_seen >= 0, fitted.bias[candidates.in_seen], 0.0),
        cumulant_bias=no_lower_than_samples(by_moments, found),
        effective_sample_size=found.effective_sample_size,
        pareto_k=_tails(candidates, fitted.energies, evidence, rows.weight)
        if tails
        else np.full(len(candidates.groups), np.nan),
        temperature=fitted.temperature,
        bias_gap=float(np.abs(seen_bias - fitted.bias).max()),
        gradient=fitted.solution.gradient,
        n_iter=fitted.solution.n_iter,
        converged=fitted.solution.converged,
    )


def evidence_of(energies: FloatArray, seen: GroupTable, log_score: FloatArray) -> FloatArray:
    """c(x) of any number of rows, (n,)."""

    def some(rows: slice) -> FloatArray:
        blocks = row_blocks(rows.stop - rows.start, seen.width + energies.shape[1])
        return np.concatenate([log_evidence(energies[rows][part], seen, log_score) for part in blocks])

    return np.concatenate(list(over_blocks(some, len(energies))))


def extrapolate(energies: FloatArray, evidence: FloatArray, weight: FloatArray, table: GroupTable) -> ExtrapolatedBias:
    """B* over the training inputs, and its effective sample size; weights (n,) are above 0."""

    def some(rows: slice) -> BiasSums:
        return sums_over(table, energies[rows], evidence[rows], weight[rows])

    sums = over_blocks(some, len(energies), rows_worth_merging(table))
    return extrapolated_bias(table, reduce(merge_sums, sums))


def _tails(candidates: Candidates, energies: FloatArray, evidence: FloatArray, weight: FloatArray) -> FloatArray:
    """Pareto k̂ of each candidate, (g,); NaN if there are too many to look at."""
    groups = candidates.groups
    if len(energies) * len(groups) > MAX_TAIL_WEIGHTS:
        return np.full(len(groups), np.nan)

    def some(part: slice) -> FloatArray:
        return tail_indices(candidates.space, groups[part], energies, evidence, weight)

    with one_thread_for_numpy() as n_threads:
        return np.concatenate(list(in_threads(some, row_blocks(len(groups), len(energies), TAIL_BLOCK), (), n_threads)))
