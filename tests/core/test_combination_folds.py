"""Folds of groups that stay inside the hull of the others, and how far such groups are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compshift import AffineHull, GroupSpace
from compshift.core.affine import extrapolation_leverage
from compshift.core.folds import can_be_removed, combination_folds


@st.composite
def seen_groups(draw):
    """A space of two to four attributes and some of its groups."""
    cardinalities = draw(st.lists(st.integers(2, 4), min_size=2, max_size=4).filter(lambda part: np.prod(part) <= 48))
    space = GroupSpace.from_cardinalities(cardinalities)
    size = draw(st.integers(1, space.n_groups))
    index = np.random.default_rng(draw(st.integers(0, 10**6))).choice(space.n_groups, size, replace=False)
    return space, space.codes(np.sort(index))


@given(seen_groups(), st.integers(2, 6), st.integers(0, 100))
def test_folds_are_what_they_should_be(problem, n_splits, seed):
    space, groups = problem
    fold = combination_folds(space, groups, n_splits, np.random.default_rng(seed))
    rank = AffineHull(space, groups).rank
    for position in range(len(groups)):  # a group is in a fold exactly if the rank survives without it
        others = np.delete(groups, position, axis=0)
        spare = len(others) > 0 and AffineHull(space, others).rank == rank
        assert (fold[position] >= 0) == spare
        assert can_be_removed(space, groups)[position] == spare
    for number in range(fold.max() + 1):
        held = fold == number
        assert held.any()
        assert AffineHull(space, groups[~held]).contains(groups[held]).all()
    again = combination_folds(space, groups, n_splits, np.random.default_rng(seed))
    np.testing.assert_array_equal(fold, again)


def test_the_number_of_folds():
    full = GroupSpace.from_cardinalities([5, 5])
    fold = combination_folds(full, full.codes(np.arange(25)), 5, np.random.default_rng(0))
    assert np.bincount(fold).tolist() == [5, 5, 5, 5, 5]
    ring = GroupSpace.from_cardinalities([3, 3])  # six groups in a ring: one at a time can be spared
    groups = np.array([[0, 0], [0, 1], [1, 1], [1, 2], [2, 2], [2, 0]])
    fold = combination_folds(ring, groups, 2, np.random.default_rng(0))
    assert np.bincount(fold).tolist() == [1] * 6
    tree = combination_folds(ring, groups[:5], 2, np.random.default_rng(0))
    assert tree.tolist() == [-1] * 5


def test_no_more_folds_than_needed():
    """All groups of 2 × 4 but one: three folds are enough, though not in every order."""
    space = GroupSpace.from_cardinalities([2, 4])
    groups = space.codes(np.arange(7))
    for seed in range(30):
        fold = combination_folds(space, groups, 3, np.random.default_rng(seed))
        assert fold.max() == 2


def test_the_seed_matters():
    space = GroupSpace.from_cardinalities([6, 6])
    groups = space.codes(np.arange(36))
    folds = {tuple(combination_folds(space, groups, 4, np.random.default_rng(seed)).tolist()) for seed in range(5)}
    assert len(folds) == 5


@given(seen_groups())
def test_leverage_is_the_variance_of_the_extrapolation(problem):
    """Of a least-squares fit to unit-variance noise, by the covariance of its coefficients."""
    space, groups = problem
    hull = AffineHull(space, groups)
    codes = space.codes(np.arange(space.n_groups))
    found = extrapolation_leverage(hull, codes)
    design = space.one_hot(groups)
    covariance = np.linalg.pinv(design.T @ design)
    for code, leverage in zip(codes, found, strict=True):
        if hull.contains(code[None])[0]:
            one = space.one_hot(code[None])[0]
            assert leverage == pytest.approx(one @ covariance @ one, abs=1e-8)
        else:
            assert leverage == np.inf
    assert (found[space.index(groups)] <= 1 + 1e-9).all()


def test_leverage_by_hand():
    """One way of three groups has variance 3; two such ways side by side have half of it."""
    space = GroupSpace.from_cardinalities([2, 2])
    assert extrapolation_leverage(AffineHull(space, [[0, 0], [0, 1], [1, 0]]), np.array([[1, 1]]))[0] == pytest.approx(
        3
    )
    wide = GroupSpace.from_cardinalities([2, 3])
    ring = AffineHull(wide, [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1]])
    # (1, 2): row 1 is known by two groups and column 2 by one, so var = 1 + 1/2 + 1/2
    assert extrapolation_leverage(ring, np.array([[1, 2]]))[0] == pytest.approx(2)
