"""``compshift fit`` on tables as they are, and what the model then does: predict, evaluate, report, export."""

import importlib.util
import json
import sys

import numpy as np
import pandas as pd
import pytest

import compshift as cs
from compshift.features.recipe import Recipe
from tests.cli.customers import BOOSTED, LABELS, customers, predictions


def test_columns_of_every_kind(call, fitted):
    lines = fitted.out.splitlines()
    assert lines[0] == "features: 2 numbers (income, age), 1 boolean (member), 1 date (since), 1 category (job)"
    assert lines[1].startswith("left out: 'id' (text that differs in most rows); 'empty' (no values); ")
    assert lines[2].endswith(f"rows of {8 if fitted.energies == 'boosted' else 11} features, attributes churn, region")
    if fitted.energies == "boosted":
        assert "trust: expected accuracy on 1 unseen group: " in fitted.out
    report = json.loads(call("evaluate", "m.safetensors", "t.csv", "--json", cwd=fitted.folder).out)
    assert (report["split"], report["rows"]) == ("test", int((customers()["split"] == "test").sum()))
    assert report["average"] > 0.75
    unseen = next(group for group in report["groups"] if group["in_training"] == "extrapolated")
    assert unseen["accuracy"] > 0.7
    known = json.loads(call("evaluate", "m.safetensors", "t.csv", "--known", "region", "--json", cwd=fitted.folder).out)
    assert known["attributes_known_in_use"] == ["region"]


def test_other_files_with_the_same_rows_give_the_same_predictions(call, fitted):
    """Types are those of training: without labels, in another order, and in formats with types of their own."""
    folder, frame = fitted.folder, customers()
    expected = predictions(call, folder, "t.csv")
    raw = frame[["job", "since", "age", "member", "income"]]
    raw.to_csv(folder / "raw.csv", index=False)
    raw.to_csv(folder / "raw.tsv", index=False, sep="\t")
    typed = raw.assign(since=pd.to_datetime(raw["since"]), job=raw["job"].astype("category"), age=raw["age"] * 1.0)
    typed.to_parquet(folder / "typed.parquet")
    raw.astype({"age": str, "member": int}).to_parquet(folder / "odd.parquet")
    raw.to_json(folder / "raw.jsonl", orient="records", lines=True)
    names = ["raw.csv", "raw.tsv", "typed.parquet", "odd.parquet", "raw.jsonl"]
    if importlib.util.find_spec("openpyxl"):
        raw.to_excel(folder / "raw.xlsx", index=False)
        names.append("raw.xlsx")
    for name in names:
        pd.testing.assert_frame_equal(predictions(call, folder, name), expected)
    half = raw[:300].assign(job=None, income=None, since=None, member=None)
    half.to_csv(folder / "half.csv", index=False)
    assert len(predictions(call, folder, "half.csv")) == 300
    half.to_parquet(folder / "half.parquet")
    pd.testing.assert_frame_equal(predictions(call, folder, "half.parquet"), predictions(call, folder, "half.csv"))


def test_a_parquet_table_is_fitted_as_it_is(call, fitted):
    frame = customers()
    frame.assign(since=pd.to_datetime(frame["since"])).to_parquet(fitted.folder / "t.parquet")
    expected = predictions(call, fitted.folder, "t.csv")
    options = BOOSTED if fitted.energies == "boosted" else LABELS
    result = call("fit", "t.parquet", *options, "-o", "m.safetensors", cwd=fitted.folder)
    assert result.out == fitted.out
    pd.testing.assert_frame_equal(predictions(call, fitted.folder, "t.csv"), expected)


def test_json_lines_are_fitted_as_they_are(call, folder):
    frame = customers()
    frame.to_json(folder / "t.jsonl", orient="records", lines=True)
    result = call("fit", "t.jsonl", *LABELS, "-o", "m.safetensors", cwd=folder)
    assert (result.returncode, result.err) == (0, ""), result.err
    assert result.out.splitlines()[0].endswith("1 boolean (member), 1 date (since), 1 category (job)")
    report = json.loads(call("evaluate", "m.safetensors", "t.jsonl", "--json", cwd=folder).out)
    assert (report["split"], report["rows"]) == ("test", int((frame["split"] == "test").sum()))
    assert "600 rows" in call("audit", "t.jsonl", "--attributes", "churn,region", cwd=folder).out
    result = call("evaluate", "t.jsonl", "m.safetensors", cwd=folder)
    assert "'t.jsonl' is a table, not a model: pass the file of a saved model" in result.err


