"""Choosing one draw of several, by validation alone.

The records of a folder that count: for each data set, scenario and method those of the chosen draw.

Which planned results a folder lacks.

From records to the numbers of tables: over seeds, and over scenarios.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compshift._errors import InputError
from compshift.bench.convex_methods import DETERMINISTIC
from compshift.bench.store import Record, Store, check_protocol, check_record, dropped_accuracy, n_unseen, scores
from compshift.core.groups import GroupSpace
from compshift.core.hull import AffineHull


def choose_draw(records: Mapping[int, dict[str, Any]], metric: str) -> int | None:
    """The draw whose reported predictor has the best validation accuracy, the first of equals.

    Draws that diverged are out of the question; None if all did. A lone draw needs no validation rows.
    """
    finished = {draw: record for draw, record in sorted(records.items()) if record["status"] == "done"}
    if len(finished) <= 1:
        return next(iter(finished), None)
    found = {draw: scores(record, "val")[metric] for draw, record in finished.items()}
    return max(found, key=lambda draw: (found[draw], -draw))


PAPER_METHODS = {
    "erm": "ERM",
    "groupdro": "GroupDRO",
    "lc": "LC",
    "sla": "sLA",
    "irm": "IRM",
    "vrex": "VREx",
    "mixup": "Mixup",
    "crm": "CRM",
}
"""The paper's eight methods, in its order, as it names them."""

FURTHER_METHODS = {"rwg": "RWG", "subg": "SUBG", "dfr": "DFR", "crm-resolved": "CRM resolved"}

Scenario = tuple[tuple[int, ...], ...]
"""Codes of the dropped groups."""

Key = tuple[str, Scenario, str]
"""Data set, scenario and method, as the records name it."""


@dataclass(frozen=True, eq=False)
class Chosen:
    """What a folder has. Keys are in the order of data sets, scenarios and the paper's methods."""

    about: dict[str, Any]
    units: Mapping[Key, Mapping[tuple[int, int], Record]]  # every record, by draw and seed
    records: Mapping[Key, Mapping[int, Record]]  # finished ones of the chosen draw by seed; none if every draw diverged
    labels: Mapping[tuple[str, Scenario], str]  # of scenarios, for people
    n_strange: int  # records of other data, settings or versions of a method


def printed(method: str) -> str:
    """A method as tables name it."""
    return {**PAPER_METHODS, **FURTHER_METHODS}.get(method, method)


def chosen_records(store: Store) -> Chosen:
    """Read a folder of results, and choose draws by validation."""
    about = store.read_about()
    for data in about["data"].values():
        _check_protocol(data["protocol"], store)
    units: dict[Key, dict[tuple[int, int], Record]] = defaultdict(dict)
    labels, strange = {}, 0
    for record in store.records():
        config = record["config"]
        if not _fits(config, about):
            strange += 1
            continue
        _check(record)
        dropped = tuple(sorted(tuple(code) for code in config["dropped"]))
        units[config["data"], dropped, config["method"]][config["draw"], config["seed"]] = record
        labels[config["data"], dropped] = config["scenario"]
    order = {name: rank for rank, name in enumerate((*PAPER_METHODS, *FURTHER_METHODS))}
    keys = sorted(units, key=lambda key: (key[0], key[1], order.get(key[2], len(order)), key[2]))
    select = {label: data["protocol"]["select"] for label, data in about["data"].items()}
    records = {key: _chosen_seeds(units[key], select[key[0]]) for key in keys}
    return Chosen(about, {key: units[key] for key in keys}, records, labels, strange)


def _check(record: Record) -> None:
    """Refuse a record that tables cannot be made from."""
    try:
        check_record(record)
    except InputError as error:
        raise InputError(
            f"the result jobs/{record['key']}.json is damaged ({error}): remove it, and its job runs again"
        ) from None


def _check_protocol(protocol: Mapping[str, Any], store: Store) -> None:
    try:
        check_protocol(protocol)
    except InputError as error:
        raise InputError(f"{str(store.about)!r} is not what a benchmark writes ({error}): run it anew") from None


