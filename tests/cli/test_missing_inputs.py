"""Error messages name missing files, columns and labels in one sentence."""

import numpy as np
import pandas as pd
import pytest

from tests.cli.commands import skip_without_extra

FIT = ("--columns", "temp,pulse", "--target", "diagnosis", "--attributes", "site")


@pytest.fixture
def folder(tmp_path, call):
    rng = np.random.default_rng(0)
    diagnosis, site = rng.choice(["cold", "flu"], 80), rng.choice(["Nice", "Paris, FR"], 80)
    frame = pd.DataFrame({"temp": rng.normal(size=80), "pulse": rng.normal(size=80) + (diagnosis == "flu")})
    frame = frame.assign(diagnosis=diagnosis, site=site)
    frame.to_csv(tmp_path / "tr.csv", index=False)
    frame.to_parquet(tmp_path / "tr.parquet")
    frame.drop(columns="temp").to_csv(tmp_path / "no_temp.csv", index=False)
    frame.drop(columns=["site", "diagnosis"]).to_csv(tmp_path / "no_labels.csv", index=False)
    frame.drop(columns="site").assign(visit=1).to_csv(tmp_path / "no_site.csv", index=False)
    frame.assign(site=["Nice"] * 4 + ["Rome"] * 76).to_csv(tmp_path / "rome.csv", index=False)
    np.savez(tmp_path / "arrays.npz", X=np.zeros((4, 2)), y=np.arange(4))
    (tmp_path / "prior.csv").write_text('diagnosis,site,prior\nflu,"Paris, FR",0.5\nflu,Nice,half\n')
    assert call("fit", "tr.csv", *FIT, "-o", "m.safetensors", cwd=tmp_path).returncode == 0
    return tmp_path


PREDICT = ("predict", "m.safetensors")
SENTENCES = [
    ((*PREDICT, "nope.csv", "-o", "p.csv"), "there is no file or folder 'nope.csv': check its path"),
    (("evaluate", "m.safetensors", "nope.csv"), "there is no file or folder 'nope.csv': check its path"),
    (("report", "m.safetensors", "nope.csv", "-o", "p.html"), "there is no file or folder 'nope.csv': check its path"),
    (
        (*PREDICT, "tr.csv", "--prior", "nope.csv", "-o", "p.csv"),
        "there is no file 'nope.csv': pass the path of a CSV file, or one of 'uniform', 'hull', 'train'",
    ),
    (
        ("fit", "tr.csv", *FIT, "--prior", "nope.csv", "-o", "n.safetensors"),
        "there is no file 'nope.csv': pass the path of a CSV file, or one of 'uniform', 'hull', 'train'",
    ),
    (
        (*PREDICT, "no_temp.csv", "-o", "p.csv"),
        "'no_temp.csv' lacks the column 'temp', which the model needs: add it, or pass another table (the columns are "
        "'pulse', 'diagnosis', 'site')",
    ),
    (
        ("evaluate", "m.safetensors", "no_site.csv"),
        "'no_site.csv' lacks the label 'site', which an evaluation needs: add it, or use `compshift predict`, which "
        "needs no labels",
    ),
    (
        ("evaluate", "m.safetensors", "no_labels.csv"),
        "'no_labels.csv' lacks the labels 'diagnosis', 'site', which an evaluation needs: add them, or use `compshift "
        "predict`, which needs no labels",
    ),
    (
        ("fit", "arrays.npz", *FIT, "-o", "n.safetensors"),
        "'arrays.npz' contains arrays, not a table with columns: do not name columns of samples, or pass a .csv, "
        ".xlsx, .jsonl or .parquet file",
    ),
    (
        ("train", "tr.parquet", *FIT[2:], "-o", "n"),
        "'tr.parquet' has no features (its columns are 'temp', 'pulse', 'diagnosis', 'site'): write them as a list "
        "column 'features' or as columns 'f0', 'f1', …, or read other columns as a table, with features=[names]",
    ),
    (
        ("fit", "nope.csv", *FIT[2:], "-o", "n.safetensors"),
        "there is no table 'nope.csv': pass a .csv, .xlsx, .jsonl or .parquet file",
    ),
    (
        ("bench", "arrays.npz", "-o", "b"),
        "has no attributes: write them as the arrays 'Z' and 'attribute_names' of an .npz file, or as columns of a",
    ),
    (
        ("bench", "tr.csv", "-o", "b"),
        "or write columns of numbers in Python with compshift.data.write_features('features",
    ),
    (
        ("evaluate", "m.safetensors", "rome.csv"),
        "attribute 'site' has the unknown value 'Rome' (row 4): known values are 'Nice', 'Paris, FR' (rows are counted "
        "from 0, without the header)",
    ),
    (
        (*PREDICT, "tr.csv", "--prior", "prior.csv", "-o", "p.csv"),
        "the prior 'prior.csv' has 'half' in row 1: the column 'prior' must hold numbers (rows are counted from 0, "
        "without the header)",
    ),
]


@pytest.mark.parametrize(("arguments", "sentence"), SENTENCES)
def test_missing_files_and_columns_raise_one_sentence(folder, call, arguments, sentence):
    skip_without_extra(arguments[0])
    result = call(*arguments, cwd=folder)
    assert result.returncode == 2
    assert sentence in result.err
    assert result.err.count("\n") == 1


def test_predictions_need_no_labels(folder, call):
    assert call(*PREDICT, "no_labels.csv", "-o", "p.csv", cwd=folder).returncode == 0
