"""monitor: new groups, quiet without any, groups outside the hull, rows that fit no group, reports and messages."""

import functools
import json

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import compshift as cs
from compshift import AffineExtrapolation, CRMClassifier, GroupSpace, InputError, monitor

GROUPS = np.array([[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]])
SPREAD = np.array([3.0, 3.0, 3.0, 3.0])
SEEN = (0, 0.3, 0.2, 0.2, 0.2, 0.1)


def rows(share, n=1000, seed=0):
    """Return rows around additive means: the first attribute moves one feature, each value of the second another."""
    rng = np.random.default_rng(seed)
    codes = GROUPS[rng.choice(6, size=n, p=share)]
    means = np.column_stack([codes[:, 0], *(codes[:, 1] == value for value in range(3))])
    return rng.normal(size=(n, 4)) + SPREAD * means, codes


@functools.cache
def fitted(share=SEEN):
    X, codes = rows(share, n=1500, seed=9)
    space = GroupSpace(("bird", "place"), (("duck", "gull"), ("lake", "sea", "wood")))
    names = [np.array(values)[column] for values, column in zip(space.values, codes.T, strict=True)]
    clf = CRMClassifier(1e-2, cross_fit=True, prior="hull")
    return clf.fit(X, names[0], attributes={"place": names[1]}, space=GroupSpace(("y", "place"), space.values))


def with_new(part):
    return (part, *((1 - part) * share for share in SEEN[1:]))


def test_a_new_group_is_found_and_named():
    report = monitor(fitted(), rows(with_new(0.03))[0])
    assert report.alarm
    assert report.has_new_groups
    assert report.new_groups == [("duck", "lake")]
    frame = report.to_frame()
    new = frame[frame["new"]].iloc[0]
    assert not new["seen"]
    assert new["inside_hull"]
    assert new["p_value"] < 1e-3
    assert 0.01 < new["lower"] < new["frequency"] < new["upper"] < 0.1
    assert "a combination occurs that training lacked: (duck, lake)" in str(report)


def test_rows_as_in_training_are_quiet_and_their_frequencies_in_the_intervals():
    alarms, inside = [], []
    for seed in range(20):
        X, codes = rows(SEEN, n=300, seed=seed)
        report = monitor(fitted(), X)
        alarms.append(report.alarm)
        share = np.bincount(GROUPS.shape[0] - 6 + codes[:, 0] * 3 + codes[:, 1], minlength=6) / 300
        inside.append((report.lower <= share) & (share <= report.upper))
    assert sum(alarms) <= 3
    assert np.mean(inside) > 0.9


def test_other_frequencies_of_seen_groups_are_a_change_but_no_alarm():
    report = monitor(fitted(), rows((0, 0.05, 0.2, 0.2, 0.05, 0.5))[0])
    assert not report.alarm
    assert report.change == ["", "less", "", "", "less", "more"]


def test_a_group_outside_the_hull_is_named_as_such():
    share = (0, 0.5, 0, 0.5, 0, 0)  # (duck, sea) and (gull, lake): nothing connects them
    report = monitor(fitted(share), rows((0.1, 0.4, 0, 0.4, 0.1, 0))[0])
    outside = {group for group in report.new_groups if group in {("duck", "lake"), ("gull", "sea")}}
    assert report.alarm
    assert outside or report.has_outliers
    if outside:
        assert "outside the hull" in str(report)
        assert not report.to_frame().query("new")["inside_hull"].any()


def test_rows_that_fit_no_group_are_listed():
    X = rows(SEEN)[0]
    X[[7, 500]] = [[-30.0, 40, 40, 40], [60.0, -20, 0, 0]]
    X[100:140] += [15.0, -15, -15, 15]
    report = monitor(fitted(), X)
    assert report.has_outliers
    assert report.alarm
    assert {7, 500, *range(100, 140)} <= set(report.outlier_rows.tolist())
    assert report.outlier_share == pytest.approx(len(report.outlier_rows) / 1000)


