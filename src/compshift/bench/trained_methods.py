"""Methods that go through the training loop: on fixed features in full batches, or fine-tuning a backbone.

How long a benchmark will take: by jobs that were run before, else by timing what jobs mostly do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.sparse.linalg import svds

from compshift._errors import InputError
from compshift.bench.convex_methods import extrapolated_groups
from compshift.bench.plan import Job, PlannedData, Unit
from compshift.bench.protocol import Protocol
from compshift.core.arrays import FloatArray, IntArray
from compshift.data.benchmarks import Benchmark
from compshift.data.dataset import GroupedDataset

if TYPE_CHECKING:
    from compshift.training import Settings, TrainedClassifier

EVALUATIONS = 20
"""How often a run looks at validation."""

CLIP = 1.0
"""Largest gradient norm on features: penalties of any strength are drawn."""

EVALUATION_BATCH = 256


class DivergedError(Exception):
    """The run came to no end: its loss or weights stopped being finite numbers."""


class JobBusyError(Exception):
    """Another process is training in the folder of the run."""


class Trained(NamedTuple):
    """What came of a run."""

    predict: Callable[[GroupedDataset, FloatArray], dict[str, IntArray]]  # classes (n,) by each predictor
    detail: dict[str, Any]


def train_method(
    data: GroupedDataset,
    method: str,
    hyperparameters: dict[str, Any],
    common: dict[str, Any],
    protocol: Protocol,
    known: Benchmark | None,
    *,
    seed: int,
    folder: Path,
) -> Trained:
    """Train a method on the train rows, its checkpoint chosen by the val rows."""
    from compshift.methods.registry import make_method
    from compshift.nn.networks import named_backbone
    from compshift.training.folder import BusyError, RunFolder, read_json
    from compshift.training.loop import train
    from compshift.training.run import DivergenceError

    features = protocol.mode == "features"
    settings = _feature_settings(data, common, protocol, seed) if features else _tuning_settings(common, protocol, seed)
    backbone = named_backbone(
        "linear" if features else protocol.backbone,
        data,
        seed,
        geometry=None if known is None else known.geometry,
        default_length=None if known is None else known.max_length,
    )
    try:
        clf = train(
            data,
            make_method(method, hyperparameters),
            backbone,
            settings,
            folder=folder,
            device="cpu" if features else "auto",
        )
    except DivergenceError as error:
        raise DivergedError(str(error)) from None
    except BusyError:
        raise JobBusyError from None
    result = read_json(RunFolder(folder).result)
    detail = {name: result[name] for name in ("steps", "best_step", "gradient")}
    if hasattr(clf.head_, "effective_sample_size_"):
        detail |= {"bias_gap": clf.head_.bias_gap_, "extrapolated": extrapolated_groups(clf.head_)}
    return Trained(lambda part, frequency: _predict(clf, part, frequency), detail)


def _feature_settings(data: GroupedDataset, common: dict[str, Any], protocol: Protocol, seed: int) -> Settings:
    """Full batches, at the rate that the curvature of the cross-entropy on these features allows."""
    from compshift.training import Settings

    X, alpha = data.part("train").X, common["alpha"]
    return Settings(
        steps=protocol.steps,
        batch_size=len(X),
        optimiser="sgd",
        learning_rate=1 / (0.5 * largest_variance(X) + alpha),  # of a softmax, the curvature is 1/2 at most
        weight_decay=alpha,
        schedule="linear",
        warmup=0,
        clip=CLIP,
        tolerance=protocol.tolerance,
        eval_every=max(1, protocol.steps // EVALUATIONS),
        metric=protocol.select,
        precision="float32",
        seed=seed,
    )


def _tuning_settings(common: dict[str, Any], protocol: Protocol, seed: int) -> Settings:
    from compshift.training import Settings

    return Settings(
        steps=protocol.steps,
        **common,
        eval_every=max(1, protocol.steps // EVALUATIONS),
        metric=protocol.select,
        balanced_classes=protocol.balanced_classes,
        seed=seed,
    )


def largest_variance(X: FloatArray) -> float:
    """Variance of the rows (n, p) along the direction of most, in units of the mean variance of a feature."""
    centred = X - X.mean(axis=0, dtype=np.float64)
    mean_square = float((centred**2).mean())
    if mean_square == 0:
        return 1.0
    if min(centred.shape) < 3:
        return float(np.linalg.norm(centred, 2) ** 2 / len(X) / mean_square)
    (largest,) = svds(centred, k=1, v0=np.ones(min(centred.shape)), return_singular_vectors=False)
    return float(largest**2 / len(X) / mean_square)


def _predict(clf: TrainedClassifier, part: GroupedDataset, frequency: FloatArray) -> dict[str, IntArray]:
    """Classes that each of the method's predictors gives."""
    import torch

    from compshift.features.embedder import Embedder

    device = next(clf.model.parameters()).device
    embedder = Embedder(
        clf.model.backbone, device=str(device), dtype="float32", batch_size=EVALUATION_BATCH, num_workers=None
    )
    (found,) = embedder.embed(part.samples, [np.arange(len(part))])
    if len(found.rows) < len(part):
        raise InputError(f"{len(part) - len(found.rows)} samples cannot be read; the first: {found.broken[0]}")
    X = torch.as_tensor(found.features, device=device)
    with torch.no_grad():
        predictors = clf.method.predictors(clf.model, frequency if clf.method.uses_prior else None)
        return {name: predictor(X).argmax(dim=1).cpu().numpy() for name, predictor in predictors.items()}


ESTIMATED_EVALUATIONS = 120
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
            return PER_SOLVED + 2 * ESTIMATED_EVALUATIONS * product
        return PER_TRAINED + data.protocol.steps * PRODUCTS_PER_STEP * product

    return seconds_of


def _step_seconds(data: PlannedData) -> float:
    """One forward and backward pass of the backbone on a batch of middling size."""
    import torch

    from compshift.nn.networks import named_backbone
    from compshift.training.batches import Reader

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
