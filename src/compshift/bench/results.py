"""Turn records into the numbers of tables: means over seeds and scenarios, and accuracies of every group.

``Results`` has one number per data set, method and metric. ``GroupResults`` has the accuracy of every group, separately
for scenarios in which it was seen and unseen. ``paper_results`` returns the paper's printed numbers as ``Results``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compshift.bench.comparison import paper_differences
from compshift.bench.convex_methods import chooses_ridge
from compshift.bench.jobs import STANDARD
from compshift.bench.paper import POOL_METHOD, VARIANTS, printed, read_table
from compshift.bench.pool import pool_notes
from compshift.bench.protocol import COMBINATIONS
from compshift.bench.records import Record, dropped_accuracy, group_accuracy, is_done, n_unseen, reported, scores
from compshift.bench.selection import (
    ChosenRecords,
    DroppedGroups,
    UnitKey,
    chosen_records,
    describe_selection,
    unfinished_notes,
    unfinished_units,
)
from compshift.bench.store import Store
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.bias import HEAVY_TAIL
from compshift.core.groups import GroupSpace
from compshift.core.hull import AffineHull

PAPER_METRICS = {"average_acc": "average", "balanced_acc": "balanced", "worst_group_acc": "worst"}
"""Metric in each column of the paper's tables."""

PAPER_STANDARD = "worst_group_acc_no_groups_dropped"
"""Column of the paper's main table with the worst-group accuracy when no group is dropped."""


@dataclass(frozen=True)
class Score:
    """Mean over seeds of an accuracy, in percent."""

    mean: float
    error: float | None = None  # standard error of the mean; None for a single seed
    seeds: int = 1  # number of seeds

    @classmethod
    def over(cls, values: Sequence[float]) -> Score:
        """Return the mean over seeds of accuracies between 0 and 1."""
        array = 100 * np.asarray(values, dtype=np.float64)
        error = float(array.std(ddof=1) / math.sqrt(len(array))) if len(array) > 1 else None
        return cls(float(array.mean()), error, len(array))

    def distance(self, other: Score) -> float | None:
        """Return the difference of the means divided by its standard error; None if that is unknown or 0."""
        error = math.hypot(self.error or 0.0, other.error or 0.0)
        return (self.mean - other.mean) / error if error > 0 else None


Scores = dict[str, Score]
"""Score of each metric."""


@dataclass(eq=False)
class Results:
    """All numbers of the tables. Keys contain the printed names of methods and of CRM's variants."""

    main: dict[tuple[str, str], Scores] = field(default_factory=dict)  # (data set, method): means over scenarios
    standard: dict[tuple[str, str], Scores] = field(default_factory=dict)  # (data set, method): no group dropped
    scenarios: dict[tuple[str, DroppedGroups, str], Scores] = field(default_factory=dict)  # last key: method
    ablations: dict[tuple[str, str], Scores] = field(default_factory=dict)  # (data set, variant): means over scenarios
    labels: dict[tuple[str, DroppedGroups], str] = field(default_factory=dict)  # readable names of scenarios
    # (data set, method): number of scenarios, and smallest number of draws, 0 if nothing is drawn
    extent: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    partial: set[tuple[str, str]] = field(default_factory=set)  # (data set, method) with missing scenarios or seeds
    named: set[str] = field(default_factory=set)  # named data sets, as opposed to feature files
    modes: dict[str, str] = field(default_factory=dict)  # data set: "fine-tuned" or "frozen features"
    lacking: dict[str, int] = field(default_factory=dict)  # data set: number of tested groups that train lacks
    differences: dict[str, list[str]] = field(default_factory=dict)  # data set: why its runs are not the paper's
    notes: list[str] = field(default_factory=list)  # sentences to print below the tables

    @property
    def datasets(self) -> list[str]:
        """Names of the data sets, in order of appearance."""
        return list(dict.fromkeys(key[0] for key in (*self.main, *self.standard)))

    def of(self, data: str) -> Results:
        """Return the scores, labels and extents of one data set; the other fields still cover all data sets."""
        parts: dict[str, Any] = {
            name: {key: value for key, value in getattr(self, name).items() if key[0] == data}
            for name in ("main", "standard", "scenarios", "ablations", "labels", "extent")
        }
        kept: dict[str, Any] = {
            name: getattr(self, name) for name in ("partial", "named", "modes", "lacking", "differences", "notes")
        }
        return Results(**parts, **kept)


