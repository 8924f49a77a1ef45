"""Tables of our results, of the paper's numbers, or of both side by side; as grids or as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from compshift.bench.results import Results, Score, Scores
from compshift.bench.selection import DroppedGroups
from compshift.report.grid import Cell, Grid

METRIC_HEADINGS = {
    "average": "average",
    "weighted": "weighted",
    "balanced": "balanced",
    "worst": "worst group",
    "unseen": "unseen groups",
}
"""Column headings of the metrics, in the order of the columns."""

UNIT_NOTE = "Test accuracy in percent: mean (standard error) over seeds, of the mean over scenarios."
METRIC_NOTES = {
    "average": "Average: share of test rows predicted correctly, so large groups count more.",
    "weighted": "Weighted: mean over groups, weighted by their training frequencies before any group was dropped.",
    "unseen": "Unseen groups: accuracy on test rows of groups that are absent from training.",
}
STANDARD_NOTE = "None dropped: worst-group accuracy when no group is dropped from training."
SOLVED_NOTE = "Methods that are solved to the optimum are deterministic and have no standard error."
ONE_SEED_NOTE = "There is one seed, so there is no standard error."
COMPARED_NOTE = (
    "Test accuracy in percent: mean (standard error) over seeds. The third column of each metric is our number minus "
    "the paper's, divided by the standard error of this difference."
)
APART_NOTE = (
    "Test accuracy in percent: mean (standard error) over seeds. The paper's numbers follow another protocol and must "
    "not be compared with ours."
)
ABLATION_NOTE = (
    "CRM: extrapolated bias B*, uniform prior. B_hat: learned bias, 0 for unseen groups. Emp Prior: group frequencies "
    "of the test rows. All variants use the model that was chosen for CRM."
)


FEWEST_CELEBA5 = 27
"""Smallest number of scenarios of ``celeba5`` whose mean is compared with the paper's.

The paper's authors average this many scenarios of CelebA with five attributes.
"""


def make_tables(results: Results, paper: Results | None = None) -> list[Grid]:
    """Return every table that has rows; with ``paper``, compare the rows that are in both results."""
    if paper is not None:
        return list(_compared(results, paper))
    grids = [_main(results), *_scenario_grids(results), _ablations(results), _standard(results)]
    return [grid for grid in grids if grid.rows]


def short_tables(results: Results) -> list[Grid]:
    """Return the main table and the ablations of each data set, without the data set column, for the terminal."""
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
    """Format a score as ``78.7 (1.0)``, as ``78.7`` if it has no standard error, or as empty text if it has no mean."""
    if score is None or score.mean != score.mean:
        return ""
    return f"{score.mean:.1f}" + ("" if score.error is None else f" ({score.error:.1f})")


def _columns(rows: Iterable[Scores]) -> list[str]:
    """Return the metrics that at least one row has, in the order of ``METRIC_HEADINGS``."""
    present = {metric for row in rows for metric, score in row.items() if score.mean == score.mean}
    return [metric for metric in METRIC_HEADINGS if metric in present]


def _best(scores: Sequence[Score | None]) -> float:
    """Return the largest mean, rounded as printed, or -1 if there is none."""
    return max((round(score.mean, 1) for score in scores if score is not None and score.mean == score.mean), default=-1)


def _block(grid: Grid, columns: Sequence[str], data: str, rows: Sequence[tuple[str, Sequence[Score | None]]]) -> None:
    """Add the rows of one data set; bold marks the best score of each column.

    A name that ends in * marks a method without results for some scenarios or seeds; its scores are never bold.
    """
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
    """Return the main table: mean over scenarios for each data set and method."""
    columns = _columns(results.main.values())
    standard = any("worst" in scores for scores in results.standard.values())
    headings = ["data set", "method", *(METRIC_HEADINGS[metric] for metric in columns)]
    grid = Grid("main", "Compositional shift", headings + ["none dropped"] * standard, 2)
    for data in results.datasets:
        rows = []
        for name in _methods(results, data):
            scores = results.main.get((data, name), {})
            extra = [results.standard.get((data, name), {}).get("worst")] if standard else []
            mark = "*" if (data, name) in results.partial else ""
            rows.append((name + mark, [*(scores.get(metric) for metric in columns), *extra]))
        _block(grid, [*columns, *["none dropped"] * standard], _label(results, data), rows)
    meanings = [text for metric, text in METRIC_NOTES.items() if metric in columns]
    seeds = {score.seeds for row in results.main.values() for score in row.values()}
    once = [SOLVED_NOTE] if len(seeds) > 1 else [ONE_SEED_NOTE] if seeds == {1} else []
    partial = ["* Some scenarios or seeds are missing."] if results.partial & {*results.main} else []
    also = [STANDARD_NOTE] if standard else []
    sentences = [UNIT_NOTE, *meanings, *also, *once, *partial]
    grid.notes = [" ".join(sentences), *(_lacking_notes(results) if standard else ()), *results.notes]
    return grid


def _lacking_notes(results: Results) -> list[str]:
    """Return a sentence for each data set in the standard table whose own training split lacks groups."""
    return [
        f"{data}: its training split lacks {count} tested groups; where no group is dropped, validation has them."
        for data, count in results.lacking.items()
        if any(key[0] == data for key in results.standard)
    ]


def _label(results: Results, data: str) -> str:
    """Return the name of a data set, followed by "fine-tuned" or "frozen features" if the table has runs of both."""
    mixed = len({results.modes.get(name) for name in results.datasets}) > 1
    return f"{data} ({results.modes[data]})" if mixed and data in results.modes else data


def _methods(results: Results, data: str) -> list[str]:
    """Return the methods that have results on a data set, in order of appearance."""
    return list(dict.fromkeys(key[1] for key in (*results.main, *results.standard) if key[0] == data))


def _scenario_grids(results: Results) -> list[Grid]:
    """Return a table for each data set and metric: a row per scenario, a column per method; ▾ marks worst scenarios."""
    grids = []
    for data in dict.fromkeys(key[0] for key in results.scenarios):
        dropped = list(dict.fromkeys(key[1] for key in results.scenarios if key[0] == data))
        methods = list(dict.fromkeys(key[2] for key in results.scenarios if key[0] == data))
        columns = _columns(scores for key, scores in results.scenarios.items() if key[0] == data)
        for metric in ("worst", *(column for column in columns if column != "worst")):
            grid = Grid("scenarios", f"{data}, each scenario: {METRIC_HEADINGS[metric]}", ["dropped", *methods], 1)
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
    """Return the names of the groups that a scenario drops, or ``none`` if it has no label."""
    return results.labels.get((data, scenario), "none") or "none"


def _lowest(scores: Iterable[Score | None]) -> float:
    """Return the smallest mean, or -1 if there is none."""
    return min((score.mean for score in scores if score is not None and score.mean == score.mean), default=-1)


def _ablations(results: Results) -> Grid:
    """Return the table of CRM's ablations, which vary its bias and its prior."""
    columns = _columns(results.ablations.values())
    grid = Grid(
        "ablations", "Ablations of CRM", ["data set", "variant", *(METRIC_HEADINGS[name] for name in columns)], 2
    )
    for data in dict.fromkeys(key[0] for key in results.ablations):
        rows = [
            (variant, [scores.get(metric) for metric in columns])
            for (label, variant), scores in results.ablations.items()
            if label == data
        ]
        _block(grid, columns, _label(results, data), rows)
    grid.notes = [ABLATION_NOTE]
    return grid


