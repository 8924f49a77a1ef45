"""Tables that would be counted wrongly, and are refused."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compshift import InputError
from compshift.data.audit import read_group_counts


@pytest.mark.parametrize("entry", ["-1", "nan", "inf", ""])
def test_one_count_that_is_none(tmp_path, entry):
    """It would vanish in the sum of its group."""
    (tmp_path / "a.csv").write_text(f"a,n\nx,3\nx,{entry}\ny,1.5\n")
    with pytest.raises(InputError, match="at row 1: counts must be 0 or more"):
        read_group_counts(tmp_path / "a.csv", ["a"], count="n")


def test_a_column_name_twice(tmp_path):
    (tmp_path / "a.csv").write_text("a,b,a\nx,1,y\n")
    with pytest.raises(InputError, match=r"'a\.csv' has 2 columns named 'a': rename all but one"):
        read_group_counts(tmp_path / "a.csv", ["a"])
    assert read_group_counts(tmp_path / "a.csv", ["b"]).n_rows == 1


def test_values_that_are_lists(tmp_path):
    pd.DataFrame({"a": [["x"], ["y"]]}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(InputError, match="one value per row"):
        read_group_counts(tmp_path / "a.parquet", ["a"])


def test_counts_of_16_bits_add_up(tmp_path):
    table = pa.table({"a": ["x", "y", "x"], "n": np.array([1, 2, 3], dtype=np.float16)})
    pq.write_table(table, tmp_path / "t.parquet")
    assert read_group_counts(tmp_path / "t.parquet", ["a"], count="n").count.tolist() == [4, 2]


def test_lines_that_are_left_out_count_for_all_their_rows(tmp_path):
    (tmp_path / "a.csv").write_text("site,diagnosis,n\nA,flu,3\n,flu,500\nB,,20\n,,\nB,cold,7\n")
    found = read_group_counts(tmp_path / "a.csv", ["site", "diagnosis"], count="n")
    assert (found.n_rows, found.n_dropped, found.missing) == (10, 520, {"site": 500, "diagnosis": 20})
    (tmp_path / "b.csv").write_text("site,n\n,4\nA,-1\n")
    with pytest.raises(InputError, match="at row 1: counts"):
        read_group_counts(tmp_path / "b.csv", ["site"], count="n")


class TestValuesThatHardlyRepeat:
    def test_continuous_ones_are_refused(self, tmp_path):
        pd.DataFrame({"temp": [number + 0.5 for number in range(20)], "a": "x"}).to_csv(tmp_path / "a.csv")
        with pytest.raises(
            InputError, match=r"has 20 different values in 20 rows: it looks continuous; .* pass max_values=20 if"
        ):
            read_group_counts(tmp_path / "a.csv", ["temp", "a"])
        assert len(read_group_counts(tmp_path / "a.csv", ["temp", "a"], max_values=20).groups) == 20

    def test_identifiers_are_told_of(self, tmp_path):
        pd.DataFrame({"name": [f"n{number}" for number in range(20)], "n": 1}).to_csv(tmp_path / "a.csv")
        with pytest.warns(UserWarning, match="'name' has 20 different values in 20 rows: is it an identifier"):
            read_group_counts(tmp_path / "a.csv", ["name"])
        assert len(read_group_counts(tmp_path / "a.csv", ["name"], max_values=20).groups) == 20

    def test_counts_are_rows(self, tmp_path):
        pd.DataFrame({"dose": [number + 0.5 for number in range(20)], "n": 30}).to_csv(tmp_path / "a.csv")
        assert read_group_counts(tmp_path / "a.csv", ["dose"], count="n").n_rows == 600


def test_words_that_are_read_as_missing(tmp_path):
    (tmp_path / "a.CSV").write_text("a,b\nx,1\nNA,2\n,NULL\n")
    found = read_group_counts(tmp_path / "a.CSV", ["a", "b"])
    assert (found.n_dropped, found.missing_words) == (2, ["NA", "NULL"])


def test_empty_text_is_a_value_where_a_file_can_tell_it_from_none(tmp_path):
    """As it is for a fit."""
    frame = pd.DataFrame({"bird": ["", "duck", "duck", None], "place": ["sea", "sea", "lake", "lake"]})
    frame.to_parquet(tmp_path / "t.parquet")
    counts = read_group_counts(tmp_path / "t.parquet", ["bird", "place"])
    assert counts.space.values[0] == ("", "duck")
    assert (counts.n_rows, counts.n_dropped) == (3, 1)
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert read_group_counts(tmp_path / "t.csv", ["bird", "place"]).space.values[0] == ("duck",)


def test_text_as_views(tmp_path):
    birds = pa.array(["duck", None, "owl"], pa.string_view())
    pq.write_table(pa.table({"bird": birds, "place": ["sea", "sea", "lake"]}), tmp_path / "t.parquet")
    counts = read_group_counts(tmp_path / "t.parquet", ["bird", "place"])
    assert (counts.space.values[0], counts.n_dropped) == (("duck", "owl"), 1)


def test_two_columns_of_one_name_in_parquet(tmp_path):
    table = pa.Table.from_arrays([pa.array(["a", "b"])] * 3, names=["bird", "x", "x"])
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"'t\.parquet' has 2 columns named 'x': rename all but one"):
        read_group_counts(tmp_path / "t.parquet", ["bird"])


def test_fields_that_are_larger_than_a_block(tmp_path):
    rows = "\n".join(f"duck,{'x' * 3_000_000 if n == 1 else 'x'}" for n in range(3))
    (tmp_path / "t.csv").write_text(f"bird,note\n{rows}\n")
    assert read_group_counts(tmp_path / "t.csv", ["bird"]).n_rows == 3
    (tmp_path / "h.csv").write_text(f"bird,{'h' * 2_000_000}\nduck,1\n")
    assert read_group_counts(tmp_path / "h.csv", ["bird"]).n_rows == 1
    (tmp_path / "t.csv").write_text(f"bird,note\nduck,{'x' * 40_000_000}\nduck,1\n")
    with pytest.raises(InputError, match="has a row of more than 16 MB: look for a quote that is not closed"):
        read_group_counts(tmp_path / "t.csv", ["bird"])
