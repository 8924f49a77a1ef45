"""Run the jobs of a plan, each once, on any executor; jobs that an earlier run has finished are skipped.

How failures are handled:

- ``run_job`` catches an exception inside a job and returns a record with ``status`` "failed", the message and the
  traceback. The runner writes the record to ``failures/KEY.json`` and a readable log to ``failures/KEY.log``, and
  continues with the other jobs.
- If a worker dies (out of memory, killed), its jobs are started again one at a time, so that only the job that causes
  the death can fail. A job whose worker dies ``MAX_ATTEMPTS`` times gets a "failed" record.
- A job that diverges counts as finished, not as failed, but its draw is never chosen.

Stage 2 starts as soon as every draw of stage 1 has finished or failed: selection chooses among the draws that did not
fail. Failed jobs are not finished, so the next run tries them again, and the chosen draw may then change. `compshift
bench` exits with 1 if any job failed; the results of all other jobs are kept and shown.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

from filelock import BaseFileLock

from compshift.bench.executors import Executor
from compshift.bench.jobs import Job, Unit, Work, run_job
from compshift.bench.records import RECORD_VERSION, Record
from compshift.bench.selection import choose_draw, selection_rule
from compshift.bench.sources import SharedData
from compshift.bench.store import Store

JOBS_PER_SLOT = 2
"""Jobs submitted per slot of the executor; more than 1, so that no worker waits for its next job."""

MAX_ATTEMPTS = 2
"""Maximum number of times that a job is started if its worker dies."""

POLL_SECONDS = 0.5
"""Seconds between checks whether jobs that other runners have claimed are finished."""


class BenchListener:
    """Base class of listeners to the progress of a benchmark; the methods do nothing."""

    def planned(self, unit: Unit, jobs: Sequence[Job]) -> None:
        """Called with the jobs of a unit's next stage."""

    def finished(self, job: Job, record: Record, *, new: bool) -> None:
        """Called with the record of a finished or failed job; ``new`` is False if the record was already stored."""


@dataclass
class _Progress:
    """Progress of a unit."""

    unit: Unit
    waiting: int  # number of jobs of the current stage without a record
    draws: dict[int, Record] = field(default_factory=dict)  # records of stage 1 that did not fail, by draw
    second: bool = False  # whether stage 1 is complete


@dataclass
class Outcome:
    """Summary of a run."""

    new: int = 0  # number of jobs that this runner finished
    known: int = 0  # number of jobs whose records were already stored
    failures: list[Record] = field(default_factory=list)  # records of failed jobs
    all_diverged: list[Unit] = field(default_factory=list)  # units in which every draw diverged


