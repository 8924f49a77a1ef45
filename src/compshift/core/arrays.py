"""Arrays of any library that speaks the array API standard; NumPy and PyTorch are the tested ones."""

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from array_api_compat import array_namespace, device, is_array_api_obj, is_torch_array, to_device

Array: TypeAlias = Any
"""An array of the caller's library. What goes in decides what comes out."""

IntArray: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
FloatArray: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
BoolArray: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]

BLOCK_CELLS = 1 << 17
"""How many numbers a block of rows may hold: 1 MB of float64, about what a core's own cache keeps."""


def like(values: Array, reference: Array) -> Array:
    """``values`` as a floating array of the library, precision and device of ``reference``."""
    xp = array_namespace(reference)
    if is_array_api_obj(values) and array_namespace(values) is xp:
        return to_device(xp.astype(values, reference.dtype, copy=False), device(reference))
    return xp.asarray(values, dtype=reference.dtype, device=device(reference))


def index_like(index: IntArray, reference: Array) -> Array:
    """``index`` as an integer array of the library and device of ``reference``."""
    return array_namespace(reference).asarray(index, device=device(reference))


def sums_by(values: Array, index: Array, size: int) -> Array:
    """Sum of the values (n,) of each index (n,) from 0 to ``size``, (size,)."""
    xp = array_namespace(values)
    if is_torch_array(values):  # its bincount has no deterministic version on a GPU
        return xp.zeros(size, dtype=values.dtype, device=device(values)).index_add(0, index, values)
    return xp.bincount(index, weights=values, minlength=size)


def row_blocks(n_rows: int, width: int, cells: int = BLOCK_CELLS) -> Iterator[slice]:
    """Consecutive slices that cover ``n_rows`` rows, each of about ``cells`` numbers at ``width`` per row."""
    step = max(1, cells // max(1, width))
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))
