import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compshift import ExtrapolationWarning, GroupSpace, InputError
from compshift.data.dataset import GroupedDataset
from compshift.data.shift import (
    Scenario,
    drop_groups,
    drop_unseen_from_validation,
    group_text,
    parse_groups,
    scenarios,
    split_groups,
)

SPACE = GroupSpace(("bird", "place"), (("landbird", "waterbird"), ("land", "water", "sky")))


def make(rows, origin=None):
    """Return a data set whose rows have the given (split, bird, place)."""
    rows = np.array(rows)
    return GroupedDataset(np.arange(len(rows), dtype=float)[:, None], SPACE, rows[:, 1:], rows[:, 0], origin=origin)


def full(copies=2):
    return make([(s, y, a) for s in range(3) for y in range(2) for a in range(3) for _ in range(copies)])


@given(st.sets(st.tuples(st.integers(0, 1), st.integers(0, 2)), min_size=1, max_size=5))
def test_dropping_removes_from_train_and_val_and_nothing_else(groups):
    data = full()
    kept = drop_groups(data, sorted(groups))
    expected = [
        row
        for row in range(len(data))
        if data.split[row] == 2 or (int(data.codes[row, 0]), int(data.codes[row, 1])) not in groups
    ]
    assert kept.X[:, 0].astype(int).tolist() == expected
    np.testing.assert_array_equal(kept.codes, data.codes[expected])
    np.testing.assert_array_equal(kept.split, data.split[expected])
    assert len(data) == 36


def test_groups_by_name_or_by_code():
    by_name = drop_groups(full(), [("waterbird", "land")])
    by_code = drop_groups(full(), [(1, 0)])
    np.testing.assert_array_equal(by_name.X, by_code.X)
    assert drop_groups(full(), np.zeros((0, 2), int)).X.shape == (36, 1)
    np.testing.assert_array_equal(drop_groups(full(), ("waterbird", "land")).X, by_code.X)


def test_strict_removes_other_rows_of_the_same_origin():
    rows = [(0, 0, 0), (0, 0, 1), (0, 1, 1), (1, 0, 0), (1, 0, 2), (2, 0, 0), (2, 0, 1), (0, 1, 0), (2, 1, 1)]
    data = make(rows, origin=np.array([0, 0, 1, 2, 2, 3, 3, 4, 0]))  # the last row is a test row with a dropped origin
    assert drop_groups(data, [(0, 0)]).X[:, 0].tolist() == [1, 2, 4, 5, 6, 7, 8]
    assert drop_groups(data, [(0, 0)], strict=True).X[:, 0].tolist() == [2, 5, 6, 7, 8]
    with pytest.raises(InputError, match="strict needs a data set with origin"):
        drop_groups(full(), [(0, 0)], strict=True)


def test_validation_keeps_only_groups_that_train_has():
    data = make([(0, 0, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1), (1, 1, 1), (2, 0, 1), (2, 1, 2)])
    assert drop_unseen_from_validation(data).X[:, 0].tolist() == [0, 1, 2, 4, 5, 6]
    same = full()
    assert drop_unseen_from_validation(same) is same


def test_scenarios_of_every_kind():
    data = full()
    each = scenarios(data)
    assert [scenario.name for scenario in each] == [
        "(landbird, land)", "(landbird, water)", "(landbird, sky)",
        "(waterbird, land)", "(waterbird, water)", "(waterbird, sky)",
    ]  # fmt: skip
    assert [scenario.dropped.tolist() for scenario in each][3] == [[1, 0]]
    (none,) = scenarios(data, "none")
    assert none.apply(data) is data
    (third,) = scenarios(data, "random:0.34", random_state=3)
    assert len(third.dropped) == 2
    np.testing.assert_array_equal(third.dropped, scenarios(data, "random:0.34", random_state=3)[0].dropped)
    drawn = {str(scenarios(data, "random:0.34", random_state=seed)[0].dropped) for seed in range(10)}
    assert len(drawn) > 3
    (most,) = scenarios(data, "random:0.99")
    assert len(most.dropped) == 5  # one group is left to train on
    (given,) = scenarios(data, [("waterbird", "sky"), ("landbird", "land")])
    assert given.name == "(landbird, land) (waterbird, sky)"
    applied = given.apply(data)
    assert not {(0, 0), (1, 2)} & {tuple(code) for code in applied.part("train").codes.tolist()}
    assert len(applied.part("test")) == 12


