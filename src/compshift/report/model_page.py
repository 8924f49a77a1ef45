"""The page on a fitted model, optionally with its accuracy on labelled rows, and the page on a table."""

from __future__ import annotations

from typing import Any

import numpy as np

from compshift.core.hull import AffineHull
from compshift.data.audit import Audit, GroupCounts, audit_groups
from compshift.data.dataset import GroupedDataset
from compshift.metrics import GroupReport
from compshift.metrics.evaluation import Evaluation, absent_from_training, evaluate
from compshift.report.accuracy_section import GroupAccuracy, accuracy_blocks, bar_blocks
from compshift.report.coverage_section import coverage_cards, coverage_lead, coverage_section
from compshift.report.page import Block, Card, Page, Section, Words, made_section
from compshift.report.pool_section import pool_section
from compshift.report.trust_section import trust_section


def model_page(
    clf: Any,
    name: str,
    data: GroupedDataset | None = None,
    part: str = "",
    source: str = "",
    additivity: bool | None = None,
    prior: str | None = None,
) -> Page:
    """Return the page on a model: coverage of its training groups, accuracy, unlabelled rows of its fit, and trust.

    ``data`` are labelled rows to evaluate, namely the split ``part`` of the file ``source``; without them the page has
    no accuracies. ``additivity`` says whether to test if the energies are additive; None tests it only if that takes
    seconds. ``prior`` names the current prior if it differs from that of the fit.
    """
    audit = model_audit(clf)
    evaluation = None if data is None else evaluate(clf, data)
    lead, cards = coverage_lead(audit), coverage_cards(audit)
    sections = [coverage_section(audit)]
    warnings = []
    if evaluation is None:
        warnings.append(
            "No labelled rows were given, so this page has no accuracies: add them to the `compshift report` command."
        )
    else:
        found = _group_accuracy(clf, evaluation)
        lead.append(_accuracy_words(evaluation, found, part))
        cards += _accuracy_cards(evaluation, found)
        sections.append(_accuracy_section(evaluation, found, part))
        hull = AffineHull(clf.space_, clf.groups_[np.asarray(clf.seen_)])
        unknown = found.unseen & (evaluation.report.count > 0) & ~hull.contains(evaluation.report.groups)
        if unknown.any():
            warnings.append(
                f"{int(unknown.sum())} of the tested groups are outside the affine hull of the seen groups: training "
                "does not determine them."
            )
    pool = pool_section(clf, evaluation)
    sections += [
        *([] if pool is None else [pool]),
        trust_section(clf, evaluation, data, additivity),
        made_section(*model_facts(clf, name, source, part, prior)),
    ]
    return Page(name, "model", lead, sections, cards, warnings)


def model_audit(clf: Any) -> Audit:
    """Return the audit of the groups in a model's training data."""
    seen = np.asarray(clf.seen_)
    weight = np.asarray(clf.group_weight_, dtype=np.float64)[seen]
    return audit_groups(GroupCounts(clf.space_, clf.groups_[seen], weight, float(weight.sum()), 0, {}))


def _group_accuracy(clf: Any, evaluation: Evaluation) -> GroupAccuracy:
    """Return the model's accuracy on every group, and whether each group was absent from training."""
    report = evaluation.report
    unseen = absent_from_training(clf, report.groups)
    accuracy = report.accuracy[None]
    return GroupAccuracy(clf.space_, report.groups, unseen, report.count, ("this model",), accuracy, report.confidence)


def _accuracy_words(evaluation: Evaluation, found: GroupAccuracy, part: str) -> str:
    """Return a sentence with the average, worst-group and unseen-group accuracy."""
    report = evaluation.report
    worst = ", ".join(map(str, report.worst_group))
    tested = found.unseen & (report.count > 0)
    unseen = ""
    if tested.any():
        number = int(tested.sum())
        groups, end = (f"{number} tested groups", " on average") if number > 1 else ("one tested group", "")
        unseen = f"; on the {groups} absent from training it is {report.accuracy[tested].mean():.1%}{end}"
    return (
        f"On {_rows(report, part)} the average accuracy is {report.average:.1%}, and {report.worst:.1%} on "
        f"the worst group, ({worst}){unseen}."
    )


def _rows(report: GroupReport, part: str) -> str:
    """Return the number of evaluated rows with their split, for example ``1,200 test rows``."""
    number = int(report.count.sum())
    return f"{number:,} {'' if part == 'all' else part + ' '}row{'s' * (number != 1)}"


def _accuracy_cards(evaluation: Evaluation, found: GroupAccuracy) -> list[Card]:
    """Return cards with the average, worst-group and unseen-group accuracy."""
    report = evaluation.report
    cards = [
        Card(f"{report.average:.1%}", "average accuracy"),
        Card(f"{report.worst:.1%}", f"worst group, ({', '.join(map(str, report.worst_group))})"),
    ]
    tested = found.unseen & (report.count > 0)
    if tested.any():
        number = int(tested.sum())
        meaning = "the unseen group" if number == 1 else f"mean over {number} unseen groups"
        cards.append(Card(f"{report.accuracy[tested].mean():.1%}", meaning))
    return cards


def _accuracy_section(evaluation: Evaluation, found: GroupAccuracy, part: str) -> Section:
    """Return the accuracy section: averages, bars of seen and unseen groups, and a heat map."""
    report = evaluation.report
    words = [
        f"{_rows(report, part)}: average accuracy {report.average:.3f}, balanced "
        f"{report.balanced:.3f}, worst group {report.worst:.3f}."
    ]
    if report.n_empty:
        words.append(
            f"{report.n_empty} of {report.space.n_groups} groups have no rows here and are left out of these averages."
        )
    blocks: list[Block] = [Words(words)]
    seen = np.where(found.unseen, np.nan, found.accuracy)
    unseen = np.where(found.unseen, found.accuracy, np.nan)
    blocks += bar_blocks(found.methods, seen, unseen)
    blocks += accuracy_blocks(found, "Accuracy of each group in percent.")
    return Section("Accuracy", blocks)


def model_facts(clf: Any, name: str, source: str, part: str, prior: str | None) -> list[tuple[str, str]]:
    """Return the model's name, its settings, and the rows that it was evaluated on."""
    facts = [("model", name)]
    if source:
        facts.append(("evaluated on", f"{source} ({part} rows)" if part != "all" else source))
        facts.append(("attributes in use", "unknown"))
    solved = getattr(clf, "n_iter_", 0) > 0  # a network trained by gradient descent has no alpha or iterations
    for label, attribute in (
        *([("alpha", "alpha_")] if solved else []),
        ("prior", "prior"),
        ("bias", "selected_bias_"),
        *([("transform", "feature_transform_")] if getattr(clf, "feature_transform_", "none") != "none" else []),
        *([("iterations", "n_iter_")] if solved else []),
    ):
        value = prior if label == "prior" and prior is not None else getattr(clf, attribute, None)
        if isinstance(value, str | int | float) and value == value:
            facts.append((label, f"{value:g}" if isinstance(value, float) else str(value)))
    return facts


def table_page(audit: Audit, name: str) -> Page:
    """Return the page on a table: its coverage, with the interactive grid, and the groups to collect."""
    facts = [("table", name), ("attributes", ", ".join(audit.space.names))]
    sections = [coverage_section(audit), made_section(*facts)]
    return Page(name, "table", coverage_lead(audit), sections, coverage_cards(audit))
