"""Scores of records, and checks of records that are read from files."""

import json
import math

import numpy as np
import pytest

import compshift as cs
from compshift import InputError
from compshift.bench.jobs import Work, run_job
from compshift.bench.plan import make_plan
from compshift.bench.records import dropped_accuracy, n_unseen, reported, scores
from compshift.bench.results import stored_results
from compshift.bench.store import Store
from tests.bench.small import birds
from tests.report.records import Made, write_results

RECORD = {
    "status": "done",
    "train_rows": [10, 30, 60, 0],
    "seen_rows": [10, 30, 0, 0],
    "rows": {"val": [2, 2, 0, 0], "test": [4, 0, 8, 8]},
    "right": {"val": {"first": [1, 2, 0, 0]}, "test": {"first": [1, 0, 6, 8], "second": [4, 0, 0, 0]}},
}


def test_scores_by_hand():
    found = scores(RECORD)
    assert found["average"] == 15 / 20
    assert found["weighted"] == pytest.approx((10 * 0.25 + 60 * 0.75) / 70)
    assert found["balanced"] == pytest.approx((0.25 + 0.75 + 1) / 3)
    assert found["worst"] == 0.25
    assert scores(RECORD, "val") == pytest.approx(
        {"average": 0.75, "weighted": 35 / 40, "balanced": 0.75, "worst": 0.5}
    )
    assert scores(RECORD, predictor="second")["average"] == 0.2
    assert dropped_accuracy(RECORD) == 14 / 16
    assert n_unseen(RECORD) == 2
    assert reported(RECORD) == "first"
    assert math.isnan(dropped_accuracy({**RECORD, "seen_rows": [1, 1, 1, 1]}))


def test_a_records_scores_are_those_of_a_group_report(tmp_path):
    job = make_plan([birds(tmp_path / "b.npz")], ["crm"], ["water,sea"]).units[0].job(0, 0)
    record = run_job(Work(job, threads=1))
    assert record["status"] == "done", record
    data = job.data.source.load()
    train, test = data.part("train"), data.part("test")
    kept = ~(train.codes == [1, 1]).all(axis=1)
    clf = cs.CRMClassifier(alpha=job.drawn[0]["alpha"], tol=1e-4)
    clf.fit(train.X[kept], train.codes[kept, 0], attributes=train.codes[kept, 1])
    report = cs.metrics.group_report(test.codes[:, 0], clf.predict(test.X), test.codes[:, 1])
    found = scores(record)
    assert found["average"] == pytest.approx(report.average)
    assert found["balanced"] == pytest.approx(report.balanced)
    assert found["worst"] == pytest.approx(report.worst)
    dropped = report.accuracy[[tuple(code) == (1, 1) for code in report.groups.tolist()]]
    assert dropped_accuracy(record) == pytest.approx(dropped[0])
    weight = np.bincount(data.space.index(train.codes))
    assert found["weighted"] == pytest.approx(report.accuracy @ weight / weight.sum())
    frequency = np.bincount(data.space.index(test.codes)) / len(test)
    learned = clf.set_params(bias="learned").set_prior(frequency.reshape(2, 3)).predict(test.X)
    expected = cs.metrics.group_report(test.codes[:, 0], learned, test.codes[:, 1])
    assert scores(record, predictor="learned-empirical")["worst"] == pytest.approx(expected.worst)
    assert sum(record["right"]["test"]["learned-empirical"]) == round(expected.average * len(test))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("right", {"test": {}, "val": {}}),
        ("rows", {"test": [1]}),
        ("groups", [[9, 9]]),
        ("values", [["a"], ["b"]]),
        ("train_rows", [-1] * 6),
        ("seconds", None),
        ("versions", {}),
        ("config", []),
        ("detail", None),
        ("detail", {"alpha": "strong"}),
    ],
)
def test_a_damaged_record_is_named(tmp_path, name, value):
    store = write_results(tmp_path / "out", Made())
    stored_results(store)
    path = sorted((store.path / "jobs").glob("*.json"))[0]
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    with pytest.raises(InputError, match=rf"{path.stem}.*is damaged .*remove it, and run the same benchmark again"):
        stored_results(store)


@pytest.mark.parametrize("split", ["val", "test"])
def test_a_record_with_more_right_rows_than_rows_is_damaged(tmp_path, split):
    store = write_results(tmp_path / "out", Made())
    path = sorted((store.path / "jobs").glob("*.json"))[0]
    record = json.loads(path.read_text())
    predictors = record["right"][split]
    predictors[next(iter(predictors))] = [count + 1 for count in record["rows"][split]]
    path.write_text(json.dumps(record))
    with pytest.raises(InputError, match=rf"{path.stem}.*is damaged \('right' is missing or invalid\)"):
        stored_results(store)


@pytest.mark.parametrize(
    "plans", [{"birds": [[[], "erm", 10**12, 1]]}, {"birds": [1]}, {"others": []}, [], {"birds": [[5, "erm", 1, 1]]}]
)
def test_invalid_plans_in_bench_json_raise(tmp_path, plans):
    store = write_results(tmp_path / "out", Made())
    store.about.write_text(json.dumps({**json.loads(store.about.read_text()), "plans": plans}))
    with pytest.raises(InputError, match=r"bench\.json' is damaged"):
        Store.open(store.path)


def test_records_that_link_out_of_the_folder_raise(tmp_path):
    store = write_results(tmp_path / "out", Made())
    path = sorted((store.path / "jobs").glob("*.json"))[0]
    path.rename(tmp_path / "secret.json")
    path.symlink_to(tmp_path / "secret.json")
    with pytest.raises(InputError, match="leads out of"):
        stored_results(store)
