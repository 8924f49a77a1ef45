"""Optimiser, device and random numbers of a training run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import distributed, nn

from compshift._errors import InputError, check_name
from compshift.training.settings import Settings

if TYPE_CHECKING:
    from accelerate import Accelerator

DEVICES = ("auto", "cpu", "cuda")
MIXED_PRECISION = {"float32": "no", "bfloat16": "bf16", "float16": "fp16"}
"""Precision → its name in accelerate."""


def make_accelerator(device: str, precision: str, *, find_unused: bool) -> Accelerator:
    """Set up device, precision and the processes that torchrun started, by accelerate.

    ``find_unused`` allows networks with parameters that the loss does not depend on, such as an unused pooler.
    """
    from accelerate import Accelerator, DistributedDataParallelKwargs
    from accelerate.state import AcceleratorState

    check_name("device", device, DEVICES)
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("the device 'cuda' cannot be used, as PyTorch finds none: pass cpu")
    if precision == "auto":
        cuda = device != "cpu" and torch.cuda.is_available()
        able = cuda and torch.cuda.is_bf16_supported(including_emulation=False)
        precision = "bfloat16" if able else "float32"
    alone = not (distributed.is_available() and distributed.is_initialized())
    AcceleratorState._reset_state(reset_partial_state=alone)  # an earlier run in this process may have had others
    options = DistributedDataParallelKwargs(find_unused_parameters=find_unused)
    # Without cpu=True accelerate would start no process group where there is no accelerator.
    on_cpu = device == "cpu" or not torch.accelerator.is_available()
    accelerator = Accelerator(cpu=on_cpu, mixed_precision=MIXED_PRECISION[precision], kwargs_handlers=[options])
    wanted = int(os.environ.get("WORLD_SIZE", "1"))
    if accelerator.num_processes != wanted:
        raise InputError(
            f"torchrun started {wanted} processes, but {accelerator.num_processes} joined: start them again"
        )
    return accelerator


def step_seed(seed: int, step: int, rank: int) -> int:
    """Seed of one process in one step; it depends on nothing else, so that a resumed run draws the same numbers."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0])


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed the generators that dropout uses. (torch.manual_seed would queue every call for absent devices.)"""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


@contextmanager
def own_randomness(device: torch.device) -> Iterator[None]:
    """Restore torch's global generators, which dropout uses, afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups with weight decay on weight matrices and kernels only, not on biases or normalisation."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [parameter for parameter in trained if parameter.ndim > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in trained if parameter.ndim <= 1], "weight_decay": 0.0},
    ]


def make_optimiser(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """Stochastic gradient descent with momentum, or AdamW."""
    groups = [group for group in parameter_groups(model, settings.weight_decay) if group["params"]]
    rate = settings.rate(0)
    if settings.optimiser == "sgd":
        return torch.optim.SGD(groups, lr=rate, momentum=settings.momentum)
    return torch.optim.AdamW(groups, lr=rate)


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all parameter groups."""
    for group in optimiser.param_groups:
        group["lr"] = rate


@torch.no_grad()
def largest_gradient(optimiser: torch.optim.Optimizer) -> float:
    """Largest absolute entry of the gradient, including that of the quadratic penalty that weight decay stands for."""
    entries = [
        (parameter.grad + group["weight_decay"] * parameter).abs().max()
        for group in optimiser.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]
    return float(torch.stack(entries).max()) if entries else 0.0


def forget_moments(optimiser: torch.optim.Optimizer) -> None:
    """Clear the optimiser's moments, as if no step had been made."""
    optimiser.state.clear()
