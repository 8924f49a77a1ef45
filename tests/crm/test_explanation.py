"""Explanations: the terms of the log-odds of the predicted group against a rival, and contributions of features."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from compshift import CRMBoostingClassifier, CRMClassifier, InputError
from tests.estimators.made_data import make_data

NAMES = ("bird", "place", "device")


def fit(**parameters):
    X, codes = make_data((2, 3, 2), n=400, missing=(0, 7))
    frame = pd.DataFrame(codes, columns=list(NAMES))
    return CRMClassifier(**parameters).fit(X, frame["bird"], attributes=frame[["place", "device"]])


CLASSIFIERS = [
    fit(),
    fit(feature_transform="signed_root", unseen_offset=0.7, bias="learned"),
    fit(prior=np.random.default_rng(3).dirichlet(np.ones(12))),
]


def terms_by_loops(clf, x, rival):
    """Best group of a sample, its rival, and the terms of their log-odds by loops over groups and features."""
    if clf.feature_transform == "signed_root":
        x = [math.copysign(math.sqrt(abs(value)), value) for value in x]
    energies = [
        sum(weight * (value - mean) for weight, value, mean in zip(row, x, clf.feature_mean_, strict=True))
        for row in clf.coef_
    ]
    bias = clf.learned_bias_ if clf.bias == "learned" else clf.bias_
    score, offsets = [], clf.space_.offsets
    for position, code in enumerate(clf.groups_):
        energy = sum(energies[offsets[i] + value] for i, value in enumerate(code))
        offset = 0 if clf.seen_[position] else clf.unseen_offset
        score.append(-energy - bias[position] + offset + clf.log_prior_[position])
    best = max(range(len(score)), key=score.__getitem__)
    others = [z for z in range(len(score)) if z != best]
    if rival == "class":
        others = [z for z in others if clf.groups_[z][0] != clf.groups_[best][0]]
    other = max(others, key=score.__getitem__)
    terms = [
        energies[offsets[i] + clf.groups_[other][i]] - energies[offsets[i] + clf.groups_[best][i]]
        for i in range(len(clf.space_.names))
    ]
    offset = clf.unseen_offset * (int(clf.seen_[other]) - int(clf.seen_[best]))
    return best, other, terms, bias[other] - bias[best] + offset, clf.log_prior_[best] - clf.log_prior_[other]


@settings(max_examples=40, deadline=None)
@given(
    X=arrays(np.float64, (3, 4), elements=st.floats(-50, 50, width=32)),
    clf=st.sampled_from(CLASSIFIERS),
    rival=st.sampled_from(["class", "group"]),
)
def test_terms_are_those_of_a_loop_and_add_up(X, clf, rival):
    found = clf.explain(X, rival=rival)
    log_proba = clf.group_log_proba(X)
    for row, x in enumerate(X):
        best, other, terms, bias, prior = terms_by_loops(clf, x.tolist(), rival)
        expected = log_proba[row, best] - log_proba[row, other]
        if expected < 1e-9:  # a tie, which rounding decides
            continue
        np.testing.assert_array_equal(found.groups[row], clf.groups_[best])
        assert found.log_odds[row] == pytest.approx(expected, abs=1e-9)
        np.testing.assert_array_equal(found.rivals[row], clf.groups_[other])
        np.testing.assert_allclose(found.energies[row], terms, atol=1e-9)
        assert (found.bias[row], found.prior[row]) == pytest.approx((bias, prior), abs=1e-9)
    for attribute, part in found.features(top=None).groupby("attribute"):
        sums = part["contribution"].groupby(level=0).sum()
        term = found.energies[sums.index, NAMES.index(attribute)]
        np.testing.assert_allclose(sums, term, atol=1e-9)


def test_known_attributes_bind_the_rival():
    clf = CLASSIFIERS[0]
    X, codes = make_data((2, 3, 2), n=50)
    known = {"place": codes[:, 1]}
    found = clf.explain(X, attributes=known)
    assert (found.groups[:, 1] == codes[:, 1]).all()
    assert (found.rivals[:, 1] == codes[:, 1]).all()
    assert (found.energies[:, 1] == 0).all()
    log_proba = clf.group_log_proba(X, attributes=known)
    place = clf.space_.locate(np.stack([found.groups, found.rivals]).reshape(-1, 3), clf.groups_).reshape(2, -1)
    every = np.arange(len(X))
    np.testing.assert_allclose(found.log_odds, log_proba[every, place[0]] - log_proba[every, place[1]], atol=1e-9)


def test_a_chosen_rival():
    clf, X = CLASSIFIERS[0], np.zeros((2, 4))
    found = clf.explain(X, rival=(1, 2, 0))
    assert found.rivals.tolist() == [[1, 2, 0]] * 2
    itself = clf.explain(X, rival=tuple(found.groups[0]))
    assert itself.log_odds.tolist() == [0, 0]
    assert not len(itself.features())


@pytest.mark.parametrize(
    ("rival", "sentence"),
    [
        ("next", "rival is 'next': pass 'class'"),
        ((1, 2), "pass 'class', 'group' or one value for each of 'bird', 'place', 'device'"),
        (7, "rival is 7: pass"),
        ((1, 2, 5), "attribute 'device' has the unknown value 5"),
    ],
)
def test_rivals_that_do_not_exist(rival, sentence):
    with pytest.raises(InputError, match=sentence):
        CLASSIFIERS[0].explain(np.zeros((1, 4)), rival=rival)


def test_a_rival_that_is_not_a_candidate():
    with pytest.raises(InputError, match=r"rival is \(0, 0, 0\), which is not a candidate"):
        fit(support="observed").explain(np.zeros((1, 4)), rival=(0, 0, 0))


def test_without_another_class_there_is_no_rival():
    clf = fit().set_prior({0: 1.0, 1: 0.0})
    found = clf.explain(np.zeros((2, 4)))
    frame = found.to_frame()
    assert frame["rival bird"].isna().all()
    assert frame[["log_odds", "energy bird", "bias", "prior"]].isna().all(axis=None)
    assert "no group with another class has a positive probability" in str(found)
    assert found.main_features() == ["", ""]
    assert not len(found.features())


def test_text_and_tables_name_rows_and_features():
    X, codes = make_data()
    table = pd.DataFrame(X, columns=["beak", "wing", "tail", "song"], index=[f"photo {row}" for row in range(len(X))])
    clf = CRMClassifier().fit(table, codes[:, 0], attributes=codes[:, 1])
    found = clf.explain(table[:5])
    frame, features = found.to_frame(), found.features(2)
    assert frame.index.tolist() == [f"photo {row}" for row in range(5)]
    total = frame[["energy y", "energy a", "bias", "prior"]].sum(axis=1)
    np.testing.assert_allclose(total, frame["log_odds"])
    first = features.loc["photo 0"].query("attribute == 'y'")
    assert len(first) == 2
    assert first["contribution"].abs().is_monotonic_decreasing
    assert first["value"].tolist() == table.loc["photo 0", first["feature"]].tolist()
    name, value = first.iloc[0][["feature", "contribution"]]
    text = repr(found)
    assert f"{name} {value:+.2f}".replace("-", "−") in text
    assert "row photo 0: (" in text
    assert "… and 2 more: to_frame() has all of them" in text
    assert len(found.main_features(1)[0].split(",")) == 1
    with pytest.raises(InputError, match="top is 0"):
        found.features(0)


def mixed_table():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2, (400, 2))
    table = pd.DataFrame({"size": rng.normal(size=400) + codes[:, 0], "kind": np.array(["a", "b"])[codes[:, 1]]})
    table.loc[::7, "size"] = np.nan
    return table, codes


def test_columns_of_tables_collect_their_indicators():
    table, codes = mixed_table()
    clf = CRMBoostingClassifier(energies="linear").fit(table, codes[:, 0], attributes=codes[:, 1])
    found = clf.explain(table[:20], rival="group")
    features = found.features(top=None)
    assert set(features["feature"]) == {"size", "kind"}
    assert set(features.query("feature == 'kind'")["value"]) <= {"a", "b"}
    for number, name in enumerate(("y", "a")):
        sums = features[features["attribute"] == name]["contribution"].groupby(level=0).sum()
        np.testing.assert_allclose(sums, found.energies[sums.index, number], atol=1e-9)


def test_trees_have_terms_of_attributes_only():
    pytest.importorskip("lightgbm")
    table, codes = mixed_table()
    clf = CRMBoostingClassifier(max_iter=3, early_stopping=False, n_jobs=1).fit(
        table, codes[:, 0], attributes=codes[:, 1]
    )
    found = clf.explain(table[:20])
    log_proba = clf.group_log_proba(table[:20])
    best = clf.space_.locate(found.groups, clf.groups_)
    rival = clf.space_.locate(found.rivals, clf.groups_)
    expected = log_proba[np.arange(20), best] - log_proba[np.arange(20), rival]
    np.testing.assert_allclose(found.log_odds, expected, atol=1e-9)
    assert found.main_features() is None
    assert "x0" not in str(found)
    with pytest.raises(InputError, match="sums of trees, of which contributions of features are not computed"):
        found.features()
