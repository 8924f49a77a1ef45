"""Files and folders that compshift 0.1.0 wrote are read as before; ``tests/fixtures/write.py`` tells how they came."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import compshift as cs
from tests.fixtures import write
from tests.golden.internals import command

OLD = Path(__file__).parent / "fixtures" / "v0_1"
EXPECTED = json.loads((OLD / "expected.json").read_text())


def close(found, expected):
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-5, atol=1e-5)


def contents(folder):
    """Bytes of every file that is not a lock."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "lock" not in path.name}


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A copy of the old files, which is the current folder."""
    shutil.copytree(OLD, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")
    return tmp_path / "old"


def test_no_file_names_a_path_of_the_machine_it_was_made_on():
    for path, content in contents(OLD).items():
        for start in (b"/home/", b"/root", b"/tmp", b"/work", b"/Users/"):
            assert start not in content, path


def test_a_feature_file(old):
    data = cs.data.read_features(old / "birds.npz", ["bird", "place"])
    frame = pd.read_csv(old / "birds.csv")
    kept = (data.codes != [1, 1]).any(axis=1)
    close(data.X[kept], frame[write.COLUMNS])
    assert data.space.values == (("land", "water"), ("forest", "sea", "sand"))
    assert [data.space.values[0][code] for code in data.codes[kept, 0]] == frame["bird"].tolist()
    assert [data.space.values[1][code] for code in data.codes[kept, 1]] == frame["place"].tolist()
    assert data.split.tolist() == [row % 3 for row in range(len(data.X))]


@pytest.mark.parametrize("name", ["crm", "crm_cv", "table"])
def test_a_fitted_model(old, name):
    clf = cs.load(old / f"{name}.safetensors")
    assert type(clf) is cs.CRMClassifier
    rows = pd.read_csv(old / "birds.csv")[write.COLUMNS] if name == "table" else write.birds().X
    close(clf.predict_proba(rows), EXPECTED[name]["predict_proba"])
    close(clf.bias_, EXPECTED[name]["bias"])
    assert clf.classes_.tolist() == ["land", "water"]
    clf.save(old / "again.safetensors")
    close(cs.load(old / "again.safetensors").predict_proba(rows), EXPECTED[name]["predict_proba"])


def test_the_parameters_of_a_fitted_model(old):
    clf = cs.load(old / "crm.safetensors")
    assert (clf.alpha, clf.bias, clf.prior) == (0.02, "shrunk", "hull")
    expected = cs.load(old / "crm_cv.safetensors").expected_group_accuracy_
    close(expected[["accuracy", "lower", "upper"]], EXPECTED["expected_group_accuracy"])


def test_a_model_of_a_table_predicts_from_a_table(old):
    inputs = cs.load(old / "table.safetensors").inputs_
    assert (inputs["kind"], inputs["columns"]) == ("features", write.COLUMNS)
    command("predict", "table.safetensors", "birds.csv", "-o", "again.csv", cwd=old)
    found, expected = pd.read_csv(old / "again.csv"), pd.read_csv(old / "predictions.csv")
    pd.testing.assert_frame_equal(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["run", "run_erm"])
def test_a_finished_run(old, name):
    pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    close(cs.load(old / name).predict_proba(write.birds().X), EXPECTED[name]["predict_proba"])
    before = contents(old / name)
    again = command("train", "--config", f"{name}/config.toml", "--device", "cpu", "-o", name, cwd=old)
    assert "this run was finished before" in again
    assert contents(old / name) == before


def test_a_stopped_run_goes_on(old):
    pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    logged = (old / "stopped" / "metrics.jsonl").read_text()
    assert len(logged.splitlines()) == 1
    clf = cs.training.train(write.birds(), "crm", "mlp", write.settings(), folder=old / "stopped", device="cpu")
    close(clf.predict_proba(write.birds().X), EXPECTED["stopped"]["predict_proba"])
    assert (old / "stopped" / "metrics.jsonl").read_text().startswith(logged)


def test_the_state_of_a_head(old):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    for state in (load_file(old / "head.safetensors"), torch.load(old / "head.pt", weights_only=True)):
        head = write.head()
        head.load_state_dict(state)
        with torch.no_grad():
            close(head.log_prob(write.head_inputs()), EXPECTED["head"]["log_prob"])
        close(head.bias, EXPECTED["head"]["bias"])


def test_a_folder_of_features(old):
    data = cs.data.read_features(old / "features", ["bird", "place"])
    close(data.X, EXPECTED["photos"]["features"])
    assert data.codes.tolist() == EXPECTED["photos"]["codes"]
    clf = cs.CRMClassifier().fit(cs.data.FeatureStore(old / "features"), "bird", attributes=["place"])
    close(clf.predict_proba(data.X), EXPECTED["photos"]["predict_proba"])
    saved = cs.load(old / "photos.safetensors")
    assert saved.inputs_["backbone"] == "vit"
    close(saved.predict_proba(data.X), EXPECTED["photos"]["predict_proba"])


def test_features_are_not_computed_again(old):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    before = contents(old / "features")
    done = json.loads(command(*write.FEATURES, "--json", cwd=old))
    assert (done["shards"], done["shards_reused"]) == (2, 2)
    assert contents(old / "features") == before


def table_rows(markdown):
    """Lines of the tables; the notes around them may be reworded."""
    return [line for line in markdown.splitlines() if line.startswith("|")]


def test_a_benchmark(old):
    before = contents(old / "bench")
    assert table_rows(command("tables", "bench", cwd=old)) == table_rows((old / "tables.md").read_text())
    outcome = json.loads(command(*write.BENCH, "--json", cwd=old))
    assert (outcome["new"], outcome["known"], outcome["failed"]) == (0, 4, 0)
    for found, expected in zip(outcome["results"], EXPECTED["bench"]["results"], strict=True):
        assert found == {**expected, "mean": pytest.approx(expected["mean"])}
    after = contents(old / "bench")
    jobs = [path for path in before if path.parent.name == "jobs"]
    assert len(jobs) == 4
    assert all(after[path] == before[path] for path in jobs)
