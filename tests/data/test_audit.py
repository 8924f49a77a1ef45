"""Count the groups of a table."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compshift import InputError
from compshift.data.audit import read_group_counts


@pytest.mark.parametrize("entry", ["-1", "nan", "inf", ""])
def test_a_bad_count_raises(tmp_path, entry):
    """Without the check, the bad count would disappear in the sum of its group."""
    (tmp_path / "a.csv").write_text(f"a,n\nx,3\nx,{entry}\ny,1.5\n")
    with pytest.raises(InputError, match="at row 1: counts must be finite numbers ≥ 0"):
        read_group_counts(tmp_path / "a.csv", ["a"], count="n")


def test_float16_counts_are_summed(tmp_path):
    table = pa.table({"a": ["x", "y", "x"], "n": np.array([1, 2, 3], dtype=np.float16)})
    pq.write_table(table, tmp_path / "t.parquet")
    assert read_group_counts(tmp_path / "t.parquet", ["a"], count="n").count.tolist() == [4, 2]


def test_counts_of_dropped_rows_are_summed(tmp_path):
    (tmp_path / "a.csv").write_text("site,diagnosis,n\nA,flu,3\n,flu,500\nB,,20\n,,\nB,cold,7\n")
    found = read_group_counts(tmp_path / "a.csv", ["site", "diagnosis"], count="n")
    assert (found.n_rows, found.n_dropped, found.missing) == (10, 520, {"site": 500, "diagnosis": 20})
    (tmp_path / "b.csv").write_text("site,n\n,4\nA,-1\n")
    with pytest.raises(InputError, match="at row 1: counts"):
        read_group_counts(tmp_path / "b.csv", ["site"], count="n")


class TestContinuousAttributesAndIdentifiers:
    def test_continuous_attributes_raise(self, tmp_path):
        pd.DataFrame({"temp": [number + 0.5 for number in range(20)], "a": "x"}).to_csv(tmp_path / "a.csv")
        with pytest.raises(
            InputError, match=r"has 20 different values in 20 rows: it looks continuous; .* pass max_values=20 if"
        ):
            read_group_counts(tmp_path / "a.csv", ["temp", "a"])
        assert len(read_group_counts(tmp_path / "a.csv", ["temp", "a"], max_values=20).groups) == 20

    def test_identifiers_warn(self, tmp_path):
        pd.DataFrame({"name": [f"n{number}" for number in range(20)], "n": 1}).to_csv(tmp_path / "a.csv")
        with pytest.warns(UserWarning, match="'name' has 20 different values in 20 rows: if it is an identifier"):
            read_group_counts(tmp_path / "a.csv", ["name"])
        assert len(read_group_counts(tmp_path / "a.csv", ["name"], max_values=20).groups) == 20

    def test_the_sum_of_a_count_column_is_the_number_of_rows(self, tmp_path):
        pd.DataFrame({"dose": [number + 0.5 for number in range(20)], "n": 30}).to_csv(tmp_path / "a.csv")
        assert read_group_counts(tmp_path / "a.csv", ["dose"], count="n").n_rows == 600


def test_empty_text_is_a_value_in_parquet_and_missing_in_csv(tmp_path):
    """Fitting a model reads empty text in the same way."""
    frame = pd.DataFrame({"bird": ["", "duck", "duck", None], "place": ["sea", "sea", "lake", "lake"]})
    frame.to_parquet(tmp_path / "t.parquet")
    counts = read_group_counts(tmp_path / "t.parquet", ["bird", "place"])
    assert counts.space.values[0] == ("", "duck")
    assert (counts.n_rows, counts.n_dropped) == (3, 1)
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert read_group_counts(tmp_path / "t.csv", ["bird", "place"]).space.values[0] == ("duck",)