def is_done(record: Record) -> bool:
    """Whether a job came to a result."""
    return bool(record["status"] == "done")


def _chosen_seeds(records: Mapping[tuple[int, int], Record], metric: str) -> dict[int, Record]:
    """The chosen draw's finished records, by seed."""
    draw = choose_draw({draw: record for (draw, seed), record in records.items() if seed == 0}, metric)
    return {seed: record for (number, seed), record in sorted(records.items()) if number == draw and is_done(record)}


def _fits(config: Mapping[str, Any], about: Mapping[str, Any]) -> bool:
    """Whether a record is of the data, the protocol and the version of its method that the folder is of."""
    known = about["data"].get(config["data"])
    return (
        known is not None
        and (config.get("digest"), config.get("protocol")) == (known["digest"], known["protocol"])
        and config.get("code") == about["methods"].get(config["method"])
    )


Units = Mapping[Key, Mapping[tuple[int, int], Record]]
"""Records by draw and seed."""


@dataclass(frozen=True)
class Lacking:
    """A scenario and method of a data set that lacks draws or seeds."""

    data: str
    dropped: Scenario
    method: str  # as records name it
    finished: int  # jobs
    planned: int


def lacking_results(about: Mapping[str, Any], units: Units) -> list[Lacking]:
    """Everything that is planned and not there, in the order of the plans."""
    found = []
    for label, plan in about["plans"].items():
        protocol = about["data"][label]["protocol"]
        for codes, method, draws, seeds in plan:
            dropped = tuple(sorted(map(tuple, codes)))
            records = units.get((label, dropped, method), {})
            repeated = 1 if protocol["mode"] == "features" and method in DETERMINISTIC else seeds
            planned = _planned(records, draws, repeated, protocol["select"])
            finished = len(planned & set(records))
            if finished < len(planned):
                found.append(Lacking(label, dropped, method, finished, len(planned)))
    return found


def lacking_words(about: Mapping[str, Any], lacking: list[Lacking]) -> list[str]:
    """A sentence for every data set that is not finished."""
    notes = []
    for label, plan in about["plans"].items():
        count = sum(item.data == label for item in lacking)
        if count:
            notes.append(
                f"{label} is not finished: {count} of {len(plan)} pairs of scenario and method lack draws or seeds."
            )
    return notes


def _planned(found: Mapping[tuple[int, int], Record], draws: int, seeds: int, metric: str) -> set[tuple[int, int]]:
    """Draws and seeds of a unit: all draws at the first seed, then the chosen one at the others.

    Before all draws are there, the first stands for the chosen one. If every draw diverged there is none.
    """
    first = {(draw, 0) for draw in range(draws)}
    chosen: int | None = 0
    if first <= set(found):
        chosen = choose_draw({draw: record for (draw, seed), record in found.items() if seed == 0}, metric)
    return first if chosen is None else first | {(chosen, seed) for seed in range(seeds)}


VARIANTS = {
    "extrapolated-uniform": "CRM",
    "extrapolated-empirical": "B* + Emp Prior",
    "learned-uniform": "B_hat + Unf Prior",
    "learned-empirical": "B_hat + Emp Prior",
}
"""CRM's predictors, as the paper's ablation names them."""


@dataclass(frozen=True)
class Score:
    """Mean over seeds of an accuracy in percent, with its standard error if there are several seeds."""

    mean: float
    error: float | None = None
    seeds: int = 1

    @classmethod
    def over(cls, values: Sequence[float]) -> Score:
        """Of accuracies between 0 and 1, one for each seed."""
        array = 100 * np.asarray(values, dtype=np.float64)
        error = float(array.std(ddof=1) / math.sqrt(len(array))) if len(array) > 1 else None
        return cls(float(array.mean()), error, len(array))

    def distance(self, other: Score) -> float | None:
        """Difference in units of its standard error; None where that is not known, or 0."""
        spread = math.hypot(self.error or 0.0, other.error or 0.0)
        return (self.mean - other.mean) / spread if spread > 0 else None


Scores = dict[str, Score]
"""By metric."""


