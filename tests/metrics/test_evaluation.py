"""Evaluation of fitted classifiers on labelled datasets."""

import json
import re

import numpy as np
import pytest

from compshift import CRMClassifier, CRMClassifierCV, GroupSpace, InputError
from compshift.data import GroupedDataset
from compshift.metrics import group_report
from compshift.metrics.evaluation import evaluate
from compshift.report.predictions import print_evaluation


def dataset(groups=range(9), n=450, seed=0, values=("a", "b", "c")):
    """Return a dataset with additive group means, for the groups of the 3 × 3 space with these flat indices."""
    rng = np.random.default_rng(seed)
    space = GroupSpace(("bird", "place"), (("gull", "owl", "wren"), values))
    codes = space.codes(rng.choice(list(groups), size=n))
    return GroupedDataset(rng.normal(size=(n, 6)) + 2 * space.one_hot(codes), space, codes)


def fitted(clf, data):
    table = data.columns(("bird", "place"))
    return clf.fit(data.X, table["bird"], attributes=table["place"])


def test_groups_are_reported_with_their_role_in_training():
    train, test = dataset(range(1, 9)), dataset(seed=1)
    clf = fitted(CRMClassifier(), train)
    evaluation = evaluate(clf, test)
    table = test.columns(("bird", "place"))
    expected = group_report(table["bird"], clf.predict(test.X), table["place"])
    assert evaluation.report.worst == expected.worst
    np.testing.assert_allclose(evaluation.report.accuracy, expected.accuracy)
    assert evaluation.report.compositional_risk > 0
    assert evaluation.states[0] == "extrapolated"
    assert evaluation.states[1] == f"{clf.group_weight_[1]:g} rows"
    np.testing.assert_array_equal(evaluation.effective_sample_size, clf.effective_sample_size_)
    assert np.isnan(evaluation.expected).all()


def test_groups_outside_the_hull_and_outside_the_support_are_reported():
    square = [4, 5, 7, 8]  # with (gull, a), which shares no value with it
    clf = fitted(CRMClassifier(prior="hull"), dataset([0, *square]))
    states = evaluate(clf, dataset(seed=1)).states
    assert [states[group] for group in (1, 3)] == ["outside the hull"] * 2
    listed = fitted(CRMClassifier(support="observed"), dataset([0, *square]))
    evaluation = evaluate(listed, dataset(seed=1))
    assert evaluation.states[1] == "not a candidate"
    assert np.isnan(evaluation.effective_sample_size[1])


def test_expected_accuracy_of_unseen_groups_is_shown_beside_the_actual_one():
    clf = fitted(CRMClassifierCV([1e-2, 1e-1], prior="hull"), dataset(range(1, 9)))
    evaluation = evaluate(clf, dataset(seed=1))
    frame = clf.expected_group_accuracy_
    np.testing.assert_array_equal(evaluation.expected[0], frame[["accuracy", "lower", "upper"]].to_numpy()[0])
    assert np.isnan(evaluation.expected[1:]).all()
    content = json.loads(json.dumps(evaluation.to_dict(), allow_nan=False))
    assert content["groups"][0]["expected_accuracy"] == evaluation.expected[0, 0]
    assert "expected_accuracy" not in content["groups"][1]
    assert content["groups"][0]["in_training"] == "extrapolated"


def test_unknown_values_are_rejected():
    clf = fitted(CRMClassifier(), dataset(range(1, 9)))
    with pytest.raises(InputError, match="'d'"):
        evaluate(clf, dataset(seed=1, values=("a", "b", "d")))


def test_groups_without_rows_have_no_numbers(capsys):
    """Neither 0 nor 1, in JSON, on the terminal and on a page."""
    clf, test = fitted(CRMClassifier(), dataset(range(1, 9))), dataset(range(2, 9), seed=1)
    evaluation = evaluate(clf, test)
    content = json.loads(json.dumps(evaluation.to_dict(), allow_nan=False))
    assert [group["count"] for group in content["groups"][:2]] == [0, 0]
    for name in ("accuracy", "lower", "upper"):
        assert [group[name] for group in content["groups"][:2]] == [None, None]
    assert content["worst_group"] not in (["gull", "a"], ["gull", "b"])
    assert content["balanced"] == pytest.approx(evaluation.report.accuracy[2:].mean())
    print_evaluation(evaluation, "test", as_json=False)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.split()[:2] == ["gull", "a"]]
    assert line.split()[2:4] == ["0", "empty"]
    assert not re.search(r"[01]\.\d{3}", line)
    pytest.importorskip("altair")
    from compshift.report.model_page import model_page
    from compshift.report.page import Charts

    page = model_page(clf, "model", test, "test", additivity=False)
    charts = [
        chart.spec
        for section in page.sections
        for block in section.blocks
        if isinstance(block, Charts)
        for chart in block.charts
    ]
    rows = [row for spec in charts for data in spec.get("datasets", {}).values() for row in data if "accuracy" in row]
    assert len([row for row in rows if row.get("first") == "gull"]) == 1  # (gull, c)
