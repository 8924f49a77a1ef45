"""Step 1 of CRM where attributes are missing in some rows: the likelihood of what is known, and p̂ as expected counts.

The risk has a closed form (``core.partial``) but is no longer convex, so the search begins at the fit to the complete
rows. The risk depends on p̂(z) and B(z) only through p̂(z) e^{−B(z)}: p̂ can be estimated again after each search and B
moved along, and nothing else changes. A complete row counts for its group, any other for the seen groups that agree
with what is known of it, each by its posterior. At the end p̂ are the expected counts of the fit itself, so that B* = B
on the seen groups as ever.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import numpy as np

from compshift.core.arrays import FloatArray, IntArray, row_blocks
from compshift.core.bias import EnergyMoments
from compshift.core.candidates import Candidates
from compshift.core.energy import GroupTable, linear_energies
from compshift.core.posterior import Pattern, partial_risk, posterior_sums, posterior_totals
from compshift.crm.base import Incomplete
from compshift.crm.blocks import ArrayRows, Standard, Sums, in_threads, one_thread_for_numpy, standardise
from compshift.crm.fit import FitParams, StandardisedRows, StepOne, block_risk, step_two, value_curvature
from compshift.crm.model import CRMModel
from compshift.crm.solver import PATIENCE, RiskGradient, Solution, Start, solve

START_TOL = 1e-3
"""Of the fit to the complete rows, which is only a place to start from."""

ROUNDS = 50
"""Searches at most, with p̂ estimated again after each. Two or three are the rule."""

ROUNDING = 1e-12
"""By which the risk may seem to rise, relative to its size."""


class PartialRows(NamedTuple):
    """Standardised features of all rows, the complete ones first, with what is known of their groups."""

    features: FloatArray  # (n, p)
    standard: Standard  # what was taken out of the features
    weight: FloatArray  # (n,) summing to 1
    seen: GroupTable
    position: IntArray  # (c,) seen group of each complete row
    patterns: tuple[Pattern, ...]  # of the other rows, counted from the first of all

    @classmethod
    def of(
        cls,
        X: FloatArray,
        position: IntArray,
        sample_weight: FloatArray,
        incomplete: Incomplete,
        candidates: Candidates,
    ) -> PartialRows:
        """``X`` (c, p), ``position`` (c,) and ``sample_weight`` (c,) are of the complete rows."""
        weight = np.concatenate([sample_weight, incomplete.sample_weight])
        features, standard = standardise(np.concatenate([X, incomplete.X]), weight)
        seen = GroupTable.of(candidates.space, candidates.seen_groups)
        patterns = tuple(pattern._replace(rows=pattern.rows + len(X)) for pattern in incomplete.patterns)
        return cls(features, standard, weight / weight.sum(), seen, position, patterns)

    @property
    def complete(self) -> StandardisedRows:
        """The complete rows alone."""
        c = len(self.position)
        weight = self.weight[:c] / self.weight[:c].sum()
        return StandardisedRows(self.features[:c], self.standard, self.position, weight, self.seen)

    def risk(self, weight: FloatArray, log_score: FloatArray) -> Sums:
        """Risk of what is known, and its gradient: value, (D, p) and (k,)."""
        c = len(self.position)
        complete = ArrayRows(self.features[:c], self.position, self.weight[:c])
        found = complete.total(block_risk, Sums.add, self.seen, weight, log_score)
        width = self.seen.width + len(weight) + len(weight[0])
        parts = ((pattern, part) for pattern in self.patterns for part in row_blocks(len(pattern.rows), width))
        with one_thread_for_numpy() as n_threads:
            return reduce(Sums.add, in_threads(self._pattern_risk, parts, (weight, log_score), n_threads), found)

    def _pattern_risk(self, part: tuple[Pattern, slice], weight: FloatArray, log_score: FloatArray) -> Sums:
        """The same of some rows that lack the same attributes."""
        pattern, some = part
        rows = pattern.rows[some]
        features = self.features[rows]
        risk = partial_risk(features @ weight.T, self.weight[rows], self.seen, pattern, log_score)
        return Sums((np.asarray(risk.value), risk.energy_gradient.T @ features, risk.score_gradient))

    def expected_frequency(self, energies: FloatArray, log_score: FloatArray) -> FloatArray:
        """p̂ of the seen groups as expected counts, (k,)."""
        c = len(self.position)
        total = np.bincount(self.position, weights=self.weight[:c], minlength=len(log_score)).astype(np.float64)
        for pattern in self.patterns:
            for part in row_blocks(len(pattern.rows), pattern.table.width + energies.shape[1]):
                rows = pattern.rows[part]
                total[pattern.agreeing] += posterior_totals(energies[rows], self.weight[rows], pattern, log_score)
        return np.asarray(total / total.sum())

    def energy_moments(self, energies: FloatArray, log_score: FloatArray) -> EnergyMoments:
        """Expected moments of the energies within the seen groups; over all rows they have mean 0, as features do."""
        c = len(self.position)
        sums = np.zeros((len(log_score), energies.shape[1]))
        np.add.at(sums, self.position, self.weight[:c, None] * energies[:c])
        for pattern in self.patterns:
            for part in row_blocks(len(pattern.rows), len(pattern.agreeing) + energies.shape[1]):
                rows = pattern.rows[part]
                sums[pattern.agreeing] += posterior_sums(energies[rows], self.weight[rows], pattern, log_score)
        frequency = self.expected_frequency(energies, log_score)
        mean = sums / frequency[:, None]  # (k, D)
        second = (energies * self.weight[:, None]).T @ energies
        return EnergyMoments(mean, second - (mean * frequency[:, None]).T @ mean)


class PartialProblem(NamedTuple):
    """Step 1 on what is known: energies are features · weightᵀ, and there is a bias for each seen group."""

    rows: PartialRows
    frequency: FloatArray  # (k,) p̂(z)
    alpha: float
    anchor: Start | None = None

    @property
    def coarse(self) -> None:
        """There is none."""

    @property
    def curvature(self) -> FloatArray:
        """About that along the energies' weights, (D,)."""
        return value_curvature(self.rows.seen, self.frequency, self.rows.standard.spread, self.alpha)

    @property
    def shape(self) -> tuple[int, int]:
        """Of the weights."""
        return self.rows.seen.space.width, self.rows.features.shape[1]

    def evaluate(self, weight: FloatArray, bias: FloatArray) -> RiskGradient:
        """Penalised risk and gradient."""
        log_score = np.log(self.frequency) - bias
        value, weight_gradient, score_gradient = self.rows.risk(weight, log_score).arrays
        moved = weight if self.anchor is None else weight - self.anchor.weight
        return RiskGradient(
            value=float(value) + 0.5 * self.alpha * float(np.vdot(moved, moved)),
            weight_gradient=self.alpha * moved + weight_gradient,
            bias_gradient=-score_gradient,
        )


