"""Array types, helpers that work with any array library, and numerically stable sums of exponentials.

The maths of ``core`` follows the array API standard, so that NumPy arrays and PyTorch tensors share one implementation:
the result belongs to the same library as the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from array_api_compat import (
    array_namespace,
    device,
    is_array_api_obj,
    is_dask_array,
    is_torch_array,
    is_writeable_array,
    to_device,
)

Array: TypeAlias = Any
"""An array of NumPy, PyTorch or another library that follows the array API standard."""

IntArray: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
FloatArray: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
BoolArray: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]

BLOCK_CELLS = 1 << 17
"""Target size of a block of rows, in array elements: 1 MB of float64, about the size of the cache of one core."""

DEVICE_BLOCK_CELLS = 1 << 24
"""Target size of a block of rows in other libraries than NumPy: large, because every operation on a GPU costs time to
start."""


def namespace(*arrays: Array) -> Any:
    """Return the array-API module of the library that the arrays belong to."""
    for array in arrays:
        if type(array) is not np.ndarray:
            return array_namespace(*arrays)
    return _numpy()


@cache
def _numpy() -> Any:
    """Return NumPy's array-API module; it is loaded on first use, because loading takes 0.1 s."""
    return array_namespace(np.empty(0))


def like(values: Array, reference: Array) -> Array:
    """Convert ``values`` to the library, dtype and device of the floating-point array ``reference``."""
    if type(values) is np.ndarray and type(reference) is np.ndarray:
        return values.astype(reference.dtype, copy=False)
    xp = namespace(reference)
    if is_array_api_obj(values) and namespace(values) is xp:
        return to_device(xp.astype(values, reference.dtype, copy=False), device(reference))
    return xp.asarray(values, dtype=reference.dtype, device=device(reference))


def is_other_library(values: Any) -> bool:
    """Return whether values are an array of another library than NumPy in which the maths of ``core`` can compute."""
    return (
        not isinstance(values, np.ndarray | np.generic)
        and is_array_api_obj(values)
        and is_writeable_array(values)
        and not is_dask_array(values)
    )


def to_numpy(values: Array) -> Any:
    """Return an array of any library as a NumPy array in main memory, without gradients."""
    if isinstance(values, np.ndarray):
        return values
    return np.asarray(to_device(values.detach() if is_torch_array(values) else values, "cpu"))


def empty_like(reference: Array, shape: tuple[int, ...]) -> Array:
    """Return an uninitialised array of the library, precision and device of ``reference``; float64 for NumPy."""
    if is_other_library(reference):
        return namespace(reference).empty(shape, dtype=reference.dtype, device=device(reference))
    return np.empty(shape)


def index_like(index: IntArray, reference: Array) -> Array:
    """Convert ``index`` to an integer array of the library and device of ``reference``."""
    if type(reference) is np.ndarray:
        return index
    return namespace(reference).asarray(index, device=device(reference))


def sums_by(values: Array, index: Array, size: int) -> Array:
    """Return the sums (size,) of values (n,) by index (n,): entry i is the sum of the values with index i."""
    xp = namespace(values)
    if is_torch_array(values):  # torch.bincount is not deterministic on a GPU
        return xp.zeros(size, dtype=values.dtype, device=device(values)).index_add(0, index, values)
    return xp.bincount(index, weights=values, minlength=size)


def weighted_sum(weight: Array, values: Array) -> Array:
    """Return Σ ω v as a scalar array; NumPy arrays of any precision are summed in double precision."""
    if isinstance(values, np.ndarray):
        return np.dot(weight.astype(np.float64), values.astype(np.float64))
    return namespace(values).sum(weight * values)


def row_blocks(n_rows: int, width: int, cells: int = BLOCK_CELLS) -> Iterator[slice]:
    """Yield consecutive slices that cover ``n_rows`` rows of ``width`` elements, each of about ``cells`` elements."""
    step = max(1, cells // max(1, width))
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))


def safe_log(values: Array) -> Array:
    """Return the logarithm; 0 gives −inf without a warning."""
    xp = namespace(values)
    zero = values == 0
    if not bool(xp.any(zero)):
        return xp.log(values)
    ones = xp.ones_like(values)
    return xp.where(zero, -xp.inf * ones, xp.log(xp.where(zero, ones, values)))


def exp_less(values: Array, shift: Array) -> Array:
    """Return exp(values − shift); a NumPy array is overwritten, which saves passes over memory.

    For other libraries the result is a new array, because overwriting would break automatic differentiation.
    """
    if isinstance(values, np.ndarray):
        values -= shift
        return np.exp(values, out=values)
    return namespace(values).exp(values - shift)


def logsumexp(values: Array, axis: int) -> Array:
    r"""Return the logarithm of a sum of exponentials along one axis; −inf where every entry is −inf.

    .. math:: \log \sum_j \exp(v_j)
    """
    xp = namespace(values)
    shift = _finite_max(values, axis)
    total = xp.sum(xp.exp(values - shift), axis=axis)
    return safe_log(total) + xp.squeeze(shift, axis=axis)


def log_softmax(logits: Array) -> Array:
    """Return logits (n, q) minus the log-sum-exp of each row, so that the exponentials of a row sum to 1.

    The largest logit is subtracted first: the difference of a large logit and a large log-sum-exp would lose digits.
    """
    relative = logits - _finite_max(logits, axis=1)
    return relative - logsumexp(relative, axis=1)[:, None]


