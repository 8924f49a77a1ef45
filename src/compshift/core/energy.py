r"""From one energy per attribute value to the energies of groups, without a column per group.

Step 1: the risk of the additive energy classifier over the seen groups, and its gradient.

For seen groups z, with ``log_score`` s(z) = log p̂(z) − B(z) (paper, eq. "phat" and "CRM1"),

.. math::

    \log \tilde p(z|x) = -\langle \sigma(z), E(x) \rangle + s(z) - c(x), \qquad
    c(x) = \log \sum_{z'} \exp(-\langle \sigma(z'), E(x) \rangle + s(z'))

Groups that training lacks are not in the sum. The gradient of c is the vector of the classifier's own marginals, so
value and gradient come from the same three matrix products.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

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
from compshift.core.groups import GroupSpace

WIDE = 16
"""From so many values per attribute on, looking energies up beats multiplying by one-hot codes."""

EXP_COST = 50
"""What a column of exponentials costs, counted in cells of a matrix product; only their ratio matters."""


def linear_energies(features: Array, weight: Array) -> Array:
    """Energies (n, D) of features (n, p) by weights (D, p), value by value in memory: sums over samples like that."""
    return namespace(features, weight).matmul(weight, features.T).T


def group_energies(energies: Array, space: GroupSpace, codes: Any) -> Array:
    r"""Energy of each listed group for each sample: the sum of its values' energies.

    .. math:: \langle \sigma(z), E(x) \rangle = \sum_i E_i(x, z_i)

    Paper, eq. "n2". ``energies`` (n, D), ``codes`` (q, m); the result is (n, q), group by group in memory.
    """
    xp, by_value = namespace(energies), energies.T  # whose rows are looked up much faster, if they lie together
    first, *others = (codes + space.offsets).T  # (q,) each
    total = xp.take(by_value, index_like(first, energies), axis=0)  # (q, n)
    for own in others:
        total = total + xp.take(by_value, index_like(own, energies), axis=0)
    return total.T


@dataclass(frozen=True, eq=False)
class GroupTable:
    """Groups as cells of a table: a row is a combination of the first attributes, a column one of the others.

    A group's energy is then a row energy plus a column energy, and every sum over groups is a matrix product. Only
    combinations that occur get a row or a column. If every attribute falls to the rows there is a single column, and
    the table is a plain list of groups.
    """

    space: GroupSpace
    left: IntArray  # (l, s) codes of the rows
    right: IntArray  # (r, m − s) codes of the columns
    row: IntArray  # (k,) where each group stands
    column: IntArray  # (k,)

    @classmethod
    def of(cls, space: GroupSpace, groups: IntArray) -> GroupTable:
        """The table of ``groups`` (k, m), all different, split between attributes where the sums cost least."""
        m = len(space.names)
        sizes = [_half_sizes(space, groups, split) for split in range(1, m + 1)]
        split = 1 + int(np.argmin([EXP_COST * (rows + columns) + rows * columns for rows, columns in sizes]))
        left, row = _distinct_rows(space, groups, slice(0, split))
        right, column = _distinct_rows(space, groups, slice(split, m))
        return cls(space, left, right, row, column)

    @cached_property
    def codes(self) -> IntArray:
        """Codes (k, m) of the groups."""
        return np.concatenate([self.left[self.row], self.right[self.column]], axis=1)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of columns."""
        return len(self.left), len(self.right)

    @property
    def width(self) -> int:
        """Rows plus columns: how many numbers per sample a sum over the table holds."""
        return len(self.left) + len(self.right)

    @property
    def left_width(self) -> int:
        """How many entries of a one-hot code belong to the rows."""
        return sum(self.space.cardinalities[: self.left.shape[1]])

    @cached_property
    def _left_values(self) -> FloatArray | None:
        """One-hot codes of the rows, (l, D_left); None where they are the identity."""
        return _value_matrix(self.left, self.space.cardinalities[: self.left.shape[1]])

    @cached_property
    def _right_values(self) -> FloatArray | None:
        """One-hot codes of the columns, (r, D_right); None where they are the identity."""
        return _value_matrix(self.right, self.space.cardinalities[self.left.shape[1] :])

    def halves(self, energies: Array) -> tuple[Array, Array]:
        """Negated energies of the rows (n, l) and of the columns (n, r); a group's is the sum of its two.

        They are new arrays, NumPy's laid out in memory like ``energies``.
        """
        split, sizes, m = self.left_width, self.space.cardinalities, self.left.shape[1]
        return (
            _half(energies[:, :split], self.left, sizes[:m], self._left_values),
            _half(energies[:, split:], self.right, sizes[m:], self._right_values),
        )

    def by_value(self, left: Array, right: Array) -> Array:
        """Amounts per row (n, l) and per column (n, r), summed for each attribute value: (n, D)."""
        xp = namespace(left)
        parts = [
            part if values is None else xp.matmul(part, like(values, part))
            for part, values in ((left, self._left_values), (right, self._right_values))
        ]
        return xp.concat(parts, axis=1)

    def fill(self, log_values: Array) -> Array:
        """One log value per group, (k,), laid out as the table (l, r) with −inf where no group stands."""
        xp = namespace(log_values)
        table = xp.full(self.shape, -math.inf, dtype=log_values.dtype, device=device(log_values))
        table[index_like(self.row, table), index_like(self.column, table)] = log_values
        return table

    def pick(self, table: Array) -> Array:
        """The cells of a table (l, r) that are groups, (k,)."""
        return table[index_like(self.row, table), index_like(self.column, table)]