def stored_results(store: Store) -> Results:
    """Return the results in the folder of a benchmark."""
    return results_of(chosen_records(store), sum(1 for _ in store.failures()))


def results_of(folder: ChosenRecords, n_failures: int = 0) -> Results:
    """Return the results of the chosen records, with notes about missing, diverged and failed jobs."""
    results, about, units = Results(labels=dict(folder.labels)), folder.about, folder.units
    chosen = {key: found for key, found in folder.records.items() if found}
    for key in units:
        where = f"{printed(key[2])} on {key[0]} {folder.labels[key[:2]]}"
        if key not in chosen:
            results.notes.append(f"{where}: every draw diverged")
            continue
        diverged = [record for (_, seed), record in units[key].items() if seed > 0 and not is_done(record)]
        if diverged:
            results.partial.add((key[0], printed(key[2])))
            results.notes.append(
                f"{where}: {len(diverged)} of {len(diverged) + len(chosen[key])} seeds diverged and are left out"
            )
    for data in dict.fromkeys(key[0] for key in chosen):
        _add_data_set(results, data, {key[1:]: found for key, found in chosen.items() if key[0] == data})
        protocol = about["data"][data]["protocol"]
        draws = {
            key[1:]: 0 if chooses_ridge(key[2], protocol["select"]) else sum(seed == 0 for _, seed in units[key])
            for key in chosen
            if key[0] == data
        }
        results.modes[data] = "frozen features" if protocol["mode"] == "features" else "fine-tuned"
        _add_extent(results, data, draws, protocol)
        crm = [found for key, found in chosen.items() if (key[0], key[2]) == (data, "crm")]
        results.notes += _unreliable_ridges(data, protocol, crm)
        results.notes += _outside_hull(
            data, {key[1]: next(iter(chosen[key].values())) for key in chosen if key[0] == data}
        )
        with_pool = [found for key, found in chosen.items() if (key[0], key[2]) == (data, POOL_METHOD)]
        results.notes += pool_notes(data, about["data"][data].get("unlabelled"), with_pool)
        if about["data"][data].get("name") == data:
            results.named.add(data)
            record = next(iter(next(found for key, found in chosen.items() if key[0] == data).values()))
            scores_of = [*results.scenarios.items(), *results.standard.items()]
            seeds = min(score.seeds for key, found in scores_of if key[0] == data for score in found.values())
            numbers = [count for (label, _), (_, count) in results.extent.items() if label == data and count]
            n_draws = min(numbers, default=0)
            results.differences[data] = paper_differences(data, protocol, record, draws=n_draws, seeds=seeds)
    results.notes += unfinished_notes(about, unfinished_units(about, units))
    if folder.n_foreign:
        results.notes.append(
            f"{folder.n_foreign} results with other data, settings or versions of a method are left out"
        )
    if n_failures:
        results.notes.append(
            f"{n_failures} job{'s' * (n_failures > 1)} failed: see the logs in the folder failures, and run the same "
            "command again to retry"
        )
    versions = sorted({record["versions"]["compshift"] for unit in units.values() for record in unit.values()})
    if len(versions) > 1:
        results.notes.append(f"the results are from several versions of compshift: {', '.join(versions)}")
    return results


