"""Step 1 of CRM on fixed features, as something to minimise."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from compshift.core.arrays import BLOCK_CELLS, FloatArray, IntArray, like, row_blocks
from compshift.core.energy import GroupTable, linear_energies
from compshift.core.logspace import safe_log
from compshift.core.objective import Risk, step_one_risk
from compshift.estimators.curvature import softmax_curvature
from compshift.estimators.row_sums import Block, RowSums, Sums
from compshift.estimators.solver import Evaluation, Start
from compshift.estimators.standardise import Standard


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

    def evaluate(self, weight: FloatArray, bias: FloatArray) -> Evaluation:
        """Penalised risk and gradient."""
        log_score = safe_log(self.frequency) - bias
        found = self.rows.total(
            block_risk, Sums.add, self.seen, weight, log_score, self.standard, self.precision, self.total_weight
        )
        value, weight_gradient, score_gradient = found.arrays
        moved = weight if self.anchor is None else weight - self.anchor.weight
        return Evaluation(
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

    def evaluate(self, weight: FloatArray, bias: FloatArray) -> Evaluation:
        """Risk and gradient."""
        log_score = safe_log(self.frequency) - bias
        found = self.rows.total(_scaled_risk, Sums.add, self.seen, float(weight[0, 0]), log_score)
        value, factor_gradient, score_gradient = found.arrays
        return Evaluation(float(value), factor_gradient, -score_gradient)


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
