"""The device and the processes of a run, through accelerate."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import distributed

from compshift._errors import InputError, check_name

if TYPE_CHECKING:
    from accelerate import Accelerator

DEVICES = ("auto", "cpu", "cuda")
MIXED = {"float32": "no", "bfloat16": "bf16", "float16": "fp16"}


def start(device: str, precision: str, *, find_unused: bool) -> Accelerator:
    """One process, or this one of those that torchrun started.

    ``find_unused`` is for networks with parts that the loss does not reach, such as a pooler that is not asked.
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
    AcceleratorState._reset_state(reset_partial_state=alone)  # another run in this process may have had other choices
    options = DistributedDataParallelKwargs(find_unused_parameters=find_unused)
    # Without a device of its own to choose, accelerate would start no process group.
    on_cpu = device == "cpu" or not torch.accelerator.is_available()
    accelerator = Accelerator(cpu=on_cpu, mixed_precision=MIXED[precision], kwargs_handlers=[options])
    wanted = int(os.environ.get("WORLD_SIZE", "1"))
    if accelerator.num_processes != wanted:
        raise InputError(f"torchrun started {wanted} processes, and {accelerator.num_processes} came together")
    return accelerator


def step_seed(seed: int, step: int, rank: int) -> int:
    """A seed for what a process draws in a step: a run that goes on draws what it would have drawn."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0])


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed what dropout draws from. (torch.manual_seed remembers every call for devices that are not there.)"""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


@contextmanager
def own_randomness(device: torch.device) -> Iterator[None]:
    """Torch's generators, which dropout uses, are put back as they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
