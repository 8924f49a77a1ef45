r"""Energies of groups and step 1: the risk of the additive energy classifier over the seen groups.

A group's energy is the sum of one energy per attribute value. For seen groups z, with ``log_score``
s(z) = log p̂(z) − B(z) (paper, labels "phat" and "CRM1" in docs/maths.md),

.. math::

    \log \tilde p(z|x) = -\langle \sigma(z), E(x) \rangle + s(z) - c(x), \qquad
    c(x) = \log \sum_{z'} \exp(-\langle \sigma(z'), E(x) \rangle + s(z'))

The sum runs over the seen groups only. ``GroupTable`` computes sums over groups by matrix products, without an (n,
groups) array. The gradient of −c with respect to the energies is the vector of the classifier's marginals p̃(z_i =
v|x), so value and gradient come from the same three matrix products.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from array_api_compat import device

from compshift.core.arrays import (
    BLOCK_CELLS,
    Array,
    FloatArray,
    IntArray,
    exp_less,
    index_like,
    like,
    logsumexp,
    namespace,
    sums_by,
    underflow_floor,
    weighted_sum,
)
from compshift.core.groups import GroupSpace, distinct_codes, one_hot_rows
from compshift.core.sparse import SparseRows

WIDE = 16
"""Average number of values per attribute above which indexing energies is faster than a one-hot matrix product."""

EXP_COST = 50
"""Cost of an exponential relative to a multiplication; it decides where ``GroupTable`` splits the attributes."""


def linear_energies(features: Array, weight: Array) -> Array:
    """Return the linear energies (n, D) of features (n, p), an array or ``SparseRows``, under the weights (D, p).

    They have the type of the features. Each column is contiguous in memory, which makes sums over samples fastest.
    """
    if isinstance(features, SparseRows):
        return np.asfortranarray(features @ weight.T.astype(features.dtype, copy=False))
    return namespace(features).matmul(like(weight, features), features.T).T


def group_energies(energies: Array, space: GroupSpace, codes: IntArray) -> Array:
    r"""Return the energy of each listed group for each sample: the sum of its values' energies.

    .. math:: \langle \sigma(z), E(x) \rangle = \sum_i E_i(x, z_i)

    Paper, label "n2". ``energies`` (n, D), ``codes`` (q, m); the result is (n, q), and each column is contiguous.
    """
    return _column_sums(energies, codes + space.offsets)


def _column_sums(energies: Array, columns: IntArray) -> Array:
    """Return (n, q): for each row of ``columns`` (q, m), the sum of those m columns of energies (n, D)."""
    xp, by_value = namespace(energies), energies.T  # contiguous rows are much faster to index than columns
    first, *others = columns.T  # (q,) each
    total = xp.take(by_value, index_like(first, energies), axis=0)  # (q, n)
    for column in others:
        total = total + xp.take(by_value, index_like(column, energies), axis=0)
    return total.T


def above_lowest(energies: Array, space: GroupSpace) -> Array:
    """Subtract from energies (n, D) the lowest energy of each attribute and sample.

    A constant added to the energies of all values of an attribute cancels in every probability. Far from the training
    data this constant is large, and the differences would lose digits to rounding.
    """
    xp, parts = namespace(energies), []
    for start, size in zip(space.offsets, space.cardinalities, strict=True):
        block = energies[:, int(start) : int(start) + size]
        parts.append(block - xp.min(block, axis=1, keepdims=True))
    return xp.concat(parts, axis=1)


@dataclass(frozen=True, eq=False)
class GroupTable:
    """Groups as cells of a table: rows are combinations of the first attributes, columns of the remaining attributes.

    A group's energy is a row energy plus a column energy, so every sum over groups is a matrix product. Only
    combinations that occur have a row or a column. If all attributes belong to the rows, there is a single column, and
    the table is a plain list of groups.
    """

    space: GroupSpace
    codes: IntArray  # (k, m) codes of the groups
    left: IntArray  # (l, s) codes of the rows, which are combinations of the first s attributes
    right: IntArray  # (r, m − s) codes of the columns
    row: IntArray  # (k,) row of each group
    column: IntArray  # (k,) column of each group
    left_values: FloatArray | None  # (l, D_left) one-hot codes of the rows; None if they are the identity
    right_values: FloatArray | None  # (r, D_right) one-hot codes of the columns; None if they are the identity

    @classmethod
    def of(cls, space: GroupSpace, groups: IntArray) -> GroupTable:
        """Return the table of distinct ``groups`` (k, m), split between attributes where the sums cost least."""
        sizes, m = space.cardinalities, len(space.names)
        full = len(groups) == space.n_groups
        best, cost = m, math.inf
        for split in range(1, m + 1):
            if full:
                n_rows, n_columns = math.prod(sizes[:split]), math.prod(sizes[split:])
            else:
                n_rows = len(_distinct_part(groups[:, :split], sizes[:split])[0])
                n_columns = len(_distinct_part(groups[:, split:], sizes[split:])[0])
            split_cost = EXP_COST * (n_rows + n_columns) + n_rows * n_columns
            if split_cost < cost:
                best, cost = split, split_cost
        left, row = _distinct_part(groups[:, :best], sizes[:best])
        right, column = _distinct_part(groups[:, best:], sizes[best:])
        values = _value_matrix(left, sizes[:best]), _value_matrix(right, sizes[best:])
        return cls(space, groups, left, right, row, column, *values)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and number of columns."""
        return len(self.left), len(self.right)

    @property
    def width(self) -> int:
        """Number of rows plus number of columns: the array elements per sample that a sum over the table needs."""
        return len(self.left) + len(self.right)

    @property
    def left_width(self) -> int:
        """Number of one-hot columns of the attributes that form the rows."""
        return sum(self.space.cardinalities[: self.left.shape[1]])

    def halves(self, energies: Array) -> tuple[Array, Array]:
        """Return the negated energies of the rows (n, l) and of the columns (n, r).

        A group's negated energy is that of its row plus that of its column. The arrays are new and may be
        overwritten. NumPy arrays have the memory order of ``energies``.
        """
        xp, width, split = namespace(energies), self.left_width, self.left.shape[1]
        offsets, halves = self.space.offsets, []
        for part, codes, start, values in (
            (energies[:, :width], self.left, offsets[:split], self.left_values),
            (energies[:, width:], self.right, offsets[split:] - width, self.right_values),
        ):
            if values is None:
                halves.append(-part)
            elif values.shape[1] > WIDE * codes.shape[1]:
                halves.append(-_column_sums(part, codes + start))
            elif isinstance(part, np.ndarray) and part.flags.f_contiguous:
                halves.append(xp.matmul(-like(values, part), part.T).T)
            else:
                halves.append(xp.matmul(part, -like(values, part).T))
        left, right = halves
        return left, right

    def by_value(self, left: Array, right: Array) -> Array:
        """Return, for each attribute value, a sum over the rows or columns of the table that have this value, (n, D).

        For values of the first attributes, ``left`` (n, l) is summed over rows of the table; for values of the others,
        ``right`` (n, r) is summed over columns.
        """
        xp = namespace(left)
        if self.left_values is not None:
            left = xp.matmul(left, like(self.left_values, left))
        if self.right_values is not None:
            right = xp.matmul(right, like(self.right_values, right))
        return xp.concat([left, right], axis=1)

    def fill(self, log_values: Array) -> Array:
        """Return log values of the groups (k,) as a table (l, r), with −inf in cells without a group."""
        xp = namespace(log_values)
        table = xp.full(self.shape, -math.inf, dtype=log_values.dtype, device=device(log_values))
        table[index_like(self.row, table), index_like(self.column, table)] = log_values
        return table

    def pick(self, table: Array) -> Array:
        """Return the values (k,) of the groups from a table (l, r)."""
        return table[index_like(self.row, table), index_like(self.column, table)]


