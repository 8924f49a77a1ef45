"""The risk of step 1 as a differentiable loss: value and gradient in closed form, nothing of size n × g.

Step 2 over blocks of training rows: the bias of every candidate, and the mean energy of every value.

Energies of training inputs, in blocks of rows that are worth a sum.

Codes of training rows, from arrays or from the batches of a loader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from compshift._errors import InputError, an, reason
from compshift.core.arrays import FloatArray
from compshift.core.bias import (
    ExtrapolatedBias,
    block_sums,
    empty_sums,
    extrapolated_bias,
    merge_sums,
    rows_worth_merging,
)
from compshift.core.energy import GroupTable, log_evidence, step_one_risk
from compshift.distributed import Collective, merge_everywhere
from compshift.nn.state import SeenGroups
from compshift.nn.tensors import as_tensor, check_energies, row_weights, to_numpy


def step_one_loss(
    energies: Tensor, position: Tensor, sample_weight: Tensor, seen: SeenGroups, learned_bias: Tensor
) -> Tensor:
    """Weighted sum of negative log-likelihoods of the rows' groups (paper, eq. "CRM1").

    ``energies`` (n, D), ``position`` (n,) among the seen groups, ``learned_bias`` (g,) of the candidates. Reduced
    precision is widened to 32 bits first.
    """
    wide = energies.float() if energies.dtype in (torch.float16, torch.bfloat16) else energies
    log_score = seen.log_frequency.to(wide) - learned_bias[seen.index].to(wide)  # (k,)
    result: Tensor = _StepOne.apply(wide, log_score, position, sample_weight, seen.table)  # type: ignore[no-untyped-call]
    return result


class _StepOne(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, energies: Tensor, log_score: Tensor, position: Tensor, weight: Tensor, seen: Any) -> Any:
        with torch.autocast(energies.device.type, enabled=False):
            risk = step_one_risk(energies, position, weight, seen, log_score)
        context.save_for_backward(risk.energy_gradient, risk.score_gradient)
        return risk.value

    @staticmethod
    def backward(context: Any, *upstream: Tensor) -> Any:
        if torch.is_grad_enabled():  # create_graph=True: what follows would be taken for a constant
            raise RuntimeError("the CRM loss is differentiable once: use it without create_graph=True")
        energy_gradient, score_gradient = context.saved_tensors
        return upstream[0] * energy_gradient, upstream[0] * score_gradient, None, None, None


def step_two_bias(
    blocks: Iterable[tuple[Tensor, Tensor | None]], seen: SeenGroups, log_score: Tensor, processes: Collective
) -> tuple[ExtrapolatedBias, FloatArray]:
    """B* (g,) (paper, eq. "qz") and Ē (D,) from ``blocks`` of energies (n, D) and weights (n,), in 64 bits.

    ``log_score`` (k,) is log p̂(z) − B(z) of the training groups.
    """
    table = seen.candidates.table
    sums = empty_sums(table, torch.zeros((), dtype=torch.float64))
    energy_sum = np.zeros(table.space.width)
    for energies, weight in blocks:
        sums = merge_sums(sums, block_sums(table, energies, log_evidence(energies, seen.table, log_score), weight))
        part = energies if weight is None else energies * weight[:, None]
        energy_sum += part.sum(dim=0).numpy()
    sums = merge_everywhere(sums, processes)
    energy_sum = np.sum(processes.gather(energy_sum), axis=0)
    if not sums.total_weight:
        raise InputError(
            "extrapolate was given no rows, or none with a weight above 0: pass the training inputs, batch by batch"
        )
    result = extrapolated_bias(table, sums)
    whole = sums.total_weight >= np.finfo(np.float64).tiny and np.isfinite(energy_sum).all()
    if not whole or not bool(torch.isfinite(result.bias).all()):
        raise InputError(
            "the weights of rows, or energies, are too large or too small to add up: divide the weights by their mean, "
            "and see whether training has diverged"
        )
    return result, energy_sum / sums.total_weight


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
    if isinstance(batches, str | bytes | dict) or not isinstance(batches, Iterable):
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


def all_codes(codes: Any, n_attributes: int) -> Any:
    """Codes of all rows: an array as it is, or the last parts of batches put together."""
    if hasattr(codes, "shape") or (isinstance(codes, list) and not _holds_batches(codes)):
        return codes
    if not isinstance(codes, Iterable):
        raise InputError(f"codes is {codes!r}: pass the codes of all training rows (n, {n_attributes}), or a loader")
    parts = []
    for batch in codes:
        last = to_numpy(_last(batch), "codes")
        array = isinstance(last, np.ndarray)
        if not array or last.dtype.kind not in "iu" or last.shape[1:] != (n_attributes,):
            found = f" but in {last.dtype} {last.shape}" if array else f" but in {an(type(last).__name__)}"
            raise InputError(
                f"a batch does not end in integer codes (b, {n_attributes}){found}: pass batches such as "
                "(inputs, codes)"
            )
        parts.append(last)
    return np.concatenate(parts) if parts else np.zeros((0, 0))


def _holds_batches(codes: list[Any]) -> bool:
    """Whether a list has batches, tensors of codes or tuples that end in one, and not the codes of single rows."""
    return bool(codes) and getattr(_last(codes[0]), "ndim", 0) >= 2


def _last(batch: Any) -> Any:
    """The last part of a batch that has parts."""
    if isinstance(batch, tuple | list):
        return batch[-1] if batch else None
    return batch
