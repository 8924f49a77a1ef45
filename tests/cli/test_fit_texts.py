"""``compshift fit --text COLUMN --backbone tfidf``: the words of texts as features, without PyTorch."""

import json
import sys

import numpy as np
import pandas as pd
import pytest

import compshift as cs

LABELS = ["--target", "mood", "--attributes", "place"]
WORDS = ["--text", "remark", "--backbone", "tfidf"]


@pytest.fixture
def folder(tmp_path):
    """A table of remarks, in which (good, city) is only in the test rows."""
    rng = np.random.default_rng(0)
    mood, place = rng.integers(0, 2, 400), rng.integers(0, 3, 400)
    hints = [
        [["awful", "poor"], ["great", "fine"]][one] + [["sea"], ["hill"], ["city"]][other]
        for one, other in zip(mood, place, strict=True)
    ]
    remarks = [" ".join([*rng.choice(hint, 3), *rng.choice([f"word{n}" for n in range(200)], 8)]) for hint in hints]
    table = pd.DataFrame(
        {"remark": remarks, "mood": np.array(["bad", "good"])[mood], "place": np.array(["sea", "hill", "city"])[place]}
    )
    unseen = (mood == 1) & (place == 2)
    table["split"] = np.where(unseen | (rng.random(400) < 0.3), "test", "train")
    table.to_csv(tmp_path / "remarks.csv", index=False)
    table[["remark"]][:50].to_csv(tmp_path / "new.csv", index=False)
    return tmp_path


class NoTorch:
    """Make PyTorch impossible to import."""

    def find_spec(self, name, *_):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")


@pytest.fixture
def without_torch(monkeypatch):
    hidden = ("torch", "compshift.nn", "compshift.features.embedder", "compshift.features.extract")
    for name in [name for name in sys.modules if name.startswith(hidden)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [NoTorch(), *sys.meta_path])


@pytest.mark.usefixtures("without_torch")
def test_words_are_fitted_predicted_and_evaluated_without_torch(call, folder):
    result = call("fit", "remarks.csv", *WORDS, *LABELS, "-o", "m.safetensors", cwd=folder)
    assert result.returncode == 0, result.err
    assert "5 seen, 1 extrapolated, 0 outside the hull" in result.out
    assert not (folder / "m.features").exists()
    report = json.loads(call("evaluate", "m.safetensors", "remarks.csv", "--json", cwd=folder).out)
    assert report["split"] == "test"
    assert report["average"] > 0.8
    assert call("predict", "m.safetensors", "new.csv", "-o", "p.csv", "--explain", cwd=folder).returncode == 0
    loaded = cs.load(folder / "m.safetensors")
    texts = pd.read_csv(folder / "new.csv")["remark"]
    np.testing.assert_allclose(pd.read_csv(folder / "p.csv")["P(mood=bad)"], loaded.predict_proba(texts)[:, 0])
    train = pd.read_csv(folder / "remarks.csv").query("split == 'train'")["remark"]
    known = {word for text in train for word in text.split()}
    assert set(loaded[0].get_feature_names_out()) <= known


def test_words_are_fitted_with_a_pool_and_chosen_settings(call, folder):
    result = call(
        "fit", "remarks.csv", *WORDS, *LABELS, "--alpha", "1e-2,1e-1", "--unlabelled", "new.csv", "-o", "m", cwd=folder
    )
    assert result.returncode == 0, result.err
    assert "50 unlabelled rows: the pool is" in result.out
    assert "chosen on held-out groups" in result.out


@pytest.mark.usefixtures("without_torch")
def test_networks_need_an_extra_that_is_named(call, folder):
    result = call("fit", "remarks.csv", "--text", "remark", *LABELS, "-o", "m", cwd=folder)
    assert result.returncode == 2
    assert result.err == (
        "error: embeddings of images and texts need the package torch: pip install 'compshift[weights]', or use "
        "--backbone tfidf, which needs no network\n"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--text", "remark,place", "--backbone", "tfidf"], "--backbone tfidf takes one column of texts, but --text"),
        ([*WORDS, "--weights", "new.csv"], "--weights is for networks, not for --backbone tfidf"),
        ([*WORDS, "--cache", "c"], "--cache is for networks, not for --backbone tfidf: leave it out"),
        ([*WORDS, "--energies", "boosted"], "--backbone tfidf is for --energies linear, not for --energies boosted"),
        ([*WORDS, "--anchor", "gaussian"], "--anchor gaussian needs the covariance of all features"),
        (["--text", "comment", "--backbone", "tfidf"], "column 'comment' is not known: use one of 'remark'"),
    ],
)
def test_options_that_do_not_fit_raise(call, folder, options, message):
    if "boosted" in options:
        pytest.importorskip("lightgbm")
    result = call("fit", "remarks.csv", *options, *LABELS, "-o", "m", cwd=folder)
    assert result.returncode == 2
    assert result.err.startswith(f"error: {message}")
    assert result.err.count("\n") == 1
    assert not (folder / "m").exists()


def test_texts_without_a_word_in_common_raise(call, folder):
    pd.read_csv(folder / "remarks.csv").assign(remark=[f"w{n}" for n in range(400)]).to_csv(folder / "ids.csv")
    result = call("fit", "ids.csv", *WORDS, *LABELS, "-o", "m", cwd=folder)
    assert "error: no word of two letters or more occurs in two of the training texts" in result.err


def test_other_commands_say_that_words_are_not_for_them(call, folder):
    assert call("fit", "remarks.csv", *WORDS, *LABELS, "-o", "m", cwd=folder).returncode == 0
    compared = call("evaluate", "m", "remarks.csv", "--compare", "remarks.csv", cwd=folder)
    assert compared.err.startswith("error: --compare needs dense features, but the model takes the words of texts")
    lacking = call("predict", "m", "p.csv", "-o", "q.csv", cwd=folder)
    assert lacking.returncode == 2
    pytest.importorskip("torch")
    result = call("features", "remarks.csv", *WORDS, *LABELS, "-o", "f", cwd=folder)
    assert result.err.startswith("error: 'tfidf' is not a network: it is for `compshift fit --text`")
