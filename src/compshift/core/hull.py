"""The discrete affine hull: which groups the seen ones determine, decided in whole numbers."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from compshift._checks import check_codes
from compshift._errors import InputError
from compshift.core.arrays import BLOCK_CELLS, BoolArray, IntArray
from compshift.core.groups import GroupSpace

INT64_ROOM = 2**30
"""While m times the largest entry stays below this, a step of the elimination cannot overflow int64."""


class AffineHull:
    r"""Groups whose one-hot code is an affine combination of the seen ones (paper, "Discrete Affine Hull").

    .. math:: z \in \mathrm{DAff} \iff \sigma(z) = \sum_j \alpha_j \sigma(z^{(j)}), \quad \sum_j \alpha_j = 1

    Each one-hot block sums to 1, so the weights of a linear combination sum to 1 by themselves, and z is inside exactly
    if every integer vector orthogonal to the seen codes is orthogonal to σ(z). A basis of those vectors is kept: it
    starts as the unit vectors and loses one dimension with each seen group that is not yet inside. All of it is integer
    arithmetic; there is no tolerance.

    >>> space = GroupSpace.from_cardinalities([2, 2])
    >>> hull = AffineHull(space, [[0, 0], [0, 1], [1, 0]])
    >>> hull.contains([[1, 1]])
    array([ True])
    >>> [str(weight) for weight in hull.weights([1, 1])]
    ['-1', '1', '1']
    """

    def __init__(self, space: GroupSpace, observed_codes: Any) -> None:
        codes = check_codes(observed_codes, space.cardinalities, "observed_codes")
        self.space = space
        self.observed: IntArray = space.distinct(codes)[0]  # (k, m)
        self._orthogonal: Any = np.eye(space.width, dtype=np.int64)  # (D, nullity)
        self._basis: list[int] = []  # positions in ``observed`` of the groups that enlarged the hull
        self._functionals: list[Any] = []  # for each of those: zero on the earlier ones, not on itself
        start, step = 0, 1
        while start < len(self.observed) and not self.is_complete:
            outside = np.flatnonzero(~self.contains(self.observed[start : start + step]))
            if outside.size:
                self._add(start + int(outside[0]))
                start, step = start + int(outside[0]) + 1, 1
            else:
                start, step = start + step, 2 * step

    def _add(self, position: int) -> None:
        """Make the vectors orthogonal to one more group, which is outside so far."""
        vectors = self._orthogonal
        products = vectors[self.observed[position] + self.space.offsets].sum(axis=0)  # (nullity,)
        hit = np.flatnonzero(products)
        pivot = hit[np.argmin(np.abs(products[hit]))]
        functional, scale = vectors[:, pivot].copy(), products[pivot]
        others = hit[hit != pivot]
        combined = scale * vectors[:, others] - np.outer(functional, products[others])
        if abs(int(scale)) > 1 and others.size:
            combined //= np.gcd.reduce(combined, axis=0)
        if vectors.dtype != object and len(self.space.names) * int(np.abs(combined).max(initial=0)) > INT64_ROOM:
            vectors = vectors.astype(object)
        vectors[:, others] = combined
        vectors[:, pivot] = vectors[:, -1]  # the last vector takes the pivot's place: cheaper than closing the gap
        self._orthogonal = vectors[:, :-1]
        self._basis.append(position)
        self._functionals.append(functional)

    @property
    def rank(self) -> int:
        """Rank of the seen codes; the hull has this dimension less one."""
        return len(self._basis)

    @property
    def full_rank(self) -> int:
        """Rank at which every group is inside: Σ(d_i − 1) + 1."""
        return self.space.width - len(self.space.names) + 1

    @property
    def is_complete(self) -> bool:
        """Whether every combination of the attributes' values is inside."""
        return self.rank == self.full_rank

    def contains(self, codes: Any) -> BoolArray:
        """Whether each group is inside the hull, (q,)."""
        codes = check_codes(codes, self.space.cardinalities)
        if self.is_complete:
            return np.ones(len(codes), dtype=np.bool_)
        columns = codes + self.space.offsets
        table = self._orthogonal
        inside = np.empty(len(codes), dtype=np.bool_)
        step = max(1, BLOCK_CELLS // table.shape[1])
        for start in range(0, len(codes), step):
            block = columns[start : start + step]
            products = table[block[:, 0]]
            for column in block.T[1:]:
                products = products + table[column]
            inside[start : start + step] = ~(products != 0).any(axis=1)
        return inside

    def weights(self, code: Any) -> np.ndarray[Any, np.dtype[np.object_]]:
        """Exact weights α (k,) on ``observed`` that give the group, as fractions summing to 1."""
        row = self.space.one_code(code)
        if not self.contains(row)[0]:
            raise InputError(
                f"{self.space.label(row)} is outside the affine hull of the seen groups: "
                "no combination of them gives it"
            )
        weights = np.full(len(self.observed), Fraction(0), dtype=object)
        rest = [Fraction(0)] * self.space.width
        for column in row + self.space.offsets:
            rest[column] += 1
        # Each functional vanishes on the groups before its own, so the last group's weight can be read off first.
        for position, functional in zip(reversed(self._basis), reversed(self._functionals), strict=True):
            columns = self.observed[position] + self.space.offsets
            product = sum(int(functional[column]) * rest[column] for column in np.flatnonzero(functional))
            weight = Fraction(product) / sum(int(functional[column]) for column in columns)
            weights[position] = weight
            if weight:
                for column in columns:
                    rest[column] -= weight
        return weights
