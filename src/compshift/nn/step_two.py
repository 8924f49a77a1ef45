"""Step 2 over blocks of training rows: the bias of every candidate, and the mean energy of every value."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from compshift._errors import InputError
from compshift.core.arrays import FloatArray
from compshift.core.bias import ExtrapolatedBias, block_sums, empty_sums, extrapolated_bias, merge_sums
from compshift.core.objective import log_evidence
from compshift.distributed.collective import Collective, merge_everywhere
from compshift.nn.seen_groups import SeenGroups


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
