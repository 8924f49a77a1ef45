"""The sparsest affine combination, against brute force over all subsets of the seen groups."""

import itertools
import time
from fractions import Fraction

import numpy as np
import pytest

from compshift import AffineHull, GroupSpace, InputError
from tests.references import one_hot

SEVEN = [[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1], [1, 0, 0], [1, 0, 1], [1, 1, 0]]


def gives(hull, found, code):
    """Whether a combination has the one-hot row of the group."""
    total = sum(
        weight * np.array(one_hot(hull.space.cardinalities, hull.observed[position]), dtype=object)
        for position, weight in zip(found.positions, found.weights, strict=True)
    )
    return total.tolist() == one_hot(hull.space.cardinalities, code) and all(found.weights)


def solve(vectors, wanted):
    """Solve for weights of linearly independent vectors by elimination in fractions; None if impossible."""
    size = len(vectors)
    table = [[Fraction(vector[row]) for vector in vectors] + [Fraction(wanted[row])] for row in range(len(wanted))]
    for column in range(size):
        pivot = next((row for row in range(column, len(table)) if table[row][column]), None)
        if pivot is None:
            return None
        table[column], table[pivot] = table[pivot], table[column]
        table[column] = [entry / table[column][column] for entry in table[column]]
        for row in range(len(table)):
            if row != column and table[row][column]:
                factor = table[row][column]
                table[row] = [a - factor * b for a, b in zip(table[row], table[column], strict=True)]
    if any(row[size] for row in table[size:]):
        return None
    return [row[size] for row in table[:size]]


def brute_force(hull, code, rows):
    """Return the fewest groups, the least Σ |α| and the most rows, over all subsets of the seen groups."""
    vectors = [one_hot(hull.space.cardinalities, group) for group in hull.observed]
    wanted = one_hot(hull.space.cardinalities, code)
    for size in range(1, len(vectors) + 1):
        found = []
        for subset in itertools.combinations(range(len(vectors)), size):
            weights = solve([vectors[position] for position in subset], wanted)
            if weights is not None and all(weights):
                found.append((sum(map(abs, weights)), -sum(rows[position] for position in subset)))
        if found:
            return size, *min(found)
    raise AssertionError("the group is outside the hull")


@pytest.mark.parametrize("sizes", [(3, 4), (2, 2, 2), (3, 3, 2), (4, 4, 4), (2, 2, 2, 2), (3, 2, 2, 3), (2,) * 5])
def test_agrees_with_brute_force(sizes):
    rng = np.random.default_rng(sum(sizes))
    space, checked = GroupSpace.from_cardinalities(sizes), set()
    for _ in range(12):
        count = int(rng.integers(4, min(11, space.n_groups)))
        hull = AffineHull(space, space.codes(rng.choice(space.n_groups, count, replace=False)))
        rows = rng.integers(1, 6, size=count).astype(float)
        for code in hull.missing(inside=True)[:2]:
            found = hull.combination(code, rows)
            assert gives(hull, found, code)
            assert found.fewest
            assert found.optimal
            size = sum(map(abs, found.weights))
            total = sum(rows[position] for position in found.positions)
            assert (len(found.weights), size, -total) == brute_force(hull, code, rows)
            checked.add(len(found.weights))
    assert 3 in checked
    assert max(checked) > 3 or sizes == (2, 2, 2)


def test_a_square_of_near_groups_is_preferred():
    space = GroupSpace.from_cardinalities([2, 2, 2])
    hull = AffineHull(space, SEVEN)
    assert hull.explain([1, 1, 1]) == "(1, 1, 1) = (1, 1, 0) + (1, 0, 1) − (1, 0, 0)"
    rows = [50, 50, 50, 90, 50, 50, 90]
    assert hull.explain([1, 1, 1], rows) == "(1, 1, 1) = (1, 1, 0) + (0, 1, 1) − (0, 1, 0)"
    assert hull.weights([1, 1, 1], rows).tolist() == [0, 0, -1, 1, 0, 0, 1]


def test_two_attributes_take_the_shortest_path_with_the_most_rows():
    space = GroupSpace.from_cardinalities([3, 3])
    hull = AffineHull(space, [[0, 1], [1, 1], [1, 0], [0, 2], [2, 2], [2, 0]])
    assert hull.explain([0, 0], [1, 9, 9, 1, 1, 1]) == "(0, 0) = (0, 2) − (2, 2) + (2, 0)".replace("2", "1")
    assert hull.explain([0, 0], [1, 1, 1, 9, 9, 9]) != hull.explain([0, 0], [9, 1, 9, 1, 1, 1])


def test_hundreds_of_seen_groups_are_fast_and_a_heuristic_is_marked():
    rng = np.random.default_rng(0)
    dense = GroupSpace.from_cardinalities([8, 9, 10])
    hull = AffineHull(dense, dense.codes(rng.choice(720, 600, replace=False)))
    sparse = GroupSpace.from_cardinalities([12] * 10)
    scattered = AffineHull(sparse, rng.integers(0, 12, size=(400, 10)))
    assert scattered.is_complete
    start = time.perf_counter()
    found = hull.combination(hull.missing(inside=True)[0])
    assert (len(found.positions), found.fewest) == (3, True)
    code = rng.integers(0, 12, size=10)
    guess = scattered.combination(code)
    assert time.perf_counter() - start < 2
    assert not guess.fewest
    assert gives(scattered, guess, code)
    assert scattered.explain(code).endswith("(perhaps not the shortest)")


def test_too_few_tries_still_give_a_combination():
    rng = np.random.default_rng(1)
    space = GroupSpace.from_cardinalities([4, 4, 4])
    hull = AffineHull(space, space.codes(rng.choice(64, 30, replace=False)))
    for code in hull.missing(inside=True):
        found = hull.combination(code, max_tries=1)
        assert gives(hull, found, code)
        assert not found.optimal
        assert len(found.positions) >= len(hull.combination(code).positions)


@pytest.mark.parametrize(
    ("rows", "message"), [([1, 2], r"rows has shape \(2,\)"), ([1] * 6 + [-1], "negative"), ("x", "pass one number")]
)
def test_wrong_rows(rows, message):
    hull = AffineHull(GroupSpace.from_cardinalities([2, 2, 2]), SEVEN)
    with pytest.raises(InputError, match=message):
        hull.explain([1, 1, 1], rows)
    with pytest.raises(InputError, match="max_tries is 0"):
        hull.explain([1, 1, 1], max_tries=0)