class PartialFit(NamedTuple):
    """What the alternation ends with."""

    solution: Solution
    frequency: FloatArray  # (k,) expected counts at the end
    risks: tuple[float, ...]  # penalised, at the fit to the complete rows and after each search

    @property
    def log_score(self) -> FloatArray:
        """Log p̂(z) − B(z), (k,)."""
        return np.log(self.frequency) - self.solution.bias


def alternate(rows: PartialRows, recipe: FitParams, *, tol: float, max_iter: int) -> PartialFit:
    """Minimise the risk of what is known and estimate p̂ again, in turn, until p̂ stays as it is."""
    complete = rows.complete.problem(recipe)
    first = solve(complete, tol=max(tol, START_TOL), max_iter=max_iter, start=complete.anchor)
    weight, log_score, n_iter = first.weight, np.log(complete.frequency) - first.bias, first.n_iter
    frequency = rows.expected_frequency(rows.features @ weight.T, log_score)
    risks: list[float] = []
    gradient, converged = np.inf, False
    for _ in range(ROUNDS):
        problem = PartialProblem(rows, frequency, recipe.alpha, complete.anchor)
        begin = Start(weight, np.log(frequency) - log_score)
        risks = risks or [problem.evaluate(*begin).value]
        # Newton's method, which a search falls back on, would as soon end on a saddle: it is left the last digits.
        steps = min(PATIENCE, max(1, max_iter - n_iter))
        found = solve(problem, tol=tol, max_iter=steps, start=begin)
        n_iter += found.n_iter
        if found.risk > risks[-1] + ROUNDING * max(1.0, abs(risks[-1])):
            break
        risks.append(found.risk)
        weight, log_score, gradient = found.weight, np.log(frequency) - found.bias, found.gradient
        before, frequency = frequency, rows.expected_frequency(rows.features @ weight.T, log_score)
        converged = found.converged and float(np.abs(np.log(frequency / before)).max()) <= tol
        if converged or n_iter >= max_iter or not (found.converged or found.n_iter >= steps):
            break
    bias = np.log(frequency) - log_score
    solution = Solution(weight, bias - frequency @ bias, risks[-1], gradient, n_iter, converged)
    return PartialFit(solution, frequency, tuple(risks))


class _FittedRows(NamedTuple):
    """All rows, as the second step sees them."""

    standard: Standard
    weight: FloatArray
    seen: GroupTable
    frequency: FloatArray
    found: EnergyMoments

    def moments(self, energies: FloatArray) -> EnergyMoments:  # noqa: ARG002 - they are of these very energies
        """Expected moments of the energies within the seen groups."""
        return self.found


def fit_partial(
    X: FloatArray,
    position: IntArray,
    sample_weight: FloatArray,
    incomplete: Incomplete,
    candidates: Candidates,
    recipe: FitParams,
    *,
    tol: float,
    max_iter: int,
) -> CRMModel:
    """Both steps, on complete rows and on others; the candidates of the model have expected counts as weights."""
    rows = PartialRows.of(X, position, sample_weight, incomplete, candidates)
    fit = alternate(rows, recipe, tol=tol, max_iter=max_iter)
    energies = linear_energies(rows.features, fit.solution.weight)
    moments = rows.energy_moments(energies, fit.log_score)
    total = float(sample_weight.sum() + incomplete.sample_weight.sum())
    return step_two(
        _FittedRows(rows.standard, rows.weight, rows.seen, fit.frequency, moments),
        replace(candidates, seen_weight=total * fit.frequency),
        StepOne(fit.solution, 1.0, energies, fit.solution.bias),
    )
