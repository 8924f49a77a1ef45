"""What a record says about a predictor: the accuracies that tables show.

Whether a file of results holds what a benchmark writes: all that tables and pages look at.

Where results are kept: a folder with one file for each finished job.

Files appear whole or not at all. A job is claimed by a lock that the system lifts when its holder dies, so any number
of runners can share a folder, and one that was killed leaves nothing behind that needs mending.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compshift import __version__
from compshift._errors import InputError
from compshift._files import check_folder, check_inside, locked, read_json_object, replacing, try_lock
from compshift.core.groups import GroupSpace

if TYPE_CHECKING:
    from filelock import BaseFileLock

METRICS = ("average", "weighted", "balanced", "worst")
"""Share of right rows; the same with groups as frequent as in training; mean over groups; lowest of a group."""


def group_accuracy(record: dict[str, Any], split: str, predictor: str) -> tuple[Any, Any]:
    """Accuracy (g,) of each group, NaN without rows, and its rows (g,)."""
    rows = np.array(record["rows"][split], dtype=np.float64)
    right = np.array(record["right"][split][predictor], dtype=np.float64)
    return right / np.where(rows > 0, rows, np.nan), rows


def scores(record: dict[str, Any], split: str = "test", predictor: str | None = None) -> dict[str, float]:
    """Every metric of a predictor, by default of the one that is reported.

    ``weighted`` has groups weighted by their rows in training before any group was dropped.
    """
    accuracy, rows = group_accuracy(record, split, predictor or reported(record))
    held = rows > 0
    train = np.array(record["train_rows"], dtype=np.float64)[held]
    return {
        "average": float(accuracy[held] @ rows[held] / rows.sum()),
        "weighted": float(accuracy[held] @ train / train.sum()) if train.any() else float("nan"),
        "balanced": float(accuracy[held].mean()),
        "worst": float(accuracy[held].min()),
    }


def dropped_accuracy(record: dict[str, Any], predictor: str | None = None) -> float:
    """Share of right rows among the test rows of groups that training lacked; NaN if there are none."""
    rows = np.array(record["rows"]["test"], dtype=np.float64)
    right = np.array(record["right"]["test"][predictor or reported(record)], dtype=np.float64)
    unseen = (np.array(record["seen_rows"]) == 0) & (rows > 0)
    return float(right[unseen].sum() / rows[unseen].sum()) if unseen.any() else float("nan")


def reported(record: dict[str, Any]) -> str:
    """The predictor that is selected and reported: the first."""
    return str(next(iter(record["right"]["test"])))


def n_unseen(record: dict[str, Any]) -> int:
    """How many groups test has and training lacked."""
    return int(((np.array(record["seen_rows"]) == 0) & (np.array(record["rows"]["test"]) > 0)).sum())


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


STORE_VERSION = 1

PATIENCE = 60.0
"""Seconds to wait for another runner that opens the folder, which takes a moment."""

FOLDERS = ("jobs", "failures", "locks", "runs")

OWN = {"bench.json", "results.parquet", "features", *FOLDERS}
"""What a folder of results has; another runner may be about to make it."""

Record = dict[str, Any]


@dataclass(frozen=True)
class Store:
    """A folder of results."""

    path: Path

    @property
    def about(self) -> Path:
        """Data sets, protocols and methods that the folder has results of."""
        return self.path / "bench.json"

    @property
    def view(self) -> Path:
        """All results as one table, made from the files of the jobs."""
        return self.path / "results.parquet"

    def record_path(self, key: str) -> Path:
        """The file of a finished job."""
        return self.path / "jobs" / f"{key}.json"

    def failure_path(self, key: str) -> Path:
        """What is known of a job that failed."""
        return self.path / "failures" / f"{key}.json"

    def run_path(self, key: str) -> Path:
        """Where a long run keeps its state until it is finished."""
        return self.path / "runs" / key

    @classmethod
    def open(cls, path: Path) -> Store:
        """A folder that has results."""
        store = cls(path)
        if not store.about.is_file():
            raise InputError(f"{str(path)!r} holds no benchmark: pass the folder that `compshift bench` wrote with -o")
        store.read_about()
        return store

    @classmethod
    def create(
        cls, path: Path, data: Mapping[str, Any], methods: Mapping[str, str], plans: Mapping[str, Any] | None = None
    ) -> Store:
        """A folder for results of these data sets and methods; what was run otherwise before is refused.

        ``plans`` list for each data set the groups that are dropped, the method, and the numbers of draws and seeds.
        """
        check_folder(path, "for the results")
        store = cls(path)
        if path.is_dir() and not store.about.exists() and {found.name for found in path.glob("[!.]*")} - OWN:
            raise InputError(f"{str(path)!r} holds other files than a benchmark's: pass an empty or a new folder")
        for folder in FOLDERS:
            (path / folder).mkdir(parents=True, exist_ok=True)
        with locked(path / ".lock", PATIENCE) as alone:
            if not alone:
                raise InputError(f"another process has held {str(path)!r} for {PATIENCE:g} s: end it, or wait")
            about = store.read_about() if store.about.exists() else {"data": {}, "methods": {}, "plans": {}}
            held = [record["config"] for record in store.records()]
            used = {config["data"] for config in held}
            _check_same({label: before for label, before in about["data"].items() if label in used}, data, path)
            for name, code in methods.items():
                if about["methods"].get(name, code) != code and any(config["method"] == name for config in held):
                    raise InputError(
                        f"{str(path)!r} has results of another version of the method {name!r}: choose another folder, "
                        "or give the method another name"
                    )
            merged = {"data": {**about["data"], **data}, "methods": {**about["methods"], **methods}}
            merged["plans"] = dict(about["plans"])
            for label, plan in (plans or {}).items():
                merged["plans"][label] = _union(about["plans"].get(label) if label in used else None, plan)
            merged = json.loads(json.dumps(merged))
            if merged != {name: about[name] for name in merged} or not store.about.exists():
                write_json(store.about, {"version": STORE_VERSION, "compshift": __version__, **merged})
        return store

    def read_about(self) -> dict[str, Any]:
        """What the folder is of."""
        about = read_json(check_inside(self.about, self.path), "remove it, and run the same benchmark again")
        if about.get("version") != STORE_VERSION or not {"data", "methods", "plans"} <= set(about):
            raise InputError(
                f"{str(self.path)!r} has benchmark format {about.get('version')}, written by compshift "
                f"{about.get('compshift')}: this release reads {STORE_VERSION}; choose another folder"
            )
        try:
            check_about(about)
        except InputError as error:
            raise InputError(
                f"{str(self.about)!r} is not what a benchmark writes ({error}): choose another folder"
            ) from None
        return about

    def has(self, key: str) -> bool:
        """Whether the job is finished."""
        return self.record_path(key).is_file()

    def read(self, key: str) -> Record:
        """The record of a finished job."""
        return self._record(self.record_path(key))

    def records(self) -> Iterator[Record]:
        """All finished jobs, in order of their names."""
        for path in sorted((self.path / "jobs").glob("*.json")):
            if not path.name.startswith("."):
                yield self._record(path)

    def failures(self) -> Iterator[Record]:
        """Jobs that failed and were not finished since."""
        for path in sorted((self.path / "failures").glob("*.json")):
            if not path.name.startswith(".") and not self.has(path.stem):
                yield self._record(path)

    def _record(self, path: Path) -> Record:
        record = read_json(check_inside(path, self.path))
        try:
            check_outline(record)
        except InputError as error:
            raise InputError(f"{str(path)!r} is damaged ({error}): remove it, and its job runs again") from None
        return record

    def write(self, record: Record) -> None:
        """Keep what came of a job. A finished one is never replaced."""
        key = record["key"]
        if record["status"] == "failed":
            write_json(self.failure_path(key), record)
            log = self.failure_path(key).with_suffix(".log")
            with replacing(log) as temporary:
                told = "\n".join(record.get("warnings", []))
                temporary.write_text(
                    f"{json.dumps(record['config'], indent=1)}\n{told}\n{record.get('traceback', record['error'])}\n"
                )
        elif not self.has(key):
            write_json(self.record_path(key), record)
            for path in (self.failure_path(key), self.failure_path(key).with_suffix(".log")):
                path.unlink(missing_ok=True)

    def discard_run(self, key: str) -> None:
        """Remove the state of a run that is finished."""
        shutil.rmtree(self.run_path(key), ignore_errors=True)

    def claim(self, key: str) -> BaseFileLock | None:
        """A lock on a job, or None while another runner has it."""
        return try_lock(self.path / "locks" / key)

    def release(self, key: str, lock: BaseFileLock) -> None:
        """Give a job back. The file of the lock goes once nobody needs it: a runner that still finds it finds the
        result too.
        """
        if self.has(key):
            (self.path / "locks" / key).unlink(missing_ok=True)
        lock.release()


def _union(old: list[Any] | None, new: list[Any]) -> list[Any]:
    """Both plans, with the larger numbers of draws and seeds where they meet."""
    found: dict[str, list[Any]] = {}
    for dropped, method, draws, seeds in [*(old or []), *new]:
        key = json.dumps([dropped, method])
        _, _, most_draws, most_seeds = found.get(key, (None, None, 0, 0))
        found[key] = [dropped, method, max(draws, most_draws), max(seeds, most_seeds)]
    return list(found.values())


def _check_same(old: Mapping[str, Any], new: Mapping[str, Any], path: Path) -> None:
    """Refuse results of one data set under two protocols, or of two data sets under one name."""
    for label in old.keys() & new.keys():
        before, now = old[label], json.loads(json.dumps(new[label]))
        for name in ("digest", "protocol"):
            if before.get(name) != now[name]:
                inner = (
                    [key for key in now[name] if before[name].get(key) != now[name][key]] if name == "protocol" else []
                )
                what = (
                    f"{inner[0]} {before[name].get(inner[0])!r}, not {now[name][inner[0]]!r}"
                    if inner
                    else "other rows, splits, targets or attributes"
                )
                raise InputError(
                    f"{str(path)!r} has results of {label} with {what}: choose another folder, or the same options"
                )


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, allow_nan=False) + "\n")


def read_json(path: Path, remedy: str = "remove it, and its job runs again") -> dict[str, Any]:
    """A file that ``write_json`` wrote."""
    try:
        return read_json_object(path)
    except ValueError as error:
        raise InputError(f"{str(path)!r} is damaged ({error}): {remedy}") from None
