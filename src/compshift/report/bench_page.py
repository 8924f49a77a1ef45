"""The benchmark page: dropped groups, accuracy of every method, evidence behind CRM's biases, and tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from compshift._errors import InputError
from compshift.bench.paper import printed
from compshift.bench.records import Record
from compshift.bench.results import GroupResults, Results, group_results, paper_results, results_of
from compshift.bench.selection import ChosenRecords, chosen_records, describe_selection, unfinished_units
from compshift.bench.store import Store
from compshift.core.groups import GroupSpace
from compshift.data.audit import GroupCounts, audit_groups
from compshift.report.accuracy_section import GroupAccuracy, accuracy_blocks, bar_blocks
from compshift.report.charts import scenario_dots
from compshift.report.coverage_section import Dropped, coverage_section
from compshift.report.grid import Cell, Grid
from compshift.report.page import Block, Card, Charts, Heading, Numbers, Page, Section, Words, made_section
from compshift.report.tables import make_tables, scenario_label
from compshift.report.terminal import counted, duration
from compshift.report.trust_section import MAX_DOTS, bias_charts, bias_words, convergence_words

MAX_UNFINISHED_ROWS = 200
"""Maximum number of unfinished combinations of data set, scenario and method in the table."""


def bench_page(folder: Path) -> Page:
    """Return the page for a results folder; the benchmark need not be finished, but at least one job must be."""
    store = Store.open(folder)
    chosen = chosen_records(store)
    results = results_of(chosen, sum(1 for _ in store.failures()))
    parts = list(group_results(chosen))
    if not parts:
        raise InputError(
            f"{str(folder)!r} has no finished results to show: run the same `compshift bench` command again, then make "
            "the report"
        )
    sections: list[Section] = []
    for part in parts:
        name = f": {part.data}" if len(parts) > 1 else ""
        sections += [_coverage(part, f"Coverage{name}"), _accuracy(part, results, f"Accuracy{name}")]
        trust = _trust(part, f"Trust{name}")
        sections += [trust] if trust else []
    sections += _tables(results)
    unfinished = _unfinished(chosen, {part.data: part.space for part in parts})
    sections += [unfinished] if unfinished else []
    sections.append(made_section(*_facts(chosen, folder)))
    warnings = [
        note
        for note in results.notes
        if any(word in note for word in ("not finished", "failed", "diverged", "left out", "several versions"))
    ]
    lead = [sentence for part in parts for sentence in _lead(part, results)]
    return Page(folder.resolve().name, "benchmark", lead, sections, _cards(parts, chosen), warnings)


def _lead(part: GroupResults, results: Results) -> list[str]:
    """Return sentences on methods and scenarios, and on the best and worst method for unseen and worst groups."""
    scenarios = len(part.scenarios)
    methods = (
        f"{len(part.methods)} methods on {part.data}" if len(part.methods) > 1 else f"{part.methods[0]} on {part.data}"
    )
    dropped = sorted({len(codes) for _, codes in part.scenarios})
    each = "one group" if dropped == [1] else f"{dropped[0]} groups" if len(dropped) == 1 else "groups"
    noun = "scenarios that each drop" if scenarios > 1 else "scenario that drops"
    where = f"in {scenarios} {noun} {each} from training" if scenarios else "with no group dropped from training"
    sentence = f"{methods}, {where}."
    scores = {method: results.main.get((part.data, method), {}) for method in part.methods}
    ranked: dict[str, list[tuple[float, str]]] = {
        metric: sorted(
            (
                (found[metric].mean, method)
                for method, found in scores.items()
                if metric in found and found[metric].mean >= 0
            ),
            reverse=True,
        )
        for metric in ("unseen", "worst")
    }
    words = [sentence]
    done = {(method, scenario) for data, scenario, method in results.scenarios if data == part.data}
    if len(done) < len(part.methods) * len({scenario for _, scenario in done}):
        return [*words, "Methods are not compared, because some of them lack results for some of the scenarios."]
    for metric, what in (("unseen", "On the groups absent from training"), ("worst", "On the worst group")):
        best = ranked[metric]
        if len(best) > 1:
            (high, first), (low, last) = best[0], best[-1]
            words.append(
                f"{what}, {first} has the highest accuracy ({high:.1f}%) and {last} the lowest ({low:.1f}%)."
                if f"{high:.1f}" != f"{low:.1f}"
                else f"{what}, all methods have an accuracy of {high:.1f}%."
            )
        elif best:
            words.append(f"{what}, {best[0][1]} has an accuracy of {best[0][0]:.1f}%.")
    return words


def _cards(parts: list[GroupResults], chosen: ChosenRecords) -> list[Card]:
    """Return cards with the numbers of data sets, scenarios, methods and finished jobs."""
    jobs = sum(len(unit) for unit in chosen.units.values())
    seconds = sum(record["seconds"] for unit in chosen.units.values() for record in unit.values())
    methods = dict.fromkeys(method for part in parts for method in part.methods)
    scenarios = sum(max(1, len(part.scenarios)) for part in parts)
    return [
        Card(str(len(parts)), f"data set{'s' * (len(parts) != 1)}"),
        Card(str(scenarios), f"scenario{'s' * (scenarios != 1)}"),
        Card(str(len(methods)), f"method{'s' * (len(methods) != 1)}"),
        Card(f"{jobs:,}", f"finished jobs, {duration(seconds)} of compute time"),
    ]


def _coverage(part: GroupResults, title: str) -> Section:
    """Return the coverage section, whose grid has a menu to select a scenario."""
    seen = part.train_rows > 0
    rows = part.train_rows[seen].astype(np.float64)
    audit = audit_groups(GroupCounts(part.space, part.groups[seen], rows, float(rows.sum()), 0, {}))
    return coverage_section(audit, [Dropped(label, codes) for label, codes in part.scenarios], title)


def _accuracy(part: GroupResults, results: Results, title: str) -> Section:
    """Return the accuracy section: every group when absent from training and when present, and every scenario."""
    blocks: list[Block] = [*bar_blocks(part.methods, part.seen, part.unseen)]
    for unseen, accuracy, words in (
        (True, part.unseen, "when absent from training"),
        (False, part.seen, "when present in training"),
    ):
        flags = np.full(len(part.groups), unseen)
        group_accuracy = GroupAccuracy(part.space, part.groups, flags, part.test_rows, part.methods, accuracy, 0.95)
        heat_maps = accuracy_blocks(
            group_accuracy,
            f"Accuracy of each group in percent {words}, averaged over seeds and scenarios. Intervals treat this "
            "average as the accuracy of one run on the group's test rows.",
        )
        blocks += [Heading(f"Each group {words}"), *heat_maps] if heat_maps else []
    blocks += _scenario_chart(part, results)
    return Section(title, blocks)


def _scenario_chart(part: GroupResults, results: Results) -> list[Block]:
    """Return a chart of worst-group accuracy in every scenario, or nothing if there is only one scenario."""
    found = {key[1:]: scores["worst"].mean for key, scores in results.scenarios.items() if key[0] == part.data}
    lowest = {
        method: min((v for (_, name), v in found.items() if name == method), default=-1.0) for method in part.methods
    }
    rows, named = [], set()
    for (scenario, method), value in found.items():
        first = value == lowest[method] and method not in named
        named |= {method} if first else set()
        rows.append(
            {
                "method": method,
                "scenario": scenario_label(results, part.data, scenario),
                "accuracy": round(value / 100, 4),
                "lowest": first,
            }
        )
    if len({row["scenario"] for row in rows}) < 2:
        return []
    caption = "Worst-group accuracy in every scenario. The label names each method's worst scenario."
    return [Heading("Every scenario"), Charts([scenario_dots(rows, part.methods, caption)])]


def _trust(part: GroupResults, title: str) -> Section | None:
    """Return the evidence behind CRM's biases of dropped groups; None if the records have none."""
    known = np.flatnonzero(~np.isnan(part.trust[:, 0]))
    if not len(known):
        return None
    size, tail = part.trust[:, 0], part.trust[:, 1]
    groups = "one group" if len(known) == 1 else f"{len(known)} groups"
    measured = part.unseen[part.methods.index("CRM")][known] if "CRM" in part.methods else None
    words = [f"Over all scenarios, CRM extrapolated {groups}. {bias_words(size[known], tail[known], measured)}"]
    if not np.isnan(part.bias_gap):
        words.append(convergence_words(part.bias_gap))
    order = known[np.argsort(size[known], kind="stable")][:MAX_DOTS]
    labels = [part.space.label(part.groups[group]) for group in order]
    cut = (
        f" Of {len(known)} groups, the {MAX_DOTS} with the smallest effective sample size are shown."
        if len(known) > MAX_DOTS
        else ""
    )
    charts = bias_charts(labels, np.zeros(len(order), dtype=np.bool_), size[order], tail[order], cut)
    return Section(title, [Words(words), Charts(charts)])


