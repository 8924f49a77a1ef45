"""``compshift fit``: conflicting options, and the settings that model selection chooses."""

import json
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import compshift
from tests.bench.small import write_birds
from tests.crm.stores import BIRDS, PLACES, sightings, write_store

FIT = ("--target", "bird", "--attributes", "place")
MODEL = ("-o", "m.safetensors")


@pytest.fixture
def folder(tmp_path):
    X, bird, place = sightings(n=400, p=3)
    write_store(tmp_path / "birds", X, bird, place)
    rows = "\n".join(f"{a},{b},{c},{y},{z}" for (a, b, c), y, z in zip(X, bird, place, strict=True))
    (tmp_path / "birds.csv").write_text(f"f0,f1,f2,bird,place\n{rows}\n")
    columns = {f"f{number}": column for number, column in enumerate(X.T)}
    pq.write_table(pa.table({**columns, "bird": bird, "place": place}), tmp_path / "columns.parquet")
    codes = np.stack([np.searchsorted(BIRDS, bird), np.searchsorted(PLACES, place)], axis=1)
    values = json.dumps({"bird": BIRDS.tolist(), "place": PLACES.tolist()})
    np.savez(tmp_path / "birds.npz", X=X, Z=codes, attribute_names=["bird", "place"], value_names=values)
    return tmp_path


@pytest.mark.parametrize(
    ("source", "more", "message"),
    [
        (
            "birds.npz",
            ("-o", "x.onnx"),
            "--output is 'x.onnx', but `compshift fit` does not write ONNX: fit with -o x.safetensors first, then run "
            "`compshift export x.safetensors -o x.onnx`",
        ),
        (
            "birds.csv",
            ("--columns", "f0,f1,f2", "--memory", "1G", *MODEL),
            "--memory cannot be used with 'birds.csv', which is read as a table: leave out --memory, or pass Parquet "
            "features, as `compshift features` writes them",
        ),
        ("birds.csv", ("--memory", "1G", *MODEL), "--memory cannot be used with 'birds.csv', which is read as a"),
        ("birds.npz", ("--memory", "1G", *MODEL), "--memory cannot be used with 'birds.npz', which is not Parque"),
        (
            "columns.parquet",
            ("--memory", "1G", *MODEL),
            "write lists of numbers to it, for example with pandas' frame.assign(features=list(X))",
        ),
        (
            "birds",
            ("--memory", "1G", "--unseen-offset", "auto", *MODEL),
            "--memory cannot be used with --unseen-offset auto: first choose the settings without --memory, on rows "
            "that fit in memory (such as a sample), then pass the chosen values together with --memory",
        ),
        (
            "birds",
            ("--memory", "1G", "--alpha", "0.1,1", "--bias", "auto", "--anchor", "auto", *MODEL),
            "--memory cannot be used with --alpha 0.1,1 and --bias auto and --anchor auto: first choose the settings",
        ),
        (
            "birds",
            ("--memory", "1G", "--anchor", "gaussian", "--cross-fit", *MODEL),
            "--memory cannot be used with --anchor gaussian and --cross-fit, which need all rows in memory: leave out",
        ),
        (
            "birds",
            ("--memory", "1G", "--transform", "auto", *MODEL),
            "--memory cannot be used with --transform auto: first choose the settings",
        ),
        (
            "birds",
            ("--memory", "1G", "--transform", "unit_length", *MODEL),
            "--memory cannot be used with --transform unit_length: leave out one of the two",
        ),
        ("birds.npz", ("--transform", "signed_rot", *MODEL), "did you mean 'signed_root'"),
        ("birds.npz", ("--alpha", "0,1", *MODEL), "--alpha contains 0: without a ridge the weights diverge"),
    ],
)
def test_conflicting_options_raise(folder, call, source, more, message):
    before = sorted(folder.iterdir())
    result = call("fit", source, *FIT, *more, cwd=folder)
    assert result.returncode == 2
    assert message in result.err
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    assert sorted(folder.iterdir()) == before


def test_the_chosen_offset_is_printed(folder, call):
    result = call("fit", "birds.npz", *FIT, *MODEL, "--unseen-offset", "auto", "--alpha", "0.01", cwd=folder)
    assert result.returncode == 0, result.err
    (line,) = re.findall(r"^chosen on held-out groups .*$", result.out, re.MULTILINE)
    offset = compshift.load(folder / "m.safetensors").unseen_offset_
    (found,) = re.findall(r"alpha 0\.01, unseen groups ([+-]\d\.\d\d) nats$", line) or ["0"]
    assert float(found) == pytest.approx(offset, abs=0.005001)
    assert found != "-0.00"


