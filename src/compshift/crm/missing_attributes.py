"""Both steps of CRM when attributes are missing in some samples.

Step 1 maximises the likelihood of the known attributes. The likelihood can be computed exactly (``core.posterior``),
but the risk, its negative logarithm, is not convex, so the search starts from the fit to the complete samples.

The risk depends on p̂(z) and B(z) only through p̂(z) e^{−B(z)}, so p̂ is free as long as B changes with it. After each
search p̂ is re-estimated from expected counts, and B is adjusted so that the product stays the same. A complete sample
counts for its group; an incomplete sample counts for every seen group that agrees with its known attributes, in
proportion to the group's posterior probability. At the end p̂ are the frequencies that the fit itself expects, so that
B* = B on the seen groups, as in a fit without missing attributes.
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
from compshift.core.sparse import Features, stacked
from compshift.crm.blocks import ArrayRows, Sums, in_threads, one_thread_for_numpy
from compshift.crm.fit import FitParams, StandardisedRows, StepOne, step_two
from compshift.crm.inputs import Incomplete, LabelledSamples
from compshift.crm.model import CRMModel
from compshift.crm.problem import Standard, block_risk, penalised, standardise, value_curvature
from compshift.crm.solver import NEWTON_AFTER, Parameters, RiskGradient, Solution, solve

WARM_START_TOL = 1e-3
"""Tolerance of the fit to the complete samples, which serves only as a warm start."""

MAX_SEARCHES = 50
"""Maximum number of searches; p̂ is re-estimated after each. Two or three are usually enough."""

RISK_ROUNDING = 1e-12
"""Relative increase of the risk up to which a search result is accepted: rounding alone can cause it."""


class PartialRows(NamedTuple):
    """All training samples with standardised features, the complete ones first."""

    features: Features  # (n, p)
    standard: Standard  # centre and scale of the original features
    weight: FloatArray  # (n,) summing to 1
    seen: GroupTable
    position: IntArray  # (c,) index of each complete sample's seen group
    patterns: tuple[Pattern, ...]  # incomplete samples by known attribute values; ``rows`` index ``features``

    @classmethod
    def of(
        cls,
        X: Features,
        position: IntArray,
        sample_weight: FloatArray,
        incomplete: Incomplete,
        candidates: Candidates,
    ) -> PartialRows:
        """Standardise the complete samples ``X`` (c, p) and the incomplete samples together.

        ``position`` (c,) and ``sample_weight`` (c,) belong to the complete samples.
        """
        weight = np.concatenate([sample_weight, incomplete.sample_weight])
        features, standard = standardise(stacked(X, incomplete.X), weight)
        seen = GroupTable.of(candidates.space, candidates.seen_groups)
        patterns = tuple(pattern._replace(rows=pattern.rows + len(X)) for pattern in incomplete.patterns)
        return cls(features, standard, weight / weight.sum(), seen, position, patterns)

    @property
    def complete(self) -> StandardisedRows:
        """The complete samples only, with weights that sum to 1."""
        c = len(self.position)
        weight = self.weight[:c] / self.weight[:c].sum()
        return StandardisedRows(self.features[:c], self.standard, self.position, weight, self.seen)

    def risk(self, weight: FloatArray, log_score: FloatArray) -> Sums:
        """Return the risk of the known attributes: value, weight gradient (D, p) and score gradient (k,)."""
        c = len(self.position)
        complete = ArrayRows(self.features[:c], self.position, self.weight[:c])
        complete_risk = complete.total(block_risk, Sums.add, self.seen, weight, log_score)
        width = self.seen.width + len(weight) + self.features.size // len(self.features)
        parts = ((pattern, part) for pattern in self.patterns for part in row_blocks(len(pattern.rows), width))
        with one_thread_for_numpy() as n_threads:
            incomplete_risks = in_threads(self._pattern_risk, parts, (weight, log_score), n_threads)
            return reduce(Sums.add, incomplete_risks, complete_risk)

    def _pattern_risk(self, part: tuple[Pattern, slice], weight: FloatArray, log_score: FloatArray) -> Sums:
        """Return the risk of some of the samples of a pattern, which have the same known attribute values."""
        pattern, selected = part
        rows = pattern.rows[selected]
        features = self.features[rows]
        risk = partial_risk(features @ weight.T, self.weight[rows], self.seen, pattern, log_score)
        return Sums((np.asarray(risk.value), risk.energy_gradient.T @ features, risk.score_gradient))

    def expected_frequency(self, energies: FloatArray, log_score: FloatArray) -> FloatArray:
        """Return the frequencies p̂ of the seen groups, (k,), from expected counts."""
        c = len(self.position)
        total = np.bincount(self.position, weights=self.weight[:c], minlength=len(log_score)).astype(np.float64)
        for pattern in self.patterns:
            for part in row_blocks(len(pattern.rows), pattern.table.width + energies.shape[1]):
                rows = pattern.rows[part]
                total[pattern.agreeing] += posterior_totals(energies[rows], self.weight[rows], pattern, log_score)
        return np.asarray(total / total.sum())

    def energy_moments(self, energies: FloatArray, log_score: FloatArray) -> EnergyMoments:
        """Return the expected moments of the energies within the seen groups.

        The pooled covariance is a difference of second moments. It loses few digits, because the features, and with
        them the energies, have mean 0 over all samples.
        """
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
    """Penalised risk of the known attributes, for energies ``features · weightᵀ`` and one bias per seen group."""

    rows: PartialRows
    frequency: FloatArray  # (k,) p̂(z)
    alpha: float
    anchor: Parameters | None = None  # weights that the ridge pulls towards; None for zero

    @property
    def single_precision(self) -> None:
        """Always None: the problem has no single-precision version."""

    @property
    def curvature(self) -> FloatArray:
        """Approximate curvature of the risk along the weights of each attribute value, (D,)."""
        return value_curvature(self.rows.seen, self.frequency, self.rows.standard.spread, self.alpha)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the weight matrix, (D, p)."""
        return self.rows.seen.space.width, self.rows.features.shape[1]

    def evaluate(self, weight: FloatArray, bias: FloatArray) -> RiskGradient:
        """Return the penalised risk and its gradient."""
        return penalised(self.rows.risk(weight, np.log(self.frequency) - bias), weight, self.anchor, self.alpha)