def _tables(results: Results) -> list[Section]:
    """Return a section with our tables and, if the paper has the same data, one that compares both."""
    tables = [Numbers(grid, folded=grid.name == "scenarios") for grid in make_tables(results)]
    sections = [Section("Tables", tables)] if tables else []
    compared = make_tables(results, paper_results())
    if compared:
        sections.append(
            Section("Compared with the paper", [Numbers(grid, folded=grid.name == "scenarios") for grid in compared])
        )
    return sections


def _unfinished(chosen: ChosenRecords, spaces: Mapping[str, GroupSpace]) -> Section | None:
    """Return a table of the planned jobs that are not finished; None if all are."""
    lacking = unfinished_units(chosen.about, chosen.units)
    if not lacking:
        return None
    headings = ["data set", "training without", "method", "jobs"]
    grid = Grid("unfinished", "Finished and planned jobs", headings, 3)
    for item in lacking[:MAX_UNFINISHED_ROWS]:
        space = spaces.get(item.data)
        named = [space.label(np.array(code)) if space else f"codes {code}" for code in item.dropped if code]
        scenario = chosen.labels.get((item.data, item.dropped)) or "; ".join(named) or "nothing"
        grid.add([item.data, scenario, printed(item.method)], [Cell(f"{item.finished} of {item.planned}")])
    if len(lacking) > MAX_UNFINISHED_ROWS:
        grid.notes.append(f"The first {MAX_UNFINISHED_ROWS} of {len(lacking):,}.")
    words = (
        "All numbers on this page are computed from the finished jobs. Run the same `compshift bench` command again to "
        "finish the others."
    )
    return Section("Not finished", [Words([words]), Numbers(grid)])