@dataclass(eq=False)
class Results:
    """Everything that tables show. Methods and variants have their printed names."""

    main: dict[tuple[str, str], Scores] = field(default_factory=dict)  # (data set, method): over scenarios
    standard: dict[tuple[str, str], Scores] = field(default_factory=dict)  # no group dropped
    scenarios: dict[tuple[str, Scenario, str], Scores] = field(default_factory=dict)
    ablations: dict[tuple[str, str], Scores] = field(default_factory=dict)  # (data set, variant)
    labels: dict[tuple[str, Scenario], str] = field(default_factory=dict)  # of scenarios, for people
    extent: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)  # scenarios, and fewest draws of one
    partial: set[tuple[str, str]] = field(default_factory=set)  # (data set, method) with scenarios or seeds missing
    named: set[str] = field(default_factory=set)  # data sets that are the published ones
    notes: list[str] = field(default_factory=list)

    @property
    def datasets(self) -> list[str]:
        """Data sets, in the order in which they came."""
        return list(dict.fromkeys(key[0] for key in (*self.main, *self.standard)))

    def of(self, data: str) -> Results:
        """The part of one data set."""
        parts = {
            name: {key: value for key, value in getattr(self, name).items() if key[0] == data}
            for name in ("main", "standard", "scenarios", "ablations", "labels", "extent")
        }
        return Results(**parts, partial=self.partial, named=self.named, notes=self.notes)


def stored_results(store: Store) -> Results:
    """The numbers of a folder of results."""
    return results_of(chosen_records(store), sum(1 for _ in store.failures()))


def results_of(folder: Chosen, n_failures: int = 0) -> Results:
    """The numbers of the chosen records."""
    results, about, units = Results(labels=dict(folder.labels)), folder.about, folder.units
    chosen = {key: found for key, found in folder.records.items() if found}
    for key in units:
        where = f"{printed(key[2])} on {key[0]} {folder.labels[key[:2]]}"
        if key not in chosen:
            results.notes.append(f"{where}: every draw diverged")
            continue
        lost = [record for (_, seed), record in units[key].items() if seed > 0 and not is_done(record)]
        if lost:
            results.partial.add((key[0], printed(key[2])))
            results.notes.append(
                f"{where}: {len(lost)} of {len(lost) + len(chosen[key])} seeds diverged and are left out"
            )
    for data in dict.fromkeys(key[0] for key in chosen):
        _add_data_set(results, data, {key[1:]: found for key, found in chosen.items() if key[0] == data})
        draws = {key[1:]: sum(seed == 0 for _, seed in units[key]) for key in chosen if key[0] == data}
        _add_extent(results, data, draws, _how(about["data"][data]["protocol"]))
        results.notes += _outside_hull(
            data, {key[1]: next(iter(chosen[key].values())) for key in chosen if key[0] == data}
        )
        if about["data"][data].get("name") == data:
            results.named.add(data)
    results.notes += lacking_words(about, lacking_results(about, units))
    if folder.n_strange:
        results.notes.append(f"{folder.n_strange} results of other data, settings or versions of a method are left out")
    if n_failures:
        results.notes.append(f"{n_failures} job{'s' * (n_failures > 1)} failed: see the folder failures")
    versions = sorted({record["versions"]["compshift"] for unit in units.values() for record in unit.values()})
    if len(versions) > 1:
        results.notes.append(f"results of several versions of compshift: {', '.join(versions)}")
    return results


def _add_extent(results: Results, data: str, draws: Mapping[tuple[Scenario, str], int], how: str) -> None:
    """How many scenarios and draws are behind each method's row; unequal numbers are told."""
    for method in dict.fromkeys(method for _, method in draws):
        own = [count for (dropped, name), count in draws.items() if name == method]
        shifts = [key for key in results.scenarios if key[0] == data and key[2] == printed(method)]
        results.extent[data, printed(method)] = len(shifts), min(own)
    scenarios = max(count for (label, _), (count, _) in results.extent.items() if label == data)
    numbers = {name: count for (label, name), (_, count) in results.extent.items() if label == data}
    text = f"{data}: {how}, {scenarios} scenario{'s' * (scenarios != 1)}"
    if len(set(numbers.values())) == 1:
        count = next(iter(numbers.values()))
        results.notes.insert(0, f"{text}, {count} draw{'s' * (count != 1)}.")
    else:
        listed = ", ".join(f"{name} {count}" for name, count in numbers.items())
        results.notes.insert(0, f"{text}; methods had different numbers of draws to choose from: {listed}.")


