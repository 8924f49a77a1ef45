"""Additive means by least squares, against exact fractions and by what defines them."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compshift import AffineHull, GroupSpace
from compshift.core.gaussian import additive_means


def exact_fit(one_hot, weight, mean):
    """Fitted means (k, p), by Gauss and Jordan on the normal equations in fractions."""
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
    """Of means that do not add up: a value that only light groups have is as accurate as the others."""
    rng = np.random.default_rng(0)
    space = GroupSpace.from_cardinalities(sizes)
    groups = space.codes(np.setdiff1d(np.arange(space.n_groups), missing))
    one_hot, mean = space.one_hot(groups), 3 * rng.normal(size=(len(groups), 2))
    even = rng.uniform(0.5, 2, size=len(groups))
    for weight in (np.where(groups[:, 0] == 1, tiny, 1.0) * even, tiny ** rng.uniform(size=len(groups))):
        found = one_hot @ additive_means(space, groups, weight, mean)
        np.testing.assert_allclose(found, exact_fit(one_hot, weight, mean), atol=1e-11)


def test_weights_that_cannot_be_divided():
    """So light beside the heaviest that the ratio is 0: the heavy ones alone count where they say something."""
    space = GroupSpace.from_cardinalities([2, 2])
    groups = space.codes(np.arange(4))
    mean = np.array([[1.0], [2.0], [4.0], [9.0]])
    found = space.one_hot(groups) @ additive_means(space, groups, np.array([1e300, 1e300, 1e300, 1e-300]), mean)
    np.testing.assert_allclose(found[:, 0], [1, 2, 4, 5], atol=1e-12)
    fewer = space.one_hot(groups) @ additive_means(space, groups[:3], np.array([1e300, 1e300, 1e-300]), mean[:3])
    np.testing.assert_allclose(fewer[:, 0], [1, 2, 4, 5], atol=1e-12)


def test_means_that_add_up_are_found_inside_the_hull():
    """Also those of a group that is determined but was not given."""
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
    """What is constant within groups must not seem to vary."""
    rng = np.random.default_rng(2)
    space = GroupSpace.from_cardinalities([30, 30, 30])
    groups = space.codes(np.sort(rng.choice(space.n_groups, size=3000, replace=False)))
    mean = space.one_hot(groups) @ rng.normal(size=(space.width, 2))
    found = space.one_hot(groups) @ additive_means(space, groups, rng.uniform(0.1, 5, size=3000), mean)
    np.testing.assert_allclose(found, mean, rtol=0, atol=5e-15)


@settings(max_examples=30)
@given(st.integers(0, 10_000))
def test_it_is_the_smallest_minimiser(seed):
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