def _standard(results: Results) -> Grid:
    """Return the table of runs in which every group is in training."""
    columns = _columns(results.standard.values())
    grid = Grid("standard", "No group dropped", ["data set", "method", *(METRIC_HEADINGS[name] for name in columns)], 2)
    for data in dict.fromkeys(key[0] for key in results.standard):
        rows = [
            (name, [scores.get(metric) for metric in columns])
            for (label, name), scores in results.standard.items()
            if label == data
        ]
        _block(grid, columns, _label(results, data), rows)
    grid.notes = [
        "Test accuracy in percent: mean (standard error) over seeds. No group is dropped from training.",
        *_lacking_notes(results),
        *results.notes,
    ]
    return grid


def _compared(ours: Results, paper: Results) -> Iterable[Grid]:
    """Yield tables of our numbers and the paper's, for rows that are in both.

    Numbers that may be compared stand beside each other with their difference. Those of another protocol have a table
    of their own, whose notes say how the protocols differ. Means over scenarios are shown only if both have the same
    scenarios. The paper does not list those of ``celeba5``; its means are shown if every scenario of ours drops one
    group, and there are at least ``FEWEST_CELEBA5``.
    """
    named = ours.named & paper.named
    same = {data for data in named if _scenarios(ours, data) == _scenarios(paper, data)}
    single = [dropped for dropped in _scenarios(ours, "celeba5") if len(dropped) == 1]
    if len(single) == len(_scenarios(ours, "celeba5")) >= FEWEST_CELEBA5:
        same |= {"celeba5"} & named
    apart = [data for data in ours.datasets if data in named - same and any(key[0] == data for key in ours.main)]
    notes = [*ours.notes, *(_other_scenarios(ours, paper, data) for data in apart)]
    pairs: tuple[tuple[str, str, list[str], Any, Any, set[str]], ...] = (
        ("main", "Compositional shift", ["method"], ours.main, paper.main, same),
        ("ablations", "Ablations of CRM", ["variant"], ours.ablations, paper.ablations, same),
        ("standard", "No group dropped", ["method"], ours.standard, paper.standard, named),
        ("scenarios", "Each scenario", ["dropped", "method"], ours.scenarios, paper.scenarios, named),
    )
    for name, title, kinds, mine, theirs, sets in pairs:
        shared = [key for key in mine if key in theirs and key[0] in sets]
        if sets is same:  # a mean over some of the scenarios is never set beside one over all of them
            shared = [key for key in shared if (key[0], "CRM" if name == "ablations" else key[1]) not in ours.partial]
        for alike in (True, False):
            keys = [key for key in shared if alike != bool(ours.differences.get(key[0]))]
            if keys:
                labels = [
                    [key[0], scenario_label(ours, key[0], key[1]), key[2]] if name == "scenarios" else list(key)
                    for key in keys
                ]
                rows = [(mine[key], theirs[key]) for key in keys]
                reasons = [] if alike else [_reasons(ours, data) for data in dict.fromkeys(key[0] for key in keys)]
                yield _beside(name, title, ["data set", *kinds], labels, rows, [*reasons, *notes], alike=alike)


