"""Any metric by group, its bootstrap intervals, and fairlearn's MetricFrame."""

import json
from functools import partial

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score, f1_score, log_loss, recall_score, roc_auc_score

from compshift import GroupSpace, InputError
from compshift.metrics import GroupMetric, group_metric, group_report


def mean(_, y_pred, sample_weight=None):
    return np.average(y_pred, weights=sample_weight)


@pytest.fixture(scope="module")
def data():
    """Labels, scores and attributes; (sea, old) has no rows, and all rows of (x, young) are of class 1."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"place": rng.choice(["land", "sea", "x"], 300), "age": rng.choice(["old", "young"], 300)})
    frame = frame[~((frame.place == "sea") & (frame.age == "old"))].reset_index(drop=True)
    y = np.where((frame.place == "x") & (frame.age == "young"), 1, rng.integers(0, 2, len(frame)))
    return pd.Series(y, name="bird"), np.clip(0.3 * y + rng.random(len(y)), 0, 1), frame


def groups_of(found):
    return found.to_frame().set_index(list(found.space.names))


def test_values_and_intervals_are_those_of_a_loop(data):
    y, score, frame = data
    found = group_metric(roc_auc_score, y, score, frame, n_resamples=60)
    table = groups_of(found)
    assert found.overall == roc_auc_score(y, score)
    chosen = np.flatnonzero((frame.place == "x") & (frame.age == "old"))
    assert table.loc[("x", "old"), "value"] == pytest.approx(roc_auc_score(y[chosen], score[chosen]))
    random = np.random.default_rng(0).spawn(6)[4]
    drawn = [random.choice(chosen, len(chosen)) for _ in range(60)]
    ends = np.quantile([roc_auc_score(y[rows], score[rows]) for rows in drawn], [0.05, 0.95])
    np.testing.assert_allclose(table.loc[("x", "old"), ["lower", "upper"]].astype(float), ends)


def test_what_does_not_exist_is_nan_with_a_reason(data):
    y, score, frame = data
    found = group_metric(roc_auc_score, y, score, frame, n_resamples=5)
    table = groups_of(found)
    for group, count, reason in ((("sea", "old"), 0, "no rows"), (("x", "young"), None, "Only one class")):
        row = table.loc[group]
        assert count is None or row["count"] == count
        assert row[["value", "lower", "upper"]].isna().all()
        assert row["reason"].startswith(reason)
    content = json.loads(json.dumps(found.to_dict()))
    assert content["groups"][2] == {
        "place": "sea",
        "age": "old",
        "count": 0,
        "value": None,
        "lower": None,
        "upper": None,
        "reason": "no rows",
    }
    assert "–" in str(found)
    assert "no rows" in str(found)


@pytest.mark.filterwarnings("ignore")  # scikit-learn's warning must count even where users do not see it
def test_errors_and_zero_divisions_of_a_metric_are_reasons(data):
    y, score, frame = data

    def picky(y_true, _):
        if len(y_true) < 100:
            raise ZeroDivisionError("too few")
        return float("inf") if len(y_true) < 300 and (y_true == 1).all() else 0.5

    assert set(groups_of(group_metric(picky, y, score, frame))["reason"]) == {"no rows", "ZeroDivisionError: too few"}
    nobody = np.zeros(len(y), dtype=int)
    table = groups_of(group_metric(recall_score, 1 - y, nobody, frame, n_resamples=5))
    assert np.isnan(table.loc[("x", "young"), "value"])  # scikit-learn returns 0 with a warning
    defined = partial(recall_score, zero_division=1.0)
    assert groups_of(group_metric(defined, 1 - y, nobody, frame, n_resamples=5)).loc[("x", "young"), "value"] == 1
    infinite = group_metric(lambda *_: np.inf, y, score, frame)
    assert np.isnan(infinite.value).all()
    assert "the metric is not a finite number" in infinite.reason


def test_groups_without_evidence_have_no_interval():
    place = ["one", *["same"] * 20, *["rare"] * 2]
    values = [1.0] * 21 + [0.0, 5.0]
    table = groups_of(group_metric(mean, values, values, {"place": place}))
    assert table["value"].tolist() == [1.0, 2.5, 1.0]
    assert table["reason"].tolist() == ["one row has no interval", "", "the metric is the same in all resamples"]
    assert table["lower"].isna().tolist() == [True, False, True]
    seldom = partial(recall_score, zero_division=np.nan)
    y = np.r_[1, np.zeros(30)]
    table = groups_of(group_metric(seldom, np.r_[y, 1], np.r_[y, 1], {"place": ["a"] * 31 + ["b"]}))
    assert table.loc["a", "value"] == 1
    assert "same in all resamples" in table.loc["a", "reason"]


def test_a_metric_that_most_resamples_leave_undefined():
    def picky(y_true, _):
        return y_true.sum() if len(np.unique(y_true)) > 7 else np.nan

    numbers = np.arange(10.0)
    (reason,) = group_metric(picky, numbers, numbers, {"place": ["a"] * 10}).reason
    assert reason.startswith("the metric is undefined in ")


def test_groups_can_be_chosen_and_include_the_target(data):
    y, score, frame = data
    predicted = (score > 0.6).astype(int)
    found = group_metric(accuracy_score, y, predicted, frame, by=["bird", "place"], n_resamples=2)
    report = group_report(y, predicted, frame["place"])
    np.testing.assert_array_equal(found.groups, report.groups)
    np.testing.assert_array_equal(found.count, report.count)
    np.testing.assert_allclose(found.value, report.accuracy)
    assert group_metric(accuracy_score, y, predicted, frame, by="age", n_resamples=2).space.names == ("age",)
    alone = group_metric(accuracy_score, y, predicted, by="bird", n_resamples=2)
    assert alone.space.names == ("bird",)


def test_a_space_adds_values_that_do_not_occur(data):
    y, score, frame = data
    space = GroupSpace(("bird", "place", "age"), ((0, 1), ("land", "sea", "x", "moon"), ("old", "young")))
    found = group_metric(roc_auc_score, y, score, frame, space=space, by="place", n_resamples=2)
    table = groups_of(found)
    assert table.loc["moon", "count"] == 0
    assert np.isnan(table.loc["moon", "value"])


def test_probabilities_and_weights_are_split_with_the_rows(data):
    y, score, frame = data
    weight = np.random.default_rng(1).random(len(y))
    proba = np.stack([1 - score, score], axis=1).clip(1e-3, 1)
    proba /= proba.sum(axis=1, keepdims=True)
    metric = partial(log_loss, labels=[0, 1])
    found = group_metric(metric, y, proba, frame["age"], sample_weight=weight, n_resamples=3)
    own = (frame["age"] == "old").to_numpy()
    assert found.value[0] == pytest.approx(log_loss(y[own], proba[own], labels=[0, 1], sample_weight=weight[own]))
    assert found.name == "log_loss"
    nothing = np.where(own, 0.0, weight)
    empty = group_metric(mean, y, score, frame["age"], sample_weight=nothing, n_resamples=3)
    assert np.isnan(empty.value[0])
    assert "ZeroDivisionError" in empty.reason[0]


def test_intervals_contain_the_truth_as_often_as_they_say():
    """90 % intervals of the mean of 40 normal numbers: the bootstrap covers a little less, about 88.5 %."""
    rng = np.random.default_rng(0)
    samples = rng.normal(size=(400, 40))
    place = np.repeat(np.arange(400), 40)
    found = group_metric(mean, samples.ravel(), samples.ravel(), {"place": place}, n_resamples=200)
    assert 0.85 < ((found.lower < 0) & (found.upper > 0)).mean() < 0.93
    assert (found.upper - found.lower).mean() == pytest.approx(2 * 1.645 / np.sqrt(40), rel=0.06)


def test_the_seed_decides_and_other_groups_do_not(data):
    y, score, frame = data
    first, again, other = (
        group_metric(mean, y, score, frame, n_resamples=20, random_state=seed).lower for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other)[~np.isnan(first)].any()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"metric": "accuracy"}, "metric is 'accuracy': pass a function"),
        ({"metric": lambda *_: [1, 2]}, r"the metric <lambda> fails on all rows together: it returned \[1, 2\]"),
        ({"metric": roc_auc_score, "y_pred": list("ab") * 2}, "the metric roc_auc_score fails on all rows together: "),
        ({"y_pred": [0, 1]}, "y_pred has 2 rows but y_true has 4"),
        ({"attributes": None}, "there are no groups: pass attributes, or the name of the target as by"),
        ({"attributes": {"a": [0, 1]}}, "attributes has 2 rows but y_true has 4"),
        ({"by": "b"}, "attribute 'b' is not known: use one of"),
        ({"by": ["a", "a"]}, "each of them once"),
        ({"by": []}, "name at least one attribute"),
        ({"y_true": []}, "y_true has no rows"),
        ({"n_resamples": 0}, "n_resamples is 0"),
        ({"confidence": 1.5}, "confidence is 1.5"),
        ({"sample_weight": [1, 1, 1, -1]}, "sample_weight is negative"),
        ({"metric": lambda *_: 1, "sample_weight": [1] * 4}, "has no parameter sample_weight"),
        ({"space": GroupSpace.from_cardinalities([2, 2])}, "attribute 'a' is not known: use one of"),
    ],
)
def test_bad_input_is_one_sentence(change, sentence):
    arguments = {"metric": mean, "y_true": [0, 1, 1, 0], "y_pred": [0, 1, 0, 1], "attributes": {"a": [0, 0, 1, 1]}}
    with pytest.raises(InputError, match=sentence):
        group_metric(**arguments | change)


class TestFairlearn:
    @pytest.fixture
    @classmethod
    def fairlearn(cls):
        return pytest.importorskip("fairlearn.metrics")

    @pytest.mark.filterwarnings("ignore:All-NaN slice")  # fairlearn's quantiles of empty groups
    def test_a_metric_frame_becomes_a_group_metric(self, fairlearn, data):
        y, score, frame = data
        metrics = {"count": fairlearn.count, "f1": f1_score}
        options = {"y_true": y, "y_pred": (score > 0.6).astype(int), "sensitive_features": frame}
        source = fairlearn.MetricFrame(
            metrics=metrics, **options, n_boot=20, ci_quantiles=[0.5, 0.95, 0.05], random_state=0
        )
        found = GroupMetric.from_fairlearn(source)
        ours = group_metric(f1_score, y, options["y_pred"], frame, n_resamples=2)
        assert (found.name, found.space, found.overall) == ("f1", ours.space, pytest.approx(ours.overall))
        assert found.confidence == pytest.approx(0.9)
        place = found.space.locate(found.groups, ours.groups)
        np.testing.assert_allclose(found.value, ours.value[place])
        np.testing.assert_array_equal(found.count, ours.count[place])
        np.testing.assert_allclose(found.lower, source.by_group_ci[2]["f1"])
        assert found.reason[int(np.flatnonzero(found.count == 0)[0])] == "no rows"
        with pytest.raises(InputError, match="metric 'recall' is not known"):
            GroupMetric.from_fairlearn(source, "recall")

    def test_one_metric_without_counts_or_intervals(self, fairlearn, data):
        y, score, frame = data
        source = fairlearn.MetricFrame(
            metrics=f1_score,
            y_true=y,
            y_pred=(score > 0.6).astype(int),
            sensitive_features=frame["age"],
            control_features=frame["place"],
        )
        found = GroupMetric.from_fairlearn(source)
        assert found.space.names == ("place", "age")
        assert np.isnan(found.count).all()
        assert np.isnan(found.overall)
        assert np.isnan(found.confidence)
        assert [bool(reason) for reason in found.reason] == np.isnan(found.value).tolist()
        assert found.to_dict()["overall"] is None

    def test_a_report_becomes_a_metric_frame_and_back(self, fairlearn, data):
        y, score, frame = data
        report = group_report(y, (score > 0.6).astype(int), frame)
        source = report.to_fairlearn()
        assert isinstance(source, fairlearn.MetricFrame)
        assert source.overall["accuracy"] == pytest.approx(report.average)
        assert source.group_min()["accuracy"] == pytest.approx(report.worst)
        found = GroupMetric.from_fairlearn(source)
        place = report.space.locate(found.groups, report.groups)
        assert found.space == report.space
        np.testing.assert_allclose(found.value, report.accuracy[place])
        np.testing.assert_array_equal(found.count, report.count[place])

    def test_what_is_no_metric_frame(self, fairlearn, data):
        y, score, frame = data
        with pytest.raises(InputError, match="frame is a DataFrame: pass a fairlearn"):
            GroupMetric.from_fairlearn(frame)
        two = fairlearn.MetricFrame(
            metrics={"a": accuracy_score, "b": f1_score}, y_true=y, y_pred=score > 0.6, sensitive_features=frame["age"]
        )
        with pytest.raises(InputError, match="frame has the metrics 'a', 'b': name one"):
            GroupMetric.from_fairlearn(two)
        odd = fairlearn.MetricFrame(metrics=lambda *_: "text", y_true=y, y_pred=score, sensitive_features=frame["age"])
        with pytest.raises(InputError, match="does not return numbers"):
            GroupMetric.from_fairlearn(odd)
