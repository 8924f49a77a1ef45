"""Sums of exponentials that neither overflow nor lose digits."""

from collections.abc import Callable

import numpy as np

from compshift.core.arrays import BLOCK_CELLS, Array, namespace


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
