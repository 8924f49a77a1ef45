"""``compshift monitor``: exit codes, table, JSON, page, tables from files and standard input, and bad input."""

import io
import json
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from compshift import CRMClassifier
from tests.estimators.test_monitor import SEEN, rows, with_new

FEATURES = ["f_one", "f_two", "f_three", "f_four"]
BIRDS, PLACES = np.array(["duck", "gull"]), np.array(["lake", "sea", "wood"])


def table(share, **options):
    X, codes = rows(share, **options)
    frame = pd.DataFrame(X, columns=FEATURES)
    return frame.assign(bird=BIRDS[codes[:, 0]], place=PLACES[codes[:, 1]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with and one without out-of-fold energies, rows of use with a new group, and rows without."""
    path = tmp_path_factory.mktemp("monitor")
    train = table(SEEN, n=1500, seed=9)
    for name, clf in (("m", CRMClassifier(1e-2, cross_fit=True)), ("plain", CRMClassifier(1e-2))):
        clf.fit(train[FEATURES], train["bird"], attributes=train[["place"]]).save(path / f"{name}.safetensors")
    table(with_new(0.03))[FEATURES].to_csv(path / "new.csv", index=False)
    table(SEEN)[FEATURES].to_csv(path / "same.csv", index=False)
    return path


def test_a_new_group_is_shown_and_exits_with_3(call, folder):
    result = call("monitor", "m.safetensors", "new.csv", cwd=folder)
    assert (result.returncode, result.err) == (3, "")
    assert "(duck, lake)   NEW" in result.out
    assert "1000 rows of use: ALARM\na combination occurs that training lacked: (duck, lake)" in result.out


def test_nothing_new_exits_with_0(call, folder):
    result = call("monitor", "m.safetensors", "same.csv", cwd=folder)
    assert (result.returncode, result.err) == (0, "")
    assert "1000 rows of use: nothing new\nno sign of combinations that training lacked" in result.out


def test_a_model_without_out_of_fold_energies_exits_with_4_and_says_why(call, folder):
    result = call("monitor", "plain.safetensors", "new.csv", cwd=folder)
    assert result.returncode == 4
    assert "not tested, because the model has no out-of-fold energies" in result.out


def test_json_is_written_and_the_same_every_time(call, folder):
    arguments = ("monitor", "m.safetensors", "new.csv", "-o", "r.json", "--json")
    result = call(*arguments, cwd=folder)
    assert (result.returncode, result.err) == (3, "report written to r.json\n")
    printed = json.loads(result.out)
    assert printed == json.loads((folder / "r.json").read_text())
    assert printed["new_combinations"]["groups"] == [{"bird": "duck", "place": "lake"}]
    first = (folder / "r.json").read_bytes()
    call(*arguments, cwd=folder)
    assert (folder / "r.json").read_bytes() == first


@pytest.mark.slow
def test_a_page_is_written(call, folder):
    pytest.importorskip("altair")
    result = call("monitor", "m.safetensors", "new.csv", "-o", "r.html", "-o", "r.json", cwd=folder)
    assert result.returncode == 3
    assert result.out.endswith("report written to r.html\nreport written to r.json\n")
    page = (folder / "r.html").read_text()
    assert "A combination occurs that training lacked: (duck, lake)" in page
    assert "Combinations in use" in page


def test_rows_come_from_standard_input(call, folder, monkeypatch):
    content = (folder / "new.csv").read_bytes()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
    result = call("monitor", "m.safetensors", "-", "--json", cwd=folder)
    assert (result.returncode, json.loads(result.out)["alarm"]) == (3, True)


def test_a_lower_level_is_stricter(call, folder):
    result = call("monitor", "m.safetensors", "new.csv", "--level", "1e-9", cwd=folder)
    assert result.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("absent.safetensors", "new.csv"), "there is no model file 'absent.safetensors'"),
        (("m.safetensors", "absent.csv"), "absent.csv"),
        (("m.safetensors", "new.csv", "-o", "r.txt"), "--output is 'r.txt': pass a file name that ends in .json or"),
        (("m.safetensors", "new.csv", "-o", "nowhere/r.json"), "there is no folder 'nowhere'"),
        (("m.safetensors", "new.csv", "-o", "r.json", "-o", "r.json"), "--output names the same file twice"),
        (("m.safetensors", "new.csv", "--level", "0"), "--level is 0"),
        (("m.safetensors", "new.csv", "--confidence", "2"), "--confidence is 2"),
        (("new.csv", "m.safetensors"), "not a model"),
    ],
)
def test_bad_input_is_one_sentence_and_exits_with_2(call, folder, arguments, message):
    result = call("monitor", *arguments, cwd=folder)
    assert (result.returncode, result.out) == (2, "")
    assert message in result.err
    assert result.err.count("\n") == 1
