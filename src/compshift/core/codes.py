"""Integer codes of groups: distinct rows, positions in a list, flat indices and one-hot rows.

Codes are trusted here: (n, m) int64 arrays within the cardinalities. The methods of ``GroupSpace`` check them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from compshift.core.arrays import FloatArray, IntArray

MAX_FLAT_INDEX = 2**63 - 1
"""Largest number of groups that a 64-bit flat index can number."""


def flat_index(codes: IntArray, cardinalities: Sequence[int]) -> IntArray:
    """Return the flat index (q,) of codes (q, m), the last attribute moving fastest."""
    return np.asarray(codes @ _strides(cardinalities), dtype=np.int64)


def codes_of_index(index: IntArray, cardinalities: Sequence[int]) -> IntArray:
    """Return the codes (q, m) of flat indices (q,)."""
    return np.asarray(index[:, None] // _strides(cardinalities) % np.asarray(cardinalities))


def _strides(cardinalities: Sequence[int]) -> IntArray:
    """Return how far the flat index moves with each attribute's code, (m,)."""
    return np.concatenate([np.cumprod(cardinalities[:0:-1])[::-1], [1]]).astype(np.int64)


def distinct_codes(codes: IntArray, cardinalities: Sequence[int]) -> tuple[IntArray, IntArray]:
    """Return the distinct codes (k, m) in ascending order, and the position of each row of ``codes`` among them, (n,)."""
    if math.prod(cardinalities) > MAX_FLAT_INDEX:
        groups, position = np.unique(codes, axis=0, return_inverse=True)
        return groups, position.reshape(-1)
    index, position = np.unique(flat_index(codes, cardinalities), return_inverse=True)
    return codes_of_index(index, cardinalities), position


def locate_codes(codes: IntArray, among: IntArray, cardinalities: Sequence[int]) -> IntArray:
    """Return the position of each code (q, m) in the distinct codes ``among`` (g, m), or −1 if it is not there, (q,)."""
    distinct, identity = distinct_codes(np.concatenate([among, codes]), cardinalities)
    position = np.full(len(distinct), -1, dtype=np.int64)
    position[identity[: len(among)]] = np.arange(len(among))
    return position[identity[len(among) :]]


def one_hot_rows(columns: IntArray, width: int) -> FloatArray:
    """Return rows (q, width) with ones at ``columns`` (q, m): codes plus the offset of each attribute."""
    rows = np.zeros((len(columns), width))
    np.put_along_axis(rows, columns, 1.0, axis=1)
    return rows
