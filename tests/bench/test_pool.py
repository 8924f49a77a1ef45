"""CRM with a pool of unlabelled test rows beside the methods without it."""

import json

import numpy as np
import pytest

import compshift as cs
from compshift._errors import InputError
from compshift.bench.jobs import Work, run_job
from compshift.bench.plan import make_plan
from compshift.bench.pool import pool_share, set_apart
from compshift.bench.results import stored_results
from compshift.bench.selection import chosen_records
from compshift.bench.sources import file_source
from compshift.bench.store import Store
from tests.bench.small import birds, run

DROPPED = "0,1;2,3;3,0"


@pytest.fixture(scope="module")
def shifted(tmp_path_factory):
    """A feature file of 4 × 4 groups with interacting means, on which a pool clearly helps without ``DROPPED``."""
    rng = np.random.default_rng(0)
    codes = np.repeat([(y, a) for y in range(4) for a in range(4)], 60, axis=0)
    means = rng.normal(size=(2, 4, 12))
    X = rng.normal(size=(len(codes), 12)) + 1.2 * (means[0, codes[:, 0]] + means[1, codes[:, 1]])
    X += 0.9 * rng.normal(size=(4, 4, 12))[codes[:, 0], codes[:, 1]]
    path = tmp_path_factory.mktemp("data") / "shifted.npz"
    np.savez(path, X=X, Z=codes, split=np.arange(len(codes)) % 3, attribute_names=["object", "style"])
    return file_source(str(path), None, None, None, 0)


def records_of(source, unlabelled, methods=("crm",), seed=0, draw=0, drops=(DROPPED,)):
    units = make_plan([source], methods, drops, draws=1, seeds=2, steps=20, unlabelled=unlabelled).units
    found = {unit.method.name: run_job(Work(unit.job(draw, seed), threads=1)) for unit in units}
    assert all(record["status"] == "done" for record in found.values()), found
    return found


def test_all_test_rows_are_the_pool_and_are_scored(shifted):
    found = records_of(shifted, "test")
    assert list(found) == ["crm", "crm-unlabelled"]
    pool = found["crm-unlabelled"]["detail"]["pool"]
    data = shifted.load()
    train, test = data.part("train"), data.part("test")
    assert (pool["rows"], pool["used"]) == (len(test), True), pool
    dropped = [[0, 1], [2, 3], [3, 0]]
    kept = [code not in dropped for code in train.codes.tolist()]
    alpha = found["crm"]["config"]["common"]["alpha"]
    clf = cs.CRMClassifier(alpha=alpha, tol=1e-4)
    clf.fit(train.X[kept], train.codes[kept, 0], attributes=train.codes[kept, 1], unlabelled=test.X)
    right = (clf.predict(test.X) == test.codes[:, 0]).astype(float)
    by_group = np.bincount(data.space.index(test.codes), weights=right, minlength=16)
    assert found["crm-unlabelled"]["right"]["test"]["extrapolated-uniform"] == by_group.tolist()
    plain = found["crm"]["right"]["test"]["extrapolated-uniform"]
    assert sum(by_group) > sum(plain)
    assert sum(found["crm"]["rows"]["test"]) == len(test)


def test_a_share_of_the_test_rows_is_not_scored_by_any_method(shifted):
    pytest.importorskip("torch")  # for mixup, which is trained
    n_test = len(shifted.load().part("test"))
    found = records_of(shifted, 0.4, ("erm", "crm", "mixup"))
    assert set(found) == {"erm", "crm", "crm-unlabelled", "mixup"}
    rows = [record["rows"]["test"] for record in found.values()]
    assert all(count == rows[0] for count in rows)
    assert sum(rows[0]) == n_test - round(0.4 * n_test)
    assert found["crm-unlabelled"]["detail"]["pool"]["rows"] == round(0.4 * n_test)
    assert all(record["config"]["unlabelled"] == 0.4 for record in found.values())
    assert found["erm"]["rows"]["val"] == records_of(shifted, None, ("erm",))["erm"]["rows"]["val"]
    other_seed = records_of(shifted, 0.4, ("crm",), seed=1)
    assert other_seed["crm"]["rows"]["test"] != rows[0]


