r"""Affine weights: groups inside the hull as combinations of seen ones.

.. math:: \sigma(z') = \sum_z \alpha_z \, \sigma(z), \qquad \sum_z \alpha_z = 1

Where several combinations give the same group, they differ in how far they spread over the seen groups.

The posterior of groups that training lacks, from the posterior of those that it has.

.. math::

    \log q(z'|x) = \log q(z') + s(x, z') - \log \mathbb{E}_{x \sim p(x)} \exp s(x, z') + \text{const}(x), \qquad
    s(x, z') = \sum_z \alpha_z \log p(z|x)

Paper, eq. "test-train-classifier-rel"; α are the affine weights of z'. Nothing here depends on what gave p(z|x).

How far a group is from what training has: the variance of its extrapolation.

Additive functions of groups, extrapolated exactly (paper, "Extrapolation of Discrete Additive Functions").
"""

from __future__ import annotations

import math
import numbers
from typing import Any, NamedTuple

import numpy as np

from compshift._checks import check_codes, check_finite, check_numbers
from compshift._errors import InputError, an, check_name, listing
from compshift.core.arrays import BoolArray, FloatArray, IntArray, log_softmax, logsumexp, row_blocks, safe_log
from compshift.core.groups import GroupSpace, check_space
from compshift.core.hull import AffineHull

WEIGHTS = ("minimum-norm", "minimum-variance", "sparse")


def affine_weights(hull: AffineHull, codes: IntArray, kind: str, seen_weight: FloatArray) -> FloatArray:
    """Weights α (g, k) on the seen groups that give each group inside the hull; a seen group is 1 on itself.

    ``kind`` says which of the combinations that give an unseen group: ``"minimum-norm"`` has the least Σ α²,
    ``"minimum-variance"`` the least Σ α²/n over the rows n of the seen groups (``seen_weight``, (k,)), and ``"sparse"``
    is ``hull.weights``, with two attributes the shortest path.
    """
    check_name("weights", kind, WEIGHTS)
    own = hull.space.locate(codes, hull.observed)  # (g,)
    unseen = np.flatnonzero(own < 0)
    weights = np.zeros((len(codes), len(hull.observed)))
    weights[own >= 0, own[own >= 0]] = 1.0
    if kind == "sparse":
        for row in unseen:
            weights[row] = hull.weights(codes[row]).astype(np.float64)
    else:
        precision = seen_weight if kind == "minimum-variance" else np.ones(len(hull.observed))
        weights[unseen] = least_squares_weights(hull, codes[unseen], precision)
    return weights


def least_squares_weights(hull: AffineHull, codes: IntArray, precision: FloatArray) -> FloatArray:
    r"""Weights (g, k) with the least Σ α²/``precision`` among those that give each group, all of them inside the hull.

    .. math:: \alpha = N^{1/2} \, (S^\top N^{1/2})^+ \, \sigma(z')

    S (k, D) are the seen codes and N is the diagonal of ``precision`` (k,). The rank of S is known exactly, so that no
    tolerance decides which singular values count. A second step on what the first left over removes its rounding.
    """
    scale = np.sqrt(precision / precision.max())  # (k,)
    seen = hull.space.one_hot(hull.observed)  # (k, D)
    inverse = scale[:, None] * _pseudo_inverse(seen.T * scale, hull.rank)  # (k, D)
    wanted = hull.space.one_hot(codes)  # (g, D)
    weights = wanted @ inverse.T  # (g, k)
    return np.asarray(weights + (wanted - weights @ seen) @ inverse.T)


def value_weights(hull: AffineHull) -> FloatArray:
    r"""Weights (D, k) that read what is additive off numbers of the seen groups, one row per attribute value.

    .. math:: F_v = \sum_z (S^+)_{vz} \, \ell_z

    are the numbers, one per value, whose sums over a group's values come closest to ℓ in least squares.
    """
    return _pseudo_inverse(hull.space.one_hot(hull.observed), hull.rank)


