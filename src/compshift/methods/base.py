"""Base class of training methods, and the objects that the training loop passes to a method.

``Task`` describes classes, attributes and training groups; ``Batch`` is one process's share of a step's batch;
``TrainingRows`` are the training rows passed to ``refresh`` and ``finish``; ``LogUniform`` is the distribution from
which benchmarks draw a hyper-parameter. The defaults of ``Method`` are those of empirical risk minimisation.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from compshift._checks import check_codes
from compshift._errors import InputError
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.groups import GroupSpace
from compshift.distributed import ALONE, Collective
from compshift.methods.sampling import LogUniform as LogUniform
from compshift.methods.sampling import Sampling as Sampling
from compshift.nn.networks import BackboneClassifier, class_head


@dataclass(frozen=True, eq=False)
class Task:
    """Classes, attributes and training groups, with the size of each group.

    Methods that use a single attribute treat every combination of attribute values in the training data as one value
    of that attribute; see ``attribute_of``.

    Parameters
    ----------
    space : GroupSpace
        Names and values of the class and the attributes; the class comes first.
    seen : array (k, m)
        Codes of the training groups, in ascending order.
    weight : array (k,)
        Expected frequency of each training group in batches, scaled to add up to the number of training rows.
    counts : array (k,)
        Number of rows of each training group in the data set.
    """

    space: GroupSpace
    seen: IntArray
    weight: FloatArray
    counts: FloatArray

    def __post_init__(self) -> None:
        check_codes(self.seen, self.space.cardinalities, "seen")
        if not self.weight.shape == self.counts.shape == (len(self.seen),):
            raise InputError(
                f"seen has {len(self.seen)} groups, but weight has shape {self.weight.shape} and counts has shape "
                f"{self.counts.shape}: pass one weight and one count per group"
            )
        present = np.unique(self.seen[:, 0])
        if len(present) < self.n_classes:
            absent = next(code for code in range(self.n_classes) if code not in present)
            raise InputError(
                f"{self.space.names[0]} {self.space.values[0][absent]!r} has no training rows, so it cannot be "
                "learnt: add training rows of this class, or remove the class from the data"
            )
        if self.n_classes < 2:
            raise InputError(
                f"{self.space.names[0]} has only one value, so there is nothing to classify: pass data with two "
                "or more classes"
            )

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return self.space.cardinalities[0]

    @property
    def n_groups(self) -> int:
        """Number of training groups, k."""
        return len(self.seen)

    @property
    def class_of(self) -> IntArray:
        """Class of each training group, (k,)."""
        return self.seen[:, 0]

    @cached_property
    def attribute_of(self) -> IntArray:
        """Index of each training group's attribute combination, (k,), from 0; all 0 if there are no attributes."""
        if self.seen.shape[1] == 1:
            return np.zeros(self.n_groups, dtype=np.int64)
        names, values = self.space.names[1:], self.space.values[1:]
        return GroupSpace(names, values).distinct(self.seen[:, 1:])[1]

    @property
    def n_attributes(self) -> int:
        """Number of attribute combinations in the training data."""
        return int(self.attribute_of.max()) + 1

    def class_by_attribute(self) -> FloatArray:
        """Return ``weight`` as a table by class and attribute combination, (c, a), with 0 for unseen groups."""
        table = np.zeros((self.n_classes, self.n_attributes))
        table[self.class_of, self.attribute_of] = self.weight
        return table


