"""From one energy per attribute value to the energies of groups, without a column per group."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from array_api_compat import device

from compshift.core.arrays import Array, FloatArray, IntArray, index_like, like, namespace
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
