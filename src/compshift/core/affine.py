r"""Affine extrapolation: groups inside the affine hull as affine combinations of seen groups.

.. math:: \sigma(z') = \sum_z \alpha_z \, \sigma(z), \qquad \sum_z \alpha_z = 1

The weights α extrapolate any additive function of groups from the seen groups: given values (``extrapolate_additive``)
or the log posterior of any classifier (``affine_log_posterior``). They also give the variance of the extrapolation
(``extrapolation_leverage``). If several combinations give the same group, a rule in ``WEIGHTS`` chooses one.
"""

from __future__ import annotations

import math
import numbers
from typing import Any, NamedTuple

import numpy as np

from compshift._checks import check_codes, check_finite, check_numbers
from compshift._errors import InputError, an, check_name, listing
from compshift.core.arrays import BoolArray, FloatArray, IntArray, log_softmax, logsumexp, row_blocks, safe_log
from compshift.core.combination import tries_per_group
from compshift.core.groups import GroupSpace, check_space, distinct_codes, locate_codes
from compshift.core.hull import AffineHull

WEIGHTS = ("minimum-norm", "minimum-variance", "sparse")
"""Rules that choose the weights α: with the least Σ α², the least Σ α²/n for n samples per group, or few groups."""

MIN_INVERSE_TEMPERATURE = 1e-3
"""Smallest inverse temperature that ``inverse_temperature`` returns."""

MAX_INVERSE_TEMPERATURE = 1e3
"""Largest inverse temperature that ``inverse_temperature`` returns."""

ADDITIVE_TOLERANCE = 1e-9
"""Largest deviation of floats from an additive function that ``extrapolate_additive`` accepts, relative to the largest
absolute value, or to 1 if that is larger."""


def affine_weights(hull: AffineHull, codes: IntArray, kind: str, seen_weight: FloatArray) -> FloatArray:
    """Return the weights α (g, k) of the seen groups that give each of the groups (g, m), all inside the hull.

    A seen group has weight 1 on itself. ``kind``, one of ``WEIGHTS``, chooses a combination for an unseen group:
    ``"minimum-norm"`` has the least Σ α², ``"minimum-variance"`` the least Σ α²/n, where n are the sample counts
    ``seen_weight`` (k,) of the seen groups, and ``"sparse"`` has the fewest groups; see ``AffineHull.combination``.
    """
    check_name("weights", kind, WEIGHTS)
    in_seen = locate_codes(codes, hull.observed, hull.space.cardinalities)  # (g,)
    unseen = np.flatnonzero(in_seen < 0)
    weights = np.zeros((len(codes), len(hull.observed)))
    weights[in_seen >= 0, in_seen[in_seen >= 0]] = 1.0
    if kind == "sparse":
        tries = tries_per_group(len(unseen))
        for row in unseen:
            weights[row] = hull.weights(codes[row], seen_weight, tries).astype(np.float64)
    else:
        precision = seen_weight if kind == "minimum-variance" else np.ones(len(hull.observed))
        weights[unseen] = least_squares_weights(hull, codes[unseen], precision)
    return weights


def least_squares_weights(hull: AffineHull, codes: IntArray, precision: FloatArray) -> FloatArray:
    r"""Return the weights (g, k) with the least Σ α²/``precision`` that give each group (g, m), all inside the hull.

    .. math:: \alpha = N^{1/2} \, (S^\top N^{1/2})^+ \, \sigma(z')

    S (k, D) are the seen codes and N is the diagonal matrix of ``precision`` (k,). The rank of S is known exactly, so
    no tolerance decides which singular values count. A second step, applied to the residual of the first, corrects
    rounding errors.
    """
    scale = np.sqrt(precision / precision.max())  # (k,)
    seen = hull.space._one_hot(hull.observed)  # (k, D)
    inverse = scale[:, None] * _pseudo_inverse(seen.T * scale, hull.rank)  # (k, D)
    wanted = hull.space._one_hot(codes)  # (g, D)
    weights = wanted @ inverse.T  # (g, k)
    return np.asarray(weights + (wanted - weights @ seen) @ inverse.T)


