"""Step 1 of CRM on fixed features, as something to minimise."""

from typing import NamedTuple

import numpy as np

from compshift.core.arrays import BLOCK_CELLS, FloatArray, IntArray, row_blocks
from compshift.core.energy import GroupTable
from compshift.core.objective import Risk, step_one_risk
from compshift.estimators.solver import Evaluation, Start


class StepOneProblem(NamedTuple):
    """Energies are features · weightᵀ; there is a bias for each seen group. The ridge pulls weights to the anchor."""

    features: FloatArray  # (n, p) standardised
    position: IntArray  # (n,) seen group of each sample
    sample_weight: FloatArray  # (n,) summing to 1
    seen: GroupTable
    frequency: FloatArray  # (k,) p̂(z)
    alpha: float
    anchor: Start | None = None  # with the biases that go with it; None for zero

    @property
    def shape(self) -> tuple[int, int]:
        """Of the weights."""
        return self.seen.space.width, self.features.shape[1]

    def evaluate(self, weight: FloatArray, bias: FloatArray) -> Evaluation:
        """Penalised risk and gradient."""
        moved = weight if self.anchor is None else weight - self.anchor.weight
        energies = self.features @ weight.T  # (n, D)
        risk = blocked_risk(energies, self.position, self.sample_weight, self.seen, np.log(self.frequency) - bias)
        return Evaluation(
            value=risk.value + 0.5 * self.alpha * float(np.vdot(moved, moved)),
            weight_gradient=self.alpha * moved + risk.energy_gradient.T @ self.features,
            bias_gradient=-risk.score_gradient,
        )


class TemperatureProblem(NamedTuple):
    """Energies are given, and only their common factor and the biases are sought."""

    energies: FloatArray  # (n, D)
    position: IntArray
    sample_weight: FloatArray
    seen: GroupTable
    frequency: FloatArray

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
        scaled = float(weight[0, 0]) * self.energies
        risk = blocked_risk(scaled, self.position, self.sample_weight, self.seen, np.log(self.frequency) - bias)
        factor_gradient = np.full((1, 1), np.vdot(risk.energy_gradient, self.energies))
        return Evaluation(float(risk.value), factor_gradient, -risk.score_gradient)


def blocked_risk(
    energies: FloatArray, position: IntArray, sample_weight: FloatArray, seen: GroupTable, log_score: FloatArray
) -> Risk:
    """Risk and gradient of step 1, with the sums over groups in blocks of samples that fit a core's cache."""
    value = 0.0
    energy_gradient, score_gradient = np.empty_like(energies), np.zeros(len(log_score))
    cells = max(BLOCK_CELLS, len(seen.left) * len(seen.right))  # a block is worth its share of the table
    for rows in row_blocks(len(energies), seen.width + energies.shape[1], cells):
        risk = step_one_risk(energies[rows], position[rows], sample_weight[rows], seen, log_score)
        value += float(risk.value)
        energy_gradient[rows] = risk.energy_gradient
        score_gradient += risk.score_gradient
    return Risk(value, energy_gradient, score_gradient)
