"""A trained model: samples in, predictions out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
import torch

from compshift._checks import check_finite, check_numbers, check_single
from compshift._errors import InputError, an, listing
from compshift._files import check_inside, check_path
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.columns import is_arrow
from compshift.core.groups import GroupSpace
from compshift.data.dataset import GroupedDataset
from compshift.data.samples import KINDS, ImageArrays, ImageFiles, Samples, Texts
from compshift.features.embedder import Embedder, chosen_device
from compshift.methods.method import Method
from compshift.methods.registry import METHODS, make_method
from compshift.methods.task import Task
from compshift.nn.backbones import Backbone
from compshift.nn.classifier import BackboneClassifier
from compshift.nn.head import AdditiveEnergyHead
from compshift.nn.saved_backbone import check_size, restore_architecture, save_architecture
from compshift.training.checkpoint import load_weights, read_tensors
from compshift.training.head_classifier import head_classifier
from compshift.training.run_folder import RUN_VERSION, RunFolder, read_json


def describe_model(
    backbone: Backbone, method: Method, task: Task, folder: Path, inputs: Mapping[str, Any] | None
) -> dict[str, Any]:
    """All that a model is beside its weights, for JSON; files of the backbone go to ``folder``."""
    return {
        "version": RUN_VERSION,
        "method": method.name,
        "hyperparameters": method.hyperparameters(),
        "names": list(task.space.names),
        "values": [list(values) for values in task.space.values],
        "seen": task.seen.tolist(),
        "weight": task.weight.tolist(),
        "counts": task.counts.tolist(),
        "backbone": save_architecture(backbone, folder),
        "inputs": None if inputs is None else dict(inputs),
    }


class TrainedClassifier:
    """A fine-tuned backbone with its head.

    ``predict`` and ``predict_proba`` take samples of the kind that training had (images, texts, or features as an
    array). ``features`` computes the backbone's features, and ``head_`` is a classifier of those: for CRM a
    ``CRMClassifier`` with everything that it offers, such as ``group_log_proba``, ``explain`` and ``set_prior``.
    """

    def __init__(self, model: BackboneClassifier, method: Method, task: Task, inputs: Mapping[str, Any] | None) -> None:
        self.model = model.eval()
        self.method = method
        self.task = task
        self.inputs_ = inputs
        self.head_ = head_classifier(model.head, method, task)

    @classmethod
    def load(
        cls,
        folder: str | PathLike[str],
        device: Any = "cpu",
        *,
        backbone: Backbone | None = None,
        method: Method | None = None,
    ) -> TrainedClassifier:
        """The model of a finished run.

        ``backbone`` and ``method`` are for those that are not compshift's own; the backbone gets the run's weights.
        """
        run = RunFolder(check_path(folder))
        for file in (run.about, run.model, run.backbone, *run.backbone.glob("*")):
            check_inside(file, run.path)
        if not run.about.exists():
            raise InputError(f"{str(folder)!r} holds no run: pass the folder that `compshift train` wrote")
        if not run.model.exists():
            raise InputError(f"the run in {str(folder)!r} is not finished: run the same `compshift train` again")
        about = read_json(run.about).get("model")
        version = about.get("version") if isinstance(about, dict) else None
        if not isinstance(about, dict) or version != RUN_VERSION:
            raise InputError(f"{str(folder)!r} has run format {version}: this release reads {RUN_VERSION}")
        weights = read_tensors(run.model)[0]
        n_weights = sum(tensor.numel() for tensor in weights.values())
        try:
            space = GroupSpace(tuple(about["names"]), tuple(tuple(values) for values in about["values"]))
            rows = (np.array(about[name], dtype=np.float64) for name in ("weight", "counts"))
            task = Task(space, np.array(about["seen"], dtype=np.int64), *rows)
            if method is None:
                if about["method"] not in METHODS:
                    raise unknown_method(about["method"])
                method = make_method(about["method"], about["hyperparameters"])
            if backbone is None:
                backbone = restore_architecture(about["backbone"], run.backbone, n_weights)
            check_size(lambda: method.head(backbone.out_features, task), n_weights)
            model = BackboneClassifier(backbone, method.head(backbone.out_features, task))
            inputs = about.get("inputs")
            if not isinstance(inputs, dict | None):
                raise TypeError(f"inputs is {inputs!r}")
        except UnknownMethodError:
            raise
        except (
            LookupError,
            TypeError,
            AttributeError,
            ValueError,
            OverflowError,
            RuntimeError,
            AssertionError,
        ) as error:
            raise InputError(f"{str(run.about)!r} is not what a run writes ({error})") from None
        load_weights(model, weights, run.model)
        return cls(model.to(chosen_device(device)), method, task, inputs)

    def __repr__(self) -> str:
        shape = " × ".join(map(str, self.space_.cardinalities))
        names = " × ".join(self.space_.names)
        return f"<TrainedClassifier: {self.method.name}, {self.model.backbone.name}, {names} ({shape})>"

    @property
    def kind(self) -> str:
        """Whether samples are features, images or text."""
        return self.model.backbone.kind

    @property
    def space_(self) -> GroupSpace:
        """The class first, then attributes."""
        return self.task.space

    @property
    def classes_(self) -> Any:
        """The values that ``predict`` returns."""
        return np.array(self.space_.values[0])

    def _columns(self) -> list[str] | None:
        """Columns of the table of numbers that training had, if it was one."""
        columns = (self.inputs_ or {}).get("columns")
        return list(columns) if self.kind == "features" and isinstance(columns, list | tuple) else None

    def embed(
        self,
        samples: Samples,
        *,
        skip_broken: bool = False,
        progress: Callable[[int], None] = lambda _: None,
        batch_size: int = 64,
        num_workers: int | None = None,
    ) -> tuple[FloatArray, IntArray, list[str]]:
        """Features as ``head_`` takes them, the rows that have them, and a sentence for every sample that has not.

        They are the backbone's, or those of the hidden layers of energies that have some.
        """
        samples = _readable(samples, self.kind, self._columns())
        device, rows = str(next(self.model.head.parameters()).device), np.arange(len(samples))
        embedder = Embedder(
            self.model.backbone, device=device, dtype="float32", batch_size=batch_size, num_workers=num_workers
        )
        (found,) = embedder.embed(samples, [rows], skip_broken=skip_broken, progress=progress)
        X = found.features
        if isinstance(self.model.head, AdditiveEnergyHead):
            with torch.no_grad():
                X = self.model.head.last_features(torch.as_tensor(X, device=device)).cpu().numpy()
        return X.astype(np.float64), found.rows, found.broken

    def features(self, samples: Samples) -> FloatArray:
        """Features (n, p) of samples, as ``head_`` takes them."""
        return self.embed(samples)[0]

    def set_prior(self, prior: Any) -> TrainedClassifier:
        """Predict under another prior over groups from now on; for CRM."""
        if not hasattr(self.head_, "set_prior"):
            raise InputError(f"the method {self.method.name!r} knows no prior over groups: use CRM")
        self.head_.set_prior(prior)
        return self

    def predict(self, samples: Samples) -> Any:
        """Class of each sample, (n,)."""
        return self.head_.predict(self.features(samples))

    def predict_proba(self, samples: Samples) -> FloatArray:
        """Probability of each class, (n, c)."""
        return np.asarray(self.head_.predict_proba(self.features(samples)))


MATRIX = "pass a matrix of numbers, one row per sample"


class UnknownMethodError(InputError):
    """A run was trained by a method that is not registered."""


def unknown_method(name: Any) -> UnknownMethodError:
    """What to do about it."""
    return UnknownMethodError(
        f"the run was trained by the method {name!r}, which is not one of compshift's: pass it, as method=, or name it "
        "in compshift.methods.METHODS"
    )


def _readable(samples: Samples, kind: str, columns: Sequence[str] | None = None) -> Samples:
    """Samples of the kind that the backbone takes; lists of paths or texts, and arrays of pixels, become such.

    A DataFrame must have the ``columns`` that training had, in their order.
    """
    if isinstance(samples, GroupedDataset):
        raise InputError("a whole data set was passed: pass its samples, data.samples")
    if kind == "features":
        return _matrix(samples, columns)
    if isinstance(samples, str | PathLike):
        raise InputError(f"the samples are {fspath(samples)!r} alone: pass a list, with one entry per sample")
    listed = samples.tolist() if getattr(samples, "ndim", 0) == 1 and hasattr(samples, "tolist") else samples
    named = isinstance(listed, list | tuple) and all(isinstance(sample, str | PathLike) for sample in listed)
    if kind == "images" and named:
        return ImageFiles(Path(), np.array([fspath(sample) for sample in listed], dtype=object))
    if kind == "images" and isinstance(samples, np.ndarray) and samples.dtype == np.uint8:
        return ImageArrays(samples)
    if kind == "text" and named:
        return Texts(np.array(listed, dtype=object))
    if KINDS.get(type(samples)) != kind:
        accepted = {"images": "paths, or an 8-bit array (n, height, width, 3)", "text": "texts"}
        given = KINDS.get(type(samples), an(type(samples).__name__))
        raise InputError(f"the model takes {kind}, and the samples are {given}: pass a list of {accepted[kind]}")
    return samples


def _matrix(samples: Any, columns: Sequence[str] | None) -> Any:
    """Features as finite numbers of 32 bits."""
    if type(samples) in KINDS:
        raise InputError(f"the model takes features, and the samples are {KINDS[type(samples)]}: {MATRIX}")
    samples = samples.to_pandas() if is_arrow(samples) else samples
    names = [str(name) for name in samples.columns] if hasattr(samples, "columns") else None
    if names is not None and columns is not None and names != list(columns):
        order = "in another order" if sorted(names) == sorted(columns) else f"{listing(names, 4)}"
        raise InputError(
            f"the samples have columns {order}, and the model was trained on {listing(columns)}: pass these columns, "
            "in this order"
        )
    X = samples if getattr(samples, "dtype", None) == np.float32 else _as_numbers(samples)
    if X.ndim != 2:
        raise InputError(f"the features have {X.ndim} dimensions: pass one row per sample")
    check_finite(X)
    check_single(X)
    return np.asarray(X, dtype=np.float32)


def _as_numbers(samples: Any) -> Any:
    """Numbers of 64 bits; of a table with others, the column is told rather than the table."""
    for name in getattr(samples, "columns", ()):
        check_numbers(samples[name], f"the column {str(name)!r}", "pass columns of numbers")
    return check_numbers(samples, "features", MATRIX)