def _facts(chosen: ChosenRecords, folder: Path) -> list[tuple[str, str]]:
    """Return the protocol, draws, seeds, times and package versions of the records."""
    records: list[Record] = [record for unit in chosen.units.values() for record in unit.values()]
    seeds = sorted({record["config"]["seed"] for record in records})
    draws = sorted({record["config"]["draw"] for record in records})
    times = sorted(record["finished"] for record in records)
    seconds = sum(record["seconds"] for record in records)
    versions = dict.fromkeys(
        ", ".join(f"{name} {number}" for name, number in record["versions"].items()) for record in records
    )
    modes = dict.fromkeys(
        f"{label}: {data['protocol']['mode']}, {describe_selection(data['protocol'])}"
        for label, data in chosen.about["data"].items()
    )
    return [
        ("folder", str(folder)),
        ("protocol", "; ".join(modes)),
        ("draws and seeds", f"{counted(len(draws), 'draw')}, seed{'s' * (len(seeds) != 1)} {_range(seeds)}"),
        ("jobs", f"{len(records):,}, {duration(seconds)} of compute time, finished {times[0]} to {times[-1]}"),
        ("computed with", "; ".join(versions)),
    ]


def _range(numbers: list[int]) -> str:
    """Return the first and the last of some sorted numbers as text."""
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
