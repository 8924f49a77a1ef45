"""A page on a fitted model, and on how it does on labelled rows if there are any.

A page on a table alone: which combinations it has, lacks, and would need.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compshift.core.hull import AffineHull
from compshift.data.audit import Audit, GroupCounts, audit_groups
from compshift.data.dataset import GroupedDataset
from compshift.metrics import GroupReport
from compshift.metrics.evaluation import Evaluation, evaluate
from compshift.report.coverage_section import coverage_cards, coverage_lead, coverage_section
from compshift.report.group_accuracy import GroupAccuracy, accuracy_blocks, bar_blocks
from compshift.report.page import Block, Card, Page, Section, Words, made_section
from compshift.report.trust_section import trust_section


def model_page(
    clf: Any,
    name: str,
    data: GroupedDataset | None = None,
    part: str = "",
    source: str = "",
    judge: bool | None = None,
    prior: str | None = None,
) -> Page:
    """What the model was fitted to, what it extrapolates, how well it does, and how far to trust it.

    ``prior`` is named as the one that is in force, if it is not that of the fit.
    """
    audit = _audit(clf)
    evaluation = None if data is None else evaluate(clf, data)
    lead, cards = coverage_lead(audit), coverage_cards(audit)
    sections = [coverage_section(audit)]
    warnings = []
    if evaluation is None:
        warnings.append("No labelled rows were given: this page says nothing about accuracy.")
    else:
        found = _by_group(clf, evaluation)
        lead.append(_accuracy_words(evaluation, found, part))
        cards += _accuracy_cards(evaluation, found)
        sections.append(_accuracy_section(evaluation, found, part))
        unknown = found.unseen & (evaluation.report.count > 0) & ~_inside(clf, evaluation)
        if unknown.any():
            warnings.append(
                f"{int(unknown.sum())} of the tested groups lie outside the hull of the seen ones: training does not "
                "determine them."
            )
    sections += [trust_section(clf, evaluation, data, judge), made_section(*_facts(clf, name, source, part, prior))]
    return Page(name, "model", lead, sections, cards, warnings)


def _audit(clf: Any) -> Audit:
    seen = np.asarray(clf.seen_)
    weight = np.asarray(clf.group_weight_, dtype=np.float64)[seen]
    return audit_groups(GroupCounts(clf.space_, clf.groups_[seen], weight, float(weight.sum()), 0, {}))


def _by_group(clf: Any, evaluation: Evaluation) -> GroupAccuracy:
    report = evaluation.report
    place = clf.space_.locate(report.groups, clf.groups_)
    unseen = (place < 0) | ~np.asarray(clf.seen_)[place]
    return GroupAccuracy(clf.space_, report.groups, unseen, report.count, ("this model",), report.accuracy[None])


def _inside(clf: Any, evaluation: Evaluation) -> Any:
    hull = AffineHull(clf.space_, clf.groups_[np.asarray(clf.seen_)])
    return hull.contains(evaluation.report.groups)


def _accuracy_words(evaluation: Evaluation, found: GroupAccuracy, part: str) -> str:
    report = evaluation.report
    worst = ", ".join(map(str, report.worst_group))
    tested = found.unseen & (report.count > 0)
    unseen = ""
    if tested.any():
        number = int(tested.sum())
        groups, end = (f"{number} tested groups", " on average") if number > 1 else ("one tested group", "")
        unseen = f"; on the {groups} that training lacked it is {report.accuracy[tested].mean():.1%}{end}"
    return (
        f"On {_rows(report, part)} the accuracy is {report.average:.1%}, and {report.worst:.1%} on "
        f"the worst group, ({worst}){unseen}."
    )


def _rows(report: GroupReport, part: str) -> str:
    number = int(report.count.sum())
    return f"{number:,} {'' if part == 'all' else part + ' '}row{'s' * (number != 1)}"


def _accuracy_cards(evaluation: Evaluation, found: GroupAccuracy) -> list[Card]:
    report = evaluation.report
    cards = [
        Card(f"{report.average:.1%}", "average accuracy"),
        Card(f"{report.worst:.1%}", f"worst group, ({', '.join(map(str, report.worst_group))})"),
    ]
    tested = found.unseen & (report.count > 0)
    if tested.any():
        cards.append(Card(f"{report.accuracy[tested].mean():.1%}", _unseen_words(int(tested.sum()))))
    return cards


def _unseen_words(number: int) -> str:
    return "the unseen group" if number == 1 else f"mean over {number} unseen groups"


def _accuracy_section(evaluation: Evaluation, found: GroupAccuracy, part: str) -> Section:
    report = evaluation.report
    words = [
        f"{_rows(report, part)}: average accuracy {report.average:.3f}, balanced "
        f"{report.balanced:.3f}, worst group {report.worst:.3f}."
    ]
    if report.n_empty:
        words.append(f"{report.n_empty} of {report.space.n_groups} groups have no rows here and count for nothing.")
    blocks: list[Block] = [Words(words)]
    seen = np.where(found.unseen, np.nan, found.accuracy)
    unseen = np.where(found.unseen, found.accuracy, np.nan)
    blocks += bar_blocks(found.methods, seen, unseen)
    blocks += accuracy_blocks(found, "Accuracy of each group in percent.")
    return Section("Accuracy", blocks)


def _facts(clf: Any, name: str, source: str, part: str, prior: str | None) -> list[tuple[str, str]]:
    facts = [("model", name)]
    if source:
        facts.append(("evaluated on", f"{source} ({part} rows)" if part != "all" else source))
    solved = getattr(clf, "n_iter_", 0) > 0  # not trained by gradients, with settings of its own
    for label, attribute in (
        *([("alpha", "alpha_")] if solved else []),
        ("prior", "prior"),
        ("bias", "selected_bias_"),
        *([("iterations", "n_iter_")] if solved else []),
    ):
        value = prior if label == "prior" and prior is not None else getattr(clf, attribute, None)
        if isinstance(value, str | int | float) and value == value:
            facts.append((label, f"{value:g}" if isinstance(value, float) else str(value)))
    return facts


def table_page(audit: Audit, name: str) -> Page:
    """Coverage, the grid to explore, and what to collect."""
    facts = [("table", name), ("attributes", ", ".join(audit.space.names))]
    sections = [coverage_section(audit), made_section(*facts)]
    return Page(name, "table", coverage_lead(audit), sections, coverage_cards(audit))