def test_new_categories_count_as_missing(call, fitted):
    folder, frame = fitted.folder, customers()
    frame.assign(job=frame["job"].replace("cook", "diver")).to_csv(folder / "new.csv", index=False)
    frame.assign(job=frame["job"].where(frame["job"] != "cook")).to_csv(folder / "gap.csv", index=False)
    new, gap = predictions(call, folder, "new.csv"), predictions(call, folder, "gap.csv")
    pd.testing.assert_frame_equal(new, gap)
    assert not new.equals(predictions(call, folder, "t.csv"))


def test_the_model_in_python(call, fitted):
    pipe, frame = cs.load(fitted.folder / "m.safetensors"), customers()
    found = predictions(call, fitted.folder, "t.csv")
    np.testing.assert_allclose(pipe.predict_proba(frame), found[["P(churn=no)", "P(churn=yes)"]])
    assert pipe.predict(frame).tolist() == found["churn"].tolist()
    found = predictions(call, fitted.folder, "t.csv", "--known", "region")
    proba = pipe.predict_proba(frame, attributes=frame[["region"]])
    np.testing.assert_allclose(proba, found[["P(churn=no)", "P(churn=yes)"]])


def test_report_and_export(call, fitted):
    pytest.importorskip("altair")
    result = call("report", "m.safetensors", "t.csv", "--diagnose", "-o", "r.html", cwd=fitted.folder)
    assert (result.returncode, result.err) == (0, ""), result.err
    if fitted.energies == "boosted":
        pytest.importorskip("onnx")
        result = call("export", "m.safetensors", "-o", "m.onnx", "--json", cwd=fitted.folder)
        assert (result.returncode, result.err) == (0, "")
        assert json.loads(result.out)["inputs"]["X"] == [None, 8]


def test_text_is_categorical_for_trees(call, folder):
    pytest.importorskip("lightgbm")
    call("fit", "t.csv", *BOOSTED, "-o", "m.safetensors", cwd=folder)
    clf = cs.load(folder / "m.safetensors")[-1]
    recipe = Recipe.from_dict(clf.inputs_)
    assert clf._columns.categorical == (recipe.table.feature_names.index("job"),)


def test_diagnosis_of_boosted_energies_with_gaps(call, folder):
    pytest.importorskip("lightgbm")
    call("fit", "t.csv", *BOOSTED, "-o", "m.safetensors", cwd=folder)
    pipe, frame = cs.load(folder / "m.safetensors"), customers()
    assert pipe[0].transform(frame).isna().any(axis=None)
    diagnosis = cs.diagnose(pipe, frame, frame[["churn"]], attributes=frame[["region"]])
    assert np.isfinite(diagnosis.interaction.mean)
    assert diagnosis.verdict


def test_prediction_sets_and_explanations(call, folder):
    pytest.importorskip("lightgbm")
    call("fit", "t.csv", *BOOSTED, "-o", "m.safetensors", cwd=folder)
    found = predictions(call, folder, "t.csv", "--sets", "0.9", "--explain", "--groups")
    assert {"churn set", "group region", "P(churn=yes, region=west)", "group energy churn"} <= set(found)
    assert "group main features" not in found


def test_explanations_name_the_features_of_a_table(call, folder):
    fit = ["fit", "t.csv", *BOOSTED[: BOOSTED.index("--energies")], "-o", "m.safetensors"]
    assert call(*fit, cwd=folder).returncode == 0
    names = cs.load(folder / "m.safetensors")[0].get_feature_names_out()
    features = predictions(call, folder, "t.csv", "--explain")["group main features"].str.split(" [+−]", regex=True)
    assert set(features.str[0]) <= set(names)


