"""Results on the terminal, or as JSON for other programs.

An extraction of features on the terminal, or as JSON.

An exported model on the terminal, or as JSON.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compshift.metrics import GroupReport

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from compshift.crm.classifier import CRMClassifier
    from compshift.estimators.evaluation import Evaluation
    from compshift.export.onnx import OnnxFile
    from compshift.features.extract import Extraction
    from compshift.studies.gaussian2d import Gaussian2DStudy
    from compshift.studies.growth import GrowthOutcome
    from compshift.studies.hull import HullGrowth

SMALL_ESS = 30
"""A bias that rests on fewer samples than this is called uncertain."""

WIDEST = 1000
"""Columns of what is no terminal."""

MAX_ROWS = 200
"""Longer tables show their first rows only."""


def print_fit(clf: CRMClassifier, n_rows: int, path: Path, *, as_json: bool) -> None:
    """What a fit found: groups, hull, convergence, and how far the biases can be trusted."""
    size = clf.effective_sample_size_
    unseen = clf.inside_hull_ & ~clf.seen_
    result = {
        "model": str(path),
        "rows": n_rows,
        "features": int(clf.n_features_in_),
        "seen_groups": int(clf.seen_.sum()),
        "extrapolated_groups": int(unseen.sum()),
        "groups_outside_hull": int((~clf.inside_hull_).sum()),
        "hull_rank": clf.hull_.rank,
        "hull_full_rank": clf.hull_.full_rank,
        "alpha": clf.alpha_,
        "anchor": clf.anchor_,
        "bias": clf.chosen_bias_,
        "unseen_offset": clf.unseen_offset_,
        "converged": clf.converged_,
        "iterations": clf.n_iter_,
        "bias_gap": clf.bias_gap_,
        "smallest_extrapolated_effective_sample_size": float(size[unseen].min()) if unseen.any() else None,
    }
    expected = getattr(clf, "expected_group_accuracy_", None)
    if expected is not None:
        result["folds"] = getattr(clf, "n_splits_", None)
        result["expected_accuracy"] = expected.to_dict(orient="records")
    if as_json:
        print(json.dumps(result))
        return
    print(f"{n_rows} rows of {clf.n_features_in_} features, attributes {', '.join(clf.space_.names)}")
    print(
        f"groups: {result['seen_groups']} seen, {result['extrapolated_groups']} extrapolated, "
        f"{result['groups_outside_hull']} outside the hull"
    )
    state = "converged" if clf.converged_ else "NOT converged"
    print(f"fit: {state} after {clf.n_iter_} iterations, max |B* - B| = {clf.bias_gap_:.1e}")
    if unseen.any():
        position = int(np.flatnonzero(unseen)[np.argmin(size[unseen])])
        note = " (uncertain)" if size[position] < SMALL_ESS else ""
        print(
            f"trust: the extrapolated biases rest on {size[position]:.0f} samples or more; "
            f"the least is {clf.space_.label(clf.groups_[position])}{note}"
        )
    if expected is not None:
        how = "" if (clf.anchor_, clf.chosen_bias_) == ("zero", "extrapolated") else f", {clf.anchor_} anchor"
        how += "" if clf.chosen_bias_ == "extrapolated" else f", {clf.chosen_bias_} bias"
        offset = round(clf.unseen_offset_, 2) + 0.0  # never −0.00
        how += f", unseen groups {offset:+.2f} nats" if offset else ""
        print(f"chosen on held-out groups ({clf.n_splits_} folds): alpha {clf.alpha_:g}{how}")
    if expected is not None and len(expected):
        worst = expected.loc[expected["accuracy"].idxmin()]
        name = ", ".join(str(worst[attribute]) for attribute in clf.space_.names)
        print(
            f"expected accuracy on the {len(expected)} unseen groups: {expected['accuracy'].mean():.2f} on average, "
            f"{worst['accuracy']:.2f} ({worst['lower']:.2f} to {worst['upper']:.2f}) on the worst, ({name})"
        )
    print(f"model written to {path}")


def print_evaluation(evaluation: Evaluation, part: str, *, as_json: bool) -> None:
    """Accuracy by group, with what training had of each."""
    report = evaluation.report
    if as_json:
        content = {"rows": int(report.count.sum()), "split": part, **evaluation.to_dict()}
        print(json.dumps(content, allow_nan=False))
        return
    from rich.console import Console

    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDEST  # a file or a pipe has no edge
    console.print(_evaluation_table(evaluation, part, console))
    worst = ", ".join(map(str, report.worst_group))
    lines = [
        f"average accuracy {report.average:.3f}, balanced {report.balanced:.3f}",
        f"worst group {report.worst:.3f}, ({worst})",
    ]
    if report.compositional_risk == math.inf:
        lines.append("compositional risk infinite: a group that occurs has no probability under this prior")
    elif report.compositional_risk is not None:
        lines.append(f"compositional risk {report.compositional_risk:.3f} nats")
    if report.n_empty:
        lines.append(f"{report.n_empty} of {report.space.n_groups} groups are empty and count for nothing")
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _evaluation_table(evaluation: Evaluation, part: str, console: Console) -> Table:
    """One row per group; where that is too wide, some columns are left to --json, the interval last of all."""
    from rich.measure import Measurement

    for size, foretold in ((True, True), (False, True), (False, False)):
        table = _evaluation_columns(evaluation, part, interval=True, size=size, foretold=foretold)
        if Measurement.get(console, console.options.update(max_width=WIDEST), table).maximum <= console.width:
            return table
    table = _evaluation_columns(evaluation, part, interval=False, size=False, foretold=False)
    table.caption = f"{table.caption}, and the intervals" if table.caption else "--json has the intervals"
    return table


def _evaluation_columns(evaluation: Evaluation, part: str, *, interval: bool, size: bool, foretold: bool) -> Table:
    """The table with or without the interval, the effective sample size and, if there is one, the expected accuracy."""
    from rich.markup import escape

    report = evaluation.report
    table = plain_table(f"accuracy by group ({part} rows)")
    for name in report.space.names:
        table.add_column(escape(name), overflow="fold", min_width=8)
    foretold = foretold and not np.isnan(evaluation.expected).all()
    headings = [
        "rows",
        "accuracy",
        *([f"{report.confidence:.0%} interval"] if interval else []),
        *(["expected"] if foretold else []),
        *(["ESS"] if size else []),
    ]
    for name in headings:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("in training", no_wrap=True)
    values = report.space.decode(report.groups)
    for row in range(min(len(report.groups), MAX_ROWS)):
        held = report.count[row] > 0
        ess, expected = evaluation.effective_sample_size[row], evaluation.expected[row, 0]
        cells = [
            str(report.count[row]),
            f"{report.accuracy[row]:.3f}" if held else "empty",
            *([f"{report.lower[row]:.3f}–{report.upper[row]:.3f}" if held else ""] if interval else []),
            *(["" if np.isnan(expected) else f"{expected:.3f}"] if foretold else []),
            *(["" if np.isnan(ess) else f"{ess:.0f}"] if size else []),
            evaluation.states[row],
        ]
        table.add_row(*(escape(str(value)) for value in values[row]), *cells)
    if len(report.groups) > MAX_ROWS:
        table.caption = f"the first {MAX_ROWS} of {len(report.groups)} groups; --json has them all"
    return table


def plain_table(title: str) -> Table:
    """An empty table without a frame, which fits more into 80 columns."""
    from rich.box import SIMPLE
    from rich.markup import escape
    from rich.table import Table

    return Table(box=SIMPLE, show_edge=False, pad_edge=False, title=escape(title), title_justify="left")


def print_gaussian2d(study: Gaussian2DStudy, *, as_json: bool) -> None:
    """Accuracies of every method on every group of the two-dimensional example."""
    if as_json:
        tasks: dict[str, dict[str, GroupReport]] = {"z1": study.classes, "group": study.groups}
        content: dict[str, Any] = {
            task: {name: report.to_dict() for name, report in reports.items()} for task, reports in tasks.items()
        }
        print(json.dumps(content))
        return
    from rich.console import Console

    console = Console()
    for title, reports in (("predicting z1", study.classes), ("predicting the group (z1, z2)", study.groups)):
        table = plain_table(f"accuracy when {title}")
        table.add_column("group")
        for name in reports:
            table.add_column(name, justify="right")
        space = next(iter(reports.values())).space
        missing = ~study.crm.seen_
        for position, code in enumerate(study.crm.groups_):
            label = space.label(code) + (" never seen" if missing[position] else "")
            table.add_row(label, *(f"{report.accuracy[position]:.3f}" for report in reports.values()))
        table.add_section()
        table.add_row("average", *(f"{report.average:.3f}" for report in reports.values()))
        table.add_row("worst group", *(f"{report.worst:.3f}" for report in reports.values()))
        console.print(table, "")


def print_hull_example(cells: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """How many cells of the grid are seen, follow and do not, for each component."""
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
    console.print(f"{sum(not cell['component'] for cell in cells)} cells are out of reach", highlight=False)


def print_hull_growth(rows: Sequence[HullGrowth], *, as_json: bool) -> None:
    """Draws until the hull is complete, beside the paper's bounds."""
    if as_json:
        print(json.dumps([row.to_dict() for row in rows]))
        return
    from rich.console import Console

    table = plain_table("groups drawn until every combination is determined")
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
    """Accuracy on z1 for every setting and share of groups, averaged over the seeds."""
    if as_json:
        print(json.dumps([outcome.to_dict() for outcome in outcomes], allow_nan=False))
        return
    from rich.console import Console

    table = plain_table("accuracy on z1 when a share of the groups is kept")
    for heading in ("m", "d", "norm", "kept", "inside", "alpha", "all", "seen", "unseen", "Bayes"):
        table.add_column(heading, justify="right", no_wrap=True)
    keys = dict.fromkeys((outcome.job.attributes, outcome.job.values, outcome.job.share) for outcome in outcomes)
    for m, d, share in keys:
        part = [o for o in outcomes if (o.job.attributes, o.job.values, o.job.share) == (m, d, share)]
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


