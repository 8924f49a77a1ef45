"""``compshift fit`` on a user's own table, then predictions and evaluation."""

import json

import numpy as np
import pandas as pd
import pytest

from compshift.data.penguins import ATTRIBUTES, MEASUREMENTS


@pytest.fixture
def penguins(tmp_path):
    from importlib.resources import files

    table = pd.read_csv(str(files("compshift.data").joinpath("tables/penguins.csv"))).dropna()
    table.to_csv(tmp_path / "penguins.csv", index=False)
    return tmp_path


NUMBERS = ["--columns", ",".join(MEASUREMENTS)]
LABELS = ["--target", "species", "--attributes", "sex,island"]


def test_columns_of_numbers(call, penguins):
    result = call("fit", "penguins.csv", *NUMBERS, *LABELS, "--alpha", "1e-4", "-o", "m", cwd=penguins)
    assert result.returncode == 0, result.err
    assert "333 rows of 4 features, attributes species, sex, island" in result.out
    assert "warning: the standard deviation of 'body_mass_g' is 409 times that of 'bill_depth_mm'" in result.err
    assert result.err.count("standard deviation of") == 1
    assert "10 seen, 8 extrapolated, 0 outside the hull" in result.out
    report = json.loads(call("evaluate", "m", "penguins.csv", "--json", cwd=penguins).out)
    assert report["rows"] == 333
    assert report["average"] > 0.8
    table = pd.read_csv(penguins / "penguins.csv").drop(columns=list(ATTRIBUTES))
    table[::-1].to_csv(penguins / "unlabelled.csv", index=False)
    assert call("predict", "m", "unlabelled.csv", "-o", "p.csv", cwd=penguins).returncode == 0
    assert call("predict", "m", "penguins.csv", "-o", "q.csv", cwd=penguins).returncode == 0
    backwards, forwards = pd.read_csv(penguins / "p.csv"), pd.read_csv(penguins / "q.csv")
    pd.testing.assert_frame_equal(backwards[::-1].reset_index(drop=True), forwards)


def test_shares_split_the_table_and_are_remembered(call, penguins):
    """The held-out rows are found again in the same table, and only there."""
    shares = ["--shares", "0.6,0.1,0.3", "--seed", "3"]
    result = call("fit", "penguins.csv", *NUMBERS, *LABELS, *shares, "-o", "m", cwd=penguins)
    assert 195 <= int(result.out.split()[0]) <= 205
    report = json.loads(call("evaluate", "m", "penguins.csv", "--json", cwd=penguins).out)
    assert report["split"] == "test"
    assert 95 <= report["rows"] <= 105
    pd.read_csv(penguins / "penguins.csv")[1:].to_csv(penguins / "fewer.csv", index=False)
    again = call("evaluate", "m", "fewer.csv", "--json", cwd=penguins)
    report = json.loads(again.out)
    assert (report["split"], report["rows"]) == ("all", 332)
    assert again.err.startswith("warning: the model was fitted to a random split of a table")
    assert "'fewer.csv' has other rows or labels" in again.err
    assert "random split" not in call("evaluate", "m", "penguins.csv", cwd=penguins).err
    assert call("evaluate", "m", "fewer.csv", "--split", "test", cwd=penguins).returncode == 2


