"""The output folder of a benchmark, with one JSON file for each finished or failed job.

Files are written atomically. A runner claims a job with a file lock, which the operating system releases when the
runner dies. So any number of runners can share a folder, and a killed runner leaves nothing to clean up.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compshift import __version__
from compshift._errors import InputError, shown
from compshift._files import check_folder, check_inside, locked, read_json_object, replacing, try_lock
from compshift.bench.records import Record, check_about, check_outline, check_record, is_done
from compshift.methods.sampling import LogUniform

if TYPE_CHECKING:
    from filelock import BaseFileLock

STORE_VERSION = 1
"""Version of the format of the folder."""

OPENING_PATIENCE = 60.0
"""Seconds to wait while another runner opens the folder."""

SUBFOLDERS = ("jobs", "failures", "locks", "runs")
"""Folders for records, failed jobs, file locks and checkpoints of training runs."""

BENCH_FILES = {"bench.json", "results.parquet", "features", *SUBFOLDERS}
"""Names of all files and folders of a benchmark; a folder without bench.json that holds other files is rejected."""

VIEW_COLUMNS = (
    *("data", "scenario", "method", "draw", "seed", "predictor", "split", "group", "rows", "right", "accuracy"),
    *("train_rows", "seen_rows", "hyperparameters", "mode", "seconds", "finished", "compshift", "key"),
)
"""Columns of ``results.parquet``."""


@dataclass(frozen=True)
class Store:
    """The folder in which `compshift bench` stores results (option -o)."""

    path: Path

    @property
    def about(self) -> Path:
        """File with the data sets, protocols, methods and plans of the benchmark."""
        return self.path / "bench.json"

    @property
    def view(self) -> Path:
        """File with all results as one Parquet table, generated from the records by ``write_view``."""
        return self.path / "results.parquet"

    def record_path(self, key: str) -> Path:
        """Return the path of a finished job's record."""
        return self.path / "jobs" / f"{key}.json"

    def failure_path(self, key: str) -> Path:
        """Return the path of a failed job's record; the log with the traceback has the same name with ``.log``."""
        return self.path / "failures" / f"{key}.json"

    def run_path(self, key: str) -> Path:
        """Return the folder for the checkpoints of a training run; it is removed when the job is finished."""
        return self.path / "runs" / key

    @classmethod
    def open(cls, path: Path) -> Store:
        """Open the existing folder of a benchmark."""
        store = cls(path)
        if not store.about.is_file():
            raise InputError(f"{str(path)!r} holds no benchmark: pass the output folder of `compshift bench`")
        store.read_about()
        return store

    @classmethod
    def create(
        cls, path: Path, data: Mapping[str, Any], methods: Mapping[str, str], plans: Mapping[str, Any] | None = None
    ) -> Store:
        """Open or create the folder of a benchmark, and merge the plans with those that it contains.

        Raise an InputError if the folder has results of the same data set with other content or another protocol, or of
        another version of a method. ``plans`` lists, for each data set, units of dropped groups, method, number of
        draws and number of seeds.
        """
        check_folder(path, "for the results")
        store = cls(path)
        if path.is_dir() and not store.about.exists() and {found.name for found in path.glob("[!.]*")} - BENCH_FILES:
            raise InputError(f"{str(path)!r} holds files that are not of a benchmark: pass an empty or a new folder")
        for folder in SUBFOLDERS:
            (path / folder).mkdir(parents=True, exist_ok=True)
        with locked(path / ".lock", OPENING_PATIENCE) as alone:
            if not alone:
                raise InputError(
                    f"another process has locked {str(path)!r} for {OPENING_PATIENCE:g} s: wait, or stop that process"
                )
            about = store.read_about() if store.about.exists() else {"data": {}, "methods": {}, "plans": {}}
            stored = [record["config"] for record in store.records()]
            used = {config["data"] for config in stored}
            _check_same_data({label: before for label, before in about["data"].items() if label in used}, data, path)
            for name, code in methods.items():
                if about["methods"].get(name, code) != code and any(config["method"] == name for config in stored):
                    raise InputError(
                        f"{str(path)!r} has results of another version of the method {name!r}: choose another folder, "
                        "or rename the method"
                    )
            merged = {"data": {**about["data"], **data}, "methods": {**about["methods"], **methods}}
            merged["plans"] = dict(about["plans"])
            for label, plan in (plans or {}).items():
                merged["plans"][label] = _merge_plans(about["plans"].get(label) if label in used else None, plan)
            merged = json.loads(json.dumps(merged))
            if merged != {name: about[name] for name in merged} or not store.about.exists():
                _write_json(store.about, {"version": STORE_VERSION, "compshift": __version__, **merged})
        return store

    def read_about(self) -> dict[str, Any]:
        """Return the content of ``bench.json`` after checking it."""
        about = _read_json(check_inside(self.about, self.path))
        if type(about.get("version")) is int and about["version"] != STORE_VERSION:
            raise InputError(
                f"{str(self.path)!r} has benchmark format {about['version']}, written by compshift "
                f"{about.get('compshift')}, but this release reads format {STORE_VERSION}: choose another folder"
            )
        try:
            check_about(about)
        except InputError as error:
            raise InputError(
                f"{str(self.about)!r} is damaged ({error}): remove it, and run the same benchmark again"
            ) from None
        return about

    def has(self, key: str) -> bool:
        """Return whether the job with this key is finished."""
        return self.record_path(key).is_file()

    def read(self, key: str) -> Record:
        """Return the record of a finished job."""
        return self._read_record(self.record_path(key))

    def records(self) -> Iterator[Record]:
        """Yield the records of all finished jobs, ordered by key."""
        for path in sorted((self.path / "jobs").glob("*.json")):
            if not path.name.startswith("."):
                yield self._read_record(path)

    def failures(self) -> Iterator[Record]:
        """Yield the records of jobs that failed and have not finished since."""
        for path in sorted((self.path / "failures").glob("*.json")):
            if not path.name.startswith(".") and not self.has(path.stem):
                yield self._read_record(path)

    def _read_record(self, path: Path) -> Record:
        record = _read_json(check_inside(path, self.path))
        try:
            check_outline(record)
            if record["key"] != path.stem:
                raise InputError(f"it is the record of the job {shown(record['key'])}")
        except InputError as error:
            raise InputError(
                f"{str(path)!r} is damaged ({error}): remove it, and run the same benchmark again"
            ) from None
        return record

    def write(self, record: Record) -> None:
        """Write a record to ``jobs`` or, if the job failed, to ``failures``; the record of a finished job is kept."""
        key = record["key"]
        if record["status"] == "failed":
            _write_json(self.failure_path(key), record)
            log = self.failure_path(key).with_suffix(".log")
            with replacing(log) as temporary:
                config = json.dumps(record["config"], indent=1)
                warnings = "\n".join(record.get("warnings", []))
                temporary.write_text(f"{config}\n{warnings}\n{record.get('traceback', record['error'])}\n")
        elif not self.has(key):
            _write_json(self.record_path(key), record)
            for path in (self.failure_path(key), self.failure_path(key).with_suffix(".log")):
                path.unlink(missing_ok=True)

    def discard_run(self, key: str) -> None:
        """Remove the checkpoints of a finished training run."""
        shutil.rmtree(self.run_path(key), ignore_errors=True)

    def claim(self, key: str) -> BaseFileLock | None:
        """Lock a job for this runner; return None if another runner has locked it."""
        return try_lock(self.path / "locks" / key)

    def release(self, key: str, lock: BaseFileLock) -> None:
        """Release the lock of a job, and remove the lock file if the job is finished.

        The record is written before the lock file is removed, so another runner that still locks the old file finds the
        record and does not run the job again.
        """
        if self.has(key):
            (self.path / "locks" / key).unlink(missing_ok=True)
        lock.release()