def test_splits_by_shares_are_remembered(call, folder):
    pytest.importorskip("lightgbm")
    customers().drop(columns="split").to_csv(folder / "whole.csv", index=False)
    result = call("fit", "whole.csv", *BOOSTED, "--shares", "0.6,0.4", "-o", "m.safetensors", cwd=folder)
    assert (result.returncode, result.err) == (0, ""), result.err
    result = call("evaluate", "m.safetensors", "whole.csv", "--json", cwd=folder)
    assert (json.loads(result.out)["split"], result.err) == ("test", "")
    assert 200 < json.loads(result.out)["rows"] < 280


def test_statistics_and_levels_are_those_of_training_rows(call, folder):
    frame = customers()
    frame.loc[frame["split"] == "test", "income"] = 1e6
    frame.loc[frame["split"] == "test", "job"] = "spy"
    frame.to_csv(folder / "t.csv", index=False)
    assert call("fit", "t.csv", *LABELS, "-o", "m.safetensors", cwd=folder).returncode == 0
    columns = {column["name"]: column for column in cs.load(folder / "m.safetensors")[-1].inputs_["table"]["columns"]}
    train = frame.loc[frame["split"] == "train", "income"]
    assert columns["income"]["median"] == [pytest.approx(train.median())]
    assert columns["income"]["mean"] == [pytest.approx(train.mean())]
    assert columns["income"]["scale"] == [pytest.approx(train.std(ddof=0))]
    assert sorted(columns["job"]["levels"]) == ["clerk", "cook", "nurse", "smith"]


def test_features_name_columns_of_any_kind(call, folder):
    pytest.importorskip("lightgbm")
    result = call("fit", "t.csv", *BOOSTED, "--columns", "id,since,age", "-o", "m.safetensors", cwd=folder)
    assert result.out.startswith("features: 1 number (age), 1 date (since), 1 category (id)\n")
    assert "left out" not in result.out
    customers()[["age", "since", "id"]].to_csv(folder / "new.csv", index=False)
    assert len(predictions(call, folder, "new.csv")) == 600


def test_kept_columns_are_not_features(call, folder):
    pytest.importorskip("lightgbm")
    result = call("fit", "t.csv", *BOOSTED, "--keep", "id,income,empty", "--json", "-o", "m.safetensors", cwd=folder)
    assert result.err == "features: 1 number (age), 1 boolean (member), 1 date (since), 1 category (job)\n"
    content = json.loads(result.out)
    assert (content["energies"], content["features"]) == ("boosted", 7)
    assert content["held_out_row_accuracy"] > 0.5


def test_both_kinds_of_energies(call, folder):
    pytest.importorskip("lightgbm")
    options = [*LABELS, "--energies", "auto", "--max-iter", "10", "--jobs", "1", "-o", "m.safetensors"]
    result = call("fit", "t.csv", *options, cwd=folder)
    assert result.returncode == 0, result.err
    clf = cs.load(folder / "m.safetensors")[-1]
    assert clf.energies == "auto"
    assert clf.energies_ == "both"
    assert "fit: 10 rounds of boosting and linear energies with alpha" in result.out
    assert len(predictions(call, folder, "t.csv")) == 600
    result = call("fit", "t.csv", *options, "--alpha", "1", cwd=folder)
    assert result.err == "error: --alpha is for --energies linear, not for --energies auto: leave it out\n"


def test_feature_files_with_boosted_energies(call, tmp_path):
    pytest.importorskip("lightgbm")
    rng = np.random.default_rng(0)
    codes = np.repeat([[0, 1], [1, 0], [1, 1]], 100, axis=0)
    X = rng.normal(size=codes.shape) + 3 * codes
    np.savez(tmp_path / "f.npz", X=X, Z=codes, attribute_names=["y", "a"])
    options = ["--target", "y", "--attributes", "a", "--energies", "boosted", "--max-iter", "10", "--jobs", "1"]
    result = call("fit", "f.npz", *options, "-o", "m.safetensors", cwd=tmp_path)
    assert (result.returncode, result.err) == (0, ""), result.err
    found = predictions(call, tmp_path, "f.npz")
    expected = cs.CRMBoostingClassifier(max_iter=10).fit(X, codes[:, 0], attributes=codes[:, 1]).predict_proba(X)
    np.testing.assert_allclose(found[["P(y=0)", "P(y=1)"]], expected)
    result = call("fit", "f.npz", *options, "--keep", "a", "-o", "n.safetensors", cwd=tmp_path)
    assert result.err == "error: --keep is for tables whose columns are features by default: leave it out\n"