def test_a_named_column_of_splits_is_remembered(call, penguins):
    table = pd.read_csv(penguins / "penguins.csv")
    table["fold"] = ["train", "train", "test"] * (len(table) // 3)
    table.to_csv(penguins / "penguins.csv", index=False)
    result = call("fit", "penguins.csv", *NUMBERS, *LABELS, "--split-column", "fold", "-o", "m", cwd=penguins)
    assert result.out.startswith("222 rows")
    report = json.loads(call("evaluate", "m", "penguins.csv", "--json", cwd=penguins).out)
    assert (report["split"], report["rows"]) == ("test", 111)


def test_a_damaged_column_of_splits_is_named(call, penguins):
    table = pd.read_csv(penguins / "penguins.csv")
    table["fold"] = ["train", "train", "test"] * (len(table) // 3)
    table.to_csv(penguins / "penguins.csv", index=False)
    call("fit", "penguins.csv", *NUMBERS, *LABELS, "--split-column", "fold", "-o", "m", cwd=penguins)
    table.assign(fold=table["fold"].replace("test", "rest")).to_csv(penguins / "other.csv", index=False)
    result = call("evaluate", "m", "other.csv", cwd=penguins)
    assert result.returncode == 2
    assert result.err == (
        "error: the column 'fold' does not hold splits: the split 'rest' is not known: use 0, 1, 2 or 'train', 'val', "
        "'test'\n"
    )
    table.drop(columns="fold").to_csv(penguins / "other.csv", index=False)
    report = json.loads(call("evaluate", "m", "other.csv", "--json", cwd=penguins).out)
    assert (report["split"], report["rows"]) == ("all", len(table))


def test_missing_splits_raise(call, penguins):
    for arguments in (["fit", "penguins.csv", *NUMBERS, *LABELS, "--split", "val", "-o", "m"],):
        result = call(*arguments, cwd=penguins)
        assert result.returncode == 2
        assert "--split is 'val', but the data have no splits" in result.err
    call("fit", "penguins.csv", *NUMBERS, *LABELS, "-o", "m", cwd=penguins)
    result = call("predict", "m", "penguins.csv", "--split", "test", "-o", "p.csv", cwd=penguins)
    assert "--split is for feature files" in result.err


def test_labels_keep_their_spelling(call, tmp_path):
    """01 and 1 are two values, and numbers stay numbers where nothing is lost."""
    codes = ["01", "1", "01", "1"] * 10
    frame = pd.DataFrame({"x": np.arange(40.0), "z": [0, 0, 1, 1] * 10, "y": codes})
    frame.to_csv(tmp_path / "t.csv", index=False)
    result = call("fit", "t.csv", "--columns", "x", "--target", "y", "--attributes", "z", "-o", "m", cwd=tmp_path)
    assert result.returncode == 0, result.err
    call("predict", "m", "t.csv", "-o", "p.csv", cwd=tmp_path)
    header = (tmp_path / "p.csv").read_text().splitlines()[0]
    assert header == "y,P(y=01),P(y=1)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([*NUMBERS, "--target", "specie"], "column 'specie' is not known"),
        (["--columns", "bill", "--target", "species"], "column 'bill' is not known: use one of"),
        (["--columns", "island", "--target", "species"], "the feature column 'island' has 'Torgersen'"),
        (["--path", "island", "--text", "sex", "--target", "species"], "--path and --text cannot be used together"),
        (["--path", "island", "--target", "species"], "there is no image 'Torgersen' (column 'island', row 0)"),
        ([*NUMBERS, "--backbone", "minilm", "--target", "species"], "--backbone is for --path and --text"),
        ([*NUMBERS, *LABELS, "--shares", "1,2,3,4"], "--shares is '1,2,3,4': pass the shares of train, val and test"),
        ([*NUMBERS, *LABELS, "--shares", "1,1,1"], "they must sum to 1"),
        ([*NUMBERS, *LABELS, "--alpha", "-1"], "--alpha is -1.0: pass a finite number ≥ 0"),
        ([*NUMBERS, *LABELS, "--prior", "flat"], "prior 'flat' is not known"),
        (
            [*NUMBERS, *LABELS, "--shares", "1,0,0", "--split-column", "year"],
            "--split-column and --shares cannot be used",
        ),
        ([*NUMBERS, *LABELS, "--split-column", "year"], "the split 2007 is not known"),
    ],
)
def test_bad_options_raise(call, penguins, options, message):
    result = call("fit", "penguins.csv", *options, "-o", "m", cwd=penguins)
    assert result.returncode == 2
    assert message in result.err
    assert len(result.err.splitlines()) == 1
    assert not (penguins / "m").exists()


def test_a_table_for_a_model_of_features(call, penguins):
    call("datasets", "export", "penguins", "-o", "p.npz", cwd=penguins)
    call("fit", "p.npz", *LABELS, "-o", "m", cwd=penguins)
    result = call("predict", "m", "penguins.csv", "-o", "p.csv", cwd=penguins)
    assert result.returncode == 2
    assert "the model was fitted to unnamed features, but 'penguins.csv' is a table: pass features" in result.err


@pytest.mark.parametrize(("training", "test"), [(("1", "2", "3b"), ("1", "2")), (("1", "2", "3"), ("1.0", "2.0", "3"))])
def test_labels_match_as_written_whatever_the_column_type(call, tmp_path, training, test):
    """Column types are guessed from each file alone, and may differ from those in training."""
    for name, sites in (("tr.csv", training), ("te.csv", test)):
        rows = [f"{(i % 2) + i / 40},{['a', 'b'][i % 2]},{sites[i % len(sites)]}" for i in range(36)]
        (tmp_path / name).write_text("x,y,site\n" + "\n".join(rows) + "\n")
    fit = ("--columns", "x", "--target", "y", "--attributes", "site", "-o", "m.safetensors")
    assert call("fit", "tr.csv", *fit, cwd=tmp_path).returncode == 0
    (tmp_path / "prior.csv").write_text("y,site,prior\na,1,0.25\nb,1.0,0.25\na,2,0.5\n")
    result = call("evaluate", "m.safetensors", "te.csv", "--prior", "prior.csv", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.err
    assert json.loads(result.out)["rows"] == 36


def test_fit_and_audit_refuse_the_same_attributes(call, tmp_path):
    rng = np.random.default_rng(0)
    charges = np.repeat(np.arange(1585) / 4, 4)
    frame = pd.DataFrame({"x": rng.normal(size=len(charges)), "churn": rng.integers(0, 2, len(charges))})
    frame.assign(monthly_charges=charges).to_csv(tmp_path / "t.csv", index=False)
    sentence = "attribute 'monthly_charges' has 1585 different values: is it an identifier? Leave it out"
    audit = call("audit", "t.csv", "--attributes", "churn,monthly_charges", cwd=tmp_path)
    options = ("--columns", "x", "--target", "churn", "--attributes", "monthly_charges", "-o", "m.safetensors")
    fit = call("fit", "t.csv", *options, cwd=tmp_path)
    for result in (audit, fit):
        assert result.returncode == 2
        assert sentence in result.err
    assert "space" not in fit.err
    assert not (tmp_path / "m.safetensors").exists()