def _add_extent(
    results: Results, data: str, draws: Mapping[tuple[DroppedGroups, str], int], protocol: Mapping[str, Any]
) -> None:
    """Add each method's number of scenarios and draws, and a note about the protocol, the scenarios and the draws."""
    for method in dict.fromkeys(method for _, method in draws):
        method_draws = [count for (dropped, name), count in draws.items() if name == method]
        shifts = [key for key in results.scenarios if key[0] == data and key[2] == printed(method)]
        results.extent[data, printed(method)] = len(shifts), min(method_draws)
    scenarios = max(count for (label, _), (count, _) in results.extent.items() if label == data)
    numbers = {name: count for (label, name), (_, count) in results.extent.items() if label == data and count}
    text = f"{data}: {describe_protocol(protocol)}, {scenarios} scenario{'s' * (scenarios != 1)}"
    if len(set(numbers.values())) == 1:
        count = next(iter(numbers.values()))
        text += f", {count} draw{'s' * (count != 1)}"
    elif numbers:
        listed = ", ".join(f"{name} {count}" for name, count in numbers.items())
        text += f"; methods had different numbers of draws to choose from: {listed}"
    if protocol["select"] == COMBINATIONS:
        text += f"; {describe_selection(protocol)}"
    results.notes.insert(0, f"{text}.")


def _unreliable_ridges(data: str, protocol: Mapping[str, Any], scenarios: Sequence[Mapping[int, Record]]) -> list[str]:
    """Return a note if CRM's ridge, chosen by validation rows, leaves biases of unseen groups unreliable.

    ``scenarios`` has CRM's chosen records of each scenario, by seed. Every group that a record lists as extrapolated
    matters, because the reported predictions give each of them a positive prior.
    """
    if protocol["mode"] != "features" or protocol["select"] == COMBINATIONS:
        return []
    largest = [
        max(tail or 0.0 for record in records.values() for *_, tail in record["detail"].get("extrapolated", ()))
        for records in scenarios
        if any(record["detail"].get("extrapolated") for record in records.values())
    ]
    count = sum(tail > HEAVY_TAIL for tail in largest)
    if not count:
        return []
    return [
        f"{data}: in {count} of {len(largest)} scenarios CRM's ridge, drawn at random and chosen by validation rows of "
        f"seen groups, leaves the bias of an unseen group to few training rows (Pareto k̂ above {HEAVY_TAIL}), which "
        "usually costs accuracy on that group: --select combinations chooses the ridge by held-out combinations."
    ]


def _outside_hull(data: str, records: Mapping[DroppedGroups, Record]) -> list[str]:
    """Return a note if tested groups lie outside the affine hull of the seen groups; otherwise an empty list."""
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
        f"{data}: in {outside} of {len(records)} scenarios some tested groups lie outside the affine hull of the seen "
        "groups, so the training data do not determine predictions for them."
    ]


def describe_protocol(protocol: Mapping[str, Any]) -> str:
    """Describe a protocol in a few words."""
    named = f", protocol {protocol['name']}" if "name" in protocol else ""
    changed = f" with another {', '.join(protocol['changed'])}" if protocol.get("changed") else ""
    if protocol["mode"] == "features":
        return f"linear heads on fixed features{named}{changed}"
    return f"fine-tuning of {protocol['backbone']}, {protocol['steps']} steps{named}{changed}"


def _add_data_set(results: Results, data: str, units: Mapping[tuple[DroppedGroups, str], Mapping[int, Record]]) -> None:
    """Add all numbers of one data set to ``results``.

    If the training split itself lacks tested groups, a scenario that drops no group has a compositional shift too. Then
    only the scenario "standard", whose validation rows include those groups, counts as the result without a shift.
    """
    shifts = list(dict.fromkeys(dropped for dropped, _ in units if dropped not in ((), STANDARD)))
    plain = next((found for (dropped, _), found in units.items() if dropped in ((), STANDARD)), {})
    lacking = max((n_unseen(record) for record in plain.values()), default=0)
    if lacking:
        results.lacking[data] = lacking
        shifts = shifts or ([()] if any(not dropped for dropped, _ in units) else [])
    unshifted = [STANDARD] if lacking else [(), STANDARD]
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
                for dropped in (*shifts, *unshifted)
                if (dropped, method) in units and (predictor is None or _has(units[dropped, method], predictor))
            }
            mean = _over_scenarios([by_scenario[dropped] for dropped in shifts if dropped in by_scenario])
            if predictor is not None:
                if mean:
                    results.ablations[data, label] = mean
                continue
            for dropped in shifts:
                if dropped in by_scenario:
                    results.scenarios[data, dropped, name] = _over_seeds(by_scenario[dropped].values())
            if mean:
                results.main[data, name] = mean
            for dropped in unshifted:
                if dropped in by_scenario:
                    results.standard[data, name] = _over_seeds(by_scenario[dropped].values())


