"""``compshift fit --unlabelled``: a pool of unlabelled rows, and what other commands say about it."""

import json

import numpy as np
import pandas as pd
import pytest

from compshift import load
from compshift.crm.unlabelled import MAX_ROUNDS
from tests.crm.stores import write_store
from tests.estimators.made_data import make_pool

COLUMNS = [f"x{number}" for number in range(8)]
LABELS = ["--target", "bird", "--attributes", "place"]
NUMBERS = ["--columns", ",".join(COLUMNS)]
BIRDS, PLACES = np.array(["gull", "owl", "wren"]), np.array(["land", "sea", "town"])
SHORT = ["--alpha", "1e-2,1e-1", "--jobs", "1"]
"""Settings to choose from, fewer than those of --alpha auto."""


def table(X, codes):
    return pd.DataFrame(X, columns=COLUMNS).assign(bird=BIRDS[codes[:, 0]], place=PLACES[codes[:, 1]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Labelled rows of seven groups of nine, unlabelled rows of all groups, and labelled rows to test on."""
    folder = tmp_path_factory.mktemp("pool")
    X, codes, pool, pool_codes = make_pool(n_pool=600)
    table(X, codes).to_csv(folder / "birds.csv", index=False)
    np.savez(folder / "birds.npz", X=X, Z=codes, attribute_names=["bird", "place"])
    np.savez(folder / "pool.npz", X=pool[:300])
    unlabelled = table(pool[:300], pool_codes[:300])[COLUMNS]
    unlabelled.to_csv(folder / "pool.csv", index=False)
    unlabelled[COLUMNS[::-1]].to_parquet(folder / "pool.parquet")
    table(pool[300:], pool_codes[300:]).to_csv(folder / "test.csv", index=False)
    seen = (pool_codes[:, None] == codes).all(axis=2).any(axis=1)
    np.savez(folder / "seen.npz", X=pool[seen])
    np.savez(folder / "fewer.npz", X=pool[:, :5])
    np.savez(folder / "empty.npz", X=pool[:0])
    np.savez(folder / "nan.npz", X=np.where(np.arange(8) == 3, np.nan, pool))
    np.savez(folder / "labels.npz", Z=pool_codes)
    unlabelled.drop(columns=["x3", "x5"]).to_csv(folder / "fewer.csv", index=False)
    unlabelled.mask(unlabelled.index.to_series() == 3).to_csv(folder / "nan.csv", index=False)
    unlabelled[:0].to_csv(folder / "empty.csv", index=False)
    unlabelled.assign(x2="much").to_csv(folder / "text.csv", index=False)
    write_store(folder / "store", X, codes[:, 0], codes[:, 1])
    return folder


def fitted(call, folder, tmp_path, *arguments):
    result = call("fit", *arguments, *LABELS, "-o", str(tmp_path / "m"), cwd=folder)
    assert result.returncode == 0, result.err
    return result.out, load(tmp_path / "m")


def test_a_fixed_ridge_uses_the_pool(call, folder, tmp_path):
    out, clf = fitted(call, folder, tmp_path, "birds.csv", *NUMBERS, "--unlabelled", "pool.csv")
    assert f"300 unlabelled rows: the pool is used, as asked ({clf.n_rounds_} rounds of EM)\n" in out
    assert 0 < clf.n_rounds_ <= MAX_ROUNDS
    _, plain = fitted(call, folder, tmp_path, "birds.csv", *NUMBERS)
    assert plain.unlabelled_decision_ is None
    np.testing.assert_allclose(clf.without_unlabelled().coef_, plain.coef_)
    assert not np.allclose(clf.coef_, plain.coef_, atol=1e-3)


def test_files_of_every_kind_give_the_same_fit(call, folder, tmp_path):
    found = [
        fitted(call, folder, tmp_path, *source, "--unlabelled", pool)[1].coef_
        for source, pool in (
            (["birds.csv", *NUMBERS], "pool.csv"),
            (["birds.csv", *NUMBERS], "pool.parquet"),
            (["birds.csv", *NUMBERS], "pool.npz"),
            (["birds.npz"], "pool.npz"),
        )
    ]
    for coef in found[1:]:
        np.testing.assert_allclose(coef, found[0], rtol=1e-9)


def test_choosing_settings_decides_on_held_out_groups(call, folder, tmp_path):
    out, clf = fitted(call, folder, tmp_path, "birds.npz", *SHORT, "--unlabelled", "pool.npz")
    assert f"300 unlabelled rows: {clf.unlabelled_decision_.reason} ({clf.n_rounds_} rounds of EM)\n" in out
    assert "the pool is used: accuracy on 7 held-out groups changes by +" in out
    assert "estimated share of unseen groups among the unlabelled rows, by the fit without them: " in out
    means = [model.expected_group_accuracy_["accuracy"].mean() for model in (clf.without_unlabelled(), clf)]
    assert f"unseen groups: {means[0]:.2f} on average without these rows, {means[1]:.2f} with them\n" in out
    out, clf = fitted(call, folder, tmp_path, "birds.npz", *SHORT, "--unlabelled", "seen.npz")
    assert "unlabelled rows: the pool is not used: " in out
    assert "rounds of EM" not in out
    assert clf.n_rounds_ == 0


def test_the_pool_can_be_forced_or_decided_on(call, folder, tmp_path):
    always = ["--unlabelled", "seen.npz", "--use-unlabelled", "always"]
    out, clf = fitted(call, folder, tmp_path, "birds.npz", *SHORT, *always)
    assert "the pool is used, as asked" in out
    assert clf.n_rounds_ > 0
    auto = ["--unlabelled", "seen.npz", "--use-unlabelled", "auto"]
    out, clf = fitted(call, folder, tmp_path, "birds.npz", "--alpha", "0.02", *auto)
    assert "the pool is not used: " in out
    assert (clf.alpha_, clf.anchor_, clf.selected_bias_, clf.unseen_offset_) == (0.02, "zero", "extrapolated", 0.0)


def test_a_grid_without_groups_to_hold_out_names_the_option(call, tmp_path):
    X, codes, pool, _ = make_pool((2, 2), n=120, n_pool=100, missing=(0,))
    np.savez(tmp_path / "small.npz", X=X, Z=codes, attribute_names=["bird", "place"])
    np.savez(tmp_path / "pool.npz", X=pool)
    out, _ = fitted(call, tmp_path, tmp_path, "small.npz", *SHORT, "--unlabelled", "pool.npz")
    assert "no group can be held out to see whether it helps; --use-unlabelled always uses it\n" in out


def test_json_has_the_decision(call, folder, tmp_path):
    out, clf = fitted(call, folder, tmp_path, "birds.npz", *SHORT, "--unlabelled", "pool.npz", "--json")
    found = json.loads(out)["unlabelled"]
    decision = clf.unlabelled_decision_
    assert (found["rows"], found["rounds"]) == (300, clf.n_rounds_)
    assert found["decision"] == json.loads(json.dumps(decision._asdict()))
    assert [group["probability"] for group in found["groups"]] == clf.unlabelled_prior_["probability"].tolist()
    before, after = found["expected_accuracy_without"], json.loads(out)["expected_accuracy"]
    assert before[0]["accuracy"] < after[0]["accuracy"]
    out, _ = fitted(call, folder, tmp_path, "birds.npz", "--unlabelled", "pool.npz", "--json")
    found = json.loads(out)["unlabelled"]
    assert found["decision"]["gain"] is None
    assert found["expected_accuracy_without"] is None
    assert "unlabelled" not in json.loads(fitted(call, folder, tmp_path, "birds.npz", "--json")[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["birds.csv", *NUMBERS, "--unlabelled", "fewer.csv"], "'fewer.csv' lacks the columns 'x3', 'x5'"),
        (["birds.csv", *NUMBERS, "--unlabelled", "nan.csv"], "'nan.csv': the feature column 'x0' has a missing value"),
        (["birds.csv", *NUMBERS, "--unlabelled", "text.csv"], "'text.csv': the feature column 'x2' has 'much'"),
        (["birds.csv", *NUMBERS, "--unlabelled", "empty.csv"], "'empty.csv' has no rows"),
        (
            ["birds.csv", *NUMBERS, "--unlabelled", "fewer.npz"],
            "'fewer.npz' has 5 features but 'birds.csv' has 8: pass",
        ),
        (["birds.npz", "--unlabelled", "fewer.npz"], "'fewer.npz' has 5 features but 'birds.npz' has 8: pass"),
        (["birds.npz", "--unlabelled", "nan.npz"], "'nan.npz' has 600 NaN"),
        (["birds.npz", "--unlabelled", "empty.npz"], "'empty.npz' has no rows"),
        (["birds.npz", "--unlabelled", "labels.npz"], "'labels.npz' has no array 'X'"),
        (["birds.npz", "--unlabelled", "pool.csv"], "'pool.csv' is a table: pass features"),
        (
            ["birds.npz", "--unlabelled", "nowhere.npz"],
            "there is no file or folder 'nowhere.npz': check the path of --un",
        ),
        (["store", "--memory", "1G", "--unlabelled", "store"], "--unlabelled cannot be used with --memory, because"),
        (["birds.npz", "--cross-fit", "--unlabelled", "pool.npz"], "--unlabelled cannot be used with --cross-fit"),
        (["birds.npz", "--use-unlabelled", "always"], "--use-unlabelled is for the rows of --unlabelled"),
        (
            ["birds.npz", "--unlabelled", "pool.npz", "--use-unlabelled", "never"],
            "--use-unlabelled 'never' is not known: use one of 'auto', 'always'",
        ),
    ],
)
def test_bad_pools_are_one_sentence(call, folder, tmp_path, arguments, message):
    result = call("fit", *arguments, *LABELS, "-o", str(tmp_path / "m"), cwd=folder)
    assert result.returncode == 2
    assert message in result.err
    assert result.err.count("\n") == 1
    assert not (tmp_path / "m").exists()


def test_evaluate_compares_with_the_fit_without_the_pool(call, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")  # wide enough for all columns of the table
    _, clf = fitted(call, folder, tmp_path, "birds.csv", *NUMBERS, "--unlabelled", "pool.csv")
    model = str(tmp_path / "m")
    found = json.loads(call("evaluate", model, "test.csv", "--json", cwd=folder).out)
    test = pd.read_csv(folder / "test.csv")
    right = clf.without_unlabelled().predict(test[COLUMNS]) == test["bird"]
    plain = found["without_unlabelled"]
    assert plain["average"] == pytest.approx(right.mean())
    assert plain["average"] != found["average"]
    by_group = right.groupby([test["bird"], test["place"]]).mean()
    for group in plain["groups"]:
        assert group["accuracy"] == pytest.approx(by_group[group["bird"], group["place"]])
    out = call("evaluate", model, "test.csv", cwd=folder).out
    assert "without pool" in out
    worst = ", ".join(plain["worst_group"])
    assert (
        f"without the unlabelled rows of the fit: average accuracy {plain['average']:.3f}, balanced "
        f"{plain['balanced']:.3f}, worst group {plain['worst']:.3f}, ({worst})\n" in out
    )
    (gull,) = (line.split() for line in out.splitlines() if line.split()[:2] == ["gull", "sea"])
    assert gull[5] == f"{by_group['gull', 'sea']:.3f}"


def test_evaluate_compares_under_the_same_prior(call, folder, tmp_path):
    _, clf = fitted(call, folder, tmp_path, "birds.csv", *NUMBERS, "--unlabelled", "pool.csv")
    model = str(tmp_path / "m")
    found = json.loads(call("evaluate", model, "test.csv", "--prior", "train", "--json", cwd=folder).out)
    test = pd.read_csv(folder / "test.csv")
    plain = clf.without_unlabelled().set_prior("train")
    assert found["without_unlabelled"]["average"] == pytest.approx(
        (plain.predict(test[COLUMNS]) == test["bird"]).mean()
    )


@pytest.mark.parametrize("pool", [[], ["--unlabelled", "seen.npz", "--use-unlabelled", "auto"]])
def test_evaluate_compares_nothing_if_no_pool_was_used(call, folder, tmp_path, pool):
    fitted(call, folder, tmp_path, "birds.csv", *NUMBERS, *pool)
    assert "without_unlabelled" not in json.loads(
        call("evaluate", str(tmp_path / "m"), "test.csv", "--json", cwd=folder).out
    )
    out = call("evaluate", str(tmp_path / "m"), "test.csv", cwd=folder).out
    assert "pool" not in out
    assert "unlabelled" not in out


def report(call, folder, tmp_path, *rows):
    pytest.importorskip("altair")
    from tests.report.test_page import ReadPage

    (tmp_path / "m").rename(tmp_path / "m.safetensors")
    output = tmp_path / "m.html"
    result = call("report", str(tmp_path / "m.safetensors"), *rows, "-o", str(output), cwd=folder)
    assert result.returncode == 0, result.err
    page = ReadPage(output.read_text(encoding="utf-8"))
    specs = [island for island in map(json.loads, page.islands) if "$schema" in island]
    return page, [row for spec in specs for layer in spec.get("layer", [spec]) for row in layer_rows(layer, spec)]


def layer_rows(layer, spec):
    data = layer.get("data", spec.get("data", {}))
    return data.get("values") or spec.get("datasets", {}).get(data.get("name"), [])


def test_the_page_shows_what_the_pool_changed(call, folder, tmp_path):
    _, clf = fitted(call, folder, tmp_path, "birds.csv", *NUMBERS, *SHORT, "--unlabelled", "pool.csv")
    evaluated = json.loads(call("evaluate", str(tmp_path / "m"), "test.csv", "--json", cwd=folder).out)
    page, rows = report(call, folder, tmp_path, "test.csv")
    assert page.text("h2") == "CoverageAccuracyUnlabelled rowsTrustHow it was made"
    assert f"300 unlabelled rows: {clf.unlabelled_decision_.reason} ({clf.n_rounds_} rounds of EM)." in page.text("p")
    plain = evaluated["without_unlabelled"]
    assert f"from {plain['worst']:.1%} to {evaluated['worst']:.1%} on the worst group" in page.text("p")
    dots = {(row["group"], row["state"]): row for row in rows if "share" in row}
    for found, state in ((plain, "without unlabelled rows"), (evaluated, "with unlabelled rows")):
        for group in found["groups"]:
            if (group["bird"], group["place"]) in (("gull", "land"), ("owl", "sea")):
                dot = dots[f"({group['bird']}, {group['place']})", state]
                expected = [group[name] for name in ("accuracy", "lower", "upper")]
                assert [dot[name] for name in ("share", "lower", "upper")] == pytest.approx(expected, abs=1e-4)
            else:
                assert (f"({group['bird']}, {group['place']})", state) not in dots
    for row in clf.unlabelled_prior_.itertuples():
        dot = dots[f"({row.bird}, {row.place})", "seen" if row.seen else "unseen"]
        assert (dot["share"], dot["lower"]) == pytest.approx((row.probability, row.lower), abs=1e-4)
    for state, values in (("unseen", clf.unlabelled_decision_.held_out), ("seen", clf.unlabelled_decision_.seen)):
        line = [row["accuracy"] for row in rows if "round" in row and row["state"] == state]
        assert line == pytest.approx(values, abs=1e-4)


def test_a_page_without_rows_shows_expected_accuracies(call, folder, tmp_path):
    _, clf = fitted(call, folder, tmp_path, "birds.csv", *NUMBERS, *SHORT, "--unlabelled", "pool.csv")
    page, rows = report(call, folder, tmp_path)
    assert page.text("h2") == "CoverageUnlabelled rowsTrustHow it was made"
    dots = {(row["group"], row["state"]): row["share"] for row in rows if "share" in row}
    before = clf.without_unlabelled().expected_group_accuracy_["accuracy"]
    assert dots["(gull, land)", "without unlabelled rows"] == pytest.approx(before[0], abs=1e-4)
    after = clf.expected_group_accuracy_["accuracy"]
    assert dots["(owl, sea)", "with unlabelled rows"] == pytest.approx(after[1], abs=1e-4)


def test_a_page_of_a_pool_that_was_not_tried_or_not_used(call, folder, tmp_path):
    fitted(call, folder, tmp_path, "birds.csv", *NUMBERS, "--unlabelled", "pool.csv")
    page, rows = report(call, folder, tmp_path)
    assert "Whether they help was not tested on held-out groups" in page.text("p")
    assert not [row for row in rows if "round" in row]
    fitted(call, folder, tmp_path, "birds.csv", *NUMBERS, *SHORT, "--unlabelled", "seen.npz")
    page, rows = report(call, folder, tmp_path, "test.csv")
    assert "unlabelled rows: the pool is not used: " in page.text("p")
    assert {row["state"] for row in rows if "share" in row} == {"seen", "unseen"}


def test_a_page_without_a_pool_says_nothing_about_it(call, folder, tmp_path):
    fitted(call, folder, tmp_path, "birds.csv", *NUMBERS)
    page, _ = report(call, folder, tmp_path, "test.csv")
    assert page.text("h2") == "CoverageAccuracyTrustHow it was made"
    assert "nlabelled" not in page.text("p")


def test_a_model_does_not_replace_its_pool(call, folder):
    result = call("fit", "birds.npz", *LABELS, "--unlabelled", "pool.npz", "-o", "pool.npz", cwd=folder)
    assert (result.returncode, result.err) == (2, "error: 'pool.npz' is the input: choose another path to write to\n")
