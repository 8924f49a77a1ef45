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
    """Mixup: features of pairs of rows and the losses of both classes, mixed in the proportion λ ~ Beta(α, α)."""

    alpha: float = 0.2

    ranges: ClassVar[Mapping[str, LogUniform]] = {"alpha": LogUniform(-1, 1)}

    name = "mixup"
    summary = "features and losses of pairs of rows mixed"

    def __post_init__(self) -> None:
        check_positive(self.alpha, "alpha")

    def loss(self, model: BackboneClassifier, batch: Batch, state: State, step: int) -> tuple[Tensor, State]:
        """Mean over pairs of rows, which are formed within a process."""
        features = model.features(batch.inputs)
        share = float(batch.rng.beta(self.alpha, self.alpha))
        other = torch.as_tensor(batch.rng.permutation(len(features)), device=features.device)
        logits = model.head(torch.lerp(features[other], features, share)).float()
        own = cross_entropy(logits, batch.classes, reduction="none")
        others = cross_entropy(logits, batch.classes[other], reduction="none")
        return batch.mean(share * own + (1 - share) * others), state
