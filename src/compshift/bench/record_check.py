"""Whether a file of results holds what a benchmark writes: all that tables and pages look at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compshift._errors import InputError
from compshift.bench.scores import METRICS
from compshift.core.groups import GroupSpace

STATUS = ("done", "diverged", "failed")
LABELS = ("data", "digest", "scenario", "method", "code")
MOST_RUNS = 1_000_000
"""Draws or seeds of one method."""


def check_outline(record: Mapping[str, Any]) -> None:
    """Refuse what is no record at all; the error says what it lacks."""
    config = _mapping(record, "config")
    for found in (config.get("data"), config.get("method"), record.get("key"), record.get("status")):
        _expect(isinstance(found, str), "config")


def check_record(record: Mapping[str, Any]) -> None:
    """Refuse a record that is not whole; the error says what it lacks."""
    config = _mapping(record, "config")
    _expect(isinstance(config.get("common", {}), dict), "common")
    for name in LABELS:
        _expect(isinstance(config.get(name), str), name)
    for name in ("draw", "seed"):
        _expect(_is_count(config.get(name), MOST_RUNS), name)
    _expect(_is_codes(config.get("dropped")), "dropped")
    _mapping(config, "protocol")
    _expect(record.get("status") in STATUS, "status")
    _expect(isinstance(record.get("key"), str), "key")
    _expect(isinstance(record.get("finished"), str), "finished")
    _expect(isinstance(record.get("seconds"), int | float) and 0 <= record["seconds"] < 1e12, "seconds")
    _expect(isinstance(_mapping(record, "versions").get("compshift"), str), "versions")
    if record["status"] == "done":
        _check_counts(record)


def _check_counts(record: Mapping[str, Any]) -> None:
    """Rows and right ones of every group."""
    _expect(isinstance(record.get("names"), list) and isinstance(record.get("values"), list), "names")
    _expect(all(isinstance(values, list) for values in record["values"]), "values")
    space = GroupSpace(tuple(record["names"]), tuple(map(tuple, record["values"])))
    groups = record.get("groups")
    _expect(_is_codes(groups) and bool(groups), "groups")
    for code in [*record["groups"], *record["config"]["dropped"]]:
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
    reported = next(iter(right["test"]))
    _expect(all(reported in predictors for predictors in right.values()), "right")
    _check_detail(_mapping(record, "detail"))


def _check_detail(detail: Mapping[str, Any]) -> None:
    """What a fit of CRM says of its biases."""
    _expect(_is_number(detail.get("bias_gap", 0.0)), "bias_gap")
    extrapolated = detail.get("extrapolated", [])
    _expect(isinstance(extrapolated, list), "extrapolated")
    for found in extrapolated:
        _expect(isinstance(found, list) and len(found) == 3, "extrapolated")
        _expect(_is_codes([found[0]]) and _is_number(found[1]) and _is_number(found[2] or 0.0), "extrapolated")


def check_about(about: Mapping[str, Any]) -> None:
    """Refuse a folder's own file that is not whole; the error says what it lacks."""
    data, plans = _mapping(about, "data"), _mapping(about, "plans")
    _mapping(about, "methods")
    for found in data.values():
        _expect(isinstance(found, dict) and isinstance(found.get("digest"), str), "data")
        _mapping(found, "protocol")
    for label, plan in plans.items():
        _expect(label in data and isinstance(plan, list), "plans")
        for entry in plan:
            _expect(isinstance(entry, list) and len(entry) == 4 and isinstance(entry[1], str), "plans")
            _expect(_is_codes(entry[0]) and all(_is_count(number, MOST_RUNS) for number in entry[2:]), "plans")


def check_protocol(protocol: Mapping[str, Any]) -> None:
    """Refuse a protocol without what tables say of it."""
    _expect(protocol.get("mode") in ("features", "fine-tuning"), "mode")
    _expect(protocol.get("select") in METRICS, "select")
    _expect(protocol["mode"] == "features" or {"backbone", "steps"} <= set(protocol), "backbone")


def _mapping(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = content.get(name)
    _expect(isinstance(found, dict), name)
    assert isinstance(found, dict)
    return found


def _expect(right: bool, name: str) -> None:
    if not right:
        raise InputError(f"{name} is missing, or not what is expected")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < 1e300


def _is_count(value: Any, most: int = 2**53) -> bool:
    return type(value) is int and 0 <= value <= most


def _are_counts(values: Any, number: int) -> bool:
    return isinstance(values, list) and len(values) == number and all(map(_is_count, values))


def _is_codes(codes: Any) -> bool:
    return isinstance(codes, list) and all(isinstance(code, list) and all(map(_is_count, code)) for code in codes)
