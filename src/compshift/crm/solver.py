"""Minimisation of convex risks of linear models on fixed features.

SciPy's L-BFGS minimises the penalised risk with its exact gradient. Where rounding of the risk stops the line search
early, Newton–Krylov steps, which look at the gradient alone, finish the search. A problem that offers single precision
is evaluated in it until gradients or steps come near its rounding, and in double precision from then on. Weights and
biases are optimised in units that make their curvatures about 1; the unit of a bias is 1/√p̂(z), so that biases of rare
groups converge as fast as others.
"""

from __future__ import annotations

import logging
import math
from typing import NamedTuple, Protocol

import numpy as np
from scipy.optimize import NoConvergence, minimize, newton_krylov

from compshift._errors import InputError
from compshift.core.arrays import FloatArray
from compshift.crm.blocks import one_thread_for_scipy

logger = logging.getLogger(__name__)

LBFGS_MEMORY = 20
"""Number of steps that L-BFGS remembers."""

WEAK_RIDGE = 1e-2
"""Penalty below which gradients with respect to weights are multiplied by ``WEAK_RIDGE / alpha``: along flat directions
a small gradient says little about the distance to the optimum."""

MAX_GRADIENT_FACTOR = 1e6
"""Upper limit on that factor: rounding leaves gradients of about 1e-13."""

NEWTON_AFTER = 300
"""Iterations of L-BFGS after which Newton's method takes over."""

NEWTON_STEPS = 20
"""Most Newton steps before L-BFGS resumes."""

MINRES_STEPS = 200
"""Most Hessian products per Newton step."""

COARSE_GRADIENT, COARSE_DECREASE = 1e-4, 3e-6
"""Single precision is left once the gradient falls below the first, or a step lowers the risk by less than the second.
Its rounding changes gradients by about 1e-6 and risks by about 1e-7."""


class RiskGradient(NamedTuple):
    """Penalised risk and its gradient."""

    value: float
    weight_gradient: FloatArray  # (d, p)
    bias_gradient: FloatArray  # (k,)


