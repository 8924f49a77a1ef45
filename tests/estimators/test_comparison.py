"""The table of a comparison and its sentences, from made-up outcomes."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from compshift.estimators.comparison import TRAIN_PRIOR, MethodOutcome, summarise

NO_NOTES = {"n_fits": 3, "n_new": 0, "left_out": False}
GROUP = np.repeat(np.arange(4), 50)  # of test rows and of training rows


def outcome(test, held_out=None, seconds=1.0, n_unconverged=0):
    """An outcome with these accuracies of the four groups, exactly; None for groups that are never held out."""
    held_out = [None] * 4 if held_out is None else held_out
    return MethodOutcome(rows(test) == 1, rows(held_out), rows(test), seconds, n_unconverged)


def rows(accuracy):
    parts = [np.full(50, np.nan) if value is None else np.arange(50) < 50 * value for value in accuracy]
    return np.concatenate(parts).astype(float)


def said(outcomes, **notes):
    return list(summarise(outcomes, GROUP, GROUP, **{**NO_NOTES, **notes}).sentences)


def crm(test, held_out=None, trained=None):
    return {"crm": outcome(test, held_out), f"crm{TRAIN_PRIOR}": outcome(trained or test, held_out)}


def test_numbers_match_a_slow_reference():
    rng = np.random.default_rng(0)
    test_group, group = np.repeat([0, 1, 2], [40, 9, 20]), np.repeat([0, 1, 2, 3], [30, 8, 25, 12])
    test = (rng.random(69) < 0.6) & (test_group != 1)  # the worst groups have too few rows to count
    stayed = np.where(test_group == 2, np.nan, rng.integers(3, size=69) / 2)
    held_out = np.where(group == 3, np.nan, (rng.random(75) < 0.5) & (group != 1))
    found = summarise({"lc": MethodOutcome(test, held_out, stayed, 2.5, 0)}, test_group, group, **NO_NOTES).frame.loc[
        "lc"
    ]
    seen = [np.mean(stayed[test_group == number]) for number in range(2)]
    accuracy = [np.mean(test[test_group == number]) for number in range(3)]
    unseen = [np.mean(held_out[group == number]) for number in range(3)]
    expected = {
        "average": np.mean(test),
        "balanced": sum(accuracy) / 3,
        "worst": min(accuracy[0], accuracy[2]),  # group 1 has 9 rows
        "unseen": sum(unseen) / 3,
        "unseen_error": math.sqrt(sum((value - sum(unseen) / 3) ** 2 for value in unseen) / 2 / 3),
        "seen": sum(seen) / 2,
        "worst_unseen": min(unseen[0], unseen[2]),  # group 1 has 8 rows
        "seconds": 2.5,
    }
    assert list(found.index) == list(expected)
    np.testing.assert_allclose(found, list(expected.values()))


@pytest.mark.parametrize(("n_rows", "worst"), [(9, 0.5), (10, 0.0)])
def test_groups_of_ten_rows_count_for_the_worst_group(n_rows, worst):
    group = np.repeat([0, 1], [n_rows, 20])
    test = (np.arange(len(group)) % 2 == 0) & (group == 1)
    found = summarise({"lc": MethodOutcome(test, test.astype(float), test, 1.0, 0)}, group, group, **NO_NOTES)
    assert found.frame.loc["lc", ["worst", "worst_unseen"]].tolist() == [worst, worst]


def test_the_best_on_held_out_groups_is_named():
    outcomes = {"logistic": outcome([1] * 4, [0.1, 0.2, 0.1, 0.2]), "sla": outcome([1] * 4, [0.7, 0.8, 0.8, 0.7])}
    expected = "On 4 held-out combinations, sLA does best: 75.0 % as the mean over groups."
    assert said(outcomes) == [expected]
    outcomes["lc"] = outcome([1] * 4, [0.8, 0.7, 0.7, 0.76])
    assert said(outcomes) == [expected[:-1] + "; there is no clear difference from LC."]


def test_without_a_clear_difference_no_method_is_called_the_best():
    outcomes = {"logistic": outcome([1] * 4, [0.6, 0.8, 0.6, 0.8]), "sla": outcome([1] * 4, [0.8, 0.6, 0.8, 0.64])}
    assert said(outcomes) == [
        "On 4 held-out combinations, there is no clear difference between the methods; sLA has the highest accuracy, "
        "71.0 % as the mean over groups."
    ]


def test_one_method_and_one_held_out_group():
    held_out = [None, 0.5, None, None]
    assert said({"lc": outcome([1] * 4, held_out)}) == ["On 1 held-out combination, LC reaches 50.0 %."]
    both = {"lc": outcome([1] * 4, held_out), "sla": outcome([1] * 4, [None, 1, None, None])}
    assert "no clear difference" in said(both)[0]  # one group has no standard error


@pytest.mark.parametrize(
    ("test", "end"),
    [
        ([0.7] * 4, "loses 15.0 points of average accuracy and gains 30.0 points in the worst group."),
        ([1] * 4, "gains 15.0 points of average accuracy and gains 60.0 points in the worst group."),
        ([1, 1, 1, 0.02], "loses 9.5 points of average accuracy and loses 38.0 points in the worst group."),
        (
            [0.9, 0.9, 0.9, 0.76],
            "gains 36.0 points in the worst group and shows no clear difference in average accuracy.",
        ),
        (
            [0.8, 0.8, 0.8, 0.44],
            "loses 14.0 points of average accuracy and shows no clear difference in the worst group.",
        ),
        ([1, 1, 1, 0.42], "shows no clear difference in average accuracy or in the worst group."),
    ],
)
def test_what_crm_loses_and_gains(test, end):
    boosting = {"boosting": outcome([1, 1, 1, 0.4])}
    assert (
        said({**boosting, **crm(test)})[0] == f"Against gradient boosting, CRM with a uniform prior over groups {end}"
    )


def test_without_boosting_crm_is_set_against_logistic_regression():
    assert said({"lc": outcome([1] * 4), **crm([0.5] * 4)})[0].startswith("The uniform prior itself")
    found = said({"logistic": outcome([1] * 4), **crm([0.5] * 4)})[0]
    assert found.startswith("Against logistic regression, CRM with a uniform prior over groups loses 50.0 points of")


@pytest.mark.parametrize(
    ("trained", "effect"),
    [
        ([1, 1, 1, 0.8], "costs CRM 15.0 points of"),
        ([0.4, 0.4, 0.4, 0.4], "gains CRM 40.0 points of"),
        ([0.8, 0.8, 0.8, 0.82], "makes no clear difference to"),
    ],
)
def test_the_price_of_the_uniform_prior_itself(trained, effect):
    average = 100 * sum(trained) / 4
    assert said(crm([0.8] * 4, trained=trained)) == [
        f"The uniform prior itself {effect} average accuracy: under the training prior, CRM reaches {average:.1f} %."
    ]


def test_sentences_are_about_the_crm_that_does_better_on_held_out_groups():
    plain = crm([0.9] * 4, [0.5, 0.6, 0.5, 0.6])
    boosted = {name.replace("crm", "crm-boosting"): part for name, part in crm([0.8] * 4, [0.9] * 4).items()}
    assert "boosted CRM reaches" in said({**plain, **boosted})[-1]
    boosted = {name.replace("crm", "crm-boosting"): part for name, part in crm([0.8] * 4, [0.1] * 4).items()}
    assert ", CRM reaches" in said({**plain, **boosted})[-1]


def test_notes():
    method = {"lc": outcome([1] * 4, n_unconverged=1)}
    assert said(method, n_fits=1, n_new=1, left_out=True) == [
        "No group can be held out, because none lies inside the affine hull of the others, so there is no accuracy on "
        "unseen combinations.",
        "1 of the groups among the test rows is absent from training.",
        "1 of the 1 fits of LC did not converge.",
        "Boosted CRM is left out, because LightGBM is not installed: run pip install 'compshift[boosting]'.",
    ]
    assert said({"lc": outcome([1] * 4)}, n_new=2) == ["2 of the groups among the test rows are absent from training."]
    for sizes, start in (([9, 191], "1 group with fewer than 10 test rows does"), ([9, 9, 182], "2 groups with")):
        group = np.repeat(np.arange(len(sizes)), sizes)
        found = summarise({"lc": outcome([1] * 4)}, group, GROUP, **NO_NOTES)
        assert found.sentences[0].startswith(start)
    found = summarise({"lc": outcome([1] * 4), **crm([1] * 4)}, np.arange(200), GROUP, **NO_NOTES)
    assert math.isnan(found.frame.loc["lc", "worst"])


def test_text_html_and_json():
    outcomes = {**crm([0.9] * 4), "crm-known": outcome([0.8] * 4)}
    found = summarise(outcomes, GROUP, GROUP, **NO_NOTES)
    lines = str(found).splitlines()
    assert lines[0].split() == ["average", "groups", "worst", "unseen", "±", "seen", "worst", "unseen", "seconds"]
    assert lines[1].split() == ["CRM", "90.0", "90.0", "90.0", "–", "–", "90.0", "–", "1.0"]
    assert lines[2].startswith("CRM with known attributes ")
    assert len({len(line) for line in lines[:3]}) == 1
    assert lines[4:] == list(found.sentences)
    assert "<table" in found._repr_html_()
    content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert content["methods"][0]["method"] == "crm"
    assert content["methods"][0]["unseen"] is None
    assert content["sentences"] == list(found.sentences)
    assert isinstance(found.frame, pd.DataFrame)
    assert list(found.frame.index) == ["crm", "crm-known"]
