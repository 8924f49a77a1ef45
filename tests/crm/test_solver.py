"""Minimisation of smooth risks: optimality, precision, and risks that overflow."""

from dataclasses import replace

import numpy as np
import pytest

from compshift import GroupSpace, InputError
from compshift.core.energy import GroupTable
from compshift.crm.blocks import ArrayRows
from compshift.crm.problem import StepOneProblem, standardise
from compshift.crm.solver import CurvaturePairs, RiskGradient, _InverseHessian, solve


def test_the_solution_is_stationary_for_rare_groups_too():
    rng = np.random.default_rng(0)
    n = 20_000
    codes = np.stack([rng.random(n) < 0.01, rng.random(n) < 0.02], axis=1).astype(np.int64)
    codes[:2], codes[2:4] = [1, 1], [0, 1]
    X = rng.normal(size=(n, 4)) + codes @ rng.normal(size=(2, 4)) * 2
    space = GroupSpace.from_cardinalities([2, 2])
    groups, position = space.distinct(codes)
    frequency = np.bincount(position) / n
    assert frequency.min() < 1e-3
    features, _ = standardise(X, np.ones(n))
    rows = ArrayRows(features, position, np.full(n, 1 / n))
    problem = StepOneProblem(rows, GroupTable.of(space, groups), frequency, alpha=1e-3)
    solution = solve(problem, tol=1e-7, max_iter=1000)
    assert solution.converged
    assert solution.gradient <= 1e-7
    assert frequency @ solution.bias == pytest.approx(0, abs=1e-12)
    # The model's mean posterior of every group equals its frequency, even for the rarest.
    logits = np.log(frequency) - solution.bias - features @ solution.weight.T @ space.one_hot(groups).T
    posterior = np.exp(logits - np.logaddexp.reduce(logits, axis=1)[:, None])
    np.testing.assert_allclose(posterior.mean(axis=0), frequency, rtol=1e-6)


def additive_problem(cardinalities, n, p, features_as=np.float64):
    """Return a problem of additive means in unit noise; features are rounded to another type."""
    rng = np.random.default_rng(0)
    space = GroupSpace.from_cardinalities(cardinalities)
    codes = space.codes(rng.integers(space.n_groups, size=n))
    groups, position = space.distinct(codes)
    features, _ = standardise(rng.normal(size=(n, p)) + codes @ rng.normal(size=(2, p)), np.ones(n))
    rows = ArrayRows(features.astype(features_as).astype(np.float64), position, np.full(n, 1 / n))
    return StepOneProblem(rows, GroupTable.of(space, groups), np.bincount(position) / n, alpha=1e-2)


class Mixed:
    """A problem that records whether it or its single-precision version is evaluated, and may add noise to the risk."""

    def __init__(self, problem, single_precision, asked, noise=0.0):
        self.problem, self.single_precision, self.asked, self.noise = problem, single_precision, asked, noise
        self.shape, self.frequency, self.alpha = problem.shape, problem.frequency, problem.alpha
        self.curvature = problem.curvature
        self.rng = np.random.default_rng(1)

    def evaluate(self, weight, bias):
        self.asked.append(self.single_precision is not None)
        found = self.problem.evaluate(weight, bias)
        return found._replace(value=found.value + self.noise * self.rng.normal())


def test_a_search_that_begins_in_single_precision_ends_in_double():
    plain, asked = additive_problem([2, 3], 400, 3), []
    assert plain.single_precision is None  # too few samples for a copy to save time
    half = additive_problem([2, 3], 400, 3, np.float16)  # less precise than any type in use
    single_precision = Mixed(half, None, asked)
    found = solve(Mixed(plain, single_precision, asked), tol=1e-8, max_iter=500)
    expected = solve(plain, tol=1e-8, max_iter=500)
    assert found.converged
    assert asked == sorted(asked)  # first the one, then the other
    assert asked.count(False) > 5
    np.testing.assert_allclose(found.weight, expected.weight, atol=1e-7)
    np.testing.assert_allclose(found.bias, expected.bias, atol=1e-7)


def test_a_line_search_that_fails_in_single_precision_resumes_in_double_without_newton():
    plain, asked = additive_problem([2, 3], 400, 3), []
    single_precision = Mixed(plain, None, asked, noise=1e-3)
    found = solve(Mixed(plain, single_precision, asked), tol=1e-6, max_iter=500)
    assert found.converged
    assert asked == sorted(asked)
    alone = []
    solve(Mixed(plain, None, alone), tol=1e-6, max_iter=500)
    assert asked.count(True) <= 2 * len(alone)  # Newton's products would be many more


def test_single_precision_is_close_and_adds_up_in_double():
    problem, rng = additive_problem([3, 4], 60_000, 5), np.random.default_rng(2)
    weight, bias = rng.normal(size=problem.shape), rng.normal(size=12)
    exact, close = problem.evaluate(weight, bias), problem.single_precision.evaluate(weight, bias)
    assert close.value == pytest.approx(exact.value, rel=3e-8)  # below the rounding error of one float32 number
    np.testing.assert_allclose(close.weight_gradient, exact.weight_gradient, atol=1e-6)
    np.testing.assert_allclose(close.bias_gradient, exact.bias_gradient, rtol=1e-4, atol=1e-7)
    assert close.weight_gradient.dtype == close.bias_gradient.dtype == np.float64


