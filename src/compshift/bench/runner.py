"""Run the jobs of a plan: each once, on any executor, continuing where an earlier run stopped.

What happens when a job fails:

- An error inside a job is caught by ``run_job`` in the worker, which returns a record with ``status`` "failed", the
  sentence of the error and its traceback. The runner writes it to ``failures/KEY.json`` with a readable
  ``failures/KEY.log`` beside it, and goes on with the other jobs.
- A worker that dies (out of memory, killed) takes down the jobs that were running with it. Each of them is tried again
  alone, so that only the culprit fails; after ``MAX_ATTEMPTS`` deaths it gets a "failed" record too.
- A job that diverges is not a failure: it is a finished job whose draw is never chosen.

Failed jobs are not finished: the same command runs them again, and `compshift bench` ends with exit code 1 if any
failed. Results of all other jobs are kept and shown.
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
from compshift.bench.selection import choose_draw
from compshift.bench.store import Store

JOBS_PER_SLOT = 2
"""Jobs submitted for each that can run at a time, so that no worker waits for its next one."""

MAX_ATTEMPTS = 2
"""How often a job is started if its worker dies."""

POLL_SECONDS = 0.5
"""Seconds between checks of jobs that other runners have claimed."""


class BenchListener:
    """Base class of objects that follow the progress of a benchmark; its methods do nothing."""

    def planned(self, unit: Unit, jobs: Sequence[Job]) -> None:
        """Receive the next jobs of a unit."""

    def finished(self, job: Job, record: Record, *, new: bool) -> None:
        """Receive the record of a finished or failed job; ``new`` unless it was in the store already."""


@dataclass
class _Progress:
    """Progress of a unit: the records of stage 1, and the number of jobs missing in the current stage."""

    unit: Unit
    waiting: int  # jobs of the current stage without a record
    draws: dict[int, Record] = field(default_factory=dict)  # records of stage 1 by draw
    second: bool = False  # whether stage 2 has begun


@dataclass
class Outcome:
    """Summary of a run."""

    new: int = 0  # jobs finished by this runner
    known: int = 0  # jobs that were finished already
    failures: list[Record] = field(default_factory=list)
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
    ) -> None:
        self.store, self.executor, self.threads, self.plugins = store, executor, threads, plugins
        self.listener = listener or BenchListener()
        self.queue: deque[tuple[Job, _Progress]] = deque()
        self.elsewhere: list[tuple[Job, _Progress]] = []  # jobs that other runners have claimed
        self.running: dict[Future[Record], tuple[Job, _Progress, BaseFileLock]] = {}
        self.suspects: deque[tuple[Job, _Progress]] = deque()  # jobs whose worker died; tried again one at a time
        self.starts: Counter[str] = Counter()  # by key
        self.outcome = Outcome()
        for unit in units:
            self._enqueue(_Progress(unit, 0), unit.first())

    def run(self) -> Outcome:
        """Run until every job is finished or has failed."""
        try:
            while self.queue or self.running or self.elsewhere or self.suspects:
                self._submit_queued()
                if self.running:
                    timeout = POLL_SECONDS if self.elsewhere else None
                    for future in wait(self.running, timeout=timeout, return_when=FIRST_COMPLETED).done:
                        self._collect(future)
                elif self.elsewhere:
                    time.sleep(POLL_SECONDS)
                self.queue.extend(self.elsewhere)
                self.elsewhere.clear()
        finally:
            for future in self.running:
                future.cancel()
            for job, _, lock in self.running.values():
                self.store.release(job.key, lock)
        return self.outcome

    def _enqueue(self, progress: _Progress, jobs: Sequence[Job]) -> None:
        """Queue the jobs of a unit's next stage."""
        progress.waiting = len(jobs)
        self.queue.extend((job, progress) for job in jobs)
        self.listener.planned(progress.unit, jobs)

    def _submit_queued(self) -> None:
        """Submit as many jobs as the executor has room for; suspects alone, so that they take no other job down."""
        source = self.suspects or self.queue
        room = (not self.running) if self.suspects else JOBS_PER_SLOT * self.executor.slots - len(self.running)
        while source and room > 0:
            job, progress = source.popleft()
            if self.store.has(job.key):
                self._settle(job, progress, self.store.read(job.key), new=False)
                continue
            lock = self.store.claim(job.key)
            if lock is None:
                self.elsewhere.append((job, progress))
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
        work = Work(job, self.threads, self.plugins, folder)
        self.running[self.executor.submit(run_job, work)] = (job, progress, lock)

    def _collect(self, future: Future[Record]) -> None:
        """Write the record of a job that ended, or queue the job again if its worker died."""
        job, progress, lock = self.running.pop(future)
        try:
            record = future.result()
        except Exception as error:  # the worker died: a job itself returns a record whatever happens
            if self.starts[job.key] < MAX_ATTEMPTS:
                self.store.release(job.key, lock)
                self.suspects.append((job, progress))
                return
            text = " ".join(f"{type(error).__name__}: {error}".split())
            record = {"version": RECORD_VERSION, "key": job.key, "config": job.config(), "status": "failed"}
            record |= {"error": f"its worker died {MAX_ATTEMPTS} times ({text[:300]})", "seconds": 0.0, "warnings": []}
        if record["status"] == "busy":  # the worker of a runner that was killed is still training it
            self.store.release(job.key, lock)
            self.elsewhere.append((job, progress))
            return
        self.store.write(record)
        if record["status"] != "failed":
            self.store.discard_run(job.key)
        self.store.release(job.key, lock)
        self._settle(job, progress, record, new=True)

    def _settle(self, job: Job, progress: _Progress, record: Record, *, new: bool) -> None:
        """Count a record, and start stage 2 of its unit once stage 1 is complete."""
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
        """Queue the chosen draw at the other seeds, unless every draw diverged."""
        progress.second = True
        chosen = choose_draw(progress.draws, progress.unit.data.protocol.select)
        if chosen is None:
            if progress.draws:
                self.outcome.all_diverged.append(progress.unit)
            return
        self._enqueue(progress, progress.unit.second(chosen))
