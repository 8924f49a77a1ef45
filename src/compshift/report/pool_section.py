"""The section on the unlabelled rows of a fit: what they changed, which groups they have, and why they were used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from compshift.core.arrays import BoolArray
from compshift.metrics.evaluation import Evaluation, absent_from_training
from compshift.report.charts import SEEN_COLOUR, UNSEEN_COLOUR, interval_dots, round_lines
from compshift.report.grid import Cell, Grid
from compshift.report.page import Block, Chart, Charts, Numbers, Section, Words
from compshift.report.terminal import expected_without, unlabelled_lines
from compshift.report.trust_section import MAX_GROUP_ROWS

MAX_POOL_GROUPS = 40
"""Maximum number of groups in a chart of this section."""

WITHOUT_AND_WITH = {"without unlabelled rows": "var(--soft)", "with unlabelled rows": UNSEEN_COLOUR}
"""Colours of the two fits that are compared."""

SEEN_AND_UNSEEN = {"seen": SEEN_COLOUR, "unseen": UNSEEN_COLOUR}
"""Colours of seen and unseen groups."""


def pool_section(clf: Any, evaluation: Evaluation | None) -> Section | None:
    """Return the section on the unlabelled rows of a fit; None if it had none.

    It compares the accuracy on unseen groups with and without them: on the rows of ``evaluation``, or as expected by
    the model if ``evaluation`` is None.
    """
    decision = getattr(clf, "unlabelled_decision_", None)
    if decision is None:
        return None
    words = [f"{line[0].upper()}{line[1:]}." for line in unlabelled_lines(clf)]
    charts, blocks = _frequency_charts(clf), list[Block]()
    if evaluation is not None and evaluation.without_unlabelled is not None:
        unseen = absent_from_training(clf, evaluation.report.groups)
        words += _accuracy_words(evaluation, unseen)
        charts = _accuracy_charts(evaluation, unseen) + charts
        blocks.append(Numbers(_table(evaluation, unseen), folded=True))
    else:
        charts = _expected_charts(clf) + charts
    if any(value == value for value in decision.held_out[1:]):  # rounds of EM have scores
        charts.append(_round_chart(decision))
    elif decision.used:
        words.append(
            "Whether they help was not tested on held-out groups: `compshift fit --use-unlabelled auto` tests it."
        )
    return Section("Unlabelled rows", [Words(words), *([Charts(charts)] if charts else []), *blocks])


def _accuracy_words(evaluation: Evaluation, unseen: BoolArray) -> list[str]:
    """Return sentences that compare accuracy with and without the unlabelled rows."""
    report, plain = evaluation.report, evaluation.without_unlabelled
    assert plain is not None
    tested = report.count > 0
    parts = [
        f"from {plain.accuracy[chosen].mean():.1%} to {report.accuracy[chosen].mean():.1%} on {state} groups on average"
        for state, chosen in (("unseen", tested & unseen), ("seen", tested & ~unseen))
        if chosen.any()
    ]
    parts.append(f"from {plain.worst:.1%} to {report.worst:.1%} on the worst group")
    return [f"With the unlabelled rows, accuracy changes {', '.join(parts)}."]


def _accuracy_charts(evaluation: Evaluation, unseen: BoolArray) -> list[Chart]:
    """Return a chart of the accuracy on each tested unseen group without and with the unlabelled rows, or nothing."""
    report, plain = evaluation.report, evaluation.without_unlabelled
    assert plain is not None
    tested = np.flatnonzero(unseen & (report.count > 0))
    change = report.accuracy[tested] - plain.accuracy[tested]
    shown = tested[np.argsort(-np.abs(change), kind="stable")][:MAX_POOL_GROUPS] if len(tested) else tested
    if not len(shown):
        return []
    labels = [report.space.label(report.groups[group]) for group in shown]
    rows = [
        _row(label, state, found.accuracy[group], found.lower[group], found.upper[group])
        for label, group in zip(labels, shown, strict=True)
        for state, found in zip(WITHOUT_AND_WITH, (plain, report), strict=True)
    ]
    caption = f"Accuracy on each unseen group without and with the unlabelled rows, {report.confidence:.0%} intervals."
    if len(tested) > len(shown):
        caption += f" Of {len(tested)} groups, the {len(shown)} whose accuracy changes most are shown."
    return [interval_dots(rows, labels, WITHOUT_AND_WITH, "accuracy", caption)]


def _expected_charts(clf: Any) -> list[Chart]:
    """Return a chart of the expected accuracy on unseen groups without and with the unlabelled rows, or nothing."""
    before, after = expected_without(clf), getattr(clf, "expected_group_accuracy_", None)
    if before is None or after is None or not len(after):
        return []
    labels = _labels(clf, after)[:MAX_POOL_GROUPS]
    rows = [
        _row(label, state, *values)
        for state, frame in zip(WITHOUT_AND_WITH, (before, after), strict=True)
        for label, values in zip(labels, frame[["accuracy", "lower", "upper"]].to_numpy(), strict=False)
    ]
    caption = (
        "Expected accuracy on each unseen group without and with the unlabelled rows, estimated on held-out groups "
        "during the fit, with its interval."
    )
    if len(after) > len(labels):
        caption += f" The first {len(labels)} of {len(after)} groups."
    return [interval_dots(rows, labels, WITHOUT_AND_WITH, "expected accuracy", caption)]


def _frequency_charts(clf: Any) -> list[Chart]:
    """Return a chart of the estimated frequency of each group among the unlabelled rows, or nothing."""
    frame = getattr(clf, "unlabelled_prior_", None)
    if frame is None:
        return []
    n_groups = len(frame)
    frame = frame.iloc[np.argsort(-frame["probability"].to_numpy(), kind="stable")[:MAX_POOL_GROUPS]]
    labels = _labels(clf, frame)
    states = ["seen" if seen else "unseen" for seen in frame["seen"]]
    rows = [
        _row(label, state, *values)
        for label, state, values in zip(
            labels, states, frame[["probability", "lower", "upper"]].to_numpy(), strict=True
        )
    ]
    caption = (
        "Estimated frequency of each group among the unlabelled rows, with 90% intervals, which assume that the model "
        "is right."
    )
    if n_groups > len(frame):
        caption += f" Of {n_groups} groups, the {len(frame)} most frequent are shown."
    return [interval_dots(rows, labels, SEEN_AND_UNSEEN, "frequency", caption)]


def _round_chart(decision: Any) -> Chart:
    """Return a chart of the accuracy on held-out groups, and on held-out rows of others, by the round of EM."""
    rows = [
        {"round": number, "state": state, "accuracy": round(float(accuracy), 4)}
        for state, values in (("unseen", decision.held_out), ("seen", decision.seen))
        for number, accuracy in enumerate(values)
        if accuracy == accuracy
    ]
    caption = (
        "Mean accuracy by the round of EM when groups are held out in turn: on the held-out groups, which then are "
        "unseen, and on held-out rows of the other groups. The unlabelled rows are used only if accuracy on the "
        "held-out groups rises clearly."
    )
    return round_lines(rows, caption)


def _table(evaluation: Evaluation, unseen: BoolArray) -> Grid:
    """Return a table of the accuracy on every tested group with and without the unlabelled rows."""
    report, plain = evaluation.report, evaluation.without_unlabelled
    assert plain is not None
    grid = Grid("pool", "Every tested group", ["group", "in training", "rows", "without", "with", "change"], 2)
    tested = np.flatnonzero(report.count > 0)
    order = tested[np.argsort(~unseen[tested], kind="stable")]
    for group in order[:MAX_GROUP_ROWS]:
        before, after = plain.accuracy[group], report.accuracy[group]
        figures = [str(int(report.count[group])), f"{before:.3f}", f"{after:.3f}", f"{after - before:+.3f}"]
        grid.add([report.space.label(report.groups[group]), evaluation.states[group]], [Cell(text) for text in figures])
    if len(order) > MAX_GROUP_ROWS:
        grid.notes.append(f"The first {MAX_GROUP_ROWS} of {len(order)} groups, unseen ones first.")
    return grid


def _labels(clf: Any, frame: Any) -> list[str]:
    """Return the labels of the groups in the rows of a table."""
    codes = clf.space_.encode(frame[list(clf.space_.names)])
    return [clf.space_.label(code) for code in codes]


def _row(group: str, state: str, share: float, lower: float, upper: float) -> Mapping[str, Any]:
    """Return a row of ``interval_dots``."""
    figures: Sequence[float] = (share, lower, upper)
    return {"group": group, "state": state} | {
        name: round(float(figure), 4) for name, figure in zip(("share", "lower", "upper"), figures, strict=True)
    }
