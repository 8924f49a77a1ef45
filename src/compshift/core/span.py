"""Exact linear algebra of one-hot rows: their span, in integer arithmetic, and the graph of values of two attributes.

In the graph, attribute values are nodes and seen groups are edges (paper, "A Closer Look").
"""

from __future__ import annotations

from copy import copy
from fractions import Fraction
from typing import Any

import numpy as np

from compshift._errors import InputError
from compshift.core.arrays import BLOCK_CELLS, BoolArray, FloatArray, IntArray

INT64_ROOM = 2**30
"""Largest product of m and an entry of ``Span.vectors`` at which a step of the elimination cannot overflow int64."""


class Span:
    """The span of one-hot codes, stored as a basis of the integer vectors that are orthogonal to all of them.

    This basis starts as the unit vectors and loses one vector with each code that enlarges the span. A one-hot code is
    passed as ``columns`` (m,), the positions of its ones. If entries could overflow int64, they become Python integers,
    so nothing is rounded.
    """

    def __init__(self, width: int) -> None:
        self.vectors: Any = np.eye(width, dtype=np.int64)  # (D, nullity), one vector per column
        self.basis: list[IntArray] = []  # columns of the codes that enlarged the span
        # for each code of ``basis``, a vector that is orthogonal to the codes before it, but not to this code
        self.functionals: list[Any] = []

    @property
    def rank(self) -> int:
        """Dimension of the span."""
        return len(self.basis)

    def copy(self) -> Span:
        """Return an independent copy."""
        other = copy(self)
        other.vectors, other.basis, other.functionals = self.vectors.copy(), [*self.basis], [*self.functionals]
        return other

    def contains(self, columns: IntArray) -> BoolArray:
        """Return whether each code, given by its columns (q, m), is in the span, (q,)."""
        inside = np.empty(len(columns), dtype=np.bool_)
        step = max(1, BLOCK_CELLS // max(1, self.vectors.shape[1]))
        for start in range(0, len(columns), step):
            block = columns[start : start + step]
            products = self.vectors[block[:, 0]]
            for column in block.T[1:]:
                products = products + self.vectors[column]
            inside[start : start + step] = ~(products != 0).any(axis=1)
        return inside

    def add(self, columns: IntArray) -> None:
        """Enlarge the span by one code that is outside it."""
        vectors = self.vectors
        products = vectors[columns].sum(axis=0)  # (nullity,)
        hit = np.flatnonzero(products)
        pivot = hit[np.argmin(np.abs(products[hit]))]
        functional, scale = vectors[:, pivot].copy(), products[pivot]
        others = hit[hit != pivot]
        combined = scale * vectors[:, others] - np.outer(functional, products[others])
        if abs(int(scale)) > 1 and others.size:
            combined //= np.gcd.reduce(combined, axis=0)
        if vectors.dtype != object and len(columns) * int(np.abs(combined).max(initial=0)) > INT64_ROOM:
            vectors = vectors.astype(object)
        vectors[:, others] = combined
        vectors[:, pivot] = vectors[:, -1]  # move the last vector into the gap: cheaper than shifting
        self.vectors = vectors[:, :-1]
        self.basis.append(columns)
        self.functionals.append(functional)

    def add_all(self, columns: IntArray, limit: int | None = None) -> list[int]:
        """Add the codes (q, m) in order, skipping those already in the span; return the positions of the added ones.

        Stop when the rank reaches ``limit``. Codes are tested in batches, which double in size while all are in the
        span.
        """
        added: list[int] = []
        start, step = 0, 1
        while start < len(columns) and self.rank != limit:
            outside = np.flatnonzero(~self.contains(columns[start : start + step]))
            if outside.size:
                position = start + int(outside[0])
                self.add(columns[position])
                added.append(position)
                start, step = position + 1, 1
            else:
                start, step = start + step, 2 * step
        return added

    def witness(self, columns: IntArray) -> Any:
        """Return the sparsest of ``vectors``, (D,), that is not orthogonal to this code, which is outside the span."""
        hit = np.flatnonzero(self.vectors[columns].sum(axis=0))
        sparsest = hit[np.argmin((self.vectors[:, hit] != 0).sum(axis=0))]
        return self.vectors[:, sparsest].copy()

    def coordinates(self, columns: IntArray) -> list[Fraction]:
        """Return the weights (rank,) that express a code in the span by the codes of ``basis``."""
        rest: dict[int, Fraction] = {int(column): Fraction(1) for column in columns}
        weights = [Fraction(0)] * self.rank
        # Each functional vanishes on the earlier codes of the basis, so the weights follow from last to first.
        for position in reversed(range(self.rank)):
            code, functional = self.basis[position], self.functionals[position]
            product = sum((int(functional[column]) * value for column, value in rest.items()), start=Fraction(0))
            if product:
                weights[position] = product / sum(int(functional[column]) for column in code)
                for column in code:
                    rest[int(column)] = rest.get(int(column), Fraction(0)) - weights[position]
        return weights

    def interpolate(self, values: Any) -> Any:
        """Return a vector (D,) whose product with each code of ``basis`` is its entry in ``values`` (rank,).

        Exact for an object array of integers or fractions, float64 otherwise.
        """
        exact = np.asarray(values).dtype == object
        solution: Any = np.zeros(len(self.vectors), dtype=object if exact else np.float64)
        # A functional vanishes on the earlier codes: adding a multiple of it does not change their values.
        for code, functional, value in zip(self.basis, self.functionals, values, strict=True):
            scale = sum(int(functional[column]) for column in code)
            missing = value - solution[code].sum()
            factor: Any = Fraction(missing) / scale if exact else missing / scale
            solution = solution + factor * functional.astype(solution.dtype)
        return solution


def connected_values(groups: IntArray) -> list[tuple[IntArray, IntArray]]:
    """Return the connected components of the value graph of groups (k, 2).

    A component is a pair of arrays: the codes of its values of the first attribute and of the second attribute.
    """
    parent: dict[tuple[int, int], tuple[int, int]] = {}

    def root(node: tuple[int, int]) -> tuple[int, int]:
        parent.setdefault(node, node)
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for left, right in groups.tolist():
        parent[root((0, left))] = root((1, right))
    members: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
    for side, value in sorted(parent):
        members.setdefault(root((side, value)), ([], []))[side].append(value)
    return [(np.array(left, dtype=np.int64), np.array(right, dtype=np.int64)) for left, right in members.values()]


def shortest_path(groups: IntArray, code: IntArray, rows: FloatArray | None = None) -> list[tuple[int, int]]:
    """Return a shortest path between the two values of ``code``: (sign, position) of those groups (k, 2) that it uses.

    The signs alternate, so the values inside the path cancel and the two values of ``code`` remain. Of several shortest
    paths, the one whose groups have the most ``rows`` (k,) in total is returned.
    """
    neighbours: dict[tuple[int, int], list[tuple[tuple[int, int], int]]] = {}
    for position, (left, right) in enumerate(groups.tolist()):
        neighbours.setdefault((0, left), []).append(((1, right), position))
        neighbours.setdefault((1, right), []).append(((0, left), position))
    count = [0.0] * len(groups) if rows is None else rows.tolist()
    start, goal = (0, int(code[0])), (1, int(code[1]))
    reached: dict[tuple[int, int], tuple[tuple[int, int], int] | None] = {start: None}
    layer = {start: 0.0}  # nodes at the same distance from the start, with the most rows of a shortest path to each
    while layer and goal not in reached:
        following: dict[tuple[int, int], float] = {}
        for node, total in layer.items():
            for other, position in neighbours.get(node, []):
                if other in reached and other not in following:
                    continue
                if other not in following or total + count[position] > following[other]:
                    reached[other] = (node, position)
                    following[other] = total + count[position]
        layer = following
    if goal not in reached:
        raise InputError("no path of seen groups connects the two values of the group")
    path: list[int] = []
    step = reached[goal]
    while step is not None:
        node, position = step
        path.append(position)
        step = reached[node]
    path.reverse()
    return [(1 if number % 2 == 0 else -1, position) for number, position in enumerate(path)]
