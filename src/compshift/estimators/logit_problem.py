"""Logistic regression whose logits are offset by known amounts, as something to minimise."""

from typing import NamedTuple

import numpy as np

from compshift.core.arrays import FloatArray, IntArray
from compshift.core.logspace import logsumexp
from compshift.estimators.curvature import softmax_curvature
from compshift.estimators.solver import Evaluation


class LogitProblem(NamedTuple):
    r"""Logits are features · weightᵀ + bias + offset of the row's attribute.

    .. math:: \sum_x \omega_x \left(\log \sum_y e^{z_y(x)} - z_{y_x}(x)\right) + \tfrac\alpha2 \lVert W \rVert^2
    """

    features: FloatArray  # (n, p) standardised
    classes: IntArray  # (n,)
    attribute: IntArray  # (n,)
    offset: FloatArray  # (a, c)
    sample_weight: FloatArray  # (n,) summing to 1
    frequency: FloatArray  # (c,) of the classes
    alpha: float
    spread: float = 1.0  # of the features, about

    @property
    def coarse(self) -> None:
        """There is none."""

    @property
    def curvature(self) -> FloatArray:
        """About that along the weights of each class, (c,)."""
        return softmax_curvature(self.frequency, self.spread, self.alpha)

    @property
    def shape(self) -> tuple[int, int]:
        """Of the weights."""
        return len(self.frequency), self.features.shape[1]

    def evaluate(self, weight: FloatArray, bias: FloatArray) -> Evaluation:
        """Penalised risk and gradient."""
        logits = self.features @ weight.T + bias + self.offset[self.attribute]  # (n, c)
        log_total = logsumexp(logits, axis=1)  # (n,)
        rows = np.arange(len(logits))
        risk = float(self.sample_weight @ (log_total - logits[rows, self.classes]))
        gradient = np.exp(logits - log_total[:, None])  # (n, c)
        gradient[rows, self.classes] -= 1
        gradient *= self.sample_weight[:, None]
        value = risk + 0.5 * self.alpha * float(np.vdot(weight, weight))
        return Evaluation(value, self.alpha * weight + gradient.T @ self.features, gradient.sum(axis=0))
