"""Displays: what they draw is what the classifier and the metrics say."""

import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from compshift import CRMClassifier, CRMClassifierCV, GroupSpace, InputError
from compshift.core.bias import ENOUGH_SAMPLES, HEAVY_TAIL
from compshift.metrics import CoverageDisplay, GroupDisplay, ReliabilityDisplay, group_metric, group_report
from compshift.metrics.coverage_display import INSIDE_FILL, OUTSIDE_FILL
from compshift.metrics.displays import MAX_GROUPS, SEEN_FILL, UNSEEN_COLOUR, short
from tests.estimators.made_data import make_data

pytest.importorskip("matplotlib")


@pytest.fixture(autouse=True)
def pyplot():
    import matplotlib
    from matplotlib import pyplot

    matplotlib.use("Agg")
    yield pyplot
    pyplot.close("all")


@pytest.fixture(scope="module")
def fitted():
    X, codes = make_data((3, 4), n=400, missing=(0, 5))
    frame = pd.DataFrame(codes, columns=["bird", "place"])
    return CRMClassifierCV(alphas=[0.1]).fit(X, frame["bird"], attributes=frame["place"]), X, frame


def fills(display):
    """Return the number of cells with each colour, and the texts of the cells."""
    from matplotlib.colors import to_hex

    panels = np.atleast_1d(display.ax_)
    colours = [to_hex(patch.get_facecolor()) for panel in panels for patch in panel.patches]
    return {colour: colours.count(colour) for colour in colours}, [
        text.get_text() for panel in panels for text in panel.texts
    ]


def points(panel, colour):
    """Return positions and values of the points of a colour: {row: value}."""
    found = {}
    for line in panel.lines:
        if line.get_color() == colour and line.get_marker() not in ("None", None, ""):
            found |= dict(zip(np.asarray(line.get_ydata(), dtype=float), line.get_xdata(), strict=True))
    return found


def labels(panel):
    return [label.get_text() for label in panel.get_yticklabels()]


class TestCoverage:
    def test_cells_are_the_groups_of_the_classifier(self, fitted):
        clf, _, frame = fitted
        display = clf.plot_coverage()
        found, texts = fills(display)
        assert found == {SEEN_FILL: 10, INSIDE_FILL: 2}
        assert sorted(texts) == sorted(map(str, frame.value_counts().tolist()))
        assert display.figure_ is display.ax_.figure
        again = CoverageDisplay.from_attributes(frame, space=clf.space_)
        assert fills(again) == (found, texts)

    def test_groups_out_of_reach(self):
        frame = pd.DataFrame({"bird": ["a", "b"], "place": ["x", "y"]})
        assert fills(CoverageDisplay.from_attributes(frame))[0] == {SEEN_FILL: 2, OUTSIDE_FILL: 2}

    def test_one_attribute_is_a_row(self):
        display = CoverageDisplay.from_attributes({"bird": ["a", "b", "b"]})
        assert fills(display) == ({SEEN_FILL: 2}, ["1", "2"])
        assert labels(display.ax_) == []

    def test_three_attributes_share_the_place_of_one_axes(self, pyplot):
        X, codes = make_data((2, 3, 4), missing=(0,))
        clf = CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1:])
        figure, (left, right) = pyplot.subplots(1, 2)
        display = clf.plot_coverage(ax=right)
        assert display.figure_ is figure
        assert len(display.ax_) == 3
        assert sum(fills(display)[0].values()) == 24
        inside = right.get_position()
        assert all(inside.x0 - 1e-9 <= panel.get_position().x0 <= inside.x1 for panel in display.ax_)
        assert not left.patches

    def test_long_values_and_counts_stay_legible(self):
        space = GroupSpace(("bird",), (("a" * 30 + "1", "a" * 30 + "2"),))
        names = [f"{'a' * 30}1"] * 3
        display = CoverageDisplay.from_attributes({"bird": names}, space=space)
        ticks = [tick.get_text() for tick in display.ax_.get_xticklabels()]
        assert [len(tick) for tick in ticks] == [18, 18]
        assert [tick[-1] for tick in ticks] == ["1", "2"]
        large = CoverageDisplay(display.hull, display.groups, np.array([1_234_567.0])).plot()
        assert fills(large)[1] == ["1e+06"]