def test_unlabelled_rows_of_a_raw_table(call, folder):
    result = call("fit", "t.csv", *LABELS, "--unlabelled", "t.csv", "-o", "m.safetensors", cwd=folder)
    assert (result.returncode, result.err) == (0, ""), result.err
    assert "600 unlabelled rows" in result.out


def test_rare_categories_share_a_feature(call, tmp_path):
    rng = np.random.default_rng(0)
    n = 900
    y, a = rng.integers(0, 2, n), rng.integers(0, 2, n)
    town = [f"town {number}" for number in np.r_[np.repeat(np.arange(50), 12), np.repeat(np.arange(50, 200), 2)]]
    frame = pd.DataFrame({"town": rng.permutation(town), "x": rng.normal(size=n) + y, "y": y, "a": a})
    frame.to_csv(tmp_path / "t.csv", index=False)
    result = call("fit", "t.csv", "--target", "y", "--attributes", "a", "-o", "m.safetensors", cwd=tmp_path)
    assert "900 rows of 52 features" in result.out
    recipe = Recipe.from_dict(cs.load(tmp_path / "m.safetensors")[-1].inputs_)
    assert recipe.table.feature_names[-2:] == ["town (other)", "x"]
    X = recipe.load_samples({"town": ["town 0", "town 199", "new", None], "x": [0.0, 0.0, 0.0, 0.0]})
    assert X[:, :50].sum(axis=1).tolist() == [1, 0, 0, 0]
    assert X[:, 50].tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--alpha", "1"], "--alpha is for --energies linear, not for --energies boosted: leave it out"),
        (["--anchor", "zero", "--tol", "1e-3"], "--anchor and --tol are for --energies linear, not for --energies"),
        (["--cross-fit"], "--cross-fit is for --energies linear, not for --energies boosted: leave it out"),
        (["--transform", "none"], "--transform is for --energies linear, not for --energies boosted: leave it out"),
        (["--memory", "2G"], "--memory is for --energies linear, not for --energies boosted: leave it out"),
        (["--unlabelled", "t.csv"], "--unlabelled is for --energies linear, not for --energies boosted: leave it out"),
        (["--bias", "auto"], "--bias is 'auto', which is for linear energies: pass a value, or leave it out"),
        (["--unseen-offset", "auto"], "--unseen-offset is 'auto', which is for linear energies: pass a value"),
        (["--energies", "fancy"], "energies 'fancy' is not known: use one of 'linear', 'boosted', 'auto'"),
        (["--max-iter", "0"], "--max-iter is 0: pass an integer ≥ 1"),
        (["--columns", "incme"], "column 'incme' is not known: use one of"),
        (["--columns", "age,churn"], "the column 'churn' is used twice: name each column once"),
        (["--columns", "age,age"], "the column 'age' is used twice: name each column once"),
        (["--columns", "age,empty"], "the column 'empty' has no values, so it cannot be a feature: leave it out"),
        (["--columns", "age", "--keep", "id"], "--keep and --columns cannot be used together: --columns already"),
        (["--keep", "name"], "column 'name' is not known: use one of"),
        (["--keep", "income,age,job,member,since,empty"], "no column of 't.csv' can be a feature, 'id' (text that"),
        (["--keep", "id,income,age,job,member,since,empty"], "'t.csv' has no columns besides 'churn', 'region', 'id'"),
        (
            ["--backbone", "minilm"],
            "--backbone is for columns of texts, but 't.csv' has none besides its labels: leave",
        ),
        (["--root", ".", "--weights", "w"], "--root and --weights are for --path and --text, not for tables whose"),
        (["--shares", "0.5,0.5"], "--shares cannot be used with a table that has a column 'split'"),
        (["--split", "val"], "there are no val rows: use one of 'train', 'test'"),
    ],
)
def test_bad_options_are_one_sentence(call, folder, options, sentence):
    pytest.importorskip("lightgbm")
    result = call("fit", "t.csv", *BOOSTED, *options, "-o", "m.safetensors", cwd=folder)
    assert (result.returncode, result.err.count("\n")) == (2, 1)
    assert result.err.startswith(f"error: {sentence}")
    assert not (folder / "m.safetensors").exists()


