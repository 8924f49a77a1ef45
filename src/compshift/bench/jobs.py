"""One job: what identifies it, and how a worker runs it from its configuration to a record of accuracies.

A job is one fit of a method: on a scenario of a data set, with a draw of hyper-parameters and a seed. Its key is a hash
of everything that determines the result. ``run_job`` never raises: whatever goes wrong is in the record it returns.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from compshift._errors import InputError
from compshift.bench.convex_methods import CONVEX_METHODS, n_seeds, solve_method
from compshift.bench.protocol import Protocol
from compshift.bench.records import RECORD_VERSION, Record, package_versions
from compshift.bench.sources import DataSource
from compshift.bench.trained_methods import DivergedError, JobBusyError, train_method
from compshift.core.arrays import IntArray
from compshift.data.dataset import GroupedDataset
from compshift.data.shift import Scenario
from compshift.methods.sampling import LogUniform

_one_at_a_time = threading.Lock()
"""Held while a job runs: threads of one process would share random generators and warning filters."""


@dataclass(frozen=True)
class PlannedData:
    """A data set of a plan."""

    source: DataSource
    digest: str
    protocol: Protocol


@dataclass(frozen=True)
class PlannedMethod:
    """A method of a plan. ``code`` is a hash of a plugin's source, which distinguishes its versions."""

    name: str
    ranges: dict[str, LogUniform] = field(hash=False)
    code: str = ""


