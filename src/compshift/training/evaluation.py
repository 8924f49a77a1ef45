"""Evaluation of a model during training: its accuracy on the validation rows, and calls of the method's hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compshift.core.arrays import IntArray
from compshift.core.groups import GroupSpace
from compshift.data.dataset import GroupedDataset
from compshift.distributed import Collective
from compshift.methods.base import Method, Predictor, Task, TrainingRows
from compshift.metrics import GroupReport, group_report
from compshift.nn.networks import BackboneClassifier
from compshift.nn.tensors import evaluation_mode
from compshift.training.batches import Reader, Sampler, TrainingData
from compshift.training.settings import Settings

REFRESH_STREAM = 3
"""Number of the random stream that draws the rows for ``refresh``. The module ``batches`` defines the other streams."""


@dataclass(frozen=True, eq=False)
class Inspection:
    """Evaluates a model and calls its method's hooks in eval mode, then restores the mode of every module."""

    model: BackboneClassifier
    method: Method
    task: Task
    data: TrainingData
    sampler: Sampler
    reader: Reader
    processes: Collective
    autocast: Callable[[], AbstractContextManager[Any]]  # context of a forward pass in reduced precision
    settings: Settings
    pool: Reader | None = None  # reads the unlabelled samples, if the run has any

    def refresh(self) -> None:
        """Call the method's ``refresh`` with a fixed subset of the training rows."""
        with evaluation_mode(self.model), torch.no_grad():
            self.method.refresh(self.model, self.training_rows(self.settings.refresh_rows))

    def finish(self) -> dict[str, Any]:
        """Call the method's ``finish`` with all training rows and the pool, and return the values it reports."""
        with evaluation_mode(self.model), torch.no_grad():
            pool = None if self.pool is None else self._pool_inputs
            return self.method.finish(self.model, replace(self.training_rows(None), pool=pool))

    def _pool_inputs(self) -> Iterator[dict[str, Tensor]]:
        """Yield the inputs of this process's share of the unlabelled samples, batch by batch."""
        assert self.pool is not None
        rows = np.arange(len(self.pool.samples))
        for _, inputs in self.pool.in_order(rows[self.processes.share(len(rows))], self.settings.batch_size):
            with self.autocast():
                yield inputs

    def validate(self, *, selecting: bool) -> dict[str, GroupReport]:
        """Return the accuracy of all predictors on the validation rows, or only of the one that selects checkpoints."""
        rows, data = self.data.validation, self.data.data
        prior = data.space.frequencies(data.codes[rows]) if self.method.uses_prior and not selecting else None
        with evaluation_mode(self.model):
            predictors = self.method.predictors(self.model, prior)
            if selecting:
                wanted = self.settings.predictor if self.settings.predictor in predictors else next(iter(predictors))
                predictors = {wanted: predictors[wanted]}
            predicted = predict_classes(
                self.model,
                predictors,
                self.reader,
                rows,
                batch_size=self.settings.batch_size,
                processes=self.processes,
                autocast=self.autocast,
            )
        return {name: report_of(data, rows, found) for name, found in predicted.items()}

    def training_rows(self, limit: int | None) -> TrainingRows:
        """Return this process's share of the rows that batches are drawn from, or of ``limit`` fixed ones of them."""
        rows = np.arange(len(self.sampler.rows))
        if limit is not None and limit < len(rows):
            rng = np.random.default_rng([self.settings.seed, REFRESH_STREAM])
            rows = np.sort(rng.choice(len(rows), size=limit, replace=False))
        weight = np.ones(len(self.sampler.rows)) if self.sampler.row_weight is None else self.sampler.row_weight
        weight = weight / weight.mean()
        share = rows[self.processes.share(len(rows))]
        train_rows = self.sampler.rows[share]  # positions among the training rows
        position = {int(row): i for i, row in enumerate(self.data.train[train_rows])}

        def batches() -> Iterator[tuple[dict[str, Tensor], Tensor, Tensor]]:
            for read, inputs in self.reader.in_order(self.data.train[train_rows], self.settings.batch_size):
                where = [position[int(row)] for row in read]
                group = torch.as_tensor(self.data.group[train_rows[where]], device=self.reader.device)
                with self.autocast():
                    yield inputs, group, torch.as_tensor(weight[share[where]])

        return TrainingRows(batches, self.task, self.processes, self.settings.seed)


@torch.no_grad()
def predict_classes(
    model: BackboneClassifier,
    predictors: Mapping[str, Predictor],
    reader: Reader,
    rows: IntArray,
    *,
    batch_size: int,
    processes: Collective,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> dict[str, IntArray]:
    """Return the class (v,) that each predictor gives to each row; processes share the work, all get the result."""
    share = rows[processes.share(len(rows))]
    order: list[IntArray] = []
    found: dict[str, list[IntArray]] = {name: [] for name in predictors}
    for read, inputs in reader.in_order(share, batch_size):
        with autocast():
            features = model.features(inputs).float()
        order.append(read)
        for name, predictor in predictors.items():
            found[name].append(predictor(features).argmax(dim=1).cpu().numpy())
    gathered = processes.gather((order, found))
    read_rows = np.concatenate([np.concatenate([*part, rows[:0]]) for part, _ in gathered])
    position = np.argsort(read_rows, kind="stable")
    back = np.searchsorted(read_rows[position], rows)  # from ascending rows to the order of ``rows``
    return {
        name: np.concatenate([np.concatenate([*part[name], rows[:0]]) for _, part in gathered])[position][back]
        for name in predictors
    }


def report_of(data: GroupedDataset, rows: IntArray, predicted: IntArray) -> GroupReport:
    """Return the accuracy of predicted classes (v,) by group; the class must be the data set's first attribute."""
    target = GroupSpace(data.space.names[:1], data.space.values[:1])
    true = data.space.frame(data.codes[rows])
    nuisances = true.drop(columns=target.names[0])
    return group_report(
        true[[target.names[0]]],
        target.frame(predicted[:, None]),
        nuisances if nuisances.shape[1] else None,
        space=data.space,
    )
