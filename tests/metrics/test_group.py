"""Accuracy by group and the compositional risk."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score

from compshift import GroupSpace, InputError
from compshift.metrics import group_balanced_accuracy, group_report, worst_group_accuracy


@pytest.fixture
def predictions():
    rng = np.random.default_rng(0)
    y, a = rng.integers(0, 3, size=500), np.array(["x", "y"])[rng.integers(0, 2, size=500)]
    return y, np.where(rng.random(500) < 0.7, y, rng.integers(0, 3, size=500)), a


def test_against_loops(predictions):
    y, predicted, a = predictions
    report = group_report(y, predicted, a)
    accuracies = {}
    for group in {(int(left), str(right)) for left, right in zip(y, a, strict=True)}:
        rows = [i for i in range(500) if (y[i], a[i]) == group]
        accuracies[group] = sum(y[i] == predicted[i] for i in rows) / len(rows)
    assert report.average == pytest.approx(sum(y == predicted) / 500)
    assert report.balanced == pytest.approx(sum(accuracies.values()) / 6)
    assert report.worst == pytest.approx(min(accuracies.values()))
    assert accuracies[report.worst_group] == report.worst
    frame = report.to_frame()
    assert {(row.y, row.a): row.accuracy for row in frame.itertuples()} == pytest.approx(accuracies)
    assert worst_group_accuracy(y, predicted, a) == report.worst
    assert group_balanced_accuracy(y, predicted, a) == report.balanced


def test_against_fairlearn(predictions):
    fairlearn = pytest.importorskip("fairlearn.metrics")
    y, predicted, a = predictions
    frame = fairlearn.MetricFrame(
        metrics=accuracy_score, y_true=y, y_pred=predicted, sensitive_features=pd.DataFrame({"y": y, "a": a})
    )
    report = group_report(y, predicted, a)
    np.testing.assert_allclose(report.accuracy, frame.by_group.to_numpy(dtype=float))
    assert report.worst == frame.group_min()


def test_empty_groups_are_listed_and_not_counted():
    report = group_report(["a", "a", "b"], ["a", "b", "b"], attributes=[0, 0, 1])
    frame = report.to_frame()
    assert frame["count"].tolist() == [2, 0, 0, 1]
    assert frame["accuracy"].isna().tolist() == [False, True, True, False]
    assert (report.n_empty, report.worst, report.worst_group, report.balanced) == (2, 0.5, ("a", 0), 0.75)
    assert "empty groups       2 of 4" in str(report)
    content = json.loads(json.dumps(report.to_dict()))
    assert [group["accuracy"] for group in content["groups"]] == [0.5, None, None, 1.0]


def test_space_lists_values_that_do_not_occur():
    space = GroupSpace(("y", "a"), (("a", "b", "c"), (0, 1)))
    report = group_report(["a"], ["a"], attributes=[0], space=space)
    assert report.n_empty == 5
    assert len(report.groups) == 6


def test_many_groups_list_only_those_with_rows():
    codes = np.random.default_rng(0).integers(0, 10, size=(50, 6))
    report = group_report(codes[:, 0], codes[:, 0], codes[:, 1:], space=GroupSpace.from_cardinalities([10] * 6))
    assert len(report.groups) <= 50
    assert report.n_empty == 10**6 - len(report.groups)


def test_several_targets_must_all_be_right():
    report = group_report([[0, 0], [0, 1], [1, 1]], [[0, 0], [0, 0], [1, 1]])
    assert report.average == pytest.approx(2 / 3)
    assert report.worst_group == (0, 1)


class TestCompositionalRisk:
    def test_against_loops(self, predictions):
        y, predicted, a = predictions
        rng = np.random.default_rng(1)
        log_proba = np.log(rng.dirichlet(np.ones(6), size=500))
        space = GroupSpace.from_table({"y": y, "a": a})
        own = space.index(space.encode({"y": y, "a": a}))
        prior = rng.dirichlet(np.ones(6))
        risks = [-sum(log_proba[i, g] for i in range(500) if own[i] == g) / sum(own == g) for g in range(6)]
        uniform = group_report(y, predicted, a, log_proba)
        assert uniform.compositional_risk == pytest.approx(sum(risks) / 6, abs=1e-12)
        weighted = group_report(y, predicted, a, log_proba, prior=prior.reshape(3, 2))
        assert weighted.compositional_risk == pytest.approx(prior @ risks, abs=1e-12)
        own_only = group_report(y, predicted, a, log_proba[np.arange(500), own])
        assert own_only.compositional_risk == pytest.approx(uniform.compositional_risk)

    def test_empty_groups_have_no_share(self):
        report = group_report(["a", "b"], ["a", "b"], [0, 1], np.log(np.full((2, 4), 0.25)))
        assert report.compositional_risk == pytest.approx(math.log(4))

    def test_a_prior_is_restricted_to_groups_with_samples(self):
        own = np.log([0.2, 0.7])
        report = group_report(["a", "b"], ["a", "b"], [0, 1], own, prior={("a", 0): 0.1, ("a", 1): 0.5, ("b", 1): 0.4})
        assert report.compositional_risk == pytest.approx(-(0.2 * own[0] + 0.8 * own[1]))

    def test_a_group_of_probability_zero_has_infinite_risk(self):
        assert group_report([0, 1], [0, 1], group_log_proba=[-np.inf, 0.0]).compositional_risk == math.inf


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 1], [0]), "y_pred has 1 rows but y_true has 2"),
        (([0, 1], [0, 1], [0]), "attributes has 1 rows but y_true has 2"),
        (([], []), "y_true is empty"),
        ((["0", "1"], [0, 1]), "both as text or both as numbers"),
        (([[0, 1]], [0]), "y_true has 2 columns but y_pred has 1"),
        (([0, 1], [0, 1], None, np.zeros((2, 3))), "there are 2 groups"),
        (([0, 1], [0, 1], None, np.full((2, 2), 0.5)), "logarithms of probabilities"),
        (([0, 1], [0, np.nan]), "missing"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(InputError, match=message):
        group_report(*arguments)


def test_space_is_matched_by_name():
    frame = pd.DataFrame({"bird": ["l", "w"], "place": [0, 1]})
    space = GroupSpace(("place", "bird"), ((0, 1), ("l", "w")))
    report = group_report(frame["bird"], ["l", "l"], frame["place"], space=space)
    assert report.worst_group == (1, "w")


def test_attributes_named_like_columns_stay():
    report = group_report([0, 1], [0, 1], pd.Series([0, 1], name="count"))
    assert report.to_frame()["count (attribute)"].tolist() == [0, 1, 0, 1]


def test_bad_options():
    with pytest.raises(InputError, match="between 0 and 1"):
        group_report([0, 1], [0, 1], confidence=95)
    with pytest.raises(InputError, match="pass group_log_proba too"):
        group_report([0, 1], [0, 1], prior=[0.5, 0.5])
    with pytest.raises(InputError, match="unknown value 1"):
        group_report([0, 1], [0, 1], space=GroupSpace(("y",), ((0, 2),)))


def test_large_classes_are_compared_exactly():
    true = np.array([2**53, 2**53 + 1, 5])
    report = group_report(true, np.array([2.0**53, 2.0**53, 5.0]))
    assert report.accuracy.tolist() == [1, 1, 0]


def test_intervals_have_a_confidence_of_nine_tenths_by_default():
    y_true, y_pred = [0] * 20 + [1], [0] * 15 + [1] * 6
    report = group_report(y_true, y_pred)
    assert report.confidence == 0.9
    np.testing.assert_array_equal(report.lower, group_report(y_true, y_pred, confidence=0.9).lower)
    assert (report.lower > group_report(y_true, y_pred, confidence=0.95).lower).all()
