"""Convex risks of linear models on fixed features: they are solved, not trained.

The penalised risk is minimised by SciPy's L-BFGS with the exact gradient, and finished by Newton–Krylov steps where
rounding of the risk stops the line search first: those look at the gradient alone. A problem that has it is evaluated
in single precision until gradients or steps come near its rounding, and in double precision from then on. Features are
centred and divided by one common scale, their root mean square, which makes the penalty free of the features' unit.
Weights and biases are optimised in units that make their curvatures about 1: the bias of a group or class in units of
1/√p̂(z), so that rare ones are not the last to settle.
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

MEMORY = 20
"""How many steps L-BFGS remembers."""

CURVATURE = 1e-2
"""Where the penalty is weaker than this, weights may lie on slopes of no more curvature than the penalty's own. A small
gradient then says little, so that of the weights is counted by this many times the penalty's inverse."""

MOST_COUNT = 1e6
"""But no more than so many times: rounding leaves about 1e-13 of a gradient, and a smaller one cannot be asked for."""

PATIENCE = 300
"""So many iterations of L-BFGS, and Newton's method gets its turn."""

NEWTON_STEPS = 20
"""At most so many steps of it, before L-BFGS goes on."""

MINRES_STEPS = 200
"""At most so many products with the Hessian make one Newton step."""


COARSE, COARSE_STEP = 1e-4, 3e-6
"""While the gradient is above the first, and a step lowers the risk by more than the second, single precision will do:
its rounding changes gradients by about 1e-6 and risks by about 1e-7, and a line search must see its way in that."""


class RiskGradient(NamedTuple):
    """A penalised risk and its gradient."""

    value: float
    weight_gradient: FloatArray  # (d, p)
    bias_gradient: FloatArray  # (k,)


class Problem(Protocol):
    """A convex risk of weights (d, p) on standardised features, and of k biases."""

    @property
    def coarse(self) -> Problem | None:
        """The same in single precision, which is faster, for as long as that is good enough; None if there is none."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows d and columns p of the weights."""

    @property
    def frequency(self) -> FloatArray:
        """How frequent what each bias belongs to is, (k,), summing to 1."""

    @property
    def alpha(self) -> float:
        """Strength of the penalty."""

    @property
    def curvature(self) -> FloatArray:
        """About the curvature along the weights of each row, (d,)."""

    def evaluate(self, weight: FloatArray, bias: FloatArray) -> RiskGradient:
        """Penalised risk and gradient."""


class Start(NamedTuple):
    """Where a search begins."""

    weight: FloatArray  # (d, p)
    bias: FloatArray  # (k,)


class Solution(NamedTuple):
    """The minimiser, and how close to it the search came."""

    weight: FloatArray  # (d, p)
    bias: FloatArray  # (k,) with Σ p̂ B = 0
    risk: float
    gradient: float
    n_iter: int
    converged: bool

    @property
    def start(self) -> Start:
        """Where the search of a problem nearby may begin."""
        return Start(self.weight, self.bias)