def _pseudo_inverse(matrix: FloatArray, rank: int) -> FloatArray:
    """Moore–Penrose inverse of a matrix whose rank is known."""
    left, singular, right = np.linalg.svd(matrix, full_matrices=False)
    result: Any = (right[:rank].T / singular[:rank]) @ left[:, :rank].T
    return np.asarray(result)


LOWEST, HIGHEST = 1e-3, 1e3
"""Between these the inverse temperature is looked for."""


class LogPartition(NamedTuple):
    """Log expectation of exp s(x, z') for each group, and how many samples it effectively rests on."""

    value: FloatArray  # (g,)
    effective_sample_size: FloatArray  # (g,)


def log_floored(probabilities: FloatArray, floor: float) -> tuple[FloatArray, BoolArray]:
    """Logarithm of probabilities (n, k), none below ``floor``, and which were below it."""
    low = probabilities < floor
    return np.log(np.where(low, floor, probabilities)), low


def log_loss(logits: FloatArray, position: IntArray, sample_weight: FloatArray) -> float:
    """Mean negative log-likelihood of the groups ``position`` (n,) under logits (n, k)."""
    own = log_softmax(logits)[np.arange(len(position)), position]
    return -float(np.average(own, weights=sample_weight))


def inverse_temperature(log_proba: FloatArray, position: IntArray, sample_weight: FloatArray) -> float:
    r"""The β that makes ``softmax(β · log_proba)`` the most likely, between 1e-3 and 1e3.

    .. math:: \min_\beta \; -\sum_x \omega_x \, \log \mathrm{softmax}(\beta \, \ell(x))_{z(x)}

    It is convex in β: the derivative is the mean of ℓ under the model less that of the groups ``position`` (n,) that
    rows have, and its own derivative is the variance of ℓ under the model. Newton's steps, inside a bracket.
    """
    weight = sample_weight / sample_weight.sum()
    observed = float(weight @ log_proba[np.arange(len(position)), position])

    def derivatives(beta: float) -> tuple[float, float]:
        proba = np.exp(log_softmax(beta * log_proba))
        mean = (proba * log_proba).sum(axis=1)  # (n,)
        variance = (proba * (log_proba - mean[:, None]) ** 2).sum(axis=1)
        return float(weight @ mean) - observed, float(weight @ variance)

    if derivatives(LOWEST)[0] >= 0:
        return LOWEST
    if derivatives(HIGHEST)[0] <= 0:
        return HIGHEST
    low, high, beta = LOWEST, HIGHEST, 1.0
    for _ in range(100):
        slope, curvature = derivatives(beta)
        low, high = (beta, high) if slope < 0 else (low, beta)
        step = beta - slope / curvature if curvature > 0 else math.inf
        previous, beta = beta, step if low < step < high else math.sqrt(low * high)
        if abs(beta - previous) <= 1e-10 * beta:
            break
    return beta


def log_partition(log_proba: FloatArray, weights: FloatArray, sample_weight: FloatArray) -> LogPartition:
    r"""Log mean of exp s(x, z') over training samples, and its effective sample size.

    .. math:: \log \frac{\sum_x \omega_x e^{s(x, z')}}{\sum_x \omega_x}, \qquad
        \mathrm{ESS} = \frac{(\sum_x \omega_x e^{s(x, z')})^2}{\sum_x (\omega_x e^{s(x, z')})^2}

    ``log_proba`` (n, k) are log p(z|x) of the seen groups, ``weights`` (g, k) are α, ``sample_weight`` (n,) is ω > 0.
    """
    log_first = log_second = np.full(len(weights), -np.inf)
    for rows in row_blocks(len(log_proba), len(weights)):
        terms = log_proba[rows] @ weights.T + safe_log(sample_weight[rows])[:, None]  # (b, g)
        log_first = np.logaddexp(log_first, logsumexp(terms, axis=0))
        log_second = np.logaddexp(log_second, logsumexp(2 * terms, axis=0))
    return LogPartition(log_first - math.log(sample_weight.sum()), np.exp(2 * log_first - log_second))


