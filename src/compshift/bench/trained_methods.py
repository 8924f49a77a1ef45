"""Methods that are fitted by the training loop: in full batches on fixed features, or by fine-tuning a backbone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.sparse.linalg import svds

from compshift._errors import InputError
from compshift.bench.convex_methods import extrapolated_groups
from compshift.bench.protocol import Protocol, validation_metric
from compshift.core.arrays import FloatArray, IntArray
from compshift.data.dataset import GroupedDataset, has_pairs

if TYPE_CHECKING:
    from compshift.bench.jobs import PlannedData
    from compshift.nn.backbones import Backbone
    from compshift.training import Settings, TrainedClassifier

FEATURE_CLIP = 1.0
"""Maximum gradient norm in training on fixed features; a drawn penalty weight can make gradients very large."""

EVALUATION_BATCH = 256
"""Samples per forward pass when a trained network predicts."""

RECORDED_SETTINGS = (
    "optimiser",
    "learning_rate",
    "weight_decay",
    "decay",
    "batch_size",
    "balanced_classes",
    "momentum",
    "schedule",
    "warmup",
    "clip",
    "eval_every",
    "metric",
    "predictor",
    "refresh_rows",
)
"""Settings of a fine-tuning run that its record lists."""

RESULT_DETAILS = ("steps", "best_step", "gradient")
"""Keys of a run's result that are stored in the record of a job."""


class DivergedError(Exception):
    """Raised when the loss or the weights of a run become infinite or NaN."""


class JobBusyError(Exception):
    """Raised when another process is training in the folder of the run."""


class TrainedFit(NamedTuple):
    """A trained method."""

    predict: Callable[[GroupedDataset, FloatArray], dict[str, IntArray]]  # rows, frequencies → classes by predictor
    detail: dict[str, Any]  # diagnostics of the run


def train_method(
    data: GroupedDataset,
    method: str,
    hyperparameters: dict[str, Any],
    common: dict[str, Any],
    planned: PlannedData,
    *,
    seed: int,
    folder: Path,
    device: str = "auto",
) -> TrainedFit:
    """Train a method on the train rows, and keep the checkpoint with the best accuracy on the val rows.

    A run in the folder is resumed, or started again if its files cannot be used. ``hyperparameters`` are the method's
    own, ``common`` those shared by all methods. ``planned`` is the data set of the plan, from which the scenario's
    ``data`` were made. ``detail`` of the result records how the network was trained.
    """
    from compshift.methods.registry import make_method
    from compshift.training.finetuning import train
    from compshift.training.folder import RETRAIN, BusyError, RunFolder, RunFolderError, read_json
    from compshift.training.loop import DivergenceError

    protocol = planned.protocol
    features = protocol.mode == "features"
    settings = _feature_settings(data, common, protocol, seed) if features else _tuning_settings(common, protocol, seed)
    run = RunFolder(folder)

    def trained(*, overwrite: bool) -> tuple[TrainedClassifier, dict[str, Any], str]:
        backbone = planned_backbone(planned, data, seed)
        weights = None if features else backbone.fingerprint()  # of the weights before training
        chosen, where = make_method(method, hyperparameters), "cpu" if features else device
        clf = train(data, chosen, backbone, settings, folder=folder, device=where, overwrite=overwrite)
        result = read_json(run.result_path)
        if not set(RESULT_DETAILS) <= set(result):
            raise RunFolderError(f"{str(run.result_path)!r} is damaged: {RETRAIN}")
        detail = {name: result[name] for name in RESULT_DETAILS}
        precision = result.get("precision", "float32")  # older runs do not record it; on most machines it was float32
        if not features:
            resolved = settings.resolved(backbone.kind, pretrained=backbone.pretrained)
            used = {name: getattr(resolved, name) for name in RECORDED_SETTINGS}
            used |= {"precision": precision, "backbone": backbone.settings(), "weights": weights}
            detail["training"] = used
        return clf, detail, precision

    resumes = folder.is_dir() and any(folder.iterdir())
    try:
        try:
            clf, detail, precision = trained(overwrite=False)
        except RunFolderError:
            if not resumes:
                raise
            clf, detail, precision = trained(overwrite=True)  # the stored run is damaged, or has other initial weights
    except DivergenceError as error:
        raise DivergedError(str(error)) from None
    except BusyError:
        raise JobBusyError from None
    if hasattr(clf.head_, "effective_sample_size_"):
        detail |= {"bias_gap": clf.head_.bias_gap_, "extrapolated": extrapolated_groups(clf.head_)}
    return TrainedFit(lambda part, frequency: _predict(clf, part, frequency, precision), detail)


