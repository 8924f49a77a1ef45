r"""Posteriors of groups and attributes under any prior, and the risk of partially labelled samples.

With ``log_score`` s(z) = log q(z) − B*(z) over the candidate groups (paper, label "hatq" in docs/maths.md),

.. math:: \log \hat q(z|x) = -\langle \sigma(z), E(x) \rangle + s(z) - \log \sum_{z'} \exp(\ldots)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from compshift._errors import InputError
from compshift.core.arrays import Array, BoolArray, IntArray, index_like, like, log_softmax, logmatmulexp, namespace
from compshift.core.energy import GroupTable, Risk, above_lowest, group_energies, group_expectations, log_evidence
from compshift.core.groups import GroupSpace, distinct_codes


def group_log_posterior(
    energies: Array, table: GroupTable, log_score: Array, position: IntArray | None = None
) -> Array:
    """Return log q̂(z|x) of every candidate group, (n, g), or only of the groups at ``position`` (q,), (n, q).

    A position of −1 marks a group that is not a candidate and gives −inf.
    """
    xp = namespace(energies)
    if position is None:
        position = np.arange(len(table.row))
    energies, log_score = above_lowest(energies, table.space), like(log_score, energies)
    logits = log_score[position] - group_energies(energies, table.space, table.codes[position])
    logits = logits - xp.expand_dims(log_evidence(energies, table, log_score), axis=1)  # (n, q)
    return logits + like(np.where(position < 0, -np.inf, 0.0), energies)


def marginal_log_posterior(energies: Array, table: GroupTable, log_score: Array, attribute: int) -> Array:
    """Return log q̂(z_i|x) of every value of one attribute, (n, d_i), without an (n, g) array."""
    return log_softmax(marginal_log_sums(energies, table, log_score, attribute))


def marginal_log_sums(energies: Array, table: GroupTable, log_score: Array, attribute: int) -> Array:
    """Return the unnormalised log posterior of every value of one attribute, (n, d_i).

    It is the log-sum-exp of s(z) − ⟨σ(z), E(x)⟩ over the groups z with that value, up to a term that depends on x
    alone.
    """
    log_left, log_right = table.halves(above_lowest(energies, table.space))
    scores = table.fill(like(log_score, energies))  # (l, r)
    split = table.left.shape[1]
    if attribute < split:
        log_half = log_left + logmatmulexp(log_right, scores.T)  # (n, l)
        value_of = table.left[:, attribute]
    else:
        log_half = log_right + logmatmulexp(log_left, scores)  # (n, r)
        value_of = table.right[:, attribute - split]
    cardinality = table.space.cardinalities[attribute]
    if not np.array_equal(value_of, np.arange(cardinality)):
        member = np.where(value_of[:, None] == np.arange(cardinality), 0.0, -math.inf)
        log_half = logmatmulexp(log_half, like(member, energies))  # (n, d_i)
    return log_half


class Pattern(NamedTuple):
    """Samples with the same known attribute values, and the seen groups that have those values."""

    rows: IntArray  # (r,) row numbers of the samples
    agreeing: IntArray  # (q,) positions among the seen groups
    table: GroupTable  # table of the q agreeing groups


def agreement(groups: IntArray, known: IntArray) -> BoolArray:
    """Return whether each of the groups (g, m) has the known values (m,), in which −1 marks an unknown value, (g,)."""
    chosen = np.flatnonzero(known >= 0)
    return np.asarray((groups[:, chosen] == known[chosen]).all(axis=1))


def rows_by_known_values(space: GroupSpace, codes: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield each distinct row (m,) of ``codes`` (n, m), with −1 for unknown values, and its row numbers (r,)."""
    found, position = distinct_codes(codes + 1, [size + 1 for size in space.cardinalities])
    order = np.argsort(position, kind="stable")
    yield from zip(found - 1, np.split(order, np.flatnonzero(np.diff(position[order])) + 1), strict=True)


