"""Choose the best draw for each data set, scenario and method by validation accuracy, and return its records.

A draw is one random choice of the method's hyper-parameters. CRM has a single draw if ``select`` is "combinations",
because its jobs then choose the ridge themselves. Also list the planned jobs that are missing in a folder.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from compshift._errors import InputError
from compshift.bench.convex_methods import n_seeds
from compshift.bench.paper import FURTHER_METHODS, PAPER_METHODS
from compshift.bench.protocol import COMBINATIONS, validation_metric
from compshift.bench.records import Record, check_protocol, check_record, is_done, scores
from compshift.bench.store import Store

DroppedGroups = tuple[tuple[int, ...], ...]
"""Codes of the dropped groups, which identify a scenario."""

UnitKey = tuple[str, DroppedGroups, str]
"""Data set, dropped groups and method of a unit, with the names that records use."""

UnitRecords = Mapping[UnitKey, Mapping[tuple[int, int], Record]]
"""Records of every unit, by (draw, seed)."""


def choose_draw(records: Mapping[int, Record], metric: str, predictor: str | None = None) -> int | None:
    """Return the draw with the best validation accuracy; among equals, the first.

    ``predictor`` names the predictor whose accuracy counts. If it is None, or a record has none of that name, the
    record's first predictor counts, which tables report. Draws that diverged are skipped; return None if none remains.
    A single remaining draw needs no validation rows.
    """
    finished = {draw: record for draw, record in sorted(records.items()) if is_done(record)}
    if len(finished) <= 1:
        return next(iter(finished), None)
    found = {
        draw: scores(record, "val", predictor if predictor in record["right"]["val"] else None)[metric]
        for draw, record in finished.items()
    }
    return max(found, key=lambda draw: (found[draw], -draw))


def selection_rule(protocol: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return the metric and the predictor by which a stored protocol chooses draws; None for the reported predictor."""
    bias, prior = protocol.get("validation_bias"), protocol.get("validation_prior")
    return validation_metric(protocol["select"]), None if bias is None else f"{bias}-{prior}"


def describe_selection(protocol: Mapping[str, Any]) -> str:
    """Describe how a stored protocol chooses hyper-parameters."""
    metric, _ = selection_rule(protocol)
    if protocol["select"] != COMBINATIONS:
        return f"selected by {metric} validation accuracy"
    return (
        "CRM's ridge is chosen by held-out combinations of the training rows (if none can be held out, by the numbers "
        f"of features and rows), and a draw of each other method by {metric} validation accuracy"
    )


@dataclass(frozen=True, eq=False)
class ChosenRecords:
    """Records of a folder, with those of the chosen draws.

    Units are ordered by data set, scenario and the paper's order of methods.
    """

    about: dict[str, Any]  # content of bench.json
    units: UnitRecords  # all records
    records: Mapping[UnitKey, Mapping[int, Record]]  # "done" records of the chosen draw, by seed; {} if all diverged
    labels: Mapping[tuple[str, DroppedGroups], str]  # readable names of scenarios
    n_foreign: int  # number of records left out because data, protocol or version of the method differ


def chosen_records(store: Store) -> ChosenRecords:
    """Read and check all records of a folder, and choose a draw of every unit by validation accuracy."""
    about = store.read_about()
    for data in about["data"].values():
        try:
            check_protocol(data["protocol"])
        except InputError as error:
            raise InputError(
                f"{str(store.about)!r} is damaged ({error}): remove it, and run the same benchmark again"
            ) from None
    units: dict[UnitKey, dict[tuple[int, int], Record]] = defaultdict(dict)
    labels, n_foreign = {}, 0
    for record in store.records():
        config = record["config"]
        if not _belongs(config, about):
            n_foreign += 1
            continue
        try:
            check_record(record)
        except InputError as error:
            raise InputError(
                f"jobs/{record['key']}.json is damaged ({error}): remove it, and run the same benchmark again"
            ) from None
        dropped = tuple(sorted(tuple(code) for code in config["dropped"]))
        units[config["data"], dropped, config["method"]][config["draw"], config["seed"]] = record
        labels[config["data"], dropped] = config["scenario"]
    order = {name: rank for rank, name in enumerate((*PAPER_METHODS, *FURTHER_METHODS))}
    keys = sorted(units, key=lambda key: (key[0], key[1], order.get(key[2], len(order)), key[2]))
    rules = {label: selection_rule(data["protocol"]) for label, data in about["data"].items()}
    records = {key: _chosen_seeds(units[key], *rules[key[0]]) for key in keys}
    return ChosenRecords(about, {key: units[key] for key in keys}, records, labels, n_foreign)