def value_weights(hull: AffineHull) -> FloatArray:
    r"""Return the matrix (D, k) that fits an additive function F to values ℓ of the seen groups by least squares.

    .. math:: F_v = \sum_z (S^+)_{vz} \, \ell_z

    S (k, D) are the seen codes. F has one entry per attribute value v; the sum of the entries of a group's values
    approximates the group's ℓ.
    """
    return _pseudo_inverse(hull.space._one_hot(hull.observed), hull.rank)


def _pseudo_inverse(matrix: FloatArray, rank: int) -> FloatArray:
    """Return the Moore–Penrose inverse of a matrix of known rank."""
    left, singular, right = np.linalg.svd(matrix, full_matrices=False)
    result: Any = (right[:rank].T / singular[:rank]) @ left[:, :rank].T
    return np.asarray(result)


class LogPartition(NamedTuple):
    """Log mean of exp s(x, z') over samples for each group z', and its effective sample size; see ``log_partition``."""

    value: FloatArray  # (g,)
    effective_sample_size: FloatArray  # (g,)


def log_floored(probabilities: FloatArray, floor: float) -> tuple[FloatArray, BoolArray]:
    """Return the log of max(probabilities, floor), (n, k), and a mask of the probabilities below ``floor``."""
    low = probabilities < floor
    return np.log(np.where(low, floor, probabilities)), low


def log_loss(logits: FloatArray, position: IntArray, sample_weight: FloatArray) -> float:
    """Return the weighted mean negative log-likelihood of the samples' groups ``position`` (n,) under logits (n, k)."""
    log_likelihood = log_softmax(logits)[np.arange(len(position)), position]
    return -float(np.average(log_likelihood, weights=sample_weight))


def inverse_temperature(log_proba: FloatArray, position: IntArray, sample_weight: FloatArray) -> float:
    r"""Return the β between 1e-3 and 1e3 with which ``softmax(β · log_proba)`` gives the highest likelihood.

    .. math:: \min_\beta \; -\sum_x \omega_x \, \log \mathrm{softmax}(\beta \, \ell(x))_{z(x)}

    Here ℓ is ``log_proba`` (n, k), z(x) is the true group of a sample, ``position`` (n,), and ω its weight. The
    objective is convex in β. Its derivative is the mean of ℓ under the model minus the mean of ℓ at the true groups;
    its second derivative is the variance of ℓ under the model. The minimum is found by Newton steps inside a bracket.
    """
    weight = sample_weight / sample_weight.sum()
    observed = float(weight @ log_proba[np.arange(len(position)), position])

    def derivatives(beta: float) -> tuple[float, float]:
        proba = np.exp(log_softmax(beta * log_proba))
        mean = (proba * log_proba).sum(axis=1)  # (n,)
        variance = (proba * (log_proba - mean[:, None]) ** 2).sum(axis=1)
        return float(weight @ mean) - observed, float(weight @ variance)

    if derivatives(MIN_INVERSE_TEMPERATURE)[0] >= 0:
        return MIN_INVERSE_TEMPERATURE
    if derivatives(MAX_INVERSE_TEMPERATURE)[0] <= 0:
        return MAX_INVERSE_TEMPERATURE
    low, high, beta = MIN_INVERSE_TEMPERATURE, MAX_INVERSE_TEMPERATURE, 1.0
    for _ in range(100):
        slope, curvature = derivatives(beta)
        low, high = (beta, high) if slope < 0 else (low, beta)
        step = beta - slope / curvature if curvature > 0 else math.inf
        previous, beta = beta, step if low < step < high else math.sqrt(low * high)
        if abs(beta - previous) <= 1e-10 * beta:
            break
    return beta


