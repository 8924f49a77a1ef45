"""Accuracy of every group by every method: when training had it, and when it did not.

The paper's numbers in the form of our own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from compshift.bench.protocol import read_table
from compshift.bench.results import Chosen, Key, Results, Scenario, Score, Scores, printed
from compshift.bench.store import Record, group_accuracy, reported
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.groups import GroupSpace


@dataclass(frozen=True, eq=False)
class GroupResults:
    """Of one data set. Accuracies are means over seeds, then over scenarios; NaN where there is no scenario."""

    data: str
    space: GroupSpace
    groups: IntArray  # (g, m) those that have rows
    train_rows: IntArray  # (g,) before any group was dropped
    test_rows: IntArray  # (g,)
    methods: tuple[str, ...]  # as tables name them
    seen: FloatArray  # (methods, g) over the scenarios in which training has the group
    unseen: FloatArray  # (methods, g) over those in which it does not
    scenarios: tuple[tuple[str, IntArray], ...]  # label and dropped groups
    trust: FloatArray  # (g, 2) least ESS and largest k̂ behind CRM's bias of the group while unseen; NaN if unknown
    bias_gap: float  # largest |B* − B| of CRM's fits; NaN if unknown


def group_results(folder: Chosen) -> Iterator[GroupResults]:
    """The groups of every data set that has results."""
    for data in dict.fromkeys(key[0] for key, found in folder.records.items() if found):
        part = {key: found for key, found in folder.records.items() if key[0] == data and found}
        yield _of_data_set(data, part, folder.labels)


def _of_data_set(
    data: str, chosen: Mapping[Key, Mapping[int, Record]], labels: Mapping[tuple[str, Scenario], str]
) -> GroupResults:
    first = next(iter(next(iter(chosen.values())).values()))
    groups = np.array(first["groups"], dtype=np.int64)
    methods = list(dict.fromkeys(key[2] for key in chosen))
    parts: dict[bool, dict[str, list[FloatArray]]] = {True: defaultdict(list), False: defaultdict(list)}
    trust = np.full((len(groups), 2), np.nan)
    gaps = []
    for (_, _, method), records in chosen.items():
        accuracy = np.mean([group_accuracy(r, "test", reported(r))[0] for r in records.values()], axis=0)  # (g,)
        had = np.array(next(iter(records.values()))["seen_rows"]) > 0
        for seen in (True, False):
            parts[seen][method].append(np.where(had == seen, accuracy, np.nan))
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
            if dropped
        ),
        trust=trust,
        bias_gap=float(np.nanmax(gaps)) if gaps and not np.isnan(gaps).all() else float("nan"),
    )


def _mean(rows: list[FloatArray]) -> FloatArray:
    """Mean over the rows that have a number, NaN where none has."""
    stacked = np.array(rows)
    count = np.count_nonzero(~np.isnan(stacked), axis=0)
    return np.asarray(np.nansum(stacked, axis=0) / np.where(count > 0, count, np.nan))


def _add_trust(trust: FloatArray, groups: IntArray, detail: Mapping[str, Any]) -> None:
    """Lower the ESS and raise the k̂ of the groups that a fit had to extrapolate."""
    position = {tuple(code): number for number, code in enumerate(groups.tolist())}
    for code, size, tail in detail.get("extrapolated", ()):
        row = position.get(tuple(code))
        if row is not None:
            trust[row] = np.fmin(trust[row, 0], size), np.fmax(trust[row, 1], np.nan if tail is None else tail)


PAPER_METRICS = {"average_acc": "average", "balanced_acc": "balanced", "worst_group_acc": "worst"}
STANDARD = "worst_group_acc_no_groups_dropped"


def paper_results() -> Results:
    """The paper's numbers, as printed, in the same form as our own.

    Its groups of MetaShift are numbered the other way round in the table of scenarios than in its text: that without
    (1, 0) the average stays what it was fits a group with 7 % of the test rows, which (cat, outdoor) is and (dog,
    indoor), with 22 %, is not. Keys have the numbers of the text, as our loader has, and labels those of the table.
    """
    results = Results()
    for row in [*read_table("main_results"), *read_table("celeba_multi_attribute")]:
        data = row.get("dataset", "celeba5")
        results.main[data, row["method"]] = _printed_scores(row)
        error = float(row[f"{STANDARD}_se"])
        results.standard[data, row["method"]] = {"worst": Score(float(row[STANDARD]), error, 3)}
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
