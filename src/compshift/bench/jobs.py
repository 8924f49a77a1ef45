"""Jobs of a benchmark: their configuration, their key, and ``run_job``, which a worker calls to run one.

A job is one fit of a method on a scenario of a data set, with a draw of hyper-parameters and a seed. Its key is a hash
of everything that determines the result. ``run_job`` does not raise exceptions: it returns them in the record.
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

from compshift._errors import InputError, system_sentence
from compshift.bench.convex_methods import CONVEX_METHODS, chooses_ridge, n_seeds, solve_method
from compshift.bench.paper import POOL_METHOD
from compshift.bench.pool import set_apart
from compshift.bench.protocol import Protocol
from compshift.bench.records import RECORD_VERSION, Record, package_versions
from compshift.bench.sources import DataSource, mapped_data
from compshift.bench.trained_methods import DivergedError, JobBusyError, train_method
from compshift.core.arrays import FloatArray, IntArray
from compshift.data.dataset import GroupedDataset
from compshift.data.shift import Scenario
from compshift.methods.sampling import Fixed, LogUniform

STANDARD = ((),)
"""Value of ``Job.dropped`` for the scenario "standard": drop no group, and keep val rows of groups that train lacks.

It holds one empty group, to differ from the empty tuple of the scenario "none", which leaves those val rows out.
"""

_one_at_a_time = threading.Lock()
"""Lock held while a job runs, because threads of one process share random generators and warning filters."""


@dataclass(frozen=True)
class PlannedData:
    """A data set of a plan, with the protocol under which methods are run on it."""

    source: DataSource
    digest: str  # hash of the content
    protocol: Protocol
    weights: str | None = None  # path of the backbone's checkpoint file; the protocol has its digest
    scenarios: str = ""  # groups to drop, as the user wrote them
    pairs: str | None = None  # "separate" if a sentence encoder is fine-tuned on pairs of texts
    unlabelled: float | None = None  # share of the test rows that is set apart as an unlabelled pool


@dataclass(frozen=True)
class PlannedMethod:
    """A method of a plan."""

    name: str
    ranges: dict[str, LogUniform | Fixed] = field(hash=False)  # ranges of the method's own hyper-parameters
    code: str = ""  # hash of a plugin's source code, to distinguish its versions; empty for built-in methods


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
        """Whether a convex solver fits the method, not the training loop."""
        return self.data.protocol.mode == "features" and self.method.name in (*CONVEX_METHODS, POOL_METHOD)

    @property
    def chooses_ridge(self) -> bool:
        """Whether the job chooses its ridge on held-out combinations of the training rows, instead of drawing it."""
        return chooses_ridge(self.method.name, self.data.protocol.select)

    @cached_property
    def drawn(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Hyper-parameters of the draw: those shared by all methods, and those of this method."""
        common, own = self.data.protocol.draw(self.draw, self.method.ranges)
        if self.chooses_ridge:
            del common["alpha"]
        return common, own

    def config(self) -> dict[str, Any]:
        """Return everything that determines the result. Paths and the machine do not, so they are left out."""
        common, own = self.drawn
        # Earlier releases had no "pairs" and read every pair as one sequence. Jobs that still do so keep their keys.
        encoding = {"pairs": self.data.pairs} if self.data.pairs else {}
        scored = {} if self.data.unlabelled is None else {"unlabelled": self.data.unlabelled}
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
            **encoding,
            **scored,
        }

    @cached_property
    def key(self) -> str:
        """Name of the job: a hash of its configuration."""
        text = json.dumps(self.config(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    @property
    def run_seed(self) -> int:
        """Seed of all randomness in the run; it does not depend on the other jobs of the plan."""
        return seed_for(self.data.source.label, self.scenario, self.method.name, self.draw, self.seed)

    @property
    def pool_seed(self) -> int:
        """Seed for drawing the pool; the same for all methods, draws and scenarios, so that results are comparable."""
        return seed_for("unlabelled", self.data.source.label, self.data.protocol.plan_seed, self.seed)


@dataclass(frozen=True)
class Unit:
    """All jobs of a method on a scenario: stage 1 runs every draw at seed 0, stage 2 the best draw at other seeds."""

    data: PlannedData
    scenario: str
    dropped: tuple[tuple[int, ...], ...]
    method: PlannedMethod
    draws: int
    seeds: int

    def job(self, draw: int, seed: int) -> Job:
        """Return the job of a draw and a seed."""
        return Job(self.data, self.scenario, self.dropped, self.method, draw, seed)

    def first(self) -> list[Job]:
        """Return the jobs of stage 1: every draw at seed 0."""
        return [self.job(draw, 0) for draw in range(self.draws)]

    def second(self, chosen: int) -> list[Job]:
        """Return the jobs of stage 2: the chosen draw at all other seeds; no jobs if the method is deterministic."""
        seeds = n_seeds(self.data.protocol.mode, self.method.name, self.seeds, self.data.unlabelled)
        return [self.job(chosen, seed) for seed in range(1, seeds)]

    @property
    def n_jobs(self) -> int:
        """Number of jobs in both stages."""
        return self.draws + len(self.second(0))


def seed_for(*names: Any) -> int:
    """Return a seed that depends only on the names."""
    return int.from_bytes(hashlib.sha256(json.dumps(names).encode()).digest()[:7], "big")


@dataclass(frozen=True)
class Work:
    """A job, and the settings that its worker needs to run it."""

    job: Job
    threads: int
    plugins: tuple[tuple[str, str], ...] = ()  # name and source code of each plugin
    folder: str | None = None  # folder for the checkpoints of a training run; None for a temporary folder
    device: str = "auto"  # device to fine-tune on
    shared: str | None = None  # file of ``SharedData`` with the data set; None if the worker loads it from its source


def run_job(work: Work) -> Record:
    """Run a job and return its record; exceptions are recorded, not raised.

    The record's ``status`` is "done", "diverged" (the loss or the weights became infinite or NaN; the job counts as
    finished), "failed" (an exception, recorded with its traceback), or "busy" (another process is training this job).
    """
    job, started = work.job, time.monotonic()
    record: Record = {"version": RECORD_VERSION, "key": job.key, "config": job.config()}
    if not job.is_convex:
        with suppress(ImportError):
            import torch  # noqa: F401 - so that _limited_threads can limit its threads
    with _one_at_a_time, _limited_threads(work.threads), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            record |= {"status": "done", **_result(work)}
        except DivergedError as error:
            record |= {"status": "diverged", "error": str(error)}
        except JobBusyError:
            record |= {"status": "busy"}
        except Exception as error:
            text = system_sentence(error) if isinstance(error, OSError) else " ".join(str(error).split())
            sentence = text if isinstance(error, InputError | OSError) else f"{type(error).__name__}: {text}"
            record |= {"status": "failed", "error": sentence, "traceback": traceback.format_exc()}
    record["warnings"] = list(dict.fromkeys(str(warning.message) for warning in caught))
    record["seconds"] = round(time.monotonic() - started, 4)
    record["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
    record["versions"] = package_versions()
    return record


def _result(work: Work) -> Record:
    """Load the data, drop the scenario's groups, fit the method, predict, and count the correctly classified rows."""
    job, source = work.job, work.job.data.source
    if work.plugins:
        from compshift.methods.registry import Plugin, add_plugin

        for name, code in work.plugins:
            add_plugin(Plugin(name, code))
    if work.shared is not None:
        whole = mapped_data(work.shared)
    else:
        whole = source.load()
        if source.digest() != job.data.digest:
            raise InputError(
                f"the data set {source.label!r} has changed since the jobs were planned: run the same command again"
            )
    protocol = job.data.protocol
    dropped = np.array(job.dropped, dtype=np.int64).reshape(-1, len(whole.space.names))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # planning has already warned about dropped groups without test rows
        scenario = Scenario(job.scenario, dropped, trim_validation=job.dropped != STANDARD)
        data = scenario.apply(whole, strict=protocol.strict)
    parts = {name: data.part(name) for name in data.splits if name != "train"}
    pool, apart = None, {}
    if job.data.unlabelled is not None:
        parts["test"], pool = set_apart(parts["test"], job.data.unlabelled, job.pool_seed)
        apart = {"pool_rows": len(pool)}
    elif job.method.name == POOL_METHOD:
        pool = parts["test"].X
    predicted, detail = _fit_and_predict(work, data, parts, pool)
    return {"detail": detail, **apart, **_counts(whole, data, parts, predicted)}


def _fit_and_predict(
    work: Work, data: GroupedDataset, parts: dict[str, GroupedDataset], pool: FloatArray | None
) -> tuple[dict[str, dict[str, IntArray]], dict[str, Any]]:
    """Fit the method, and return the predicted classes (n,) by split and predictor, and diagnostics of the fit."""
    job, protocol = work.job, work.job.data.protocol
    common, own = job.drawn
    if job.is_convex:
        train = data.part("train")
        fit = solve_method(
            job.method.name,
            train.X,
            train.codes,
            train.space,
            alpha=common.get("alpha"),
            tol=protocol.solver_tolerance,
            seed=job.run_seed,
            pool=pool,
        )
        predicted = {
            name: {key: predict(part.X) for key, predict in fit.predictors(part.space.frequencies(part.codes)).items()}
            for name, part in parts.items()
        }
        return predicted, fit.detail
    folder = Path(work.folder or tempfile.mkdtemp(prefix="compshift-"))
    trained = train_method(
        data, job.method.name, own, common, job.data, seed=job.run_seed, folder=folder, device=work.device
    )
    predicted = {name: trained.predict(part, part.space.frequencies(part.codes)) for name, part in parts.items()}
    if protocol.mode == "features":  # a fine-tuning run takes hours, so it is kept until its record is written
        shutil.rmtree(folder, ignore_errors=True)
    return predicted, trained.detail


def _counts(
    whole: GroupedDataset,
    data: GroupedDataset,
    parts: dict[str, GroupedDataset],
    predicted: dict[str, dict[str, IntArray]],
) -> Record:
    """Count the rows of every group in training and in each split, and those that each predictor gets right."""
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
    """Limit the number of threads of linear algebra and, if PyTorch is imported, of PyTorch."""
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
