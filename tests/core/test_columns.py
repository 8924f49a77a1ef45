import narwhals
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from compshift import GroupSpace, InputError
from compshift.core.columns import frame_like, read_columns

pl = pytest.importorskip("polars")


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


@pytest.mark.parametrize("kind", ["polars", "narwhals"])
def test_names_of_polars_are_kept(kind):
    frame = pl.DataFrame({"bird": ["owl", "duck"], "place": ["sea", "land"], "size": [2, 1]})
    frame = frame if kind == "polars" else narwhals.from_native(frame)
    (bird,) = read_columns(frame["bird"], default="y")
    assert (bird.name, bird.named, bird.values, bird.codes.tolist()) == ("bird", True, ("duck", "owl"), [1, 0])
    assert [column.name for column in read_columns(frame.select("place", "size"), default="a")] == ["place", "size"]


LEVELS = ["low", "mid", "high"]
SIZES = ["high", "low", None, "low"]
BIG = 2**60 + 1
AS_COLUMN = {
    "pandas": lambda values: pd.Series(values),
    "pandas Arrow": lambda values: pd.Series(pa.array(values), dtype=pd.ArrowDtype(pa.array(values).type)),
    "polars": pl.Series,
    "arrow": lambda values: pa.chunked_array([values[:1], values[1:]]),
    "arrow array": pa.array,
    "mapping": lambda values: {"z": pl.Series(values)},
    "record batch": lambda values: pa.record_batch({"z": pa.array(values)}),
}


@pytest.mark.parametrize("kind", AS_COLUMN)
@pytest.mark.parametrize(
    ("values", "known", "codes"),
    [
        (SIZES, ("high", "low"), [0, 1, -1, 1]),
        ([3, None, 1], (1, 3), [1, -1, 0]),
        ([True, None, False], (False, True), [1, -1, 0]),
        ([0.5, None, float("nan"), 1.5], (0.5, 1.5), [0, -1, -1, 1]),
    ],
)
def test_missing_values_of_every_library(kind, values, known, codes):
    assert values_and_codes(AS_COLUMN[kind](values), missing=True) == (known, codes)


@pytest.mark.parametrize("kind", ["polars", "arrow", "arrow array", "pandas Arrow"])
def test_large_integers_beside_a_missing_value_stay_exact(kind):
    assert values_and_codes(AS_COLUMN[kind]([BIG, None]), missing=True) == ((BIG,), [0, -1])


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (pd.Series(pd.Categorical(SIZES, categories=LEVELS)), ("low", "high")),
        (pl.Series(SIZES, dtype=pl.Enum(LEVELS)), ("low", "high")),
        (pl.Series(SIZES, dtype=pl.Categorical), ("high", "low")),
        (pa.DictionaryArray.from_arrays([2, 0, None, 0], LEVELS), ("low", "high")),
        (pa.chunked_array([pa.array(part).dictionary_encode() for part in (SIZES[:1], SIZES[1:])]), ("high", "low")),
    ],
    ids=["pandas", "enum", "categorical", "dictionary", "dictionaries"],
)
def test_categories_keep_their_order_where_they_have_one(column, values):
    codes = [values.index(size) if size else -1 for size in SIZES]
    assert values_and_codes(column, missing=True) == (values, codes)
    assert values_and_codes({"z": column}, missing=True) == (values, codes)


def test_a_dictionary_of_numbers_is_read():
    column = pa.chunked_array([pa.array([3, 1, None]).dictionary_encode()])
    assert values_and_codes(column, missing=True) == ((3, 1), [0, 1, -1])


@pytest.mark.parametrize("wrap", [lambda frame: frame, narwhals.from_native], ids=["polars", "narwhals"])
def test_a_lazy_frame_raises(wrap):
    with pytest.raises(InputError, match=r"the table is a LazyFrame, .* computed: call .collect\(\) first"):
        read_columns(wrap(pl.DataFrame({"z": [1]}).lazy()))


def test_a_frame_comes_back_in_the_library_of_another():
    frame = pd.DataFrame({"n": [1.5, 2.0], "s": ["a", "b"], "b": [True, False]}, index=[7, 8])
    assert frame_like(frame, np.eye(2)) is frame
    assert frame_like(frame, pd.DataFrame()) is frame
    assert frame_like(frame, pl.Series([1])) is frame
    polars, arrow = frame_like(frame, pl.DataFrame({"x": [0, 0]})), frame_like(frame, pa.table({"x": [0, 0]}))
    assert polars.schema == {"n": pl.Float64, "s": pl.String, "b": pl.Boolean}
    assert polars.to_dicts() == arrow.to_pylist() == frame.to_dict("records")


@pytest.mark.parametrize("name", ["", None])
def test_a_series_of_polars_without_a_name_gets_the_default(name):
    (column,) = read_columns(pl.Series(name, [1, None, 2]), default="y", missing=True)
    assert (column.name, column.named, column.codes.tolist()) == ("y", False, [0, -1, 1])
