"""Records of jobs: compute accuracies from them, and check records that are read from files.

A record is the stored result of a job: its configuration, its status ("done", "diverged" or "failed") and, if it is
done, the number of rows and of correctly classified rows of every group, for every split and predictor.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from compshift import __version__
from compshift._errors import InputError
from compshift.bench.paper import POOL_METHOD
from compshift.bench.protocol import COMBINATIONS
from compshift.core.groups import GroupSpace

RECORD_VERSION = 1
"""Version of the format of records."""

Record = dict[str, Any]
"""Content of a record's JSON file."""

RECORD_METRICS = ("average", "weighted", "balanced", "worst")
"""Metrics of a record.

average: accuracy over rows; weighted: mean accuracy of groups, weighted by their training rows; balanced: unweighted
mean accuracy of groups; worst: lowest accuracy of a group.
"""

MAX_RUNS = 1_000_000
"""Upper limit on draws, seeds and steps that are read from the files of a benchmark."""


def package_versions() -> dict[str, str]:
    """Return the versions of compshift and Python, and of numpy, scipy, scikit-learn and torch where installed."""
    return dict(_versions())


@cache
def _versions() -> dict[str, str]:
    """Return the versions, which are read from files."""
    versions = {"compshift": __version__, "python": platform.python_version()}
    for name in ("numpy", "scipy", "scikit-learn", "torch"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def reported(record: Record) -> str:
    """Return the name of the predictor that selection and tables use: the first one in the record."""
    return str(next(iter(record["right"]["test"])))


def group_accuracy(record: Record, split: str, predictor: str) -> tuple[Any, Any]:
    """Return the accuracy (g,) of each group, NaN for groups without rows, and its number of rows (g,)."""
    rows = np.array(record["rows"][split], dtype=np.float64)
    right = np.array(record["right"][split][predictor], dtype=np.float64)
    return right / np.where(rows > 0, rows, np.nan), rows


def scores(record: Record, split: str = "test", predictor: str | None = None) -> dict[str, float]:
    """Return all ``RECORD_METRICS`` of a predictor, by default of the reported one.

    ``weighted`` weights each group by its number of training rows before any group was dropped.
    """
    accuracy, rows = group_accuracy(record, split, predictor or reported(record))
    present = rows > 0
    train = np.array(record["train_rows"], dtype=np.float64)[present]
    return {
        "average": float(accuracy[present] @ rows[present] / rows.sum()),
        "weighted": float(accuracy[present] @ train / train.sum()) if train.any() else float("nan"),
        "balanced": float(accuracy[present].mean()),
        "worst": float(accuracy[present].min()),
    }


def dropped_accuracy(record: Record, predictor: str | None = None) -> float:
    """Return the accuracy on test rows of unseen groups; NaN if there are no such rows."""
    rows = np.array(record["rows"]["test"], dtype=np.float64)
    right = np.array(record["right"]["test"][predictor or reported(record)], dtype=np.float64)
    unseen = (np.array(record["seen_rows"]) == 0) & (rows > 0)
    return float(right[unseen].sum() / rows[unseen].sum()) if unseen.any() else float("nan")


def n_unseen(record: Record) -> int:
    """Return the number of groups with test rows but without training rows."""
    return int(((np.array(record["seen_rows"]) == 0) & (np.array(record["rows"]["test"]) > 0)).sum())


def is_done(record: Record) -> bool:
    """Return whether a record has accuracies: its job neither diverged nor failed."""
    return bool(record["status"] == "done")


def check_outline(record: Mapping[str, Any]) -> None:
    """Check that a record has the data set, method, key and status that every record must have."""
    config = _mapping(record, "config")
    for text in (config.get("data"), config.get("method"), record.get("key"), record.get("status")):
        _expect(isinstance(text, str), "config")


def check_record(record: Mapping[str, Any]) -> None:
    """Check everything in a record that tables and reports use; an InputError names the first invalid part."""
    config = _mapping(record, "config")
    _expect(isinstance(config.get("common", {}), dict), "common")
    for name in ("data", "digest", "scenario", "method", "code"):
        _expect(isinstance(config.get(name), str), name)
    for name in ("draw", "seed"):
        _expect(_is_count(config.get(name), MAX_RUNS), name)
    _expect(_is_codes(config.get("dropped")), "dropped")
    _mapping(config, "protocol")
    _expect(record.get("status") in ("done", "diverged", "failed"), "status")
    _expect(isinstance(record.get("key"), str), "key")
    _expect(isinstance(record.get("finished"), str), "finished")
    _expect(isinstance(record.get("seconds"), int | float) and 0 <= record["seconds"] < 1e12, "seconds")
    _expect(isinstance(_mapping(record, "versions").get("compshift"), str), "versions")
    if record["status"] == "done":
        _check_counts(record)


def _check_counts(record: Mapping[str, Any]) -> None:
    """Check the groups of a finished record, and their numbers of rows and of correctly classified rows."""
    _expect(isinstance(record.get("names"), list) and isinstance(record.get("values"), list), "names")
    _expect(all(isinstance(values, list) for values in record["values"]), "values")
    space = GroupSpace(tuple(record["names"]), tuple(map(tuple, record["values"])))
    groups = record.get("groups")
    _expect(_is_codes(groups) and bool(groups), "groups")
    for code in [*record["groups"], *filter(None, record["config"]["dropped"])]:  # "standard" lists an empty group
        within = len(code) == len(space.names) and all(map(int.__lt__, code, space.cardinalities))
        _expect(within, "groups")
    n_groups = len(record["groups"])
    rows, right = _mapping(record, "rows"), _mapping(record, "right")
    _expect("test" in rows and set(right) == set(rows), "rows")
    for name, counts in (*((name, record.get(name)) for name in ("train_rows", "seen_rows")), *rows.items()):
        _expect(_are_counts(counts, n_groups), name)
    for split, predictors in right.items():
        _expect(isinstance(predictors, dict) and bool(predictors) and sum(rows[split]) > 0, "right")
        for counts in predictors.values():
            _expect(_are_counts(counts, n_groups) and all(map(int.__le__, counts, rows[split])), "right")
    first = next(iter(right["test"]))
    _expect(all(first in predictors for predictors in right.values()), "right")
    _expect(_is_count(record.get("pool_rows", 0)), "pool_rows")
    _check_detail(_mapping(record, "detail"))
    if record["config"]["method"] == POOL_METHOD:
        _expect(isinstance(_mapping(record["detail"], "pool").get("used"), bool), "pool")


def _check_detail(detail: Mapping[str, Any]) -> None:
    """Check CRM's chosen ridge and the diagnostics of its biases if the record has them."""
    for name in ("alpha", "bias_gap"):
        _expect(_is_number(detail.get(name, 0.0)), name)
    extrapolated = detail.get("extrapolated", [])
    _expect(isinstance(extrapolated, list), "extrapolated")
    for entry in extrapolated:  # code, effective sample size, Pareto k̂ or None
        _expect(isinstance(entry, list) and len(entry) == 3, "extrapolated")
        _expect(_is_codes([entry[0]]) and _is_number(entry[1]) and _is_number(entry[2] or 0.0), "extrapolated")


def check_about(about: Mapping[str, Any]) -> None:
    """Check the content of ``bench.json``; an InputError names the first invalid part."""
    _expect(type(about.get("version")) is int, "version")
    data, plans = _mapping(about, "data"), _mapping(about, "plans")
    _mapping(about, "methods")
    for entry in data.values():
        _expect(isinstance(entry, dict) and isinstance(entry.get("digest"), str), "data")
        _mapping(entry, "protocol")
        _expect(_is_number(entry.get("unlabelled", 0.5)) and 0 < entry.get("unlabelled", 0.5) < 1, "unlabelled")
    for label, plan in plans.items():
        _expect(label in data and isinstance(plan, list), "plans")
        for unit in plan:  # dropped groups, method, number of draws, number of seeds
            _expect(isinstance(unit, list) and len(unit) == 4 and isinstance(unit[1], str), "plans")
            _expect(_is_codes(unit[0]) and all(_is_count(number, MAX_RUNS) for number in unit[2:]), "plans")


def check_protocol(protocol: Mapping[str, Any]) -> None:
    """Check the parts of a stored protocol that tables print; an InputError names the first invalid part."""
    _expect(protocol.get("mode") in ("features", "fine-tuning"), "mode")
    _expect(protocol.get("select") in (*RECORD_METRICS, COMBINATIONS), "select")
    changed = protocol.get("changed", [])
    _expect(isinstance(changed, list) and all(isinstance(name, str) for name in changed), "changed")
    _expect(protocol["mode"] == "features" or {"backbone", "steps"} <= set(protocol), "backbone")


def _mapping(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = content.get(name)
    _expect(isinstance(value, dict), name)
    assert isinstance(value, dict)
    return value


def _expect(valid: bool, name: str) -> None:
    if not valid:
        raise InputError(f"{name!r} is missing or invalid")  # callers add the file and the remedy


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < 1e300


def _is_count(value: Any, most: int = 2**53) -> bool:
    return type(value) is int and 0 <= value <= most


def _are_counts(values: Any, number: int) -> bool:
    return isinstance(values, list) and len(values) == number and all(map(_is_count, values))


def _is_codes(codes: Any) -> bool:
    return isinstance(codes, list) and all(isinstance(code, list) and all(map(_is_count, code)) for code in codes)
