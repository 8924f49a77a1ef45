"""Arrays of any library that speaks the array API standard; NumPy and PyTorch are the tested ones.

Sums of exponentials that neither overflow nor lose digits.

Sums in log space over columns that belong together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple, TypeAlias

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


def logsumexp(values: Array, axis: int) -> Array:
    r"""Logarithm of a sum of exponentials along one axis; −inf where every entry is −inf.

    .. math:: \log \sum_j \exp(v_j)
    """
    xp = namespace(values)
    shift = _finite_max(values, axis)
    total = xp.sum(xp.exp(values - shift), axis=axis)
    return safe_log(total) + xp.squeeze(shift, axis=axis)


def log_softmax(logits: Array) -> Array:
    """Logits (n, q) less what makes the exponentials of each row sum to 1.

    The largest is taken out before the sum: a sum that is added to large logits would be rounded as they are.
    """
    relative = logits - _finite_max(logits, axis=1)
    return relative - logsumexp(relative, axis=1)[:, None]


def logmatmulexp(log_a: Array, log_b: Array) -> Array:
    r"""Matrix product in log space: one GEMM, exact where the GEMM would underflow.

    .. math:: \text{out}_{lr} = \log \sum_j \exp(a_{lj} + b_{jr})

    ``log_a`` (l, j) and ``log_b`` (j, r) may hold −inf; the result is (l, r). Row and column maxima are taken out
    before the product, so an entry is inexact only if its scaled sum is so small that factors lost to underflow could
    matter. Those entries are summed again, one log-sum-exp each.
    """
    xp = namespace(log_a, log_b)
    shift_a = _finite_max(log_a, axis=1)  # (l, 1)
    shift_b = _finite_max(log_b, axis=0)  # (1, r)
    total = xp.matmul(xp.exp(log_a - shift_a), xp.exp(log_b - shift_b))  # (l, r), of factors up to 1
    result = safe_log(total) + shift_a + shift_b
    doubtful = total < underflow_floor(log_a, n_terms=log_a.shape[1])
    if bool(xp.any(doubtful)):
        _sum_again(result, doubtful, log_a, log_b)
    return result


def log_moments(log_factors: Callable[[], tuple[Array, Array]]) -> tuple[Array, Array]:
    r"""First and second moments of products of factors, in log space, (l, r) each.

    .. math:: \log \sum_j \exp(a_{lj} + b_{rj}), \qquad \log \sum_j \exp(2 (a_{lj} + b_{rj}))

    ``log_factors`` makes new arrays of finite logarithms, a (l, j) and b (r, j). They are worked on in place, which
    takes half the time of new arrays, and made again where underflow is in doubt, as in ``logmatmulexp``.
    """
    factors = log_factors()
    xp = namespace(*factors)
    shift_a, shift_b = (xp.max(log_values, axis=1) for log_values in factors)  # (l,), (r,)
    a, b = exp_less(factors[0], shift_a[:, None]), exp_less(factors[1], shift_b[:, None])
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


def _sum_again(result: Array, doubtful: Array, log_a: Array, log_b: Array) -> None:
    """Fill the doubtful entries of ``result`` by log-sum-exp; rows and columns of −inf alone are right already."""
    xp = namespace(log_a, log_b)
    reachable = xp.any(log_a > -xp.inf, axis=1)[:, None] & xp.any(log_b > -xp.inf, axis=0)[None, :]
    rows, columns = xp.nonzero(doubtful & reachable)
    step = max(1, BLOCK_CELLS // log_a.shape[1])
    for start in range(0, rows.shape[0], step):
        row, column = rows[start : start + step], columns[start : start + step]
        result[row, column] = logsumexp(log_a[row] + log_b[:, column].T, axis=1)


def exp_less(values: Array, shift: Array) -> Array:
    """exp(v − shift) of an array that nobody else needs: NumPy's is put in its place, which saves passes over memory.

    Of other libraries it is a new array: what they differentiate must not be written over.
    """
    if isinstance(values, np.ndarray):
        values -= shift
        return np.exp(values, out=values)
    return namespace(values).exp(values - shift)


def underflow_floor(reference: Array, n_terms: int) -> float:
    """Smallest sum of ``n_terms`` products, each of factors at most 1, that underflow cannot have spoilt.

    Every product loses at most the smallest normal number, so ``n_terms`` times that number over the machine epsilon
    keeps the relative loss below one rounding: about 1e-288 for 10 000 terms in float64, 1e-27 in float32.
    """
    limits = namespace(reference).finfo(reference.dtype)
    return float(n_terms) * float(limits.smallest_normal) / float(limits.eps)


def _finite_max(values: Array, axis: int) -> Array:
    """Maximum along ``axis``, kept as an axis of length 1, with 0 in place of −inf."""
    xp = namespace(values)
    largest = xp.max(values, axis=axis, keepdims=True)
    return xp.where(largest > -xp.inf, largest, xp.zeros_like(largest))


def safe_log(values: Array) -> Array:
    """Logarithm that maps 0 to −inf without a warning."""
    xp = namespace(values)
    zero = values == 0
    if not bool(xp.any(zero)):
        return xp.log(values)
    ones = xp.ones_like(values)
    return xp.where(zero, -xp.inf * ones, xp.log(xp.where(zero, ones, values)))


class ColumnSets(NamedTuple):
    """Which of g columns belong to each of ``size`` sets."""

    order: IntArray  # (g,) the columns, set by set
    start: IntArray  # (q,) where each set that has columns begins among them
    present: IntArray  # (q,) which sets those are
    size: int

    @classmethod
    def of(cls, member: IntArray, size: int) -> ColumnSets:
        """From the set of each column, (g,)."""
        order = np.argsort(member, kind="stable")
        present, start = np.unique(member[order], return_index=True)
        return cls(order, start, present, size)

    def logsumexp(self, values: FloatArray) -> FloatArray:
        r"""Log-sum-exp over the columns (n, g) of every set, (n, size); −inf for a set without columns.

        .. math:: \text{out}_{js} = \log \sum_{z \in s} \exp(a_{jz})
        """
        ordered = values[:, self.order]  # (n, g), nobody else's
        largest = np.maximum.reduceat(ordered, self.start, axis=1)  # (n, q)
        shift = np.where(largest > -np.inf, largest, 0.0)
        ordered -= np.repeat(shift, np.diff(self.start, append=len(self.order)), axis=1)
        sums = np.add.reduceat(np.exp(ordered, out=ordered), self.start, axis=1)
        result = np.full((len(values), self.size), -np.inf)
        result[:, self.present] = safe_log(sums) + shift
        return result
