"""An audit in sentences.

An audit on the terminal.

Named data sets on the terminal, or as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from compshift._errors import listing
from compshift.data.audit import SMALL_GROUP, Audit
from compshift.data.benchmarks import Benchmark
from compshift.data.dataset import GroupedDataset
from compshift.data.splits import SPLITS
from compshift.report.terminal import MAX_ROWS, plain_table

if TYPE_CHECKING:
    from rich.console import Console

    from compshift.core.arrays import IntArray

MAX_LISTED = 12
"""So many groups are named in a list."""


def rows_words(audit: Audit) -> list[str]:
    """What there is."""
    counts = audit.counts
    sizes = " × ".join(str(size) for size in audit.space.cardinalities)
    lines = [f"{plain_number(counts.n_rows)} rows in {len(counts.groups)} of {audit.space.n_groups} groups ({sizes})"]
    if counts.n_dropped:
        parts = ", ".join(f"{name}: {plain_number(number)}" for name, number in counts.missing.items())
        if counts.missing_words:
            parts += f"; {listing(counts.missing_words)} is read as missing"
        lines.append(f"{plain_number(counts.n_dropped)} rows were left out because an attribute is missing ({parts})")
    return lines


def coverage_words(audit: Audit) -> list[str]:
    """How much follows from what there is."""
    hull, coverage = audit.hull, audit.coverage
    interval = f", 95 % interval {coverage.lower:.2%} to {coverage.upper:.2%}" if coverage.method == "estimate" else ""
    lines = [f"rank {hull.rank} of {hull.full_rank}; {float(coverage):.2%} of all groups are determined{interval}"]
    inside, outside = audit.extrapolable, audit.out_of_reach
    if inside is not None and outside is not None:
        lines.append(f"unseen groups: {len(inside)} can be extrapolated, {len(outside)} out of reach")
        if len(audit.space.names) != 2:
            lines += [f"can be extrapolated: {group_names(audit, inside)}"] if len(inside) else []
            lines += [f"out of reach: {group_names(audit, outside)}"] if len(outside) else []
    return lines


def small_words(audit: Audit) -> list[str]:
    """Which groups have few rows, if any."""
    if not len(audit.small):
        return []
    named = group_names(audit, audit.counts.groups[audit.small], audit.counts.count[audit.small])
    return [f"fewer than {SMALL_GROUP} rows: {named}"]


def plan_words(audit: Audit) -> list[str]:
    """What to collect."""
    if audit.hull.is_complete:
        return ["nothing needs to be collected: every combination is determined by the seen ones"]
    noun = "this group" if len(audit.plan) == 1 else f"these {len(audit.plan)} groups, the fewest that will do"
    return [f"to determine every combination, collect {noun}: {group_names(audit, np.asarray(audit.plan))}"]


def group_names(audit: Audit, codes: Any, counts: Any = None) -> str:
    """Groups by name, and their rows where given; long lists are cut."""
    labels = [audit.space.label(code) for code in codes[:MAX_LISTED]]
    if counts is not None:
        labels = [f"{label} {plain_number(count)}" for label, count in zip(labels, counts, strict=False)]
    more = len(codes) - len(labels)
    return ", ".join(labels) + (f" and {more} more" if more > 0 else "")


def plain_number(count: float) -> str:
    """A count without decimals it does not have."""
    return f"{count:.0f}" if float(count).is_integer() else f"{count:g}"


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


MAX_SENTENCES = 10
"""Longer lists of warnings are cut."""


def print_benchmarks(benchmarks: Sequence[Benchmark], *, as_json: bool) -> None:
    """Every data set, with its kind and where it comes from."""
    if as_json:
        content = [
            {
                "name": known.name,
                "title": known.title,
                "kind": known.kind,
                "groups": known.groups,
                "embedded": known.embedded,
                "download": known.download or None,
            }
            for known in benchmarks
        ]
        print(json.dumps(content, ensure_ascii=False))
        return
    from rich.console import Console

    table = plain_table("data sets")
    for heading in ("name", "samples", "groups", "from"):
        table.add_column(heading, no_wrap=True)
    table.add_column("what", overflow="fold")
    for known in benchmarks:
        where = "embedded" if known.embedded else "download"
        table.add_row(known.name, known.kind, known.groups, where, known.title)
    Console().print(table)


def print_check(known: Benchmark, data: GroupedDataset, broken: Sequence[str], *, as_json: bool) -> None:
    """What was found, its groups by split, and everything that is not as it should be."""
    groups, counts = _counts(data)
    warnings = known.differences(data)
    untested = [group for group, row in zip(groups, counts, strict=True) if not row[2]]
    if untested and "test" in data.splits:
        listed = ", ".join(data.space.label(code) for code in untested[:4])
        warnings.append(f"{len(untested)} group{'s have' if len(untested) > 1 else ' has'} no test rows: {listed}")
    absent = [name for name in SPLITS if name not in data.splits]
    if absent:
        warnings.append(f"there are no {' and no '.join(absent)} rows")
    if as_json:
        values = data.space.decode(groups).tolist()
        content = {
            "name": known.name,
            "found": data.source,
            "kind": data.kind,
            "attributes": dict(zip(data.space.names, map(list, data.space.values), strict=True)),
            "rows": {name: int(counts[:, code].sum()) for code, name in enumerate(SPLITS)},
            "groups": [
                {"group": value, **dict(zip(SPLITS, row, strict=True))}
                for value, row in zip(values, counts.tolist(), strict=True)
            ],
            "warnings": warnings,
            "broken": list(broken),
        }
        print(json.dumps(content, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.markup import escape

    console = Console()
    console.print(
        f"{known.name}: {len(data)} rows of {data.kind}, found as {data.source}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    table = plain_table("rows of each group")
    for name in data.space.names:
        table.add_column(escape(name), overflow="fold")
    for name in SPLITS:
        table.add_column(name, justify="right")
    for value, row in list(zip(data.space.decode(groups), counts, strict=True))[:MAX_ROWS]:
        table.add_row(*(escape(str(entry)) for entry in value), *(str(count) for count in row))
    if len(groups) > MAX_ROWS:
        table.caption = f"the first {MAX_ROWS} of {len(groups)} groups; --json has them all"
    table.add_section()
    blank = [""] * (len(data.space.names) - 1)
    table.add_row("all", *blank, *(str(count) for count in counts.sum(axis=0)))
    console.print(table)
    for title, sentences in (("warning", warnings), ("broken", list(broken))):
        for sentence in sentences[:MAX_SENTENCES]:
            console.print(f"{title}: {sentence}", highlight=False, markup=False, soft_wrap=True)
        if len(sentences) > MAX_SENTENCES:
            console.print(f"{title}: {len(sentences) - MAX_SENTENCES} more; --json has them all", highlight=False)


def _counts(data: GroupedDataset) -> tuple[IntArray, IntArray]:
    """The groups that occur, (g, m), and their rows in each split, (g, 3)."""
    groups, position = data.space.distinct(data.codes)
    split = np.zeros(len(data), dtype=np.int64) if data.split is None else data.split
    counts = np.bincount(position * len(SPLITS) + split, minlength=len(groups) * len(SPLITS))
    return groups, counts.reshape(len(groups), len(SPLITS))
