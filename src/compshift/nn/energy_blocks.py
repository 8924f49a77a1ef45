"""Energies of training inputs, in blocks of rows that are worth a sum."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from compshift._errors import InputError, an
from compshift.core.bias import rows_worth_merging
from compshift.core.energy import GroupTable
from compshift.nn.tensors import as_tensor

BATCH = "pass batches of features, or tuples that begin with them"


def energy_blocks(
    head: nn.Module, table: GroupTable, batches: Iterable[Any], backbone: nn.Module | None, weighted: bool
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Energies and weights, in 64 bits on the CPU, of so many rows at once that a sum over them is worth its merging.

    The sums hold a number per cell of the table, and merging them costs as much for one row as for thousands.
    """
    wanted = rows_worth_merging(table)
    energies: list[Tensor] = []
    weights: list[Tensor] = []
    n_rows = 0
    if isinstance(batches, str | bytes | dict) or not isinstance(batches, Iterable):
        raise InputError(f"batches are {an(type(batches).__name__)}: pass a loader or a list of batches of features")
    for batch in batches:
        inputs = batch[0] if isinstance(batch, tuple | list) else batch
        inputs = _moved(inputs, next(head.parameters()).device)
        found = head(inputs if backbone is None else _features(backbone, inputs))
        energies.append(found.cpu().double())  # in this order: some devices have no 64-bit numbers
        if weighted:
            weights.append(as_tensor(batch[1], "a batch's weights", BATCH).cpu().double())
        n_rows += len(found)
        if n_rows >= wanted:
            yield _finite(torch.cat(energies)), torch.cat(weights) if weighted else None
            energies, weights, n_rows = [], [], 0
    if n_rows:
        yield _finite(torch.cat(energies)), torch.cat(weights) if weighted else None


def _moved(inputs: Any, device: torch.device) -> Any:
    if isinstance(inputs, dict):
        return {name: as_tensor(value, name, BATCH, device) for name, value in inputs.items()}
    return as_tensor(inputs, "a batch", BATCH, device)


def _features(backbone: nn.Module, inputs: Any) -> Tensor:
    return backbone(**inputs) if isinstance(inputs, dict) else backbone(inputs)  # type: ignore[no-any-return]


def _finite(energies: Tensor) -> Tensor:
    if not bool(torch.isfinite(energies).all()):
        raise InputError("energies are NaN or infinite: the network has diverged, or its inputs are not finite")
    return energies
