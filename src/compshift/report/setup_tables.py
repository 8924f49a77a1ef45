"""Tables of an experiment's setup: sizes of the data sets, and ranges of the hyper-parameters.

Each table is made from a benchmark folder, from the paper's printed numbers, or from both side by side. Columns of CSV
have the names that the paper's tables have in ``bench/paper_tables``.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from compshift._errors import InputError
from compshift.bench.paper import read_table
from compshift.bench.records import MAX_RUNS, Record, is_done
from compshift.bench.results import describe_protocol
from compshift.bench.selection import ChosenRecords, describe_selection
from compshift.methods.sampling import LogUniform
from compshift.report.grid import Cell, Grid

STATISTIC_HEADINGS = {
    "total_classes": "classes",
    "total_groups": "groups",
    "train_size": "train rows",
    "val_size": "val rows",
    "test_size": "test rows",
}
"""Heading of each field of ``DataStatistics``."""

HYPERPARAMETER_HEADINGS = {
    "learning_rate": "learning rate",
    "weight_decay": "weight decay",
    "batch_size": "batch size",
    "alpha": "ridge",
    "steps": "steps",
}
"""Headings of hyper-parameters; others are printed under their own name, before the steps."""

STATISTICS_NOTE = "Groups: combinations that have rows in any split. Rows are counted before a scenario drops groups."
AT_LEAST_NOTE = "≥: every result of the folder lacks validation rows of some group, so there are at least this many."
RANGES_NOTE = (
    "10^U(a, b) is ten to a power drawn uniformly between a and b; batch sizes are rounded down. These ranges are "
    "shared by all methods; methods have further ranges of their own."
)
STEPS_NOTE = "The paper prints its numbers of steps as “Total Epochs”."

MAX_STORED_EXPONENT = 1e6
"""Upper limit on the numbers of a stored range; larger ones cannot be exponents, so the file is damaged."""

PAPER_FILES = {"statistics": "dataset_statistics", "hyperparameters": "hyperparameters"}
"""Table of the paper that each table is compared with."""

Values = Mapping[str, Any]
"""Values of one row of a table, by column."""


@dataclass(frozen=True)
class DataStatistics:
    """Sizes of a data set before any group is dropped."""

    total_classes: int
    total_groups: int
    train_size: int
    val_size: int
    test_size: int
    val_is_exact: bool = True  # False if every record lacks validation rows of some group


@dataclass(frozen=True, eq=False)
class SetupTable:
    """One table: a row of values per data set, from a benchmark folder and from the paper."""

    name: str  # one of PAPER_FILES
    ours: Mapping[str, Values] | None  # by data set; None without a folder
    paper: Mapping[str, Values] | None  # by data set; None if the paper's numbers are not asked for
    notes: Sequence[str] = ()

    def to_grid(self) -> Grid:
        """Return the table; with both sources, each of the paper's columns follows ours."""
        headings = STATISTIC_HEADINGS if self.name == "statistics" else HYPERPARAMETER_HEADINGS
        title = "Data sets" if self.name == "statistics" else "Ranges of the hyper-parameters"
        sources = [source for source in (self.ours, self.paper) if source is not None]
        labels = list(sources[0])
        columns = _columns([source[label] for source in sources for label in labels if label in source], headings)
        shown = [headings.get(column, column) for column in columns]
        if len(sources) == 2:
            title += ", beside the paper"
            shown = [part for heading in shown for part in (f"{heading}: ours", "paper")]
        notes = [*([STATISTICS_NOTE] if self.name == "statistics" else [RANGES_NOTE]), *self.notes]
        if self.name == "hyperparameters" and self.paper is not None:
            notes.insert(1, STEPS_NOTE)
        grid = Grid(self.name, title, ["data set", *shown], 1, notes=notes)
        for label in labels:
            rows = [source.get(label, {}) for source in sources]
            grid.add([label], [Cell(_shown(row, column)) for column in columns for row in rows])
        if any(row.get("val_is_exact") is False for row in (self.ours or {}).values()):
            grid.notes.append(AT_LEAST_NOTE)
        return grid

    def to_csv(self) -> str:
        """Return the table as CSV: one line per data set, or per data set and hyper-parameter."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        statistics = self.name == "statistics"
        columns = list(STATISTIC_HEADINGS) if statistics else ["hyperparameter", "base", "low", "high"]
        writer.writerow(["source", "dataset", *columns, *(["val_is_exact"] if statistics else [])])
        for source, found in (("ours", self.ours), ("paper", self.paper)):
            for label, row in (found or {}).items():
                if source == "paper" and self.ours is not None and label not in self.ours:
                    continue
                if statistics:
                    exact = "no" if row.get("val_is_exact") is False else "yes"
                    writer.writerow([source, label, *(row[column] for column in columns), exact])
                    continue
                for name in _columns([row], HYPERPARAMETER_HEADINGS):
                    value = row[name]
                    drawn = isinstance(value, LogUniform)
                    parts = [f"{value.base:g}", value.low, value.high] if drawn else ["", value, value]
                    writer.writerow([source, label, name, *parts])
        return stream.getvalue()


def setup_table(name: str, folder: ChosenRecords | None, *, paper: bool) -> SetupTable:
    """Return a table, by its name in ``PAPER_FILES``, of a benchmark's data sets or, without a folder, the paper's."""
    ours: dict[str, Values] | None = None
    notes: list[str] = []
    named: set[str] = set()
    if folder is not None:
        entries = folder.about["data"]
        named = {label for label, entry in entries.items() if entry.get("name") == label}
        if name == "statistics":
            found = {label: _statistics(label, folder) for label in entries}
            ours = {label: asdict(row) for label, row in found.items() if row is not None}
            if not ours:
                raise InputError("there are no results to count rows in: run `compshift bench` until a job finishes")
        else:
            ours = {label: _ranges(label, entry["protocol"]) for label, entry in entries.items()}
            notes = [
                f"{label}: {describe_protocol(entry['protocol'])}, {describe_selection(entry['protocol'])}."
                for label, entry in entries.items()
            ]
    printed = {row["dataset"]: row for row in read_table(PAPER_FILES[name])} if paper else {}
    theirs = {
        label: _printed_statistics(row) if name == "statistics" else _printed_ranges(row)
        for label, row in printed.items()
        if folder is None or label in named
    }
    if paper and ours is not None and not ours.keys() & theirs.keys():
        raise InputError(
            f"the paper's table of {name} has none of {', '.join(ours)}: its rows are {', '.join(printed)}; leave out "
            "--paper"
        )
    return SetupTable(name, ours, theirs if paper else None, notes)


def _printed_ranges(row: Mapping[str, str]) -> dict[str, LogUniform | int]:
    """Return the ranges in a row of the paper's table of hyper-parameters, and the number of steps."""

    def between(name: str, base: float) -> LogUniform:
        return LogUniform(float(row[f"{name}_low"]), float(row[f"{name}_high"]), base=base)

    return {
        "learning_rate": between("lr_log10", 10.0),
        "weight_decay": between("weight_decay_log10", 10.0),
        "batch_size": between("batch_size_log2", 2.0),
        "steps": int(row["epochs"]),
    }


