"""Folds of groups that stay inside the hull of the others."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from compshift import AffineHull, GroupSpace
from compshift.core.folds import can_be_removed, combination_folds, ranks_in_group


@st.composite
def seen_groups(draw):
    """A space of two to four attributes and some of its groups."""
    cardinalities = draw(st.lists(st.integers(2, 4), min_size=2, max_size=4).filter(lambda part: np.prod(part) <= 48))
    space = GroupSpace.from_cardinalities(cardinalities)
    size = draw(st.integers(1, space.n_groups))
    index = np.random.default_rng(draw(st.integers(0, 10**6))).choice(space.n_groups, size, replace=False)
    return space, space.codes(np.sort(index))


@given(seen_groups(), st.integers(2, 6), st.integers(0, 100))
def test_folds_stay_inside_the_hull_of_the_rest(problem, n_splits, seed):
    space, groups = problem
    fold = combination_folds(space, groups, n_splits, np.random.default_rng(seed))
    rank = AffineHull(space, groups).rank
    for position in range(len(groups)):  # a group is in a fold exactly if its removal does not lower the rank
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
    ring = GroupSpace.from_cardinalities([3, 3])  # six groups in a ring: only one at a time can be removed
    groups = np.array([[0, 0], [0, 1], [1, 1], [1, 2], [2, 2], [2, 0]])
    fold = combination_folds(ring, groups, 2, np.random.default_rng(0))
    assert np.bincount(fold).tolist() == [1] * 6
    tree = combination_folds(ring, groups[:5], 2, np.random.default_rng(0))
    assert tree.tolist() == [-1] * 5


def test_no_more_folds_than_needed():
    """With all but one of the 2 × 4 groups, three folds are enough, but not for every order of the groups."""
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


def test_ranks_in_a_group_run_from_zero_in_random_order():
    position = np.array([2, 0, 2, 2, 0, 5] * 20)
    ranks = ranks_in_group(position, np.random.default_rng(0))
    for group in (0, 2, 5):
        own = ranks[position == group]
        assert sorted(own) == list(range(len(own)))
        assert (np.diff(own) < 0).any()
