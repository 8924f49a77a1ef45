import numpy as np
import pandas as pd
import pytest

from compshift import InputError
from compshift.core.columns import read_columns


def values_and_codes(table, **kwargs):
    (column,) = read_columns(table, **kwargs)
    return column.values, column.codes.tolist()


@pytest.mark.parametrize(
    ("table", "values"),
    [
        (["b", "a", "b"], ("a", "b")),
        ([3, 1, 3], (1, 3)),
        (np.array([3.0, 1.0, 3.0]), (1.0, 3.0)),
        (np.array([True, False, True]), (False, True)),
        (pd.Series(["b", "a", "b"]), ("a", "b")),
        (pd.Series([3, 1, 3], dtype="Int64"), (1, 3)),
        (np.array(["b", "a", "b"], dtype=object), ("a", "b")),
        (pd.Categorical(["b", "a", "b"], categories=["a", "b", "z"]), ("a", "b")),
    ],
)
def test_one_column(table, values):
    assert values_and_codes(table) == (values, [1, 0, 1])


def test_categories_keep_their_order():
    table = pd.Series(pd.Categorical(["low", "high", "mid"], categories=["low", "mid", "high"], ordered=True))
    assert values_and_codes(table) == (("low", "mid", "high"), [0, 2, 1])


def test_integer_categories_in_their_own_order():
    table = pd.Series(pd.Categorical([2, 1, 3], categories=[3, 1, 2]))
    assert values_and_codes(table) == ((3, 1, 2), [2, 1, 0])


def test_tuples_keep_the_type_of_each_column():
    columns = read_columns([("a", 1), ("b", 2)])
    assert [column.values for column in columns] == [("a", "b"), (1, 2)]
    assert [column.name for column in columns] == ["z1", "z2"]


def test_names_come_from_the_table():
    frame = pd.DataFrame({"bird": ["w", "l"], "place": [0, 1]})
    assert [column.name for column in read_columns(frame)] == ["bird", "place"]
    assert read_columns(frame["bird"])[0].name == "bird"
    assert [column.name for column in read_columns({"x": [1], "y": [2]})] == ["x", "y"]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([1, "a"], "mixes text and numbers"),
        ([1.0, np.nan], r"1 missing \(NaN\) value, the first at row 1"),
        (["a", None, None], "2 missing"),
        (pd.Series(["a", pd.NA]), "1 missing"),
        (pd.Series([1, None], dtype="Int64"), "1 missing"),
        (pd.Series(pd.to_datetime(["2020-01-01"])), "convert it to text"),
        ([[1, 2], [3]], "differ in length"),
        (np.zeros((2, 2, 2)), "1 or 2 dimensions"),
        ([np.inf, 1.0], "infinite"),
        ([{1}, {2}], "values must be text, numbers or booleans"),
        ("text", "table of attribute values is needed"),
    ],
)
def test_bad_columns(table, message):
    with pytest.raises(InputError, match=message):
        read_columns(table)


def test_names_must_fit_and_differ():
    with pytest.raises(InputError, match="1 names for 2 columns"):
        read_columns(np.zeros((3, 2), dtype=int), names=["a"])
    with pytest.raises(InputError, match="names repeat"):
        read_columns(np.zeros((3, 2), dtype=int), names=["a", "a"])
