"""Tables that would be counted wrongly, and are refused."""

import pandas as pd
import pytest

from compshift import InputError
from compshift.data.group_counts import read_group_counts


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