class PartialFit(NamedTuple):
    """Result of ``fit_alternating``."""

    solution: Solution
    frequency: FloatArray  # (k,) p̂(z) from the final expected counts
    risks: tuple[float, ...]  # penalised risk at the warm start and after each accepted search

    @property
    def log_score(self) -> FloatArray:
        """Score log p̂(z) − B(z) of each seen group, (k,)."""
        return np.log(self.frequency) - self.solution.bias


def fit_alternating(rows: PartialRows, params: FitParams, *, tol: float, max_iter: int) -> PartialFit:
    """Alternate between minimising the risk of the known attributes and re-estimating p̂, until p̂ converges."""
    complete = rows.complete.problem(params)
    first = solve(complete, tol=max(tol, WARM_START_TOL), max_iter=max_iter, start=complete.anchor)
    weight, log_score, n_iter = first.weight, np.log(complete.frequency) - first.bias, first.n_iter
    frequency = rows.expected_frequency(rows.features @ weight.T, log_score)
    risks: list[float] = []
    gradient, converged = np.inf, False
    for _ in range(MAX_SEARCHES):
        problem = PartialProblem(rows, frequency, params.alpha, complete.anchor)
        start = Parameters(weight, np.log(frequency) - log_score)
        risks = risks or [problem.evaluate(*start).value]
        # Newton's method might end at a saddle point. With at most NEWTON_AFTER steps per search the solver uses it
        # only if L-BFGS stops early, which it does close to a minimum.
        steps = min(NEWTON_AFTER, max(1, max_iter - n_iter))
        found = solve(problem, tol=tol, max_iter=steps, start=start)
        n_iter += found.n_iter
        if found.risk > risks[-1] + RISK_ROUNDING * max(1.0, abs(risks[-1])):
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


def fit_incomplete(data: LabelledSamples, params: FitParams, *, tol: float, max_iter: int) -> CRMModel:
    """Fit complete and incomplete samples, without cross-fitting.

    In the candidates of the model, the weights of the seen groups are expected counts.
    """
    assert data.incomplete is not None
    rows = PartialRows.of(data.X, data.position, data.sample_weight, data.incomplete, data.candidates)
    fit = fit_alternating(rows, params, tol=tol, max_iter=max_iter)
    energies = linear_energies(rows.features, fit.solution.weight)
    moments = rows.energy_moments(energies, fit.log_score)
    total = float(data.sample_weight.sum() + data.incomplete.sample_weight.sum())
    dummy_position = np.zeros(len(energies), dtype=np.int64)  # step 2 does not use groups if it is given moments
    samples = ArrayRows(energies, dummy_position, rows.weight)
    bias = fit.solution.bias
    fitted = StepOne(fit.solution, 1.0, bias, fit.frequency, rows.seen, rows.standard, samples)
    return step_two(replace(data.candidates, seen_weight=total * fit.frequency), fitted, moments=moments)
