"""Columns of tables as they are: what they hold, and their values whatever file they come from."""

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from compshift._errors import InputError
from compshift.data.raw_tables import (
    as_booleans,
    as_numbers,
    as_text,
    as_times,
    column_kind,
    is_typed,
    read_raw_columns,
)


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "-2.5", "3e4", ".5", None], "number"),
        (["1", "0"], "number"),
        (["007", "1"], "number"),
        (["true", "FALSE", None], "boolean"),
        (["2024-05-31", "1969-01-01"], "date"),
        (["2024-05-31 10:30", "2024-05-31T10:30:15.5Z", "2024-05-31", "2024-05-31T10:30:15+0200"], "date"),
        (["2024-02-30"], "category"),
        (["2024-05"], "category"),
        (["31.05.2024"], "category"),
        (["1", "two"], "category"),
        (["1_500"], "category"),
        (["1,5"], "category"),
        (["inf"], "category"),
        (["true", "1"], "category"),
        ([None, None], None),
    ],
)
def test_kinds_of_untyped_text(texts, kind):
    assert column_kind(pd.Series(texts, dtype=object), typed=False) == kind


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pd.Series([1, 2]), "number"),
        (pd.Series([1, None], dtype="Int64"), "number"),
        (pd.Series([1.5, np.nan], dtype="float32"), "number"),
        (pd.Series([True, False]), "boolean"),
        (pd.Series([True, None], dtype=object), "boolean"),
        (pd.Series([True, None], dtype="boolean"), "boolean"),
        (pd.Series(["1", "2"]), "category"),
        (pd.Series(["2024-05-31"]), "category"),
        (pd.Series(["a", None], dtype="category"), "category"),
        (pd.Series([1, 2, 1], dtype="category"), "category"),
        (pd.Series(pd.to_datetime(["2024-05-31", None])), "date"),
        (pd.Series(pd.to_datetime(["2024-05-31"], utc=True)), "date"),
        (pd.Series([datetime.date(2024, 5, 31), None], dtype=object), "date"),
        (pd.Series([1 + 2j]), None),
        (pd.Series([[1], [2]]), None),
        (pd.Series([b"x"]), None),
        (pd.Series(pd.to_timedelta([1], unit="D")), None),
        (pd.Series([np.nan]), None),
    ],
)
def test_kinds_of_typed_columns(values, kind):
    assert column_kind(values, typed=True) == kind


def test_numbers_of_every_source():
    for column in (
        pd.Series(["1", "2.5", None], dtype=object),
        pd.Series([1, 2.5, None]),
        pd.Series([1, 2.5, None], dtype="Float64"),
        pd.Series([Decimal("1"), Decimal("2.5"), None], dtype=object),
    ):
        np.testing.assert_array_equal(as_numbers(column, "x"), [1, 2.5, np.nan])
    for empty in (pd.Series([None, None], dtype=object), pd.Series([np.nan, np.nan])):
        assert np.isnan(as_numbers(empty, "x")).all()
        assert as_numbers(empty, "x").dtype == np.float64


def test_booleans_of_every_source():
    for column in (
        pd.Series(["True", "false", None], dtype=object),
        pd.Series([True, False, None], dtype=object),
        pd.Series([1, 0, None]),
        pd.Series([True, False, None], dtype="boolean"),
        pd.Series(["1", "0", None], dtype=object),
    ):
        np.testing.assert_array_equal(as_booleans(column, "x"), [1, 0, np.nan])


def test_times_of_every_source_are_those_of_utc():
    expected = pd.Series(pd.to_datetime(["2024-05-31 10:00", None]))
    for column in (
        expected,
        pd.Series(["2024-05-31T12:00+02:00", None], dtype=object),
        pd.Series(["2024-05-31 10:00", None], dtype=object),
        pd.Series(pd.to_datetime(["2024-05-31 12:00+02:00", None])),
        pd.Series([datetime.datetime(2024, 5, 31, 10), None], dtype=object),
    ):
        found = as_times(column, "x")
        assert found.astype("datetime64[s]").equals(expected.astype("datetime64[s]"))
    assert as_times(pd.Series([None], dtype=object), "x").isna().all()


def test_text_takes_the_level_that_is_written_alike():
    assert as_text(pd.Series([1.0, 2.0, None]), ["1", "2"]).tolist() == ["1", "2", None]
    assert as_text(pd.Series([True, False]), ["true", "false"]).tolist() == ["true", "false"]
    assert as_text(pd.Series(["01", "1", None], dtype=object), ["1"]).tolist() == ["01", "1", None]


@pytest.mark.parametrize(
    ("convert", "values", "shown"),
    [
        (as_numbers, [1.0, np.inf], "inf at row 1, which is not a number"),
        (as_numbers, [1.0, 1e305], "1e+305 at row 1, which is not a number"),
        (as_numbers, ["1", "1_500"], "'1_500' at row 1, which is not a number"),
        (as_booleans, [0, 2], "2 at row 1, which is not true or false"),
        (as_times, ["2024-01-01", "soon"], "'soon' at row 1, which is not a date"),
        (as_times, [3, 4], "3 at row 0, which is not a date"),
    ],
)
def test_other_values_raise(convert, values, shown):
    with pytest.raises(InputError, match="the column 'x' has ") as error:
        convert(pd.Series(values), "x")
    assert shown in str(error.value)


def test_files_and_tables_in_memory(tmp_path):
    frame = pd.DataFrame({"a": [" x ", "", "NA"], "n": ["1", " 2", ""]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    found = read_raw_columns(tmp_path / "t.csv", ["n", "a"])
    assert list(found) == ["n", "a"]
    assert found["a"].isna().tolist() == [False, True, True]
    assert found["a"][0] == "x"
    np.testing.assert_array_equal(as_numbers(found["n"], "n"), [1, 2, np.nan])
    assert (is_typed(tmp_path / "t.csv"), is_typed(tmp_path / "t.parquet"), is_typed(frame)) == (False, True, True)
    assert read_raw_columns({"a": [1, 2]}, ["a"])["a"].tolist() == [1, 2]
    with pytest.raises(InputError, match="column 'b' is not known"):
        read_raw_columns(frame, ["b"])
    with pytest.raises(InputError, match="column 'b' is not known"):
        read_raw_columns(tmp_path / "t.csv", ["b"])


def test_types_of_parquet(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    day = datetime.date(2024, 5, 31)
    table = pa.table(
        {
            "decimal": pa.array([Decimal("1.50"), None], pa.decimal128(5, 2)),
            "date": pa.array([day, None], pa.date32()),
            "time": pa.array([datetime.time(10, 30), None], pa.time32("s")),
            "words": pa.array(["a", None]).dictionary_encode(),
            "list": pa.array([[1], None]),
            "bytes": pa.array([b"a", None]),
            "wait": pa.array([1, None], pa.duration("s")),
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    found = read_raw_columns(tmp_path / "t.parquet", table.column_names)
    kinds = {name: column_kind(column, typed=True) for name, column in found.items()}
    assert kinds == {
        "decimal": "number",
        "date": "date",
        "time": "category",
        "words": "category",
        "list": None,
        "bytes": None,
        "wait": None,
    }