def test_the_dictionary_is_json_and_the_same_every_time():
    X = rows(with_new(0.03))[0]
    one, other = (monitor(fitted(), X).to_dict() for _ in range(2))
    text = json.dumps(one, allow_nan=False)
    assert text == json.dumps(other, allow_nan=False)
    assert one["new_combinations"]["groups"] == [{"y": "duck", "place": "lake"}]
    assert set(one) == {
        "rows", "alarm", "tested", "level", "confidence", "new_combinations", "outliers", "groups", "notes"
    }  # fmt: skip
    assert len(one["groups"]) == 6
    assert one["groups"][0]["p_value"] < 0.05
    assert one["groups"][1]["p_value"] is None


def test_it_survives_saving(tmp_path):
    X = rows(with_new(0.03))[0]
    fitted().save(tmp_path / "m.safetensors")
    found = monitor(cs.load(tmp_path / "m.safetensors"), X).to_dict()
    assert found == monitor(fitted(), X).to_dict()


def test_the_prior_of_the_model_does_not_matter():
    X = rows(with_new(0.03))[0]
    X_train, y, place = _training()
    clf = CRMClassifier(1e-2, cross_fit=True).fit(X_train, y, attributes=place)
    before = monitor(clf, X).to_dict()
    assert monitor(clf.set_prior("train"), X).to_dict() == before


def _training():
    X, codes = rows(SEEN, n=1500, seed=9)
    return X, codes[:, 0], codes[:, 1]


def test_a_pipeline_gives_the_same_as_its_steps():
    X, y, place = _training()
    scaler = StandardScaler().fit(X)
    clf = CRMClassifier(1e-2, cross_fit=True).fit(scaler.transform(X), y, attributes=place)
    new = rows(with_new(0.03))[0]
    pipe = make_pipeline(scaler, clf)
    assert monitor(pipe, new).to_dict() == monitor(clf, scaler.transform(new)).to_dict()


@pytest.mark.parametrize(
    "clf", [CRMClassifier(1e-2), AffineExtrapolation(LogisticRegression(), random_state=0)], ids=["crm", "affine"]
)
def test_a_model_without_out_of_fold_energies_says_so(clf):
    clf.fit(*_training()[:2], attributes=_training()[2])
    report = monitor(clf, rows(with_new(0.03))[0])
    assert not report.tested
    assert not report.alarm
    assert report.new_groups == []
    assert "out-of-fold energies: fit a CRMClassifierCV" in str(report)
    assert report.frequency.sum() == pytest.approx(1.0)
    json.dumps(report.to_dict(), allow_nan=False)


def test_training_with_every_group_has_no_new_groups():
    report = monitor(fitted((0.1, 0.2, 0.2, 0.2, 0.2, 0.1)), rows((0.5, 0.1, 0.1, 0.1, 0.1, 0.1))[0])
    assert not report.has_new_groups
    assert "training has every combination" in report.sentences()[0]


@pytest.mark.parametrize("n", [1, 2, 30])
def test_few_rows_of_seen_groups_are_no_alarm(n):
    assert not monitor(fitted(), rows(SEEN, n=n)[0]).alarm


def test_it_is_readable_in_notebooks():
    report = monitor(fitted(), rows(with_new(0.03))[0])
    assert repr(report).startswith("MonitorReport(1000 rows: a combination occurs")
    page = report._repr_html_()
    assert "<table" in page
    assert "duck" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"level": 2}, "level is 2"),
        ({"confidence": "high"}, "confidence is 'high'"),
        ({"X": np.ones((3, 7))}, "7 features"),
        ({"X": np.full((3, 4), np.nan)}, "NaN"),
        ({"X": np.ones((0, 4))}, "0 sample"),
        ({"clf": LogisticRegression()}, "clf is a LogisticRegression"),
    ],
)
def test_bad_input_is_one_sentence(arguments, message):
    given = {"clf": fitted(), "X": rows(SEEN)[0]} | arguments
    with pytest.raises((InputError, ValueError), match=message) as error:
        monitor(given.pop("clf"), given.pop("X"), **given)
    assert "\n" not in str(error.value)


def test_too_many_rows_and_groups(monkeypatch):
    monkeypatch.setattr("compshift.estimators.monitor.MAX_MONITOR_CELLS", 5000)
    with pytest.raises(InputError, match="1000 rows and 6 groups are too many to monitor"):
        monitor(fitted(), rows(SEEN)[0])
