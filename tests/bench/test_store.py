import json
import os
import re
import subprocess
import sys

import pytest

from compshift import InputError
from compshift.bench.protocol import named_protocol
from compshift.bench.store import Store, write_view
from tests.bench.small import birds, run

ABOUT = {"birds": {"digest": "d", "protocol": {"steps": 5, "mode": "features"}}}
PLAN = {"birds": [[[[0, 1]], "erm", 2, 1]]}


def record(key="k", status="done", **more):
    config = {"data": "birds", "method": "erm", "scenario": "s", "draw": 0, "seed": 0, **more}
    return {"key": key, "status": status, "config": config, "error": "why"}


@pytest.fixture
def store(tmp_path):
    return Store.create(tmp_path / "out", ABOUT, {"erm": ""}, PLAN)


def test_a_finished_job_is_never_replaced(store):
    store.write(record(status="failed"))
    assert [found["key"] for found in store.failures()] == ["k"]
    assert not store.has("k")
    store.write(record())
    assert list(store.failures()) == []
    store.write({**record(), "again": True})
    store.write(record(status="failed"))
    assert store.read("k") == record()
    assert list(store.records()) == [record()]
    assert list(store.failures()) == []


def test_a_job_is_claimed_by_one_runner(store):
    first = store.claim("k")
    assert first is not None
    assert store.claim("k") is None
    assert store.claim("other") is not None
    store.release("k", first)
    second = store.claim("k")
    assert second is not None
    store.write(record())
    store.release("k", second)
    assert not (store.path / "locks" / "k").exists()


