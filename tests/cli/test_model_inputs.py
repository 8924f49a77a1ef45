"""Inputs of a fitted model, from the command line and in Python."""

import json

import numpy as np
import pandas as pd
import pytest

import compshift as cs
from compshift import CRMClassifier, GroupSpace, InputError
from compshift.crm import io as model_file
from compshift.features.recipe import Recipe
from tests.cli.commands import skip_without_extra

FEATURES = ["pulse", "temp", "age"]


@pytest.fixture
def patients(tmp_path):
    """A table of three measurements that differ in how informative they are."""
    rng = np.random.default_rng(0)
    ill, site = rng.integers(0, 2, size=(2, 300))
    X = rng.normal(size=(300, 3)) + np.stack([4 * ill, 3 * site, 0 * ill], axis=1)
    frame = pd.DataFrame(X, columns=FEATURES)
    frame["diagnosis"], frame["site"] = np.array(["well", "ill"])[ill], np.array(["north", "south"])[site]
    frame.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path, frame


LABELS = ["--target", "diagnosis", "--attributes", "site"]
FIT = ["fit", "t.csv", "--columns", ",".join(FEATURES), *LABELS, "-o", "m.safetensors"]


def test_a_model_fitted_on_the_command_line_checks_column_names(call, patients):
    folder, frame = patients
    assert call(*FIT, cwd=folder).returncode == 0
    clf = cs.load(folder / "m.safetensors")
    assert clf.score(frame[FEATURES], frame["diagnosis"]) > 0.9  # without a warning
    with pytest.raises(InputError, match="in the same order"):
        clf.predict(frame[FEATURES[::-1]])
    result = call("predict", "m.safetensors", "t.csv", "-o", "p.csv", cwd=folder)
    assert (result.returncode, result.err) == (0, "")


def test_onnx_files_have_the_names_of_columns(call, patients):
    onnx = pytest.importorskip("onnx")
    folder, _ = patients
    call(*FIT, cwd=folder)
    assert call("export", "m.safetensors", "-o", "m.onnx", cwd=folder).returncode == 0
    (entry,) = onnx.load(folder / "m.onnx").metadata_props
    assert json.loads(entry.value)["feature_names"] == FEATURES


def test_a_training_run_checks_column_names(call, patients):
    pytest.importorskip("accelerate")
    folder, frame = patients
    options = ["--columns", ",".join(FEATURES), *LABELS, "--shares", "0.7,0.1,0.2", "--steps", "20", "--device", "cpu"]
    result = call("train", "t.csv", *options, "-o", "run", cwd=folder)
    assert result.returncode == 0, result.err
    clf = cs.load(folder / "run")
    assert (clf.predict(frame[FEATURES]) == clf.predict(frame[FEATURES].to_numpy())).all()
    with pytest.raises(InputError, match="columns in another order, but the model was trained on 'pulse', 'temp', 'ag"):
        clf.predict(frame[FEATURES[::-1]])
    with pytest.raises(InputError, match=r"have columns 'pulse', .* and 1 more, but the model was trained on") as error:
        clf.predict(frame)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_model_that_was_fitted_to_a_dataframe_reads_tables_by_name(call, patients, ending):
    folder, frame = patients
    clf = CRMClassifier().fit(frame[FEATURES], frame["diagnosis"], attributes=frame["site"])
    clf.save(folder / "py.safetensors")
    table = frame[["site", *FEATURES[::-1], "diagnosis"]]
    table.to_csv(folder / "u.csv", index=False)
    table.to_parquet(folder / "u.parquet")
    result = call("evaluate", "py.safetensors", f"u.{ending}", "--json", cwd=folder)
    assert (result.returncode, result.err) == (0, "")
    assert json.loads(result.out)["average"] == pytest.approx(clf.score(frame[FEATURES], frame["diagnosis"]))
    assert call("predict", "py.safetensors", f"u.{ending}", "-o", "p.csv", cwd=folder).returncode == 0
    assert pd.read_csv(folder / "p.csv")["diagnosis"].tolist() == clf.predict(frame[FEATURES]).tolist()
    skip_without_extra("report")
    assert call("report", "py.safetensors", f"u.{ending}", "-o", "r.html", cwd=folder).returncode == 0


def test_a_model_with_names_still_takes_feature_files(call, patients):
    folder, frame = patients
    CRMClassifier().fit(frame[FEATURES], frame["diagnosis"], attributes=frame["site"]).save(folder / "py.safetensors")
    np.savez(folder / "f.npz", X=frame[FEATURES].to_numpy())
    frame[FEATURES].set_axis(["f0", "f1", "f2"], axis=1).to_parquet(folder / "f.parquet")
    for name in ("f.npz", "f.parquet"):
        result = call("predict", "py.safetensors", name, "-o", "p.csv", cwd=folder)
        assert (result.returncode, result.err) == (0, "")


INPUTS = {"kind": "features", "columns": FEATURES}


@pytest.mark.parametrize(
    "inputs",
    [
        INPUTS | {"kind": "foo"},
        INPUTS | {"kind": ["a"]},
        INPUTS | {"columns": []},
        INPUTS | {"columns": 3},
        INPUTS | {"columns": [["a"]]},
        INPUTS | {"kind": "images", "columns": []},
        INPUTS | {"kind": "images", "columns": ["a", "b"]},
        INPUTS | {"kind": "text", "columns": ["a", "b", "c"]},
        INPUTS | {"split": 3},
        INPUTS | {"split": ["column"]},
        INPUTS | {"split": {"column": 3}},
        INPUTS | {"split": {"shares": {"train": 1}}},
        INPUTS | {"split": {"shares": [1], "seed": 0, "labels": ""}},
        INPUTS | {"split": {"shares": {"train": 1}, "seed": "0", "labels": ""}},
        INPUTS | {"max_length": "long"},
        INPUTS | {"backbone": 3},
        INPUTS | {"surprise": 3},
        {"kind": "features"},
    ],
)
def test_damaged_recipes_in_model_files_raise(call, patients, inputs):
    folder, frame = patients
    clf = CRMClassifier().fit(frame[FEATURES].to_numpy(), frame["diagnosis"], attributes=frame["site"])
    clf.save(folder / "m.safetensors", inputs=inputs)
    for command in (["evaluate"], ["predict", "-o", "p.csv"]):
        result = call(command[0], "m.safetensors", "t.csv", *command[1:], cwd=folder)
        assert result.returncode == 2
        assert result.err.startswith("error: the model's description of its features is missing or damaged (")
        assert len(result.err.splitlines()) == 1


