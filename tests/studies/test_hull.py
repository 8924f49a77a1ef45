import numpy as np
import pytest

from compshift import AffineHull, GroupSpace
from compshift.studies.hull import draws_to_complete, hull_growth, run_hull_growth, staircase


@pytest.mark.parametrize("d", [1, 2, 3, 7, 20])
def test_staircase_is_the_smallest_set_that_determines_all(d):
    hull = AffineHull(GroupSpace.from_cardinalities([d, d]), staircase(d))
    assert len(hull.observed) == 2 * d - 1
    assert hull.is_complete


@pytest.mark.parametrize(("m", "d"), [(2, 4), (3, 3)])
def test_draws_are_counted_to_the_one_that_completes(m, d):
    space = GroupSpace.from_cardinalities([d] * m)
    for seed in range(20):
        drawn = draws_to_complete(m, d, np.random.default_rng(seed))
        rng = np.random.default_rng(seed)
        groups = np.concatenate([rng.integers(0, d, size=(64, m)) for _ in range(10)])
        assert AffineHull(space, groups[:drawn]).is_complete
        assert not AffineHull(space, groups[: drawn - 1]).is_complete


def test_bounds_hold_and_growth_is_almost_linear():
    small, large = (hull_growth(2, d, 40, np.random.default_rng(0)) for d in (10, 40))
    for growth in (small, large):
        assert growth.least <= growth.mean <= growth.quantile
        assert growth.quantile <= min(growth.bound, growth.appendix_bound, growth.two_attribute_bound)
    assert large.mean / small.mean < 4 * np.log(40) / np.log(10) * 1.2  # d log d, where groups grow as d²


def test_same_seed_same_numbers():
    first, second = run_hull_growth(trials=2, random_state=5), run_hull_growth(trials=2, random_state=5)
    assert [row.mean for row in first] == [row.mean for row in second]
