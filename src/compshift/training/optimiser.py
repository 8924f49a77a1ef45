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


def make_accelerator(device: str, precision: str, *, find_unused: bool) -> Accelerator:
    """Set up device, precision and, under torchrun, the process group, using accelerate.

    ``find_unused`` allows networks with parameters that the loss does not depend on, such as an unused pooler.
    """
    from accelerate import Accelerator, DistributedDataParallelKwargs
    from accelerate.state import AcceleratorState

    check_name("device", device, ("auto", "cpu", "cuda"))
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("device is 'cuda', but PyTorch finds no CUDA device: pass 'cpu' or 'auto'")
    if precision == "auto":
        cuda = device != "cpu" and torch.cuda.is_available()
        has_bfloat16 = cuda and torch.cuda.is_bf16_supported(including_emulation=False)
        precision = "bfloat16" if has_bfloat16 else "float32"
    alone = not (distributed.is_available() and distributed.is_initialized())
    AcceleratorState._reset_state(reset_partial_state=alone)  # an earlier run may have set another device or precision
    options = DistributedDataParallelKwargs(find_unused_parameters=find_unused)
    # On a machine without an accelerator device, accelerate starts a process group only with cpu=True.
    on_cpu = device == "cpu" or not torch.accelerator.is_available()
    accelerator = Accelerator(
        cpu=on_cpu,
        mixed_precision={"float32": "no", "bfloat16": "bf16", "float16": "fp16"}[precision],
        kwargs_handlers=[options],
    )
    wanted = int(os.environ.get("WORLD_SIZE", "1"))
    if accelerator.num_processes != wanted:
        raise InputError(
            f"torchrun started {wanted} processes, but {accelerator.num_processes} joined: run torchrun again"
        )
    return accelerator


def step_seed(seed: int, step: int, rank: int) -> int:
    """Seed of one process in one step, from these numbers alone, so that a resumed run draws the same numbers."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0])


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed the generators that dropout uses.

    ``torch.manual_seed`` would also seed every other device; for devices not in use it stores each call for later.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


@contextmanager
def preserved_rng(device: torch.device) -> Iterator[None]:
    """Restore the state of torch's global generators, which dropout uses, on exit."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Split the parameters into weight matrices and kernels, with weight decay, and all others, without."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [parameter for parameter in trained if parameter.ndim > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in trained if parameter.ndim <= 1], "weight_decay": 0.0},
    ]


def make_optimiser(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """Make the optimiser: stochastic gradient descent with momentum, or AdamW."""
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
    """Largest absolute entry of the gradient of the loss plus weight decay, taken as a quadratic penalty."""
    entries = [
        (parameter.grad + group["weight_decay"] * parameter).abs().max()
        for group in optimiser.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]
    return float(torch.stack(entries).max()) if entries else 0.0


def forget_moments(optimiser: torch.optim.Optimizer) -> None:
    """Clear the optimiser's moments, as if no step had been taken."""
    optimiser.state.clear()
