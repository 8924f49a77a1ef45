"""What a training method decides. The defaults are those of empirical risk minimisation."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from compshift.core.arrays import FloatArray, IntArray
from compshift.distributed.collective import Collective
from compshift.methods.batch import Batch
from compshift.methods.ranges import LogUniform
from compshift.methods.task import Task
from compshift.nn.classifier import BackboneClassifier, class_head

State = dict[str, Tensor]
Predictor = Callable[[Tensor], Tensor]
"""Features (b, p) → log-probabilities of classes (b, c)."""


@dataclass(frozen=True)
class Sampling:
    """How often a row of each seen group is drawn, relative to others, and how many of its rows are used."""

    weight: FloatArray | None = None  # (k,) per row; None: all alike
    limit: int | None = None  # rows of a group


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """The training rows in order, for what follows the steps: this process's share of them, batch by batch."""

    batches: Callable[[], Iterator[tuple[dict[str, Tensor], Tensor, Tensor]]]  # inputs, group (b,), weight (b,)
    task: Task
    processes: Collective
    seed: int

    @torch.no_grad()
    def features(self, model: BackboneClassifier) -> tuple[FloatArray, IntArray, FloatArray]:
        """Features (n, p), group (n,) and weight (n,) of all training rows, on every process."""
        parts = [
            (model.features(inputs).float().cpu().double().numpy(), group.cpu().numpy(), weight.cpu().numpy())
            for inputs, group, weight in self.batches()
        ]
        mine = tuple(np.concatenate(column) for column in zip(*parts, strict=True)) if parts else None
        gathered = [part for part in self.processes.gather(mine) if part is not None]
        X, group, weight = (np.concatenate(column) for column in zip(*gathered, strict=True))
        return X, group, weight


class Method(ABC):
    """A training method: a small object of pure functions, whose fields are its hyper-parameters.

    A method of one's own is a frozen dataclass with a name and a loss. ``model(batch.inputs)`` are the head's outputs,
    ``model.features(batch.inputs)`` the backbone's; a ``Batch`` has ``classes``, ``attributes``, ``group`` and
    ``codes`` of its rows, and ``mean`` and ``means_by``, which average over the rows of all processes.

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

    ``train`` takes it as it is; to load what it trained, name it in ``compshift.methods.METHODS`` or pass ``method=``.
    """

    name: ClassVar[str]
    summary: ClassVar[str] = ""
    uses_prior: ClassVar[bool] = False  # whether some predictor uses the frequencies of groups
    ranges: ClassVar[Mapping[str, LogUniform]] = {}  # from where benchmarks draw its hyper-parameters

    def hyperparameters(self) -> dict[str, Any]:
        """Names and values of the fields."""
        return dataclasses.asdict(self) if dataclasses.is_dataclass(self) and not isinstance(self, type) else {}

    def head(self, in_features: int, task: Task) -> nn.Module:
        """The head on top of the backbone."""
        return class_head(in_features, task.n_classes)

    def sampling(self, counts: FloatArray) -> Sampling:
        """How rows are drawn, from the number of rows of each seen group, (k,)."""
        return Sampling()

    def announce(self, task: Task) -> None:  # noqa: B027 - a hook
        """Called before the first step, to warn of what the data do not allow."""

    def state(self, task: Task) -> State:
        """What the method carries from step to step, before the first."""
        return {}

    @abstractmethod
    def loss(self, model: BackboneClassifier, batch: Batch, state: State, step: int) -> tuple[Tensor, State]:
        """The loss of a batch, the same number on every process, and the state after it."""

    def settles_at(self) -> int:
        """The step from which on the loss stays the same function of the model."""
        return 0

    def resets_optimiser(self, step: int) -> bool:
        """Whether the optimiser forgets its moments before this step."""
        return False

    def refresh(self, model: BackboneClassifier, rows: TrainingRows) -> None:  # noqa: B027 - a hook
        """Called before an evaluation, in eval mode, with a fixed part of the training rows."""

    def finish(self, model: BackboneClassifier, rows: TrainingRows) -> dict[str, Any]:
        """Called once after the last step, with the best weights and all training rows; what is worth reporting."""
        self.refresh(model, rows)
        return {}

    def predictors(self, model: BackboneClassifier, prior: Any = None) -> dict[str, Predictor]:
        """Predictors by name. The first is the one that is selected and reported.

        ``prior`` are the frequencies of the groups of the rows in question, for predictors that use them.
        """
        return {"default": lambda features: model.head(features).float().log_softmax(dim=1)}
