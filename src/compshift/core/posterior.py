r"""Inference: probabilities of groups and of single attributes under any prior.

With ``log_score`` s(z) = log q(z) − B*(z) over the candidate groups (paper, eq. "hatq"),

.. math:: \log \hat q(z|x) = -\langle \sigma(z), E(x) \rangle + s(z) - \log \sum_{z'} \exp(\ldots)
"""

import math

import numpy as np

from compshift.core.arrays import Array, IntArray, like, namespace
from compshift.core.energy import GroupTable, above_lowest, group_energies
from compshift.core.logspace import log_softmax, logmatmulexp
from compshift.core.objective import log_evidence


def group_log_posterior(
    energies: Array, table: GroupTable, log_score: Array, position: IntArray | None = None
) -> Array:
    """Log q̂(z|x) of every candidate group, (n, g), or of those at ``position``, (n, q).

    A position of −1 stands for a group that is no candidate: its probability is 0.
    """
    xp = namespace(energies)
    if position is None:
        position = np.arange(len(table.row))
    energies, log_score = above_lowest(energies, table.space), like(log_score, energies)
    logits = log_score[position] - group_energies(energies, table.space, table.codes[position])
    logits = logits - xp.expand_dims(log_evidence(energies, table, log_score), axis=1)  # (n, q)
    return logits + like(np.where(position < 0, -np.inf, 0.0), energies)


def marginal_log_posterior(energies: Array, table: GroupTable, log_score: Array, attribute: int) -> Array:
    """Log q̂(z_i|x) of every value of one attribute, (n, d_i), without a column per group."""
    return log_softmax(marginal_log_sums(energies, table, log_score, attribute))


def marginal_log_sums(energies: Array, table: GroupTable, log_score: Array, attribute: int) -> Array:
    """Log of the sum over the groups with each value of one attribute, (n, d_i): ``marginal_log_posterior`` but for
    what is common to a row. The sums of two sets of groups can be added.
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
