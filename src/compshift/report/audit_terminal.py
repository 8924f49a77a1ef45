"""An audit on the terminal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from compshift.data.audit import Audit
from compshift.report.audit_words import MAX_LISTED, coverage_words, plain_number, plan_words, rows_words, small_words

if TYPE_CHECKING:
    from rich.console import Console

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
    _say(console, *rows_words(audit), *coverage_words(audit))
    if len(audit.space.names) == 2:
        _print_grid(console, audit)
    _say(console, *small_words(audit), *plan_words(audit))
    if explain and audit.extrapolable is not None:
        for code in audit.extrapolable[:MAX_LISTED]:
            _say(console, f"  {audit.hull.explain(code)}")
        if len(audit.extrapolable) > MAX_LISTED:
            _say(console, f"  and {len(audit.extrapolable) - MAX_LISTED} more; --json --explain has them all")


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
        cells[tuple(code)] = plain_number(count)
    table = Table(box=SIMPLE, show_edge=False, pad_edge=False)
    table.add_column(escape(f"{audit.space.names[0]} \\ {audit.space.names[1]}"))
    for value in right:
        table.add_column(escape(str(value)), justify="right", no_wrap=True)
    for value, row in zip(left, cells, strict=True):
        table.add_row(escape(str(value)), *row)
    console.print(table)
    _say(console, f"{INSIDE_MARK} can be extrapolated, {OUTSIDE_MARK} out of reach")


def _listed(codes: Any) -> Any:
    return [] if codes is None else codes


def _say(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