def test_solution_beats_every_nearby_point():
    rng = np.random.default_rng(1)
    space = GroupSpace.from_cardinalities([2, 3])
    codes = space.codes(rng.choice([0, 1, 3, 5], size=80))
    X = rng.normal(size=(80, 2)) + codes
    groups, position = space.distinct(codes)
    features, _ = standardise(X, np.ones(80))
    rows = ArrayRows(features, position, np.full(80, 1 / 80))
    problem = StepOneProblem(rows, GroupTable.of(space, groups), np.bincount(position) / 80, alpha=0.1)
    solution = solve(problem, tol=1e-8, max_iter=500)

    def penalised_risk(weight, bias):
        logits = np.log(problem.frequency) - bias - features @ weight.T @ space.one_hot(groups).T
        own = logits[np.arange(80), position] - np.logaddexp.reduce(logits, axis=1)
        return -own.mean() + 0.05 * (weight**2).sum()

    best = penalised_risk(solution.weight, solution.bias)
    assert best == pytest.approx(solution.risk, abs=1e-12)
    for _ in range(20):
        nearby = penalised_risk(
            solution.weight + rng.normal(size=solution.weight.shape) * 1e-2,
            solution.bias + rng.normal(size=solution.bias.shape) * 1e-2,
        )
        assert nearby > best


class Overflowing:
    """A risk that is finite in the first evaluations and NaN afterwards."""

    single_precision, shape, alpha = None, (1, 2), 0.1
    frequency, curvature = np.array([0.5, 0.5]), np.ones(1)

    def __init__(self, finite):
        self.finite, self.evaluations = finite, 0

    def evaluate(self, *_):
        self.evaluations += 1
        value = 1.0 if self.evaluations <= self.finite else np.nan
        return RiskGradient(value, np.full(self.shape, value), np.full(2, value))


@pytest.mark.parametrize("finite", [1, 2, 5])
def test_a_risk_that_overflows_during_the_search_ends_it(finite):
    problem = Overflowing(finite)
    assert not solve(problem, tol=1e-6, max_iter=30).converged
    assert problem.evaluations < 2000


def test_a_risk_that_overflows_at_the_start_raises():
    with pytest.raises(
        InputError, match="the risk overflows at the starting point of the search: look for features or"
    ):
        solve(Overflowing(0), tol=1e-6, max_iter=30)


class TestCurvaturePairs:
    def test_a_direction_is_that_of_bfgs_updates_of_a_dense_inverse_hessian(self, monkeypatch):
        monkeypatch.setattr("compshift.crm.solver.LBFGS_MEMORY", 4)
        rng = np.random.default_rng(0)
        root = rng.normal(size=(6, 6))
        hessian, inverse = root @ root.T + np.eye(6), _InverseHessian(6)
        steps = rng.normal(size=(7, 6))
        for step in steps:
            inverse.add(step, hessian @ step)
        inverse.add(steps[0], -steps[0])  # not convex: left out
        last = steps[-4:]
        dense = np.eye(6) * (last[-1] @ hessian @ last[-1]) / np.square(hessian @ last[-1]).sum()
        for step in last:
            change = hessian @ step
            left = np.eye(6) - np.outer(step, change) / (step @ change)
            dense = left @ dense @ left.T + np.outer(step, step) / (step @ change)
        gradient = rng.normal(size=6)
        np.testing.assert_allclose(inverse.direction(gradient), -dense @ gradient)

    def test_pairs_of_one_ridge_serve_another(self):
        rng = np.random.default_rng(0)
        root = rng.normal(size=(5, 5))
        hessian, unit = root @ root.T + np.eye(5), rng.uniform(0.5, 2, size=5)
        pairs, met = CurvaturePairs(), _InverseHessian(5)
        ridge = np.array([1.0, 1.0, 1.0, 0.0, 0.0])
        for step in rng.normal(size=(5, 5)):
            met.add(step / unit, unit * ((hessian + np.diag(0.1 * ridge)) @ step))
        pairs.update(met, unit, 0.1 * ridge)
        other = pairs.inverse_hessian(np.ones(5), 0.7 * ridge)
        np.testing.assert_allclose(other.changes[:5], other.steps[:5] @ (hessian + np.diag(0.7 * ridge)))

    @pytest.mark.parametrize(("n", "p"), [(400, 30), (5000, 60)])
    def test_fits_that_share_curvature_end_where_single_fits_do(self, n, p):
        """The larger problem begins in single precision."""
        plain, pairs = additive_problem([4, 3], n, p), CurvaturePairs()
        for alpha in (1.0, 0.1, 0.01):
            problem = replace(plain, alpha=alpha)
            found = solve(problem, tol=1e-7, max_iter=500, pairs=pairs)
            assert found.converged
            expected = solve(problem, tol=1e-9, max_iter=500)
            np.testing.assert_allclose(found.weight, expected.weight, atol=1e-5)
            np.testing.assert_allclose(found.bias, expected.bias, atol=1e-5)

    def test_shared_curvature_saves_evaluations_of_a_path(self):
        plain, pairs = additive_problem([4, 3], 1000, 100), CurvaturePairs()

        def evaluations(shared):
            start, asked = None, []
            for alpha in (0.3, 0.1, 0.03, 0.01, 0.003):
                problem = replace(plain, alpha=alpha)
                kept = pairs if shared else CurvaturePairs()
                start = solve(Mixed(problem, None, asked), tol=3e-3, max_iter=500, start=start, pairs=kept).start
            return len(asked)

        assert evaluations(shared=True) < 0.85 * evaluations(shared=False)

    def test_a_line_search_ends_at_rounding_errors(self):
        problem = additive_problem([4, 3], 400, 10)
        noisy = Mixed(problem, None, [], noise=1e-9)
        found = solve(noisy, tol=1e-12, max_iter=200, pairs=CurvaturePairs())
        assert found.gradient < 1e-3
        assert len(noisy.asked) < 5000
