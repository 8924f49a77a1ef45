"""The paper's tables, of our results, of the paper's, or of both side by side."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from compshift.bench.results import Results, Score, Scores
from compshift.bench.selection import DroppedGroups
from compshift.report.grid import Cell, Grid

HEADINGS = {
    "average": "average",
    "weighted": "weighted",
    "balanced": "balanced",
    "worst": "worst group",
    "unseen": "unseen groups",
}

MEANING = "Test accuracy in percent, mean (standard error) over seeds of the mean over scenarios."
MEANINGS = {
    "average": "Average: share of right rows, so groups count as often as they are tested.",
    "weighted": "Weighted: the average with groups as frequent as in training before any was dropped.",
    "unseen": "Unseen groups: rows of groups that training lacked.",
}
STANDARD = "None dropped: the worst group when every group is in training."
SOLVED = "A method that is solved to its optimum has no randomness, and no error."
PARTIAL = "* over fewer scenarios or seeds than there are."


def make_tables(results: Results, paper: Results | None = None) -> list[Grid]:
    """Every table that there are numbers for; with ``paper`` beside the paper's numbers where it has any."""
    if paper is not None:
        return [*_compared(results, paper)]
    grids = [_main(results), *_scenario_grids(results), _ablations(results), _standard(results)]
    return [grid for grid in grids if grid.rows]


def short_tables(results: Results) -> list[Grid]:
    """The main table and the ablations of each data set, narrow enough for a terminal."""
    grids = []
    for data in results.datasets:
        part = results.of(data)
        for grid in (_main(part) if part.main else _standard(part), _ablations(part)):
            if grid.rows:
                narrow = [row[1:] for row in grid.rows]
                grids.append(
                    replace(grid, title=f"{grid.title}: {data}", headings=grid.headings[1:], n_keys=1, rows=narrow)
                )
    return grids


def shown(score: Score | None) -> str:
    """``78.7 (1.0)``, or the mean alone if there is no error; nothing for what is not known."""
    if score is None or score.mean != score.mean:
        return ""
    return f"{score.mean:.1f}" + ("" if score.error is None else f" ({score.error:.1f})")


def _columns(rows: Iterable[Scores]) -> list[str]:
    """Metrics that at least one row has, in the order of tables."""
    held = {metric for row in rows for metric, score in row.items() if score.mean == score.mean}
    return [metric for metric in HEADINGS if metric in held]


def _best(scores: Sequence[Score | None]) -> float:
    return max((round(score.mean, 1) for score in scores if score is not None and score.mean == score.mean), default=-1)


def _block(grid: Grid, columns: Sequence[str], data: str, rows: Sequence[tuple[str, Sequence[Score | None]]]) -> None:
    """The rows of one data set, the best of each column in bold; rows with a star do not compete."""
    best = [_best([scores[number] for name, scores in rows if name[-1] != "*"]) for number in range(len(columns))]
    for position, (name, scores) in enumerate(rows):
        cells = [
            Cell(shown(score), best=score is not None and round(score.mean, 1) == top and name[-1] != "*")
            for score, top in zip(scores, best, strict=True)
        ]
        grid.add([data if position == 0 else "", name], cells)
    if rows:
        grid.sections.append(len(grid.rows))


def _main(results: Results) -> Grid:
    columns = _columns(results.main.values())
    standard = any("worst" in scores for scores in results.standard.values())
    headings = ["data set", "method", *(HEADINGS[metric] for metric in columns)]
    grid = Grid("main", "Compositional shift", headings + ["none dropped"] * standard, 2)
    for data in results.datasets:
        rows = []
        for name in _methods(results, data):
            over = results.main.get((data, name), {})
            extra = [results.standard.get((data, name), {}).get("worst")] if standard else []
            mark = "*" if (data, name) in results.partial else ""
            rows.append((name + mark, [*(over.get(metric) for metric in columns), *extra]))
        _block(grid, [*columns, *["none dropped"] * standard], data, rows)
    meanings = [text for metric, text in MEANINGS.items() if metric in columns]
    seeds = {score.seeds for row in results.main.values() for score in row.values()}
    once = [SOLVED] if len(seeds) > 1 else ["One seed, so no error."] if seeds == {1} else []
    partial = [PARTIAL] if results.partial & {*results.main} else []
    also = [STANDARD] if standard else []
    grid.notes = [" ".join([MEANING, *meanings, *also, *once, *partial]), *results.notes]
    return grid


