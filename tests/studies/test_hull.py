import numpy as np
import pytest

from compshift import AffineHull, GroupSpace
from compshift.studies.hull import deterministic_groups, draws_to_complete, hull_growth, hull_steps, run_hull_growth


def paper_procedure(d):
    """The deterministic procedure as the paper's appendix lists it, with values from 1: one list of groups per step."""
    yield [(1, 1), (1, 2), (2, 1)]
    for i in range(2, d):
        yield [(1, i + 1), (i + 1, 1)]


@pytest.mark.parametrize("d", [2, 3, 7, 20])
def test_the_deterministic_procedure_is_the_papers(d):
    listed = [group for step in paper_procedure(d) for group in step]
    assert (deterministic_groups(2, d) + 1).tolist() == [list(group) for group in listed]
    assert len(listed) == 2 * d - 1


@pytest.mark.parametrize(("m", "d"), [(2, 2), (2, 7), (3, 4), (5, 2)])
def test_each_round_of_the_procedure_makes_the_hull_one_value_wider(m, d):
    space = GroupSpace.from_cardinalities([d] * m)
    every, groups = space.codes(np.arange(space.n_groups)), deterministic_groups(m, d)
    assert len(groups) == m * (d - 1) + 1
    for i in range(1, d + 1):  # values from 0 to i − 1
        inside = AffineHull(space, groups[: m * (i - 1) + 1]).contains(every)
        np.testing.assert_array_equal(inside, (every < i).all(axis=1))
    assert not AffineHull(space, groups[:-1]).is_complete


def test_the_steps_of_the_figure_are_the_papers():
    """The cells of the paper's three panels: a base set of 2 × 2 cells, two blue cells, three yellow cells."""
    cells = hull_steps(4)
    by_step = {n: {(cell["z1"], cell["z2"]) for cell in cells if cell["step"] == n} for n in range(1, 6)}
    assert by_step[1] == {(1, 1), (1, 2), (2, 1), (2, 2)}
    assert by_step[2] == {(1, 3), (2, 3)}
    assert by_step[3] == {(3, 1), (3, 2), (3, 3)}
    assert by_step[4] == {(1, 4), (2, 4), (3, 4)}
    assert by_step[5] == {(4, 1), (4, 2), (4, 3), (4, 4)}
    added = {(cell["z1"], cell["z2"]) for cell in cells if cell["state"] == "added"}
    assert added == {(1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (1, 4), (4, 1)}


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