def logmatmulexp(log_a: Array, log_b: Array) -> Array:
    r"""Return a matrix product in log space: one GEMM, then a log-sum-exp for each entry that may have underflowed.

    .. math:: \text{out}_{lr} = \log \sum_j \exp(a_{lj} + b_{jr})

    ``log_a`` (l, j) and ``log_b`` (j, r) may hold −inf; the result is (l, r). Row and column maxima are
    subtracted before the product, so an entry is inexact only if its scaled sum is small enough for underflow to matter
    (``underflow_floor``). Those entries are recomputed.
    """
    xp = namespace(log_a, log_b)
    shift_a = _finite_max(log_a, axis=1)  # (l, 1)
    shift_b = _finite_max(log_b, axis=0)  # (1, r)
    total = xp.matmul(xp.exp(log_a - shift_a), xp.exp(log_b - shift_b))  # (l, r), all factors ≤ 1
    result = safe_log(total) + shift_a + shift_b
    doubtful = total < underflow_floor(log_a, n_terms=log_a.shape[1])
    if bool(xp.any(doubtful)):
        _sum_again(result, doubtful, log_a, log_b)
    return result


def log_moments(log_factors: Callable[[], tuple[Array, Array]]) -> tuple[Array, Array]:
    r"""Return the first and second moments of products of factors, in log space, (l, r) each.

    .. math:: \log \sum_j \exp(a_{lj} + b_{rj}), \qquad \log \sum_j \exp(2 (a_{lj} + b_{rj}))

    Each call of ``log_factors`` returns new arrays of logarithms, a (l, j) and b (r, j), with a finite entry in every
    row. They are overwritten, which takes half the time of allocating new ones. If entries of a product may have
    underflowed, ``log_factors`` is called again and those entries are recomputed, as in ``logmatmulexp``.
    """
    a, b = log_factors()
    xp = namespace(a, b)
    shift_a, shift_b = xp.max(a, axis=1), xp.max(b, axis=1)  # (l,), (r,)
    a, b = exp_less(a, shift_a[:, None]), exp_less(b, shift_b[:, None])
    shifts = shift_a[:, None] + shift_b[None, :]  # (l, r)
    floor = underflow_floor(a, n_terms=a.shape[1])
    results = []
    for power in (1, 2):
        if power == 2:
            a *= a
            b *= b
        total = xp.matmul(a, b.T)
        result = safe_log(total) + power * shifts
        doubtful = total < floor
        if bool(xp.any(doubtful)):
            log_a, log_b = log_factors()
            _sum_again(result, doubtful, power * log_a, power * log_b.T)
        results.append(result)
    first, second = results
    return first, second


def underflow_floor(reference: Array, n_terms: int) -> float:
    """Return the value above which a sum of ``n_terms`` products of factors ≤ 1 is exact in spite of underflow.

    Underflow changes each product by at most the smallest normal number. Above ``n_terms`` times that number divided by
    the machine epsilon, the relative error is below one rounding error. For 10 000 terms this value is about 1e-288 in
    float64 and 1e-27 in float32.
    """
    limits = namespace(reference).finfo(reference.dtype)
    return float(n_terms) * float(limits.smallest_normal) / float(limits.eps)


def _sum_again(result: Array, doubtful: Array, log_a: Array, log_b: Array) -> None:
    """Recompute the doubtful entries of ``result`` by log-sum-exp; rows and columns of only −inf are exact already."""
    xp = namespace(log_a, log_b)
    reachable = xp.any(log_a > -xp.inf, axis=1)[:, None] & xp.any(log_b > -xp.inf, axis=0)[None, :]
    rows, columns = xp.nonzero(doubtful & reachable)
    step = max(1, BLOCK_CELLS // log_a.shape[1])
    for start in range(0, rows.shape[0], step):
        row, column = rows[start : start + step], columns[start : start + step]
        result[row, column] = logsumexp(log_a[row] + log_b[:, column].T, axis=1)


def _finite_max(values: Array, axis: int) -> Array:
    """Return the maximum along ``axis`` (kept with length 1); 0 where the maximum is −inf."""
    xp = namespace(values)
    largest = xp.max(values, axis=axis, keepdims=True)
    return xp.where(largest > -xp.inf, largest, xp.zeros_like(largest))


class ColumnSets(NamedTuple):
    """Assignment of g columns to ``size`` sets, for log-space sums over each set."""

    order: IntArray  # (g,) column numbers, sorted by set
    start: IntArray  # (q,) position in ``order`` at which each non-empty set begins
    present: IntArray  # (q,) numbers of the non-empty sets
    size: int

    @classmethod
    def of(cls, member: IntArray, size: int) -> ColumnSets:
        """Return the assignment in which column j belongs to set ``member[j]``; ``member`` is (g,)."""
        order = np.argsort(member, kind="stable")
        present, start = np.unique(member[order], return_index=True)
        return cls(order, start, present, size)

    def logsumexp(self, values: FloatArray) -> FloatArray:
        r"""Return the log-sum-exp over the columns of every set, (n, size), of values (n, g); −inf for an empty set.

        .. math:: \text{out}_{js} = \log \sum_{z \in s} \exp(v_{jz})
        """
        ordered = values[:, self.order]  # (n, g), a copy that may be overwritten
        largest = np.maximum.reduceat(ordered, self.start, axis=1)  # (n, q)
        shift = np.where(largest > -np.inf, largest, 0.0)
        ordered -= np.repeat(shift, np.diff(self.start, append=len(self.order)), axis=1)
        sums = np.add.reduceat(np.exp(ordered, out=ordered), self.start, axis=1)
        result = np.full((len(values), self.size), -np.inf)
        result[:, self.present] = safe_log(sums) + shift
        return result
