"""What long calls show: nothing in scripts, a line or a bar where it is asked for, and scikit-learn's callbacks."""

import io
import sys
import time

import numpy as np
import pytest
from sklearn.utils.parallel import delayed

import compshift as cs
from compshift import _progress
from compshift._progress import in_parallel, steps
from tests.estimators.made_data import make_data


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    monkeypatch.setattr(_progress, "_wanted", None)
    monkeypatch.setattr(_progress, "DELAY", 0.0)


def count(task="folds", total=3):
    with steps(task, total) as advance:
        for _ in range(total):
            time.sleep(0.05)
            advance()


def fit(clf):
    X, codes = make_data(n=300, missing=(2,))
    return clf.fit(X, codes[:, 0], attributes=codes[:, 1])


def test_scripts_show_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    count()
    assert sys.stderr.getvalue() == ""


def test_a_line_is_shown_where_it_is_asked_for(capfd):
    cs.show_progress()
    count()
    assert capfd.readouterr().err == "folds: 3 of 3, 0 s\n"


def test_a_bar_is_shown_on_a_terminal_and_disappears(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    cs.show_progress(True)
    count("fits of the estimator")
    text = sys.stderr.getvalue()
    assert "fits of the estimator" in text
    assert "3/3" in text
    assert text.rstrip().endswith("\x1b[2K")  # erases the line


def test_interactive_sessions_show_a_bar(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    count()
    assert "3/3" in sys.stderr.getvalue()
    cs.show_progress(False)
    monkeypatch.setattr(sys, "stderr", Terminal())
    count()
    assert sys.stderr.getvalue() == ""


def test_quick_calls_show_nothing(capfd, monkeypatch):
    monkeypatch.setattr(_progress, "DELAY", 60.0)
    cs.show_progress()
    count()
    assert capfd.readouterr().err == ""


def test_steps_inside_of_others_are_not_shown(capfd):
    cs.show_progress()
    with steps("methods", 2) as advance:
        count("folds")
        advance()
        count("folds")
        advance()
    assert capfd.readouterr().err == "methods: 2 of 2, 0 s\n"


def test_an_error_ends_the_bar(capfd):
    cs.show_progress()

    def fail_after_one(number):
        if number == 1:
            time.sleep(0.05)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        in_parallel("folds", [delayed(fail_after_one)(number) for number in range(3)], None)
    assert capfd.readouterr().err == "folds: 1 of 3, 0 s\n"


@pytest.mark.parametrize("n_jobs", [None, 2])
def test_calls_in_parallel_keep_their_order(n_jobs):
    assert in_parallel("squares", [delayed(pow)(number, 2) for number in range(5)], n_jobs) == [0, 1, 4, 9, 16]


def test_a_wrong_value_is_named():
    with pytest.raises(cs.InputError, match=r"^show is 'yes', but must be True, False or None$"):
        cs.show_progress("yes")


class Recorder:
    """A callback of scikit-learn that records what it is told."""

    def __init__(self):
        self.events = []

    def setup(self, *_, **__):
        self.events.append("setup")

    def on_fit_task_begin(self, _, context):
        self.events.append(f"begin {context.task_name}")

    def on_fit_task_end(self, _, context):
        self.events.append(f"end {context.task_name}")

    def teardown(self, *_, **__):
        self.events.append("teardown")


class TestCallbacks:
    @pytest.fixture(autouse=True)
    def needs_callbacks(self):
        pytest.importorskip("sklearn.callback")

    def test_they_are_told_of_every_step(self):
        clf, recorder = cs.CRMClassifierCV(alphas=[0.1, 1.0]), Recorder()
        clf.set_callbacks(recorder)
        fit(clf)
        events = recorder.events
        assert (events[:2], events[-2:]) == (["setup", "begin fit"], ["end fit", "teardown"])
        assert "begin settings on held-out groups" in events
        assert "end expected accuracy of unseen groups" in events
        assert events.count("begin step") == events.count("end step") > 5

    def test_they_are_torn_down_after_an_error(self):
        clf, recorder = cs.CRMClassifierCV(alphas=[0.1, 1.0]), Recorder()
        clf.set_callbacks(recorder)
        X, codes = make_data(n=300, missing=(2,))
        with pytest.raises(cs.InputError):
            clf.fit(X, codes[:, 0], attributes=codes[:, 1], unlabelled=X[:, :1])
        assert recorder.events[0] == "setup"
        assert recorder.events[-1] == "teardown"
        assert fit(clf).predict(X).shape == (300,)

    def test_the_fit_is_the_same(self):
        clf = cs.CRMClassifierCV(alphas=[0.1, 1.0])
        clf.set_callbacks(Recorder())
        np.testing.assert_array_equal(fit(clf).coef_, fit(cs.CRMClassifierCV(alphas=[0.1, 1.0])).coef_)
