"""Optimisers, and which parameters they let decay."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from compshift.training.settings import Settings


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Weight matrices and kernels decay; biases, scales of normalisation layers and biases of groups do not."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [parameter for parameter in trained if parameter.ndim > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in trained if parameter.ndim <= 1], "weight_decay": 0.0},
    ]


def make_optimiser(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """Stochastic gradients with momentum, or AdamW."""
    groups = [group for group in parameter_groups(model, settings.weight_decay) if group["params"]]
    rate = settings.rate(0)
    if settings.optimiser == "sgd":
        return torch.optim.SGD(groups, lr=rate, momentum=settings.momentum)
    return torch.optim.AdamW(groups, lr=rate)


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Use another learning rate from now on."""
    for group in optimiser.param_groups:
        group["lr"] = rate


@torch.no_grad()
def largest_gradient(optimiser: torch.optim.Optimizer) -> float:
    """Largest entry of the gradient of the loss with its quadratic penalty, which decaying weights stand for."""
    entries = [
        (parameter.grad + group["weight_decay"] * parameter).abs().max()
        for group in optimiser.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]
    return float(torch.stack(entries).max()) if entries else 0.0


def forget_moments(optimiser: torch.optim.Optimizer) -> None:
    """Start afresh, as if no step had been made."""
    optimiser.state.clear()
