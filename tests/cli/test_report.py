"""``compshift report``: a page from a benchmark, a model or a table, or one sentence."""

import json
import os
import re
import shutil

import numpy as np
import pandas as pd
import pytest

from compshift import CRMClassifier, CRMClassifierCV, GroupSpace
from compshift.data.dataset import GroupedDataset
from compshift.data.feature_files import write_features
from tests.report.records import Made, write_results
from tests.report.test_page import ReadPage

pytest.importorskip("altair")

SPACE = GroupSpace(("bird", "place"), (("gull", "owl", "wren"), ("land", "sea", "town")))
UNSEEN = 5


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A table, features with a split, a model fitted to them and one chosen on held-out groups."""
    folder = tmp_path_factory.mktemp("report")
    rng = np.random.default_rng(0)
    group = np.tile(np.arange(9), 80)
    codes = SPACE.codes(group)
    X = rng.normal(size=(6, 5))[codes + SPACE.offsets].sum(axis=1) * 1.5 + rng.normal(size=(720, 5))
    split = np.where(np.arange(720) < 450, 0, 2)
    kept = (split == 2) | (group != UNSEEN)
    write_features(folder / "birds.npz", GroupedDataset(X[kept], SPACE, codes[kept], split=split[kept]))
    train = kept & (split == 0)
    bird, place = SPACE.decode(codes[train]).T
    pd.DataFrame({"bird": bird, "place": place}).to_csv(folder / "birds.csv", index=False)
    labels = pd.Series(bird, name="bird"), pd.DataFrame({"place": place})
    for name, clf in (("plain", CRMClassifier()), ("chosen", CRMClassifierCV(alphas=[1e-2, 1e-1]))):
        clf.fit(X[train], labels[0], attributes=labels[1]).save(folder / f"{name}.safetensors")
    return folder


def page_of(path):
    return ReadPage(path.read_text(encoding="utf-8"))


def test_a_table(files, call, tmp_path):
    output = tmp_path / "table.html"
    result = call(
        "report", "birds.csv", "--attributes", "bird,place", "--title", "My <birds>", "-o", str(output), cwd=files
    )
    assert result.returncode == 0, result.err
    assert re.fullmatch(rf"report written to {re.escape(str(output))} \(\d+ kB\)\n", result.out)
    page = page_of(output)
    assert page.text("h1") == "My <birds>"
    assert "Of the 9 combinations of bird × place, one is missing from training; it can be extrapolated" in page.text(
        "p"
    )
    assert "--title 'My <birds>'" in page.text("code")
    data = json.loads(page.islands[0])
    assert sum(data["counts"]) == 400
    assert data["seen"] == [code for code in SPACE.codes(np.arange(9)).tolist() if code != [1, 2]]


def test_a_model_without_labelled_rows_has_no_accuracies(files, call, tmp_path):
    result = call("report", "plain.safetensors", "-o", str(tmp_path / "m.html"), cwd=files)
    assert result.returncode == 0, result.err
    assert "this page has no accuracies" in result.err
    page = page_of(tmp_path / "m.html")
    assert page.text("h2") == "CoverageTrustHow it was made"
    assert "this page has no accuracies" in page.text("p")


def test_a_model_with_labelled_rows(files, call, tmp_path):
    """Accuracies and expectations of the page are those of ``compshift evaluate``."""
    result = call("report", "chosen.safetensors", "birds.npz", "-o", str(tmp_path / "m.html"), cwd=files)
    assert result.returncode == 0, result.err
    evaluated = json.loads(call("evaluate", "chosen.safetensors", "birds.npz", "--json", cwd=files).out)
    page = page_of(tmp_path / "m.html")
    assert page.text("h2") == "CoverageAccuracyTrustHow it was made"
    text = page.text("p")
    assert (
        f"the average accuracy is {evaluated['average']:.1%}, and {evaluated['worst']:.1%} on the worst group" in text
    )
    assert "on the one tested group absent from training it is" in text
    assert "Probabilities of bird on the 30 rows of unseen groups are" in text
    assert "as they should at the optimum" in text
    assert re.search(r"On \d+ rows of seen groups: (The additive|A saturated|No )", text)
    cells = {row["first"] + row["second"]: row for row in chart_rows(page) if "second" in row}
    assert len(cells) == 9
    for group in evaluated["groups"]:
        cell = cells[group["bird"] + group["place"]]
        for name in ("accuracy", "lower", "upper"):
            assert cell[name] == pytest.approx(group[name], abs=1e-4)
        assert cell.get("unseen", False) == (group["in_training"] == "extrapolated")
    assert sum(row.get("worst", False) for row in cells.values()) >= 1
    (expected,) = [row for row in chart_rows(page) if "expected_lower" in row]
    assert expected["group"] == "(owl, town)"


def test_the_page_names_the_current_prior(files, call, tmp_path):
    for options, prior in (((), "uniform"), (("--prior", "train"), "train")):
        result = call("report", "plain.safetensors", *options, "-o", str(tmp_path / "m.html"), cwd=files)
        assert result.returncode == 0, result.err
        assert f"prior{prior}" in facts(page_of(tmp_path / "m.html"))


def test_weights_are_not_called_rows(files, call, tmp_path):
    (files / "weights.csv").write_text("bird,place,n\ngull,land,0.25\nowl,sea,0.001\ngull,sea,1.5\n")
    asked = ("report", "weights.csv", "--attributes", "bird,place", "--count", "n", "-o", str(tmp_path / "w.html"))
    assert call(*asked, cwd=files).returncode == 0
    text = page_of(tmp_path / "w.html").text("p")
    assert "A total weight of 1.751 in 3 of 4 groups" in text
    assert "Fewer than" not in text


def test_additivity_is_tested_on_demand(files, call, tmp_path):
    asked = ("report", "plain.safetensors", "birds.npz", "-o", str(tmp_path / "m.html"))
    assert call(*asked, "--no-diagnose", cwd=files).returncode == 0
    assert "rows of seen groups: " not in page_of(tmp_path / "m.html").text("p")


def test_unfinished_benchmarks(call, tmp_path):
    made = Made(methods=("erm", "lc", "crm"), draws=2)
    folder = write_results(tmp_path / "whole", made).path
    result = call("report", "whole", "-o", "whole.html", cwd=tmp_path)
    assert (result.returncode, result.err) == (0, "")
    whole = page_of(tmp_path / "whole.html")
    assert "Not finished" not in whole.text("h2")
    assert re.search(r"On the worst group, (ERM|LC|CRM) has the highest accuracy", whole.text("p"))
    shutil.copytree(folder, tmp_path / "half")
    for record in (tmp_path / "half" / "jobs").iterdir():
        config = json.loads(record.read_text())["config"]
        if config["method"] == "lc" and config["scenario"] == "(duck, sea)":
            record.unlink()
    result = call("report", "half", "-o", "half.html", cwd=tmp_path)
    assert result.returncode == 0
    assert result.err == (
        "warning: birds is not finished: draws or seeds are missing for 1 of 6 pairs of scenario and method.\n"
    )
    half = page_of(tmp_path / "half.html")
    assert "Methods are not compared" in half.text("p")
    assert "has the highest accuracy" not in half.text("p")
    assert "birds(duck, sea)LC0 of 2" in half.text("td")
    assert half.tags.count("figure") == whole.tags.count("figure")  # the remaining results are shown
    for record in (tmp_path / "half" / "jobs").iterdir():
        record.unlink()
    result = call("report", "half", "-o", "none.html", cwd=tmp_path)
    assert result.returncode == 2
    assert "'half' has no finished results to show" in result.err
    assert not (tmp_path / "none.html").exists()


BAD = [
    (("empty",), "'empty' holds no results"),
    (("nothing.csv",), "there is no file or folder 'nothing.csv'"),
    (("birds.csv",), "a table needs --attributes"),
    (("birds.csv", "--attributes", "bird,plaze"), "did you mean 'place'"),
    (
        ("birds.csv", "--attributes", "bird,place", "-o", "x.pdf"),
        "--output is 'x.pdf': pass a file name that ends in .html",
    ),
    (("birds.csv", "--attributes", "bird,place", "-o", "no/x.html"), "there is no folder"),
    (("birds.csv", "birds.npz", "--attributes", "bird"), "INPUT is for models, but 'birds.csv' is a table"),
    (("birds.csv", "--attributes", "bird,place", "--max-values", "2"), "has 3 different values"),
    (("plain.safetensors", "birds.csv"), "pass features"),
    (("cut.safetensors",), "cannot be read as a model"),
    (("header.csv", "--attributes", "bird,place"), "has no rows"),
    (("zero.csv", "--attributes", "bird", "--count", "n"), "contains only zeros"),
]


@pytest.mark.parametrize(("arguments", "sentence"), BAD)
def test_bad_input_gets_a_sentence_and_no_page(files, call, arguments, sentence):
    (files / "empty").mkdir(exist_ok=True)
    (files / "header.csv").write_text("bird,place\n")
    (files / "zero.csv").write_text("bird,n\ngull,0\nowl,0\n")
    (files / "cut.safetensors").write_bytes((files / "plain.safetensors").read_bytes()[:300])
    result = call("report", *(arguments if "-o" in arguments else (*arguments, "-o", "x.html")), cwd=files)
    assert result.returncode == 2
    assert result.err.startswith("error: ")
    assert len(result.err.splitlines()) == 1
    assert sentence in result.err
    assert not list(files.glob("x.*"))


TABLE_OPTIONS = [("--attributes", "bird"), ("--count", "n"), ("--max-values", "9")]
MODEL_OPTIONS = [("--prior", "uniform"), ("--diagnose",), ("--root", "."), ("--skip-broken",), ("--backbone", "b")]
UNUSED = {
    ("birds.csv", "--attributes", "bird,place"): [(option, "for models") for option in MODEL_OPTIONS],
    ("bench",): [
        *((option, "for tables") for option in TABLE_OPTIONS),
        *((option, "for models") for option in MODEL_OPTIONS),
        (("--split", "test"), "for models and tables"),
    ],
    ("plain.safetensors",): [
        *((option, "for tables") for option in TABLE_OPTIONS),
        *((option, "INPUT is missing") for option in (*MODEL_OPTIONS[1:], ("--split", "test"))),
    ],
    ("plain.safetensors", "birds.npz"): [
        *((option, "for tables") for option in TABLE_OPTIONS),
        *((option, "but 'birds.npz' is a feature file") for option in (("--root", "."), ("--skip-broken",))),
        (("--backbone", "b"), "for models of images and texts"),
    ],
}


@pytest.mark.parametrize(
    ("source", "option", "purpose"),
    [(source, option, purpose) for source, options in UNUSED.items() for option, purpose in options],
)
def test_options_that_have_no_effect_are_rejected(files, call, source, option, purpose):
    if not (files / "bench").exists():
        write_results(files / "bench", Made())
    result = call("report", *source, *option, "-o", "unused.html", cwd=files)
    assert (result.returncode, len(result.err.splitlines())) == (2, 1)
    assert option[0] in result.err
    assert purpose in result.err
    assert "leave it out" in result.err
    assert not (files / "unused.html").exists()


def test_an_old_page_stays_if_a_new_one_fails(files, call, tmp_path):
    (tmp_path / "old.html").write_text("old")
    assert call("report", "empty", "-o", str(tmp_path / "old.html"), cwd=files).returncode == 2
    assert (tmp_path / "old.html").read_text() == "old"


def test_methods_with_equal_accuracy_are_not_ranked(call, tmp_path):
    def even(record):
        alike = dict.fromkeys(record["right"]["test"], record["rows"]["test"])
        return {**record, "right": {**record["right"], "test": alike}}

    write_results(tmp_path / "even", Made(methods=("erm", "lc")), change=even)
    assert call("report", "even", "-o", "even.html", cwd=tmp_path).returncode == 0
    text = page_of(tmp_path / "even.html").text("p")
    assert "On the worst group, all methods have an accuracy of 100.0%." in text
    assert "the highest" not in text


def facts(page):
    """Names and values of the last section."""
    return page.text("dt") and "".join(data for tag, data in page.texts if tag in ("dt", "dd"))


def chart_rows(page):
    """Rows of the data of all charts."""
    specs = [json.loads(island) for island in page.islands]
    return [row for spec in specs for rows in spec.get("datasets", {}).values() for row in rows]


def test_a_file_name_that_is_not_text(call, tmp_path):
    name = os.fsdecode(b"caf\xe9.csv")
    (tmp_path / name).write_text("a,b\nx,1\ny,2\n")
    result = call("report", name, "--attributes", "a,b", "-o", "page.html", cwd=tmp_path)
    assert result.returncode == 2
    assert "is not valid UTF-8, so Arrow cannot open it: rename it" in result.err
    options = ["--attributes", "a,b", "--title", name, "-o", os.fsdecode(b"page\xe9.html")]
    (tmp_path / name).rename(tmp_path / "b.csv")
    assert call("report", "b.csv", *options, cwd=tmp_path).returncode == 0
    assert "caf?" in (tmp_path / options[-1]).read_text(encoding="utf-8")


def test_small_pages_have_a_size():
    from compshift.cli.report import format_bytes

    assert [format_bytes(count) for count in (3, 34_000, 1_260_000)] == ["1 kB", "34 kB", "1.3 MB"]