def test_recipes_of_earlier_files():
    """Model files of earlier versions store ``to_dict`` as JSON, with lists instead of tuples."""
    for recipe in (
        Recipe("text", ("a", "b"), "minilm", max_length=64, split={"column": "fold"}),
        Recipe("features", ("a",), split={"shares": {"train": 0.5, "test": 0.5}, "seed": 0, "labels": "0"}),
    ):
        assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))).to_dict() == recipe.to_dict()


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "t.csv", "m.safetensors"],
        ["evaluate", "t.parquet", "m.safetensors"],
        ["predict", "t.csv", "m.safetensors", "-o", "p.csv"],
        ["export", "t.csv", "-o", "m.onnx"],
    ],
)
def test_swapped_arguments_raise(call, patients, arguments):
    skip_without_extra(arguments[0])
    folder, frame = patients
    call(*FIT, cwd=folder)
    frame.to_parquet(folder / "t.parquet")
    result = call(*arguments, cwd=folder)
    assert result.returncode == 2
    assert f"{arguments[1]!r} is a table, not a model: pass the file of a saved model" in result.err
    with pytest.raises(InputError, match="is a table, not a model"):
        cs.load(folder / "t.csv")


def test_models_of_images_say_what_they_take(patients):
    folder, frame = patients
    clf = CRMClassifier().fit(frame[FEATURES].to_numpy(), frame["diagnosis"], attributes=frame["site"])
    clf.save(folder / "m", inputs={"kind": "images", "columns": ["photo"], "backbone": "efficientnet-lite0"})
    loaded = cs.load(folder / "m")
    for X in (["a.png"], "a.png", pd.Series(["a.png"]), np.array([["a.png"]])):
        with pytest.raises(
            InputError, match="the backbone 'efficientnet-lite0' computes from images: compute them with compshift"
        ):
            loaded.predict(X)


def test_the_header_keeps_column_names(call, patients):
    """Column names come from the recipe, so files of earlier releases have them too."""
    folder, _ = patients
    call(*FIT, cwd=folder)
    assert model_file.read(folder / "m.safetensors").header["feature_names"] is None


def test_numbered_columns_are_not_taken_for_named_ones(call, patients):
    folder, frame = patients
    call(*FIT, cwd=folder)
    other = frame.rename(columns={"pulse": "f1", "temp": "f0"}).assign(f2=0.0)  # beside one of the model's own names
    other.to_parquet(folder / "odd.parquet")
    result = call("predict", "m.safetensors", "odd.parquet", "-o", "p.csv", cwd=folder)
    assert result.returncode == 2
    assert "'pulse'" in result.err
    assert not (folder / "p.csv").exists()


def test_a_data_set_without_the_models_attributes_raises(call, patients):
    folder, _ = patients
    call(*FIT, cwd=folder)
    result = call("evaluate", "m.safetensors", "penguins", cwd=folder)
    assert (result.returncode, result.err.count("\n")) == (2, 1)
    assert "the data set has no attribute 'diagnosis' but the model needs it" in result.err


def test_attributes_with_the_names_of_reasons(call, patients):
    folder, frame = patients
    frame.rename(columns={"diagnosis": "probability", "site": "seen"}).to_csv(folder / "t.csv", index=False)
    labels = ["--target", "probability", "--attributes", "seen"]
    call("fit", "t.csv", "--columns", ",".join(FEATURES), *labels, "-o", "m.safetensors", cwd=folder)
    for name, read in (("p.csv", pd.read_csv), ("p.parquet", pd.read_parquet)):
        assert call("predict", "m.safetensors", "t.csv", "--explain", "-o", name, cwd=folder).returncode == 0
        found = read(folder / name)
        assert {"group probability (attribute)", "group probability", "group seen (attribute)"} < set(found.columns)


def test_names_in_quotes(call, patients):
    folder, frame = patients
    frame.rename(columns={"site": " site", "diagnosis": "diagnosis, final"}).to_csv(folder / "t.csv", index=False)
    result = call("audit", "t.csv", "--attributes", '"diagnosis, final"," site"', cwd=folder)
    assert (result.returncode, result.err) == (0, "")
    assert "4 of 4 groups" in result.out


def test_a_prior_file_with_the_target_alone_is_a_prior_over_classes(tmp_path):
    from compshift.cli.options import read_prior

    space = GroupSpace(("bird", "legs"), (("duck", "owl"), (1, 2)))
    path = tmp_path / "prior.csv"
    path.write_text("bird,prior\nduck,0.9\nowl,0.1\n")
    assert read_prior(str(path), space) == {"duck": 0.9, "owl": 0.1}
    path.write_text("bird,legs,prior\nduck,1,0.9\nowl,2,0.1\n")
    assert read_prior(str(path), space) == {("duck", 1): 0.9, ("owl", 2): 0.1}
    path.write_text("legs,prior\n1,0.9\n2,0.1\n")
    with pytest.raises(InputError, match="lacks the column 'bird'"):
        read_prior(str(path), space)