def affine_log_posterior(log_proba: FloatArray, weights: FloatArray, log_score: FloatArray) -> FloatArray:
    """Log q(z'|x) of each candidate, (n, g); ``log_score`` (g,) is log q(z') less the log partition."""
    return np.asarray(log_softmax(log_proba @ weights.T + log_score))


def extrapolation_leverage(hull: AffineHull, codes: IntArray) -> FloatArray:
    r"""Variance at each group (q, m) of an additive function that is known with variance 1 at each seen group, (q,).

    .. math:: h(z') = \min \Big\{ \sum_z \alpha_z^2 : \sigma(z') = \sum_z \alpha_z \sigma(z) \Big\}

    It is at most 1 for seen groups and grows with the length of the way from the seen groups to an unseen one; where
    several ways lead there it falls, as resistances in parallel do. Groups outside the hull are infinitely far.
    """
    inside = hull.contains(codes)
    result = np.full(len(codes), np.inf)
    weights = least_squares_weights(hull, codes[inside], np.ones(len(hull.observed)))
    result[inside] = (weights**2).sum(axis=1)
    return result


ADDITIVE_TOLERANCE = 1e-9
"""Relative disagreement of the given values up to which they pass for additive."""


def extrapolate_additive(observed_codes: Any, values: Any, query_codes: Any, space: GroupSpace) -> Any:
    r"""Values of an additive function on groups inside the affine hull of those where it is known.

    .. math:: f(z') = \sum_j \alpha_j f(z^{(j)}) \quad \text{where} \quad \sigma(z') = \sum_j \alpha_j \sigma(z^{(j)})

    ``values`` (k,) belong to ``observed_codes`` (k, m). Numbers give float64; an object array of integers or fractions
    gives exact fractions. Groups outside the hull are refused by name, and so are values that no additive function has.

    >>> space = GroupSpace.from_cardinalities([2, 2])
    >>> extrapolate_additive([[0, 0], [0, 1], [1, 0]], [1.0, 3.0, 11.0], [[1, 1]], space)
    array([13.])
    """
    check_space(space)
    observed = check_codes(observed_codes, space.cardinalities, "observed_codes")
    query = check_codes(query_codes, space.cardinalities, "query_codes")
    exact = getattr(getattr(values, "dtype", None), "kind", "") == "O"
    known = values if exact else check_numbers(values, "values", "pass one number for each group")
    if known.shape != (len(observed),):
        raise InputError(f"values has shape {known.shape}: pass one number for each of the {len(observed)} groups")
    if exact:
        _check_exact(known)
    else:
        check_finite(known, "values")
    hull = AffineHull(space, observed)
    outside = query[~hull.contains(query)]
    if len(outside):
        raise InputError(
            f"{len(outside)} of the {len(query)} groups are outside the affine hull of the known ones, so that their "
            f"values are not determined: {listing(space.label(code) for code in outside)}"
        )
    groups, position = space.distinct(observed)
    first = np.full(len(groups), -1, dtype=np.int64)
    first[position[::-1]] = np.arange(len(observed))[::-1]  # where each group is given first
    function = hull._span.interpolate(known[first[hull._basis]])  # (D,)
    found = function[observed + space.offsets].sum(axis=1)
    difference = np.abs(found - known)
    scale = max(1, np.abs(known).max(initial=0))
    if (difference > (0 if exact else ADDITIVE_TOLERANCE * scale)).any():
        worst = int(np.argmax(difference))
        raise InputError(
            f"no additive function has these values: at {space.label(observed[worst])} the others give "
            f"{float(found[worst]):g}, not {float(known[worst]):g}"
        )
    return function[query + space.offsets].sum(axis=1)


def _check_exact(values: Any) -> None:
    """Refuse objects other than integers and fractions."""
    odd = [value for value in values if not isinstance(value, numbers.Rational)]
    if odd:
        raise InputError(
            f"values holds {odd[0]!r}, {an(type(odd[0]).__name__)}: exact values are integers and fractions; "
            "pass others as an array of floats"
        )