def test_each_skips_groups_without_test_rows():
    data = make([(0, 0, 0), (0, 1, 1), (0, 1, 2), (2, 0, 0), (2, 1, 1)])
    assert [scenario.name for scenario in scenarios(data)] == ["(landbird, land)", "(waterbird, water)"]


def test_a_scenario_drops_unseen_groups_from_validation():
    data = make([(0, 0, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1), (2, 0, 1), (2, 0, 0), (2, 1, 1)])
    assert Scenario("none", np.zeros((0, 2), int)).apply(data).X[:, 0].tolist() == [0, 1, 2, 4, 5, 6]


def test_the_standard_scenario_keeps_validation_whole():
    data = make([(0, 0, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1), (2, 0, 1), (2, 0, 0), (2, 1, 1)])
    (standard,) = scenarios(data, "standard")
    assert standard.name == "standard"
    assert not standard.trim_validation
    assert standard.apply(data) is data
    (none,) = scenarios(data, "none")
    assert none.trim_validation
    assert none.apply(data).X[:, 0].tolist() == [0, 1, 2, 4, 5, 6]
    kept = Scenario("one", [(1, 1)], trim_validation=False).apply(data)
    assert kept.X[:, 0].tolist() == [0, 2, 3, 4, 5, 6]  # the dropped group leaves train; (0, 1) stays in val


def test_a_dropped_group_without_test_rows_warns():
    data = make([(0, 0, 0), (0, 1, 1), (2, 1, 1)])
    with pytest.warns(ExtrapolationWarning, match=r"1 dropped group has no test rows.*\(landbird, land\)"):
        assert len(drop_groups(data, [(0, 0)])) == 2


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([("waterbird", "sea")], "attribute 'place' has the unknown value 'sea'"),
        ([("waterbird",)], "one value of each attribute"),
        ([(1, 3)], "its codes run from 0 to 2"),
        ("waterbird,sky", "groups is the text"),
        ([(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)], "no training rows are left"),
    ],
)
def test_bad_groups_raise(groups, message):
    with pytest.raises(InputError, match=message):
        drop_groups(full(), groups)


def test_missing_groups_splits_and_unknown_drops_raise():
    data = make([(0, 0, 0), (0, 1, 1), (2, 1, 1), (2, 0, 0)])
    with pytest.raises(InputError, match=r"the group \(waterbird, sky\) has no rows in train or val"):
        drop_groups(data, [("waterbird", "sky")])
    with pytest.raises(InputError, match="has the splits 'test': pass one with train and test rows"):
        drop_groups(data.part("test"), [(0, 0)])
    with pytest.raises(InputError, match="has the splits none"):
        scenarios(GroupedDataset(data.X, SPACE, data.codes))
    for drop in ("some", "random:2", "random:x", "random:"):
        with pytest.raises(InputError, match="drop is"):
            scenarios(data, drop)


def test_groups_whose_values_have_commas_are_quoted():
    sites = ("Nice; 06", "Paris, FR", '5" pipe, long', 'a "b" c', '"', '"d"; e', "Rome", " Rome", "Rome ", "\tRome")
    space = GroupSpace(("diagnosis", "site"), (("cold", "flu"), sites))
    for code in np.ndindex(2, len(sites)):
        values = [values[position] for values, position in zip(space.values, code, strict=True)]
        assert parse_groups(space, split_groups(group_text(values))).tolist() == [list(code)]
    texts = split_groups('flu,"Paris, FR";cold, "Nice; 06";flu, Rome;flu," Rome";flu,"  Rome"')
    assert parse_groups(space, texts).tolist() == [[1, 1], [0, 0], [1, 6], [1, 7], [1, 6]]
    for text in ("flu,Paris, FR", "flu", "", 'flu,"Paris, FR",', "flu\rcold"):
        with pytest.raises(
            InputError,
            match=r"separated by commas; put a value that contains a comma, or has spaces",
        ):
            parse_groups(space, [text])
