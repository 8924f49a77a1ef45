"""Minimisation of smooth risks of linear models on fixed features; the risks are convex unless attributes are missing.

SciPy's L-BFGS minimises the penalised risk with its exact gradient. Fits to the same samples with different ridges
share the curvature that they meet (``CurvaturePairs``), by an L-BFGS of our own. If rounding errors in the risk stop
the line search early, Newton–Krylov steps, which use only the gradient, finish the search. If a problem has a
single-precision version, that version is evaluated until gradients or decreases of the risk approach its rounding
error; the rest of the search uses double precision. Weights and biases are optimised in units that make their
curvatures about 1; the unit of a bias is 1/√p̂(z), so that the biases of rare groups converge as fast as those of
frequent groups.
"""

from __future__ import annotations

import logging
import math
from typing import NamedTuple, Protocol

import numpy as np
from scipy.linalg.lapack import dtrtrs
from scipy.optimize import NoConvergence, minimize, newton_krylov

from compshift._errors import InputError
from compshift.core.arrays import FloatArray
from compshift.crm.blocks import one_thread_for_scipy

logger = logging.getLogger(__name__)

LBFGS_MEMORY = 20
"""Number of previous steps from which L-BFGS approximates the Hessian."""

WEAK_RIDGE = 1e-2
"""Value of ``alpha`` below which the convergence test multiplies gradients with respect to weights by
``WEAK_RIDGE / alpha``: along flat directions a small gradient says little about the distance to the optimum."""

MAX_GRADIENT_FACTOR = 1e6
"""Upper limit on the factor ``WEAK_RIDGE / alpha``: rounding leaves gradients of about 1e-13, which a larger factor
would raise above ``tol``."""

ARMIJO = 1e-4
"""Share of the decrease that the slope promises, which a step has to achieve."""

MIN_STEP = 1e-10
"""Shortest step of a line search, as a share of the step that L-BFGS proposes."""

NEWTON_AFTER = 300
"""Number of L-BFGS iterations after which Newton's method takes over."""

NEWTON_STEPS = 20
"""Maximum number of Newton steps before L-BFGS resumes."""

MINRES_STEPS = 200
"""Maximum number of MINRES iterations per Newton step; each costs one Hessian-vector product."""

SINGLE_PRECISION_GRADIENT = 1e-4
"""Largest scaled gradient entry at which the search switches to double precision. Single precision changes gradients by
about 1e-6."""

SINGLE_PRECISION_TOL = 3e-4
"""Smallest ``tol`` at which a search may end in single precision: rounding then changes gradients by far less."""

SINGLE_PRECISION_DECREASE = 3e-6
"""Decrease of the risk in one step below which the search switches to double precision. Single precision changes risks
by about 1e-7."""


class RiskGradient(NamedTuple):
    """Penalised risk and its gradient."""

    value: float
    weight_gradient: FloatArray  # (d, p)
    bias_gradient: FloatArray  # (k,)


