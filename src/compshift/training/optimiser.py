"""Optimiser, device and random numbers of a training run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import distributed, nn

from compshift._errors import InputError, check_name
from compshift.training.settings import Settings

if TYPE_CHECKING:
    from accelerate import Accelerator

DEVICES = ("auto", "cpu", "cuda")
"""Accepted values of ``device``, besides a numbered device such as ``cuda:0``."""

MIXED_PRECISION = {"float32": "no", "bfloat16": "bf16", "float16": "fp16"}
"""Name of each precision in accelerate."""

PRECISION_NAMES = {value: name for name, value in MIXED_PRECISION.items()}
"""Inverse of ``MIXED_PRECISION``: the value of ``precision`` for each name in accelerate."""


def make_accelerator(
    device: str, precision: str, *, find_unused: bool, trackers: Sequence[Any] = (), logs: Path | None = None
) -> Accelerator:
    """Set up device, precision and, under torchrun, the process group, using accelerate.

    Pass ``find_unused=True`` if the network may have parameters that the loss does not depend on, such as an unused
    pooler. ``trackers`` are not started; those that write files write them to the folder ``logs``.
    """
    from accelerate import Accelerator, DistributedDataParallelKwargs
    from accelerate.state import AcceleratorState
    from accelerate.utils import ProjectConfiguration

    if isinstance(device, str) and device.startswith("cuda:"):
        torch.cuda.set_device(check_cuda_number(device))  # accelerate uses the current device
        device = "cuda"
    check_name("device", device, DEVICES)
    if precision == "float32" and device != "cpu" and torch.cuda.is_available():
        torch.backends.cudnn.allow_tf32 = False  # otherwise convolutions would be in reduced precision
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
        mixed_precision=MIXED_PRECISION[precision],
        kwargs_handlers=[options],
        log_with=list(trackers) or None,
        project_config=ProjectConfiguration(logging_dir=None if logs is None else str(logs)),
    )
    wanted = int(os.environ.get("WORLD_SIZE", "1"))
    if accelerator.num_processes != wanted:
        raise InputError(
            f"the environment variable WORLD_SIZE is {wanted}, but the number of processes is "
            f"{accelerator.num_processes}: start the run with torchrun, or unset WORLD_SIZE to train in one process"
        )
    return accelerator


def check_cuda_number(device: str) -> int:
    """Return the number of a device such as ``cuda:1``, and check that there is such a device."""
    number, count = device.removeprefix("cuda:"), torch.cuda.device_count()
    if not number.isdecimal() or int(number) >= count:
        if not count:
            raise InputError(f"device is {device!r}, but PyTorch finds no CUDA device: pass 'cpu' or 'auto'")
        raise InputError(
            f"device is {device!r}, but PyTorch finds {count} CUDA device{'s' * (count > 1)}, numbered from 0: pass "
            "the number of one of them, 'cpu' or 'auto'"
        )
    return int(number)


def step_seed(seed: int, step: int, rank: int) -> int:
    """Return the seed of one process in one step, which depends on nothing else, so that resumed runs draw alike."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0])


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed the generators that dropout uses.

    ``torch.manual_seed`` is not used, because it also seeds every other device. For a device that is not initialised
    yet, it queues the call, and with a call in every step the queue would grow without limit.
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


def parameter_groups(model: nn.Module, weight_decay: float, decay: str = "matrices") -> list[dict[str, Any]]:
    """Split the parameters into groups for the optimiser: matrices and kernels, and vectors (biases, normalisation).

    ``decay`` names the parameters that weight decay applies to: "matrices", "vectors" or "all". With "vectors", the
    learned biases of CRM's groups form a third group without decay.
    """
    found: dict[str, list[Any]] = {"matrices": [], "vectors": [], "learned": []}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            learned = decay == "vectors" and name.endswith("learned_bias")
            kind = "matrices" if parameter.ndim > 1 else "learned" if learned else "vectors"
            found[kind].append(parameter)
    return [
        {"params": parameters, "weight_decay": weight_decay if decay in (kind, "all") else 0.0}
        for kind, parameters in found.items()
        if parameters or kind != "learned"
    ]


def make_optimiser(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """Make the optimiser: stochastic gradient descent with momentum, or AdamW."""
    groups = [group for group in parameter_groups(model, settings.weight_decay, settings.decay) if group["params"]]
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
    """Return the largest absolute entry of the gradient of the loss plus ½ weight_decay ‖θ‖²."""
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