def _belongs(config: Mapping[str, Any], about: Mapping[str, Any]) -> bool:
    """Return whether a record has the data, protocol and version of the method that ``bench.json`` lists."""
    known = about["data"].get(config["data"])
    return (
        known is not None
        and all(config.get(name) == known.get(name) for name in ("digest", "protocol", "pairs", "unlabelled"))
        and config.get("code") == about["methods"].get(config["method"])
    )


def _chosen_seeds(records: Mapping[tuple[int, int], Record], metric: str, predictor: str | None) -> dict[int, Record]:
    """Return the "done" records of the chosen draw, by seed."""
    draw = choose_draw(_first_seed(records), metric, predictor)
    return {seed: record for (number, seed), record in sorted(records.items()) if number == draw and is_done(record)}


def _first_seed(records: Mapping[tuple[int, int], Record]) -> dict[int, Record]:
    """Return the records at seed 0, by draw."""
    return {draw: record for (draw, seed), record in records.items() if seed == 0}


@dataclass(frozen=True)
class UnfinishedUnit:
    """A method on a scenario of a data set for which planned draws or seeds are missing."""

    data: str
    dropped: DroppedGroups
    method: str  # name in records
    finished: int  # number of finished jobs
    planned: int  # number of planned jobs


def unfinished_units(about: Mapping[str, Any], units: UnitRecords) -> list[UnfinishedUnit]:
    """Return every planned unit with missing jobs, in the order of the plans."""
    found = []
    for label, plan in about["plans"].items():
        protocol, share = about["data"][label]["protocol"], about["data"][label].get("unlabelled")
        for codes, method, draws, seeds in plan:
            dropped = tuple(sorted(map(tuple, codes)))
            records = units.get((label, dropped, method), {})
            rule = selection_rule(protocol)
            planned = _planned_runs(records, draws, n_seeds(protocol["mode"], method, seeds, share), *rule)
            finished = len(planned & set(records))
            if finished < len(planned):
                found.append(UnfinishedUnit(label, dropped, method, finished, len(planned)))
    return found


def _planned_runs(
    found: Mapping[tuple[int, int], Record], draws: int, seeds: int, metric: str, predictor: str | None
) -> set[tuple[int, int]]:
    """Return all planned (draw, seed) of a unit: every draw at seed 0, and the chosen draw at the other seeds.

    While draws are missing, draw 0 stands for the chosen draw. If every draw diverged, no further seeds are planned.
    """
    first = {(draw, 0) for draw in range(draws)}
    chosen: int | None = 0
    if first <= set(found):
        chosen = choose_draw(_first_seed(found), metric, predictor)
    return first if chosen is None else first | {(chosen, seed) for seed in range(seeds)}


def unfinished_notes(about: Mapping[str, Any], unfinished: list[UnfinishedUnit]) -> list[str]:
    """Return a sentence for every data set with missing jobs."""
    notes = []
    for label, plan in about["plans"].items():
        count = sum(item.data == label for item in unfinished)
        if count:
            notes.append(
                f"{label} is not finished: draws or seeds are missing for {count} of {len(plan)} pairs of scenario and "
                "method."
            )
    return notes