def solve(problem: Problem, *, tol: float, max_iter: int, start: Start | None = None) -> Solution:
    """Minimise the penalised risk until no entry of the gradient exceeds ``tol``, from zero or from a point given.

    The entries are those with respect to the weights of the standardised features, counted ``CURVATURE / alpha`` times
    if that is more than 1 (``MOST_COUNT`` times at most), and those with respect to the biases, each relative to its
    group's frequency. The latter equal 1 − exp(B* − B): the learned bias of a seen group and the extrapolated one then
    agree to ``tol``.
    """
    search = _Search(problem, tol, max_iter, start)
    if not math.isfinite(search.size):  # no search finds its way from there, nor an end
        raise InputError(
            "the risk overflows where its search begins: look for features or weights that are far larger than the "
            "others, and divide them"
        )
    with one_thread_for_scipy():
        while not search.done or search.coarse is not None:
            before, began_precise = search.size, search.coarse is None
            search.lbfgs()
            if not search.done and began_precise:  # Newton's many products are for where precision has been tried
                search.newton()
            if began_precise and not search.size <= 0.9 * before:  # neither gets any further
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
    """The best point so far, in the optimiser's units, and the two ways to a better one."""

    def __init__(self, problem: Problem, tol: float, max_iter: int, start: Start | None) -> None:
        self.problem, self.tol, self.max_iter = problem, tol, max_iter
        self.shape = problem.shape
        self.n_weights = math.prod(self.shape)
        frequency = np.maximum(problem.frequency, np.finfo(np.float64).tiny)  # one that underflowed has an inverse too
        curvatures = np.concatenate([np.repeat(problem.curvature, self.shape[1]), frequency])
        self.unit = 1 / np.sqrt(curvatures)  # (d p + k,)
        weight_count = max(1.0, CURVATURE / max(problem.alpha, CURVATURE / MOST_COUNT)) if problem.alpha > 0 else 1.0
        self.count = np.concatenate([np.full(self.n_weights, weight_count), 1 / frequency]) / self.unit
        self.n_iter = 0
        if start is None:
            self.theta = np.zeros(len(self.unit))
        else:
            self.theta = np.concatenate([start.weight.ravel(), start.bias]) / self.unit
        self.coarse = problem.coarse
        self.last: tuple[Problem, FloatArray, float, FloatArray] | None = None
        self.value, gradient = self.objective(self.theta)
        if self.coarse is not None and self.last_size <= max(COARSE, tol):
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
        """Largest entry of a gradient in the optimiser's units, counted as ``solve`` says."""
        return float(np.abs(gradient * self.count).max())

    def objective(self, theta: FloatArray) -> tuple[float, FloatArray]:
        """Penalised risk and its gradient in the optimiser's units; searches ask for where they begin and end twice."""
        problem = self.problem if self.coarse is None else self.coarse
        if self.last is not None and self.last[0] is problem and np.array_equal(self.last[1], theta):
            return self.last[2], self.last[3].copy()
        value, weight_gradient, bias_gradient = problem.evaluate(*self.parameters(theta))
        gradient = np.concatenate([weight_gradient.ravel(), bias_gradient]) * self.unit
        self.last_value, self.last_size = value, self.norm(gradient)
        self.last = problem, theta.copy(), value, gradient.copy()
        return value, gradient

    def step_taken(self) -> None:
        """Count and log an iteration; the point that was evaluated last is the one that was accepted."""
        self.n_iter += 1
        self.value = self.last_value
        logger.info("iteration %d: risk %.8f, gradient %.1e", self.n_iter, self.last_value, self.last_size)

    def lbfgs(self) -> None:
        """Go on by L-BFGS until it is there, its line search fails, or patience is at an end; then be precise."""

        def after_step(theta: FloatArray) -> None:
            lowered = self.value - self.last_value
            self.step_taken()
            if self.coarse is not None and (self.last_size <= COARSE or lowered < COARSE_STEP):
                self.coarse = None
                self.objective(theta)
            if self.last_size <= self.tol:
                raise StopIteration

        steps = min(PATIENCE, self.max_iter - self.n_iter)
        options = {"maxiter": steps, "maxfun": 20 * steps, "maxcor": MEMORY, "ftol": 0.0, "gtol": 0.0}
        with np.errstate(over="ignore", invalid="ignore"):  # of a step that is too long, which the line search undoes
            found = minimize(
                self.objective, self.theta, jac=True, method="L-BFGS-B", callback=after_step, options=options
            )
        self.theta, self.coarse = found.x, None
        self.value, gradient = self.objective(found.x)
        self.size = self.norm(gradient)

    def newton(self) -> None:
        """Go on by Newton's method on the gradient, and keep the result if its gradient is smaller."""
        try:
            with np.errstate(all="ignore"):  # a step that overflows is not kept
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
        except ValueError:  # the Jacobian is lost in rounding: what L-BFGS found stays
            return
        value, gradient = self.objective(found)
        if self.norm(gradient) < self.size:
            self.theta, self.value, self.size = found, value, self.norm(gradient)
