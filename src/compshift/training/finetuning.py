"""``train``: fine-tune any backbone by any method on one or more processes, and resume interrupted runs."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from os import PathLike
from typing import Any

import numpy as np

from compshift._checks import MAX_READERS, check_finite, check_flag, check_float32, check_whole
from compshift._errors import InputError, an
from compshift._files import check_path
from compshift.data.dataset import GroupedDataset, Samples, has_pairs
from compshift.methods.base import Method
from compshift.methods.registry import make_method
from compshift.nn.backbones import Backbone
from compshift.nn.networks import FeatureBackbone, named_backbone
from compshift.training.batches import TrainingData
from compshift.training.classifier import TrainedClassifier
from compshift.training.folder import check_extras
from compshift.training.loop import Run
from compshift.training.optimiser import preserved_rng
from compshift.training.progress import Listener
from compshift.training.settings import Settings
from compshift.training.trackers import check_trackers


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
    unlabelled: Samples | None = None,
    trackers: str | Sequence[Any] = (),
) -> TrainedClassifier:
    """Train a backbone and a head on the split train, and keep the checkpoint that is best on the split val.

    The split test is never used.

    Parameters
    ----------
    data : GroupedDataset
        Features, images or texts. Without splits, every row is a training row.
    method : str or Method, default="crm"
        Name of a method, a key of ``compshift.methods.METHODS``, or a method object.
    backbone : str or Backbone, optional
        A name that ``load_backbone`` accepts, ``"small-cnn"`` for images, or ``"linear"`` or ``"mlp"`` for features. A
        Backbone object is trained in place. Default: ``"linear"`` for features, ``"efficientnet-lite0"`` for images,
        ``"minilm"`` for texts.
    settings : Settings, optional
        Steps, batch size, optimiser and so on.
    folder : path, optional
        Folder for the run's checkpoints, log and model. An interrupted run resumes from its last checkpoint and
        reaches the same final weights as an uninterrupted one. With several processes, the folder must be on a file
        system that all of them can read. Default: a temporary folder.
    overwrite : bool, default=False
        Whether to delete a run that the folder holds and start again.
    device : {"auto", "cpu", "cuda"}, default="auto"
        Device to train on; CUDA_VISIBLE_DEVICES selects one of several GPUs.
    workers : int, optional
        Number of worker processes that read images. Default: for image files, the number of cores minus one, but at
        least 1 and at most 4; otherwise 0.
    inputs : mapping, optional
        How samples are read from the columns of a table; stored with the model.
    files : mapping, optional
        Names and texts of additional files to write to the folder, such as a configuration.
    listener : Listener, optional
        Object that is notified of every step and evaluation.
    unlabelled : samples, optional
        Unlabelled samples of the same kind as ``data.samples``, from the population in which the model will be used.
        The method ``"crm-resolved"`` solves its head on their features too, if this helps on held-out training groups;
        other methods cannot use them.
    trackers : list of str or GeneralTracker, optional
        Experiment trackers that get the settings and every evaluation, by accelerate: names such as ``"tensorboard"``,
        ``"wandb"`` or ``"mlflow"``, or objects of a subclass of ``accelerate.tracking.GeneralTracker``. A resumed run
        continues its log. Trackers that write files write them to ``folder``/trackers.

    Returns
    -------
    TrainedClassifier
        The model with the best weights.

    Raises
    ------
    InputError
        If an argument cannot be used, or the folder holds another run.
    DivergenceError
        If the loss or a weight becomes NaN or infinite.

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
    trackers = check_trackers(trackers)
    if workers is not None:
        check_whole(workers, "workers", MAX_READERS)
    rows = TrainingData.of(data)
    if data.kind == "features":
        check_float32(data.X, "data.X")
    if settings.patience and not len(rows.validation):
        raise InputError(
            f"patience is {settings.patience}, but there are no validation rows to measure improvement on: put rows "
            "into the split 'val', or pass patience=0"
        )
    if unlabelled is not None:
        _check_unlabelled(unlabelled, data, chosen)
    network = _choose_backbone(backbone, rows, settings.seed)
    settings = settings.resolved(network.kind, pretrained=network.pretrained)
    with ExitStack() as stack:
        if folder is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="compshift-"))
        run = Run(rows, chosen, network, settings, check_path(folder), device, workers, listener, unlabelled, trackers)
        if run.main:
            stack.enter_context(run.folder.locked())
        stack.enter_context(preserved_rng(run.device))
        return run.complete(overwrite=overwrite, inputs=inputs, files=files or {})


def _check_unlabelled(unlabelled: Any, data: GroupedDataset, method: Method) -> None:
    """Check that unlabelled samples are of the same kind as the labelled ones, and that the method can use them."""
    if not method.uses_unlabelled:
        raise InputError(
            f"unlabelled cannot be used by the method {method.name!r}: use method='crm-resolved', or leave unlabelled "
            "out"
        )
    if not isinstance(unlabelled, type(data.samples)) or has_pairs(unlabelled) != has_pairs(data.samples):
        raise InputError(
            f"unlabelled is {an(type(unlabelled).__name__)}, but the labelled samples are "
            f"{an(type(data.samples).__name__)}: pass samples of the same kind"
        )
    if not len(unlabelled):
        raise InputError("unlabelled has no samples: pass at least one, or leave unlabelled out")
    if isinstance(unlabelled, np.ndarray):
        if unlabelled.shape[1:] != data.X.shape[1:]:
            raise InputError(
                f"unlabelled has shape {unlabelled.shape}, but data.X has {data.X.shape[1]} columns: pass the same "
                "features of other samples"
            )
        check_finite(unlabelled, "unlabelled")
        check_float32(unlabelled, "unlabelled")


def _choose_backbone(backbone: str | Backbone | None, rows: TrainingData, seed: int) -> Backbone:
    """Load a backbone by name, or check a backbone object; set the mean and scale of a ``FeatureBackbone``."""
    kind = rows.data.kind
    if backbone is None or isinstance(backbone, str):
        backbone = named_backbone(backbone, rows.data, seed)
    if not isinstance(backbone, Backbone):
        raise InputError(
            f"the backbone is {an(type(backbone).__name__)}: pass a name, or an instance of a subclass of "
            "compshift.nn.Backbone with the attributes name, kind and out_features"
        )
    if backbone.kind != kind:
        raise InputError(
            f"the backbone {backbone.name!r} takes {backbone.kind}, but the samples are {kind}: pass a backbone for "
            f"{kind}"
        )
    if isinstance(backbone, FeatureBackbone):
        backbone.set_scale(rows.data.samples[rows.train])
    return backbone
