"""Step 1 on fixed features is convex: it is solved, not trained.

The penalised risk is minimised by SciPy's L-BFGS with the exact gradient. Features are centred and divided by one
common scale, their root mean square, which makes the penalty free of the features' unit. The bias of a group is
optimised in units of 1/√p̂(z): its curvature is about p̂(z), so rare groups would otherwise be the last to settle.
"""

import logging
import math
from typing import NamedTuple

import numpy as np
from scipy.optimize import OptimizeResult, minimize

from compshift.core.arrays import FloatArray, IntArray, row_blocks
from compshift.core.energy import GroupTable
from compshift.core.objective import step_one_risk
from compshift.estimators.threads import one_thread_for_scipy

logger = logging.getLogger(__name__)

MEMORY = 20
"""How many steps L-BFGS remembers."""

RESTARTS = 5
"""How often L-BFGS may begin anew after a line search that rounding has stopped."""


class Problem(NamedTuple):
    """What step 1 is solved for."""

    features: FloatArray  # (n, p) standardised
    position: IntArray  # (n,) seen group of each sample
    sample_weight: FloatArray  # (n,) summing to 1
    seen: GroupTable
    frequency: FloatArray  # (k,) p̂(z)
    alpha: float


class Solution(NamedTuple):
    """The minimiser, and how close to it the search came."""

    weight: FloatArray  # (D, p) energies are features · weightᵀ
    bias: FloatArray  # (k,) with Σ p̂ B = 0
    risk: float
    gradient: float
    n_iter: int
    converged: bool


class _Evaluation(NamedTuple):
    value: float
    weight_gradient: FloatArray  # (D, p)
    bias_gradient: FloatArray  # (k,)


def standardise(X: FloatArray, sample_weight: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """Centred features of mean square 1, with the mean (p,) and the scale that were taken out."""
    total = sample_weight.sum()
    mean = (sample_weight @ X) / total  # (p,)
    centred = X - mean
    largest = float(np.abs(centred).max(initial=0.0))
    if largest == 0.0:
        return centred, mean, 1.0
    # Divided by the largest entry first, so that squares of very large or very small features stay representable.
    centred /= largest
    scale = math.sqrt(float(sample_weight @ np.einsum("ij,ij->i", centred, centred)) / (total * X.shape[1]))
    centred /= scale
    return centred, mean, scale * largest


def solve(problem: Problem, *, tol: float, max_iter: int) -> Solution:
    """Minimise the penalised risk until no entry of the gradient exceeds ``tol``.

    The entries are those with respect to the weights of the standardised features, and those with respect to the
    biases, each relative to its group's frequency. The latter equal 1 − exp(B* − B): the learned bias of a seen
    group and the extrapolated one then agree to ``tol``.
    """
    D, p, k = problem.seen.space.width, problem.features.shape[1], len(problem.frequency)
    bias_unit = 1.0 / np.sqrt(problem.frequency)
    gradient_size = math.inf
    n_iter = 0

    def objective(theta: FloatArray) -> tuple[float, FloatArray]:
        nonlocal gradient_size
        value, weight_gradient, bias_gradient = _evaluate(
            problem, theta[: D * p].reshape(D, p), theta[D * p :] * bias_unit
        )
        gradient_size = max(
            float(np.abs(weight_gradient).max(initial=0.0)), float(np.abs(bias_gradient / problem.frequency).max())
        )
        return value, np.concatenate([weight_gradient.ravel(), bias_gradient * bias_unit])

    def after_step(intermediate_result: OptimizeResult) -> None:
        nonlocal n_iter
        n_iter += 1
        logger.info("iteration %d: risk %.8f, gradient %.1e", n_iter, intermediate_result.fun, gradient_size)
        if gradient_size <= tol:
            raise StopIteration

    theta = np.zeros(D * p + k)
    for _ in range(1 + RESTARTS):
        before = n_iter
        options = {"maxiter": max_iter - n_iter, "maxfun": 20 * max_iter, "maxcor": MEMORY, "ftol": 0.0, "gtol": 0.0}
        with one_thread_for_scipy():
            result = minimize(objective, theta, jac=True, method="L-BFGS-B", callback=after_step, options=options)
        theta = result.x
        value, _ = objective(theta)
        if gradient_size <= tol or n_iter >= max_iter or n_iter == before:
            break
    bias = theta[D * p :] * bias_unit
    return Solution(
        weight=theta[: D * p].reshape(D, p),
        bias=bias - problem.frequency @ bias,
        risk=value,
        gradient=gradient_size,
        n_iter=max(n_iter, 1),
        converged=gradient_size <= tol,
    )


def _evaluate(problem: Problem, weight: FloatArray, bias: FloatArray) -> _Evaluation:
    """Penalised risk and gradient; the sums over groups run over blocks of samples that fit a core's cache."""
    value = 0.5 * problem.alpha * float(np.vdot(weight, weight))
    score_gradient = np.zeros(len(bias))
    log_score = np.log(problem.frequency) - bias
    energies = problem.features @ weight.T  # (n, D)
    energy_gradient = np.empty_like(energies)
    for rows in row_blocks(len(energies), problem.seen.width + energies.shape[1]):
        risk = step_one_risk(
            energies[rows], problem.position[rows], problem.sample_weight[rows], problem.seen, log_score
        )
        value += float(risk.value)
        energy_gradient[rows] = risk.energy_gradient
        score_gradient += risk.score_gradient
    weight_gradient = problem.alpha * weight + energy_gradient.T @ problem.features
    return _Evaluation(value, weight_gradient, -score_gradient)
