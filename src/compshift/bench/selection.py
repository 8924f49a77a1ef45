"""Which records of a folder count: for each data set, scenario and method, those of the draw that validation chose.

Also tells which planned jobs a folder still lacks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from compshift._errors import InputError
from compshift.bench.convex_methods import n_seeds
from compshift.bench.protocol import FURTHER_METHODS, PAPER_METHODS
from compshift.bench.records import Record, check_protocol, check_record, is_done, scores
from compshift.bench.store import Store

DroppedGroups = tuple[tuple[int, ...], ...]
"""A scenario, as the codes of its dropped groups."""

UnitKey = tuple[str, DroppedGroups, str]
"""Data set, scenario and method, as records name them."""

UnitRecords = Mapping[UnitKey, Mapping[tuple[int, int], Record]]
"""Records of every unit by draw and seed."""


def choose_draw(records: Mapping[int, Record], metric: str) -> int | None:
    """Return the draw whose reported predictor has the best validation accuracy, the first of equals.

    Draws that diverged are skipped; None if all did. A single draw needs no validation rows.
    """
    finished = {draw: record for draw, record in sorted(records.items()) if is_done(record)}
    if len(finished) <= 1:
        return next(iter(finished), None)
    found = {draw: scores(record, "val")[metric] for draw, record in finished.items()}
    return max(found, key=lambda draw: (found[draw], -draw))


@dataclass(frozen=True, eq=False)
class ChosenRecords:
    """Records of a folder. Keys are ordered by data set, scenario and the paper's order of methods."""

    about: dict[str, Any]  # content of bench.json
    units: UnitRecords  # every record
    records: Mapping[UnitKey, Mapping[int, Record]]  # finished ones of the chosen draw, by seed; {} if all diverged
    labels: Mapping[tuple[str, DroppedGroups], str]  # readable names of scenarios
    n_foreign: int  # records of other data, protocols or versions of a method, which are left out


def chosen_records(store: Store) -> ChosenRecords:
    """Read and check all records of a folder, and choose a draw of every unit by validation."""
    about = store.read_about()
    for data in about["data"].values():
        try:
            check_protocol(data["protocol"])
        except InputError as error:
            raise InputError(f"{str(store.about)!r} is not what a benchmark writes ({error}): run it anew") from None
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
                f"the result jobs/{record['key']}.json is damaged ({error}): remove it, and its job runs again"
            ) from None
        dropped = tuple(sorted(tuple(code) for code in config["dropped"]))
        units[config["data"], dropped, config["method"]][config["draw"], config["seed"]] = record
        labels[config["data"], dropped] = config["scenario"]
    order = {name: rank for rank, name in enumerate((*PAPER_METHODS, *FURTHER_METHODS))}
    keys = sorted(units, key=lambda key: (key[0], key[1], order.get(key[2], len(order)), key[2]))
    select = {label: data["protocol"]["select"] for label, data in about["data"].items()}
    records = {key: _chosen_seeds(units[key], select[key[0]]) for key in keys}
    return ChosenRecords(about, {key: units[key] for key in keys}, records, labels, n_foreign)


def _belongs(config: Mapping[str, Any], about: Mapping[str, Any]) -> bool:
    """Return whether a record has the data, protocol and version of its method that the folder was written for."""
    known = about["data"].get(config["data"])
    return (
        known is not None
        and (config.get("digest"), config.get("protocol")) == (known["digest"], known["protocol"])
        and config.get("code") == about["methods"].get(config["method"])
    )


def _chosen_seeds(records: Mapping[tuple[int, int], Record], metric: str) -> dict[int, Record]:
    """Return the finished records of the chosen draw, by seed."""
    draw = choose_draw(_first_seed(records), metric)
    return {seed: record for (number, seed), record in sorted(records.items()) if number == draw and is_done(record)}


def _first_seed(records: Mapping[tuple[int, int], Record]) -> dict[int, Record]:
    """Return the records at seed 0, by draw."""
    return {draw: record for (draw, seed), record in records.items() if seed == 0}


@dataclass(frozen=True)
class UnfinishedUnit:
    """A scenario and method of a data set that lacks draws or seeds."""

    data: str
    dropped: DroppedGroups
    method: str  # as records name it
    finished: int  # jobs
    planned: int


def unfinished_units(about: Mapping[str, Any], units: UnitRecords) -> list[UnfinishedUnit]:
    """Return every planned unit that lacks jobs, in the order of the plans."""
    found = []
    for label, plan in about["plans"].items():
        protocol = about["data"][label]["protocol"]
        for codes, method, draws, seeds in plan:
            dropped = tuple(sorted(map(tuple, codes)))
            records = units.get((label, dropped, method), {})
            planned = _planned_runs(records, draws, n_seeds(protocol["mode"], method, seeds), protocol["select"])
            finished = len(planned & set(records))
            if finished < len(planned):
                found.append(UnfinishedUnit(label, dropped, method, finished, len(planned)))
    return found


def _planned_runs(found: Mapping[tuple[int, int], Record], draws: int, seeds: int, metric: str) -> set[tuple[int, int]]:
    """Return the draws and seeds of a unit: all draws at seed 0, then the chosen one at the others.

    Until all draws are there, the first counts as chosen. If every draw diverged, no further seeds are run.
    """
    first = {(draw, 0) for draw in range(draws)}
    chosen: int | None = 0
    if first <= set(found):
        chosen = choose_draw(_first_seed(found), metric)
    return first if chosen is None else first | {(chosen, seed) for seed in range(seeds)}


def unfinished_notes(about: Mapping[str, Any], unfinished: list[UnfinishedUnit]) -> list[str]:
    """Return a sentence for every data set that is not finished."""
    notes = []
    for label, plan in about["plans"].items():
        count = sum(item.data == label for item in unfinished)
        if count:
            notes.append(
                f"{label} is not finished: {count} of {len(plan)} pairs of scenario and method lack draws or seeds."
            )
    return notes
