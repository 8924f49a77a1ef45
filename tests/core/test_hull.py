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
    cardinalities = [int(size) for size in rng.integers(2, {2: 6, 3: 5, 4: 4, 5: 4}[m], size=m)]
    space = GroupSpace.from_cardinalities(cardinalities)
    count = int(rng.integers(1, min(space.n_groups, sum(cardinalities) + 2) + 1))
    return space, space.codes(rng.choice(space.n_groups, size=count, replace=False))


@pytest.mark.parametrize("m", [2, 3, 4, 5])
def test_agrees_with_rational_elimination(m):
    """60 random supports for each number of attributes: rank, membership, weights and the size of a plan."""
    rng = np.random.default_rng(m)
    outside = 0
    for _ in range(60):
        space, seen = random_support(rng, m)
        hull = AffineHull(space, seen)
        assert hull.rank == rational_rank([one_hot(space.cardinalities, z) for z in seen])
        assert hull.is_complete == (hull.rank == sum(space.cardinalities) - m + 1)
        plan = hull.plan()
        assert len(plan) == sum(space.cardinalities) - m + 1 - hull.rank
        rows = [one_hot(space.cardinalities, z) for z in [*seen.tolist(), *plan.tolist()]]
        assert rational_rank(rows) == sum(space.cardinalities) - m + 1
        queries = space.codes(rng.choice(space.n_groups, size=min(12, space.n_groups), replace=False))
        inside = hull.contains(queries)
        assert inside.tolist() == [in_hull(space.cardinalities, seen, z) for z in queries]
        outside += int((~inside).sum())
        for code in queries[inside][:3]:
            weights = hull.weights(code)
            assert sum(weights) == 1
            combination = weights @ np.array([one_hot(space.cardinalities, z) for z in hull.observed], dtype=object)
            assert combination.tolist() == one_hot(space.cardinalities, code)
    assert outside > 20


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
    assert hull._span.vectors.dtype == object
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


class TestWitness:
    def test_two_attributes_have_a_shortest_path(self):
        space = GroupSpace(("bird", "place"), (("landbird", "waterbird"), ("land", "water")))
        hull = AffineHull(space, space.encode([("waterbird", "water"), ("landbird", "water"), ("landbird", "land")]))
        assert hull.explain(space.encode([("waterbird", "land")])[0]) == (
            "(waterbird, land) = (waterbird, water) − (landbird, water) + (landbird, land)"
        )

    def test_seen_groups_are_their_own_witness(self):
        space = GroupSpace.from_cardinalities([3, 3, 2])
        seen = space.codes(np.arange(12))
        hull = AffineHull(space, seen)
        for position, code in enumerate(seen):
            assert np.flatnonzero(hull.weights(code)).tolist() == [position]
            assert hull.explain(code) == f"{space.label(code)} = {space.label(code)}"

    def test_fractions_are_written_out(self):
        # With three attributes weights other than 1 and −1 occur, but rarely.
        rng = np.random.default_rng(1)
        space = GroupSpace.from_cardinalities([4, 4, 4])
        texts = []
        for _ in range(300):
            hull = AffineHull(space, space.codes(rng.choice(64, size=10, replace=False)))
            inside = hull.missing(inside=True)
            texts += [hull.explain(code) for code in inside[:2]]
        assert any("1/2·" in text or "2·" in text for text in texts)

    def test_certificate_is_an_additive_change_that_training_cannot_see(self):
        """Two models of equal training likelihood that differ exactly on the group outside."""
        from compshift.core.energy import GroupTable, group_energies, step_one_risk

        rng = np.random.default_rng(0)
        space = GroupSpace.from_cardinalities([3, 3, 2])
        seen = np.array([[0, 0, 0], [0, 1, 0], [1, 0, 0], [2, 2, 1]])
        hull = AffineHull(space, seen)
        for code in hull.missing(inside=False):
            vector = hull.certificate(code)
            assert vector.dtype.kind == "i"
            assert (space.one_hot(seen) @ vector == 0).all()
            energies, position = rng.normal(size=(40, space.width)), rng.integers(0, 4, size=40)
            other = energies + rng.normal(size=(40, 1)) * vector
            table, score = GroupTable.of(space, seen), rng.normal(size=4)
            risks = [step_one_risk(part, position, np.ones(40), table, score).value for part in (energies, other)]
            assert risks[0] == pytest.approx(risks[1], abs=1e-9)
            change = group_energies(other - energies, space, code[None, :])
            assert np.abs(change).min() > 1e-6
        with pytest.raises(InputError, match="is inside the affine hull"):
            hull.certificate([1, 1, 0])