def test_the_lock_of_a_killed_process_is_released(store):
    script = (
        "import sys; from pathlib import Path; from compshift.bench.store import Store\n"
        "lock = Store(Path(sys.argv[1])).claim('k'); print('claimed', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, store.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "claimed\n"
        assert store.claim("k") is None
        holder.kill()
        holder.wait()
    assert store.claim("k") is not None


def test_half_written_files_are_ignored_or_raise(store):
    (store.path / "jobs" / ".k.1234abcd.tmp.json").write_text('{"key"')
    assert list(store.records()) == []
    (store.path / "jobs" / "k.json").write_text('{"key"')
    with pytest.raises(InputError, match="remove it, and run the same benchmark again"):
        list(store.records())


def test_a_record_under_the_name_of_another_job_raises(store):
    store.write(record())
    os.rename(store.record_path(record()["key"]), store.record_path("other"))
    with pytest.raises(InputError, match=r"damaged \(it is the record of the job 'k'\): remove it"):
        list(store.records())


def test_a_failed_write_leaves_no_file(store, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        store.write(record())
    assert list((store.path / "jobs").iterdir()) == []


def test_results_under_two_protocols_are_not_mixed(store):
    other = {"birds": {"digest": "d", "protocol": {"steps": 6, "mode": "features"}}}
    Store.create(store.path, other, {"erm": ""}, PLAN)  # allowed, because there are no results yet
    store.write(record())
    with pytest.raises(InputError, match="has results of birds with steps 6, not 5"):
        Store.create(store.path, ABOUT, {"erm": ""}, PLAN)
    with pytest.raises(InputError, match="has results of birds with other rows, splits, targets or attributes"):
        Store.create(store.path, {"birds": {**other["birds"], "digest": "e"}}, {"erm": ""}, PLAN)
    with pytest.raises(InputError, match="another version of the method 'erm'"):
        Store.create(store.path, other, {"erm": "new"}, PLAN)
    cats = {"cats": ABOUT["birds"]}
    Store.create(store.path, cats, {"crm": ""}, {"cats": PLAN["birds"]})
    about = store.read_about()
    assert set(about["data"]) == {"birds", "cats"}
    assert set(about["methods"]) == {"erm", "crm"}


@pytest.mark.parametrize(
    ("before", "now", "sentence"),
    [
        (
            ("compshift", {}),
            ("paper", {}),
            "by the protocol 'compshift', not 'paper': choose another folder, or pass protocol='compshift'",
        ),
        (("authors", {}), ("compshift", {"clip": 1}), "by the protocol 'authors', not 'compshift'"),
        (("compshift", {}), ("compshift", {"clip": 1}), "with the protocol's own clip, not 1.0: choose another folder"),
        (("compshift", {"clip": 1}), ("compshift", {}), "with clip 1.0, not the protocol's own"),
        (
            ("paper", {}),
            ("paper", {"momentum": 0.5, "batch_size": "int 2^U(1, 2)"}),
            "batch_size int 2^U(5, 7), not int",
        ),
        (("paper", {}), ("paper", {"mixup.alpha": 3}), "with mixup.alpha 10^U(-1, 1), not 3.0: choose another folder"),
    ],
)
def test_the_sentence_about_another_protocol_names_it_or_the_changed_setting(tmp_path, before, now, sentence):
    about = [
        {"birds": {"digest": "d", "protocol": named_protocol(name, kind="images", changes=changes).to_dict()}}
        for name, changes in (before, now)
    ]
    store = Store.create(tmp_path / "out", about[0], {"erm": ""}, PLAN)
    store.write(record())
    with pytest.raises(InputError, match=re.escape(sentence)):
        Store.create(store.path, about[1], {"erm": ""}, PLAN)


def test_plans_are_merged(store):
    store.write(record())
    more = [[[[0, 1]], "erm", 1, 3], [[], "crm", 1, 1]]
    Store.create(store.path, ABOUT, {"crm": ""}, {"birds": more})
    assert store.read_about()["plans"] == {"birds": [[[[0, 1]], "erm", 2, 3], [[], "crm", 1, 1]]}


def test_folders_that_hold_something_else_raise(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file: pass a folder"):
        Store.create(tmp_path / "file", ABOUT, {})
    with pytest.raises(InputError, match="holds files that are not of a benchmark"):
        Store.create(tmp_path, ABOUT, {})
    with pytest.raises(InputError, match="holds no benchmark"):
        Store.open(tmp_path)
    (tmp_path / "bench.json").write_text(json.dumps({"version": 99, "compshift": "9.0"}))
    for attempt in (lambda: Store.open(tmp_path), lambda: Store.create(tmp_path, ABOUT, {})):
        with pytest.raises(
            InputError, match=r"has benchmark format 99, written by compshift 9\.0, but this release reads"
        ):
            attempt()
    (tmp_path / "bench.json").write_text("{}")
    with pytest.raises(InputError, match=r"damaged \('version' is missing or invalid\): remove it"):
        Store.open(tmp_path)


def test_results_parquet_has_every_group_of_every_predictor(tmp_path):
    pd = pytest.importorskip("pandas")
    store, outcome, _ = run(tmp_path / "out", [birds(tmp_path / "b.npz")], drops=["water,sea"])
    rows = write_view(store)
    frame = pd.read_parquet(store.view)
    assert len(frame) == rows == 2 * (1 + 4) * (5 + 6)  # two draws; erm has one predictor, crm four; val lacks a group
    assert outcome.new == 4
    one = store.read(frame["key"][0])
    own = frame[(frame["key"] == one["key"]) & (frame["split"] == "test")]
    predictor = own["predictor"].iloc[0]
    assert own[own["predictor"] == predictor]["right"].tolist() == one["right"]["test"][predictor]
    assert (frame["accuracy"] == frame["right"] / frame["rows"]).all()
    assert frame.loc[frame["group"] == "(water, sea)", "seen_rows"].unique().tolist() == [0]


def test_results_parquet_has_the_ridge_that_a_job_chose_itself(tmp_path):
    pd = pytest.importorskip("pandas")
    store, _, (job,) = run(
        tmp_path / "out", [birds(tmp_path / "b.npz")], ("crm",), ("water,sea",), select="combinations"
    )
    write_view(store)
    (text,) = pd.read_parquet(store.view)["hyperparameters"].unique()
    assert json.loads(text) == {"alpha": store.read(job.key)["detail"]["alpha"], "own": {}}


def test_a_folder_that_another_runner_is_creating_is_accepted(tmp_path):
    """A second runner may open the folder when the first has created only some of its subfolders."""
    for made in (["jobs"], ["jobs", "locks"], ["features"]):
        folder = tmp_path / "-".join(made)
        for name in made:
            (folder / name).mkdir(parents=True)
        assert Store.create(folder, ABOUT, {"erm": ""}, PLAN).about.exists()