def test_the_pool_is_drawn_whatever_the_labels_are(tmp_path):
    same, scrambled = birds(tmp_path / "a.npz"), birds(tmp_path / "b.npz", scramble_test=True)
    parts = [set_apart(source.load().part("test"), 0.5, 7) for source in (same, scrambled)]
    np.testing.assert_array_equal(parts[0][1], parts[1][1])
    scored, pool = parts[0]
    everything = same.load().part("test").X
    assert sorted(map(tuple, np.concatenate([scored.X, pool]))) == sorted(map(tuple, everything))
    assert len(set_apart(scored, 1e-9, 0)[1]) == 1
    assert len(set_apart(scored, 1 - 1e-9, 0)[0]) == 1


def test_test_rows_reach_no_fit_by_their_labels(tmp_path):
    """With other test labels every fit of CRM with a pool is the same, so its decision is too."""
    found = []
    for number, scramble in enumerate((False, True)):
        folder = tmp_path / str(number)
        folder.mkdir()
        source = birds(folder / "birds.npz", scramble_test=scramble)
        found.append(records_of(source, "test", drops=("water,sea",))["crm-unlabelled"])
    assert found[0]["detail"] == found[1]["detail"]
    assert found[0]["right"]["val"] == found[1]["right"]["val"]


def test_where_no_group_can_be_held_out_the_row_is_plain_crm(tmp_path):
    rng = np.random.default_rng(0)
    codes = np.repeat([(0, 0), (0, 1), (1, 0), (1, 1)], 60, axis=0)
    X = rng.normal(size=(len(codes), 4)) + codes @ rng.normal(size=(2, 4))
    np.savez(tmp_path / "two.npz", X=X, Z=codes, split=np.arange(len(codes)) % 3, attribute_names=["bird", "place"])
    source = file_source(str(tmp_path / "two.npz"), None, None, None, 0)
    found = records_of(source, "test", drops=("1,0",))
    assert not found["crm-unlabelled"]["detail"]["pool"]["used"]
    assert "no group can be held out" in found["crm-unlabelled"]["detail"]["pool"]["reason"]
    assert found["crm-unlabelled"]["right"] == found["crm"]["right"]


def test_keys_change_only_where_numbers_do(shifted):
    def keys(unlabelled, methods=("erm", "crm")):
        units = make_plan([shifted], methods, [DROPPED], draws=1, unlabelled=unlabelled).units
        return {unit.method.name: unit.job(0, 0).key for unit in units}

    plain, whole, half, other = keys(None), keys("test"), keys(0.5), keys("0.25")
    assert {name: whole[name] for name in plain} == plain  # the same rows are scored
    assert len({*whole.values(), *half.values(), *other.values()}) == 9


def test_tables_have_the_pool_beside_plain_crm_and_say_what_it_is(shifted, tmp_path):
    store, outcome, _ = run(tmp_path / "share", [shifted], ("erm", "crm"), [DROPPED], draws=1, unlabelled=0.5)
    assert outcome.failures == []
    results = stored_results(store)
    assert [name for _, name in results.main] == ["ERM", "CRM", "CRM + unlabelled"]
    assert {score.seeds for scores in results.main.values() for score in scores.values()} == {2}
    notes = " ".join(results.notes)
    assert "50% of the test rows, drawn anew for each seed, is set apart as an unlabelled pool" in notes
    assert "every method is scored on the other test rows only" in notes
    assert "which are not scored" in notes
    assert "it did in every fit." in notes
    assert "not finished" not in notes
    (second,) = (record["key"] for record in store.records() if _is_second_seed_of(record, "crm"))
    store.record_path(second).unlink()
    assert "draws or seeds are missing for 1 of 3 pairs" in " ".join(stored_results(store).notes)

    store, _, _ = run(tmp_path / "whole", [shifted], ("crm",), [DROPPED], draws=1, unlabelled="test")
    results = stored_results(store)
    notes = " ".join(results.notes)
    assert "on which it is scored too (transductive)" in notes
    assert "set apart" not in notes
    assert {score.seeds for scores in results.main.values() for score in scores.values()} == {1}
    plain, _, _ = run(tmp_path / "plain", [shifted], ("crm",), [DROPPED], draws=1)
    assert not any("pool" in note or "unlabelled" in note for note in stored_results(plain).notes)