def above_lowest(energies: Array, space: GroupSpace) -> Array:
    """Energies (n, D), each less the lowest of its attribute and sample.

    What the values of an attribute have in common cancels in every probability, but far from the data it is large
    enough to take the others' digits with it.
    """
    xp, parts = namespace(energies), []
    for start, size in zip(space.offsets, space.cardinalities, strict=True):
        own = energies[:, int(start) : int(start) + size]
        parts.append(own - xp.min(own, axis=1, keepdims=True))
    return xp.concat(parts, axis=1)


def _half(energies: Array, codes: IntArray, cardinalities: tuple[int, ...], values: FloatArray | None) -> Array:
    """Negated energies of one half's combinations: a product with one-hot codes or, if those are wide, look-ups."""
    if values is None:
        return -energies
    if values.shape[1] > WIDE * codes.shape[1]:
        return -group_energies(energies, GroupSpace.from_cardinalities(cardinalities), codes)
    xp, negated = namespace(energies), -like(values, energies)
    by_value = isinstance(energies, np.ndarray) and energies.flags.f_contiguous
    return xp.matmul(negated, energies.T).T if by_value else xp.matmul(energies, negated.T)


def _half_sizes(space: GroupSpace, groups: IntArray, split: int) -> tuple[int, int]:
    """Numbers of rows and columns of a table split after ``split`` attributes."""
    if len(groups) == space.n_groups:
        return math.prod(space.cardinalities[:split]), math.prod(space.cardinalities[split:])
    m = len(space.names)
    return len(_distinct_rows(space, groups, slice(0, split))[0]), len(
        _distinct_rows(space, groups, slice(split, m))[0]
    )


def _distinct_rows(space: GroupSpace, groups: IntArray, part: slice) -> tuple[IntArray, IntArray]:
    """Different combinations of some of the attributes, and which one each group has."""
    if part.start == part.stop:
        return np.zeros((1, 0), dtype=np.int64), np.zeros(len(groups), dtype=np.int64)
    return GroupSpace(space.names[part], space.values[part]).distinct(groups[:, part])


def _value_matrix(codes: IntArray, cardinalities: tuple[int, ...]) -> FloatArray | None:
    """One-hot codes (q, Σd) of combinations; None where that is the identity matrix."""
    if codes.shape[1] == 1 and len(codes) == cardinalities[0] and (codes[:, 0] == np.arange(len(codes))).all():
        return None
    if codes.shape[1] == 0:
        return np.zeros((len(codes), 0))
    return GroupSpace.from_cardinalities(cardinalities).one_hot(codes)


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
