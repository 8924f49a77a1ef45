r"""Step 2: the bias of every group, seen or not, from the energies of the training inputs.

.. math::

    B^*(z) = \log \frac{\sum_x \omega_x w_x(z)}{\sum_x \omega_x}, \qquad
    w_x(z) = \exp(-\langle \sigma(z), E(x) \rangle - c(x))

Paper, eq. "qz"; ω are the sample weights, which c(x) must describe too. The sums run over blocks of samples, so that
inputs can be streamed, and sums made apart can be merged.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from array_api_compat import device

from compshift.core.arrays import Array, namespace, row_blocks
from compshift.core.energy import GroupTable
from compshift.core.logspace import log_moments, safe_log

BLOCK_CELLS_OF_SUMS = 1 << 21
"""How many numbers a block of samples holds: more than elsewhere, because every block's sums are merged."""


class BiasSums(NamedTuple):
    """What the samples so far contribute to the bias of each cell of a table."""

    log_first: Array  # (l, r) log Σ ω w
    log_second: Array  # (l, r) log Σ (ω w)²
    total_weight: float  # Σ ω


class ExtrapolatedBias(NamedTuple):
    """Bias of each group, and how many samples it effectively rests on."""

    bias: Array  # (g,)
    effective_sample_size: Array  # (g,)


def empty_sums(table: GroupTable, reference: Array) -> BiasSums:
    """Sums over no samples, of the library, precision and device of ``reference``."""
    xp = namespace(reference)
    nothing = xp.full(table.shape, -math.inf, dtype=reference.dtype, device=device(reference))
    return BiasSums(nothing, nothing, 0.0)


def block_sums(table: GroupTable, energies: Array, log_evidence: Array, sample_weight: Array | None = None) -> BiasSums:
    """Sums over one block of samples: matrix products in log space.

    ``energies`` (n, D) and ``log_evidence`` (n,) belong to the same training samples; every weight must be above 0.
    Fastest where the energies of a value are next to each other in memory, as ``linear_energies`` has them.
    """
    xp = namespace(energies)
    total = float(energies.shape[0])
    log_share = -log_evidence  # (n,)
    if sample_weight is not None:
        log_share = log_share + safe_log(sample_weight)  # a weight of 0 may be one that underflowed
        total = float(xp.sum(sample_weight))

    def log_factors() -> tuple[Array, Array]:
        left, right = (half.T for half in table.halves(energies))  # (l, n), (r, n), and nobody else's
        left += log_share
        return left, right

    return BiasSums(*log_moments(log_factors), total)


def sums_over(table: GroupTable, energies: Array, log_evidence: Array, sample_weight: Array | None = None) -> BiasSums:
    """Sums over any number of samples, a block at a time, so that no more than a cache is filled."""
    sums = empty_sums(table, energies)
    for rows in row_blocks(energies.shape[0], 1, rows_worth_merging(table)):
        own = None if sample_weight is None else sample_weight[rows]
        sums = merge_sums(sums, block_sums(table, energies[rows], log_evidence[rows], own))
    return sums


def rows_worth_merging(table: GroupTable) -> int:
    """How many samples a block has that is worth the merging of its sums."""
    cells = max(BLOCK_CELLS_OF_SUMS, 4 * len(table.left) * len(table.right))
    return cells // (table.width + table.space.width) + 1


def merge_sums(first: BiasSums, second: BiasSums) -> BiasSums:
    """Sums over the samples of both."""
    xp = namespace(first.log_first)
    return BiasSums(
        xp.logaddexp(first.log_first, second.log_first),
        xp.logaddexp(first.log_second, second.log_second),
        first.total_weight + second.total_weight,
    )


def extrapolated_bias(table: GroupTable, sums: BiasSums) -> ExtrapolatedBias:
    r"""B*(z) and its effective sample size for each group of the table.

    .. math:: \mathrm{ESS}(z) = \frac{(\sum_x \omega_x w_x(z))^2}{\sum_x (\omega_x w_x(z))^2}

    A bias that rests on a handful of samples is not to be trusted, however many rows there are. A row of weight 2
    counts as one sample here, not as two: it holds no more information.
    """
    xp = namespace(sums.log_first)
    log_first = table.pick(sums.log_first)
    size = xp.exp(2 * log_first - table.pick(sums.log_second))
    return ExtrapolatedBias(log_first - math.log(sums.total_weight), size)