def _merge_plans(old: list[Any] | None, new: list[Any]) -> list[Any]:
    """Merge two plans; for a scenario and method in both, keep the larger numbers of draws and seeds."""
    merged: dict[str, list[Any]] = {}
    for dropped, method, draws, seeds in [*(old or []), *new]:
        key = json.dumps([dropped, method])
        _, _, most_draws, most_seeds = merged.get(key, (None, None, 0, 0))
        merged[key] = [dropped, method, max(draws, most_draws), max(seeds, most_seeds)]
    return list(merged.values())


def _check_same_data(old: Mapping[str, Any], new: Mapping[str, Any], path: Path) -> None:
    """Check that data sets in both plans have the same content and protocol; ``path`` is the folder of the old plan."""
    for label in old.keys() & new.keys():
        before, now = old[label], json.loads(json.dumps(new[label]))
        if before.get("digest") != now["digest"]:
            difference, remedy = "with other rows, splits, targets or attributes", "use the same options"
        elif before.get("protocol") != now["protocol"]:
            difference, remedy = _protocol_difference(before["protocol"], now["protocol"])
        elif before.get("unlabelled") != now.get("unlabelled"):
            difference, remedy = _scored_rows(before.get("unlabelled")), "use the same options"
        else:
            continue
        raise InputError(f"{str(path)!r} has results of {label} {difference}: choose another folder, or {remedy}")


