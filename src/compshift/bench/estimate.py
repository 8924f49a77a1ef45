"""How long a benchmark will take: by jobs that were run before, else by timing what jobs mostly do."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from compshift.bench.plan import Job, PlannedData, Unit

EVALUATIONS = 120
"""Of the risk and its gradient, in a typical fit that is solved."""

PRODUCTS_PER_STEP = 4.0
"""What a step of the training loop costs on features, in matrix products of its batch with its weights."""

START, PER_SOLVED, PER_TRAINED = 8.0, 0.05, 0.3
"""Seconds that workers take to start, and that a job takes beside its computations."""


def estimate_seconds(units: Sequence[Unit], there: Sequence[int], known: Mapping[tuple[str, str], float]) -> float:
    """Seconds of all jobs together, less those that are ``there``; ``known`` are means by data set and method."""
    guesses: dict[str, Callable[[Job], float]] = {}
    total = START
    for unit, stored in zip(units, there, strict=True):
        if stored == unit.n_jobs:
            continue
        label = unit.data.source.label
        if (label, unit.method.name) in known:
            seconds = known[label, unit.method.name]
        else:
            if label not in guesses:
                guesses[label] = _timed(unit.data)
            seconds = guesses[label](unit.job(0, 0))
        total += (unit.n_jobs - stored) * seconds
    return total if total > START else 0.0


def _timed(data: PlannedData) -> Callable[[Job], float]:
    """Seconds of a job, from a short measurement on the data."""
    if data.protocol.mode != "features":
        seconds = data.protocol.steps * _step_seconds(data)
        return lambda _: seconds
    train = data.source.load().part("train")
    if train.kind != "features":  # they are to be computed first
        return lambda _: 0.0
    X = np.asarray(train.X, dtype=np.float64)
    weights = np.ones((X.shape[1], train.space.width))
    product = min(_time(lambda: X @ weights) for _ in range(3))

    def seconds_of(job: Job) -> float:
        if job.solved:
            return PER_SOLVED + 2 * EVALUATIONS * product
        return PER_TRAINED + data.protocol.steps * PRODUCTS_PER_STEP * product

    return seconds_of


def _step_seconds(data: PlannedData) -> float:
    """One forward and backward pass of the backbone on a batch of middling size."""
    import torch

    from compshift.training.backbone import named_backbone
    from compshift.training.reading import Reader

    samples, known = data.source.load(), data.source.known
    backbone = named_backbone(
        data.protocol.backbone,
        samples,
        0,
        geometry=None if known is None else known.geometry,
        default_length=None if known is None else known.max_length,
    )
    spread = data.protocol.ranges["batch_size"]
    size = int(spread.base ** ((spread.low + spread.high) / 2))
    rows = np.arange(min(size, len(samples)))
    reader = Reader(samples.samples, backbone, torch.device("cpu"), 0)
    ((_, inputs),) = reader.read([rows])

    def step() -> Any:
        features = backbone(**backbone.prepare(inputs))
        features.sum().backward()

    return min(_time(step) for _ in range(2))


def _time(action: Callable[[], Any]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