def _methods(results: Results, data: str) -> list[str]:
    return list(dict.fromkeys(key[1] for key in (*results.main, *results.standard) if key[0] == data))


def _scenario_grids(results: Results) -> list[Grid]:
    """For each data set and metric, scenarios down and methods across; each method's worst scenario is marked."""
    grids = []
    for data in dict.fromkeys(key[0] for key in results.scenarios):
        dropped = list(dict.fromkeys(key[1] for key in results.scenarios if key[0] == data))
        methods = list(dict.fromkeys(key[2] for key in results.scenarios if key[0] == data))
        columns = _columns(scores for key, scores in results.scenarios.items() if key[0] == data)
        for metric in ("worst", *(column for column in columns if column != "worst")):
            grid = Grid("scenarios", f"{data}, each scenario: {HEADINGS[metric]}", ["dropped", *methods], 1)
            table = {
                (scenario, method): results.scenarios.get((data, scenario, method), {}).get(metric)
                for scenario in dropped
                for method in methods
            }
            lowest = {method: _lowest(table[scenario, method] for scenario in dropped) for method in methods}
            for scenario in dropped:
                row = [table[scenario, method] for method in methods]
                top = _best(row)
                cells = [
                    Cell(
                        shown(score),
                        best=score is not None and round(score.mean, 1) == top,
                        marked=score is not None and len(dropped) > 1 and score.mean == lowest[method],
                    )
                    for method, score in zip(methods, row, strict=True)
                ]
                grid.add([scenario_label(results, data, scenario)], cells)
            grid.notes = ["▾ marks the worst scenario of each method."] if len(dropped) > 1 else []
            grids.append(grid)
    return grids


def scenario_label(results: Results, data: str, scenario: DroppedGroups) -> str:
    """The groups that are dropped, for people."""
    return results.labels.get((data, scenario), "none") or "none"


def _lowest(scores: Iterable[Score | None]) -> float:
    return min((score.mean for score in scores if score is not None and score.mean == score.mean), default=-1)


def _ablations(results: Results) -> Grid:
    columns = _columns(results.ablations.values())
    grid = Grid("ablations", "Ablations of CRM", ["data set", "variant", *(HEADINGS[name] for name in columns)], 2)
    for data in dict.fromkeys(key[0] for key in results.ablations):
        rows = [
            (variant, [scores.get(metric) for metric in columns])
            for (label, variant), scores in results.ablations.items()
            if label == data
        ]
        _block(grid, columns, data, rows)
    grid.notes = [
        "CRM: extrapolated bias B*, uniform prior. B_hat: the learned bias, 0 for unseen groups. Emp Prior: the "
        "frequencies of the groups in the test rows. All from one model, chosen as CRM's."
    ]
    return grid


def _standard(results: Results) -> Grid:
    columns = _columns(results.standard.values())
    grid = Grid("standard", "No group dropped", ["data set", "method", *(HEADINGS[name] for name in columns)], 2)
    for data in dict.fromkeys(key[0] for key in results.standard):
        rows = [
            (name, [scores.get(metric) for metric in columns])
            for (label, name), scores in results.standard.items()
            if label == data
        ]
        _block(grid, columns, data, rows)
    grid.notes = [
        "Test accuracy in percent, mean (standard error) over seeds; every group is in training.",
        *results.notes,
    ]
    return grid


def _compared(ours: Results, paper: Results) -> Iterable[Grid]:
    """Ours, the paper's and the difference in standard errors, for everything that both have.

    Means over scenarios are compared where the scenarios are the same.
    """
    same = {data for data in ours.named & paper.named if _scenarios(ours, data) == _scenarios(paper, data)}
    same |= {"celeba5"} & ours.named if all(len(dropped) == 1 for dropped in _scenarios(ours, "celeba5")) else set()
    over = {"main": same, "ablations": same, "standard": ours.named & paper.named}
    pairs = (
        ("main", "Compositional shift", "method", ours.main, paper.main),
        ("ablations", "Ablations of CRM", "variant", ours.ablations, paper.ablations),
        ("standard", "No group dropped", "method", ours.standard, paper.standard),
    )
    for name, title, kind, own, theirs in pairs:
        shared = [key for key in own if key in theirs and key[0] in over[name]]
        if shared:
            labels = [[key[0], key[1]] for key in shared]
            rows = [(own[key], theirs[key]) for key in shared]
            yield _beside(name, title, ["data set", kind], labels, rows, ours.notes)
    shared_scenarios = [key for key in ours.scenarios if key in paper.scenarios and key[0] in ours.named]
    if shared_scenarios:
        labels = [[key[0], scenario_label(ours, key[0], key[1]), key[2]] for key in shared_scenarios]
        rows = [(ours.scenarios[key], paper.scenarios[key]) for key in shared_scenarios]
        yield _beside("scenarios", "Each scenario", ["data set", "dropped", "method"], labels, rows, ours.notes)


