import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from compshift import AffineHull, GroupSpace, InputError
from compshift.core.affine import affine_weights, value_weights


def problem(seed):
    """A hull with several ways to give some unseen group, those groups, and rows of each seen group."""
    rng = np.random.default_rng(seed)
    space = GroupSpace.from_cardinalities(rng.integers(2, 5, size=rng.integers(1, 4)).tolist())
    groups = space.codes(np.arange(space.n_groups))
    hull = AffineHull(space, groups[rng.random(len(groups)) < 0.6])
    assume(len(hull.observed))
    inside = groups[hull.contains(groups)]
    return hull, inside, rng.integers(1, 1000, size=len(hull.observed)).astype(float)


@pytest.mark.parametrize("kind", ["minimum-norm", "minimum-variance", "sparse"])
@given(seed=st.integers(0, 10_000))
def test_weights_give_the_group_and_sum_to_one(kind, seed):
    hull, groups, rows = problem(seed)
    weights = affine_weights(hull, groups, kind, rows)
    seen = hull.space.one_hot(hull.observed)
    np.testing.assert_allclose(weights @ seen, hull.space.one_hot(groups), atol=1e-12)
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-12)
    own = hull.space.locate(groups, hull.observed)
    np.testing.assert_array_equal(weights[own >= 0], np.eye(len(seen))[own[own >= 0]])


@pytest.mark.parametrize("kind", ["minimum-norm", "minimum-variance"])
@given(seed=st.integers(0, 10_000))
def test_the_minimum_is_the_minimum(kind, seed):
    hull, groups, rows = problem(seed)
    unseen = groups[hull.space.locate(groups, hull.observed) < 0]
    assume(len(unseen))
    weights = affine_weights(hull, unseen, kind, rows)
    size = rows if kind == "minimum-variance" else np.ones_like(rows)
    seen = hull.space.one_hot(hull.observed)
    left, singular, _ = np.linalg.svd(seen)
    free = left[:, np.count_nonzero(singular > 1e-9) :].T  # directions that change no combination
    # At the minimum the gradient 2α/n has no part along them, and every step along them costs.
    np.testing.assert_allclose((weights / size) @ free.T, 0, atol=1e-9)
    for direction in free:
        assert (((weights + 0.1 * direction) ** 2 / size).sum(axis=1) > (weights**2 / size).sum(axis=1)).all()


def test_sparse_weights_are_a_shortest_path():
    space = GroupSpace.from_cardinalities([2, 3])
    hull = AffineHull(space, [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1]])
    few = affine_weights(hull, np.array([[1, 2]]), "sparse", np.ones(5))
    many = affine_weights(hull, np.array([[1, 2]]), "minimum-norm", np.ones(5))
    assert np.count_nonzero(few) == 3
    np.testing.assert_allclose(many, [[-0.5, -0.5, 1, 0.5, 0.5]], atol=1e-12)


def test_rows_decide_the_minimum_variance():
    hull = AffineHull(GroupSpace.from_cardinalities([2, 3]), [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1]])
    weights = affine_weights(hull, np.array([[1, 2]]), "minimum-variance", np.array([1e6, 1, 1e6, 1e6, 1]))
    np.testing.assert_allclose(weights, [[-1, 0, 1, 1, 0]], atol=1e-4)


@given(seed=st.integers(0, 10_000))
def test_value_weights_read_off_what_is_additive(seed):
    hull, _, _ = problem(seed)
    rng = np.random.default_rng(seed)
    seen = hull.space.one_hot(hull.observed)
    reading = value_weights(hull)
    additive = seen @ rng.normal(size=hull.space.width)
    np.testing.assert_allclose(seen @ (reading @ additive), additive, atol=1e-10)
    numbers = rng.normal(size=len(seen))
    fitted = seen @ np.linalg.lstsq(seen, numbers, rcond=None)[0]
    np.testing.assert_allclose(seen @ (reading @ numbers), fitted, atol=1e-10)


def test_an_unknown_kind_is_refused():
    hull = AffineHull(GroupSpace.from_cardinalities([2]), [[0]])
    with pytest.raises(InputError, match="weights 'least' is not known: use one of 'minimum-norm'"):
        affine_weights(hull, hull.observed, "least", np.ones(1))
