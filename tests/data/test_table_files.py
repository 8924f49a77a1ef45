"""Tables on disk with columns whose types or names are not supported."""

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compshift import InputError
from compshift.data.audit import read_group_counts
from compshift.data.feature_files import read_features
from compshift.data.table import load_table

DATES = {
    "date32": pa.array([2**31 - 1] * 4, pa.date32()),
    "date": pa.array([0, 1] * 2, pa.date32()),
    "timestamp": pa.array([0, 1] * 2, pa.timestamp("s")),
    "far": pa.array([2**62] * 4, pa.timestamp("ms")),
    "zone": pa.array([0, 1] * 2, pa.timestamp("s", tz="Foo/Bar")),
    "duration": pa.array([2**62] * 4, pa.duration("s")),
    "binary": pa.array([b"\xff"] * 4),
    "dictionary": pa.array([0, 1] * 2, pa.date32()).dictionary_encode(),
}


@pytest.mark.parametrize("kind", DATES)
def test_dates_and_bytes_raise(tmp_path, kind):
    path = tmp_path / "t.parquet"
    columns = {"bird": ["a", "b"] * 2, "x": [1.0, 2.0, 3.0, 4.0], "features": [[1.0]] * 4}
    pq.write_table(pa.table({**columns, "day": DATES[kind]}), path)
    for read in (
        lambda: load_table(path, target="bird", attributes="day", features=["x"]),
        lambda: load_table(path, target="bird", features=["day"]),
        lambda: load_table(path, target="bird", features=["x"], split="day"),
        lambda: read_group_counts(path, ["bird", "day"]),
        lambda: read_features(path, ["bird", "day"]),
    ):
        with pytest.raises(
            InputError, match=r"the column 'day' has type .*: values must be text, .*convert it, for exa"
        ):
            read()


def test_two_columns_of_one_name_raise(tmp_path):
    (tmp_path / "a.csv").write_text("a,b,a\nx,1,y\n")
    with pytest.raises(InputError, match=r"'a\.csv' has 2 columns named 'a': rename all but one"):
        read_group_counts(tmp_path / "a.csv", ["a"])
    assert read_group_counts(tmp_path / "a.csv", ["b"]).n_rows == 1


def test_lists_as_values_raise(tmp_path):
    pd.DataFrame({"a": [["x"], ["y"]]}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(InputError, match="one value per row"):
        read_group_counts(tmp_path / "a.parquet", ["a"])


def test_string_views_are_read(tmp_path):
    birds = pa.array(["duck", None, "owl"], pa.string_view())
    pq.write_table(pa.table({"bird": birds, "place": ["sea", "sea", "lake"]}), tmp_path / "t.parquet")
    counts = read_group_counts(tmp_path / "t.parquet", ["bird", "place"])
    assert (counts.space.values[0], counts.n_dropped) == (("duck", "owl"), 1)


def test_two_columns_of_one_name_in_parquet_raise(tmp_path):
    table = pa.Table.from_arrays([pa.array(["a", "b"])] * 3, names=["bird", "x", "x"])
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"'t\.parquet' has 2 columns named 'x': rename all but one"):
        read_group_counts(tmp_path / "t.parquet", ["bird"])
