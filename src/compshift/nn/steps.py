"""Steps 1 and 2 of CRM for a PyTorch head.

Step 1 is a loss with its gradient in closed form, so nothing of size n × g is stored. Step 2 is one pass over the
training batches: energies are collected into blocks of rows, and the bias of every candidate group follows from sums
over those blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from compshift._errors import InputError, an, reason
from compshift.core.arrays import FloatArray
from compshift.core.bias import ExtrapolatedBias, extrapolated_bias, rows_worth_merging
from compshift.core.energy import GroupTable, step_one_risk
from compshift.crm.blocks import Block
from compshift.crm.fit import StepTwoSums, step_two_sums
from compshift.distributed import Collective
from compshift.nn.state import SeenGroups
from compshift.nn.tensors import as_tensor, check_energies, full_precision, row_weights

_BATCH_REMEDY = "pass batches of features, or tuples whose first part is features"


def step_one_loss(
    energies: Tensor, position: Tensor, sample_weight: Tensor, seen: SeenGroups, learned_bias: Tensor
) -> Tensor:
    """Return the weighted sum of the negative log-likelihoods of the rows' groups (paper, eq. "CRM1").

    ``energies`` is (n, D); 16-bit energies are widened to 32 bits. ``position`` (n,) is the position of each row's
    group among the training groups, and ``learned_bias`` (g,) has one entry per candidate group.
    """
    energies = full_precision(energies)
    log_score = seen.log_frequency.to(energies) - learned_bias[seen.index].to(energies)  # (k,)
    return _StepOne.apply(energies, log_score, position, sample_weight, seen.table)  # type: ignore[no-any-return, no-untyped-call]


class _StepOne(torch.autograd.Function):
    """Step-1 risk as an autograd function that computes its gradient together with its value."""

    @staticmethod
    def forward(context: Any, energies: Tensor, log_score: Tensor, position: Tensor, weight: Tensor, seen: Any) -> Any:
        with torch.autocast(energies.device.type, enabled=False):
            risk = step_one_risk(energies, position, weight, seen, log_score)
        context.save_for_backward(risk.energy_gradient, risk.score_gradient)
        return risk.value

    @staticmethod
    def backward(context: Any, *upstream: Tensor) -> Any:
        if torch.is_grad_enabled():  # create_graph=True would treat the gradient below as a constant
            raise RuntimeError("the CRM loss is differentiable once: use it without create_graph=True")
        energy_gradient, score_gradient = context.saved_tensors
        return upstream[0] * energy_gradient, upstream[0] * score_gradient, None, None, None


def step_two_bias(
    blocks: Iterable[tuple[Tensor, Tensor | None]], seen: SeenGroups, log_score: Tensor, processes: Collective
) -> tuple[ExtrapolatedBias, FloatArray]:
    """Compute B* (g,) of every candidate group (paper, eq. "qz") and the mean energy (D,) of every attribute value.

    ``blocks`` are energies (n, D) and row weights (n,) in 64 bits; ``log_score`` (k,) is log p̂(z) − B(z) of the
    training groups. Each of the ``processes`` passes the blocks of its own rows, and all get the same result.
    """
    table = seen.candidates.table
    sums = StepTwoSums.empty(table, torch.zeros(table.space.width, dtype=torch.float64))
    for energies, weight in blocks:
        block = Block(energies, None, weight)
        sums = StepTwoSums.merge(sums, step_two_sums(block, None, seen.table, log_score, (table,)))
    sums = reduce(StepTwoSums.merge, processes.gather(sums))
    bias_sums, energy_sum = sums.bias[0], sums.energy.numpy()
    if not bias_sums.total_weight:
        raise InputError("batches has no rows, or none with a weight above 0: pass the training inputs, batch by batch")
    result = extrapolated_bias(table, bias_sums)
    finite = bias_sums.total_weight >= np.finfo(np.float64).tiny and np.isfinite(energy_sum).all()
    if not finite or not bool(torch.isfinite(result.bias).all()):
        raise InputError(
            "row weights or energies are too large or too small to add up: divide the weights by their mean, and "
            "check whether training has diverged"
        )
    return result, energy_sum / bias_sums.total_weight


def energy_blocks(
    head: nn.Module, table: GroupTable, batches: Iterable[Any], backbone: Callable[..., Any] | None, weighted: bool
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield the energies (n, D) and weights (n,) of the batches in blocks of many rows, in 64 bits on the CPU.

    Merging the sums of a block costs O(groups) whatever its size, so small batches are concatenated first.
    """
    block_rows = rows_worth_merging(table)
    energies: list[Tensor] = []
    weights: list[Tensor] = []
    n_rows = 0
    if isinstance(batches, str | bytes | dict) or not isinstance(batches, Iterable) or getattr(batches, "ndim", 1) == 0:
        raise InputError(f"batches are {an(type(batches).__name__)}: pass a loader or a list of batches of features")
    for batch in batches:
        inputs, *rest = _batch_parts(batch, weighted)
        inputs = _to_device(inputs, next(head.parameters()).device)
        batch_energies = head(inputs if backbone is None else _backbone_features(backbone, inputs))
        energies.append(batch_energies.cpu().double())  # to the CPU first: some devices have no 64-bit floats
        if weighted:
            weights.append(row_weights(rest[0], len(batch_energies), energies[-1], "weight"))
        n_rows += len(batch_energies)
        if n_rows >= block_rows:
            yield check_energies(torch.cat(energies)), torch.cat(weights) if weighted else None
            energies, weights, n_rows = [], [], 0
    if n_rows:
        yield check_energies(torch.cat(energies)), torch.cat(weights) if weighted else None


def _batch_parts(batch: Any, weighted: bool) -> list[Any]:
    """Return the parts of a batch: the inputs, then the row weights if ``weighted``."""
    parts = list(batch) if isinstance(batch, tuple | list) else [batch]
    if weighted and len(parts) < 2:
        raise InputError("a batch has no row weights: with weighted=True, pass tuples (features, weight)")
    if not parts:
        raise InputError(f"a batch is {batch!r}, which is empty: {_BATCH_REMEDY}")
    return parts


def _to_device(inputs: Any, device: torch.device) -> Any:
    """Move a tensor, or a mapping of tensors, to the head's device."""
    if isinstance(inputs, Mapping):
        return {name: as_tensor(value, str(name), _BATCH_REMEDY, device) for name, value in inputs.items()}
    return as_tensor(inputs, "a batch", _BATCH_REMEDY, device)


def _backbone_features(backbone: Callable[..., Any], inputs: Any) -> Any:
    """Compute the features of a batch; add the shape of the inputs to errors that the backbone raises."""
    named = isinstance(inputs, dict)
    try:
        return backbone(**inputs) if named else backbone(inputs)
    except (InputError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a user's network may raise anything
        shape = {name: tuple(value.shape) for name, value in inputs.items()} if named else tuple(inputs.shape)
        raise InputError(
            f"the backbone failed on a batch of shape {shape} ({type(error).__name__}: {reason(error)}): pass batches "
            "of the backbone's inputs"
        ) from error