def test_chosen_settings_are_printed_and_given_ones_are_not(folder, call):
    auto = ("--bias", "auto", "--anchor", "auto", "--alpha", "0.01")
    result = call("fit", "birds.npz", *FIT, *MODEL, *auto, cwd=folder)
    clf = compshift.load(folder / "m.safetensors")
    (line,) = re.findall(r"^chosen on held-out groups \(\d+ folds\): alpha 0\.01.*$", result.out, re.MULTILINE)
    assert (f"{clf.anchor_} anchor" in line) == ((clf.anchor_, clf.selected_bias_) != ("zero", "extrapolated"))
    assert (f"{clf.selected_bias_} bias" in line) == (clf.selected_bias_ != "extrapolated")
    assert "nats" not in line  # the offset was not chosen
    assert "chosen" not in call("fit", "birds.npz", *FIT, *MODEL, cwd=folder).out
    assert "chosen" not in call("fit", "birds", *FIT, *MODEL, "--memory", "1G", cwd=folder).out
    alphas = call("fit", "birds.npz", *FIT, *MODEL, "--alpha", "0.1,1", cwd=folder).out
    assert alphas.count("chosen on held-out groups") == 1


def test_the_transform_is_stored_and_can_be_chosen(folder, call):
    result = call("fit", "birds.npz", *FIT, *MODEL, "--transform", "signed_root", "--json", cwd=folder)
    assert json.loads(result.out)["feature_transform"] == "signed_root"
    assert compshift.load(folder / "m.safetensors").feature_transform_ == "signed_root"
    result = call("fit", "birds.npz", *FIT, *MODEL, "--transform", "auto", cwd=folder)
    (line,) = re.findall(r"^chosen on held-out groups .*$", result.out, re.MULTILINE)
    chosen = compshift.load(folder / "m.safetensors").feature_transform_
    assert (f"transform {chosen}" in line) == (chosen != "none")


def test_json_has_the_chosen_offset(folder, call):
    result = call("fit", "birds.npz", *FIT, *MODEL, "--unseen-offset", "auto", "--json", cwd=folder)
    content = json.loads(result.out)
    assert content["unseen_offset"] == pytest.approx(compshift.load(folder / "m.safetensors").unseen_offset_)


@pytest.mark.parametrize(
    "arguments",
    [("fit", "t.npz", "--split", ""), ("fit", "t.npz", "--split="), ("train", "t.npz", "--method", "", "-o", "r")],
)
def test_empty_values_raise(call, tmp_path, arguments):
    """An unset shell variable gives an empty value."""
    result = call(*arguments, cwd=tmp_path)
    option = arguments[2].removesuffix("=")
    assert (result.returncode, result.err) == (2, f"error: {option} is empty: pass a value, or leave it out\n")


def test_options_without_effect_raise(call, tmp_path):
    write_birds(tmp_path / "birds.npz")
    fit = ("fit", "birds.npz", "--target", "bird", "--attributes", "place", "-o", "m.safetensors")
    result = call(*fit, "--device", "unifrom", cwd=tmp_path)
    assert (result.returncode, result.err) == (
        2,
        "error: --device is for tables (with --path, --text or --columns): leave it out\n",
    )
    assert call(*fit, cwd=tmp_path).returncode == 0
    for command in (
        ("predict", "m.safetensors", "birds.npz", "-o", "p.csv"),
        ("evaluate", "m.safetensors", "birds.npz"),
    ):
        result = call(*command, "--backbone", "resnet", cwd=tmp_path)
        assert (result.returncode, result.err) == (
            2,
            "error: --backbone is for models of images and texts, but this model takes features: leave it out\n",
        )


def test_an_empty_path_for_the_model_raises(call, tmp_path):
    write_birds(tmp_path / "birds.npz")
    result = call("fit", "birds.npz", "--target", "bird", "--attributes", "place", "-o", "", cwd=tmp_path)
    assert (result.returncode, result.err) == (2, "error: '.' is a folder: pass the path of a file to write\n")


def test_alpha_auto_where_no_group_can_be_held_out(call, tmp_path):
    codes = np.repeat([[0, 1], [1, 0], [1, 1]], 50, axis=0)
    X = np.random.default_rng(0).normal(size=(150, 3)) + 2 * codes @ np.ones((2, 3))
    frame = pd.DataFrame(X, columns=["x0", "x1", "x2"]).assign(bird=codes[:, 0], place=codes[:, 1])
    frame.to_csv(tmp_path / "birds.csv", index=False)
    labels = ("--target", "bird", "--attributes", "place", "--columns", "x0,x1,x2")
    result = call("fit", "birds.csv", *labels, "--alpha", "auto", "-o", "model.safetensors", cwd=tmp_path)
    assert result.returncode == 0, result.err
    assert (
        "no group can be held out: alpha 0.01 is nearest to the typical one for these numbers of features and rows\n"
        in result.out
    )
    assert "folds" not in result.out