class TestGroups:
    def test_points_are_the_report_and_empty_groups_have_none(self, fitted):
        clf, X, frame = fitted
        display = clf.plot_groups(X, frame["bird"], attributes=frame["place"])
        report = group_report(frame["bird"], clf.predict(X), frame["place"], space=clf.space_)
        drawn = points(display.ax_, SEEN_FILL)
        assert len(drawn) == 10
        assert sorted(drawn.values()) == sorted(report.accuracy[report.count > 0])
        assert list(drawn.values()) == sorted(drawn.values())  # the worst group first
        assert [text.get_text() for text in display.ax_.texts] == ["no rows"] * 2
        assert labels(display.ax_)[-2:] == ["(0, 0)", "(1, 1)"]
        assert labels(display.ax_)[0].startswith("(")
        assert "n=" in labels(display.ax_)[0]
        expected = points(display.ax_, "#777777")
        frame = clf.expected_group_accuracy_
        assert sorted(expected.values()) == pytest.approx(sorted(frame["accuracy"]))

    def test_unseen_groups_have_a_colour_of_their_own(self, fitted):
        clf = fitted[0]
        X, codes = make_data((3, 4), n=300, missing=())
        display = clf.plot_groups(X, codes[:, 0], attributes=codes[:, 1])
        assert len(points(display.ax_, UNSEEN_COLOUR)) == 2
        assert display.expected is not None

    def test_other_metrics_and_undefined_ones(self, fitted, pyplot):
        clf, X, frame = fitted
        two = CRMClassifier().fit(X, (frame["bird"] > 0).astype(int), attributes=frame["place"])
        y = np.where(frame["place"] == 3, 1, (frame["bird"] > 0).astype(int))
        _, ax = pyplot.subplots()
        options = {"metric": roc_auc_score, "response_method": "predict_proba", "n_resamples": 5}
        display = two.plot_groups(X, y, attributes=frame["place"], ax=ax, **options)
        expected = group_metric(roc_auc_score, y, two.predict_proba(X)[:, 1], frame["place"], n_resamples=5)
        assert sorted(points(ax, SEEN_FILL).values()) == sorted(expected.value[1:3])
        assert [text.get_text() for text in ax.texts] == ["undefined"] * 2  # places 0 and 3
        assert display.ax_ is ax
        assert ax.get_legend() is not None
        losses = GroupDisplay.from_estimator(
            clf, X, frame["bird"], attributes=frame["place"], metric=log_loss, response_method="predict_proba",
            n_resamples=2,
        )  # fmt: skip
        assert losses.result.name == "log_loss"

    def test_many_groups_are_cut_and_said_so(self):
        _, codes = make_data((30, 6), n=2000, missing=())
        report = group_report(codes[:, 0], np.zeros(2000, dtype=int), codes[:, 1])
        space = GroupSpace.from_cardinalities([31, 6], names=["y", "a"])
        display = GroupDisplay.from_predictions(codes[:, 0], codes[:, 0], attributes=codes[:, 1], space=space)
        assert len(labels(display.ax_)) == MAX_GROUPS
        assert display.ax_.get_title() == "the 40 of 186 groups with the lowest accuracy; 6 groups have no rows"
        assert len(points(GroupDisplay(report).plot().ax_, SEEN_FILL)) == MAX_GROUPS

    def test_a_single_group(self):
        display = GroupDisplay.from_predictions(["a"] * 4, ["a", "a", "b", "a"])
        assert points(display.ax_, SEEN_FILL) == {0.0: 0.75}


class TestReliability:
    def test_values_are_those_of_the_unseen_groups(self, fitted):
        clf = fitted[0]
        display = clf.plot_reliability()
        unseen = np.flatnonzero(~clf.seen_)
        order = unseen[np.argsort(clf.effective_sample_size_[unseen])]
        size, tail = display.ax_
        assert list(points(size, UNSEEN_COLOUR).values()) == clf.effective_sample_size_[order].tolist()
        assert list(points(tail, UNSEEN_COLOUR).values()) == clf.pareto_k_[order].tolist()
        assert labels(size) == [clf.space_.label(code) for code in clf.groups_[order]]
        limits = [line.get_xdata()[0] for panel in display.ax_ for line in panel.lines if line.get_linestyle() == "--"]
        assert limits == [ENOUGH_SAMPLES, HEAVY_TAIL]

    def test_without_unseen_groups_the_seen_ones_are_drawn(self):
        X, codes = make_data((2, 3), missing=())
        display = CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1]).plot_reliability()
        assert len(points(display.ax_[0], SEEN_FILL)) == 6

    def test_unknown_tails_have_no_chart(self):
        display = ReliabilityDisplay(["(a)"], [False], [12.0], [np.nan], 50).plot()
        assert len(display.ax_) == 1
        assert display.ax_[0].get_ylabel() == "the 1 of 50 groups with the smallest effective sample size"


def test_bad_arguments_are_one_sentence(fitted, pyplot):
    clf, X, frame = fitted
    with pytest.raises(InputError, match="ax is a str: pass matplotlib Axes"):
        clf.plot_coverage(ax="left")
    with pytest.raises(InputError, match="ax has no place in a grid"):
        clf.plot_reliability(ax=pyplot.figure().add_axes((0, 0, 1, 1)))
    with pytest.raises(InputError, match="clf is a LogisticRegression: pass a fitted classifier over groups"):
        CoverageDisplay.from_estimator(LogisticRegression().fit(X, frame["bird"]))
    with pytest.raises(NotFittedError):
        CRMClassifier().plot_reliability()
    with pytest.raises(InputError, match="response_method is 'scores'"):
        clf.plot_groups(X, frame["bird"], response_method="scores")
    with pytest.raises(InputError, match="response_method is for other metrics than accuracy"):
        clf.plot_groups(X, frame["bird"], response_method="predict_proba")


def test_without_matplotlib_the_error_names_the_extra(fitted, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for call in (fitted[0].plot_coverage, fitted[0].plot_reliability):
        with pytest.raises(InputError, match=r"drawing needs matplotlib: run pip install 'compshift\[plot\]'"):
            call()


def test_short_texts_keep_both_ends():
    assert short("abcdefghij", 10) == "abcdefghij"
    assert short("abcdefghijk", 10) == "abcde…hijk"
