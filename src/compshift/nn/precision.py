"""The precision of numbers, whatever a head is cast to and whatever surrounds it."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor


def moved_buffer(buffer: Tensor, fn: Any) -> Tensor:
    """The buffer where ``fn`` puts it, in the precision that it has, or in 32 bits where the device has no more."""
    try:
        moved: Tensor = fn(buffer)
        return moved if moved.dtype == buffer.dtype else buffer.to(moved.device)
    except TypeError:
        return fn(buffer.float())  # type: ignore[no-any-return]


def full_precision(energies: Tensor) -> Tensor:
    """Energies in 32 bits at least."""
    return energies.float() if energies.dtype in (torch.float16, torch.bfloat16) else energies


def no_autocast(reference: Tensor) -> Any:
    """A context without autocasting, on devices that know of it."""
    kind = reference.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else contextlib.nullcontext()
