"""Sums and gathers over the processes of a torch.distributed job, for example one started by torchrun."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed

from compshift.distributed import ALONE, Collective


class TorchProcesses(Collective):
    """All processes of the default process group."""

    def __init__(self) -> None:
        self.rank = distributed.get_rank()
        self.size = distributed.get_world_size()

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of the ``values`` that all processes pass.

        The gradient is summed over all processes too. If every process computes the same loss from the sum, and
        DistributedDataParallel then averages the gradients of the parameters, the result is the gradient of that loss.
        """
        return _Sum.apply(values)  # type: ignore[no-any-return, no-untyped-call]

    def gather(self, value: Any) -> list[Any]:
        """Return the values that all processes pass, as a list in order of rank."""
        gathered: list[Any] = [None] * self.size
        distributed.all_gather_object(gathered, value)
        return gathered


def current_processes() -> Collective:
    """Return the processes of this job, or this process alone if torch.distributed is not in use."""
    started = distributed.is_available() and distributed.is_initialized()
    return TorchProcesses() if started and distributed.get_world_size() > 1 else ALONE


class _Sum(torch.autograd.Function):
    """Sum over all processes, whose gradient is summed over all processes too."""

    @staticmethod
    def forward(_: Any, values: Tensor) -> Tensor:
        total = values.clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        total = gradient.contiguous().clone()
        distributed.all_reduce(total)
        return total
