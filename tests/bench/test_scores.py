import math

import numpy as np
import pytest

import compshift as cs
from compshift.bench.jobs import Work, run_job
from compshift.bench.plan import make_plan
from compshift.bench.records import dropped_accuracy, n_unseen, reported, scores
from compshift.bench.results import Score
from compshift.bench.selection import choose_draw
from compshift.bench.sources import file_source
from tests.bench.small import birds

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


def _validated(*right):
    return {
        draw: {**RECORD, "right": {**RECORD["right"], "val": {"first": [value, 2, 0, 0]}}}
        for draw, value in enumerate(right)
    }


def test_the_best_draw_on_validation_is_chosen():
    assert choose_draw(_validated(0, 2, 1), "balanced") == 1
    assert choose_draw(_validated(1, 2, 2), "balanced") == 1  # the first of equals
    records = _validated(0, 2, 1)
    records[1] = {"status": "diverged"}
    assert choose_draw(records, "worst") == 2
    assert choose_draw({0: {"status": "diverged"}}, "worst") is None
    assert choose_draw({}, "worst") is None
    lone = {3: {**RECORD, "right": {"test": RECORD["right"]["test"]}, "rows": {"test": RECORD["rows"]["test"]}}}
    assert choose_draw(lone, "balanced") == 3  # without validation rows


def test_the_metric_that_is_asked_for_decides():
    first = {**RECORD, "right": {**RECORD["right"], "val": {"first": [1, 1, 0, 0]}}}
    second = {**RECORD, "rows": {**RECORD["rows"], "val": [8, 2, 0, 0]}}
    second["right"] = {**RECORD["right"], "val": {"first": [3, 2, 0, 0]}}
    assert choose_draw({0: first, 1: second}, "balanced") == 1  # .5 against .6875
    assert choose_draw({0: first, 1: second}, "worst") == 0  # .5 against .375


def test_mean_and_standard_error():
    score = Score.over([0.5, 0.6, 0.7])
    assert score.mean == pytest.approx(60)
    assert score.error == pytest.approx(10 / math.sqrt(3))
    assert Score.over([0.5]) == Score(50.0, None, 1)
    assert Score(60, 3).distance(Score(50, 4)) == pytest.approx(2)
    assert Score(60).distance(Score(50)) is None


def test_every_variant_of_crm_is_what_it_says(tmp_path):
    """Right rows of the four predictors, against the classifier set up by hand, on data where all four differ."""
    rng = np.random.default_rng(0)
    codes = np.repeat([[0, 0], [0, 1], [1, 1], [1, 0]], [600, 100, 400, 100], axis=0)
    X = rng.normal(size=(len(codes), 5)) + codes[:, :1] * [1, 2, 0, 1, 0] + codes[:, 1:] * [2, 1, 1, 0, 0]
    np.savez(tmp_path / "b.npz", X=X, Z=codes, split=np.arange(len(codes)) % 3, attribute_names=["bird", "place"])
    source = file_source(str(tmp_path / "b.npz"), None, None, None, 0)
    job = make_plan([source], ["crm"], ["1,0"]).units[0].job(2, 0)
    record = run_job(Work(job, threads=1))
    data = source.load()
    train, test = data.part("train"), data.part("test")
    kept = ~(train.codes == [1, 0]).all(axis=1)
    frequency = np.bincount(data.space.index(test.codes)).reshape(2, 2) / len(test)
    clf = cs.CRMClassifier(alpha=job.drawn[0]["alpha"], tol=1e-4)
    clf.fit(train.X[kept], train.codes[kept, 0], attributes=train.codes[kept, 1])
    found = record["right"]["test"]
    for bias in ("extrapolated", "learned"):
        for name, prior in (("uniform", "uniform"), ("empirical", frequency)):
            predicted = clf.set_params(bias=bias).set_prior(prior).predict(test.X)
            right = np.bincount(data.space.index(test.codes), weights=predicted == test.codes[:, 0], minlength=4)
            assert found[f"{bias}-{name}"] == right.tolist()
    assert len({tuple(right) for right in found.values()}) == 4