def test_without_lightgbm(call, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    result = call("fit", "t.csv", *BOOSTED, "-o", "m.safetensors", cwd=folder)
    sentence = "error: boosted energies need LightGBM: run pip install 'compshift[boosting]'\n"
    assert (result.returncode, result.err) == (2, sentence)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"age": "old"}, "the column 'age' has 'old' at row 3, which is not a number: correct the value, or leave it"),
        ({"income": "1e400"}, "the column 'income' has '1e400' at row 3, which is not a number"),
        ({"member": "maybe"}, "the column 'member' has 'maybe' at row 3, which is not true or false"),
        (
            {"since": "2020-02-31"},
            "the column 'since' has '2020-02-31' at row 3, which is not a date such as 2024-05-31",
        ),
        ({"since": "7"}, "the column 'since' has '7' at row 3, which is not a date"),
    ],
)
def test_bad_values_are_one_sentence(call, fitted, changes, sentence):
    frame = customers().astype(object)
    for name, value in changes.items():
        frame.loc[3, name] = value
    frame.to_csv(fitted.folder / "bad.csv", index=False)
    for command in (["evaluate"], ["predict", "-o", "p.csv"]):
        result = call(command[0], "m.safetensors", "bad.csv", *command[1:], cwd=fitted.folder)
        assert (result.returncode, result.err.count("\n")) == (2, 1)
        assert result.err.startswith(f"error: {sentence}")


def test_missing_columns_are_named(call, fitted):
    customers().drop(columns=["age", "job"]).to_csv(fitted.folder / "less.csv", index=False)
    for command in (["evaluate"], ["predict", "-o", "p.csv"]):
        result = call(command[0], "m.safetensors", "less.csv", *command[1:], cwd=fitted.folder)
        assert (result.returncode, result.err.count("\n")) == (2, 1)
        assert "'less.csv' lacks the columns 'age', 'job', which the model needs: add them" in result.err


def test_damaged_inputs_of_a_model_file_are_refused(call, folder):
    """``tests/features/test_table_columns.py`` has further damages."""
    call("fit", "t.csv", *LABELS, "-o", "m.safetensors", cwd=folder)
    clf = cs.load(folder / "m.safetensors")[-1]
    clf.save(folder / "m.safetensors", inputs=clf.inputs_ | {"table": None})
    for command in (["evaluate"], ["predict", "-o", "p.csv"]):
        result = call(command[0], "m.safetensors", "t.csv", *command[1:], cwd=folder)
        assert (result.returncode, result.err.count("\n")) == (2, 1)
        assert "the model's description of its features is missing or damaged" in result.err
    with pytest.raises(cs.InputError, match="cannot be loaded: the model's description of its features"):
        cs.load(folder / "m.safetensors")


@pytest.mark.parametrize(
    "change",
    [
        {"levels": ["cook", "nurse"]},
        {"levels": [str(number) for number in range(9000)]},
        {"rare": True},
    ],
)
def test_inputs_that_do_not_fit_the_model_are_refused(call, folder, change):
    """Their number of features is another one than that of the model."""
    call("fit", "t.csv", *LABELS, "-o", "m.safetensors", cwd=folder)
    clf = cs.load(folder / "m.safetensors")[-1]
    content = json.loads(json.dumps(clf.inputs_))
    content["table"]["columns"][2] |= change
    clf.save(folder / "m.safetensors", inputs=content)
    result = call("predict", "m.safetensors", "t.csv", "-o", "p.csv", cwd=folder)
    assert (result.returncode, result.err.count("\n")) == (2, 1)
    assert "features" in result.err
    with pytest.raises(cs.InputError, match=r"m.safetensors' cannot be loaded: its columns make \d+ features, but the"):
        cs.load(folder / "m.safetensors")
