"""``compshift compare`` on tables and feature files, with and without splits, and its errors."""

import json

import numpy as np
import pandas as pd
import pytest

from compshift import compare
from compshift.estimators import compare as module
from compshift.estimators.comparison import HEADINGS, Comparison
from tests.estimators.made_data import make_data

FEATURES = ["one", "two", "three", "four"]
OPTIONS = ("--target", "bird", "--attributes", "place", "--columns", ",".join(FEATURES))


@pytest.fixture
def birds(tmp_path):
    """A table of birds and places with four numbers, and its rows."""
    X, codes = make_data((2, 3), n=300, missing=(0,))
    frame = pd.DataFrame(X, columns=FEATURES)
    frame["bird"], frame["place"] = np.array(["duck", "gull"])[codes[:, 0]], codes[:, 1]
    frame.to_csv(tmp_path / "birds.csv", index=False)
    return tmp_path, frame


def without_seconds(methods):
    return pd.DataFrame(methods).set_index("method").drop(columns="seconds")


def test_a_table_gives_what_the_library_gives(call, birds):
    folder, frame = birds
    result = call("compare", "birds.csv", *OPTIONS, "--methods", "sla,logistic", "--json", cwd=folder)
    assert (result.returncode, result.err) == (0, f"features: 4 numbers ({', '.join(FEATURES)})\n")
    content = json.loads(result.out)
    found = compare(frame[FEATURES], frame["bird"], attributes=frame["place"], methods=["logistic", "sla"])
    expected = found.frame.drop(columns="seconds")
    pd.testing.assert_frame_equal(without_seconds(content["methods"]), expected, check_names=False)
    assert content["sentences"] == list(found.sentences)


def test_text_output_and_known_attributes(call, birds):
    folder, _ = birds
    result = call("compare", "birds.csv", *OPTIONS, "--methods", "crm", "--known", "--splits", "2", cwd=folder)
    assert (result.returncode, result.err) == (0, "")
    _, *lines = result.out.splitlines()
    assert lines[0].split()[:3] == ["average", "groups", "worst"]
    assert lines[1].startswith("CRM ")
    assert lines[2].startswith("CRM with known attributes ")
    assert "The uniform prior itself " in result.out


def test_splits_of_the_data_are_used(call, birds):
    folder, frame = birds
    split = np.array(["train", "val", "test"])[np.arange(300) % 3]
    frame.assign(split=split).to_csv(folder / "split.csv", index=False)
    result = call("compare", "split.csv", *OPTIONS, "--methods", "logistic", "--json", cwd=folder)
    train, test = frame[split == "train"], frame[split == "test"]
    given = {"X_test": test[FEATURES], "y_test": test["bird"], "attributes_test": test["place"]}
    found = compare(train[FEATURES], train["bird"], attributes=train["place"], methods=["logistic"], **given)
    expected = found.frame.drop(columns="seconds")
    methods = json.loads(result.out)["methods"]
    pd.testing.assert_frame_equal(without_seconds(methods), expected, check_names=False)


def raw(frame):
    """Return a table with a number with gaps, a category, remarks and an id."""
    rng = np.random.default_rng(0)
    bird = (frame["bird"] == "gull").to_numpy()
    words = np.where(bird[:, None], ["it", "dives", "for", "fish", "often"], ["it", "sleeps", "in", "reeds", "often"])
    return frame[["bird", "place"]].assign(
        size=frame["one"].where(rng.random(len(frame)) > 0.2),
        color=np.array(["brown", "grey"])[(bird ^ (rng.random(len(frame)) < 0.1)).astype(int)],
        remarks=[" ".join(rng.permutation(row)) + f" {number:03d}" for number, row in enumerate(words)],
        ring=[f"R-{number}" for number in range(len(frame))],
    )


def record(monkeypatch):
    """Return a list that will have the training rows, the test rows and the settings of a comparison, without fits."""
    given = []

    def compared(_, train, test, setup, *__):
        given.extend((train, test, setup))
        return Comparison(pd.DataFrame(columns=list(HEADINGS)), ())

    monkeypatch.setattr(module, "_compared", compared)
    return given


def test_raw_tables(call, birds):
    folder, frame = birds
    raw(frame).to_csv(folder / "raw.csv", index=False)
    options = (*OPTIONS[:4], "--methods", "logistic", "--splits", "2", "--json")
    result = call("compare", "raw.csv", *options, cwd=folder)
    assert result.returncode == 0, result.err
    features, left_out = result.err.splitlines()
    assert features == "features: 1 number (size), 1 category (color), 1 text (remarks)"
    assert left_out.startswith("left out: 'ring' (text that differs in most rows)")
    assert json.loads(result.out)["methods"][0]["average"] == 1  # remarks tell the birds apart
    result = call("compare", "raw.csv", *options, "--keep", "remarks,ring", cwd=folder)
    assert result.err == "features: 1 number (size), 1 category (color)\n"
    assert 0.8 < json.loads(result.out)["methods"][0]["average"] < 0.99


def test_categories_are_not_read_as_numbers(call, birds, monkeypatch):
    folder, frame = birds
    raw(frame).to_csv(folder / "raw.csv", index=False)
    given = record(monkeypatch)
    assert call("compare", "raw.csv", *OPTIONS[:4], "--keep", "remarks", cwd=folder).returncode == 0
    (train, _, setup) = given
    assert setup.categories == (0, 2)
    assert np.isnan(train.features[:, 0]).any()
    assert 0.65 < len(train.features) / len(frame) < 0.75