def _other_scenarios(ours: Results, paper: Results, data: str) -> str:
    """Return why a data set's means over scenarios are not shown beside the paper's."""
    found, expected = len(_scenarios(ours, data)), len(_scenarios(paper, data))
    return (
        f"{data}: our means are over {found} scenario{'s' * (found != 1)} and the paper's over {expected or 1}, not "
        "the same ones, so they are not shown together."
    )


def _reasons(ours: Results, data: str) -> str:
    """Return why a data set's numbers must not be compared with the paper's."""
    return f"{data}, not the same protocol: {'; '.join(ours.differences[data])}."


def _scenarios(results: Results, data: str) -> set[DroppedGroups]:
    """Return the scenarios that drop at least one group."""
    return {key[1] for key in results.scenarios if key[0] == data} - {()}


def _beside(
    name: str,
    title: str,
    keys: list[str],
    labels: Sequence[list[str]],
    rows: Sequence[tuple[Scores, Scores]],
    notes: Sequence[str],
    *,
    alike: bool,
) -> Grid:
    """Return one table of our numbers and the paper's; ``rows`` are pairs of our and the paper's scores.

    ``alike`` says whether they may be compared. If not, their differences are left out.
    """
    metrics = [metric for metric in METRIC_HEADINGS if any(metric in own and metric in theirs for own, theirs in rows)]
    columns = ("paper", "difference / s.e.") if alike else ("paper (not the same protocol)",)
    headings = [part for metric in metrics for part in (f"{METRIC_HEADINGS[metric]}: ours", *columns)]
    where = "beside the paper" if alike else "and the paper's under another protocol"
    grid = Grid(name, f"{title}, {where}", [*keys, *headings], len(keys))
    previous = None
    for label, (own, theirs) in zip(labels, rows, strict=True):
        if previous not in (None, label[0]):
            grid.sections.append(len(grid.rows))
        cells = []
        for metric in metrics:
            mine, printed = own.get(metric), theirs.get(metric)
            distance = None if mine is None or printed is None else mine.distance(printed)
            cells += [Cell(shown(mine)), Cell(shown(printed))]
            if alike:
                cells.append(Cell("" if distance is None else f"{distance:+.1f}"))
        grid.add([label[0] if label[0] != previous else "", *label[1:]], cells)
        previous = label[0]
    grid.notes = [COMPARED_NOTE if alike else APART_NOTE, *notes]
    return grid


def to_csv(results: Results, paper: Results | None = None, only: str | None = None) -> str:
    """Return all numbers, or those of the table ``only``, as CSV in full precision, one number per row."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    key_columns = ("source", "table", "dataset", "dropped", "codes", "method", "metric")
    numbers = ("mean", "standard_error", "seeds", "scenarios", "draws", "complete")
    writer.writerow([*key_columns, *numbers, *(["differences_from_paper"] if paper is not None else [])])
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
                    reasons = ["; ".join(found.differences.get(data, []))] if paper is not None else []
                    writer.writerow([*key, repr(score.mean), error, score.seeds, *size, *reasons])
    return stream.getvalue()


def _codes(scenario: DroppedGroups) -> str:
    """Return the codes of the dropped groups as text; codes, unlike labels, are the same in the paper's results."""
    return " ".join("(" + ", ".join(map(str, code)) + ")" for code in scenario)


def main_numbers(results: Results) -> list[dict[str, Any]]:
    """Return the numbers of all tables except those of single scenarios for JSON, one entry per number."""
    parts = {"main": results.main, "ablations": results.ablations, "standard": results.standard}
    return [
        {"table": table, "dataset": data, "method": name, "metric": metric, "mean": score.mean, "error": score.error}
        for table, rows in parts.items()
        for (data, name), scores in rows.items()
        for metric, score in scores.items()
        if score.mean == score.mean
    ]
