"""Sums of exponentials that neither overflow nor lose digits."""

from collections.abc import Sequence

import numpy as np
from array_api_compat import array_namespace

from compshift.core.arrays import BLOCK_CELLS, Array


def logsumexp(values: Array, axis: int) -> Array:
    r"""Logarithm of a sum of exponentials along one axis; −inf where every entry is −inf.

    .. math:: \log \sum_j \exp(v_j)
    """
    xp = array_namespace(values)
    shift = _finite_max(values, axis)
    total = xp.sum(xp.exp(values - shift), axis=axis)
    return _safe_log(total) + xp.squeeze(shift, axis=axis)


def log_softmax(logits: Array) -> Array:
    """Logits (n, q) less what makes the exponentials of each row sum to 1."""
    return logits - logsumexp(logits, axis=1)[:, None]


def logmatmulexp(log_a: Array, log_b: Array) -> Array:
    r"""Matrix product in log space: one GEMM, exact where the GEMM would underflow.

    .. math:: \text{out}_{lr} = \log \sum_j \exp(a_{lj} + b_{jr})

    ``log_a`` (l, j) and ``log_b`` (j, r) may hold −inf; the result is (l, r).
    """
    (result,) = log_power_sums(log_a, log_b, powers=(1,))
    return result


def log_power_sums(log_a: Array, log_b: Array, powers: Sequence[int]) -> list[Array]:
    r"""Sums of powers of a product's terms, in log space; the exponentials are taken once for all powers.

    .. math:: \text{out}^{(q)}_{lr} = \log \sum_j \exp(q \, (a_{lj} + b_{jr}))

    Row and column maxima are taken out before the product, so an entry is inexact only if its scaled sum is so small
    that factors lost to underflow could matter. Those entries are summed again, one log-sum-exp each.
    """
    xp = array_namespace(log_a, log_b)
    shift_a = _finite_max(log_a, axis=1)  # (l, 1)
    shift_b = _finite_max(log_b, axis=0)  # (1, r)
    scaled_a, scaled_b = exp_of_new(log_a - shift_a), exp_of_new(log_b - shift_b)  # at most 1
    floor = underflow_floor(log_a, n_terms=log_a.shape[1])
    results = []
    for power in powers:
        total = xp.matmul(*((scaled_a, scaled_b) if power == 1 else (scaled_a**power, scaled_b**power)))  # (l, r)
        result = _safe_log(total) + power * (shift_a + shift_b)
        doubtful = total < floor
        if bool(xp.any(doubtful)):
            _sum_again(result, doubtful, log_a, log_b, power)
        results.append(result)
    return results


def _sum_again(result: Array, doubtful: Array, log_a: Array, log_b: Array, power: int) -> None:
    """Fill the doubtful entries of ``result`` by log-sum-exp; rows and columns of −inf alone are right already."""
    xp = array_namespace(log_a, log_b)
    reachable = xp.any(log_a > -xp.inf, axis=1)[:, None] & xp.any(log_b > -xp.inf, axis=0)[None, :]
    rows, columns = xp.nonzero(doubtful & reachable)
    step = max(1, BLOCK_CELLS // log_a.shape[1])
    for start in range(0, rows.shape[0], step):
        row, column = rows[start : start + step], columns[start : start + step]
        result[row, column] = logsumexp(power * (log_a[row] + log_b[:, column].T), axis=1)


def exp_of_new(values: Array) -> Array:
    """Exponentials of an array that nobody else needs: NumPy's are put in its place, which saves a pass over memory."""
    return np.exp(values, out=values) if isinstance(values, np.ndarray) else array_namespace(values).exp(values)


def underflow_floor(reference: Array, n_terms: int) -> float:
    """Smallest sum of ``n_terms`` products, each of factors at most 1, that underflow cannot have spoilt.

    Every product loses at most the smallest normal number, so ``n_terms`` times that number over the machine epsilon
    keeps the relative loss below one rounding: about 1e-288 for 10 000 terms in float64, 1e-27 in float32.
    """
    limits = array_namespace(reference).finfo(reference.dtype)
    return float(n_terms) * float(limits.smallest_normal) / float(limits.eps)


def _finite_max(values: Array, axis: int) -> Array:
    """Maximum along ``axis``, kept as an axis of length 1, with 0 in place of −inf."""
    xp = array_namespace(values)
    largest = xp.max(values, axis=axis, keepdims=True)
    return xp.where(largest > -xp.inf, largest, xp.zeros_like(largest))


def _safe_log(values: Array) -> Array:
    """Logarithm that maps 0 to −inf without a warning."""
    xp = array_namespace(values)
    zero = values == 0
    ones = xp.ones_like(values)
    return xp.where(zero, -xp.inf * ones, xp.log(xp.where(zero, ones, values)))
