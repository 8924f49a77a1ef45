"""``TrainedClassifier``: a fine-tuned backbone with its head, for prediction; it can be loaded from a run's folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from compshift._checks import check_finite
from compshift._errors import InputError
from compshift._files import check_folder, check_inside, check_path
from compshift._hub_methods import HubMethods
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.candidates import Candidates
from compshift.core.groups import GroupSpace
from compshift.core.hull import AffineHull
from compshift.crm.classifier import CRMClassifier
from compshift.crm.model import CRMModel
from compshift.data.dataset import Samples
from compshift.features.embedder import Embedder, chosen_device
from compshift.features.recipe import portable_backbone
from compshift.methods.base import Method, Task
from compshift.methods.registry import METHODS, make_method
from compshift.nn.backbones import Backbone
from compshift.nn.head import AdditiveEnergyHead
from compshift.nn.networks import BackboneClassifier
from compshift.nn.saved_backbones import check_size, restore_architecture, save_architecture
from compshift.training.batches import readable_samples
from compshift.training.folder import (
    RETRAIN,
    RUN_VERSION,
    RunFolder,
    load_weights,
    read_json,
    read_tensors,
    write_tensors,
)


class UnknownMethodError(InputError):
    """Raised when a run was trained by a method that is not registered."""


def head_classifier(head: nn.Module, method: Method, task: Task) -> Any:
    """Return a NumPy classifier that predicts as the head does: a ``CRMClassifier`` or a ``LinearHead``."""
    if isinstance(head, AdditiveEnergyHead):
        return _energy_classifier(head, getattr(method, "prior", "uniform"), task)
    assert isinstance(head, nn.Linear)
    return LinearHead(head, task)


class LinearHead:
    """Classifier of features with linear class logits; it does not model groups."""

    def __init__(self, head: nn.Linear, task: Task) -> None:
        self._head = head
        self.space_ = task.space
        self.targets_ = GroupSpace(task.space.names[:1], task.space.values[:1])
        self.classes_ = np.array(task.space.values[0])
        self.coef_ = head.weight.detach().cpu().double().numpy()  # (c, p)
        self.intercept_ = head.bias.detach().cpu().double().numpy()  # (c,)
        self.groups_ = task.seen
        self.seen_ = np.ones(len(task.seen), dtype=np.bool_)
        self.group_weight_ = task.counts

    def predict_log_proba(self, X: Any) -> FloatArray:
        """Log-probability of each class, (n, c)."""
        X = np.asarray(X, dtype=np.float64)
        if X.ndim != 2 or X.shape[1] != self.coef_.shape[1]:
            raise InputError(f"X has shape {X.shape}: pass one row of {self.coef_.shape[1]} features per sample")
        check_finite(X)
        logits = X @ self.coef_.T + self.intercept_
        logits -= logits.max(axis=1, keepdims=True)
        return np.asarray(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))

    def predict_proba(self, X: Any) -> FloatArray:
        """Probability of each class, (n, c)."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: Any) -> Any:
        """Most probable class, (n,)."""
        return self.classes_[np.argmax(self.predict_log_proba(X), axis=1)]


def _energy_classifier(head: AdditiveEnergyHead, prior: str, task: Task) -> CRMClassifier:
    """Return a ``CRMClassifier`` that takes the inputs of the head's last layers as features."""
    model = CRMModel(
        candidates=Candidates(AffineHull(head.space, task.seen), task.counts, head.groups),
        coef=head.last_weights().detach().cpu().double().numpy(),
        feature_mean=np.zeros(head.last_weights().shape[1]),
        bias=head.bias.cpu().double().numpy(),
        learned_bias=head.centred_learned_bias().cpu().double().numpy(),
        cumulant_bias=np.full(len(head.groups), np.nan),
        effective_sample_size=head.effective_sample_size.cpu().double().numpy(),
        pareto_k=np.full(len(head.groups), np.nan),
        temperature=1.0,
        bias_gap=head.bias_gap,
        gradient=float("nan"),
        n_iter=0,
        converged=True,
    )
    return CRMClassifier._from_model(model, prior=prior)


