"""``compshift predict`` on raw tables: standard input and output, and columns that are kept."""

import io
import sys

import numpy as np
import pandas as pd
import pytest

from tests.cli.customers import customers, predictions


class TestPipes:
    def pipe(self, call, folder, monkeypatch, content, *options):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
        return call("predict", "m.safetensors", "-", *options, cwd=folder)

    def test_standard_input_and_output(self, call, fitted, monkeypatch):
        expected = call("predict", "m.safetensors", "t.csv", "--keep", "id", "-o", "p.csv", cwd=fitted.folder)
        assert expected.out == "600 predictions written to p.csv\n"
        content = (fitted.folder / "t.csv").read_text()
        result = self.pipe(call, fitted.folder, monkeypatch, content, "--keep", "id", "-o", "-")
        assert (result.returncode, result.err) == (0, "600 predictions written to standard output\n")
        assert result.out == (fitted.folder / "p.csv").read_text()
        result = self.pipe(call, fitted.folder, monkeypatch, content, "-o", "q.csv")
        assert result.out == "600 predictions written to q.csv\n"

    @pytest.mark.parametrize(
        ("content", "sentence"),
        [
            ("", "standard input is empty: pass a CSV table with a header"),
            ("income,age\n1,2\n", "standard input lacks the columns 'member', 'job', 'since'"),
            ("age,income,job,member,since\n", "standard input has no rows"),
        ],
    )
    def test_bad_input_is_one_sentence(self, call, fitted, monkeypatch, content, sentence):
        result = self.pipe(call, fitted.folder, monkeypatch, content, "-o", "-")
        assert (result.returncode, result.out, result.err.count("\n")) == (2, "", 1)
        assert "input.csv" not in result.err
        if "lacks" not in sentence:
            assert result.err.startswith(f"error: {sentence}")
        else:
            assert result.err.startswith("error: standard input lacks the columns ")


class TestKeep:
    def test_columns_are_copied_as_they_are_written(self, call, fitted):
        frame = customers().astype({"age": str})
        frame["code"], frame["when"], frame["flag"] = [f"{row:04d}" for row in range(600)], "NA", "true"
        frame.to_csv(fitted.folder / "t2.csv", index=False)
        call("predict", "m.safetensors", "t2.csv", "--keep", "code,when,flag,since", "-o", "p.csv", cwd=fitted.folder)
        found = pd.read_csv(fitted.folder / "p.csv", dtype=str, keep_default_na=False)
        assert list(found.columns) == ["code", "when", "flag", "since", "churn", "P(churn=no)", "P(churn=yes)"]
        assert found["code"].tolist() == frame["code"].tolist()
        assert set(found["when"]) == {"NA"}
        assert set(found["flag"]) == {"true"}
        assert found["since"].tolist() == frame["since"].fillna("").tolist()

    def test_feature_files_keep_attributes_of_a_split(self, call, tmp_path):
        rng = np.random.default_rng(0)
        codes = rng.integers(0, 2, size=(60, 2))
        splits = np.arange(60) % 3
        np.savez(tmp_path / "f.npz", X=rng.normal(size=(60, 3)), Z=codes, attribute_names=["y", "a"], split=splits)
        call("fit", "f.npz", "--target", "y", "--attributes", "a", "-o", "m.safetensors", cwd=tmp_path)
        found = predictions(call, tmp_path, "f.npz", "--keep", "a", "--split", "test")
        assert found["a"].tolist() == codes[splits == 2, 1].tolist()
        table = pd.DataFrame({"features": list(rng.normal(size=(60, 3))), "split": splits, "a": codes[:, 1]})
        table.to_parquet(tmp_path / "f.parquet")
        found = predictions(call, tmp_path, "f.parquet", "--keep", "a", "--split", "test")
        assert found["a"].tolist() == codes[splits == 2, 1].tolist()

    @pytest.mark.parametrize(
        ("keep", "sentence"),
        [
            ("name", "'t.csv' lacks the column 'name', which --keep names: add it, or leave it out of --keep"),
            ("churn", "--keep names 'churn', which the predictions have as well: rename the column in the input"),
            ("id,id", "--keep is 'id,id': name each column once"),
        ],
    )
    def test_bad_names_are_one_sentence(self, call, fitted, keep, sentence):
        result = call("predict", "m.safetensors", "t.csv", "--keep", keep, "-o", "p.csv", cwd=fitted.folder)
        assert (result.returncode, result.err.count("\n")) == (2, 1)
        assert result.err.startswith(f"error: {sentence}")
