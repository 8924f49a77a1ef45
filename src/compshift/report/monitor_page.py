"""Results of ``monitor`` as a table in the terminal and as a page."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compshift._errors import InputError
from compshift._files import check_target, replacing
from compshift.core.arrays import IntArray
from compshift.estimators.monitor import MAX_LISTED_ROWS, MonitorReport
from compshift.report.charts import SEEN_COLOUR, UNSEEN_COLOUR, interval_dots
from compshift.report.grid import Cell, Grid, to_rich
from compshift.report.page import (
    Block,
    Card,
    Charts,
    Numbers,
    Page,
    Section,
    Words,
    check_report_packages,
    made_section,
    render_page,
)
from compshift.report.predictions import NON_TERMINAL_WIDTH
from compshift.report.terminal import MAX_ROWS, counted, print_lines

MAX_CHART_GROUPS = 40
"""Largest number of groups in the chart of frequencies."""

STATES = {"training": "var(--soft)", "in use, seen": SEEN_COLOUR, "in use, unseen": UNSEEN_COLOUR}
"""Colours of the marks in the chart of frequencies."""

PAGES = (".html", ".htm")
"""Endings of pages."""


def check_report_paths(paths: Sequence[Path], *sources: str | Path | None) -> None:
    """Raise an InputError unless a report can be written to each of the ``paths``, .json or .html files."""
    for path in paths:
        if path.suffix.lower() not in (".json", *PAGES):
            raise InputError(f"--output is {str(path)!r}: pass a file name that ends in .json or .html")
        check_target(path, *sources)
    if any(path.suffix.lower() in PAGES for path in paths):
        check_report_packages()
    if len({path.resolve() for path in paths}) < len(paths):
        raise InputError("--output names the same file twice: pass different files")


def write_report(report: MonitorReport, path: Path, model: str, source: str) -> None:
    """Write a report as JSON or as a page, depending on the ending of ``path``."""
    if path.suffix.lower() in PAGES:
        text = render_page(monitor_page(report, model, source))
    else:
        text = json.dumps(report.to_dict(), indent=2, allow_nan=False) + "\n"
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode("utf-8", "replace"))  # a file name may contain bytes that are not UTF-8


def print_monitor(report: MonitorReport, *, as_json: bool) -> None:
    """Print what was found, and the groups."""
    if as_json:
        print(json.dumps(report.to_dict(), allow_nan=False))
        return
    from rich.console import Console

    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = NON_TERMINAL_WIDTH
    console.print(to_rich(_groups_table(report, MAX_ROWS)))
    print_lines(console, *_words(report))
    if report.has_outliers:
        shown = report.outlier_rows[:10]
        more = f" and {len(report.outlier_rows) - len(shown)} more" if len(report.outlier_rows) > len(shown) else ""
        print_lines(console, f"rows furthest from every group, counted from 0: {', '.join(map(str, shown))}{more}")


def _words(report: MonitorReport) -> list[str]:
    """Return the findings, the most important first, as sentences that begin in lower case."""
    start = f"{counted(report.n_rows, 'row')} of use"
    if not report.tested:
        return [start, *report.sentences()]
    return [f"{start}: {'ALARM' if report.alarm else 'nothing new'}", *report.sentences()]


def _order(report: MonitorReport) -> IntArray:
    """Return the positions of the groups: new ones, other unseen ones, then seen ones by their frequency in use."""
    certainty = np.where(report.seen, 2.0, np.nan_to_num(report.p_value, nan=1.0))
    return np.lexsort((-np.nan_to_num(report.frequency), certainty, report.seen, ~report.new))


def _groups_table(report: MonitorReport, most: int) -> Grid:
    """Return a table of at most ``most`` groups."""
    headings = ["group", "", "training", "in use", f"{report.confidence:.0%} interval", "change", "p"]
    grid = Grid("monitor", "groups in use", headings, 2)
    order, change = _order(report), report.change
    for position in order[:most]:
        state = "seen" if report.seen[position] else "NEW" if report.new[position] else "unseen"
        if not report.inside_hull[position]:
            state += ", outside the hull"
        known = not np.isnan(report.frequency[position])
        p_value = report.p_value[position]
        texts = [
            f"{report.reference[position]:.1%}",
            f"{report.frequency[position]:.1%}" if known else "",
            f"{report.lower[position]:.1%}–{report.upper[position]:.1%}" if known else "",
            change[position],
            "" if np.isnan(p_value) else f"{p_value:.2g}",
        ]
        grid.add([report.space.label(report.groups[position]), state], [Cell(text) for text in texts])
    if len(order) > most:
        grid.notes.append(f"The first {most} of {len(order):,} groups; the JSON has all of them.")
    return grid


def monitor_page(report: MonitorReport, model: str, source: str) -> Page:
    """Return the page on rows of use: new combinations, frequencies, and rows that fit no group."""
    lead = [_sentence(text) for text in report.sentences()]
    sections = [_frequency_section(report)]
    if report.tested:
        sections += [_outlier_section(report), _method_section(report)]
    facts = [("model", model), ("rows of use", f"{source} ({report.n_rows:,})"), ("level", f"{report.level:g}")]
    sections.append(made_section(*facts))
    warnings = lead if report.alarm or not report.tested else []
    return Page(source, "monitoring", [] if warnings else lead, sections, _cards(report), warnings)


def _cards(report: MonitorReport) -> list[Card]:
    """Return cards with the key figures."""
    cards = [Card(f"{report.n_rows:,}", "rows of use")]
    if report.tested:
        found = str(int(report.new.sum())) if report.new.any() or not report.has_new_groups else "some"
        cards += [
            Card(found, "new combinations found"),
            Card(f"{report.outlier_share:.1%}", "rows that fit no group; 1.0% would by chance"),
        ]
    changed = sum(map(bool, report.change))
    return [
        *cards,
        Card(f"{changed} of {int(report.seen.sum())}", "seen groups clearly more or less frequent than in training"),
    ]


def _frequency_section(report: MonitorReport) -> Section:
    """Return the section on the groups in use."""
    order = _order(report)
    shown = [position for position in order if not np.isnan(report.frequency[position])][:MAX_CHART_GROUPS]
    labels = [report.space.label(report.groups[position]) for position in shown]
    rows: list[dict[str, Any]] = []
    for label, position in zip(labels, shown, strict=True):
        seen = report.seen[position]
        figures = (report.frequency[position], report.lower[position], report.upper[position])
        rows.append(_mark(label, "in use, seen" if seen else "in use, unseen", *figures))
        if seen:
            rows.append(_mark(label, "training", *[report.reference[position]] * 3))
    caption = f"Estimated frequency of each group in use with its {report.confidence:.0%} interval, beside training."
    if len(shown) < len(order):
        caption += f" Of {len(order)} groups, {len(shown)} are shown."
    blocks: list[Block] = [
        Charts([interval_dots(rows, labels, STATES, "frequency", caption, one_line=True)]),
        Numbers(_groups_table(report, MAX_ROWS)),
        Words(
            [
                "p: probability of a sign as strong if the group did not occur, adjusted for the number of groups. "
                "Intervals of unseen groups rest on importance-weighted training rows and are less reliable than "
                "those of seen groups."
            ],
            soft=True,
        ),
    ]
    return Section("Combinations in use", blocks)


def _mark(group: str, state: str, share: float, lower: float, upper: float) -> dict[str, Any]:
    """Return a row of ``interval_dots``."""
    figures = {"share": share, "lower": lower, "upper": upper}
    return {"group": group, "state": state} | {name: round(float(figure), 4) for name, figure in figures.items()}


def _outlier_section(report: MonitorReport) -> Section:
    """Return the section on rows that fit no group."""
    rows = report.outlier_rows
    words = [
        f"{counted(len(rows), 'row')} of {report.n_rows:,} are as far from every group, seen or inside the hull, as "
        f"the furthest 1% of the training rows are (p = {report.outlier_share_p_value:.2g})."
    ]
    if len(rows):
        listed = ", ".join(map(str, rows[:MAX_LISTED_ROWS].tolist()))
        cut = f" (the first {MAX_LISTED_ROWS})" if len(rows) > MAX_LISTED_ROWS else ""
        words.append(f"Row numbers, counted from 0, furthest first{cut}: {listed}.")
    return Section("Rows that fit no group", [Words(words)])


def _method_section(report: MonitorReport) -> Section:
    """Return the section on what the tests assume."""
    return Section(
        "How far to trust it",
        [
            Words(
                [
                    "Rows of seen groups, too, have some probability of unseen ones. How much was measured on training "
                    "rows that the model was not fitted to, and only an excess over it counts. The probability of an "
                    f"alarm is about {report.level:.0%} at most as long as rows of each seen group look as they did in "
                    "training, however frequent the groups are.",
                    "If seen groups look different now (another camera, another season), the alarm can be about that. "
                    "Label some of the rows with the largest probability of the new group to see.",
                ]
            )
        ],
    )


def _sentence(text: str) -> str:
    """Return a text as a sentence."""
    return f"{text[0].upper()}{text[1:]}."
