"""Step 1 on fixed features is convex: it is solved, not trained.

The penalised risk is minimised by SciPy's L-BFGS with the exact gradient, and finished by Newton–Krylov steps where
rounding of the risk stops the line search first: those look at the gradient alone. Features are centred and divided by
one common scale, their root mean square, which makes the penalty free of the features' unit. The bias of a group is
optimised in units of 1/√p̂(z): its curvature is about p̂(z), so rare groups would otherwise be the last to settle.
"""

import logging
import math
from typing import NamedTuple

import numpy as np
from scipy.optimize import NoConvergence, minimize, newton_krylov

from compshift.core.arrays import BLOCK_CELLS, FloatArray, IntArray, row_blocks
from compshift.core.energy import GroupTable
from compshift.core.objective import step_one_risk
from compshift.estimators.threads import one_thread_for_scipy

logger = logging.getLogger(__name__)

MEMORY = 20
"""How many steps L-BFGS remembers."""

CURVATURE = 1e-2
"""Where the penalty is weaker than this, weights may lie on slopes of no more curvature than the penalty's own. A small
gradient then says little, so that of the weights is counted by this many times the penalty's inverse."""

ROUNDING = 16 * float(np.finfo(np.float64).eps)
"""Features that differ by less than this, relative to their size, do not differ."""

NEWTON_STEPS = 20
"""At most so many steps finish what L-BFGS could not."""

MINRES_STEPS = 200
"""At most so many products with the Hessian make one Newton step."""


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
    mean += (sample_weight @ (X - mean)) / total  # the first mean's rounding, which a large offset makes felt
    centred = X - mean
    largest = float(np.abs(centred).max(initial=0.0))
    if largest <= ROUNDING * float(np.abs(X).max(initial=0.0)):  # constant: what is left is the mean's rounding
        return np.zeros_like(centred), mean, 1.0
    # Divided by the largest entry first, so that squares of very large or very small features stay representable.
    centred /= largest
    scale = math.sqrt(float(sample_weight @ np.einsum("ij,ij->i", centred, centred)) / (total * X.shape[1]))
    centred /= scale
    return centred, mean, scale * largest


def solve(problem: Problem, *, tol: float, max_iter: int) -> Solution:
    """Minimise the penalised risk until no entry of the gradient exceeds ``tol``.

    The entries are those with respect to the weights of the standardised features, counted ``CURVATURE / alpha`` times
    if that is more than 1, and those with respect to the biases, each relative to its group's frequency. The latter
    equal 1 − exp(B* − B): the learned bias of a seen group and the extrapolated one then agree to ``tol``.
    """
    D, p, k = problem.seen.space.width, problem.features.shape[1], len(problem.frequency)
    bias_unit = 1.0 / np.sqrt(problem.frequency)
    weight_count = max(1.0, CURVATURE / problem.alpha) if problem.alpha > 0 else 1.0
    value, size, n_iter = math.inf, math.inf, 0

    def norm(gradient: FloatArray) -> float:
        """Largest entry, from the gradient in the optimiser's units."""
        weights, biases = np.abs(gradient[: D * p]), np.abs(gradient[D * p :] * bias_unit)
        return max(weight_count * float(weights.max(initial=0.0)), float(biases.max()))

    def gradient_at(theta: FloatArray) -> FloatArray:
        nonlocal value, size
        value, weight_gradient, bias_gradient = _evaluate(
            problem, theta[: D * p].reshape(D, p), theta[D * p :] * bias_unit
        )
        gradient = np.concatenate([weight_gradient.ravel(), bias_gradient * bias_unit])
        size = norm(gradient)
        return gradient

    def objective(theta: FloatArray) -> tuple[float, FloatArray]:
        gradient = gradient_at(theta)
        return value, gradient

    def log_step() -> None:
        nonlocal n_iter
        n_iter += 1
        logger.info("iteration %d: risk %.8f, gradient %.1e", n_iter, value, size)

    def after_step(_: FloatArray) -> None:  # the point that was evaluated last is the one that was accepted
        log_step()
        if size <= tol:
            raise StopIteration

    options = {"maxiter": max_iter, "maxfun": 20 * max_iter, "maxcor": MEMORY, "ftol": 0.0, "gtol": 0.0}
    with one_thread_for_scipy():
        theta = minimize(
            objective, np.zeros(D * p + k), jac=True, method="L-BFGS-B", callback=after_step, options=options
        ).x
        gradient_at(theta)
        if size > tol and n_iter < max_iter:
            try:
                theta = newton_krylov(
                    gradient_at,
                    theta,
                    method="minres",
                    inner_maxiter=MINRES_STEPS,
                    maxiter=min(NEWTON_STEPS, max_iter - n_iter),
                    f_tol=tol,
                    tol_norm=norm,
                    callback=lambda *_: log_step(),
                )
            except NoConvergence as stop:
                theta = stop.args[0]
            gradient_at(theta)
    bias = theta[D * p :] * bias_unit
    return Solution(
        weight=theta[: D * p].reshape(D, p),
        bias=bias - problem.frequency @ bias,
        risk=value,
        gradient=size,
        n_iter=max(n_iter, 1),
        converged=size <= tol,
    )


def _evaluate(problem: Problem, weight: FloatArray, bias: FloatArray) -> _Evaluation:
    """Penalised risk and gradient; the sums over groups run over blocks of samples that fit a core's cache."""
    value = 0.5 * problem.alpha * float(np.vdot(weight, weight))
    score_gradient = np.zeros(len(bias))
    log_score = np.log(problem.frequency) - bias
    energies = problem.features @ weight.T  # (n, D)
    energy_gradient = np.empty_like(energies)
    cells = max(
        BLOCK_CELLS, len(problem.seen.left) * len(problem.seen.right)
    )  # a block is worth its share of the table
    for rows in row_blocks(len(energies), problem.seen.width + energies.shape[1], cells):
        risk = step_one_risk(
            energies[rows], problem.position[rows], problem.sample_weight[rows], problem.seen, log_score
        )
        value += float(risk.value)
        energy_gradient[rows] = risk.energy_gradient
        score_gradient += risk.score_gradient
    weight_gradient = problem.alpha * weight + energy_gradient.T @ problem.features
    return _Evaluation(value, weight_gradient, -score_gradient)
