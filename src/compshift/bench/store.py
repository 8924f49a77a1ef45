"""Where results are kept: a folder with one file for each finished job.

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

from compshift import __version__
from compshift._errors import InputError
from compshift._files import check_folder, check_inside, locked, replacing, try_lock
from compshift._json import read_json_object
from compshift.bench.record_check import check_about, check_outline

if TYPE_CHECKING:
    from filelock import BaseFileLock

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
