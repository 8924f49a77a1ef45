"""Mixup of penultimate features (Zhang et al., 2017)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from compshift._checks import check_positive
from compshift.methods.base import Batch, Method, State
from compshift.methods.sampling import LogUniform
from compshift.nn.networks import BackboneClassifier


@dataclass(frozen=True)
class Mixup(Method):
    """Mixup: average the features of two random rows, and the losses of their classes, with weight λ ~ Beta(α, α)."""

    alpha: float = 0.2

    ranges: ClassVar[Mapping[str, LogUniform]] = {"alpha": LogUniform(-1, 1)}

    name = "mixup"
    summary = "mixed features and losses of pairs of rows"

    def __post_init__(self) -> None:
        check_positive(self.alpha, "alpha")

    def loss(self, model: BackboneClassifier, batch: Batch, state: State, step: int) -> tuple[Tensor, State]:
        """Mean mixed cross-entropy over pairs of rows; both rows of a pair are from this process's share."""
        features = model.features(batch.inputs)
        mixing = float(batch.rng.beta(self.alpha, self.alpha))  # λ
        partner = torch.as_tensor(batch.rng.permutation(len(features)), device=features.device)
        logits = model.head(torch.lerp(features[partner], features, mixing)).float()
        first = cross_entropy(logits, batch.classes, reduction="none")
        second = cross_entropy(logits, batch.classes[partner], reduction="none")
        return batch.mean(mixing * first + (1 - mixing) * second), state