def _has(records: Mapping[int, Record], predictor: str) -> bool:
    return all(predictor in record["right"]["test"] for record in records.values())


def _scores(record: Record, predictor: str | None) -> dict[str, float]:
    return {**scores(record, "test", predictor), "unseen": dropped_accuracy(record, predictor)}


def _over_seeds(found: Iterable[Mapping[str, float]]) -> Scores:
    rows = list(found)
    return {metric: Score.over([row[metric] for row in rows]) for metric in rows[0]}


def _over_scenarios(scenarios: Sequence[Mapping[int, Mapping[str, float]]]) -> Scores:
    """Average over scenarios for each seed, then over seeds; seeds with fewer scenarios than others are left out."""
    if not scenarios:
        return {}
    by_seed = {seed: [found[seed] for found in scenarios if seed in found] for found in scenarios for seed in found}
    most = max(len(rows) for rows in by_seed.values())
    means = [
        {metric: float(np.mean([row[metric] for row in rows])) for metric in rows[0]}
        for _, rows in sorted(by_seed.items())
        if len(rows) == most
    ]
    return _over_seeds(means)


def paper_results() -> Results:
    """Return the paper's printed numbers.

    The paper numbers the groups of MetaShift differently in its table of scenarios than in its text: dropping (1, 0)
    hardly changes the average accuracy, which fits (cat, outdoor) with 7 % of the test rows, not (dog, indoor) with
    22 %. Keys use the numbers of the text, as our loader does; labels use those of the table.
    """
    results = Results()
    for row in [*read_table("main_results"), *read_table("celeba_multi_attribute")]:
        data = row.get("dataset", "celeba5")
        results.main[data, row["method"]] = _printed_scores(row)
        error = float(row[f"{PAPER_STANDARD}_se"])
        results.standard[data, row["method"]] = {"worst": Score(float(row[PAPER_STANDARD]), error, 3)}
    for row in read_table("standard_subpopulation"):
        results.standard[row["dataset"], row["method"]] = _printed_scores(row)
    for row in read_table("scenarios"):
        code = (int(row["dropped_y"]), int(row["dropped_a"]))
        dropped = ((1 - code[0], 1 - code[1]) if row["dataset"] == "metashift" else code,)
        results.scenarios[row["dataset"], dropped, row["method"]] = _printed_scores(row)
        results.labels[row["dataset"], dropped] = f"({row['dropped_y']}, {row['dropped_a']})"
    for row in read_table("ablations"):
        results.ablations[row["dataset"], row["variant"]] = _printed_scores(row)
    results.named = {data for data, _ in results.main}
    return results


def _printed_scores(row: Mapping[str, str]) -> Scores:
    return {
        metric: Score(float(row[column]), float(row[f"{column}_se"]), 3) for column, metric in PAPER_METRICS.items()
    }


