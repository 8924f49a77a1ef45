import itertools

import numpy as np
import pytest

from compshift import AffineHull, GroupSpace, InputError
from tests.core.test_hull import random_support


def grown(hull, codes):
    return AffineHull(hull.space, np.concatenate([hull.observed, np.asarray(codes).reshape(-1, len(hull.space.names))]))


def cheapest(hull, candidates, costs, reached):
    """Return the least cost over all subsets of the candidates, by brute force."""
    best = np.inf
    for size in range(len(candidates) + 1):
        for subset in itertools.combinations(range(len(candidates)), size):
            cost = costs[list(subset)].sum()
            if cost < best and reached(grown(hull, candidates[list(subset)])):
                best = cost
    return best


class Price:
    """A cost function with a table of costs; groups that are not in the table cost 0."""

    def __init__(self, table):
        self.table = table

    def __call__(self, group):
        return self.table.get(group, 0.0)


class TestComplete:
    @pytest.mark.parametrize("m", [2, 3, 4])
    def test_fewest_groups(self, m):
        rng = np.random.default_rng(m)
        for _ in range(60):
            space, seen = random_support(rng, m)
            hull = AffineHull(space, seen)
            plan = hull.plan()
            assert len(plan) == hull.full_rank - hull.rank == plan.cost == plan.bound
            assert plan.optimal
            assert grown(hull, plan).is_complete

    def test_cheapest_equals_brute_force(self):
        rng = np.random.default_rng(0)
        for _ in range(25):
            space = GroupSpace.from_cardinalities([2, 3, 2])
            hull = AffineHull(space, space.codes(rng.choice(12, size=3, replace=False)))
            candidates = hull.missing()
            costs = rng.integers(1, 10, size=len(candidates)).astype(float)
            mapping = {tuple(code): cost for code, cost in zip(candidates.tolist(), costs, strict=True)}
            expected = cheapest(hull, candidates, costs, lambda grown_hull: grown_hull.is_complete)
            for cost in (mapping, Price(mapping)):
                plan = hull.plan(cost=cost)
                assert plan.cost == expected
                assert grown(hull, plan).is_complete

    def test_values_are_the_keys(self):
        space = GroupSpace(("bird", "place"), (("l", "w"), ("land", "water")))
        hull = AffineHull(space, space.encode([("l", "land"), ("w", "water")]))
        plan = hull.plan(cost={("l", "water"): 5.0, ("w", "land"): 2.0})
        assert space.decode(plan).tolist() == [["w", "land"]]
        assert plan.cost == 2.0

    def test_forbidden_groups(self):
        space = GroupSpace.from_cardinalities([2, 2])
        hull = AffineHull(space, [[0, 0], [1, 1]])
        assert hull.plan(forbidden=[[0, 1]]).tolist() == [[1, 0]]
        with pytest.raises(InputError, match="its rank is 2, but rank 3 is needed"):
            hull.plan(forbidden=[[0, 1], [1, 0]])

    def test_a_space_of_two_thousand_million_groups(self):
        rng = np.random.default_rng(0)
        space = GroupSpace.from_cardinalities([6] * 12)
        hull = AffineHull(space, rng.integers(0, 5, size=(30, 12)))
        plan = hull.plan()
        assert len(plan) == hull.full_rank - hull.rank
        assert grown(hull, plan).is_complete
        listed = rng.integers(0, 6, size=(5000, 12))
        priced = hull.plan(cost=lambda group: float(sum(group)), candidates=listed)
        assert grown(hull, priced).is_complete
        with pytest.raises(InputError, match="pass candidates="):
            hull.plan(cost=lambda _: 1.0)
        one = AffineHull(space, [[0] * 12])
        with pytest.raises(
            InputError, match=r"without the forbidden groups, .* do not complete the hull: pass candidates="
        ):
            one.plan(forbidden=one.plan()[:3])
        assert grown(one, one.plan(forbidden=one.plan()[:3], candidates=listed)).is_complete


