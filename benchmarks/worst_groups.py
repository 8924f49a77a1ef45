"""Which groups are the worst ones: those that training lacked, or those that it had few rows of?

    python benchmarks/worst_groups.py DIR

DIR is what `compshift bench` wrote. For every method: in how many scenarios the worst group is a dropped one, and the
mean accuracy of groups by how many training rows they had.
"""

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from compshift.bench.results import PAPER_METHODS, VARIANTS, printed
from compshift.bench.scores import group_accuracy, reported
from compshift.bench.selection import choose_draw
from compshift.bench.store import Store

BINS = ((0, 0), (1, 5), (6, 10**9))
NAMES = ("dropped", "1 to 5 rows", "more rows")


def main() -> None:
    """Read the results and print the table."""
    units = defaultdict(dict)
    for record in Store.open(Path(sys.argv[1])).records():
        config = record["config"]
        if config["seed"] == 0:
            units[config["method"], config["scenario"]][config["draw"]] = record
    found: dict[str, list[tuple[bool, list[float]]]] = defaultdict(list)
    for (method, _), draws in units.items():
        chosen = choose_draw(draws, "balanced")
        if chosen is not None:
            record = draws[chosen]
            for predictor, name in {**({} if method != "crm" else VARIANTS), reported(record): printed(method)}.items():
                found[name].append(look(record, predictor))
    table = Table(box=SIMPLE, title=f"worst groups in {sys.argv[1]}", title_justify="left")
    for heading in ("method", "scenarios", "dropped is worst", *NAMES):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for name in [*PAPER_METHODS.values(), *(name for name in found if name not in PAPER_METHODS.values())]:
        if name in found:
            rows = found[name]
            means = np.nanmean([accuracy for _, accuracy in rows], axis=0)
            share = f"{sum(worst for worst, _ in rows)} of {len(rows)}"
            table.add_row(name, str(len(rows)), share, *(f"{mean:.3f}" for mean in means))
    Console().print(table)


def look(record: dict, predictor: str) -> tuple[bool, list[float]]:
    """Whether a dropped group is the worst, and the mean accuracy of groups by their training rows."""
    accuracy, rows = group_accuracy(record, "test", predictor)
    seen = np.array(record["seen_rows"])
    tested = rows > 0
    lowest = np.nanmin(accuracy)
    means = []
    for low, high in BINS:
        inside = tested & (seen >= low) & (seen <= high)
        means.append(float(accuracy[inside].mean()) if inside.any() else float("nan"))
    return bool((accuracy[tested & (seen == 0)] == lowest).any()), means


if __name__ == "__main__":
    main()