def log_partition(log_proba: FloatArray, weights: FloatArray, sample_weight: FloatArray) -> LogPartition:
    r"""Return the log mean of exp s(x, z') over samples, and its effective sample size, for each group z'.

    .. math:: s(x, z') = \sum_z \alpha_z \log p(z|x), \qquad
        \log \frac{\sum_x \omega_x e^{s(x, z')}}{\sum_x \omega_x}, \qquad
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
    r"""Return log q(z'|x) of each candidate, (n, g), from any classifier's log p(z|x) of the seen groups, (n, k).

    .. math::

        \log q(z'|x) = \log q(z') + s(x, z') - \log \mathbb{E}_{x \sim p(x)} \exp s(x, z') + \text{const}(x)

    Paper, label "test-train-classifier-rel" in docs/maths.md, with s(x, z') as in ``log_partition``. ``weights`` (g, k)
    are α, and ``log_score`` (g,) is log q(z') minus the log partition.
    """
    return np.asarray(log_softmax(log_proba @ weights.T + log_score))


def extrapolation_leverage(hull: AffineHull, codes: IntArray) -> FloatArray:
    r"""Return the variance (q,) at each group (q, m) of an additive function fitted to the seen groups.

    .. math:: h(z') = \min \Big\{ \sum_z \alpha_z^2 : \sigma(z') = \sum_z \alpha_z \sigma(z) \Big\}

    The function is known at each seen group with an error of variance 1. The variance of the fit is at most 1 at a seen
    group and infinite outside the hull. With two attributes it is an electrical resistance: that between the two values
    of the group in the graph that has values as nodes and seen groups as resistors of 1 ohm. So it grows with the
    length of the path between the two values, and decreases if there are several paths.
    """
    inside = hull._contains(codes)
    result = np.full(len(codes), np.inf)
    weights = least_squares_weights(hull, codes[inside], np.ones(len(hull.observed)))
    result[inside] = (weights**2).sum(axis=1)
    return result


def extrapolate_additive(observed_codes: Any, values: Any, query_codes: Any, space: GroupSpace) -> Any:
    r"""Extrapolate an additive function from the groups where it is known to groups inside their affine hull.

    .. math:: f(z') = \sum_j \alpha_j f(z^{(j)}) \quad \text{where} \quad \sigma(z') = \sum_j \alpha_j \sigma(z^{(j)})

    Paper, "Extrapolation of Discrete Additive Functions".

    Parameters
    ----------
    observed_codes : array (k, m)
        Codes of the groups where the function is known.
    values : array (k,)
        Values of the function at these groups. An object array of integers or fractions gives exact fractions.
    query_codes : array (q, m)
        Codes of the groups to extrapolate to.
    space : GroupSpace
        The attributes and their values.

    Returns
    -------
    array (q,)
        Values of the function: float64, or fractions if ``values`` are exact.

    Raises
    ------
    InputError
        If a group of ``query_codes`` is outside the hull, or if no additive function has these ``values``.

    Examples
    --------
    >>> from compshift import GroupSpace, extrapolate_additive
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
        odd = [value for value in known if not isinstance(value, numbers.Rational)]
        if odd:
            raise InputError(
                f"values is an object array with {odd[0]!r}, {an(type(odd[0]).__name__)}: an object array must hold "
                "integers or fractions; pass other numbers as an array of floats"
            )
    else:
        check_finite(known, "values")
    hull = AffineHull(space, observed)
    outside = query[~hull._contains(query)]
    if len(outside):
        raise InputError(
            f"{len(outside)} of the {len(query)} groups of query_codes are outside the affine hull of observed_codes, "
            f"so their values are not determined: remove {listing(space.label(code) for code in outside)}, or pass "
            "values of more groups"
        )
    groups, position = distinct_codes(observed, space.cardinalities)
    first = np.full(len(groups), -1, dtype=np.int64)
    first[position[::-1]] = np.arange(len(observed))[::-1]  # first row of each group
    function = hull._span.interpolate(known[first[hull._basis]])  # (D,)
    fitted = function[observed + space.offsets].sum(axis=1)
    difference = np.abs(fitted - known)
    scale = max(1, np.abs(known).max(initial=0))
    if (difference > (0 if exact else ADDITIVE_TOLERANCE * scale)).any():
        worst = int(np.argmax(difference))
        raise InputError(
            f"no additive function has these values: at {space.label(observed[worst])} the values of the other groups "
            f"give {float(fitted[worst]):g}, not {float(known[worst]):g}; pass the values of an additive function"
        )
    return function[query + space.offsets].sum(axis=1)
