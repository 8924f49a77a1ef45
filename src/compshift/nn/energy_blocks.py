"""Energies of training inputs, in blocks of rows that are worth a sum."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from compshift._errors import InputError, an, reason
from compshift.core.bias import rows_worth_merging
from compshift.core.energy import GroupTable
from compshift.nn.tensors import as_tensor, check_energies, row_weights

BATCH = "pass batches of features, or tuples that begin with them"


def energy_blocks(
    head: nn.Module, table: GroupTable, batches: Iterable[Any], backbone: Callable[..., Any] | None, weighted: bool
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Energies and weights, in 64 bits on the CPU, of so many rows at once that a sum over them is worth its merging.

    The sums hold a number per cell of the table, and merging them costs as much for one row as for thousands.
    """
    wanted = rows_worth_merging(table)
    energies: list[Tensor] = []
    weights: list[Tensor] = []
    n_rows = 0
    if isinstance(batches, str | bytes | dict) or not isinstance(batches, Iterable) or getattr(batches, "ndim", 1) == 0:
        raise InputError(f"batches are {an(type(batches).__name__)}: pass a loader or a list of batches of features")
    for batch in batches:
        inputs, *further = _parts(batch, weighted)
        inputs = _moved(inputs, next(head.parameters()).device)
        found = head(inputs if backbone is None else _features(backbone, inputs))
        energies.append(found.cpu().double())  # in this order: some devices have no 64-bit numbers
        if weighted:
            weights.append(row_weights(further[0], len(found), energies[-1], "weight"))
        n_rows += len(found)
        if n_rows >= wanted:
            yield check_energies(torch.cat(energies)), torch.cat(weights) if weighted else None
            energies, weights, n_rows = [], [], 0
    if n_rows:
        yield check_energies(torch.cat(energies)), torch.cat(weights) if weighted else None


def _parts(batch: Any, weighted: bool) -> list[Any]:
    """The parts of a batch: what energies follow from, and then, if they are asked for, the weights of its rows."""
    parts = list(batch) if isinstance(batch, tuple | list) else [batch]
    if weighted and len(parts) < 2:
        raise InputError("a batch has no weights of its rows: with weighted=True, pass tuples (features, weight)")
    if not parts:
        raise InputError(f"a batch is {batch!r}, which has no parts: {BATCH}")
    return parts


def _moved(inputs: Any, device: torch.device) -> Any:
    if isinstance(inputs, Mapping):
        return {name: as_tensor(value, str(name), BATCH, device) for name, value in inputs.items()}
    return as_tensor(inputs, "a batch", BATCH, device)


def _features(backbone: Callable[..., Any], inputs: Any) -> Any:
    """What the backbone makes of a batch."""
    named = isinstance(inputs, dict)
    try:
        return backbone(**inputs) if named else backbone(inputs)
    except (InputError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # anyone's network, which can fail in every way there is
        shape = {name: tuple(value.shape) for name, value in inputs.items()} if named else tuple(inputs.shape)
        raise InputError(
            f"the backbone failed on a batch of shape {shape} ({type(error).__name__}: {reason(error)}): pass batches "
            "of what it takes"
        ) from error