@contextmanager
def progress_bar(title: str, total: int, unit: str = "") -> Iterator[Callable[[int], None]]:
    """A bar on standard error with the rate and the time that is left; nothing where that is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    rate = [TextColumn("{task.fields[rate]}")] if unit else []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *rate, TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(title, total=total, rate="")

        def advance(count: int) -> None:
            progress.advance(task, count)
            speed = progress.tasks[0].speed
            progress.update(task, rate=f"{speed:.1f} {unit}/s" if speed else "")

        yield advance


MAX_SENTENCES = 10
"""More broken samples than this are counted only."""


def print_extraction(done: Extraction, backbone: str, *, as_json: bool) -> None:
    """What was computed, what was there, what was left out, and how fast it went."""
    if as_json:
        content = {
            "folder": str(done.folder),
            "backbone": backbone,
            "rows": done.rows,
            "features": done.features,
            "shards": done.shards,
            "shards_reused": done.reused,
            "broken": list(done.broken),
            "seconds": done.seconds,
            "forward_seconds": done.forward_seconds,
        }
        print(json.dumps(content))
        return
    reused = f", {done.reused} of them from before" if done.reused else ""
    shards = f"{done.shards} shard{'s' * (done.shards > 1)}"
    print(f"{done.rows} rows of {done.features} features by {backbone} in {shards}{reused}")
    if done.forward_seconds:
        share = 1 - done.forward_seconds / done.seconds
        print(f"{done.seconds:.1f} s, {share:.0%} of them outside the backbone")
    for sentence in done.broken[:MAX_SENTENCES]:
        print(f"left out: {sentence}")
    if len(done.broken) > MAX_SENTENCES:
        print(f"left out: {len(done.broken) - MAX_SENTENCES} more; --json lists them")
    print(f"features written to {done.folder}")


def print_onnx_file(written: OnnxFile, *, as_json: bool) -> None:
    """What the file takes and gives."""
    if as_json:
        content = {
            "model": str(written.path),
            "bytes": written.size,
            "inputs": {name: list(shape) for name, shape in written.inputs.items()},
            "outputs": {name: list(shape) for name, shape in written.outputs.items()},
        }
        print(json.dumps(content))
        return
    print(f"inputs: {_listed(written.inputs)}{' (may be left out)' * ('prior' in written.inputs)}")
    print(f"outputs: {_listed(written.outputs)}")
    print(f"model written to {written.path}")


def _listed(shapes: Mapping[str, tuple[int | None, ...]]) -> str:
    """``X (N, 5), prior (6)``."""
    return ", ".join(
        f"{name} ({', '.join('N' if axis is None else str(axis) for axis in shape)})" for name, shape in shapes.items()
    )