def _distinct_part(codes: IntArray, cardinalities: tuple[int, ...]) -> tuple[IntArray, IntArray]:
    """Return the distinct rows of codes of some attributes (possibly none), and the position of each row among them."""
    if not cardinalities:
        return np.zeros((1, 0), dtype=np.int64), np.zeros(len(codes), dtype=np.int64)
    return distinct_codes(codes, cardinalities)


def _value_matrix(codes: IntArray, cardinalities: tuple[int, ...]) -> FloatArray | None:
    """Return the one-hot rows (q, Σd) of codes of some attributes, or None if they are the identity matrix."""
    if codes.shape[1] == 1 and len(codes) == cardinalities[0] and (codes[:, 0] == np.arange(len(codes))).all():
        return None
    offsets = np.cumsum((0, *cardinalities))[:-1]
    return one_hot_rows(codes + offsets, sum(cardinalities))


class Risk(NamedTuple):
    """Weighted sum of negative log-likelihoods over samples, and its gradients."""

    value: Array  # ()
    energy_gradient: Array  # (n, D)
    score_gradient: Array  # (k,) with respect to log_score; its negative is the gradient with respect to the bias


def step_one_risk(energies: Array, position: Array, sample_weight: Array, seen: GroupTable, log_score: Array) -> Risk:
    r"""Return the risk of step 1 and its gradient (paper, label "CRM1").

    .. math::

        R = \sum_x \omega_x \left(\langle \sigma(z_x), E(x) \rangle - s(z_x) + c(x)\right), \quad
        \frac{\partial R}{\partial E_i(x, v)} = \omega_x \left(1[z_{x,i} = v] - \tilde p(z_i = v | x)\right)

    ``position`` (n,) is the position of each sample's group in ``seen`` (k groups), ``sample_weight`` (n,) is ω.
    Fastest if each column of ``energies`` is contiguous, as in the result of ``linear_energies``.
    """
    log_score, sample_weight = like(log_score, energies), like(sample_weight, energies)
    parts = _partition(energies, seen, log_score)
    evidence, expected_values, expected_groups = _expectations(parts, energies, sample_weight, seen, log_score)
    loss = evidence - log_score[position]  # (n,)
    gradient = -expected_values  # (n, D)
    rows = index_like(np.arange(energies.shape[0]), energies)
    for columns in index_like((seen.codes + seen.space.offsets).T, energies):  # (k,), one attribute at a time
        column = columns[position]  # (n,) one-hot column of each sample's value
        loss += energies[rows, column]
        gradient[rows, column] += sample_weight
    group_weight = sums_by(sample_weight, position, len(seen.row))  # (k,)
    return Risk(weighted_sum(sample_weight, loss), gradient, expected_groups - group_weight)


