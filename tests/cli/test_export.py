"""``compshift export``: the ONNX file predicts as the model does."""

import json
import sys
import time

import numpy as np
import pytest

import compshift
from compshift import CRMClassifier
from tests.estimators.made_data import make_data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    X, codes = make_data()
    birds, places = np.array(["landbird", "waterbird"]), np.array(["land", "sea", "sky"])
    clf = CRMClassifier().fit(X, birds[codes[:, 0]], attributes=places[codes[:, 1]])
    clf.save(folder / "m.safetensors")
    np.save(folder / "X.npy", X.astype(np.float32))
    return folder


def probabilities(folder, name):
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(folder / name), options)
    return session.run(["label", "probabilities"], {"X": np.load(folder / "X.npy")})


def test_the_file_predicts_what_the_model_does(folder, call):
    pytest.importorskip("onnx")
    result = call("export", "m.safetensors", "-o", "m.onnx", cwd=folder)
    assert result.returncode == 0, result.err
    assert result.out == (
        "inputs: X (N, 4), prior (6); prior is optional\n"
        "outputs: label (N), probabilities (N, 2)\n"
        "model written to m.onnx\n"
    )
    assert result.err == ""
    clf, X = compshift.load(folder / "m.safetensors"), np.load(folder / "X.npy").astype(np.float64)
    label, found = probabilities(folder, "m.onnx")
    np.testing.assert_allclose(found, clf.predict_proba(X), atol=1e-5)
    assert (label == clf.predict(X)).mean() > 0.99


def test_options(folder, call):
    pytest.importorskip("onnx")
    (folder / "prior.csv").write_text("y,a,prior\nlandbird,sea,0.5\nwaterbird,sky,0.5\n")
    options = ("--prior", "prior.csv", "--groups", "--fixed-prior", "--json")
    result = call("export", "m.safetensors", "-o", "p.onnx", *options, cwd=folder)
    assert result.returncode == 0, result.err
    content = json.loads(result.out)
    assert content["inputs"] == {"X": [None, 4]}
    assert content["outputs"] == {"label": [None], "probabilities": [None, 2], "group_probabilities": [None, 6]}
    assert content["bytes"] == (folder / "p.onnx").stat().st_size
    clf, X = compshift.load(folder / "m.safetensors"), np.load(folder / "X.npy").astype(np.float64)
    clf.set_prior({("landbird", "sea"): 0.5, ("waterbird", "sky"): 0.5})
    np.testing.assert_allclose(probabilities(folder, "p.onnx")[1], clf.predict_proba(X), atol=1e-5)
    result = call("export", "m.safetensors", "-o", "p.onnx", "--float64", cwd=folder)  # replaces it
    assert result.returncode == 0, result.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["absent.safetensors", "-o", "x.onnx"], "there is no model file 'absent.safetensors'"),
        (["m.safetensors", "-o", "x.bin"], "'x.bin' does not end in '.onnx'"),
        (["m.safetensors", "-o", "m.safetensors"], "'m.safetensors' does not end in '.onnx'"),
        (["m.safetensors", "-o", "nowhere/x.onnx"], "there is no folder 'nowhere' to write 'x.onnx' to"),
        (["X.npy", "-o", "x.onnx"], "'X.npy' cannot be read as a model"),
        (["m.safetensors", "-o", "x.onnx", "--prior", "even"], "prior 'even' is not known"),
    ],
)
def test_bad_input_is_one_sentence(folder, call, arguments, sentence):
    pytest.importorskip("onnx")
    result = call("export", *arguments, cwd=folder)
    assert result.returncode == 2
    assert result.err.startswith("error: ")
    assert sentence in result.err
    assert result.err.count("\n") == 1
    assert not (folder / "x.onnx").exists()


def test_without_onnx(folder, call, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    result = call("export", "m.safetensors", "-o", "x.onnx", cwd=folder)
    assert result.returncode == 2
    assert result.err == 'error: ONNX files need the package onnx: pip install "compshift[onnx]"\n'


def test_help_loads_nothing_heavy(folder, call):
    start = time.perf_counter()
    result = call("export", "--help", cwd=folder)
    assert result.returncode == 0
    assert "--fixed-prior" in result.out
    assert time.perf_counter() - start < 5