def _scenarios(results: Results, data: str) -> set[DroppedGroups]:
    """Dropped groups; the shift that data have by themselves drops none."""
    return {key[1] for key in results.scenarios if key[0] == data} - {()}


def _beside(
    name: str,
    title: str,
    keys: list[str],
    labels: Sequence[list[str]],
    rows: Sequence[tuple[Scores, Scores]],
    notes: Sequence[str],
) -> Grid:
    metrics = [metric for metric in HEADINGS if any(metric in own and metric in theirs for own, theirs in rows)]
    headings = [part for metric in metrics for part in (f"{HEADINGS[metric]}: ours", "paper", "difference / s.e.")]
    grid = Grid(name, f"{title}, beside the paper", [*keys, *headings], len(keys))
    previous = None
    for label, (own, theirs) in zip(labels, rows, strict=True):
        if previous not in (None, label[0]):
            grid.sections.append(len(grid.rows))
        cells = []
        for metric in metrics:
            mine, printed = own.get(metric), theirs.get(metric)
            distance = None if mine is None or printed is None else mine.distance(printed)
            cells += [Cell(shown(mine)), Cell(shown(printed)), Cell("" if distance is None else f"{distance:+.1f}")]
        grid.add([label[0] if label[0] != previous else "", *label[1:]], cells)
        previous = label[0]
    grid.notes = ["Percent, mean (standard error over seeds). The difference is in units of its own standard error."]
    grid.notes += notes
    return grid


def to_csv(results: Results, paper: Results | None = None, only: str | None = None) -> str:
    """All numbers, or those of one table, one to a row, in full precision."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    key_columns = ("source", "table", "dataset", "dropped", "codes", "method", "metric")
    writer.writerow([*key_columns, "mean", "standard_error", "seeds", "scenarios", "draws", "complete"])
    for source, found in (("ours", results), *([("paper", paper)] if paper is not None else [])):
        flat: list[tuple[str, str, str, str, str, Scores]] = [
            (table, data, "", "", name, scores)
            for table, rows in (("main", found.main), ("ablations", found.ablations), ("standard", found.standard))
            for (data, name), scores in rows.items()
        ]
        flat += [
            ("scenarios", data, scenario_label(found, data, scenario), _codes(scenario), name, scores)
            for (data, scenario, name), scores in found.scenarios.items()
        ]
        for table, data, dropped, codes, name, scores in flat:
            if only not in (None, table) or (source == "paper" and results.datasets and data not in results.named):
                continue
            scenarios, draws = found.extent.get((data, "CRM" if table == "ablations" else name), ("", ""))
            complete = "no" if (data, name) in found.partial else "yes"
            for metric, score in scores.items():
                if score.mean == score.mean:
                    error = "" if score.error is None else repr(score.error)
                    key = [source, table, data, dropped, codes, name, metric]
                    size = [1 if table == "scenarios" else scenarios, draws, complete]
                    writer.writerow([*key, repr(score.mean), error, score.seeds, *size])
    return stream.getvalue()


def _codes(scenario: DroppedGroups) -> str:
    """Dropped groups as numbers, the same for ours and the paper's."""
    return " ".join("(" + ", ".join(map(str, code)) + ")" for code in scenario)


def main_numbers(results: Results) -> list[dict[str, Any]]:
    """The main table, the ablations and the case of no group dropped, one number to an entry, for JSON."""
    parts = {"main": results.main, "ablations": results.ablations, "standard": results.standard}
    return [
        {"table": table, "dataset": data, "method": name, "metric": metric, "mean": score.mean, "error": score.error}
        for table, rows in parts.items()
        for (data, name), scores in rows.items()
        for metric, score in scores.items()
        if score.mean == score.mean
    ]