def known_patterns(space: GroupSpace, seen_groups: IntArray, codes: IntArray) -> tuple[Pattern, ...]:
    """Return the rows of ``codes`` (n, m), in which −1 marks a missing value, collected by their known values.

    Raise if no group of ``seen_groups`` (k, m) has the known values of a row.
    """
    patterns = []
    for known, rows in rows_by_known_values(space, codes):
        agreeing = np.flatnonzero(agreement(seen_groups, known))
        if not len(agreeing):
            raise _no_group(space, known, len(rows))
        patterns.append(Pattern(rows, agreeing, GroupTable.of(space, seen_groups[agreeing])))
    return tuple(patterns)


def partial_risk(energies: Array, sample_weight: Array, seen: GroupTable, pattern: Pattern, log_score: Array) -> Risk:
    r"""Return the risk of the samples of one pattern, and its gradients.

    A sample contributes the negative log of the total probability of K, the seen groups that have its known values,

    .. math::

        -\log \sum_{z \in K} \tilde p(z|x) = c(x) - c_K(x), \qquad
        c_K(x) = \log \sum_{z \in K} \exp(-\langle \sigma(z), E(x) \rangle + s(z))

    with the score s(z) and the evidence c(x) of step 1. The gradient of c_K is the vector of marginals of the posterior
    within K, ``r_x(z) = p̃(z|x) / Σ_{z' ∈ K} p̃(z'|x)``, with a negative sign:

    .. math::

        R = \sum_x \omega_x (c(x) - c_K(x)), \quad
        \frac{\partial R}{\partial E_i(x, v)} = \omega_x \left(r_x(z_i = v) - \tilde p(z_i = v | x)\right), \quad
        \frac{\partial R}{\partial s(z)} = \sum_x \omega_x \left(\tilde p(z|x) - r_x(z)\right)

    ``energies`` (n, D) and ``sample_weight`` (n,) belong to the samples of the pattern, ``log_score`` (k,) to all seen
    groups. For a fully labelled sample, K is a single group and c − c_K is the risk of step 1.
    """
    log_score, sample_weight = like(log_score, energies), like(sample_weight, energies)
    agreeing = index_like(pattern.agreeing, energies)
    evidence, values, groups = group_expectations(energies, sample_weight, seen, log_score)
    known_evidence, known_values, known_groups = group_expectations(
        energies, sample_weight, pattern.table, log_score[agreeing]
    )
    groups[agreeing] = groups[agreeing] - known_groups
    return Risk(sample_weight @ (evidence - known_evidence), known_values - values, groups)


def posterior_totals(energies: Array, sample_weight: Array, pattern: Pattern, log_score: Array) -> Array:
    """Return the expected weight of each agreeing group among samples of one pattern, Σ_x ω r_x(z), (q,)."""
    log_score, sample_weight = like(log_score, energies), like(sample_weight, energies)
    agreeing_score = log_score[index_like(pattern.agreeing, energies)]
    return group_expectations(energies, sample_weight, pattern.table, agreeing_score)[2]


def posterior_sums(energies: Array, sample_weight: Array, pattern: Pattern, log_score: Array) -> Array:
    """Return the expected sum of the energies in each agreeing group, Σ_x ω r_x(z) E(x), (q, D)."""
    log_score, sample_weight = like(log_score, energies), like(sample_weight, energies)
    agreeing_score = log_score[index_like(pattern.agreeing, energies)]
    responsibility = namespace(energies).exp(group_log_posterior(energies, pattern.table, agreeing_score))  # (n, q)
    return (responsibility * sample_weight[:, None]).T @ energies


def _no_group(space: GroupSpace, known: IntArray, n_rows: int) -> InputError:
    """Return the error for rows whose known values occur together in no complete row."""
    pairs = [
        f"{name}={values[code]!r}"
        for name, values, code in zip(space.names, space.values, known, strict=True)
        if code >= 0
    ]
    return InputError(
        f"{n_rows} row{'s' * (n_rows > 1)} with missing attributes {'have' if n_rows > 1 else 'has'} "
        f"{', '.join(pairs)}, which no complete row has: complete one such row, or leave "
        f"{'them' if n_rows > 1 else 'it'} out"
    )