@dataclass(frozen=True, eq=False)
class Batch:
    """One process's share of a step's batch."""

    inputs: dict[str, Tensor]  # samples, in the form that ``model(batch.inputs)`` takes
    group: Tensor  # (b,) position of each row's group in ``task.seen``
    task: Task
    rng: np.random.Generator  # random generator of this step and process
    processes: Collective = ALONE  # processes that share the batch

    @property
    def codes(self) -> Tensor:
        """Codes of each row's group, (b, m)."""
        return self._per_row(self.task.seen)

    @property
    def classes(self) -> Tensor:
        """Class of each row, (b,)."""
        return self._per_row(self.task.class_of)

    @property
    def attributes(self) -> Tensor:
        """Attribute combination of each row, (b,)."""
        return self._per_row(self.task.attribute_of)

    def mean(self, values: Tensor) -> Tensor:
        """Mean over the rows of all processes; each process passes the ``values`` (b,) of its rows."""
        return self.mean_of(values.sum())

    def mean_of(self, total: Tensor) -> Tensor:
        """Mean over the rows of all processes; each process passes the sum ``total`` over its rows."""
        if self.processes.size == 1:  # avoids two small tensors, which take a noticeable part of a short step
            return total / len(self.group)
        sum_and_count = self.processes.sum(torch.stack([total, total.new_tensor(float(len(self.group)))]))
        mean: Tensor = sum_and_count[0] / sum_and_count[1]
        return mean

    def means_by(self, values: Tensor, index: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Mean (size,) of the ``values`` of the rows with each index, and their number (size,), over all processes.

        Each process passes ``values`` (b,) and ``index`` (b,) of its rows; indices are below ``size``. The mean of an
        index without rows is 0.
        """
        sums = values.new_zeros(2, size)
        sums = sums.index_add(1, index, torch.stack([values, torch.ones_like(values)]))
        total, count = self.processes.sum(sums)
        return total / count.clamp_min(1), count.detach()

    def rank_within(self, index: Tensor, size: int) -> Tensor:
        """For each row of this process, (b,), the number of earlier rows of the whole batch with the same index.

        ``index`` (b,) has the index of each row of this process, below ``size``. The whole batch is ordered by process.
        """
        one_hot = torch.nn.functional.one_hot(index, size)  # (b, size)
        before = (one_hot.cumsum(dim=0) - one_hot).gather(1, index[:, None])[:, 0]
        counts = self.processes.gather(one_hot.sum(dim=0).cpu().numpy())
        earlier = sum(counts[: self.processes.rank], start=np.zeros(size, dtype=np.int64))
        return before + torch.as_tensor(earlier, device=index.device)[index]

    def _per_row(self, values: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Tensor:
        return torch.as_tensor(values, device=self.group.device)[self.group]


State = dict[str, Tensor]
"""Tensors that a method carries from one step to the next, by name."""

Predictor = Callable[[Tensor], Tensor]
"""Function from features (b, p) to log-probabilities of the classes (b, c)."""


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """Training rows passed to the hooks ``refresh`` and ``finish``: this process's share, batch by batch."""

    batches: Callable[[], Iterator[tuple[dict[str, Tensor], Tensor, Tensor]]]  # yields inputs, group (b,), weight (b,)
    task: Task
    processes: Collective  # processes that share the rows
    seed: int  # seed of the run
    pool: Callable[[], Iterator[dict[str, Tensor]]] | None = None  # inputs of unlabelled samples, if the run has any

    @torch.no_grad()
    def pool_features(self, model: BackboneClassifier) -> FloatArray | None:
        """Features (N, p) of the unlabelled samples of all processes; None if the run has none."""
        if self.pool is None:
            return None
        parts = [model.features(inputs).float().cpu().double().numpy() for inputs in self.pool()]
        gathered = self.processes.gather(np.concatenate(parts) if parts else None)
        return np.concatenate([part for part in gathered if part is not None])

    @torch.no_grad()
    def features(self, model: BackboneClassifier) -> tuple[FloatArray, IntArray, FloatArray]:
        """Features (n, p), group (n,) and weight (n,) of the rows of all processes."""
        parts = [
            (model.features(inputs).float().cpu().double().numpy(), group.cpu().numpy(), weight.cpu().numpy())
            for inputs, group, weight in self.batches()
        ]
        share = tuple(np.concatenate(column) for column in zip(*parts, strict=True)) if parts else None
        gathered = [part for part in self.processes.gather(share) if part is not None]
        X, group, weight = (np.concatenate(column) for column in zip(*gathered, strict=True))
        return X, group, weight


class Method(ABC):
    """Base class of training methods: stateless objects whose fields are their hyper-parameters.

    To define a method, write a frozen dataclass with a ``name`` and a ``loss``. ``model(batch.inputs)`` returns the
    head's outputs and ``model.features(batch.inputs)`` the backbone's features. A ``Batch`` has ``classes``,
    ``attributes``, ``group`` and ``codes`` of its rows; its methods ``mean`` and ``means_by`` average over the rows of
    all processes.

    Pass the object to ``train``. To load the trained model later, add the class to ``compshift.methods.METHODS``, or
    pass the object as ``method`` to ``TrainedClassifier.load``.

    Attributes
    ----------
    name : str
        Name of the method.
    summary : str
        Description of the method in a few words.
    uses_prior : bool
        Whether ``predictors`` uses its argument ``prior``. Default: False.
    uses_unlabelled : bool
        Whether ``finish`` uses unlabelled samples. Default: False.
    ranges : mapping of str to LogUniform
        Distribution from which benchmarks draw each hyper-parameter.
    later : tuple of str
        Hyper-parameters that older run folders of format 1 lack. ``identity`` leaves them out at their defaults, so
        that these runs can still be resumed.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from torch.nn.functional import cross_entropy
    >>> @dataclass(frozen=True)
    ... class Smooth(Method):
    ...     smoothing: float = 0.1
    ...     name = "smooth"
    ...
    ...     def loss(self, model, batch, state, step):
    ...         logits = model(batch.inputs)
    ...         rows = cross_entropy(logits, batch.classes, label_smoothing=self.smoothing, reduction="none")
    ...         return batch.mean(rows), state
    >>> Smooth(0.2).hyperparameters()
    {'smoothing': 0.2}
    """

    name: ClassVar[str]
    summary: ClassVar[str] = ""
    uses_prior: ClassVar[bool] = False
    uses_unlabelled: ClassVar[bool] = False
    ranges: ClassVar[Mapping[str, LogUniform]] = {}
    later: ClassVar[tuple[str, ...]] = ()

    def hyperparameters(self) -> dict[str, Any]:
        """Names and values of the hyper-parameters.

        Returns
        -------
        dict
            The fields of the dataclass.
        """
        return dataclasses.asdict(self) if dataclasses.is_dataclass(self) and not isinstance(self, type) else {}

    def identity(self) -> dict[str, Any]:
        """Return the hyper-parameters that identify a run.

        Returns
        -------
        dict
            All hyper-parameters, without those in ``later`` that have their default.
        """
        defaults = {field.name: field.default for field in dataclasses.fields(self)} if self.later else {}  # type: ignore[arg-type]
        return {
            name: value
            for name, value in self.hyperparameters().items()
            if name not in self.later or value != defaults[name]
        }

    def head(self, in_features: int, task: Task) -> nn.Module:
        """Make the head.

        Parameters
        ----------
        in_features : int
            Number of features of the backbone.
        task : Task
            Classes, attributes and training groups.

        Returns
        -------
        torch.nn.Module
            By default a linear layer with one output per class.
        """
        return class_head(in_features, task.n_classes)

    def sampling(self, counts: FloatArray) -> Sampling:
        """Choose how training rows are drawn.

        Parameters
        ----------
        counts : array (k,)
            Number of rows of each training group.

        Returns
        -------
        Sampling
            By default every row is equally likely.
        """
        return Sampling()

    def announce(self, task: Task) -> None:  # noqa: B027 - a hook
        """Warn if the data do not suit the method; called when a run starts or resumes.

        Parameters
        ----------
        task : Task
            Classes, attributes and training groups.
        """

    def state(self, task: Task) -> State:
        """Make the method's initial state, which ``loss`` receives and returns in every step.

        Parameters
        ----------
        task : Task
            Classes, attributes and training groups.

        Returns
        -------
        dict of str to tensor
            The state before the first step; by default empty.
        """
        return {}

    @abstractmethod
    def loss(self, model: BackboneClassifier, batch: Batch, state: State, step: int) -> tuple[Tensor, State]:
        """Compute the loss of a batch.

        Parameters
        ----------
        model : BackboneClassifier
            The model in training.
        batch : Batch
            This process's share of the batch.
        state : dict of str to tensor
            The method's state before the step.
        step : int
            Number of the step, from 0.

        Returns
        -------
        loss : tensor
            The scalar loss; the same number on every process.
        state : dict of str to tensor
            The state after the step.
        """

    def settles_at(self) -> int:
        """Return the step after which the loss function no longer changes, for example because a penalty has set in.

        Training does not count as converged before this step.

        Returns
        -------
        int
            Number of the step; by default 0.
        """
        return 0

    def resets_optimiser(self, step: int) -> bool:
        """Return whether to clear the optimiser's moments before a step.

        Parameters
        ----------
        step : int
            Number of the step, from 0.

        Returns
        -------
        bool
            By default False.
        """
        return False

    def refresh(self, model: BackboneClassifier, rows: TrainingRows) -> None:  # noqa: B027 - a hook
        """Prepare the model for an evaluation; called in eval mode.

        Parameters
        ----------
        model : BackboneClassifier
            The model in training.
        rows : TrainingRows
            A fixed subset of the training rows.
        """

    def finish(self, model: BackboneClassifier, rows: TrainingRows) -> dict[str, Any]:
        """Complete the model after the last step; called in eval mode with the best weights.

        Parameters
        ----------
        model : BackboneClassifier
            The trained model.
        rows : TrainingRows
            All training rows.

        Returns
        -------
        dict
            Values to report in the run's result.
        """
        self.refresh(model, rows)
        return {}

    def predictors(self, model: BackboneClassifier, prior: Any = None) -> dict[str, Predictor]:
        """Return the predictors by name. The first one is reported, and selects checkpoints by default.

        Parameters
        ----------
        model : BackboneClassifier
            The model.
        prior : array, optional
            Frequencies of the groups among the evaluated rows, for predictors that use them.

        Returns
        -------
        dict of str to callable
            Functions from features (b, p) to log-probabilities of the classes (b, c).
        """
        return {"default": lambda features: model.head(features).float().log_softmax(dim=1)}
