"""What is to be learnt: a class, in groups of class and attributes, some of which training has.

A batch as a method sees it, and averages over the whole of it, wherever its parts are.

What a training method decides. The defaults are those of empirical risk minimisation.
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
    """Groups that training has, and how often batches show each.

    Several attributes count as one for methods that know of one: each combination that training has is a value.
    """

    space: GroupSpace  # the class first, then attributes
    seen: IntArray  # (k, m) in order of their codes
    weight: FloatArray  # (k,) rows of each seen group, as the sampler draws them; they add up to the rows of training
    counts: FloatArray  # (k,) rows of each seen group as they are

    def __post_init__(self) -> None:
        check_codes(self.seen, self.space.cardinalities, "seen")
        if not self.weight.shape == self.counts.shape == (len(self.seen),):
            raise InputError(f"there are {len(self.seen)} groups, and weights or counts of another number")
        present = np.unique(self.seen[:, 0])
        if len(present) < self.n_classes:
            absent = next(code for code in range(self.n_classes) if code not in present)
            raise InputError(
                f"{self.space.names[0]} {self.space.values[0][absent]!r} has no training rows: nothing can be learnt "
                "of it; add rows, or leave it out of the data"
            )
        if self.n_classes < 2:
            raise InputError(f"{self.space.names[0]} has one value only: there is nothing to classify")

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return self.space.cardinalities[0]

    @property
    def n_groups(self) -> int:
        """Number of groups that training has."""
        return len(self.seen)

    @property
    def class_of(self) -> IntArray:
        """Class of each seen group, (k,)."""
        return self.seen[:, 0]

    @cached_property
    def attribute_of(self) -> IntArray:
        """Which of the attribute combinations that occur each seen group has, (k,); 0 if there are no attributes."""
        if self.seen.shape[1] == 1:
            return np.zeros(self.n_groups, dtype=np.int64)
        names, values = self.space.names[1:], self.space.values[1:]
        return GroupSpace(names, values).distinct(self.seen[:, 1:])[1]

    @property
    def n_attributes(self) -> int:
        """Number of attribute combinations that occur."""
        return int(self.attribute_of.max()) + 1

    def class_by_attribute(self) -> FloatArray:
        """Rows of each class and attribute combination, (c, a); 0 where training has none."""
        table = np.zeros((self.n_classes, self.n_attributes))
        table[self.class_of, self.attribute_of] = self.weight
        return table


@dataclass(frozen=True, eq=False)
class Batch:
    """The part of a step's batch that falls to one process."""

    inputs: dict[str, Tensor]
    group: Tensor  # (b,) position of each row's group among the seen ones
    task: Task
    rng: np.random.Generator  # of this step and process
    processes: Collective = ALONE

    @property
    def codes(self) -> Tensor:
        """Codes (b, m) of each row."""
        return self._of_group(self.task.seen)

    @property
    def classes(self) -> Tensor:
        """Class of each row, (b,)."""
        return self._of_group(self.task.class_of)

    @property
    def attributes(self) -> Tensor:
        """Attribute combination of each row, (b,)."""
        return self._of_group(self.task.attribute_of)

    def mean(self, values: Tensor) -> Tensor:
        """Mean of one value per row, over the rows of all processes."""
        return self.mean_of(values.sum())

    def mean_of(self, total: Tensor) -> Tensor:
        """Mean over the rows of all processes, from the sum over this one's."""
        if self.processes.size == 1:  # a short step notices two more tensors
            return total / len(self.group)
        both = self.processes.sum(torch.stack([total, total.new_tensor(float(len(self.group)))]))
        mean: Tensor = both[0] / both[1]
        return mean

    def means_by(self, values: Tensor, index: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Mean of the values of each index from 0 to ``size``, over all processes, and the number of its rows.

        An index without rows has mean 0.
        """
        sums = values.new_zeros(2, size)
        sums = sums.index_add(1, index, torch.stack([values, torch.ones_like(values)]))
        total, count = self.processes.sum(sums)
        return total / count.clamp_min(1), count.detach()

    def rank_within(self, index: Tensor, size: int) -> Tensor:
        """How many earlier rows of the whole batch have the same index, (b,); earlier processes come first."""
        one_hot = torch.nn.functional.one_hot(index, size)  # (b, size)
        before = (one_hot.cumsum(dim=0) - one_hot).gather(1, index[:, None])[:, 0]
        counts = self.processes.gather(one_hot.sum(dim=0).cpu().numpy())
        earlier = sum(counts[: self.processes.rank], start=np.zeros(size, dtype=np.int64))
        return before + torch.as_tensor(earlier, device=index.device)[index]

    def _of_group(self, values: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Tensor:
        return torch.as_tensor(values, device=self.group.device)[self.group]


State = dict[str, Tensor]
Predictor = Callable[[Tensor], Tensor]
"""Features (b, p) → log-probabilities of classes (b, c)."""


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
