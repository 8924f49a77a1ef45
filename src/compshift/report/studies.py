"""Print the numbers of the paper's studies as text or as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from compshift.report.terminal import plain_table, print_lines
from compshift.studies.growth import training_rows

if TYPE_CHECKING:
    from compshift.metrics import GroupReport
    from compshift.studies.gaussian2d import Gaussian2DStudy
    from compshift.studies.growth import GrowthOutcome
    from compshift.studies.hull import HullGrowth


def print_architecture(*, as_json: bool) -> None:
    """Print the caption of the diagram, which has no numbers."""
    from rich.console import Console

    from compshift.studies.architecture import ARCHITECTURE_CAPTION

    if as_json:
        print(json.dumps({"caption": ARCHITECTURE_CAPTION}))
    else:
        Console().print(ARCHITECTURE_CAPTION, highlight=False, markup=False)


def print_three_groups(groups: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print the one-hot codes of the four groups, and the weights that combine three of them to the fourth."""
    if as_json:
        print(json.dumps(list(groups)))
        return
    from rich.console import Console

    table = plain_table("three groups determine the fourth")
    table.caption = (
        "weight: the seen groups' codes, times their weights, add up to the unseen group's code, and so do energies; "
        "energy: −log p(x|z) at x = (−1, −1)"
    )
    for heading in ("group", "", "one-hot code", "weight", "energy"):
        table.add_column(heading, justify="right" if heading in ("weight", "energy") else "left")
    for group in groups:
        label, seen = f"({group['z1']}, {group['z2']})", group["seen"]
        weight = f"{group['weight']:+d}" if seen else ""
        table.add_row(label, "" if seen else "never seen", group["code"], weight, f"{group['energy']:.3f}")
    Console().print(table)


def print_gaussian2d(study: Gaussian2DStudy, tasks: Mapping[str, Mapping[str, GroupReport]], *, as_json: bool) -> None:
    """Print the accuracy of every method on every group of the two-dimensional example, for each task."""
    if as_json:
        print(json.dumps({task: {name: report.to_dict() for name, report in tasks[task].items()} for task in tasks}))
        return
    from rich.console import Console

    console = Console()
    for task, reports in tasks.items():
        table = plain_table(f"accuracy when predicting {'the group (z1, z2)' if task == 'group' else task}")
        table.add_column("group")
        for name in reports:
            table.add_column(name, justify="right")
        accuracies = [report.accuracy[study.rows_of(report)] for report in reports.values()]
        for position, code in enumerate(study.crm.groups_):
            label = study.crm.space_.label(code) + ("" if study.crm.seen_[position] else " never seen")
            table.add_row(label, *(f"{accuracy[position]:.3f}" for accuracy in accuracies))
        table.add_section()
        table.add_row("average", *(f"{report.average:.3f}" for report in reports.values()))
        table.add_row("worst group", *(f"{report.worst:.3f}" for report in reports.values()))
        console.print(table, "")


