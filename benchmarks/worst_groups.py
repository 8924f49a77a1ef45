"""Which groups are the worst ones, and what would another choice of the ridge have given?

    python benchmarks/worst_groups.py DIR

DIR is what `compshift bench --features` wrote. For every method: in how many scenarios the worst group is a dropped
one, and the mean accuracy of groups by how many training rows they had; then, for methods that are solved, worst and
dropped groups at every ridge that was drawn, whichever validation chose.
"""

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from compshift.bench.paper import PAPER_METHODS, VARIANTS, printed
from compshift.bench.records import dropped_accuracy, group_accuracy, reported, scores
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
            columns = zip(*(accuracy for _, accuracy in rows), strict=True)
            held = [[value for value in column if value == value] for column in columns]
            share = f"{sum(worst for worst, _ in rows)} of {len(rows)}"
            table.add_row(name, str(len(rows)), share, *(f"{np.mean(part):.3f}" if part else "" for part in held))
    Console().print(table, by_ridge(units))


def by_ridge(units: dict) -> Table:
    """Mean over scenarios of worst and dropped groups, and how often validation chose the draw."""
    names = {"lc": "LC", "sla": "sLA", "learned-uniform": "CRM with B_hat", "extrapolated-uniform": "CRM"}
    found, times = defaultdict(list), defaultdict(int)
    for (method, _), draws in units.items():
        for draw, record in draws.items():
            for predictor in record["right"]["test"]:
                name = names.get(method if predictor == "default" else predictor)
                if name:
                    alpha = record["config"]["common"]["alpha"]
                    found[name, alpha].append(
                        (scores(record, "test", predictor)["worst"], dropped_accuracy(record, predictor))
                    )
                    times[name, alpha] += draw == choose_draw(draws, "balanced")
    table = Table(box=SIMPLE, title="at every ridge", title_justify="left")
    for heading in ("method", "ridge", "worst group", "dropped groups", "chosen"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for name, alpha in sorted(found, key=lambda key: (list(names.values()).index(key[0]), key[1])):
        rows = found[name, alpha]
        worst, dropped = np.nanmean(rows, axis=0)  # without dropped groups, their accuracy is NaN
        table.add_row(name, f"{alpha:.2g}", f"{worst:.3f}", f"{dropped:.3f}", f"{times[name, alpha]} of {len(rows)}")
    return table


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
