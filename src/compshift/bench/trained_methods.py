"""Methods that are fitted by the training loop: in full batches on fixed features, or by fine-tuning a backbone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.sparse.linalg import svds

from compshift._errors import InputError
from compshift.bench.convex_methods import extrapolated_groups
from compshift.bench.protocol import Protocol
from compshift.core.arrays import FloatArray, IntArray
from compshift.data.benchmarks import Benchmark
from compshift.data.dataset import GroupedDataset

if TYPE_CHECKING:
    from compshift.training import Settings, TrainedClassifier

EVALUATIONS = 20
"""Number of evaluations on the validation rows during a run."""

FEATURE_CLIP = 1.0
"""Gradient norm above which gradients on features are clipped, because drawn penalties may be very strong."""


class DivergedError(Exception):
    """Raised when the loss or the weights of a run become infinite or NaN."""


class JobBusyError(Exception):
    """Raised when another process is training in the folder of the run."""


class TrainedFit(NamedTuple):
    """A trained method."""

    predict: Callable[[GroupedDataset, FloatArray], dict[str, IntArray]]  # rows, group frequencies -> classes (n,)
    detail: dict[str, Any]  # diagnostics of the run


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
) -> TrainedFit:
    """Train a method on the train rows, and keep the checkpoint with the best accuracy on the val rows.

    ``common`` are the hyper-parameters shared by all methods, ``known`` describes a named data set.
    """
    from compshift.methods.registry import make_method
    from compshift.nn.networks import named_backbone
    from compshift.training.finetuning import train
    from compshift.training.folder import BusyError, RunFolder, read_json
    from compshift.training.loop import DivergenceError

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
    result = read_json(RunFolder(folder).result_path)
    detail = {name: result[name] for name in ("steps", "best_step", "gradient")}
    if hasattr(clf.head_, "effective_sample_size_"):
        detail |= {"bias_gap": clf.head_.bias_gap_, "extrapolated": extrapolated_groups(clf.head_)}
    return TrainedFit(lambda part, frequency: _predict(clf, part, frequency), detail)


def _feature_settings(data: GroupedDataset, common: dict[str, Any], protocol: Protocol, seed: int) -> Settings:
    """Return settings for training in full batches; the learning rate is the inverse of a bound on the curvature."""
    from compshift.training import Settings

    X, alpha = data.part("train").X, common["alpha"]
    return Settings(
        steps=protocol.steps,
        batch_size=len(X),
        optimiser="sgd",
        learning_rate=1 / (0.5 * largest_variance(X) + alpha),  # the curvature of a softmax is at most 1/2
        weight_decay=alpha,
        schedule="linear",
        warmup=0,
        clip=FEATURE_CLIP,
        tolerance=protocol.tolerance,
        eval_every=max(1, protocol.steps // EVALUATIONS),
        metric=protocol.select,
        precision="float32",
        seed=seed,
    )


def _tuning_settings(common: dict[str, Any], protocol: Protocol, seed: int) -> Settings:
    """Return settings for fine-tuning with the drawn hyper-parameters."""
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
    """Return the largest variance of rows (n, p) along any direction, divided by the mean variance of the features."""
    centred = X - X.mean(axis=0, dtype=np.float64)
    mean_square = float((centred**2).mean())
    if mean_square == 0:
        return 1.0
    if min(centred.shape) < 3:
        return float(np.linalg.norm(centred, 2) ** 2 / len(X) / mean_square)
    (largest,) = svds(centred, k=1, v0=np.ones(min(centred.shape)), return_singular_vectors=False)
    return float(largest**2 / len(X) / mean_square)


def _predict(clf: TrainedClassifier, part: GroupedDataset, frequency: FloatArray) -> dict[str, IntArray]:
    """Return the predicted classes (n,) of each predictor of the method."""
    import torch

    from compshift.features.embedder import Embedder

    device = next(clf.model.parameters()).device
    embedder = Embedder(clf.model.backbone, device=str(device), dtype="float32", batch_size=256, num_workers=None)
    (embedded,) = embedder.embed(part.samples, [np.arange(len(part))])
    if len(embedded.rows) < len(part):
        raise InputError(
            f"{len(part) - len(embedded.rows)} samples cannot be read: restore or remove them (the first: "
            f"{embedded.broken[0]})"
        )
    X = torch.as_tensor(embedded.features, device=device)
    with torch.no_grad():
        predictors = clf.method.predictors(clf.model, frequency if clf.method.uses_prior else None)
        return {name: predictor(X).argmax(dim=1).cpu().numpy() for name, predictor in predictors.items()}