def describe_model(
    backbone: Backbone, method: Method, task: Task, folder: Path, inputs: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return everything about a model but its weights, as JSON values; write the backbone's files to ``folder``."""
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


class TrainedClassifier(HubMethods):
    """A fine-tuned backbone with its head; ``train`` returns it and ``load`` reads it from a run's folder.

    ``predict`` and ``predict_proba`` take samples of the kind that the model was trained on: images, texts, or an
    array of features.

    Parameters
    ----------
    model : BackboneClassifier
        The trained network.
    method : Method
        The method that trained it.
    task : Task
        Classes, attributes and training groups.
    inputs : mapping, optional
        How samples are read from the columns of a table.

    Attributes
    ----------
    head_ : CRMClassifier or LinearHead
        Classifier of the features that ``features`` returns. For CRM it has all methods of ``CRMClassifier``, such as
        ``group_log_proba`` and ``explain``.
    inputs_ : mapping or None
        Value of the parameter ``inputs``.

    Examples
    --------
    >>> clf = TrainedClassifier.load("runs/birds")  # doctest: +SKIP
    >>> clf.predict(["photo.jpg"])  # doctest: +SKIP
    array(['waterbird'], dtype='<U9')
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
        """Load the model of a finished run, without running any code from its folder.

        Parameters
        ----------
        folder : path
            Folder of the run.
        device : str or torch.device, default="cpu"
            Device of the network.
        backbone : Backbone, optional
            Required if the run was trained with a custom backbone; the run's weights are loaded into it.
        method : Method, optional
            Required if the run's method is not in ``compshift.methods.METHODS``.

        Returns
        -------
        TrainedClassifier
            The model, in eval mode.

        Raises
        ------
        InputError
            If the folder holds no finished run, its files are damaged, or a required argument is missing.
        """
        run = RunFolder(check_path(folder))
        for file in (run.about_path, run.model_path, run.backbone_path, *run.backbone_path.glob("*")):
            check_inside(file, run.path)
        if not run.about_path.exists():
            raise InputError(f"{str(folder)!r} holds no run: pass the folder of a training run")
        if not run.model_path.exists():
            raise InputError(f"the run in {str(folder)!r} is not finished: train with the same arguments to resume it")
        about = read_json(run.about_path).get("model")
        version = about.get("version") if isinstance(about, dict) else None
        if not isinstance(about, dict) or version != RUN_VERSION:
            raise InputError(
                f"{str(folder)!r} has run format {version}, but this release reads format {RUN_VERSION}: {RETRAIN}"
            )
        weights = read_tensors(run.model_path)[0]
        n_weights = sum(tensor.numel() for tensor in weights.values())
        try:
            space = GroupSpace(tuple(about["names"]), tuple(tuple(values) for values in about["values"]))
            rows = (np.array(about[name], dtype=np.float64) for name in ("weight", "counts"))
            task = Task(space, np.array(about["seen"], dtype=np.int64), *rows)
            if method is None:
                if about["method"] not in METHODS:
                    raise UnknownMethodError(
                        f"the run was trained by the method {about['method']!r}, which is not registered: pass it as "
                        "method, or add its class to compshift.methods.METHODS"
                    )
                method = make_method(about["method"], about["hyperparameters"])
            if backbone is None:
                backbone = restore_architecture(about["backbone"], run.backbone_path, n_weights)
            check_size(lambda: method.head(backbone.out_features, task), n_weights)
            model = BackboneClassifier(backbone, method.head(backbone.out_features, task))
            prior = None if about.get("prior") is None else np.array(about["prior"], dtype=np.float64)
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
            raise InputError(
                f"the model cannot be rebuilt from {str(run.about_path)!r} ({error}): if the file is damaged, {RETRAIN}"
            ) from None
        load_weights(model, weights, run.model_path)
        found = cls(model.to(chosen_device(device)), method, task, inputs)
        return found if prior is None else found.set_prior(prior)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the model to a folder; ``compshift.load`` reads it.

        Parameters
        ----------
        folder : path
            Folder to create. It must not hold a run or a model.

        Raises
        ------
        InputError
            If the folder holds a run or a model.
        """
        run = RunFolder(check_path(folder))
        check_folder(run.path, "for the model")
        if run.about_path.exists() or any(run.path.glob("*.safetensors")):
            raise InputError(f"{str(folder)!r} holds a run or a model: choose another folder")
        run.path.mkdir(parents=True, exist_ok=True)
        about = describe_model(self.model.backbone, self.method, self.task, run.backbone_path, self.inputs_)
        about["backbone"]["name"] = portable_backbone(about["backbone"]["name"])
        if isinstance(self.head_, CRMClassifier):
            about["prior"] = np.exp(self.head_.log_prior_).tolist()
        run.start({"identity": {}, "model": about}, {})
        write_tensors(run.model_path, self.model.state_dict(), {})

    def __repr__(self) -> str:
        shape = " × ".join(map(str, self.space_.cardinalities))
        names = " × ".join(self.space_.names)
        return f"<TrainedClassifier: {self.method.name}, {self.model.backbone.name}, {names} ({shape})>"

    @property
    def kind(self) -> str:
        """Kind of samples that the model takes: "features", "images" or "text"."""
        return self.model.backbone.kind

    @property
    def space_(self) -> GroupSpace:
        """Names and values of the class and the attributes; the class comes first."""
        return self.task.space

    @property
    def classes_(self) -> Any:
        """Classes, in the order of ``predict_proba``."""
        return np.array(self.space_.values[0])

    def _columns(self) -> list[str] | None:
        """Return the names of the feature columns if the model was trained on a table of numbers, otherwise None."""
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
        """Compute the features of samples, optionally skipping samples that cannot be read.

        Parameters
        ----------
        samples : array, list of paths or list of texts
            Samples of the kind that the model was trained on.
        skip_broken : bool, default=False
            Leave out samples that cannot be read, instead of raising.
        progress : callable, optional
            Called with the number of samples processed since the previous call.
        batch_size : int, default=64
            Number of samples per forward pass.
        num_workers : int, optional
            Number of processes that read images.

        Returns
        -------
        features : array (n, p)
            Inputs of ``head_``: the backbone's features, or the outputs of the head's hidden layers.
        rows : array (n,)
            Positions of the samples that were read.
        broken : list of str
            For every skipped sample, a sentence that says why.

        Raises
        ------
        InputError
            If the samples are of another kind, or one cannot be read.
        """
        samples = readable_samples(samples, self.kind, self._columns())
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
        """Compute the features of samples, the inputs of ``head_``.

        Parameters
        ----------
        samples : array, list of paths or list of texts
            Samples of the kind that the model was trained on.

        Returns
        -------
        array (n, p)
            One row per sample.
        """
        return self.embed(samples)[0]

    def set_prior(self, prior: Any) -> TrainedClassifier:
        """Set the prior over the groups for all later predictions; for CRM only.

        Parameters
        ----------
        prior : str, array or mapping
            As in ``CRMClassifier.set_prior``.

        Returns
        -------
        TrainedClassifier
            The classifier itself.

        Raises
        ------
        InputError
            If the method is not CRM, or the prior cannot be used.
        """
        self._group_head("set one").set_prior(prior)
        return self

    def _group_head(self, purpose: str) -> CRMClassifier:
        """Return the head if it models groups; otherwise raise an InputError that says what it is needed for."""
        if not isinstance(self.head_, CRMClassifier):
            raise InputError(
                f"the method {self.method.name!r} has no prior over groups: train with the method 'crm' to {purpose}"
            )
        return self.head_

    def predict(self, samples: Samples, *, attributes: Any = None) -> Any:
        """Predict the class of each sample.

        Parameters
        ----------
        samples : array, list of paths or list of texts
            Samples of the kind that the model was trained on.
        attributes : array, DataFrame or mapping, optional
            Attributes that are known in use, as in ``CRMClassifier.predict``; for CRM only.

        Returns
        -------
        array (n,)
            Values of the class.
        """
        if attributes is None:
            return self.head_.predict(self.features(samples))
        return self._group_head("use known attributes").predict(self.features(samples), attributes=attributes)

    def predict_proba(self, samples: Samples, *, attributes: Any = None) -> FloatArray:
        """Return the probability of each class for each sample.

        Parameters
        ----------
        samples : array, list of paths or list of texts
            Samples of the kind that the model was trained on.
        attributes : array, DataFrame or mapping, optional
            Attributes that are known in use, as in ``CRMClassifier.predict``; for CRM only.

        Returns
        -------
        array (n, c)
            One column per class, in the order of ``classes_``.
        """
        known = {} if attributes is None else {"attributes": attributes}
        head = self._group_head("use known attributes") if known else self.head_
        return np.asarray(head.predict_proba(self.features(samples), **known))
