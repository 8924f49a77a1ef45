"""Arrays of any library that speaks the array API standard; NumPy and PyTorch are the tested ones."""

from collections.abc import Iterator
from functools import cache
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


def namespace(*arrays: Array) -> Any:
    """The functions of the arrays' library; those of NumPy are found at once, which small blocks feel."""
    return _numpy() if all(type(array) is np.ndarray for array in arrays) else array_namespace(*arrays)


@cache
def _numpy() -> Any:
    """NumPy as the standard has it. Found when first asked for: it loads all parts of NumPy, which takes 0.1 s."""
    return array_namespace(np.empty(0))


def like(values: Array, reference: Array) -> Array:
    """``values`` as a floating array of the library, precision and device of ``reference``."""
    xp = namespace(reference)
    if is_array_api_obj(values) and namespace(values) is xp:
        return to_device(xp.astype(values, reference.dtype, copy=False), device(reference))
    return xp.asarray(values, dtype=reference.dtype, device=device(reference))


def index_like(index: IntArray, reference: Array) -> Array:
    """``index`` as an integer array of the library and device of ``reference``."""
    return namespace(reference).asarray(index, device=device(reference))


def sums_by(values: Array, index: Array, size: int) -> Array:
    """Sum of the values (n,) of each index (n,) from 0 to ``size``, (size,)."""
    xp = namespace(values)
    if is_torch_array(values):  # its bincount has no deterministic version on a GPU
        return xp.zeros(size, dtype=values.dtype, device=device(values)).index_add(0, index, values)
    return xp.bincount(index, weights=values, minlength=size)


def weighted_sum(weight: Array, values: Array) -> Array:
    """Σ ω v, (); NumPy's in double precision, whatever the arrays' own."""
    if isinstance(values, np.ndarray):
        return np.dot(weight.astype(np.float64), values.astype(np.float64))
    return namespace(values).sum(weight * values)


def row_blocks(n_rows: int, width: int, cells: int = BLOCK_CELLS) -> Iterator[slice]:
    """Consecutive slices that cover ``n_rows`` rows, each of about ``cells`` numbers at ``width`` per row."""
    step = max(1, cells // max(1, width))
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))
