"""Inputs and files of other kinds are never overwritten."""

import errno
import shutil
from pathlib import Path

import pandas as pd
import pytest

from compshift.data import read_features
from tests.bench.small import write_birds
from tests.cli.commands import skip_without_extra

FIT = ("--target", "bird", "--attributes", "place")
PRIOR = "bird,place,prior\n"


@pytest.fixture
def folder(tmp_path, call):
    write_birds(tmp_path / "birds.npz")
    call("fit", "birds.npz", *FIT, "-o", "m.safetensors", cwd=tmp_path)
    (tmp_path / "prior.csv").write_text(PRIOR)
    (tmp_path / "prior.html").write_text(PRIOR)
    (tmp_path / "shards").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", "m.safetensors", "store", "-o", "store/b.parquet"),
        ("predict", "m.safetensors", "store", "-o", "store/new.parquet"),
        ("predict", "m.safetensors", "store", "-o", "link/b.parquet"),
        ("tables", "results", "--format", "csv", "-o", "results/bench.json"),
        ("fit", "store", *FIT, "-o", "store/m.safetensors"),
    ],
)
def test_no_file_in_an_input_folder_is_overwritten(folder, call, arguments):
    write_store(folder / "store")
    (folder / "store" / "m.safetensors").write_text("mine")
    (folder / "link").symlink_to("store")
    (folder / "results").mkdir()
    (folder / "results" / "bench.json").write_text("{}")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    result = call(*arguments, cwd=folder)
    assert result.returncode == 2
    assert "is in the folder that is read" in result.err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_outputs_may_be_written_beside_inputs(folder, call):
    write_store(folder / "store")
    for _ in range(2):
        (folder / "store" / "p.csv").unlink(missing_ok=True)
        assert call("predict", "m.safetensors", "store", "-o", "store/p.csv", cwd=folder).returncode == 0
    result = call("predict", "m.safetensors", "store", "-o", "store/p.csv", cwd=folder)
    assert "is in the folder that is read" in result.err


def test_a_failed_write_keeps_the_old_predictions(folder, call, monkeypatch):
    assert call("predict", "m.safetensors", "birds.npz", "-o", "p.csv", cwd=folder).returncode == 0
    before = (folder / "p.csv").read_text()
    assert before

    def fail(_, path, **__):
        Path(path).write_text("bird\n")
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(pd.DataFrame, "to_csv", fail)
    result = call("predict", "m.safetensors", "birds.npz", "--explain", "-o", "p.csv", cwd=folder)
    assert result.returncode != 0
    assert (folder / "p.csv").read_text() == before
    assert not list(folder.glob(".*.tmp*"))


def write_store(path):
    """Two shards of features."""
    data = read_features(path.parent / "birds.npz", ["bird", "place"])
    frame = data.space.frame(data.codes).assign(features=list(data.X))
    path.mkdir()
    frame[:50].to_parquet(path / "a.parquet")
    frame[50:].to_parquet(path / "b.parquet")


def test_a_tilde_is_the_home_folder(folder, call, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    rest = ("--prior=~/prior.csv", "-o", "prior.csv")
    result = call("predict", "m.safetensors", "birds.npz", *rest, cwd=folder)
    assert (result.returncode, result.err) == (
        2,
        "error: 'prior.csv' is the input: choose another path to write to\n",
    )
    assert call("audit", "~/birds.npz", "--attributes", "bird,place", cwd=folder).returncode == 0
    assert call("evaluate", "~/m.safetensors", "~/birds.npz", cwd=folder).returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("fit", "birds.npz", *FIT, "--prior", "prior.csv", "-o", "./prior.csv"),
        ("fit", "m.safetensors", *FIT, "-o", "m.safetensors"),
        ("predict", "m.safetensors", "birds.npz", "--prior", "prior.csv", "-o", "prior.csv"),
        ("predict", "m.safetensors", "prior.csv", "-o", "prior.csv"),
        ("report", "m.safetensors", "prior.html", "-o", "prior.html"),
        ("report", "m.safetensors", "--prior", "prior.html", "-o", "prior.html"),
        ("features", "shards", "--text", "note", *FIT, "-o", "shards", "--overwrite"),
        ("fit", "shards", "--text", "note", *FIT, "--cache", "shards", "-o", "n.safetensors"),
        ("bench", "shards", "-o", "shards"),
        ("train", "shards", *FIT, "-o", "shards"),
    ],
)
def test_no_input_is_overwritten(folder, call, arguments):
    skip_without_extra(arguments[0])
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    result = call(*arguments, cwd=folder)
    assert result.returncode == 2
    assert "is the input" in result.err or "is not an ending of model files" in result.err
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    assert not any((folder / "shards").iterdir())


@pytest.mark.parametrize("name", ["victim.csv", "VICTIM.CSV", "x.parquet", "x.npz", "x.json", "x.html", "x.png"])
def test_a_model_is_not_written_as_another_kind_of_file(folder, call, name):
    (folder / name).write_text("mine")
    result = call("fit", "birds.npz", *FIT, "-o", name, cwd=folder)
    stem, ending = name.split(".")[0], name.split(".")[1].lower()
    assert (result.returncode, result.err) == (
        2,
        f"error: --output is {name!r}, but .{ending} is not an ending of model files: pass -o {stem}.safetensors\n",
    )
    assert (folder / name).read_text() == "mine"


def test_names_without_a_known_ending_are_accepted(folder, call):
    for name in ("uniform", "model-1.2", "model.bin"):
        assert call("fit", "birds.npz", *FIT, "-o", name, cwd=folder).returncode == 0
    shutil.copy(folder / "uniform", folder / "hull")
    assert call("fit", "birds.npz", *FIT, "--prior", "hull", "-o", "hull", cwd=folder).returncode == 0
