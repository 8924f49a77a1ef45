"""Estimate how long the jobs of a benchmark take.

The times of finished jobs are used; for methods without finished jobs, a few matrix products or training steps are
timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from compshift._errors import InputError
from compshift.bench.jobs import Job, PlannedData, Unit
from compshift.bench.paper import POOL_METHOD
from compshift.bench.store import Store
from compshift.bench.trained_methods import planned_backbone

FIT_EVALUATIONS = 120
"""Typical number of evaluations of the risk and its gradient in a convex fit."""

CHOICE_FITS = 10
"""Time of a fit that chooses its ridge on held-out combinations, in units of a convex fit."""

POOL_FITS = 12
"""Time of a fit that decides on held-out combinations whether to use an unlabelled pool, in units of a convex fit."""

PRODUCTS_PER_STEP = 4.0
"""Time of a training step on features, in units of one matrix product of features and weights."""

START_SECONDS = 8.0
"""Seconds that workers take to start."""

CONVEX_SECONDS = 0.05
"""Overhead of a convex job in seconds."""

TRAINED_SECONDS = 0.3
"""Overhead of a trained job on features in seconds."""


class UntimedError(InputError):
    """Raised if the time of jobs cannot be estimated, for example because the weights of a network are missing."""


def estimate_seconds(units: Sequence[Unit], finished: Sequence[int], store: Store | None, device: str) -> float:
    """Estimate the seconds that unfinished jobs take when run one after the other; 0 if there are none to time.

    Jobs on a data set whose features are not computed yet add nothing. ``finished`` is the number of finished jobs of
    each unit. Training steps are timed on ``device``, which must be a kind of device on which the jobs will run.
    """
    known = {} if store is None else _mean_seconds(store)
    guesses: dict[str, Callable[[Job], float]] = {}
    total = START_SECONDS
    for unit, n_finished in zip(units, finished, strict=True):
        if n_finished == unit.n_jobs:
            continue
        label = unit.data.source.label
        if (label, unit.method.name) in known:
            seconds = known[label, unit.method.name]
        else:
            if label not in guesses:
                guesses[label] = _time_jobs(unit.data, device)
            seconds = guesses[label](unit.job(0, 0))
        total += (unit.n_jobs - n_finished) * seconds
    return total if total > START_SECONDS else 0.0


def _mean_seconds(store: Store) -> dict[tuple[str, str], float]:
    """Return the mean time of finished jobs in seconds, by data set and method."""
    seconds: dict[tuple[str, str], list[float]] = {}
    for record in store.records():
        config: dict[str, Any] = record["config"]
        seconds.setdefault((config["data"], config["method"]), []).append(float(record.get("seconds", 0.0)))
    return {key: sum(values) / len(values) for key, values in seconds.items()}


def _time_jobs(data: PlannedData, device: str) -> Callable[[Job], float]:
    """Return a function that estimates the time of a job in seconds, based on a short measurement on the data."""
    if data.protocol.mode != "features":
        try:
            seconds = data.protocol.steps * _step_seconds(data, device)
        except InputError as error:
            raise UntimedError(str(error)) from None
        return lambda _: seconds
    train = data.source.load().part("train")
    if train.kind != "features":  # the features of a download are not computed yet
        return lambda _: 0.0
    X = np.asarray(train.X, dtype=np.float64)
    weights = np.ones((X.shape[1], train.space.width))
    product = min(_time(lambda: X @ weights) for _ in range(3))

    def seconds_of(job: Job) -> float:
        if job.is_convex:
            fits = (CHOICE_FITS if job.chooses_ridge else 1) + (POOL_FITS if job.method.name == POOL_METHOD else 0)
            return CONVEX_SECONDS + fits * 2 * FIT_EVALUATIONS * product
        return TRAINED_SECONDS + data.protocol.steps * PRODUCTS_PER_STEP * product

    return seconds_of


def _step_seconds(data: PlannedData, device: str) -> float:
    """Return the time in seconds of a forward and a backward pass on a batch of medium size."""
    import torch

    from compshift.features.embedder import chosen_device
    from compshift.training.batches import Reader

    samples, where = data.source.load(), chosen_device(device)
    backbone = planned_backbone(data, samples, 0).to(where)
    rows = np.arange(min(int(data.protocol.ranges["batch_size"].middle), len(samples)))
    reader = Reader(samples.samples, backbone, where, 0)
    ((_, inputs),) = reader.read([rows])

    def step() -> Any:
        features = backbone(**backbone.prepare(inputs))
        features.sum().backward()
        if where.type == "cuda":
            torch.cuda.synchronize(where)

    return min(_time(step) for _ in range(2))


def _time(action: Callable[[], Any]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
