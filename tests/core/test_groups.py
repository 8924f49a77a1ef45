import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compshift import AffineHull, GroupSpace, InputError
from compshift.core.columns import read_columns
from tests.references import one_hot

cardinality_lists = st.lists(st.integers(1, 5), min_size=1, max_size=5)


@given(cardinality_lists, st.integers(0, 10_000))
def test_index_codes_and_one_hot_agree(cardinalities, seed):
    space = GroupSpace.from_cardinalities(cardinalities)
    everything = list(itertools.product(*(range(size) for size in cardinalities)))
    assert space.codes(np.arange(space.n_groups)).tolist() == [list(code) for code in everything]
    codes = space.codes(np.random.default_rng(seed).integers(0, space.n_groups, size=7))
    assert space.index(codes).tolist() == [everything.index(tuple(code)) for code in codes]
    assert space.one_hot(codes).tolist() == [one_hot(cardinalities, code) for code in codes]
    assert (space.encode(space.decode(codes)) == codes).all()
    groups, position = space.distinct(codes)
    assert (groups[position] == codes).all()
    assert (space.locate(codes, groups) == position).all()


def test_frame_is_read_by_name():
    frame = pd.DataFrame({"place": ["land", "water"], "id": [7, 8], "bird": ["l", "w"]})
    space = GroupSpace.from_table(frame[["bird", "place"]])
    assert space.encode(frame).tolist() == [[0, 0], [1, 1]]


def test_mixed_types_decode_to_objects():
    space = GroupSpace(("bird", "age"), (("l", "w"), (1, 2)))
    assert space.decode([[1, 0]]).tolist() == [["w", 1]]
    assert space.frame([[1, 0]]).to_dict("records") == [{"bird": "w", "age": 1}]
    assert space.label([1, 0]) == "(w, 1)"


def test_more_groups_than_an_index_can_number():
    space = GroupSpace.from_cardinalities([10] * 30)
    codes = np.random.default_rng(0).integers(0, 10, size=(5, 30))
    groups, position = space.distinct(np.concatenate([codes, codes]))
    assert len(groups) == 5
    assert (groups[position[:5]] == codes).all()
    with pytest.raises(InputError, match="too many to number"):
        space.index(codes)


def test_values_become_plain_tuples():
    space = GroupSpace(["bird"], [np.array([1, 2])])
    assert (space.names, space.values) == (("bird",), ((1, 2),))
    assert type(space.values[0][0]) is int
    assert hash(space) == hash(GroupSpace(("bird",), ((1, 2),)))


def test_mappings_are_read_by_name():
    space = GroupSpace(("bird", "place"), ((0, 1), (0, 1, 2)))
    assert space.encode({"place": [2], "bird": [1], "id": [9]}).tolist() == [[1, 2]]


def test_locate_marks_what_is_not_listed():
    space = GroupSpace.from_cardinalities([2, 2])
    assert space.locate([[0, 0], [1, 1], [0, 1]], [[1, 1], [0, 0]]).tolist() == [1, 0, -1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.encode([["duck", "land"]]), r"unknown value 'duck' \(row 0\): known values are 'l', 'w'"),
        (lambda s: s.encode([["l"]]), "there are 1 columns .* for 2 attributes"),
        (lambda s: s.encode(pd.DataFrame({"bird": ["l"]})), "no column 'place'"),
        (lambda s: s.decode([[0, 2]]), "codes run from 0 to 1"),
        (lambda s: s.decode([[0.0, 1.0]]), "pass integer codes"),
        (lambda s: s.decode([[0]]), "with 2 integers"),
        (lambda s: s.encode([["l", None]]), "attribute 'place' has 1 missing|attribute 'z2' has 1 missing"),
        (lambda s: s.encode({"bird": ["l"], "place": ["land", "water"]}), "pass columns of equal length"),
        (lambda s: s.label([[0, 0], [1, 1]]), "code has 2 rows"),
        (lambda s: s.codes([4]), "run from 0 to 3"),
        (lambda s: s.codes([0.5]), r"index has type float64, shape \(1,\): pass an integer or a list of integers"),
        (lambda s: s.codes([[0, 1], [0]]), "index has rows of different lengths: pass an integer or a list"),
    ],
)
def test_errors_name_the_value_and_the_cure(call, message):
    space = GroupSpace(("bird", "place"), (("l", "w"), ("land", "water")))
    with pytest.raises(InputError, match=message):
        call(space)


