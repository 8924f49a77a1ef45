"""Predictions of the model that is being trained, and how good they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from compshift.core.arrays import IntArray
from compshift.core.groups import GroupSpace
from compshift.data.dataset import GroupedDataset
from compshift.distributed.collective import Collective
from compshift.methods.method import Predictor
from compshift.metrics import GroupReport, group_report
from compshift.nn.classifier import BackboneClassifier
from compshift.training.reading import Reader


@torch.no_grad()
def predict_classes(
    model: BackboneClassifier,
    predictors: Mapping[str, Predictor],
    reader: Reader,
    rows: IntArray,
    *,
    batch_size: int,
    processes: Collective,
    autocast: Callable[[], Any],
) -> dict[str, IntArray]:
    """Class (v,) that each predictor gives to each of the rows; processes share the work and all get the result."""
    mine = rows[processes.share(len(rows))]
    order: list[IntArray] = []
    found: dict[str, list[IntArray]] = {name: [] for name in predictors}
    for read, inputs in reader.in_order(mine, batch_size):
        with autocast():
            features = model.features(inputs).float()
        order.append(read)
        for name, predictor in predictors.items():
            found[name].append(predictor(features).argmax(dim=1).cpu().numpy())
    gathered = processes.gather((order, found))
    everywhere = np.concatenate([np.concatenate([*part, rows[:0]]) for part, _ in gathered])
    position = np.argsort(everywhere, kind="stable")
    back = np.searchsorted(everywhere[position], rows)
    return {
        name: np.concatenate([np.concatenate([*part[name], rows[:0]]) for _, part in gathered])[position][back]
        for name in predictors
    }


def report_of(data: GroupedDataset, rows: IntArray, predicted: IntArray) -> GroupReport:
    """Accuracy by group of predicted classes (v,), for a data set with the class first."""
    target = GroupSpace(data.space.names[:1], data.space.values[:1])
    true = data.space.frame(data.codes[rows])
    nuisances = true.drop(columns=target.names[0])
    return group_report(
        true[[target.names[0]]],
        target.frame(predicted[:, None]),
        nuisances if nuisances.shape[1] else None,
        space=data.space,
    )
