"""Present an audit as sentences, on the terminal, as JSON, and as a picture of the hull.

The terminal and the report pages share the sentences.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compshift._errors import listing
from compshift.core.combination import tries_per_group
from compshift.data.audit import SMALL_GROUP, Audit
from compshift.metrics.coverage_display import CoverageDisplay
from compshift.report.terminal import print_lines
from compshift.studies.figure_file import check_figure_path, save_figure

if TYPE_CHECKING:
    from rich.console import Console

MAX_AUDIT_GROUPS = 12
"""Maximum number of groups named in a sentence; the rest are only counted."""

INSIDE_MARK = "+"
"""Mark of an unseen group inside the hull, in the grid on the terminal."""

OUTSIDE_MARK = "×"
"""Mark of an unseen group outside the hull, in the grid on the terminal."""


def rows_words(audit: Audit) -> list[str]:
    """Return sentences with the numbers of rows and groups, and of rows that were left out."""
    counts = audit.counts
    sizes = " × ".join(str(size) for size in audit.space.cardinalities)
    lines = [f"{_plain_number(counts.n_rows)} rows in {len(counts.groups)} of {audit.space.n_groups} groups ({sizes})"]
    if counts.n_dropped:
        parts = ", ".join(f"{name}: {_plain_number(number)}" for name, number in counts.missing.items())
        if counts.missing_words:
            parts += f"; {listing(counts.missing_words)} is read as missing"
        lines.append(f"{_plain_number(counts.n_dropped)} rows were left out because an attribute is missing ({parts})")
    return lines


def small_words(audit: Audit) -> list[str]:
    """Return a sentence that names the groups with few rows, if there are any."""
    if not len(audit.small):
        return []
    named = _group_names(audit, audit.counts.groups[audit.small], audit.counts.count[audit.small])
    return [f"fewer than {SMALL_GROUP} rows: {named}"]


def plan_words(audit: Audit) -> list[str]:
    """Return a sentence that names the groups to collect to complete the hull."""
    if audit.hull.is_complete:
        return ["nothing needs to be collected: every combination is determined by the seen ones"]
    noun = "this group" if len(audit.plan) == 1 else f"these {len(audit.plan)} groups, the fewest that suffice"
    return [f"to determine every combination, collect {noun}: {_group_names(audit, np.asarray(audit.plan))}"]


def _coverage_words(audit: Audit) -> list[str]:
    """Return sentences on rank and coverage of the hull, and on the unseen groups inside and outside it."""
    hull, coverage = audit.hull, audit.coverage
    interval = f", 95 % interval {coverage.lower:.2%} to {coverage.upper:.2%}" if coverage.method == "estimate" else ""
    lines = [f"rank {hull.rank} of {hull.full_rank}; {float(coverage):.2%} of all groups are determined{interval}"]
    inside, outside = audit.extrapolable, audit.out_of_reach
    if inside is not None and outside is not None:
        lines.append(f"unseen groups: {len(inside)} can be extrapolated, {len(outside)} out of reach")
        if len(audit.space.names) != 2:
            lines += [f"can be extrapolated: {_group_names(audit, inside)}"] if len(inside) else []
            lines += [f"out of reach: {_group_names(audit, outside)}"] if len(outside) else []
    return lines


def _group_names(audit: Audit, codes: Any, counts: Any = None) -> str:
    """Return the names of at most ``MAX_AUDIT_GROUPS`` groups, with their row counts if given, as one text."""
    labels = [audit.space.label(code) for code in codes[:MAX_AUDIT_GROUPS]]
    if counts is not None:
        labels = [f"{label} {_plain_number(count)}" for label, count in zip(labels, counts, strict=False)]
    more = len(codes) - len(labels)
    return ", ".join(labels) + (f" and {more} more" if more > 0 else "")


def _plain_number(count: float) -> str:
    """Format an integer count without decimals, and a fractional weight with six significant digits."""
    return f"{count:.0f}" if float(count).is_integer() else f"{count:g}"


def print_audit(audit: Audit, *, explain: bool, as_json: bool) -> None:
    """Print coverage, small groups, the groups to collect and, for two attributes, the grid of groups.

    With ``explain``, also print each extrapolable group as a combination of seen groups.
    """
    inside = audit.extrapolable
    if as_json:
        content = audit.to_dict()
        if explain:
            content["witnesses"] = explanations(audit, [] if inside is None else inside)
        print(json.dumps(content))
        return
    from rich.console import Console

    console = Console()
    print_lines(console, *rows_words(audit), *_coverage_words(audit))
    if len(audit.space.names) == 2:
        _print_grid(console, audit)
    print_lines(console, *small_words(audit), *plan_words(audit))
    if explain and inside is not None:
        print_lines(console, *(f"  {line}" for line in explanations(audit, inside[:MAX_AUDIT_GROUPS])))
        if len(inside) > MAX_AUDIT_GROUPS:
            print_lines(console, f"  and {len(inside) - MAX_AUDIT_GROUPS} more; --json --explain lists all of them")


def explanations(audit: Audit, codes: Any) -> list[str]:
    """Return equations that express groups (q, m) inside the hull as the sparsest combinations of seen groups."""
    return [audit.hull.explain(code, audit.counts.count, tries_per_group(len(codes))) for code in codes]


def _print_grid(console: Console, audit: Audit) -> None:
    """Print the grid of two attributes: row counts of seen groups, + for extrapolable and × for out-of-reach groups."""
    from rich.box import SIMPLE
    from rich.markup import escape
    from rich.table import Table

    left, right = audit.space.values
    widest = max(len(str(value)) for value in left)
    if widest + 3 + sum(max(5, len(str(value))) + 3 for value in right) > console.width:
        print_lines(console, "the grid is too wide for this terminal: draw it with -o FILE.png, or widen the terminal")
        return
    cells = np.full(audit.space.cardinalities, OUTSIDE_MARK, dtype=object)
    if audit.extrapolable is not None:
        cells[tuple(audit.extrapolable.T)] = INSIDE_MARK
    for code, count in zip(audit.counts.groups, audit.counts.count, strict=True):
        cells[tuple(code)] = _plain_number(count)
    table = Table(box=SIMPLE, show_edge=False, pad_edge=False)
    table.add_column(escape(f"{audit.space.names[0]} \\ {audit.space.names[1]}"))
    for value in right:
        table.add_column(escape(str(value)), justify="right", no_wrap=True)
    for value, row in zip(left, cells, strict=True):
        table.add_row(escape(str(value)), *row)
    console.print(table)
    print_lines(console, f"{INSIDE_MARK} can be extrapolated, {OUTSIDE_MARK} out of reach")


def draw_hull(audit: Audit, path: Path) -> None:
    """Draw seen, extrapolable and out-of-reach groups (paper, "A Closer Look") by a ``CoverageDisplay``."""
    check_figure_path(path)
    from matplotlib.figure import Figure

    display = CoverageDisplay(audit.hull, audit.counts.groups, audit.counts.count)
    save_figure(display.plot(Figure(layout="constrained")).figure_, path)