@pytest.mark.parametrize(
    ("names", "values"),
    [
        ((), ()),
        (("a",), ("xy",)),
        (("a",), ((1, "x"),)),
        (("a",), ([(1, 2)],)),
        (("a",), ((float("nan"),),)),
        (("a",), ()),
        (("a", "a"), ((0,), (1,))),
        (("a",), ((),)),
        (("a",), ((1, 1),)),
    ],
)
def test_invalid_spaces_are_an_error(names, values):
    with pytest.raises(InputError):
        GroupSpace(names, values)


def test_more_attributes_than_an_array_has_axes():
    space = GroupSpace.from_cardinalities([1] * 70 + [2, 3])
    codes = np.zeros((6, 72), dtype=np.int64)
    codes[:, 70:] = list(itertools.product(range(2), range(3)))
    np.testing.assert_array_equal(space.index(codes), np.arange(6))
    np.testing.assert_array_equal(space.codes(np.arange(6)), codes)


def test_a_long_value_is_cut_in_messages():
    with pytest.raises(InputError) as caught:
        GroupSpace.from_table({"a": ["x"]}).encode({"a": ["y" * 10_000]})
    assert len(str(caught.value)) < 300


def test_messages_give_huge_counts_as_powers_of_ten():
    space = GroupSpace.from_cardinalities([2] * 2000)
    with pytest.raises(InputError, match=r"there are 1e\+602 groups, too many to number"):
        space.index(np.zeros((1, 2000), dtype=int))
    with pytest.raises(InputError, match=r"there are 1e\+602 groups, too many to list"):
        AffineHull(space, np.zeros((1, 2000), dtype=int)).missing()
    with pytest.raises(InputError, match=r"cardinalities add up to 1\.1e\+12, too many values to hold"):
        GroupSpace.from_cardinalities([2**40, 2])
    with pytest.raises(InputError, match=r"a cardinality is 1e\+5000: pass an integer up to"):
        GroupSpace.from_cardinalities([10**5000])


class TestDefaultNames:
    """Default names do not decide which attribute a column holds."""

    def test_columns_without_names_go_by_position(self):
        space = GroupSpace(("y", "a2", "a1"), ((0, 1),) * 3)
        rows = np.array([[0, 0, 1], [1, 1, 0]])
        columns = [*read_columns(rows[:, 0], default="y"), *read_columns(rows[:, 1:], default="a")]
        assert [column.name for column in columns] == ["y", "a1", "a2"]
        np.testing.assert_array_equal(space._encode_columns(columns), rows)

    def test_names_of_the_caller_go_by_name(self):
        space = GroupSpace(("y", "a2", "a1"), ((0, 1),) * 3)
        columns = [*read_columns([0, 1], default="y"), *read_columns({"a1": [1, 0], "a2": [0, 1]})]
        np.testing.assert_array_equal(space._encode_columns(columns), [[0, 0, 1], [1, 1, 0]])

    def test_names_that_swap_target_and_attribute(self):
        space = GroupSpace(("a", "y"), ((0, 1),) * 2)
        columns = [*read_columns([0, 0], default="y"), *read_columns([1, 0], default="a")]
        np.testing.assert_array_equal(space._encode_columns(columns), [[0, 1], [0, 0]])


def test_tables_of_arrow():
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"bird": ["owl", "duck"], "place": ["sea", "lake"]})
    space = GroupSpace.from_table(table)
    assert space.names == ("bird", "place")
    np.testing.assert_array_equal(space.encode(table.select(["place", "bird"])), [[1, 1], [0, 0]])
    with pytest.raises(InputError, match="columns of the same name"):
        GroupSpace.from_table(pa.Table.from_arrays([pa.array([1])] * 2, names=["a", "a"]))
