"""CSV and TSV files: separators, encodings, missing values, types of labels and long rows."""

import re

import pandas as pd
import pytest

from compshift import InputError
from compshift.data.audit import read_group_counts
from compshift.data.table import load_table

LABELLED = {"target": "y", "attributes": "site", "features": ["x"]}


class TestSeparatorsAndEncodings:
    ROWS = ("x,y,site", "0.5,a,Orléans", "1.5,b,Nice", "2.5,a,Nice", "0.5,b,Orléans")

    def write(self, path, content):
        path.write_bytes(content)
        return path

    @pytest.mark.parametrize(("separator", "word"), [(";", "semicolons"), ("\t", "tabs")])
    def test_another_separator_raises(self, tmp_path, separator, word):
        text = "\n".join(self.ROWS).replace(",", separator).replace(".", ",")
        path = self.write(tmp_path / "a.csv", text.encode())
        with pytest.raises(InputError, match=rf"a\.csv' seems to be separated by {word}, not by commas: save it with"):
            load_table(path, **LABELLED)

    def test_commas_in_a_tsv_file_raise(self, tmp_path):
        path = self.write(tmp_path / "a.tsv", "\n".join(self.ROWS).encode())
        with pytest.raises(InputError, match="separated by commas, not by tabs"):
            load_table(path, **LABELLED)

    @pytest.mark.parametrize(("encoding", "line"), [("latin-1", 2), ("utf-16", 1)])
    def test_another_encoding_raises_with_its_line(self, tmp_path, encoding, line):
        path = self.write(tmp_path / "a.csv", "\n".join(self.ROWS).encode(encoding))
        with pytest.raises(InputError, match=rf"is not UTF-8 text \(line {line}\): save it as UTF-8"):
            load_table(path, **LABELLED)

    @pytest.mark.parametrize("word", ["NA", "null", "nan"])
    def test_words_that_are_read_as_missing(self, tmp_path, word):
        path = self.write(tmp_path / "a.csv", "\n".join(self.ROWS).replace("Nice", word).encode())
        with pytest.raises(
            InputError, match=f"2 missing values, the first at row 1, where '{word}' is read as missing"
        ):
            load_table(path, **LABELLED)
        path = self.write(tmp_path / "a.csv", "\n".join(self.ROWS).replace("Nice", "").encode())
        with pytest.raises(InputError, match="replace missing values by a value such as"):
            load_table(path, **LABELLED)

    @pytest.mark.parametrize("name", ["A.CSV", "A.Parquet", "A.TSV"])
    def test_endings_may_be_in_capitals(self, tmp_path, name):
        frame = pd.DataFrame({"x": [0.5, 1.5], "y": ["a", "b"], "site": ["u", "v"]})
        if name == "A.Parquet":
            frame.to_parquet(tmp_path / name)
        else:
            frame.to_csv(tmp_path / name, index=False, sep="\t" if name == "A.TSV" else ",")
        assert load_table(tmp_path / name, **LABELLED).X.tolist() == [[0.5], [1.5]]

    def test_decimals_become_numbers_if_that_loses_nothing(self, tmp_path):
        path = self.write(tmp_path / "a.csv", b"x,y,site\n1,0.5,1.0\n2,1.0,1.00\n")
        assert load_table(path, **LABELLED).space.values == ((0.5, 1.0), ("1.0", "1.00"))


@pytest.mark.parametrize("value", ["36,5", "2024-05-01", "high"])
def test_a_feature_that_is_not_a_number_is_shown(tmp_path, value):
    pd.DataFrame({"x": ["1", value, "2"], "y": list("aba"), "site": list("uvu")}).to_csv(
        tmp_path / "a.csv", index=False
    )
    with pytest.raises(InputError, match=rf"the feature column 'x' has '{value}': it must contain only numbers"):
        load_table(tmp_path / "a.csv", **LABELLED)


@pytest.mark.parametrize("odd", ["1_500", "\u00a00.5", "1,5", "½"])
def test_numbers_that_tables_do_not_use_raise(tmp_path, odd):
    values = ["0.25"] * 50
    values[41] = odd
    pd.DataFrame({"bird": ["a", "b"] * 25, "x": values}).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(
        InputError, match=re.escape(f"the feature column 'x' has {odd!r}: it must contain only numbers")
    ):
        load_table(tmp_path / "t.csv", target="bird", features=["x"])


def test_words_that_are_read_as_missing(tmp_path):
    (tmp_path / "a.CSV").write_text("a,b\nx,1\nNA,2\n,NULL\n")
    found = read_group_counts(tmp_path / "a.CSV", ["a", "b"])
    assert (found.n_dropped, found.missing_words) == (2, ["NA", "NULL"])


def test_rows_longer_than_a_block_are_read_and_huge_rows_raise(tmp_path):
    rows = "\n".join(f"duck,{'x' * 3_000_000 if n == 1 else 'x'}" for n in range(3))
    (tmp_path / "t.csv").write_text(f"bird,note\n{rows}\n")
    assert read_group_counts(tmp_path / "t.csv", ["bird"]).n_rows == 3
    (tmp_path / "h.csv").write_text(f"bird,{'h' * 2_000_000}\nduck,1\n")
    assert read_group_counts(tmp_path / "h.csv", ["bird"]).n_rows == 1
    (tmp_path / "t.csv").write_text(f"bird,note\nduck,{'x' * 40_000_000}\nduck,1\n")
    with pytest.raises(InputError, match="has a row of more than 16 MB: look for a quote that is not closed"):
        read_group_counts(tmp_path / "t.csv", ["bird"])