def planned_backbone(planned: PlannedData, data: GroupedDataset, seed: int) -> Backbone:
    """Return the network that is trained on a data set of a plan."""
    from compshift.nn.networks import named_backbone

    protocol, known = planned.protocol, planned.source.known
    if planned.weights is not None:
        from compshift.nn.torchvision import checkpoint_digest, weights_name

        if weights_name(checkpoint_digest(Path(planned.weights))) != protocol.weights:
            raise InputError(
                f"the weights in {planned.weights!r} have changed since the jobs were planned: run the same command "
                "again"
            )
    options = {"backbone": "linear"} if protocol.mode == "features" else protocol.backbone_settings(data.kind)
    return named_backbone(
        options.pop("backbone"),
        data,
        seed,
        geometry=None if known is None else known.fitted_geometry(data),
        default_length=None if known is None else known.max_length,
        weights=planned.weights,
        **options,
    )


def pair_encoding(protocol: Protocol, data: GroupedDataset) -> str | None:
    """Return "separate" if the protocol fine-tunes a sentence encoder on pairs of texts, otherwise None."""
    if protocol.backbone is None or not has_pairs(data.samples):
        return None
    from compshift.nn.backbones import is_sentence_encoder

    return "separate" if is_sentence_encoder(protocol.backbone) else None


def find_network(planned: PlannedData) -> None:
    """Check that the files of the network to fine-tune can be found; nothing is loaded."""
    backbone = planned.protocol.backbone
    if backbone is not None and planned.weights is None:  # a checkpoint file was read when the plan was made
        from compshift.nn.backbones import find_backbone

        find_backbone(backbone, planned.source.labels().kind)


def _feature_settings(data: GroupedDataset, common: dict[str, Any], protocol: Protocol, seed: int) -> Settings:
    """Return settings for training in full batches; the learning rate is 1 over a bound on the loss's curvature."""
    from compshift.training import Settings

    X, alpha = data.part("train").X, common["alpha"]
    return Settings(
        steps=protocol.steps,
        batch_size=len(X),
        optimiser="sgd",
        learning_rate=1
        / (0.5 * largest_variance(X) + alpha),  # no eigenvalue of the Hessian of log-sum-exp exceeds 1/2
        weight_decay=alpha,
        schedule="linear",
        warmup=0,
        clip=FEATURE_CLIP,
        tolerance=protocol.tolerance,
        eval_every=max(1, protocol.steps_of("eval_every")),
        metric=validation_metric(protocol.select),
        precision="float32",
        seed=seed,
    )


def _tuning_settings(common: dict[str, Any], protocol: Protocol, seed: int) -> Settings:
    """Return settings for fine-tuning with the drawn hyper-parameters."""
    from compshift.training import Settings

    return Settings(steps=protocol.steps, **common, **protocol.training_settings(), seed=seed)


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


def _predict(
    clf: TrainedClassifier, part: GroupedDataset, frequency: FloatArray, precision: str
) -> dict[str, IntArray]:
    """Return the predicted classes (n,) of each predictor, in the precision in which the checkpoint was selected."""
    import torch

    from compshift.features.embedder import Embedder

    device = next(clf.model.parameters()).device
    embedder = Embedder(
        clf.model.backbone, device=str(device), dtype=precision, batch_size=EVALUATION_BATCH, num_workers=None
    )
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
