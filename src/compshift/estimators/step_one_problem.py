"""Step 1 of CRM on fixed features, as something to minimise."""

from typing import NamedTuple

import numpy as np

from compshift.core.arrays import BLOCK_CELLS, FloatArray, IntArray, row_blocks
from compshift.core.energy import GroupTable
from compshift.core.objective import step_one_risk
from compshift.estimators.solver import Evaluation


class StepOneProblem(NamedTuple):
    """Energies are features · weightᵀ; there is a bias for each seen group."""

    features: FloatArray  # (n, p) standardised
    position: IntArray  # (n,) seen group of each sample
    sample_weight: FloatArray  # (n,) summing to 1
    seen: GroupTable
    frequency: FloatArray  # (k,) p̂(z)
    alpha: float

    @property
    def width(self) -> int:
        """Number of energies."""
        return self.seen.space.width

    def evaluate(self, weight: FloatArray, bias: FloatArray) -> Evaluation:
        """Penalised risk and gradient; the sums over groups run over blocks of samples that fit a core's cache."""
        value = 0.5 * self.alpha * float(np.vdot(weight, weight))
        score_gradient = np.zeros(len(bias))
        log_score = np.log(self.frequency) - bias
        energies = self.features @ weight.T  # (n, D)
        energy_gradient = np.empty_like(energies)
        cells = max(BLOCK_CELLS, len(self.seen.left) * len(self.seen.right))  # a block is worth its share of the table
        for rows in row_blocks(len(energies), self.seen.width + energies.shape[1], cells):
            risk = step_one_risk(energies[rows], self.position[rows], self.sample_weight[rows], self.seen, log_score)
            value += float(risk.value)
            energy_gradient[rows] = risk.energy_gradient
            score_gradient += risk.score_gradient
        weight_gradient = self.alpha * weight + energy_gradient.T @ self.features
        return Evaluation(value, weight_gradient, -score_gradient)
