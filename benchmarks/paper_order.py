"""Do frozen features give the order of methods that the paper has?

    python benchmarks/paper_order.py DIR [NAME] [ROWS]

DIR is what `compshift bench FEATURES --drop each` wrote, with feature files of the paper's data sets; NAME is the
paper's name of the data set (waterbirds, celeba, celeba5). One table has the mean over scenarios of the worst group of
every method: as validation chose among the draws, with the best draw in hindsight, and the paper's fine-tuned number,
which follows another protocol. A second one has the best method of every scenario, ours and the paper's. With ROWS,
groups with fewer test rows do not count, and another column has the accuracy on the dropped groups that remain.
"""

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from scipy.stats import kendalltau

from compshift.bench.paper import PAPER_METHODS, printed
from compshift.bench.records import group_accuracy, is_done, reported
from compshift.bench.results import paper_results
from compshift.bench.selection import choose_draw
from compshift.bench.store import Store


def main() -> None:
    """Read the results and print both tables."""
    folder, name = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else Path(sys.argv[1]).name
    fewest = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    draws: dict[tuple[str, tuple], dict[int, dict]] = defaultdict(dict)
    runs: dict[tuple[str, tuple], dict[tuple[int, int], dict]] = defaultdict(dict)
    for record in Store.open(folder).records():
        config = record["config"]
        dropped = tuple(map(tuple, config["dropped"]))
        if dropped and is_done(record):
            key = printed(config["method"]), dropped
            runs[key][config["draw"], config["seed"]] = record
            if config["seed"] == 0:
                draws[key][config["draw"]] = record
    paper = paper_results()
    methods = [method for method in PAPER_METHODS.values() if any(key[0] == method for key in draws)]
    scenarios = sorted({dropped for _, dropped in draws})
    both = {key: mean_accuracy(runs[key], choose_draw(found, "balanced"), fewest) for key, found in draws.items()}
    chosen = {key: values[0] for key, values in both.items()}
    best = {key: max(accuracy(record, fewest)[0] for record in found.values()) for key, found in draws.items()}
    table = Table(box=SIMPLE, title=f"{name}: worst group, mean over {len(scenarios)} scenarios", title_justify="left")
    headings = ["method", "frozen features", "best draw in hindsight", "paper, fine-tuned (another protocol)"]
    for heading in [*headings, *(["dropped groups"] if fewest > 1 else [])]:
        table.add_column(heading, justify="left" if heading == "method" else "right")
    ours, theirs = [], []
    for method in methods:
        means = [100 * np.mean([found[method, dropped] for dropped in scenarios]) for found in (chosen, best)]
        printed_mean = paper.main[name, method]["worst"].mean
        ours.append(means[0])
        theirs.append(printed_mean)
        dropped_mean = f"{100 * np.nanmean([both[method, dropped][1] for dropped in scenarios]):.1f}"
        row = [method, *(f"{mean:.1f}" for mean in means), f"{printed_mean:.1f}"]
        table.add_row(*row, *([dropped_mean] if fewest > 1 else []))
    console = Console()
    console.print(table)
    console.print(f"rank correlation of the methods (Kendall's tau): {kendalltau(ours, theirs).statistic:.2f}")
    if any(key[0] == name for key in paper.scenarios):
        console.print(best_methods(name, methods, scenarios, chosen, paper))


def accuracy(record: dict, fewest: int) -> tuple[float, float]:
    """Test accuracy of the worst group, and on dropped groups, among groups with at least ``fewest`` test rows."""
    found, rows = group_accuracy(record, "test", reported(record))
    dropped = found[(rows >= fewest) & (np.array(record["seen_rows"]) == 0)]
    return float(found[rows >= fewest].min()), float(dropped.mean()) if dropped.size else np.nan


def mean_accuracy(records: dict, draw: int | None, fewest: int) -> np.ndarray:
    """Mean of ``accuracy`` over the seeds of a draw."""
    return np.mean([accuracy(record, fewest) for (number, _), record in records.items() if number == draw], axis=0)


def best_methods(name: str, methods: list[str], scenarios: list[tuple], chosen: dict, paper) -> Table:
    """Best method by worst group in every scenario, ours and the paper's."""
    table = Table(box=SIMPLE, title="best method by worst group", title_justify="left")
    for heading in ("dropped", "frozen features", "paper, fine-tuned"):
        table.add_column(heading)
    agree = 0
    for dropped in scenarios:
        ours = max(methods, key=lambda method, dropped=dropped: chosen[method, dropped])
        theirs = max(methods, key=lambda method, dropped=dropped: paper.scenarios[name, dropped, method]["worst"].mean)
        agree += ours == theirs
        numbers = f"{100 * chosen[ours, dropped]:.1f}", f"{paper.scenarios[name, dropped, theirs]['worst'].mean:.1f}"
        table.add_row(str(dropped[0]), f"{ours} {numbers[0]}", f"{theirs} {numbers[1]}")
    table.add_row("same", f"{agree} of {len(scenarios)}", "")
    return table


if __name__ == "__main__":
    main()