class Problem(Protocol):
    """Convex risk of weights (d, p) of standardised features, and of k biases."""

    @property
    def coarse(self) -> Problem | None:
        """The same problem in single precision, or None."""

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the weight matrix, (d, p)."""

    @property
    def frequency(self) -> FloatArray:
        """Frequency of the group or class of each bias, (k,), summing to 1."""

    @property
    def alpha(self) -> float:
        """Strength of the ridge."""

    @property
    def curvature(self) -> FloatArray:
        """Approximate curvature along each row of weights, (d,)."""

    def evaluate(self, weight: FloatArray, bias: FloatArray) -> RiskGradient:
        """Return the penalised risk and its gradient."""


class Start(NamedTuple):
    """Starting point of a search."""

    weight: FloatArray  # (d, p)
    bias: FloatArray  # (k,)


class Solution(NamedTuple):
    """Minimiser of a penalised risk, and how closely it was reached."""

    weight: FloatArray  # (d, p)
    bias: FloatArray  # (k,) with Σ p̂ B = 0
    risk: float
    gradient: float  # largest entry, scaled as in ``solve``
    n_iter: int
    converged: bool

    @property
    def start(self) -> Start:
        """Warm start for a similar problem."""
        return Start(self.weight, self.bias)


def solve(problem: Problem, *, tol: float, max_iter: int, start: Start | None = None) -> Solution:
    """Minimise the penalised risk until no scaled entry of the gradient exceeds ``tol``, from ``start`` or from zero.

    Entries with respect to weights are multiplied by ``WEAK_RIDGE / alpha`` where that is above 1, at most by
    ``MAX_GRADIENT_FACTOR``; those with respect to biases are divided by their group's frequency. The latter equal
    1 − exp(B* − B), so the learned and the extrapolated bias of a seen group then agree to ``tol``.
    """
    search = _Search(problem, tol, max_iter, start)
    if not math.isfinite(search.size):
        raise InputError(
            "the risk overflows where its search begins: look for features or weights that are far larger than the "
            "others, and divide them"
        )
    with one_thread_for_scipy():
        while not search.done or search.coarse is not None:
            before, began_precise = search.size, search.coarse is None
            search.lbfgs()
            if not search.done and began_precise:  # Newton's many products are worth it in double precision only
                search.newton()
            if began_precise and not search.size <= 0.9 * before:  # neither makes progress
                break
    weight, bias = search.parameters(search.theta)
    return Solution(
        weight=weight,
        bias=bias - problem.frequency @ bias,
        risk=search.value,
        gradient=search.size,
        n_iter=max(search.n_iter, 1),
        converged=search.size <= tol,
    )


class _Search:
    """State of a search: the best point so far, in the optimiser's units."""

    def __init__(self, problem: Problem, tol: float, max_iter: int, start: Start | None) -> None:
        self.problem, self.tol, self.max_iter = problem, tol, max_iter
        self.shape = problem.shape
        self.n_weights = math.prod(self.shape)
        frequency = np.maximum(problem.frequency, np.finfo(np.float64).tiny)  # a frequency may underflow
        curvatures = np.concatenate([np.repeat(problem.curvature, self.shape[1]), frequency])
        self.unit = 1 / np.sqrt(curvatures)  # (d p + k,)
        weight_count = (
            max(1.0, WEAK_RIDGE / max(problem.alpha, WEAK_RIDGE / MAX_GRADIENT_FACTOR)) if problem.alpha > 0 else 1.0
        )
        self.count = np.concatenate([np.full(self.n_weights, weight_count), 1 / frequency]) / self.unit
        self.n_iter = 0
        if start is None:
            self.theta = np.zeros(len(self.unit))
        else:
            self.theta = np.concatenate([start.weight.ravel(), start.bias]) / self.unit
        self.coarse = problem.coarse
        self.last: tuple[Problem, FloatArray, float, FloatArray] | None = None
        self.value, gradient = self.objective(self.theta)
        if self.coarse is not None and self.last_size <= max(COARSE_GRADIENT, tol):
            self.coarse = None
            self.value, gradient = self.objective(self.theta)
        self.size = self.norm(gradient)

    @property
    def done(self) -> bool:
        return self.size <= self.tol or self.n_iter >= self.max_iter

    def parameters(self, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Weights (d, p) and biases (k,)."""
        values = theta * self.unit
        return values[: self.n_weights].reshape(self.shape), values[self.n_weights :]

    def norm(self, gradient: FloatArray) -> float:
        """Largest entry of a gradient given in the optimiser's units, scaled as ``solve`` says."""
        return float(np.abs(gradient * self.count).max())

    def objective(self, theta: FloatArray) -> tuple[float, FloatArray]:
        """Penalised risk and its gradient in the optimiser's units; the last evaluation is remembered."""
        problem = self.problem if self.coarse is None else self.coarse
        if self.last is not None and self.last[0] is problem and np.array_equal(self.last[1], theta):
            return self.last[2], self.last[3].copy()
        value, weight_gradient, bias_gradient = problem.evaluate(*self.parameters(theta))
        gradient = np.concatenate([weight_gradient.ravel(), bias_gradient]) * self.unit
        self.last_value, self.last_size = value, self.norm(gradient)
        self.last = problem, theta.copy(), value, gradient.copy()
        return value, gradient

    def step_taken(self) -> None:
        """Count and log an iteration, whose accepted point is the one evaluated last."""
        self.n_iter += 1
        self.value = self.last_value
        logger.info("iteration %d: risk %.8f, gradient %.1e", self.n_iter, self.last_value, self.last_size)

    def lbfgs(self) -> None:
        """Run L-BFGS until it converges, its line search fails or ``NEWTON_AFTER`` steps; leave single precision."""

        def after_step(theta: FloatArray) -> None:
            lowered = self.value - self.last_value
            self.step_taken()
            if self.coarse is not None and (self.last_size <= COARSE_GRADIENT or lowered < COARSE_DECREASE):
                self.coarse = None
                self.objective(theta)
            if self.last_size <= self.tol:
                raise StopIteration

        steps = min(NEWTON_AFTER, self.max_iter - self.n_iter)
        options = {"maxiter": steps, "maxfun": 20 * steps, "maxcor": LBFGS_MEMORY, "ftol": 0.0, "gtol": 0.0}
        with np.errstate(over="ignore", invalid="ignore"):  # the line search undoes steps that are too long
            found = minimize(
                self.objective, self.theta, jac=True, method="L-BFGS-B", callback=after_step, options=options
            )
        self.theta, self.coarse = found.x, None
        self.value, gradient = self.objective(found.x)
        self.size = self.norm(gradient)

    def newton(self) -> None:
        """Run Newton's method on the gradient, and keep the result if its gradient is smaller."""
        try:
            with np.errstate(all="ignore"):  # an overflowing step is not kept
                found = newton_krylov(
                    lambda theta: self.objective(theta)[1],
                    self.theta,
                    method="minres",
                    inner_maxiter=MINRES_STEPS,
                    maxiter=min(NEWTON_STEPS, self.max_iter - self.n_iter),
                    f_tol=self.tol,
                    tol_norm=self.norm,
                    callback=lambda *_: self.step_taken(),
                )
        except NoConvergence as stop:
            found = stop.args[0]
        except ValueError:  # the Jacobian is lost in rounding: keep the point of L-BFGS
            return
        value, gradient = self.objective(found)
        if self.norm(gradient) < self.size:
            self.theta, self.value, self.size = found, value, self.norm(gradient)