class TestTarget:
    @pytest.mark.parametrize("m", [2, 3, 4])
    def test_unit_cost_needs_the_rise_in_rank(self, m):
        rng = np.random.default_rng(m)
        for _ in range(60):
            space, seen = random_support(rng, m)
            hull = AffineHull(space, seen)
            target = space.codes(rng.choice(space.n_groups, size=3, replace=False))
            plan = hull.plan(target=target)
            assert len(plan) == grown(hull, target).rank - hull.rank
            assert plan.optimal
            assert grown(hull, plan).contains(target).all()

    def test_one_group_of_two_attributes_is_a_shortest_path(self):
        rng = np.random.default_rng(0)
        for _ in range(40):
            space = GroupSpace.from_cardinalities([3, 4])
            hull = AffineHull(space, space.codes(rng.choice(12, size=3, replace=False)))
            outside = hull.missing(inside=False)
            target = outside[0]
            candidates = hull.missing()[(hull.missing() != target).any(axis=1)]
            costs = rng.integers(0, 6, size=len(candidates)).astype(float)
            mapping = {tuple(code): cost for code, cost in zip(candidates.tolist(), costs, strict=True)}
            plan = hull.plan(cost=mapping, target=target)
            assert plan.optimal
            assert plan.cost == cheapest(
                hull, candidates, costs, lambda grown_hull, z=target: grown_hull.contains(z)[0]
            )
            assert grown(hull, plan).contains(target).all()

    def test_heuristic_is_feasible_and_states_its_bound(self):
        rng = np.random.default_rng(0)
        gaps = []
        for _ in range(30):
            space = GroupSpace.from_cardinalities([2, 3, 2])
            hull = AffineHull(space, space.codes(rng.choice(12, size=2, replace=False)))
            outside = hull.missing(inside=False)
            target = outside[rng.choice(len(outside), size=2, replace=False)]
            candidates = hull.missing()
            candidates = candidates[space.locate(candidates, target) < 0]
            costs = rng.integers(1, 9, size=len(candidates)).astype(float)
            mapping = {tuple(code): cost for code, cost in zip(candidates.tolist(), costs, strict=True)}
            plan = hull.plan(cost=mapping, target=target)
            best = cheapest(hull, candidates, costs, lambda grown_hull, z=target: grown_hull.contains(z).all())
            assert grown(hull, plan).contains(target).all()
            assert plan.bound <= best <= plan.cost
            if plan.optimal:
                assert plan.cost == best
            gaps.append(plan.cost / best)
        assert np.mean(gaps) < 1.15

    def test_groups_inside_the_hull_do_not_lower_the_bound(self):
        hull = AffineHull(GroupSpace.from_cardinalities([2, 2, 2]), [[0, 0, 0], [1, 0, 0], [0, 1, 0]])
        plan = hull.plan(cost={(1, 1, 0): 0.0, (0, 0, 1): 5.0}, target=[[0, 0, 1], [1, 1, 1]])
        assert plan.tolist() == [[0, 0, 1]]
        assert (plan.cost, plan.bound, plan.optimal) == (5.0, 5.0, True)

    def test_targets_already_inside_and_targets_out_of_reach(self):
        space = GroupSpace.from_cardinalities([2, 2])
        hull = AffineHull(space, [[0, 0], [1, 1]])
        assert len(hull.plan(target=[[0, 0]])) == 0
        with pytest.raises(InputError, match=r"'\(0, 1\)' cannot be brought inside"):
            hull.plan(target=[[0, 1]], forbidden=[[0, 1], [1, 0]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cost": {(0, 0): -1.0}}, "negative"),
        ({"cost": {}}, "empty mapping"),
        ({"cost": {(0,): 1.0}}, "one value of each attribute"),
        ({"cost": {(0, 9): 1.0}}, "unknown value 9"),
        ({"cost": 3}, "pass a mapping"),
        ({"cost": lambda _: "dear"}, "one number per group"),
        ({"forbidden": [[0, 5]]}, "codes run from 0 to 1"),
        ({"target": [[7, 0]]}, "codes run from 0 to 1"),
    ],
)
def test_bad_input(options, message):
    hull = AffineHull(GroupSpace.from_cardinalities([2, 2]), [[0, 0]])
    with pytest.raises(InputError, match=message):
        hull.plan(**options)