def expected_risk(energies: Array, code: Array, sample_weight: Array, table: GroupTable, log_score: Array) -> Risk:
    r"""Return the part of the step-1 risk that depends on the energies, for samples with uncertain groups.

    .. math::

        R = \sum_x \omega_x \left(\langle t_x, E(x) \rangle + c(x)\right), \quad
        \frac{\partial R}{\partial E_i(x, v)} = \omega_x \left(t_{x,i,v} - \tilde p(z_i = v | x)\right), \quad
        \frac{\partial R}{\partial s(z)} = \sum_x \omega_x \tilde p(z|x)

    ``code`` (n, D) is the expected one-hot code t = Σ_z r(z) σ(z) of each sample, for responsibilities r that sum to
    1. The remaining part, −Σ_z s(z) Σ_x ω_x r_x(z), depends on the samples only through the total responsibilities
    of the groups.
    """
    log_score, sample_weight = like(log_score, energies), like(sample_weight, energies)
    code = like(code, energies)
    evidence, expected_values, expected_groups = group_expectations(energies, sample_weight, table, log_score)
    loss = evidence + namespace(energies).sum(code * energies, axis=1)  # (n,)
    return Risk(weighted_sum(sample_weight, loss), code * sample_weight[:, None] - expected_values, expected_groups)


