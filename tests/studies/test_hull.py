import numpy as np
import pytest

from compshift import AffineHull, GroupSpace
from compshift.studies.hull import draws_to_complete, hull_growth, run_hull_growth


@pytest.mark.parametrize("d", [1, 2, 3, 7, 20])
def test_a_staircase_of_2d_minus_1_groups_completes_the_hull(d):
    """The paper's construction for two attributes; with one group fewer, the hull is not complete."""
    staircase = np.array([(k // 2 + k % 2, k // 2) for k in range(2 * d - 1)])
    space = GroupSpace.from_cardinalities([d, d])
    assert AffineHull(space, staircase).is_complete
    assert d == 1 or not AffineHull(space, staircase[:-1]).is_complete


@pytest.mark.parametrize(("m", "d"), [(2, 4), (3, 3)])
def test_draws_are_counted_up_to_the_one_that_completes_the_hull(m, d):
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
    assert (
        large.mean / small.mean < 4 * np.log(40) / np.log(10) * 1.2
    )  # grows as d log d, whereas the number of groups grows as d²


def test_same_seed_same_numbers():
    first, second = run_hull_growth(trials=2, random_state=5), run_hull_growth(trials=2, random_state=5)
    assert [row.mean for row in first] == [row.mean for row in second]