class Runner:
    """Submits jobs to an executor and writes their records to the store."""

    def __init__(
        self,
        units: Sequence[Unit],
        store: Store,
        executor: Executor,
        *,
        threads: int = 1,
        plugins: tuple[tuple[str, str], ...] = (),
        listener: BenchListener | None = None,
        shared: SharedData | None = None,
    ) -> None:
        """Queue the first stage of every unit; ``shared`` is for workers that can map files of this machine."""
        self.store, self.executor, self.threads, self.plugins = store, executor, threads, plugins
        self.shared = shared
        self.listener = listener or BenchListener()
        self.free_devices = deque(executor.devices)  # without a running job; empty if jobs choose a device themselves
        self.queue: deque[tuple[Job, _Progress]] = deque()
        self.claimed_by_others: list[tuple[Job, _Progress]] = []  # jobs that other runners are working on
        self.running: dict[Future[Record], tuple[Job, _Progress, BaseFileLock, str]] = {}
        self.suspects: deque[tuple[Job, _Progress]] = deque()  # jobs whose worker died; started again one at a time
        self.starts: Counter[str] = Counter()  # number of starts by job key
        self.outcome = Outcome()
        for unit in units:
            self._enqueue(_Progress(unit, 0), unit.first())

    def run(self) -> Outcome:
        """Run until every job is finished or has failed."""
        try:
            while self.queue or self.running or self.claimed_by_others or self.suspects:
                self._submit_queued()
                if self.running:
                    timeout = POLL_SECONDS if self.claimed_by_others else None
                    for future in wait(self.running, timeout=timeout, return_when=FIRST_COMPLETED).done:
                        self._collect(future)
                elif self.claimed_by_others:
                    time.sleep(POLL_SECONDS)
                self.queue.extend(self.claimed_by_others)
                self.claimed_by_others.clear()
        finally:
            for future in self.running:
                future.cancel()
            for job, _, lock, _ in self.running.values():
                self.store.release(job.key, lock)
        return self.outcome

    def _enqueue(self, progress: _Progress, jobs: Sequence[Job]) -> None:
        """Queue the jobs of a unit's next stage."""
        progress.waiting = len(jobs)
        self.queue.extend((job, progress) for job in jobs)
        self.listener.planned(progress.unit, jobs)

    def _submit_queued(self) -> None:
        """Submit as many jobs as the executor has room for; suspects run alone, so that no other job dies with them."""
        source = self.suspects or self.queue
        capacity = len(self.executor.devices) or JOBS_PER_SLOT * self.executor.slots
        room = (not self.running) if self.suspects else capacity - len(self.running)
        while source and room > 0:
            job, progress = source.popleft()
            if self.store.has(job.key):
                self._settle(job, progress, self.store.read(job.key), new=False)
                continue
            lock = self.store.claim(job.key)
            if lock is None:
                self.claimed_by_others.append((job, progress))
            elif self.store.has(job.key):  # finished between the check and the claim
                self.store.release(job.key, lock)
                self.queue.appendleft((job, progress))
            else:
                self._submit(job, progress, lock)
                room -= 1

    def _submit(self, job: Job, progress: _Progress, lock: BaseFileLock) -> None:
        """Submit a claimed job."""
        self.starts[job.key] += 1
        folder = None if job.is_convex else str(self.store.run_path(job.key).resolve())
        device = self.free_devices.popleft() if self.executor.devices else "auto"
        work = Work(job, self.threads, self.plugins, folder, device, self._shared_path(job))
        self.running[self.executor.submit(run_job, work)] = (job, progress, lock, device)

    def _shared_path(self, job: Job) -> str | None:
        """Return the file with the job's data set for the workers to map; None if they load the data themselves."""
        source = job.data.source
        if self.shared is None or not source.features:
            return None
        if source not in self.shared:
            self.executor.submit(abs, 0)  # the workers start while this process loads the data
        return self.shared.path(source, job.data.digest)

    def _collect(self, future: Future[Record]) -> None:
        """Write the record of a job that ended, or queue the job again if its worker died."""
        job, progress, lock, device = self.running.pop(future)
        if self.executor.devices:
            self.free_devices.append(device)
        try:
            record = future.result()
        except Exception as error:  # the worker died: run_job itself does not raise
            if self.starts[job.key] < MAX_ATTEMPTS:
                self.store.release(job.key, lock)
                self.suspects.append((job, progress))
                return
            text = " ".join(f"{type(error).__name__}: {error}".split())
            record = {"version": RECORD_VERSION, "key": job.key, "config": job.config(), "status": "failed"}
            record |= {"error": f"its worker died {MAX_ATTEMPTS} times ({text[:300]})", "seconds": 0.0, "warnings": []}
        if record["status"] == "busy":  # a worker of a killed runner is still training this job
            self.store.release(job.key, lock)
            self.claimed_by_others.append((job, progress))
            return
        self.store.write(record)
        if record["status"] != "failed":
            self.store.discard_run(job.key)
        self.store.release(job.key, lock)
        self._settle(job, progress, record, new=True)

    def _settle(self, job: Job, progress: _Progress, record: Record, *, new: bool) -> None:
        """Count a record, and start stage 2 of its unit if stage 1 is now complete."""
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
        """Queue the chosen draw at the other seeds, unless every draw diverged or failed."""
        progress.second = True
        chosen = choose_draw(progress.draws, *selection_rule(progress.unit.data.protocol.to_dict()))
        if chosen is None:
            if progress.draws:
                self.outcome.all_diverged.append(progress.unit)
            return
        self._enqueue(progress, progress.unit.second(chosen))