class Problem(Protocol):
    """Smooth penalised risk as a function of weights (d, p) of standardised features and of k biases.

    There is one row of weights for each attribute value or class, and one bias for each group or class. The risk is
    convex unless attributes are missing (``missing_attributes.PartialProblem``).
    """

    @property
    def single_precision(self) -> Problem | None:
        """The same problem in single precision, or None if there is no such version."""

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the weight matrix, (d, p)."""

    @property
    def frequency(self) -> FloatArray:
        """Frequency of the group or class to which each bias belongs, (k,), summing to 1."""

    @property
    def alpha(self) -> float:
        """Strength of the ridge."""

    @property
    def curvature(self) -> FloatArray:
        """Approximate curvature along each row of weights, (d,)."""

    def evaluate(self, weight: FloatArray, bias: FloatArray) -> RiskGradient:
        """Return the penalised risk and its gradient."""


class Parameters(NamedTuple):
    """Weights and biases: the starting point of a search, or the anchor of a ridge."""

    weight: FloatArray  # (d, p)
    bias: FloatArray  # (k,)


class Solution(NamedTuple):
    """Approximate minimiser of a penalised risk, with its gradient and whether the search converged."""

    weight: FloatArray  # (d, p)
    bias: FloatArray  # (k,) with Σ p̂ B = 0
    risk: float
    gradient: float  # largest absolute entry of the gradient, scaled as described in ``solve``
    n_iter: int
    converged: bool

    @property
    def start(self) -> Parameters:
        """Weights and biases, as a warm start for a similar problem."""
        return Parameters(self.weight, self.bias)


def solve(
    problem: Problem,
    *,
    tol: float,
    max_iter: int,
    start: Parameters | None = None,
    pairs: CurvaturePairs | None = None,
) -> Solution:
    """Minimise the penalised risk, from ``start`` or from zero, until no scaled gradient entry exceeds ``tol``.

    Gradient entries with respect to weights are multiplied by ``WEAK_RIDGE / alpha`` if that factor is above 1, but at
    most by ``MAX_GRADIENT_FACTOR``, and not at all if alpha is 0. Entries with respect to biases are divided by their
    group's frequency; they then equal 1 − exp(B* − B), so that the learned and the extrapolated bias of a seen group
    agree to ``tol``. ``pairs`` are the curvature that earlier searches for the same samples met; those of this search
    are added.
    """
    search = _Search(problem, tol, max_iter, start, pairs)
    if not math.isfinite(search.gradient_norm):
        raise InputError(
            "the risk overflows at the starting point of the search: look for features or sample weights that are far "
            "larger than the others, and rescale them"
        )
    with one_thread_for_scipy():
        while not search.done:
            norm_before, began_in_double = search.gradient_norm, search.single_precision is None
            search.lbfgs()
            if not search.done and began_in_double:  # Newton steps pay off only after L-BFGS in double precision
                search.newton()
            if began_in_double and not search.gradient_norm <= 0.9 * norm_before:  # neither method makes progress
                break
    weight, bias = search.parameters(search.theta)
    return Solution(
        weight=weight,
        bias=bias - problem.frequency @ bias,
        risk=search.value,
        gradient=search.gradient_norm,
        n_iter=max(search.n_iter, 1),
        converged=search.gradient_norm <= tol,
    )


class CurvaturePairs:
    """Steps of searches and the changes of the gradient along them, from which L-BFGS approximates the Hessian.

    Searches for the same samples at different ridges can share them: the contribution of the ridge, which is known, is
    left out. ``steps`` (m, d p + k) and ``changes`` are those of weights and biases.
    """

    def __init__(self) -> None:
        self.steps: FloatArray = np.empty((0, 0))
        self.changes: FloatArray = np.empty((0, 0))

    def inverse_hessian(self, unit: FloatArray, ridge: FloatArray) -> _InverseHessian:
        """Return the approximation in an optimiser's units, for a problem with the given ridge on each parameter."""
        found = _InverseHessian(len(unit))
        for step, change in zip(self.steps, self.changes, strict=True):
            found.add(step / unit, (change + ridge * step) * unit)
        return found

    def update(self, found: _InverseHessian, unit: FloatArray, ridge: FloatArray) -> None:
        """Replace the pairs by those of an approximation in an optimiser's units."""
        self.steps = found.steps[: found.n] * unit
        self.changes = found.changes[: found.n] / unit - ridge * self.steps


class _InverseHessian:
    """L-BFGS approximation of the inverse Hessian from the last ``LBFGS_MEMORY`` steps."""

    def __init__(self, size: int) -> None:
        self.steps, self.changes = np.empty((2, LBFGS_MEMORY, size))  # s, y: (m, N) each
        self.products = np.empty((LBFGS_MEMORY, LBFGS_MEMORY))  # S Yᵀ, of which only the upper triangle is used
        self.n = 0

    def add(self, step: FloatArray, change: FloatArray) -> None:
        """Add a step and the change of the gradient along it, unless the risk is not convex there."""
        square = float(change @ change)
        if not float(step @ change) > 1e-10 * square:
            return
        if self.n == LBFGS_MEMORY:
            self.steps[:-1], self.changes[:-1] = self.steps[1:].copy(), self.changes[1:].copy()
            self.products[:-1, :-1] = self.products[1:, 1:].copy()
            self.n -= 1
        self.steps[self.n], self.changes[self.n] = step, change
        self.n += 1
        self.products[: self.n, self.n - 1] = self.steps[: self.n] @ change
        self.scale = float(step @ change) / square

    def direction(self, gradient: FloatArray) -> FloatArray:
        r"""Return −H g, the two loops of L-BFGS as matrix products.

        .. math:: R a = S g, \quad q = g - Y^T a, \quad R^T c = D a - \gamma Y q, \quad H g = \gamma q + S^T c

        with R the upper triangle of S Yᵀ, D its diagonal, and γ the scale of the last pair.
        """
        if not self.n:
            return -gradient * min(1.0, 1.0 / float(np.abs(gradient).sum()))
        steps, changes = self.steps[: self.n], self.changes[: self.n]
        products = self.products[: self.n, : self.n]
        first = dtrtrs(products, steps @ gradient)[0]  # (m,)
        rest = gradient - first @ changes  # (N,)
        right = np.diag(products) * first - self.scale * (changes @ rest)
        second = dtrtrs(products, right, trans=1)[0]  # (m,)
        return np.asarray(-(self.scale * rest + second @ steps))