def _printed_statistics(row: Mapping[str, str]) -> dict[str, int]:
    return {name: int(row[name]) for name in STATISTIC_HEADINGS}


def _columns(rows: Sequence[Values], headings: Mapping[str, str]) -> list[str]:
    """Return the columns that a row has, in the order of the headings; unknown ones stand before the last heading."""
    present = {name: None for row in rows for name in row if name != "val_is_exact"}
    *first, last = headings
    order = [*first, *(name for name in present if name not in headings), last]
    return [name for name in order if name in present]


def _shown(row: Values, column: str) -> str:
    """Format a value: a range as ``10^U(−5, −3)``, a number as it is, and nothing if there is none."""
    value = row.get(column)
    if isinstance(value, LogUniform):
        return f"{value.base:g}^U({value.low:g}, {value.high:g})".replace("-", "−")
    at_least = "≥ " if column == "val_size" and row.get("val_is_exact") is False else ""
    return "" if value is None else f"{at_least}{value}"


def _statistics(label: str, folder: ChosenRecords) -> DataStatistics | None:
    """Return the sizes of a data set from its records; None if none is finished.

    Records count validation rows after a scenario dropped its groups, so the largest count of each group is used. It is
    exact if some record keeps the group. If a scenario also drops copies of a sample from other groups (``strict``),
    only a record without dropped groups is exact.
    """
    records = [
        record for key, unit in folder.units.items() if key[0] == label for record in unit.values() if is_done(record)
    ]
    if not records:
        return None
    first = records[0]
    records = [record for record in records if record["groups"] == first["groups"]]
    val = np.array([record["rows"].get("val", [0] * len(first["groups"])) for record in records])  # (records, g)
    return DataStatistics(
        total_classes=len({code[0] for code in first["groups"]}),
        total_groups=len(first["groups"]),
        train_size=sum(first["train_rows"]),
        val_size=int(val.max(axis=0).sum()),
        test_size=sum(first["rows"]["test"]) + first.get("pool_rows", 0),
        val_is_exact=_keeps_every_group(records, strict=bool(folder.about["data"][label]["protocol"].get("strict"))),
    )


def _keeps_every_group(records: Sequence[Record], *, strict: bool) -> bool:
    """Return whether every group is kept by at least one of the records."""
    dropped = [{tuple(code) for code in record["config"]["dropped"] if code} for record in records]
    return set() in dropped or (not strict and not set.intersection(*dropped))


def _ranges(label: str, protocol: Mapping[str, Any]) -> dict[str, LogUniform | float]:
    """Return the ranges and fixed values of a stored protocol and, if it has one, the largest number of steps."""
    damaged = InputError(
        f"'ranges' of {label} in bench.json is missing or invalid: remove the file, and run the same benchmark again"
    )
    stored = protocol.get("ranges")
    if not isinstance(stored, dict):
        raise damaged
    known = {field.name for field in fields(LogUniform)}
    found: dict[str, LogUniform | float] = {}
    for name, entry in stored.items():
        if type(entry) in (int, float) and abs(entry) < 2**53:  # a fixed value
            found[name] = entry
            continue
        if not isinstance(entry, dict) or not {"low", "high"} <= set(entry) <= known:
            raise damaged
        numbers = [entry["low"], entry["high"], entry.get("base", 10.0)]
        if not all(type(number) in (int, float) and abs(number) < MAX_STORED_EXPONENT for number in numbers):
            raise damaged
        found[name] = LogUniform(*numbers)
    steps = protocol.get("steps")
    return {**found, "steps": steps} if type(steps) is int and steps < MAX_RUNS else found