@dataclass(frozen=True, eq=False)
class GroupResults:
    """Accuracy of every group of a data set, averaged over seeds and then over scenarios."""

    data: str
    space: GroupSpace
    groups: IntArray  # (g, m) codes of the groups that have rows
    train_rows: IntArray  # (g,) training rows before any group was dropped
    test_rows: IntArray  # (g,)
    methods: tuple[str, ...]  # printed names
    seen: FloatArray  # (methods, g) accuracy over scenarios in which the group is seen; NaN without such scenarios
    unseen: FloatArray  # (methods, g) accuracy over scenarios in which the group is unseen; NaN without such scenarios
    scenarios: tuple[tuple[str, IntArray], ...]  # readable name and dropped groups
    trust: FloatArray  # (g, 2) smallest ESS and largest k̂ of CRM's bias for the unseen group; NaN if unknown
    bias_gap: float  # largest |B* − B| of CRM's fits; NaN if unknown


def group_results(folder: ChosenRecords) -> Iterator[GroupResults]:
    """Yield the group accuracies of every data set that has results."""
    for data in dict.fromkeys(key[0] for key, found in folder.records.items() if found):
        part = {key: found for key, found in folder.records.items() if key[0] == data and found}
        yield _groups_of(data, part, folder.labels)


def _groups_of(
    data: str, chosen: Mapping[UnitKey, Mapping[int, Record]], labels: Mapping[tuple[str, DroppedGroups], str]
) -> GroupResults:
    """Return the group accuracies of one data set from its chosen records, given by unit and seed."""
    first = next(iter(next(iter(chosen.values())).values()))
    groups = np.array(first["groups"], dtype=np.int64)
    methods = list(dict.fromkeys(key[2] for key in chosen))
    parts: dict[bool, dict[str, list[FloatArray]]] = {True: defaultdict(list), False: defaultdict(list)}
    trust = np.full((len(groups), 2), np.nan)
    gaps = []
    for (_, _, method), records in chosen.items():
        accuracy = np.mean([group_accuracy(r, "test", reported(r))[0] for r in records.values()], axis=0)  # (g,)
        is_seen = np.array(next(iter(records.values()))["seen_rows"]) > 0
        for seen in (True, False):
            parts[seen][method].append(np.where(is_seen == seen, accuracy, np.nan))
        if method == "crm":
            for record in records.values():
                _add_trust(trust, groups, record["detail"])
                gaps.append(record["detail"].get("bias_gap", np.nan))
    scenarios = dict.fromkeys(key[1] for key in chosen)
    return GroupResults(
        data=data,
        space=GroupSpace(tuple(first["names"]), tuple(tuple(values) for values in first["values"])),
        groups=groups,
        train_rows=np.array(first["train_rows"], dtype=np.int64),
        test_rows=np.array(first["rows"]["test"], dtype=np.int64),
        methods=tuple(printed(method) for method in methods),
        seen=np.array([_mean(parts[True][method]) for method in methods]),
        unseen=np.array([_mean(parts[False][method]) for method in methods]),
        scenarios=tuple(
            (labels[data, dropped], np.array(dropped, dtype=np.int64).reshape(-1, groups.shape[1]))
            for dropped in scenarios
            if any(dropped)
        ),
        trust=trust,
        bias_gap=float(np.nanmax(gaps)) if gaps and not np.isnan(gaps).all() else float("nan"),
    )


def _mean(rows: list[FloatArray]) -> FloatArray:
    """Return the mean of each column over the rows that are not NaN there; NaN for a column of NaN."""
    stacked = np.array(rows)
    count = np.count_nonzero(~np.isnan(stacked), axis=0)
    return np.asarray(np.nansum(stacked, axis=0) / np.where(count > 0, count, np.nan))


def _add_trust(trust: FloatArray, groups: IntArray, detail: Mapping[str, Any]) -> None:
    """Update the smallest ESS and the largest k̂ of the groups that a fit extrapolated, in place."""
    position = {tuple(code): number for number, code in enumerate(groups.tolist())}
    for code, ess, pareto_k in detail.get("extrapolated", ()):
        row = position.get(tuple(code))
        if row is not None:
            trust[row] = np.fmin(trust[row, 0], ess), np.fmax(trust[row, 1], np.nan if pareto_k is None else pareto_k)
