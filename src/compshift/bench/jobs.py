"""One job: from its configuration to a record of accuracies, anywhere."""

from __future__ import annotations

import platform
import shutil
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from compshift import __version__
from compshift._errors import InputError
from compshift.bench.convex_methods import solve_method
from compshift.bench.plan import Job
from compshift.bench.trained_methods import DivergedError, JobBusyError, train_method
from compshift.core.arrays import IntArray
from compshift.data.dataset import GroupedDataset
from compshift.data.shift import Scenario

RECORD_VERSION = 1

PACKAGES = ("numpy", "scipy", "scikit-learn", "torch")
"""Packages whose versions a record names."""

_one_at_a_time = threading.Lock()
"""Threads of one process must not train side by side: they would share generators and warnings."""


@dataclass(frozen=True)
class Work:
    """A job, and what its runner wants beside its result."""

    job: Job
    threads: int
    plugins: tuple[tuple[str, str], ...] = ()  # name and source
    folder: str | None = None  # where a long run keeps its state


def run_job(work: Work) -> dict[str, Any]:
    """Run a job. Whatever happens, the answer is a record: ``status`` is done, diverged or failed."""
    job, started = work.job, time.monotonic()
    record: dict[str, Any] = {"version": RECORD_VERSION, "key": job.key, "config": job.config()}
    if not job.solved:
        with suppress(ImportError):
            import torch  # noqa: F401 - so that its threads are limited from the start
    with _one_at_a_time, limited_threads(work.threads), warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            record |= {"status": "done", **_result(work)}
        except DivergedError as error:
            record |= {"status": "diverged", "error": str(error)}
        except JobBusyError:
            record |= {"status": "busy"}
        except Exception as error:
            record |= {"status": "failed", "error": _sentence(error), "traceback": traceback.format_exc()}
    record["warnings"] = list(dict.fromkeys(str(warning.message) for warning in heard))
    record["seconds"] = round(time.monotonic() - started, 4)
    record["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
    record["versions"] = versions()
    return record


def _result(work: Work) -> dict[str, Any]:
    job, source = work.job, work.job.data.source
    if work.plugins:
        from compshift.methods.registry import Plugin, add_plugin

        for name, code in work.plugins:
            add_plugin(Plugin(name, code))
    whole = source.load()
    if source.digest() != job.data.digest:
        raise InputError(f"{source.label} is not what it was when the jobs were planned: start again")
    protocol = job.data.protocol
    dropped = np.array(job.dropped, dtype=np.int64).reshape(-1, len(whole.space.names))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a dropped group without test rows was announced when it was planned
        data = Scenario(job.scenario, dropped).apply(whole, strict=protocol.strict)
    common, own = job.drawn
    parts: dict[str, GroupedDataset] = {name: data.part(name) for name in data.splits if name != "train"}
    if job.solved:
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
        detail = fit.detail
    else:
        folder = Path(work.folder or tempfile.mkdtemp(prefix="compshift-"))
        trained = train_method(
            data, job.method.name, own, common, protocol, source.known, seed=job.run_seed, folder=folder
        )
        predicted = {name: trained.predict(part, part.space.frequencies(part.codes)) for name, part in parts.items()}
        detail = trained.detail
        if protocol.mode == "features":  # a run that takes hours stays until its result is stored
            shutil.rmtree(folder, ignore_errors=True)
    return {"detail": detail, **accuracies(whole, data, parts, predicted)}


def accuracies(
    whole: GroupedDataset,
    data: GroupedDataset,
    parts: dict[str, GroupedDataset],
    predicted: dict[str, dict[str, IntArray]],
) -> dict[str, Any]:
    """Accuracy of every group that has rows, in full precision, for every predictor, on validation and test."""
    groups, _ = whole.space.distinct(whole.codes)

    def count(part: GroupedDataset, right: Any = None) -> IntArray:
        return np.bincount(whole.space.locate(part.codes, groups), weights=right, minlength=len(groups))

    result: dict[str, Any] = {
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


def versions() -> dict[str, str]:
    """What computed a record."""
    found = {"compshift": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """Let linear algebra, and PyTorch if it is there, use so many threads."""
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


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, InputError | OSError) else f"{type(error).__name__}: {text}"