def _outside_hull(data: str, records: Mapping[Scenario, Record]) -> list[str]:
    """Say so if tested groups lie outside the hull of those that training had."""
    outside = 0
    for record in records.values():
        codes = np.array(record["groups"], dtype=np.int64)
        space = GroupSpace(tuple(record["names"]), tuple(tuple(values) for values in record["values"]))
        tested = codes[np.array(record["rows"]["test"]) > 0]
        hull = AffineHull(space, codes[np.array(record["seen_rows"]) > 0])
        outside += not hull.contains(tested).all()
    if not outside:
        return []
    return [
        f"{data}: in {outside} of {len(records)} scenarios some tested groups lie outside the hull of the seen ones, "
        "so that training does not determine them."
    ]


def _how(protocol: Mapping[str, Any]) -> str:
    """A protocol in words."""
    if protocol["mode"] == "features":
        return "linear heads on fixed features"
    return f"fine-tuning of {protocol['backbone']}, {protocol['steps']} steps"


def _add_data_set(results: Results, data: str, units: Mapping[tuple[Scenario, str], Mapping[int, Record]]) -> None:
    """All numbers of one data set. A shift that the data have by themselves is their scenario if there is no other."""
    shifts = list(dict.fromkeys(dropped for dropped, _ in units if dropped))
    if not shifts:
        shifts = [() for (_, _), found in list(units.items())[:1] if n_unseen(next(iter(found.values())))]
    for method in dict.fromkeys(method for _, method in units):
        name = printed(method)
        if any((dropped, method) not in units for dropped in shifts):
            results.partial.add((data, name))
        variants: dict[str | None, str] = {None: name}
        if method == "crm":
            variants.update(VARIANTS)
        for predictor, label in variants.items():
            by_scenario = {
                dropped: {seed: _scores(record, predictor) for seed, record in units[dropped, method].items()}
                for dropped in (*shifts, *(() if () in shifts else ((),)))
                if (dropped, method) in units and (predictor is None or _has(units[dropped, method], predictor))
            }
            over = _over_scenarios([by_scenario[dropped] for dropped in shifts if dropped in by_scenario])
            if predictor is not None:
                if over:
                    results.ablations[data, label] = over
                continue
            for dropped in shifts:
                if dropped in by_scenario:
                    results.scenarios[data, dropped, name] = _over_seeds(by_scenario[dropped].values())
            if over:
                results.main[data, name] = over
            if () in by_scenario and () not in shifts:
                results.standard[data, name] = _over_seeds(by_scenario[()].values())


def _has(records: Mapping[int, Record], predictor: str) -> bool:
    return all(predictor in record["right"]["test"] for record in records.values())


def _scores(record: Record, predictor: str | None) -> dict[str, float]:
    return {**scores(record, "test", predictor), "unseen": dropped_accuracy(record, predictor)}


def _over_seeds(found: Iterable[Mapping[str, float]]) -> Scores:
    rows = list(found)
    return {metric: Score.over([row[metric] for row in rows]) for metric in rows[0]}


def _over_scenarios(scenarios: Sequence[Mapping[int, Mapping[str, float]]]) -> Scores:
    """Per seed the mean over scenarios, then mean and error over the seeds that have the most scenarios."""
    if not scenarios:
        return {}
    held = {seed: [found[seed] for found in scenarios if seed in found] for found in scenarios for seed in found}
    most = max(len(rows) for rows in held.values())
    means = [
        {metric: float(np.mean([row[metric] for row in rows])) for metric in rows[0]}
        for _, rows in sorted(held.items())
        if len(rows) == most
    ]
    return _over_seeds(means)