def _is_second_seed_of(record, method):
    return (record["config"]["method"], record["config"]["seed"]) == (method, 1)


def test_all_test_rows_add_a_row_to_a_folder_without_a_pool(shifted, tmp_path):
    run(tmp_path, [shifted], ("crm",), [DROPPED], draws=1)
    store, outcome, jobs = run(tmp_path, [shifted], ("crm",), [DROPPED], draws=1, unlabelled="test")
    assert (outcome.known, [job.method.name for job in jobs]) == (1, ["crm-unlabelled"])
    assert chosen_records(store).n_foreign == 0
    with pytest.raises(InputError, match="scored on all test rows: choose another folder"):
        run(tmp_path, [shifted], ("crm",), [DROPPED], draws=1, unlabelled=0.5)


def test_folders_of_different_shares_are_not_mixed(shifted, tmp_path):
    run(tmp_path, [shifted], ("crm",), [DROPPED], draws=1, seeds=1, unlabelled=0.5)
    with pytest.raises(InputError, match="scored on the test rows outside a pool of 50%"):
        run(tmp_path, [shifted], ("crm",), [DROPPED], draws=1, seeds=1, unlabelled="test")
    about = json.loads((tmp_path / "bench.json").read_text())

    def write_share(share):
        about["data"]["shifted"]["unlabelled"] = share
        (tmp_path / "bench.json").write_text(json.dumps(about))

    write_share(0.25)
    assert chosen_records(Store.open(tmp_path)).n_foreign == 2
    for share in ("half", 2):
        write_share(share)
        with pytest.raises(InputError, match="'unlabelled' is missing or invalid"):
            Store.open(tmp_path)


def test_a_record_without_its_pool_is_damaged(shifted, tmp_path):
    store, _, jobs = run(tmp_path, [shifted], ("crm",), [DROPPED], draws=1, unlabelled="test")
    (key,) = (job.key for job in jobs if job.method.name == "crm-unlabelled")
    record = store.read(key)
    del record["detail"]["pool"]
    store.record_path(key).write_text(json.dumps(record))
    with pytest.raises(InputError, match="'pool' is missing or invalid"):
        chosen_records(store)


@pytest.mark.parametrize("value", ["tests", "0", "1", "-0.5", "nan", "1.5"])
def test_other_pools_are_refused(value):
    with pytest.raises(InputError, match=r"^unlabelled is"):
        pool_share(value)


def test_pools_that_nothing_uses_are_refused(shifted, tmp_path):
    with pytest.raises(InputError, match=r"used by the method 'crm' alone, but the methods are erm, lc"):
        make_plan([shifted], ["erm", "lc"], [DROPPED], unlabelled="test")
    with pytest.raises(InputError, match="name 'crm', and pass the pool as unlabelled='test'"):
        make_plan([shifted], ["crm-unlabelled"], [DROPPED])
    data = np.load(shifted.path)
    split = np.zeros(len(data["Z"]), dtype=int)
    split[[5, 7]] = 2, 1
    np.savez(tmp_path / "one.npz", **{**data, "split": split})
    with pytest.raises(InputError, match="fewer than two test rows to divide"):
        make_plan([file_source(str(tmp_path / "one.npz"), None, None, None, 0)], ["crm"], ["none"], unlabelled=0.5)