def _scored_rows(share: float | None) -> str:
    """Describe the test rows that stored results were scored on, given the share that was an unlabelled pool."""
    return "scored on all test rows" if share is None else f"scored on the test rows outside a pool of {100 * share:g}%"


def _protocol_difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, str]:
    """Describe the first difference of two stored protocols, and say what to pass instead.

    A stored protocol without a name is from before protocols had names; its settings are those of "compshift".
    """
    names = [str(protocol.get("name", "compshift")) for protocol in (before, now)]
    if names[0] != names[1]:
        return f"by the protocol {names[0]!r}, not {names[1]!r}", f"pass protocol={names[0]!r}"
    old, new = _flat_settings(before), _flat_settings(now)
    listed = [name for protocol in (now, before) for name in map(str, protocol.get("changed") or ())]
    found = [name for name in (*listed, *new, *old) if old.get(name) != new.get(name)]
    if not found:
        return "with other settings", "use the same options"
    name, own = found[0], "the protocol's own"  # the value of a setting that is not stored
    had = f"{name} {_setting_text(old[name])}" if name in old else f"{own} {name}"
    return f"with {had}, not {_setting_text(new[name]) if name in new else own}", "use the same options"


def _flat_settings(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a stored protocol by name, including the ranges of hyper-parameters."""
    flat = {name: value for name, value in protocol.items() if name not in ("name", "changed", "ranges", "methods")}
    for part in ("ranges", "methods"):
        flat |= protocol[part] if isinstance(protocol.get(part), dict) else {}
    return flat


def _setting_text(value: Any) -> str:
    """Return a stored setting as text, a range as it is written in protocols."""
    with suppress(TypeError, ValueError):
        return str(LogUniform(**value))
    return repr(value)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON atomically."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, allow_nan=False) + "\n")


def _read_json(path: Path) -> dict[str, Any]:
    """Return the content of a file that ``_write_json`` wrote."""
    try:
        return read_json_object(path)
    except ValueError as error:
        raise InputError(f"{str(path)!r} is damaged ({error}): remove it, and run the same benchmark again") from None


def write_view(store: Store) -> int:
    """Write ``results.parquet``, and return its number of rows.

    It has one row per job with status "done", predictor, split and group that has rows in the split.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = []
    for record in store.records():
        if not is_done(record):
            continue
        check_record(record)
        config = record["config"]
        shared = {name: config[name] for name in ("data", "scenario", "method", "draw", "seed")}
        chosen = {name: record["detail"][name] for name in ("alpha",) if name in record["detail"]}  # chosen ridge
        shared |= {
            "hyperparameters": json.dumps({**config.get("common", {}), **chosen, "own": config.get("hyperparameters")}),
            "mode": str(config["protocol"].get("mode")),
            "seconds": record["seconds"],
            "finished": record["finished"],
            "compshift": record["versions"]["compshift"],
            "key": record["key"],
        }
        labels = [
            "(" + ", ".join(str(values[code]) for values, code in zip(record["values"], group, strict=True)) + ")"
            for group in record["groups"]
        ]
        for split, predictors in record["right"].items():
            count = record["rows"][split]
            for predictor, right in predictors.items():
                for number, label in enumerate(labels):
                    if count[number]:
                        rows.append(
                            {
                                **shared,
                                "predictor": predictor,
                                "split": split,
                                "group": label,
                                "rows": count[number],
                                "right": right[number],
                                "accuracy": right[number] / count[number],
                                "train_rows": record["train_rows"][number],
                                "seen_rows": record["seen_rows"][number],
                            }
                        )
    table = pa.table({name: [row[name] for row in rows] for name in VIEW_COLUMNS})
    with replacing(store.view) as temporary:
        pq.write_table(table, temporary)
    return len(rows)
