"""``compshift compare`` on tables and feature files, with and without splits, and its errors."""

import json

import numpy as np
import pandas as pd
import pytest

from compshift import compare
from tests.estimators.made_data import make_data

FEATURES = ["one", "two", "three", "four"]
OPTIONS = ("--target", "bird", "--attributes", "place", "--features", ",".join(FEATURES))


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
    assert (result.returncode, result.err) == (0, "")
    content = json.loads(result.out)
    found = compare(frame[FEATURES], frame["bird"], attributes=frame["place"], methods=["logistic", "sla"])
    expected = found.frame.drop(columns="seconds")
    pd.testing.assert_frame_equal(without_seconds(content["methods"]), expected, check_names=False)
    assert content["sentences"] == list(found.sentences)


def test_text_output_and_known_attributes(call, birds):
    folder, _ = birds
    result = call("compare", "birds.csv", *OPTIONS, "--methods", "crm", "--known", "--splits", "2", cwd=folder)
    assert (result.returncode, result.err) == (0, "")
    lines = result.out.splitlines()
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


def test_feature_files(call, birds):
    folder, frame = birds
    codes = np.stack([frame["bird"] == "gull", frame["place"]], axis=1).astype(int)
    np.savez(folder / "birds.npz", X=frame[FEATURES].to_numpy(), Z=codes, attribute_names=["bird", "place"])
    options = ("--target", "bird", "--attributes", "place", "--methods", "logistic", "--json")
    result = call("compare", "birds.npz", *options, cwd=folder)
    assert (result.returncode, result.err) == (0, "")
    assert [row["method"] for row in json.loads(result.out)["methods"]] == ["logistic"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("birds.csv", *OPTIONS, "--methods", "logistc"), "method 'logistc' is not known: use one of 'logistic', "),
        (("birds.csv", *OPTIONS[:4]), "no option names the table's samples"),
        (("birds.csv", *OPTIONS[:2], "--attributes", "", *OPTIONS[4:]), "--attributes is empty: name"),
        (("birds.csv", "--target", "bird,place", "--attributes", "three", "--features", "one"), "looks continuous"),
        (("none.csv", *OPTIONS), "there is no file 'none.csv'"),
        (("birds.csv", *OPTIONS, "--splits", "1"), "--splits is '1' but should be"),
    ],
)
def test_errors(call, birds, arguments, sentence):
    folder, _ = birds
    result = call("compare", *arguments, cwd=folder)
    assert result.returncode == 2
    assert sentence in result.err
    assert len(result.err.splitlines()) == 1