class TestCoverage:
    @pytest.mark.parametrize("m", [2, 3, 4])
    def test_counts_agree_with_enumeration(self, m):
        rng = np.random.default_rng(m)
        for _ in range(40):
            space, seen = random_support(rng, m)
            hull = AffineHull(space, seen)
            everything = space.codes(np.arange(space.n_groups))
            inside = hull.contains(everything)
            coverage = hull.coverage()
            assert coverage == pytest.approx(inside.mean())
            assert coverage.n_inside == inside.sum()
            assert coverage.method == ("closed form" if m == 2 or hull.is_complete else "enumeration")
            unseen = space.locate(everything, seen) < 0
            assert (hull.missing() == everything[unseen]).all()
            assert (hull.missing(inside=True) == everything[unseen & inside]).all()
            assert (hull.missing(inside=False) == everything[unseen & ~inside]).all()

    def test_coverage_of_large_spaces_is_an_estimate(self):
        space = GroupSpace.from_cardinalities([6] * 12)
        # Values below 3 are all connected, values from 3 on were never seen: a share of 2^-12 is inside.
        star = np.zeros((25, 12), dtype=int)
        for attribute in range(12):
            star[1 + 2 * attribute, attribute], star[2 + 2 * attribute, attribute] = 1, 2
        hull = AffineHull(space, star)
        coverage = hull.coverage()
        assert (coverage.method, coverage.n_inside) == ("estimate", None)
        assert coverage.lower < 2**-12 < coverage.upper
        with pytest.raises(InputError, match="too many to list"):
            hull.missing()

    def test_components_are_the_papers_grid(self):
        space = GroupSpace.from_cardinalities([6, 6])
        hull = AffineHull(space, [[0, 0], [0, 1], [1, 1], [4, 4], [5, 4], [5, 5]])
        parts = [(part.left.tolist(), part.right.tolist()) for part in hull.components()]
        assert parts == [([0, 1], [0, 1]), ([4, 5], [4, 5])]
        assert hull.coverage() == pytest.approx(8 / 36)
        with pytest.raises(InputError, match="2 attributes"):
            AffineHull(GroupSpace.from_cardinalities([2, 2, 2]), [[0, 0, 0]]).components()


def test_too_many_values_for_exact_arithmetic_are_an_error():
    with pytest.raises(InputError, match="20001 values in total"):
        AffineHull(GroupSpace.from_cardinalities([20_000, 1]), [[0, 0]])


class TestRepr:
    def test_a_hull_that_holds_every_group_says_so(self):
        space = GroupSpace.from_cardinalities([3, 2])
        hull = AffineHull(space, space.codes(np.arange(1, 6)))
        assert repr(hull) == "<AffineHull: 5 of 6 groups seen, all inside, rank 4 of 4>"

    @pytest.mark.parametrize("cardinalities", [[4, 4], [4, 4, 1], [2, 3, 2]])
    def test_groups_inside_are_counted(self, cardinalities):
        space = GroupSpace.from_cardinalities(cardinalities)
        hull = AffineHull(space, space.codes(np.array([0, 1, 5])))
        inside = int(hull.contains(space.codes(np.arange(space.n_groups))).sum())
        assert repr(hull) == (
            f"<AffineHull: 3 of {space.n_groups} groups seen, {inside} inside, rank {hull.rank} of {hull.full_rank}>"
        )

    def test_more_groups_than_can_be_counted(self):
        space = GroupSpace.from_cardinalities([6] * 12)
        hull = AffineHull(space, np.zeros((1, 12), dtype=int))
        assert repr(hull) == "<AffineHull: 1 of 2.18e+09 groups seen, rank 1 of 61>"