def test_feature_files(call, birds):
    folder, frame = birds
    codes = np.stack([frame["bird"] == "gull", frame["place"]], axis=1).astype(int)
    np.savez(folder / "birds.npz", X=frame[FEATURES].to_numpy(), Z=codes, attribute_names=["bird", "place"])
    options = ("--target", "bird", "--attributes", "place", "--methods", "logistic", "--json")
    result = call("compare", "birds.npz", *options, cwd=folder)
    assert (result.returncode, result.err) == (0, "")
    assert [row["method"] for row in json.loads(result.out)["methods"]] == ["logistic"]


class TestEvaluate:
    """``compshift evaluate --compare``."""

    @pytest.fixture
    def model(self, call, birds):
        """A folder with a table with splits and a model of its training rows."""
        folder, frame = birds
        frame.assign(split=np.where(np.arange(300) % 3, "train", "test")).to_csv(folder / "split.csv", index=False)
        assert call("fit", "split.csv", *OPTIONS, "-o", "m.safetensors", cwd=folder).returncode == 0
        return folder

    def test_methods_are_fitted_to_the_training_rows_and_scored_on_those_of_the_model(self, call, model):
        options = ("--methods", "logistic", "--json")
        expected = json.loads(call("compare", "split.csv", *OPTIONS, *options, cwd=model).out)
        plain = json.loads(call("evaluate", "m.safetensors", "split.csv", "--json", cwd=model).out)
        result = call("evaluate", "m.safetensors", "split.csv", "--compare", "split.csv", *options, cwd=model)
        assert result.err == ""
        content = json.loads(result.out)
        found = content.pop("comparison")
        assert content == plain
        pd.testing.assert_frame_equal(without_seconds(found["methods"]), without_seconds(expected["methods"]))

    def test_text_output(self, call, model):
        options = ("--compare", "split.csv", "--methods", "logistic")
        result = call("evaluate", "m.safetensors", "split.csv", *options, cwd=model)
        heading, _, row = result.out.partition("\n\nmethods fitted to the rows of --compare, ")[2].splitlines()[:3]
        assert (heading, row[:20]) == ("scored on the same rows, in percent", "logistic regression ")

    def test_a_model_without_attributes(self, call, model):
        call("fit", "split.csv", *OPTIONS[:2], *OPTIONS[4:], "-o", "m.safetensors", cwd=model)
        result = call("evaluate", "m.safetensors", "split.csv", "--compare", "split.csv", cwd=model)
        assert result.err.startswith("error: --compare is for models with attributes beside the target, which define")

    def test_categories_of_boosted_models(self, call, birds, monkeypatch):
        pytest.importorskip("lightgbm")
        folder, frame = birds
        table = raw(frame).assign(split=np.where(np.arange(300) % 3, "train", "test"))
        table.to_csv(folder / "raw.csv", index=False)
        boosted = ("--energies", "boosted", "--max-iter", "3", "--jobs", "1", "--keep", "remarks")
        call("fit", "raw.csv", *OPTIONS[:4], *boosted, "-o", "m.safetensors", cwd=folder)
        given = record(monkeypatch)
        options = ("--compare", "raw.csv", "--known", "place")
        assert call("evaluate", "m.safetensors", "raw.csv", *options, cwd=folder).returncode == 0
        (train, test, setup) = given
        assert (setup.categories, setup.known) == ((0, 2), True)
        assert (len(train.codes), len(test.codes)) == (200, 100)

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            (("split.csv", "--methods", "logistic"), "--methods is for --compare: leave it out"),
            (("birds.csv", "--compare", "birds.csv"), "--compare would score methods on rows that they are fitted to"),
            (("split.csv", "--split", "train", "--compare", "split.csv"), "--compare would score methods on rows that"),
            (("split.csv", "--split", "all", "--compare", "split.csv"), "--compare would score methods on rows that"),
            (("split.csv", "--compare", "split.csv", "--methods", "gbdt"), "method 'gbdt' is not known"),
            (("split.csv", "--compare", "none.csv"), "'none.csv'"),
        ],
    )
    def test_errors(self, call, model, options, sentence):
        result = call("evaluate", "m.safetensors", *options, cwd=model)
        assert (result.returncode, result.err.count("\n")) == (2, 1)
        assert sentence in result.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("birds.csv", *OPTIONS, "--methods", "logistc"), "method 'logistc' is not known: use one of 'logistic', "),
        (("birds.npz", *OPTIONS[:4], "--keep", "one"), "--keep is for tables whose columns are features by default"),
        (("birds.csv", *OPTIONS, "--keep", "one"), "--keep and --columns cannot be used together"),
        (("birds.csv", *OPTIONS[:4], "--keep", ",".join(FEATURES)), "'birds.csv' has no columns besides"),
        (("birds.csv", *OPTIONS[:2], "--attributes", "", *OPTIONS[4:]), "--attributes is empty: name"),
        (("birds.csv", "--target", "bird,place", "--attributes", "three", "--columns", "one"), "looks continuous"),
        (("none.csv", *OPTIONS), "there is no file 'none.csv'"),
        (("none.csv", *OPTIONS[:4]), "there is no file 'none.csv'"),
        (("birds.csv", *OPTIONS, "--splits", "1"), "--splits is '1' but should be"),
    ],
)
def test_errors(call, birds, arguments, sentence):
    folder, frame = birds
    np.savez(folder / "birds.npz", X=frame[FEATURES].to_numpy())
    result = call("compare", *arguments, cwd=folder)
    assert result.returncode == 2
    assert sentence in result.err
    assert len(result.err.splitlines()) == 1
