"""``train``: fine-tune any backbone by any method, on any number of processes, resuming where a run stopped."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from os import PathLike
from typing import Any

from compshift._checks import MAX_READERS, check_flag, check_float32, check_whole
from compshift._errors import InputError, an
from compshift._files import check_path
from compshift.data.dataset import GroupedDataset
from compshift.methods.base import Method
from compshift.methods.registry import make_method
from compshift.nn.backbones import Backbone
from compshift.nn.networks import FeatureBackbone, named_backbone
from compshift.training.batches import TrainingData
from compshift.training.classifier import TrainedClassifier
from compshift.training.folder import check_extras
from compshift.training.optimiser import own_randomness
from compshift.training.progress import Listener
from compshift.training.run import Run
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
    """Train a backbone and a head on the train rows, and keep the checkpoint that is best on the val rows.

    The test rows are never used.

    Parameters
    ----------
    data : GroupedDataset
        Features, images or texts, with splits.
    method : str or Method, default="crm"
        One of ``compshift.methods.METHODS``, or a method object.
    backbone : str or Backbone, optional
        A name that ``load_backbone`` knows, ``"small-cnn"`` for images, ``"linear"`` or ``"mlp"`` for features. A
        Backbone object is trained in place. Default: ``"linear"``, ``"efficientnet-lite0"`` or ``"minilm"``.
    settings : Settings, optional
        Steps, batch size, optimiser and so on.
    folder : path, optional
        Folder for the run's state, log and model. A run that was stopped resumes from its last evaluation and reaches
        the same final weights. Several processes must all see it. Default: a temporary folder.
    overwrite : bool, default=False
        Whether to start again in a folder that holds a run.
    device : {"auto", "cpu", "cuda"}, default="auto"
        Device to train on; CUDA_VISIBLE_DEVICES selects one of several GPUs.
    workers : int, optional
        Number of processes that read images.
    inputs : mapping, optional
        How the columns of a table become samples; stored with the model.
    files : mapping, optional
        Names and texts of files to write to the folder, such as the configuration.
    listener : Listener, optional
        Object that is told about every step and evaluation.

    Returns
    -------
    TrainedClassifier
        The model with the best weights.

    Raises
    ------
    InputError
        If an argument cannot be used, or the folder holds another run.
    DivergenceError
        If the loss or the weights are no longer finite.

    Examples
    --------
    >>> import numpy as np
    >>> from compshift import GroupSpace
    >>> space = GroupSpace.from_cardinalities([2, 2])
    >>> codes = np.array([[0, 0], [0, 1], [1, 1]] * 20)
    >>> X = np.random.default_rng(0).normal(size=(60, 3)) + 3 * codes[:, [0, 1, 1]]
    >>> clf = train(GroupedDataset(X, space, codes), settings=Settings(steps=20), device="cpu")
    >>> clf.predict(X).shape
    (60,)
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
        check_float32(data.X, "data.X")
    if settings.patience and not len(rows.validation):
        raise InputError(f"patience is {settings.patience}, and there are no validation rows to be patient with")
    network = _choose_backbone(backbone, rows, settings.seed)
    settings = settings.resolved(network.kind, pretrained=network.pretrained)
    with ExitStack() as stack:
        if folder is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="compshift-"))
        run = Run(rows, chosen, network, settings, check_path(folder), device, workers, listener)
        if run.main:
            stack.enter_context(run.folder.locked())
        stack.enter_context(own_randomness(run.device))
        return run.complete(overwrite=overwrite, inputs=inputs, files=files or {})


def _choose_backbone(backbone: str | Backbone | None, rows: TrainingData, seed: int) -> Backbone:
    """Load a backbone by name, or check the one that was passed; set the scale of features."""
    kind = rows.data.kind
    if backbone is None or isinstance(backbone, str):
        backbone = named_backbone(backbone, rows.data, seed)
    if not isinstance(backbone, Backbone):
        raise InputError(
            f"the backbone is {an(type(backbone).__name__)}: pass a subclass of compshift.nn.Backbone, a module with a "
            "name, the kind of samples it takes, and out_features"
        )
    if backbone.kind != kind:
        raise InputError(f"the backbone {backbone.name!r} takes {backbone.kind}, and the samples are {kind}")
    if isinstance(backbone, FeatureBackbone):
        backbone.set_scale(rows.data.samples[rows.train])
    return backbone
