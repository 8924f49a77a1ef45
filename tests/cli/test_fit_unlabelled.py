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
NUMBERS = ["--features", ",".join(COLUMNS)]
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
    assert "estimated share of unseen groups among the unlabelled rows: " in out
    assert "expected accuracy on unseen groups without these rows: 0." in out
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


def test_a_model_does_not_replace_its_pool(call, folder):
    result = call("fit", "birds.npz", *LABELS, "--unlabelled", "pool.npz", "-o", "pool.npz", cwd=folder)
    assert (result.returncode, result.err) == (2, "error: 'pool.npz' is the input: choose another path to write to\n")
