"""Named data sets on the terminal, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from compshift.data.benchmarks import Benchmark
from compshift.data.dataset import SPLITS, GroupedDataset
from compshift.report.terminal import MAX_ROWS, plain_table

if TYPE_CHECKING:
    from compshift.core.arrays import IntArray

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
