"""The one training loop: any method, any backbone, any number of processes, from any step on."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from os import PathLike
from typing import Any

from compshift._checks import MAX_READERS, check_flag, check_single, check_whole
from compshift._errors import InputError, an
from compshift._files import check_path
from compshift.data.dataset import GroupedDataset
from compshift.methods.base import Method
from compshift.methods.registry import make_method
from compshift.nn.backbones import Backbone
from compshift.training.backbone import choose_backbone
from compshift.training.batches import TrainingData
from compshift.training.classifier import TrainedClassifier
from compshift.training.folder import check_extras
from compshift.training.progress import Listener
from compshift.training.run import Run, own_randomness
from compshift.training.settings import Settings


def train(
    data: GroupedDataset,
    method: str | Method = "crm",
    backbone: str | Backbone | None = None,
    settings: Settings | None = None,
    *,
    folder: str | PathLike[str] | None = None,
    overwrite: bool = False,
    device: str = "auto",
    workers: int | None = None,
    inputs: Mapping[str, Any] | None = None,
    files: Mapping[str, str] | None = None,
    listener: Listener | None = None,
) -> TrainedClassifier:
    """Train a backbone and a head on the train rows, select by the val rows, and never look at the test rows.

    Parameters
    ----------
    data : GroupedDataset
        Features, images or texts, with splits.
    method : str or Method
        One of ``compshift.methods.METHODS``.
    backbone : str or Backbone
        A name that ``load_backbone`` knows, ``"small-cnn"`` for images, ``"linear"`` or ``"mlp"`` for features. A
        backbone that is passed is trained itself, not a copy of it.
    settings : Settings
        Steps, batch size, optimiser and so on.
    folder : path, optional
        Where the run keeps its state, its log and its model. A run that was stopped goes on from its last evaluation,
        to the same final weights. Several processes must all see it.
    overwrite : bool
        Whether to start again in a folder that holds a run.
    device : "auto", "cpu" or "cuda"
        Where to compute; which of several GPUs is chosen by CUDA_VISIBLE_DEVICES.
    workers : int, optional
        Processes that read images.
    inputs : mapping, optional
        Kept with the model: how the columns of a table become samples.
    files : mapping, optional
        Names and texts of files to put into the folder, such as the configuration.
    listener : Listener, optional
        Hears of every step and evaluation.
    """
    chosen = make_method(method) if isinstance(method, str) else method() if isinstance(method, type) else method
    settings = Settings() if settings is None else settings
    listener = Listener() if listener is None else listener
    for value, kind, name in (
        (data, GroupedDataset, "data"),
        (chosen, Method, "method"),
        (settings, Settings, "settings"),
        (listener, Listener, "listener"),
    ):
        if not isinstance(value, kind):
            raise InputError(f"{name} is {an(type(value).__name__)}: pass a compshift {kind.__name__}")
    check_extras({} if inputs is None else inputs, {} if files is None else files)
    check_flag(overwrite, "overwrite")
    if workers is not None:
        check_whole(workers, "workers", MAX_READERS)
    rows = TrainingData.of(data)
    if data.kind == "features":
        check_single(data.X, "data.X")
    if settings.patience and not len(rows.validation):
        raise InputError(f"patience is {settings.patience}, and there are no validation rows to be patient with")
    network = choose_backbone(backbone, rows, settings.seed)
    settings = settings.resolved(network.kind, pretrained=network.pretrained)
    with ExitStack() as stack:
        if folder is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="compshift-"))
        run = Run(rows, chosen, network, settings, check_path(folder), device, workers, listener)
        if run.main:
            stack.enter_context(run.folder.locked())
        stack.enter_context(own_randomness(run.device))
        return run.complete(overwrite=overwrite, inputs=inputs, files=files or {})
