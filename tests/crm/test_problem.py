"""Units of a search: they follow the curvature, and are the same however rows are ordered, repeated or streamed."""

import numpy as np
import pytest

from compshift import GroupSpace
from compshift.core.energy import GroupTable
from compshift.crm.blocks import ArrayRows, spread_of
from compshift.crm.fit import StepOneProblem
from compshift.crm.problem import softmax_curvature, standardise
from compshift.crm.solver import solve


def test_curvature_of_a_softmax():
    found = softmax_curvature(np.array([0.0, 0.5, 0.1, 1.0]), 3.0, 0.01)
    np.testing.assert_allclose(found, [1, np.sqrt(1.51), 1, 1])
    np.testing.assert_allclose(softmax_curvature(np.array([0.5]), 1.0, 100.0), np.sqrt(100.5))


def test_spread_is_that_of_the_second_moments():
    """With every direction as a probe it is exact: the mean of λ² over the mean of λ, which is 1."""
    rng = np.random.default_rng(0)
    X, weight = rng.normal(size=(400, 6)) * [1, 2, 4, 8, 1, 1], rng.uniform(0.5, 2, size=400)
    features, _ = standardise(X, weight)
    moments = np.cov(features.T, aweights=weight, bias=True)
    eigenvalues = np.linalg.eigvalsh(moments)
    assert eigenvalues.mean() == pytest.approx(1)
    assert spread_of(moments @ np.eye(6) * np.sqrt(6)) == pytest.approx((eigenvalues**2).mean())


@pytest.mark.parametrize("leading", [1, 30])
def test_spread_by_a_few_probes(leading):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 200)) * np.r_[np.full(5, np.sqrt(leading)), np.ones(195)]
    features, standard = standardise(X, np.ones(len(X)))
    exact = (np.linalg.eigvalsh(features.T @ features / len(X)) ** 2).mean()
    assert exact / 2 < standard.spread < 2 * exact


def test_spread_of_rows_repeated_shuffled_and_in_another_unit():
    rng = np.random.default_rng(1)
    X, times = rng.normal(size=(300, 4)) * [1, 1, 3, 9], rng.integers(0, 4, size=300)
    _, weighted = standardise(X[times > 0], times[times > 0].astype(np.float64))
    repeated = rng.permutation(np.repeat(X, times, axis=0))
    _, plain = standardise(repeated * 1e-8 + 1, np.ones(len(repeated)))
    assert plain.spread == pytest.approx(weighted.spread, rel=1e-5)
    assert weighted.spread == pytest.approx(3.1, abs=0.3)


def test_features_that_do_not_differ_have_no_spread():
    _, standard = standardise(np.full((5, 2), 3.0), np.ones(5))
    assert standard.spread == 1


class Counted:
    """A problem that counts its evaluations, in any units."""

    coarse = None

    def __init__(self, problem, curvature):
        self.problem, self.curvature, self.n_evaluations = problem, curvature, 0
        self.shape, self.frequency, self.alpha = problem.shape, problem.frequency, problem.alpha

    def evaluate(self, weight, bias):
        self.n_evaluations += 1
        return self.problem.evaluate(weight, bias)


def test_the_solution_does_not_depend_on_units_but_the_steps_do():
    """Groups that are far apart make a few directions of the features vary most."""
    rng = np.random.default_rng(0)
    n, space = 2000, GroupSpace.from_cardinalities([7, 4])
    codes = space.codes(rng.integers(space.n_groups, size=n))
    X = space.one_hot(codes) @ rng.normal(size=(space.width, 200)) + rng.normal(size=(n, 200))
    groups, position = space.distinct(codes)
    features, standard = standardise(X, np.ones(n))
    rows, frequency = ArrayRows(features, position, np.full(n, 1 / n)), np.bincount(position) / n
    problem = StepOneProblem(rows, GroupTable.of(space, groups), frequency, alpha=0.1, spread=standard.spread)
    assert problem.curvature.min() > 1.5
    ours, plain = Counted(problem, problem.curvature), Counted(problem, np.ones(11))
    found, expected = (solve(counted, tol=1e-6, max_iter=500) for counted in (ours, plain))
    assert found.converged
    assert expected.converged
    np.testing.assert_allclose(found.weight, expected.weight, atol=1e-4)
    np.testing.assert_allclose(found.bias, expected.bias, atol=1e-4)
    _, of_weights, of_biases = problem.evaluate(found.weight, found.bias)  # whose sizes do not depend on units
    assert found.gradient == pytest.approx(max(np.abs(of_weights).max(), np.abs(of_biases / frequency).max()), rel=1e-6)
    assert ours.n_evaluations < 0.9 * plain.n_evaluations
