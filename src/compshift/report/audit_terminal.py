"""An audit on the terminal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from compshift.data.audit import SMALL_GROUP, Audit

if TYPE_CHECKING:
    from rich.console import Console

MAX_LISTED = 12
"""So many groups are named in a list; --json has them all."""

INSIDE_MARK, OUTSIDE_MARK = "+", "×"


def print_audit(audit: Audit, *, explain: bool, as_json: bool) -> None:
    """Coverage, the grid of two attributes, small groups, and the plan in words."""
    if as_json:
        content = audit.to_dict()
        if explain:
            content["witnesses"] = [audit.hull.explain(code) for code in _listed(audit.extrapolable)]
        print(json.dumps(content))
        return
    from rich.console import Console

    console = Console()
    _say(console, *_summary(audit))
    if len(audit.space.names) == 2:
        _print_grid(console, audit)
    if len(audit.small):
        named = _names(audit, audit.counts.groups[audit.small], audit.counts.count[audit.small])
        _say(console, f"fewer than {SMALL_GROUP} rows: {named}")
    _say(console, *_plan(audit))
    if explain and audit.extrapolable is not None:
        for code in audit.extrapolable[:MAX_LISTED]:
            _say(console, f"  {audit.hull.explain(code)}")
        if len(audit.extrapolable) > MAX_LISTED:
            _say(console, f"  and {len(audit.extrapolable) - MAX_LISTED} more; --json --explain has them all")


def _summary(audit: Audit) -> list[str]:
    """What there is, in sentences."""
    counts, hull, coverage = audit.counts, audit.hull, audit.coverage
    sizes = " × ".join(str(size) for size in audit.space.cardinalities)
    lines = [f"{_number(counts.n_rows)} rows in {len(counts.groups)} of {audit.space.n_groups} groups ({sizes})"]
    if counts.n_dropped:
        parts = ", ".join(f"{name}: {number}" for name, number in counts.missing.items())
        lines.append(f"{counts.n_dropped} rows were left out because an attribute is missing ({parts})")
    interval = f", 95 % interval {coverage.lower:.2%} to {coverage.upper:.2%}" if coverage.method == "estimate" else ""
    lines.append(f"rank {hull.rank} of {hull.full_rank}; {float(coverage):.2%} of all groups are determined{interval}")
    inside, outside = audit.extrapolable, audit.out_of_reach
    if inside is not None and outside is not None:
        lines.append(f"unseen groups: {len(inside)} can be extrapolated, {len(outside)} out of reach")
        if len(audit.space.names) != 2:
            lines += [f"can be extrapolated: {_names(audit, inside)}"] if len(inside) else []
            lines += [f"out of reach: {_names(audit, outside)}"] if len(outside) else []
    return lines


def _plan(audit: Audit) -> list[str]:
    """What to collect, in words."""
    if audit.hull.is_complete:
        return ["nothing needs to be collected: every combination is determined by the seen ones"]
    noun = "this group" if len(audit.plan) == 1 else f"these {len(audit.plan)} groups, the fewest that will do"
    return [f"to determine every combination, collect {noun}: {_names(audit, np.asarray(audit.plan))}"]


def _print_grid(console: Console, audit: Audit) -> None:
    """The attribute grid: rows of a seen group, + where a group can be extrapolated, × where it is out of reach."""
    from rich.box import SIMPLE
    from rich.markup import escape
    from rich.table import Table

    left, right = audit.space.values
    widest = max(len(str(value)) for value in left)
    if widest + 3 + sum(max(5, len(str(value))) + 3 for value in right) > console.width:
        _say(console, "the grid is too wide for this terminal: -o FILE.png draws it")
        return
    cells = np.full(audit.space.cardinalities, OUTSIDE_MARK, dtype=object)
    if audit.extrapolable is not None:
        cells[tuple(audit.extrapolable.T)] = INSIDE_MARK
    for code, count in zip(audit.counts.groups, audit.counts.count, strict=True):
        cells[tuple(code)] = _number(count)
    table = Table(box=SIMPLE, show_edge=False, pad_edge=False)
    table.add_column(escape(f"{audit.space.names[0]} \\ {audit.space.names[1]}"))
    for value in right:
        table.add_column(escape(str(value)), justify="right", no_wrap=True)
    for value, row in zip(left, cells, strict=True):
        table.add_row(escape(str(value)), *row)
    console.print(table)
    _say(console, f"{INSIDE_MARK} can be extrapolated, {OUTSIDE_MARK} out of reach")


def _names(audit: Audit, codes: Any, counts: Any = None) -> str:
    """Groups by name, and their rows where given; long lists are cut."""
    labels = [audit.space.label(code) for code in codes[:MAX_LISTED]]
    if counts is not None:
        labels = [f"{label} {_number(count)}" for label, count in zip(labels, counts, strict=False)]
    more = len(codes) - len(labels)
    return ", ".join(labels) + (f" and {more} more" if more > 0 else "")


def _number(count: float) -> str:
    """A count without decimals it does not have."""
    return f"{count:.0f}" if float(count).is_integer() else f"{count:g}"


def _listed(codes: Any) -> Any:
    return [] if codes is None else codes


def _say(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