def log_evidence(energies: Array, seen: GroupTable, log_score: Array) -> Array:
    """Return the log evidence c(x) of each sample, (n,)."""
    log_score = like(log_score, energies)
    parts = _partition(energies, seen, log_score)
    evidence = parts.log_evidence
    for rows in _row_parts(parts.doubtful, len(seen.row)):
        evidence[rows] = logsumexp(_seen_logits(energies[rows, :], seen, log_score), axis=1)
    return evidence


def group_expectations(
    energies: Array, sample_weight: Array, seen: GroupTable, log_score: Array
) -> tuple[Array, Array, Array]:
    """Return c(x) (n,), the weighted marginals ω p(v | x) (n, D), and the group totals Σ_x ω p(z | x) (k,)."""
    return _expectations(_partition(energies, seen, log_score), energies, sample_weight, seen, log_score)


class _Partition(NamedTuple):
    """Factors of the sum over seen groups, each scaled to a maximum of 1.

    Samples are the last axis, which makes sums and maxima over the rows or columns of the table fast.
    """

    left: Array  # (l, n) exp of the negated row energies, scaled per sample
    right: Array  # (r, n) exp of the negated column energies, scaled per sample
    table: Array  # (l, r) exp of the scores, scaled
    left_sum: Array  # (r, n): tableᵀ · left
    total: Array  # (n,) scaled sum over the groups
    log_evidence: Array  # (n,) c(x); invalid where ``doubtful``
    doubtful: Array  # (n,) True where underflow may have made the scaled sum inexact


def _partition(energies: Array, seen: GroupTable, log_score: Array) -> _Partition:
    """Return the scaled sum over groups, Σ_{l,r} left(x, l) · table(l, r) · right(x, r), and its factors."""
    xp = namespace(energies)
    log_left, log_right = seen.halves(energies)
    log_left, log_right = log_left.T, log_right.T  # (l, n), (r, n), overwritten below
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


def _expectations(
    parts: _Partition, energies: Array, sample_weight: Array, seen: GroupTable, log_score: Array
) -> tuple[Array, Array, Array]:
    """Return the result of ``group_expectations``; ``parts``, the partition of the energies, is overwritten."""
    xp = namespace(energies)
    evidence, total, weight = parts.log_evidence, parts.total, sample_weight
    any_doubtful = bool(xp.any(parts.doubtful))
    if any_doubtful:  # these rows have weight 0 in the products and are added below
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
        one_hot = like(seen.space._one_hot(seen.codes), energies)  # (k, D)
        for rows in _row_parts(parts.doubtful, len(seen.row)):
            logits = _seen_logits(energies[rows, :], seen, log_score)
            evidence[rows] = logsumexp(logits, axis=1)
            posterior = xp.exp(logits - evidence[rows][:, None]) * sample_weight[rows][:, None]  # (rows, k)
            values[rows, :] = xp.matmul(posterior, one_hot)
            groups = groups + xp.sum(posterior, axis=0)
    return evidence, values, groups


def _seen_logits(energies: Array, seen: GroupTable, log_score: Array) -> Array:
    """Return the step-1 logits of every seen group, (n, k); used for the few rows whose products underflow."""
    return log_score[None, :] - group_energies(energies, seen.space, seen.codes)


def _row_parts(chosen: Array, width: int) -> list[Array]:
    """Return the numbers of the chosen rows in blocks, so that the logits (rows, width) of a block stay small."""
    (rows,) = namespace(chosen).nonzero(chosen)
    step = max(1, BLOCK_CELLS // width)
    return [rows[start : start + step] for start in range(0, rows.shape[0], step)]
