from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from compshift import AffineHull, GroupSpace, InputError
from tests.references import in_hull, one_hot, rational_rank


def random_support(rng, m):
    cardinalities = [int(size) for size in rng.integers(2, 5 if m < 4 else 4, size=m)]
    space = GroupSpace.from_cardinalities(cardinalities)
    count = int(rng.integers(1, min(space.n_groups, sum(cardinalities) + 2) + 1))
    return space, space.codes(rng.choice(space.n_groups, size=count, replace=False))


@pytest.mark.parametrize("m", [2, 3, 4])
def test_agrees_with_rational_elimination(m):
    rng = np.random.default_rng(m)
    outside = 0
    for _ in range(170):
        space, seen = random_support(rng, m)
        hull = AffineHull(space, seen)
        assert hull.rank == rational_rank([one_hot(space.cardinalities, z) for z in seen])
        assert hull.is_complete == (hull.rank == sum(space.cardinalities) - m + 1)
        queries = space.codes(rng.choice(space.n_groups, size=min(12, space.n_groups), replace=False))
        inside = hull.contains(queries)
        assert inside.tolist() == [in_hull(space.cardinalities, seen, z) for z in queries]
        outside += int((~inside).sum())
        for code in queries[inside][:3]:
            weights = hull.weights(code)
            assert sum(weights) == 1
            combination = weights @ np.array([one_hot(space.cardinalities, z) for z in hull.observed], dtype=object)
            assert combination.tolist() == one_hot(space.cardinalities, code)
    assert outside > 100


def test_two_attributes_are_connected_components():
    rng = np.random.default_rng(0)
    for _ in range(200):
        left, right = (int(size) for size in rng.integers(2, 9, size=2))
        space = GroupSpace.from_cardinalities([left, right])
        seen = space.codes(rng.choice(space.n_groups, size=int(rng.integers(1, left + right)), replace=True))
        size = left + right
        graph = coo_array((np.ones(len(seen)), (seen[:, 0], left + seen[:, 1])), shape=(size, size))
        _, component = connected_components(graph, directed=False)
        everything = space.codes(np.arange(space.n_groups))
        expected = component[everything[:, 0]] == component[left + everything[:, 1]]
        assert (AffineHull(space, seen).contains(everything) == expected).all()


def test_waterbirds():
    space = GroupSpace(("bird", "place"), (("landbird", "waterbird"), ("land", "water")))
    seen = space.encode([("waterbird", "water"), ("landbird", "water"), ("landbird", "land")])
    hull = AffineHull(space, seen)
    assert hull.is_complete
    weights = dict(
        zip(map(space.label, hull.observed), hull.weights(space.encode([("waterbird", "land")])[0]), strict=True)
    )
    assert weights == {
        "(waterbird, water)": Fraction(1),
        "(landbird, water)": Fraction(-1),
        "(landbird, land)": Fraction(1),
    }


def test_large_integers_stay_exact():
    # Thirty to sixty random groups of twelve six-valued attributes drive the elimination past what int64 can hold.
    rng = np.random.default_rng(0)
    space = GroupSpace.from_cardinalities([6] * 12)
    seen = rng.integers(0, 6, size=(55, 12))
    hull = AffineHull(space, seen)
    assert hull._orthogonal.dtype == object
    assert hull.rank == rational_rank([one_hot(space.cardinalities, z) for z in seen])
    assert hull.contains(seen).all()
    weights = hull.weights(seen[0])
    assert sum(weights) == 1


@given(st.integers(0, 10_000), st.integers(2, 4))
def test_hull_is_closed(seed, m):
    """Adding groups that are inside changes nothing; adding one outside raises the rank by one."""
    rng = np.random.default_rng(seed)
    space, seen = random_support(rng, m)
    hull = AffineHull(space, seen)
    everything = space.codes(np.arange(space.n_groups))
    inside = hull.contains(everything)
    closed = AffineHull(space, everything[inside])
    assert closed.rank == hull.rank
    assert (closed.contains(everything) == inside).all()
    if not inside.all():
        assert AffineHull(space, np.concatenate([seen, everything[~inside][:1]])).rank == hull.rank + 1


@given(st.integers(0, 10_000))
def test_renaming_values_changes_nothing_else(seed):
    rng = np.random.default_rng(seed)
    space, seen = random_support(rng, 3)
    renaming = [rng.permutation(size) for size in space.cardinalities]

    def renamed(codes):
        return np.stack([new[column] for new, column in zip(renaming, codes.T, strict=True)], axis=1)

    everything = space.codes(np.arange(space.n_groups))
    assert (
        AffineHull(space, seen).contains(everything) == AffineHull(space, renamed(seen)).contains(renamed(everything))
    ).all()


def test_outside_and_unknown_codes():
    space = GroupSpace.from_cardinalities([2, 3])
    hull = AffineHull(space, [[0, 0], [1, 1]])
    with pytest.raises(InputError, match=r"\(0, 1\) is outside the affine hull"):
        hull.weights([0, 1])
    with pytest.raises(InputError, match="codes run from 0 to 2"):
        hull.contains([[0, 3]])


def test_nothing_seen():
    space = GroupSpace.from_cardinalities([2, 2])
    hull = AffineHull(space, np.zeros((0, 2), dtype=int))
    assert hull.rank == 0
    assert not hull.contains([[0, 0]])[0]
