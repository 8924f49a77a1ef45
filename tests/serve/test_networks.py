"""Served models whose features come from a network: texts, images in base64, and runs of ``compshift train``."""

import base64

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("torch")
pytest.importorskip("accelerate")

import compshift as cs
from compshift import InputError
from compshift.data.dataset import ImageFiles, Texts
from compshift.features.recipe import Recipe
from compshift.serve.metrics import DriftMonitor
from compshift.serve.model import ServedModel
from compshift.training import train
from compshift.training.load import LoadedModel, load_model_parts
from tests.features.test_text_columns import remarks
from tests.nn import models
from tests.serve.service import served
from tests.training.small_runs import QUICK, gaussians

N = 24
CODES = np.stack([np.arange(N) % 2, np.arange(N) % 3 % 2], axis=1)
WORDS = np.array(["cat", "dog", "bird", "sits", "runs", "sings"])


def saved(recipe, samples, path):
    """Fit a model to the features of samples, and save it with its recipe; return its classifier and the features."""
    (found,) = recipe.embedder(num_workers=0).embed(samples, [np.arange(N)])
    clf = cs.CRMClassifier(alpha=0.1).fit(found.features, CODES[:, 0], attributes=CODES[:, 1])
    clf.save(path, inputs=recipe.to_dict())
    return clf, found.features.astype(np.float64)


def test_texts(tmp_path):
    pytest.importorskip("transformers")
    models.bert(tmp_path / "bert")
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(WORDS, 1 + row % 5)) for row in range(N)]
    recipe = Recipe("text", ("caption",), backbone=str(tmp_path / "bert"))
    clf, X = saved(recipe, Texts(np.array(lines, dtype=object)), tmp_path / "m")
    model = served(tmp_path / "m")
    assert model.example() == {"rows": [{"caption": "a short text"}]}
    answer = model.predict(model.read({"rows": [{"caption": line} for line in lines]}, N))
    np.testing.assert_allclose(answer["predictions"]["y"]["probabilities"], clf.predict_proba(X), atol=1e-5)
    for value, sentence in ((None, "'caption' is null in row 0: pass a text"), (3, "'caption' is 3 in row 0")):
        with pytest.raises(InputError, match=sentence):
            model.read({"rows": [{"caption": value}]}, N)
    elsewhere = LoadedModel(tmp_path / "away" / "m", clf, None, {**recipe.to_dict(), "backbone": "./bert"})
    with pytest.raises(InputError, match="computed by the backbone in the folder 'bert'"):
        ServedModel(elsewhere)
    moved = ServedModel(elsewhere, str(tmp_path / "bert"))
    assert moved.predict(moved.read({"rows": [{"caption": lines[0]}]}, 1))


def test_tables_with_texts(tmp_path):
    pytest.importorskip("transformers")
    models.bert(tmp_path / "bert")
    frame = pd.DataFrame({"caption": remarks(CODES[:, 0]), "size": np.arange(N) * 1.0})
    frame.loc[3, "caption"] = None
    pipe = cs.table_classifier("linear", text=str(tmp_path / "bert"), alphas=[0.1])
    cs.save(pipe.fit(frame, CODES[:, 0], classifier__attributes=CODES[:, 1]), tmp_path / "m")
    model = served(tmp_path / "m")
    assert model.has_network
    assert model.example() == {"rows": [{"caption": "a short text", "size": 11.5}]}
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    answer = model.predict(model.read({"rows": rows}, N))
    np.testing.assert_allclose(answer["predictions"]["y"]["probabilities"], pipe.predict_proba(frame), atol=1e-5)
    (tmp_path / "bert").rename(tmp_path / "moved")
    with pytest.raises(InputError, match="computed by the backbone in the folder 'bert'"):
        served(tmp_path / "m")
    assert ServedModel(load_model_parts(tmp_path / "m"), str(tmp_path / "moved")).has_network


def test_images_in_base64(tmp_path):
    pytest.importorskip("transformers")
    models.resnet(tmp_path / "resnet")
    names = np.array(models.photographs(tmp_path / "photos", N), dtype=object)
    recipe = Recipe("images", ("photo",), backbone=str(tmp_path / "resnet"))
    clf, X = saved(recipe, ImageFiles(tmp_path / "photos", names), tmp_path / "m")
    model = served(tmp_path / "m")
    assert model.predict(model.read(model.example(), 1))
    content = [base64.b64encode((tmp_path / "photos" / name).read_bytes()).decode() for name in names[:3]]
    answer = model.predict(model.read({"rows": [{"photo": text} for text in content]}, 3))
    np.testing.assert_allclose(answer["predictions"]["y"]["probabilities"], clf.predict_proba(X[:3]), atol=1e-5)
    path = str(tmp_path / "photos" / names[0])
    cases = {path: "'photo' is not base64 in row 0", "QUJD": "the image 'photo of row 0' cannot", "é": "is not base64"}
    for text, sentence in cases.items():
        with pytest.raises(InputError, match=sentence):
            model.read({"rows": [{"photo": text}]}, 1)


@pytest.mark.parametrize("method", ["crm", "erm"])
def test_runs(tmp_path, method):
    data = gaussians()
    clf = train(data, method, "linear", QUICK, folder=tmp_path / "run")
    model = ServedModel(load_model_parts(tmp_path / "run"))
    query = model.read({"rows": data.samples[:9].tolist()}, 9)
    answer = model.predict(query)["predictions"]["bird"]
    np.testing.assert_allclose(answer["probabilities"], clf.predict_proba(data.samples[:9]), rtol=1e-6)
    assert model.predict(model.read(model.example(), 1))
    if method == "crm":
        assert set(model.explain(query)["explanations"][0]["group"]) == {"bird", "place"}
        assert DriftMonitor.of(model) is not None
        return
    assert DriftMonitor.of(model) is None
    for body in ({"attributes": [{"place": "sea"}]}, {"prior": "hull"}):
        with pytest.raises(InputError, match="is for models of groups, but this one predicts only classes"):
            model.read({"rows": data.samples[:1].tolist(), **body}, 1)
    for answer in (model.explain, model.predict_set):
        with pytest.raises(InputError, match="need a model of groups, but this one predicts only classes"):
            answer(query)
