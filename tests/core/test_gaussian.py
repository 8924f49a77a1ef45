"""Gaussian groups: densities, moments, risk and additive means, against loops, SciPy and exact fractions."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import check_grad
from scipy.stats import multivariate_normal
from sklearn.covariance import ledoit_wolf_shrinkage as sklearn_shrinkage

from compshift import AffineHull, GroupSpace
from compshift.core.gaussian import (
    GroupMoments,
    PerValueGaussians,
    PerValueRisk,
    SharedGaussians,
    additive_means,
    group_means,
    ledoit_wolf_shrinkage,
    relative_exponents,
    second_moments,
    squared_distances,
)


def random_covariance(rng, p):
    root = rng.normal(size=(p, p))
    return root @ root.T / p + 0.3 * np.eye(p)


def random_risk(rng, p=3, penalty=0.2):
    space = GroupSpace.from_cardinalities([2, 3])
    seen = space.codes(np.array([0, 1, 2, 4, 5]))
    weight = rng.uniform(0.5, 2, size=5)
    mean = rng.normal(size=(5, p))
    second = np.stack([random_covariance(rng, p) + np.outer(m, m) for m in mean])
    moments = GroupMoments(weight / weight.sum(), mean, second)
    start = np.tile(np.eye(p) / 2, (5, 1, 1))
    return PerValueRisk(space.one_hot(seen), moments, start, rng.normal(size=(5, p)), penalty), space, seen


def test_moments_against_loops():
    rng = np.random.default_rng(0)
    X, weight = rng.normal(size=(40, 3)), rng.uniform(0.1, 2, size=40)
    position = np.r_[0, 1, 2, rng.integers(0, 3, size=37)]
    for group in range(3):
        total, mean, second = 0.0, np.zeros(3), np.zeros((3, 3))
        for x, w, own in zip(X, weight, position, strict=True):
            if own == group:
                total, mean, second = total + w, mean + w * x, second + w * np.outer(x, x)
        np.testing.assert_allclose(group_means(X, position, weight)[group], mean / total, rtol=1e-12)
        np.testing.assert_allclose(second_moments(X, position, weight)[group], second / total, rtol=1e-12)


def test_shrinkage_is_ledoit_and_wolfs():
    rng = np.random.default_rng(2)
    for n, p in ((30, 5), (20, 40), (500, 3)):
        residuals = rng.normal(size=(n, p)) * rng.uniform(0.2, 2, size=p)
        expected = sklearn_shrinkage(residuals, assume_centered=True)
        assert ledoit_wolf_shrinkage(residuals, np.ones(n)) == pytest.approx(expected, rel=1e-9)
        count = rng.integers(1, 4, size=n)
        repeated = sklearn_shrinkage(np.repeat(residuals, count, axis=0), assume_centered=True)
        assert ledoit_wolf_shrinkage(residuals, count.astype(float)) == pytest.approx(repeated, rel=1e-9)
    assert ledoit_wolf_shrinkage(rng.normal(size=(10, 1)), np.ones(10)) == 0


@settings(max_examples=20)
@given(st.integers(0, 1000))
def test_densities_against_scipy(seed):
    rng = np.random.default_rng(seed)
    space = GroupSpace.from_cardinalities([2, 2])
    codes = space.codes(np.arange(4))
    X, p = rng.normal(size=(6, 3)) * 3, 3
    covariance = random_covariance(rng, p)
    shared = SharedGaussians(space, rng.normal(size=(4, p)), covariance)
    precision = np.stack([random_covariance(rng, p) for _ in range(4)])
    each = PerValueGaussians(space, precision, rng.normal(size=(4, p)))
    for group, (first, second) in enumerate(codes):
        mean = shared.value_means[first] + shared.value_means[2 + second]
        expected = multivariate_normal(mean, covariance).logpdf(X)
        np.testing.assert_allclose(shared.groups(codes).log_density(X)[:, group], expected, atol=1e-9)
        own = np.linalg.inv(precision[first] + precision[2 + second])
        mean = own @ (each.natural[first] + each.natural[2 + second])
        expected = multivariate_normal(mean, own).logpdf(X)
        np.testing.assert_allclose(each.groups(codes).log_density(X)[:, group], expected, atol=1e-9)
        np.testing.assert_allclose(each.groups(codes).covariances()[group], own, atol=1e-9)
    for model in (shared, each):
        gaussians = model.groups(codes)
        terms, logs = gaussians.log_posterior_terms(X), gaussians.log_density(X)
        np.testing.assert_allclose(np.diff(terms, axis=1), np.diff(logs, axis=1), atol=1e-9)


def test_squared_distances():
    """Centres include some that are far from the origin and near the point."""
    rng = np.random.default_rng(8)
    centres = np.concatenate([rng.normal(size=(3, 4)), 1e7 + rng.normal(size=(2, 4)), rng.normal(size=(1, 4)) - 1e9])
    points = np.concatenate([centres + rng.normal(size=(6, 4)), centres])
    found = squared_distances(points, centres)
    for row, point in enumerate(points):
        for group, centre in enumerate(centres):
            expected = sum((float(a) - float(b)) ** 2 for a, b in zip(point, centre, strict=True))
            assert found[row, group] == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("far", [1.0, 1e4, 1e7, 1e12])
def test_exponents_of_near_centres_keep_their_digits_beside_far_ones(far):
    rng = np.random.default_rng(9)
    centres = np.concatenate([rng.integers(-3, 4, size=(3, 4)), far * rng.integers(1, 4, size=(2, 4))]).astype(float)
    points = np.concatenate([centres + rng.integers(-2, 3, size=centres.shape), 2.0**60 * np.eye(4)])
    found = relative_exponents(points, centres)
    for point, row in zip(points, found, strict=True):
        exact = [-sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(point, mu, strict=True)) / 2 for mu in centres]
        best = max(exact)
        expected = [float(value - best) for value in exact]
        np.testing.assert_allclose(row - row.max(), expected, rtol=1e-9, atol=1e-9)


def test_a_group_without_a_density():
    space = GroupSpace.from_cardinalities([2, 2])
    precision = np.array([1.0, 3.0, 2.0, -2.0])[:, None, None] * np.eye(2)
    gaussians = PerValueGaussians(space, precision, np.ones((4, 2))).groups(space.codes(np.arange(4)))
    assert gaussians.proper.tolist() == [True, False, True, True]
    logs = gaussians.log_density(np.zeros((1, 2)))
    assert np.isnan(logs[0]).tolist() == [False, True, False, False]


class TestRisk:
    def test_value_against_scipy(self):
        """The risk from moments equals the mean negative log-likelihood of the samples."""
        rng = np.random.default_rng(4)
        risk, space, seen = random_risk(rng, penalty=0.7)
        X, position = rng.normal(size=(50, 3)), np.r_[np.arange(5), rng.integers(0, 5, size=45)]
        moments = GroupMoments(
            np.bincount(position) / 50, group_means(X, position, np.ones(50)), second_moments(X, position, np.ones(50))
        )
        risk = PerValueRisk(risk.one_hot, moments, risk.start_precision, risk.start_natural, 0.7)
        precision, natural = np.stack([random_covariance(rng, 3) for _ in range(5)]), rng.normal(size=(5, 3))
        total = 0.0
        for x, z in zip(X, seen[position], strict=True):
            covariance = np.linalg.inv(precision[z[0]] + precision[2 + z[1]])
            mean = covariance @ (natural[z[0]] + natural[2 + z[1]])
            total -= multivariate_normal(mean, covariance).logpdf(x) / 50
        total += 0.35 * (
            ((precision - risk.start_precision) ** 2).sum() / 2 + ((natural - risk.start_natural) ** 2).sum()
        )
        point = risk.at(precision, natural)
        assert point.value == pytest.approx(total, rel=1e-10)
        np.testing.assert_allclose(
            point.mean, PerValueGaussians(space, precision, natural).groups(seen).means, atol=1e-10
        )

    def test_derivatives_against_differences(self):
        rng = np.random.default_rng(5)
        risk, _, _ = random_risk(rng)
        p = 3

        def parts(theta):
            return theta[: 5 * p * p].reshape(5, p, p), theta[5 * p * p :].reshape(5, p)

        def flat(pair):
            return np.concatenate([part.ravel() for part in pair])

        def gradient(theta):
            return flat(risk.gradient(*parts(theta), risk.at(*parts(theta))))

        start = np.stack([random_covariance(rng, p) for _ in range(5)])
        theta = flat((start, rng.normal(size=(5, p))))
        assert check_grad(lambda at: risk.at(*parts(at)).value, gradient, theta) < 1e-5
        for _ in range(3):
            step = rng.normal(size=len(theta))
            differences = (gradient(theta + 1e-5 * step) - gradient(theta - 1e-5 * step)) / 2e-5
            product = flat(risk.hessian_product(*parts(step), risk.at(*parts(theta))))
            np.testing.assert_allclose(product, differences, atol=1e-6)
            assert step @ product > 0

    def test_it_is_infinite_outside_the_cone(self):
        risk, _, _ = random_risk(np.random.default_rng(6))
        assert risk.at(-risk.start_precision, risk.start_natural) is None


def exact_fit(one_hot, weight, mean):
    """Fitted means (k, p), by Gauss–Jordan elimination of the normal equations in fractions."""
    k, width = one_hot.shape
    columns = mean.shape[1]
    rows = []
    for i in range(width):
        own = [s for s in range(k) if one_hot[s, i]]
        row = [sum((Fraction(weight[s]) for s in own if one_hot[s, j]), Fraction(0)) for j in range(width)]
        row += [sum((Fraction(weight[s]) * Fraction(mean[s, c]) for s in own), Fraction(0)) for c in range(columns)]
        rows.append(row)
    solution = [[Fraction(0)] * columns for _ in range(width)]
    pivots = []
    for column in range(width):
        start = len(pivots)
        found = next((i for i in range(start, width) if rows[i][column] != 0), None)
        if found is None:
            continue
        rows[start], rows[found] = rows[found], rows[start]
        rows[start] = [value / rows[start][column] for value in rows[start]]
        for i in range(width):
            if i != start and rows[i][column] != 0:
                factor = rows[i][column]
                rows[i] = [value - factor * other for value, other in zip(rows[i], rows[start], strict=True)]
        pivots.append(column)
    for row, column in zip(rows, pivots, strict=False):
        solution[column] = row[width:]
    fitted = [
        [float(sum(solution[i][c] for i in range(width) if one_hot[s, i])) for c in range(columns)] for s in range(k)
    ]
    return np.array(fitted)


@pytest.mark.parametrize("tiny", [1.0, 1e-14, 1e-20, 1e-60, 1e-300])
@pytest.mark.parametrize(("sizes", "missing"), [([3, 3], (0,)), ([3, 4, 2], (0, 3, 5, 9, 11, 20)), ([2, 2, 2], ())])
def test_very_unequal_weights_against_fractions(tiny, sizes, missing):
    """The means are not additive; a value that only light groups have must be as accurate as the others."""
    rng = np.random.default_rng(0)
    space = GroupSpace.from_cardinalities(sizes)
    groups = space.codes(np.setdiff1d(np.arange(space.n_groups), missing))
    one_hot, mean = space.one_hot(groups), 3 * rng.normal(size=(len(groups), 2))
    even = rng.uniform(0.5, 2, size=len(groups))
    for weight in (np.where(groups[:, 0] == 1, tiny, 1.0) * even, tiny ** rng.uniform(size=len(groups))):
        found = one_hot @ additive_means(space, groups, weight, mean)
        np.testing.assert_allclose(found, exact_fit(one_hot, weight, mean), atol=1e-11)


def test_weights_whose_ratio_underflows():
    """If the ratio of weights underflows to 0, light groups count only where no heavy group determines the mean."""
    space = GroupSpace.from_cardinalities([2, 2])
    groups = space.codes(np.arange(4))
    mean = np.array([[1.0], [2.0], [4.0], [9.0]])
    found = space.one_hot(groups) @ additive_means(space, groups, np.array([1e300, 1e300, 1e300, 1e-300]), mean)
    np.testing.assert_allclose(found[:, 0], [1, 2, 4, 5], atol=1e-12)
    fewer = space.one_hot(groups) @ additive_means(space, groups[:3], np.array([1e300, 1e300, 1e-300]), mean[:3])
    np.testing.assert_allclose(fewer[:, 0], [1, 2, 4, 5], atol=1e-12)


def test_means_that_add_up_are_found_inside_the_hull():
    """Groups inside the hull that were not seen are included."""
    rng = np.random.default_rng(1)
    space = GroupSpace.from_cardinalities([2, 3, 2])
    parts = rng.normal(size=(space.width, 4))
    groups = space.codes(np.arange(space.n_groups))
    seen = groups[[0, 2, 3, 5, 7, 10, 11]]
    inside = AffineHull(space, seen).contains(groups)
    assert inside.sum() > len(seen)
    found = additive_means(space, seen, rng.uniform(0.1, 1, size=len(seen)), space.one_hot(seen) @ parts)
    expected, got = space.one_hot(groups) @ parts, space.one_hot(groups) @ found
    np.testing.assert_allclose(got[inside], expected[inside], atol=1e-12)


def test_means_that_add_up_are_met_to_the_last_digits():
    """A feature that is constant within groups must get no spurious variance."""
    rng = np.random.default_rng(2)
    space = GroupSpace.from_cardinalities([30, 30, 30])
    groups = space.codes(np.sort(rng.choice(space.n_groups, size=3000, replace=False)))
    mean = space.one_hot(groups) @ rng.normal(size=(space.width, 2))
    found = space.one_hot(groups) @ additive_means(space, groups, rng.uniform(0.1, 5, size=3000), mean)
    np.testing.assert_allclose(found, mean, rtol=0, atol=5e-15)


@settings(max_examples=30)
@given(st.integers(0, 10_000))
def test_additive_means_are_the_smallest_minimiser(seed):
    """Weighted residuals of every value sum to 0, and no part lies in the null space of the codes."""
    rng = np.random.default_rng(seed)
    space = GroupSpace.from_cardinalities(rng.integers(2, 4, size=rng.integers(1, 4)).tolist())
    count = rng.integers(1, space.n_groups + 1)
    groups = space.codes(np.sort(rng.choice(space.n_groups, size=count, replace=False)))
    one_hot, weight, mean = space.one_hot(groups), rng.uniform(0.01, 1, size=count), rng.normal(size=(count, 2))
    found = additive_means(space, groups, weight, mean)
    np.testing.assert_allclose(one_hot.T @ (weight[:, None] * (mean - one_hot @ found)), 0, atol=1e-11)
    np.testing.assert_allclose(np.linalg.pinv(one_hot) @ (one_hot @ found), found, atol=1e-11)
    order = rng.permutation(count)
    again = additive_means(space, groups[order], 7 * weight[order], mean[order])
    np.testing.assert_allclose(again, found, atol=1e-11)