class _Search:
    """State of a search: the current point ``theta`` in the optimiser's units, its risk and its gradient norm."""

    def __init__(
        self, problem: Problem, tol: float, max_iter: int, start: Parameters | None, pairs: CurvaturePairs | None
    ) -> None:
        self.problem, self.tol, self.max_iter, self.pairs = problem, tol, max_iter, pairs
        self.shape = problem.shape
        self.n_weights = math.prod(self.shape)
        frequency = np.maximum(problem.frequency, np.finfo(np.float64).tiny)  # a frequency may underflow to 0
        curvatures = np.concatenate([np.repeat(problem.curvature, self.shape[1]), frequency])
        self.unit = 1 / np.sqrt(curvatures)  # (d p + k,)
        weight_scale = (
            max(1.0, WEAK_RIDGE / max(problem.alpha, WEAK_RIDGE / MAX_GRADIENT_FACTOR)) if problem.alpha > 0 else 1.0
        )
        self.gradient_scale = np.concatenate([np.full(self.n_weights, weight_scale), 1 / frequency]) / self.unit
        self.ridge = np.repeat([problem.alpha, 0.0], [self.n_weights, len(frequency)])  # (d p + k,)
        self.n_iter = 0
        if start is None:
            self.theta = np.zeros(len(self.unit))
        else:
            self.theta = np.concatenate([start.weight.ravel(), start.bias]) / self.unit
        self.single_precision = problem.single_precision
        self.last: tuple[Problem, FloatArray, float, FloatArray] | None = None
        self.value, gradient = self.objective(self.theta)
        if self.single_precision is not None and self.last_norm <= max(SINGLE_PRECISION_GRADIENT, tol):
            self.single_precision = None
            self.value, gradient = self.objective(self.theta)
        self.gradient_norm = self.norm(gradient)

    @property
    def done(self) -> bool:
        """Whether the gradient norm is at most ``tol`` or the iterations are used up."""
        return self.gradient_norm <= self.tol or self.n_iter >= self.max_iter

    def parameters(self, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Convert a vector in the optimiser's units to weights (d, p) and biases (k,)."""
        values = theta * self.unit
        return values[: self.n_weights].reshape(self.shape), values[self.n_weights :]

    def norm(self, gradient: FloatArray) -> float:
        """Return the largest absolute entry of a gradient in the optimiser's units, scaled as in ``solve``."""
        return float(np.abs(gradient * self.gradient_scale).max())

    def objective(self, theta: FloatArray) -> tuple[float, FloatArray]:
        """Return the penalised risk and its gradient in the optimiser's units; the last evaluation is cached."""
        problem = self.problem if self.single_precision is None else self.single_precision
        if self.last is not None and self.last[0] is problem and np.array_equal(self.last[1], theta):
            return self.last[2], self.last[3].copy()
        value, weight_gradient, bias_gradient = problem.evaluate(*self.parameters(theta))
        gradient = np.concatenate([weight_gradient.ravel(), bias_gradient]) * self.unit
        self.last_value, self.last_norm = value, self.norm(gradient)
        self.last = problem, theta.copy(), value, gradient.copy()
        return value, gradient

    def step_taken(self) -> None:
        """Count and log an iteration; the point it accepted is the one evaluated last."""
        self.n_iter += 1
        self.value = self.last_value
        logger.info("iteration %d: risk %.8f, gradient %.1e", self.n_iter, self.last_value, self.last_norm)

    def lbfgs_step_taken(self, theta: FloatArray) -> bool:
        """Count an iteration of L-BFGS, which ended at ``theta``; return whether the search has converged.

        Switch to double precision if gradients or decreases of the risk approach the error of single precision.
        """
        decrease = self.value - self.last_value
        self.step_taken()
        if (
            self.single_precision is not None
            and self.tol < SINGLE_PRECISION_TOL
            and (self.last_norm <= SINGLE_PRECISION_GRADIENT or decrease < SINGLE_PRECISION_DECREASE)
        ):
            self.single_precision = None
            self.objective(theta)
        return self.last_norm <= self.tol

    def lbfgs(self) -> None:
        """Run L-BFGS until it converges, its line search fails, or it has taken ``NEWTON_AFTER`` steps.

        The search uses double precision from the end of this run at the latest, unless it has converged to a
        ``tol`` for which single precision is sufficient.
        """
        steps = min(NEWTON_AFTER, self.max_iter - self.n_iter)
        with np.errstate(over="ignore", invalid="ignore"):  # the line search undoes steps that are too long
            self.theta = self.lbfgs_of_scipy(steps) if self.pairs is None else self.lbfgs_from(self.pairs, steps)
        self.value, gradient = self.objective(self.theta)
        self.gradient_norm = self.norm(gradient)
        if self.single_precision is not None and not (self.gradient_norm <= self.tol >= SINGLE_PRECISION_TOL):
            self.single_precision = None
            self.value, gradient = self.objective(self.theta)
            self.gradient_norm = self.norm(gradient)

    def lbfgs_of_scipy(self, steps: int) -> FloatArray:
        """Run SciPy's L-BFGS, which begins without knowledge of the curvature, and return where it ends."""

        def after_step(theta: FloatArray) -> None:
            if self.lbfgs_step_taken(theta):
                raise StopIteration

        options = {"maxiter": steps, "maxfun": 20 * steps, "maxcor": LBFGS_MEMORY, "ftol": 0.0, "gtol": 0.0}
        found = minimize(self.objective, self.theta, jac=True, method="L-BFGS-B", callback=after_step, options=options)
        return np.asarray(found.x)

    def lbfgs_from(self, pairs: CurvaturePairs, steps: int) -> FloatArray:
        """Run L-BFGS with the curvature that earlier searches met, and return where it ends; update ``pairs``."""
        theta, (value, gradient) = self.theta, self.objective(self.theta)
        inverse = pairs.inverse_hessian(self.unit, self.ridge)
        for _ in range(steps):
            found = self.line_search(theta, value, gradient, inverse.direction(gradient))
            if found is None:
                break
            inverse.add(found[0] - theta, found[2] - gradient)
            theta = found[0]
            converged = self.lbfgs_step_taken(theta)
            if converged:
                break
            value, gradient = self.objective(theta)
        pairs.update(inverse, self.unit, self.ridge)
        return theta

    def line_search(
        self, start: FloatArray, value: float, gradient: FloatArray, direction: FloatArray
    ) -> tuple[FloatArray, float, FloatArray] | None:
        """Return a point along ``direction`` with its risk and gradient, or None if rounding leaves no decrease.

        The longest step is 1. A change within the rounding error of the risk counts as a decrease if the slope has
        not reversed.
        """
        slope, step = float(gradient @ direction), 1.0
        rounding = (1e-14 if self.single_precision is None else 1e-6) * abs(value)
        while slope < 0 and step > MIN_STEP:
            theta = start + step * direction
            found, new_gradient = self.objective(theta)
            is_lower = found <= value + ARMIJO * step * slope
            if is_lower or (found <= value + rounding and new_gradient @ direction <= -slope):
                return theta, found, new_gradient
            excess = (found - value - step * slope) / abs(
                step * slope
            )  # the quadratic's minimum is at step / excess / 2
            step *= min(max(0.5 / excess, 0.1), 0.5) if math.isfinite(excess) and excess > 0 else 0.1
        return None

    def newton(self) -> None:
        """Run the Newton–Krylov method, and keep its result if that lowers the gradient norm."""
        try:
            with np.errstate(all="ignore"):  # a step that overflows is discarded
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
        except ValueError:  # rounding makes the Jacobian unusable: keep the result of L-BFGS
            return
        value, gradient = self.objective(found)
        if self.norm(gradient) < self.gradient_norm:
            self.theta, self.value, self.gradient_norm = found, value, self.norm(gradient)