def print_hull_example(cells: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print the numbers of seen and of extrapolable cells in each connected component of the example grid."""
    if as_json:
        print(json.dumps(list(cells)))
        return
    from rich.console import Console

    table = plain_table("cells of the 6 × 6 grid")
    table.add_column("component")
    for heading in ("seen", "can be extrapolated"):
        table.add_column(heading, justify="right")
    for number in sorted({cell["component"] for cell in cells} - {0}):
        states = [cell["state"] for cell in cells if cell["component"] == number]
        table.add_row(str(number), str(states.count("seen")), str(states.count("extrapolable")))
    console = Console()
    console.print(table)
    outside = sum(not cell["component"] for cell in cells)
    print_lines(console, f"{outside} cells are outside the affine hull of the seen cells and cannot be extrapolated")


def print_hull_steps(cells: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print the groups that each step adds to the training data, and the size of the hull after it."""
    if as_json:
        print(json.dumps(list(cells)))
        return
    from rich.console import Console

    d = max(cell["z1"] for cell in cells)
    table = plain_table(f"a complete hull of {d} × {d} groups, step by step")
    table.add_column("step", justify="right")
    table.add_column("added groups")
    for heading in ("groups in training", "groups inside the hull"):
        table.add_column(heading, justify="right")
    for number in range(1, max(cell["step"] for cell in cells) + 1):
        added = [cell for cell in cells if cell["state"] == "added" and cell["step"] <= number]
        new = ", ".join(f"({cell['z1']}, {cell['z2']})" for cell in added if cell["step"] == number)
        inside = sum(cell["step"] <= number for cell in cells)
        table.add_row(str(number), new, str(len(added)), str(inside))
    Console().print(table)


def print_hull_growth(rows: Sequence[HullGrowth], *, as_json: bool) -> None:
    """Print the number of random draws that complete the affine hull, next to the paper's bounds."""
    if as_json:
        print(json.dumps([row.to_dict() for row in rows]))
        return
    from rich.console import Console

    table = plain_table("random draws of groups until every group is inside the affine hull")
    table.caption = (
        "m attributes of d values each; groups: number of groups; least: fewest groups that can suffice; mean: draws, "
        "± standard error over trials; 90 %: draws that sufficed in 90 % of trials; last two columns: the paper's "
        "upper bounds on that number, with c = 10 (the second for two attributes only)"
    )
    for heading in ("m", "d", "groups", "least", "mean", "90 %", "2c(md+d log d)", "8cd log d"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            str(row.attributes),
            str(row.values),
            str(row.groups),
            str(row.least),
            f"{row.mean:.1f} ± {row.standard_error:.1f}",
            f"{row.quantile:.0f}",
            f"{row.bound:.0f}",
            "" if row.two_attribute_bound is None else f"{row.two_attribute_bound:.0f}",
        )
    Console().print(table)


def print_growth(outcomes: Sequence[GrowthOutcome], *, as_json: bool) -> None:
    """Print the accuracy of predicting z1 for every setting and share of kept groups, averaged over seeds."""
    if as_json:
        print(json.dumps([outcome.to_dict() for outcome in outcomes], allow_nan=False))
        return
    from rich.console import Console

    table = plain_table("accuracy of predicting z1 when only a share of the groups is in training")
    table.caption = (
        "m attributes of d values each; norm: norm of the values' means; kept: share of groups in training; inside: "
        "share of all groups inside the affine hull of the kept ones; alpha: median of the chosen ridges; all, seen, "
        "unseen: accuracy on those groups (unseen: only inside the hull); Bayes: accuracy of the Bayes classifier. "
        + training_rows(outcomes)
    )
    for heading in ("m", "d", "norm", "kept", "inside", "alpha", "all", "seen", "unseen", "Bayes"):
        table.add_column(heading, justify="right", no_wrap=True)
    keys = dict.fromkeys((outcome.case.attributes, outcome.case.values, outcome.case.share) for outcome in outcomes)
    for m, d, share in keys:
        part = [o for o in outcomes if (o.case.attributes, o.case.values, o.case.share) == (m, d, share)]
        unseen = [outcome.accuracy_unseen for outcome in part if not math.isnan(outcome.accuracy_unseen)]
        table.add_row(
            str(m),
            str(d),
            f"{part[0].norm:.2f}",
            f"{share:.0%}",
            f"{np.mean([outcome.share_inside for outcome in part]):.0%}",
            f"{np.median([outcome.alpha for outcome in part]):g}",
            f"{np.mean([outcome.accuracy for outcome in part]):.3f}",
            f"{np.mean([outcome.accuracy_seen for outcome in part]):.3f}",
            f"{np.mean(unseen):.3f}" if unseen else "",
            f"{np.mean([outcome.bayes for outcome in part]):.3f}",
        )
    Console().print(table)
