"""Running a plan: every job once, whoever runs it, from wherever an earlier run stopped.

All results as one Parquet table, for other programs.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any

from filelock import BaseFileLock

from compshift._files import replacing
from compshift.bench.executors import Engine
from compshift.bench.jobs import RECORD_VERSION, Work, run_job
from compshift.bench.plan import Job, Unit
from compshift.bench.results import choose_draw
from compshift.bench.store import Record, Store, check_record

AHEAD = 2
"""Jobs handed out for each that can run, so that none waits for its next."""

ATTEMPTS = 2
"""How often a job is begun whose worker dies."""

PAUSE = 0.5
"""Seconds between looks at what other runners do."""


class BenchListener:
    """Hears what happens; does nothing."""

    def planned(self, unit: Unit, jobs: Sequence[Job]) -> None:
        """A unit's next jobs are known."""

    def finished(self, job: Job, record: Record, *, new: bool) -> None:
        """A job has a result, or failed; ``new`` unless it was in the store already."""


@dataclass
class _Progress:
    """A unit, what its first stage gave, and how much of the stage is still to come."""

    unit: Unit
    waiting: int
    draws: dict[int, Record] = field(default_factory=dict)
    second: bool = False


@dataclass
class Outcome:
    """What a run did."""

    new: int = 0  # jobs that were run to a result
    known: int = 0  # jobs whose results were there
    failures: list[Record] = field(default_factory=list)
    all_diverged: list[Unit] = field(default_factory=list)  # units without a draw to choose


class Runner:
    """Hands jobs to an engine, and keeps what comes back."""

    def __init__(
        self,
        units: Sequence[Unit],
        store: Store,
        engine: Engine,
        *,
        threads: int = 1,
        plugins: tuple[tuple[str, str], ...] = (),
        listener: BenchListener | None = None,
    ) -> None:
        self.store, self.engine, self.threads, self.plugins = store, engine, threads, plugins
        self.listener = listener or BenchListener()
        self.queue: deque[tuple[Job, _Progress]] = deque()
        self.elsewhere: list[tuple[Job, _Progress]] = []  # jobs that other runners are at
        self.running: dict[Future[Record], tuple[Job, _Progress, BaseFileLock]] = {}
        self.suspects: deque[tuple[Job, _Progress]] = deque()  # jobs whose worker died, be it their fault or not
        self.begun: Counter[str] = Counter()
        self.outcome = Outcome()
        for unit in units:
            self._enqueue(_Progress(unit, 0), unit.first())

    def run(self) -> Outcome:
        """Until every job has a result or has failed."""
        try:
            while self.queue or self.running or self.elsewhere or self.suspects:
                self._hand_out()
                if self.running:
                    timeout = PAUSE if self.elsewhere else None
                    for future in wait(self.running, timeout=timeout, return_when=FIRST_COMPLETED).done:
                        self._take(future)
                elif self.elsewhere:
                    time.sleep(PAUSE)
                self.queue.extend(self.elsewhere)
                self.elsewhere.clear()
        finally:
            for future in self.running:
                future.cancel()
            for job, _, lock in self.running.values():
                self.store.release(job.key, lock)
        return self.outcome

    def _enqueue(self, progress: _Progress, jobs: Sequence[Job]) -> None:
        progress.waiting = len(jobs)
        self.queue.extend((job, progress) for job in jobs)
        self.listener.planned(progress.unit, jobs)

    def _hand_out(self) -> None:
        """Give the engine what it has room for; suspects one at a time, so that none takes others down with it."""
        source = self.suspects or self.queue
        room = (not self.running) if self.suspects else AHEAD * self.engine.slots - len(self.running)
        while source and room > 0:
            job, progress = source.popleft()
            if self.store.has(job.key):
                self._settle(job, progress, self.store.read(job.key), new=False)
                continue
            lock = self.store.claim(job.key)
            if lock is None:
                self.elsewhere.append((job, progress))
            elif self.store.has(job.key):  # finished between the look and the claim
                self.store.release(job.key, lock)
                self.queue.appendleft((job, progress))
            else:
                self._submit(job, progress, lock)
                room -= 1

    def _submit(self, job: Job, progress: _Progress, lock: BaseFileLock) -> None:
        self.begun[job.key] += 1
        folder = None if job.solved else str(self.store.run_path(job.key).resolve())
        work = Work(job, self.threads, self.plugins, folder)
        self.running[self.engine.submit(run_job, work)] = (job, progress, lock)

    def _take(self, future: Future[Record]) -> None:
        job, progress, lock = self.running.pop(future)
        try:
            record = future.result()
        except Exception as error:  # the worker, not the job: jobs answer with a record whatever happens
            if self.begun[job.key] < ATTEMPTS:
                self.store.release(job.key, lock)
                self.suspects.append((job, progress))
                return
            text = " ".join(f"{type(error).__name__}: {error}".split())
            record = {"version": RECORD_VERSION, "key": job.key, "config": job.config(), "status": "failed"}
            record |= {"error": f"its worker died {ATTEMPTS} times ({text[:300]})", "seconds": 0.0, "warnings": []}
        if record["status"] == "busy":  # a worker of a runner that is gone is still at it
            self.store.release(job.key, lock)
            self.elsewhere.append((job, progress))
            return
        self.store.write(record)
        if record["status"] != "failed":
            self.store.discard_run(job.key)
        self.store.release(job.key, lock)
        self._settle(job, progress, record, new=True)

    def _settle(self, job: Job, progress: _Progress, record: Record, *, new: bool) -> None:
        """Note a result, and go on to the second stage once the first is complete."""
        failed = record["status"] == "failed"
        if failed:
            self.outcome.failures.append(record)
        elif new:
            self.outcome.new += 1
        else:
            self.outcome.known += 1
        self.listener.finished(job, record, new=new)
        progress.waiting -= 1
        if not progress.second and not failed:
            progress.draws[job.draw] = record
        if progress.waiting == 0 and not progress.second:
            self._second_stage(progress)

    def _second_stage(self, progress: _Progress) -> None:
        progress.second = True
        chosen = choose_draw(progress.draws, progress.unit.data.protocol.select)
        if chosen is None:
            if progress.draws:
                self.outcome.all_diverged.append(progress.unit)
            return
        self._enqueue(progress, progress.unit.second(chosen))


def stored_seconds(store: Store) -> dict[tuple[str, str], float]:
    """Mean seconds of a job, by data set and method."""
    found: dict[tuple[str, str], list[float]] = {}
    for record in store.records():
        config: dict[str, Any] = record["config"]
        found.setdefault((config["data"], config["method"]), []).append(float(record.get("seconds", 0.0)))
    return {key: sum(values) / len(values) for key, values in found.items()}


COLUMNS = (
    *("data", "scenario", "method", "draw", "seed", "predictor", "split", "group", "rows", "right", "accuracy"),
    *("train_rows", "seen_rows", "hyperparameters", "mode", "seconds", "finished", "compshift", "key"),
)


def write_view(store: Store) -> int:
    """Write ``results.parquet``: a row for every finished job, predictor, split and group. How many there are."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = []
    for record in store.records():
        if record["status"] != "done":
            continue
        check_record(record)
        config = record["config"]
        shared = {name: config[name] for name in ("data", "scenario", "method", "draw", "seed")}
        shared |= {
            "hyperparameters": json.dumps({**config.get("common", {}), "own": config.get("hyperparameters")}),
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
    table = pa.table({name: [row[name] for row in rows] for name in COLUMNS})
    with replacing(store.view) as temporary:
        pq.write_table(table, temporary)
    return len(rows)
