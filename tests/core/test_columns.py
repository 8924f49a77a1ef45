from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from compshift import GroupSpace, InputError
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
        (np.zeros((2, 2, 2)), "3 dimensions instead of 1 or 2"),
        ([np.inf, 1.0], "infinite"),
        ([{1}, {2}], "values must be text, numbers or booleans"),
        ("text", "pass a table with one row per sample"),
    ],
)
def test_bad_columns(table, message):
    with pytest.raises(InputError, match=message):
        read_columns(table)


def test_names_must_fit_and_differ():
    with pytest.raises(InputError, match="names has 1 entries but the table has 2 columns"):
        read_columns(np.zeros((3, 2), dtype=int), names=["a"])
    with pytest.raises(InputError, match="names repeat"):
        read_columns(np.zeros((3, 2), dtype=int), names=["a", "a"])


@pytest.mark.parametrize(
    ("known", "values"),
    [
        ([1.0, 2.0], (1, 2)),  # integers that became floats because of a NaN
        ([0.5, 2.0], (0.5, 2.0)),
        ([1e300, 2e300], (1e300, 2e300)),
        ([-(2.0**63), 2.0**63], (-(2.0**63), 2.0**63)),
        ([2.0**62, 3.0], (3, 2**62)),
    ],
)
def test_numbers_beside_a_missing_one(known, values):
    (column,) = read_columns(np.array([*known, np.nan]), missing=True)
    assert column.values == values
    assert [type(value) for value in column.values] == [type(value) for value in values]
    assert [values[code] for code in column.codes[:2]] == known
    assert column.codes[2] == -1


def test_categories_beside_a_missing_one_keep_their_digits():
    (column,) = read_columns(pd.Categorical([2**53 + 1, 2**53, None]), missing=True)
    assert (column.values, column.codes.tolist()) == ((2**53, 2**53 + 1), [1, 0, -1])


ROUNDED = r"which a NumPy array rounds to .*: convert the values to text"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["a", "a\0"], r"has the value 'a\\x00', which ends in NUL, a character that NumPy drops from text: remove it"),
        (["a", "b\0"], "which ends in NUL"),
        (["", "\0"], "which ends in NUL"),
        ([2**63, 2**63 + 1, -1], f"has the value 9223372036854775809, {ROUNDED}"),
        ([2**53, 2**53 + 1, 0.5], f"has the value 9007199254740993, {ROUNDED}"),
    ],
)
def test_values_that_an_array_would_change_are_an_error(values, message):
    for table in (values, {"z": values}, np.array(values, dtype=object), pd.Series(values, dtype=object)):
        with pytest.raises(InputError, match=message):
            read_columns(table)
    with pytest.raises(InputError, match=message):
        GroupSpace(("z",), (values,))


@pytest.mark.parametrize(("values", "message"), [(["a", "b\0"], "ends in NUL"), ([2**63 + 1, -1], ROUNDED)])
def test_categories_that_an_array_would_change_are_an_error(values, message):
    with pytest.raises(InputError, match=message):
        read_columns(pd.Categorical(np.array(values, dtype=object)))


def test_text_of_variable_length_is_read_as_any_other():
    text = np.array(["b", "a\0"], dtype=np.dtypes.StringDType())
    with pytest.raises(InputError, match="which ends in NUL"):
        read_columns(text)
    assert values_and_codes(text[:1]) == (("b",), [0])


def test_large_whole_numbers_that_an_array_holds_are_kept():
    assert values_and_codes([2**63 + 1, 2**63]) == ((2**63, 2**63 + 1), [1, 0])
    assert values_and_codes([2**53 + 1, 2**53, True]) == ((1, 2**53, 2**53 + 1), [2, 1, 0])


def test_a_column_of_texts_and_numbers_in_a_mapping_is_an_error():
    with pytest.raises(InputError, match="attribute 'z' mixes text and numbers"):
        read_columns({"z": ["1", 1]})


@pytest.mark.parametrize("values", [["b", "a", "b"], [3, 1, 3], [3.5, 1.5, 3.5]])
def test_masked_values_are_missing(values):
    masked = np.ma.masked_array(values, mask=[False, False, True])
    (column,) = read_columns(masked, missing=True)
    assert (column.values, column.codes.tolist()) == ((values[1], values[0]), [1, 0, -1])
    (column,) = read_columns(list(masked), missing=True)
    assert column.codes.tolist() == [1, 0, -1]
    with pytest.raises(InputError, match=r"1 missing .* the first at row 2"):
        read_columns(masked)
    with pytest.raises(InputError, match="attribute 'z2' has 1 missing"):
        read_columns(np.ma.masked_array([values, values], mask=[[0, 0, 0], [0, 1, 0]]))
    assert values_and_codes(np.ma.masked_array(values)) == ((values[1], values[0]), [1, 0, 1])


class PolarsSeries:
    """The part of a Polars Series that ``read_columns`` uses; Polars itself is not installed everywhere."""

    def __init__(self, name, values):
        self.name, self.values = name, values

    def null_count(self):
        return sum(value is None for value in self.values)

    def to_list(self):
        return list(self.values)

    def to_numpy(self):
        return np.array(self.values)

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype=dtype)

    def __len__(self):
        return len(self.values)


def polars_columns(kind):
    """Return a Series 'bird', and a table of the columns 'place' and 'size', by a library like Polars."""
    columns = {"bird": ["owl", "duck"], "place": ["sea", "land"], "size": [2, 1]}
    if kind == "polars":
        frame = pytest.importorskip("polars").DataFrame(columns)
        return frame["bird"], frame.select("place", "size")
    if kind == "narwhals":
        frame = pytest.importorskip("narwhals").from_native(pd.DataFrame(columns), eager_only=True)
        return frame["bird"], frame.select("place", "size")
    series = {name: PolarsSeries(name, values) for name, values in columns.items()}
    return series["bird"], SimpleNamespace(
        get_columns=lambda: [series["place"], series["size"]], columns=[*columns][1:]
    )


@pytest.mark.parametrize("kind", ["imitation", "polars", "narwhals"])
def test_names_of_polars_are_kept(kind):
    series, table = polars_columns(kind)
    (bird,) = read_columns(series, default="y")
    assert (bird.name, bird.named, bird.values, bird.codes.tolist()) == ("bird", True, ("duck", "owl"), [1, 0])
    assert [column.name for column in read_columns(table, default="a")] == ["place", "size"]


@pytest.mark.parametrize("name", ["", None])
def test_a_series_of_polars_without_a_name_gets_the_default(name):
    (column,) = read_columns(PolarsSeries(name, [1, None, 2]), default="y", missing=True)
    assert (column.name, column.named, column.codes.tolist()) == ("y", False, [0, -1, 1])