@dataclass(frozen=True)
class Job:
    """One fit: a method on a scenario of a data set, with a draw of hyper-parameters and a seed."""

    data: PlannedData
    scenario: str
    dropped: tuple[tuple[int, ...], ...]  # codes of the dropped groups, the class first
    method: PlannedMethod
    draw: int
    seed: int

    @property
    def is_convex(self) -> bool:
        """Whether the optimum is solved for, instead of approached by a training loop."""
        return self.data.protocol.mode == "features" and self.method.name in CONVEX_METHODS

    @cached_property
    def drawn(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Hyper-parameters: those that all methods share, and the method's own."""
        return self.data.protocol.draw(self.draw, self.method.ranges)

    def config(self) -> dict[str, Any]:
        """Return everything that determines the result, and nothing else: no paths, no machine."""
        common, own = self.drawn
        return {
            "data": self.data.source.label,
            "digest": self.data.digest,
            "scenario": self.scenario,
            "dropped": [list(code) for code in self.dropped],
            "method": self.method.name,
            "code": self.method.code,
            "draw": self.draw,
            "seed": self.seed,
            "common": common,
            "hyperparameters": own,
            "protocol": self.data.protocol.to_dict(),
        }

    @cached_property
    def key(self) -> str:
        """Name of the job: a hash of its configuration."""
        text = json.dumps(self.config(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    @property
    def run_seed(self) -> int:
        """Seed of everything random in the run; it does not depend on the other jobs of a plan."""
        return seed_for(self.data.source.label, self.scenario, self.method.name, self.draw, self.seed)


@dataclass(frozen=True)
class Unit:
    """A method on a scenario. Stage 1 runs every draw at seed 0, stage 2 the best draw at the other seeds."""

    data: PlannedData
    scenario: str
    dropped: tuple[tuple[int, ...], ...]
    method: PlannedMethod
    draws: int
    seeds: int

    def job(self, draw: int, seed: int) -> Job:
        """Return one of its jobs."""
        return Job(self.data, self.scenario, self.dropped, self.method, draw, seed)

    def first(self) -> list[Job]:
        """Return the jobs of stage 1: every draw at seed 0."""
        return [self.job(draw, 0) for draw in range(self.draws)]

    def second(self, chosen: int) -> list[Job]:
        """Return the jobs of stage 2: the chosen draw at the other seeds, none if the method is deterministic."""
        repeated = n_seeds(self.data.protocol.mode, self.method.name, self.seeds)
        return [self.job(chosen, seed) for seed in range(1, repeated)]

    @property
    def n_jobs(self) -> int:
        """Number of jobs in both stages."""
        return self.draws + len(self.second(0))


def seed_for(*names: Any) -> int:
    """Return a seed that depends on the names alone."""
    return int.from_bytes(hashlib.sha256(json.dumps(names).encode()).digest()[:7], "big")


@dataclass(frozen=True)
class Work:
    """A job with what its worker needs to run it."""

    job: Job
    threads: int
    plugins: tuple[tuple[str, str], ...] = ()  # name and source code
    folder: str | None = None  # where a training run keeps its checkpoints


def run_job(work: Work) -> Record:
    """Run a job and return its record, whatever happens.

    ``status`` is "done", "diverged" (no finite optimum was found, which is a result), "failed" (an error, with its
    traceback), or "busy" (another process is training this job).
    """
    job, started = work.job, time.monotonic()
    record: Record = {"version": RECORD_VERSION, "key": job.key, "config": job.config()}
    if not job.is_convex:
        with suppress(ImportError):
            import torch  # noqa: F401 - before its threads are limited
    with _one_at_a_time, _limited_threads(work.threads), warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            record |= {"status": "done", **_result(work)}
        except DivergedError as error:
            record |= {"status": "diverged", "error": str(error)}
        except JobBusyError:
            record |= {"status": "busy"}
        except Exception as error:
            text = " ".join(str(error).split())
            sentence = text if isinstance(error, InputError | OSError) else f"{type(error).__name__}: {text}"
            record |= {"status": "failed", "error": sentence, "traceback": traceback.format_exc()}
    record["warnings"] = list(dict.fromkeys(str(warning.message) for warning in heard))
    record["seconds"] = round(time.monotonic() - started, 4)
    record["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
    record["versions"] = package_versions()
    return record


def _result(work: Work) -> Record:
    """Load the data, drop the scenario's groups, fit, predict, and count correct rows."""
    job, source = work.job, work.job.data.source
    if work.plugins:
        from compshift.methods.registry import Plugin, add_plugin

        for name, code in work.plugins:
            add_plugin(Plugin(name, code))
    whole = source.load()
    if source.digest() != job.data.digest:
        raise InputError(f"{source.label} has changed since the jobs were planned: start again")
    protocol = job.data.protocol
    dropped = np.array(job.dropped, dtype=np.int64).reshape(-1, len(whole.space.names))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the plan has warned of dropped groups without test rows
        data = Scenario(job.scenario, dropped).apply(whole, strict=protocol.strict)
    parts = {name: data.part(name) for name in data.splits if name != "train"}
    predicted, detail = _fit_and_predict(work, data, parts)
    return {"detail": detail, **_counts(whole, data, parts, predicted)}


def _fit_and_predict(
    work: Work, data: GroupedDataset, parts: dict[str, GroupedDataset]
) -> tuple[dict[str, dict[str, IntArray]], dict[str, Any]]:
    """Return the classes (n,) by split and predictor, and the diagnostics of the fit."""
    job, protocol = work.job, work.job.data.protocol
    common, own = job.drawn
    if job.is_convex:
        train = data.part("train")
        fit = solve_method(
            job.method.name,
            train.X,
            train.codes,
            train.space,
            alpha=common["alpha"],
            tol=protocol.solver_tolerance,
            seed=job.run_seed,
        )
        predicted = {
            name: {key: predict(part.X) for key, predict in fit.predictors(part.space.frequencies(part.codes)).items()}
            for name, part in parts.items()
        }
        return predicted, fit.detail
    folder = Path(work.folder or tempfile.mkdtemp(prefix="compshift-"))
    known = job.data.source.known
    trained = train_method(data, job.method.name, own, common, protocol, known, seed=job.run_seed, folder=folder)
    predicted = {name: trained.predict(part, part.space.frequencies(part.codes)) for name, part in parts.items()}
    if protocol.mode == "features":  # a fine-tuning run takes hours and stays until its record is written
        shutil.rmtree(folder, ignore_errors=True)
    return predicted, trained.detail


def _counts(
    whole: GroupedDataset,
    data: GroupedDataset,
    parts: dict[str, GroupedDataset],
    predicted: dict[str, dict[str, IntArray]],
) -> Record:
    """Return the rows of every group, in training and in each split, and how many of them each predictor gets right."""
    groups, _ = whole.space.distinct(whole.codes)

    def count(part: GroupedDataset, right: Any = None) -> IntArray:
        return np.bincount(whole.space.locate(part.codes, groups), weights=right, minlength=len(groups))

    result: Record = {
        "names": list(whole.space.names),
        "values": [list(values) for values in whole.space.values],
        "groups": groups.tolist(),
        "train_rows": count(whole.part("train")).tolist(),
        "seen_rows": count(data.part("train")).tolist(),
        "rows": {name: count(part).tolist() for name, part in parts.items()},
        "right": {},
    }
    for name, part in parts.items():
        result["right"][name] = {
            key: count(part, (classes == part.codes[:, 0]).astype(np.float64)).astype(np.int64).tolist()
            for key, classes in predicted[name].items()
        }
    return result


@contextmanager
def _limited_threads(count: int) -> Iterator[None]:
    """Limit the threads of linear algebra and, if it is imported, of PyTorch."""
    torch: Any = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 0
    with threadpool_limits(count):
        if torch:
            torch.set_num_threads(count)
        try:
            yield
        finally:
            if torch:
                torch.set_num_threads(before)
