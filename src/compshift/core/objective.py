r"""Step 1: the risk of the additive energy classifier over the seen groups, and its gradient.

For seen groups z, with ``log_score`` s(z) = log p̂(z) − B(z) (paper, eq. "phat" and "CRM1"),

.. math::

    \log \tilde p(z|x) = -\langle \sigma(z), E(x) \rangle + s(z) - c(x), \qquad
    c(x) = \log \sum_{z'} \exp(-\langle \sigma(z'), E(x) \rangle + s(z'))

Groups that training lacks are not in the sum. The gradient of c is the vector of the classifier's own marginals, so
value and gradient come from the same three matrix products.
"""

from typing import NamedTuple

import numpy as np

from compshift.core.arrays import BLOCK_CELLS, Array, index_like, like, namespace, sums_by, weighted_sum
from compshift.core.energy import GroupTable, group_energies
from compshift.core.logspace import exp_less, logsumexp, underflow_floor


class Risk(NamedTuple):
    """Weighted sum of negative log-likelihoods over samples, with its derivatives."""

    value: Array  # ()
    energy_gradient: Array  # (n, D)
    score_gradient: Array  # (k,) with respect to log_score, the negative of that with respect to the bias


class _Partition(NamedTuple):
    """The sum over seen groups, in parts that are at most 1 each. Samples come last: sums and maxima over the few
    combinations of a sample are then fast, if energies are laid out value by value.
    """

    left: Array  # (l, n) exp of the row energies, scaled per sample
    right: Array  # (r, n)
    table: Array  # (l, r) exp of the scores, scaled
    left_sum: Array  # (r, n): tableᵀ · left
    total: Array  # (n,) the scaled sum
    log_evidence: Array  # (n,) c(x)
    doubtful: Array  # (n,) whether underflow may have spoilt the scaled sum


def log_evidence(energies: Array, seen: GroupTable, log_score: Array) -> Array:
    """c(x), the log of the sum over the seen groups, (n,)."""
    log_score = like(log_score, energies)
    parts = _partition(energies, seen, log_score)
    evidence = parts.log_evidence
    for rows in _row_parts(parts.doubtful, len(seen.row)):
        evidence[rows] = logsumexp(_seen_logits(energies[rows, :], seen, log_score), axis=1)
    return evidence


def step_one_risk(energies: Array, position: Array, sample_weight: Array, seen: GroupTable, log_score: Array) -> Risk:
    r"""Risk of step 1 and its gradient (paper, eq. "CRM1").

    .. math::

        R = \sum_x \omega_x \left(\langle \sigma(z_x), E(x) \rangle - s(z_x) + c(x)\right), \quad
        \frac{\partial R}{\partial E_i(x, v)} = \omega_x \left(1[z_{x,i} = v] - \tilde p(z_i = v | x)\right)

    ``position`` (n,) says which of the k groups of ``seen`` a sample belongs to, ``sample_weight`` (n,) is ω. Fastest
    where the energies of a value are next to each other in memory, as ``linear_energies`` has them.
    """
    log_score, sample_weight = like(log_score, energies), like(sample_weight, energies)
    evidence, expected_values, expected_groups = group_expectations(energies, sample_weight, seen, log_score)
    loss = evidence - log_score[position]  # (n,)
    gradient = -expected_values  # (n, D)
    rows = index_like(np.arange(energies.shape[0]), energies)
    for columns in index_like((seen.codes + seen.space.offsets).T, energies):  # (k,), one attribute at a time
        own = columns[position]  # (n,)
        loss += energies[rows, own]
        gradient[rows, own] += sample_weight
    group_weight = sums_by(sample_weight, position, len(seen.row))  # (k,)
    return Risk(weighted_sum(sample_weight, loss), gradient, expected_groups - group_weight)


def group_expectations(
    energies: Array, sample_weight: Array, seen: GroupTable, log_score: Array
) -> tuple[Array, Array, Array]:
    """c(x) (n,), the classifier's weighted marginals ω p(v | x) (n, D), and its group totals Σ_x ω p(z | x) (k,)."""
    xp = namespace(energies)
    parts = _partition(energies, seen, log_score)
    evidence, total, weight = parts.log_evidence, parts.total, sample_weight
    any_doubtful = bool(xp.any(parts.doubtful))
    if any_doubtful:  # those rows weigh nothing in the products and are added after them
        total = xp.where(parts.doubtful, xp.ones_like(total), total)
        weight = xp.where(parts.doubtful, xp.zeros_like(weight), weight)

    scale = weight / total  # (n,)
    scaled_left = parts.left
    scaled_left *= scale  # (l, n)
    left_marginal = xp.matmul(parts.table, parts.right)
    left_marginal *= scaled_left  # (l, n)
    right_marginal = parts.left_sum
    right_marginal *= parts.right
    right_marginal *= scale  # (r, n)
    values = seen.by_value(left_marginal.T, right_marginal.T)  # (n, D)
    groups = seen.pick(parts.table * xp.matmul(scaled_left, parts.right.T))  # (k,)

    if any_doubtful:
        one_hot = like(seen.space.one_hot(seen.codes), energies)  # (k, D)
        for rows in _row_parts(parts.doubtful, len(seen.row)):
            logits = _seen_logits(energies[rows, :], seen, log_score)
            evidence[rows] = logsumexp(logits, axis=1)
            posterior = xp.exp(logits - evidence[rows][:, None]) * sample_weight[rows][:, None]  # (rows, k)
            values[rows, :] = xp.matmul(posterior, one_hot)
            groups = groups + xp.sum(posterior, axis=0)
    return evidence, values, groups


def _partition(energies: Array, seen: GroupTable, log_score: Array) -> _Partition:
    """The bilinear sum  Σ_{l,r} left(x, l) · table(l, r) · right(x, r)."""
    xp = namespace(energies)
    log_left, log_right = (half.T for half in seen.halves(energies))  # (l, n), (r, n), and nobody else's
    shift_left, shift_right = xp.max(log_left, axis=0), xp.max(log_right, axis=0)  # (n,)
    shift_table = xp.max(log_score)
    left, right = exp_less(log_left, shift_left), exp_less(log_right, shift_right)
    table = xp.exp(seen.fill(log_score - shift_table))
    left_sum = xp.matmul(table.T, left)
    total = xp.sum(left_sum * right, axis=0)
    doubtful = total < underflow_floor(energies, n_terms=len(seen.left) * len(seen.right))
    safe_total = xp.where(doubtful, xp.ones_like(total), total)
    evidence = xp.log(safe_total) + shift_left + shift_right + shift_table
    return _Partition(left, right, table, left_sum, total, evidence, doubtful)


def _seen_logits(energies: Array, seen: GroupTable, log_score: Array) -> Array:
    """Step-1 logits of every seen group, (n, k); for the few rows that the products cannot serve."""
    return log_score[None, :] - group_energies(energies, seen.space, seen.codes)


def _row_parts(chosen: Array, width: int) -> list[Array]:
    """Numbers of the chosen rows, in portions whose (rows, width) logits stay small."""
    (rows,) = namespace(chosen).nonzero(chosen)
    step = max(1, BLOCK_CELLS // width)
    return [rows[start : start + step] for start in range(0, rows.shape[0], step)]
