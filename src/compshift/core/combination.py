r"""Sparsest affine combinations: a group as a combination of as few seen groups as possible, in exact arithmetic.

.. math:: \sigma(z) = \sum_{j \in J} \alpha_j \, \sigma(z^{(j)}), \qquad \alpha_j \neq 0

J, the *support* of the combination, is a set of seen groups. Combinations are compared by the number of groups in J,
then by Σ |α|, then by the number of rows of these groups (more is better), then by the number of values in which they
differ from z. With two attributes the sparsest combinations are shortest paths (``span.shortest_path``). With more
attributes, finding the smallest support is NP-hard in general, so supports are enumerated by size. If more than
``max_tries`` supports would have to be tried, the best combination found by then or by a heuristic is returned.

The enumeration uses two necessary conditions. Every value of z occurs in a group of J, because the weights of the
groups with that value sum to 1. Every other value that occurs in J does so in at least two groups, because the weights
of the groups with that value are nonzero and sum to 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from compshift._checks import check_numbers
from compshift._errors import InputError
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.span import Span, shortest_path

MAX_TRIES = 10_000
"""Default limit on the supports that a search tries, complete and partial ones together: about 0.4 seconds."""

MAX_TOTAL_TRIES = 100_000
"""Limit on the supports that are tried for all of many groups together: about 4 seconds."""

MAX_HEURISTIC_WIDTH = 512
"""Largest total number of attribute values for which the search also considers ``_nearest_combination``."""

SMALLEST_SUPPORT = 3
"""Smallest number of seen groups that can combine to an unseen group. Two groups cannot: where their values differ, one
group must have weight 1 and the other weight 0."""


class Combination(NamedTuple):
    """An affine combination of seen groups, and whether it is known to be the sparsest."""

    positions: tuple[int, ...]  # of its groups among the seen groups
    weights: tuple[Fraction, ...]  # the α of these groups, none of them 0
    fewest: bool  # whether no combination has fewer groups; False if the search stopped too early to know
    optimal: bool  # whether, in addition, it was compared with all combinations of the same number of groups


def tries_per_group(n_groups: int) -> int:
    """Return the maximum number of supports to try for each of ``n_groups`` groups."""
    return max(1, min(MAX_TRIES, MAX_TOTAL_TRIES // max(1, n_groups)))


def check_rows(rows: Any, n_groups: int) -> FloatArray:
    """Check the numbers of rows of the seen groups; return them as floats (k,), all 1 if they are None."""
    if rows is None:
        return np.ones(n_groups)
    count: FloatArray = check_numbers(rows, "rows", "pass one number for each seen group")
    if count.shape != (n_groups,):
        raise InputError(f"rows has shape {count.shape}: pass one number for each of the {n_groups} seen groups")
    if not (np.isfinite(count) & (count >= 0)).all():
        raise InputError("rows has a negative, infinite or missing number: pass the number of rows of each seen group")
    return count


def sparsest_combination(
    groups: IntArray,
    code: IntArray,
    rows: FloatArray,
    known: Sequence[tuple[int, Fraction]],
    sizes: Sequence[int],
    max_tries: int = MAX_TRIES,
) -> Combination:
    """Return the sparsest combination of the groups (k, m) that gives an unseen group ``code`` (m,) inside their hull.

    ``rows`` (k,) are the numbers of rows of the groups. ``known`` is any combination that gives ``code``, as positions
    and weights; it is returned if the search finds no better one. ``sizes`` (m,) are the cardinalities.
    """
    if groups.shape[1] == 2:
        path = shortest_path(groups, code, rows)
        return Combination(tuple(place for _, place in path), tuple(Fraction(sign) for sign, _ in path), True, True)
    search = _SupportSearch(groups, code, rows, max_tries)
    best = search.scored(known)
    if sum(sizes) <= MAX_HEURISTIC_WIDTH:
        best = min(best, search.scored(_nearest_combination(groups[search.order], code, sizes), ordered=True))
    fewest = optimal = False
    for size in range(SMALLEST_SUPPORT, len(best[-1]) + 1):
        fewest = True  # every smaller size was searched completely
        found = min(search.supports(size), default=None)
        optimal = not search.exhausted
        best = best if found is None else min(best, found)
        if len(best[-1]) <= size:
            break
        fewest = optimal
        if search.exhausted:
            break
    positions, weights = zip(*best[-1], strict=True)
    return Combination(positions, weights, fewest, fewest and optimal)


Scored = tuple[int, Fraction, float, tuple[int, ...], tuple[tuple[int, Fraction], ...]]
"""The numbers by which combinations are compared (less is better), then the positions and weights of a combination."""


class _SupportSearch:
    """Enumeration of the supports that give one unseen group.

    A set of groups is a Python integer, in which bit i stands for the i-th group in the order of ``order``.
    """

    def __init__(self, groups: IntArray, code: IntArray, rows: FloatArray, max_tries: int) -> None:
        distance = (groups != code).sum(axis=1)
        self.order = np.lexsort((distance, -rows))  # (k,) groups with many rows come first, and are tried first
        self.codes = groups[self.order].tolist()
        self.code = code.tolist()
        self.rows = rows[self.order].tolist()
        self.tries_left = max_tries
        self.sets: dict[tuple[int, int], int] = {}  # (attribute, value) → set of the groups that have it
        self.columns = groups[self.order].T

    @property
    def exhausted(self) -> bool:
        """Whether the search was cut short because it tried too many supports."""
        return self.tries_left < 0

    def scored(self, parts: Sequence[tuple[int, Fraction]], *, ordered: bool = False) -> Scored:
        """Return a combination, given by positions and weights, with the numbers by which it is compared.

        The positions in ``parts`` are positions in ``order`` if ``ordered`` is True, else positions among the groups
        passed to the constructor. The positions in the result are always the latter.
        """
        if ordered:
            numbers = [number for number, _ in parts]
            parts = [(int(self.order[number]), weight) for number, weight in parts]
        else:
            place = {int(position): number for number, position in enumerate(self.order)}
            numbers = [place[position] for position, _ in parts]
        apart = [
            sum(self.codes[number][attribute] != value for number in numbers)
            for attribute, value in enumerate(self.code)
        ]
        size = sum((abs(weight) for _, weight in parts), start=Fraction(0))
        total = sum(self.rows[number] for number in numbers)
        return len(parts), size, -total, (sum(apart), *apart), tuple(sorted(parts))

    def supports(self, size: int) -> Iterator[Scored]:
        """Yield the combinations of ``size`` groups, assuming that none has fewer; stop after too many tries."""
        everything = (1 << len(self.codes)) - 1
        for support in self._extend((), size, everything):
            weights = _solve([self.codes[number] for number in support], self.code)
            if weights is not None:
                yield self.scored(list(zip(support, weights, strict=True)), ordered=True)

    def _extend(self, chosen: tuple[int, ...], remaining: int, allowed: int) -> Iterator[tuple[int, ...]]:
        """Yield the supports that extend ``chosen`` by ``remaining`` groups out of the set ``allowed``.

        A value that must still occur is chosen, and every group that has it is tried. A group that was tried is not
        allowed any more, so no support occurs twice.
        """
        choices = self._choices(chosen, remaining, allowed)
        while choices:
            lowest = choices & -choices
            number = lowest.bit_length() - 1
            choices ^= lowest
            allowed &= ~lowest
            self.tries_left -= 1
            if self.exhausted:
                return
            if remaining == 1:
                yield (*chosen, number)
            else:
                yield from self._extend((*chosen, number), remaining - 1, allowed)

    def _choices(self, chosen: tuple[int, ...], remaining: int, allowed: int) -> int:
        """Return the set of groups to try next: empty if ``remaining`` groups cannot complete the support."""
        best, fewest = allowed, len(self.codes) + 1
        for attribute, wanted in enumerate(self.code):
            values = [self.codes[number][attribute] for number in chosen]
            needed = [value for value in set(values) if value != wanted and values.count(value) == 1]
            if wanted not in values:
                needed.append(wanted)
            if len(needed) > remaining:
                return 0
            if len(needed) == remaining:  # every further group must have one of these values
                either = 0
                for value in needed:
                    either |= self._having(attribute, value)
                allowed &= either
            for value in needed:
                options = self._having(attribute, value) & allowed
                count = options.bit_count()
                if count < fewest:
                    best, fewest = options, count
        return best & allowed

    def _having(self, attribute: int, value: int) -> int:
        """Return the set of the groups that have this value of the attribute."""
        key = attribute, value
        if key not in self.sets:
            bits = np.packbits(self.columns[attribute] == value, bitorder="little")
            self.sets[key] = int.from_bytes(bits.tobytes(), "little")
        return self.sets[key]


def _solve(codes: list[list[int]], wanted: list[int]) -> list[Fraction] | None:
    """Return the weights, none of them 0, with which the groups give ``wanted``; None if there are no such weights."""
    size = len(codes)
    if size == SMALLEST_SUPPORT:
        return _solve_three(codes, wanted)
    equations = []  # one for each value: the weights of the groups that have it sum to 1 or to 0
    for attribute, value in enumerate(wanted):
        column = [code[attribute] for code in codes]
        equations += [[int(entry == other) for entry in column] + [int(other == value)] for other in set(column)]
    solved: list[list[int]] = []  # in echelon form: each row has a pivot at which the later rows are 0
    pivots: list[int] = []
    for row in equations:
        for pivot, other in zip(pivots, solved, strict=True):
            if row[pivot]:
                scale, factor = other[pivot], row[pivot]
                row = [scale * entry - factor * part for entry, part in zip(row, other, strict=True)]
        lead = next((place for place, entry in enumerate(row) if entry), None)
        if lead == size:  # 0 = 1
            return None
        if lead is not None:
            pivots.append(lead)
            solved.append(row)
    if len(solved) < size:  # linearly dependent: some of these groups suffice
        return None
    weights = [Fraction(0)] * size
    for pivot, row in zip(reversed(pivots), reversed(solved), strict=True):
        rest = sum((entry * weight for entry, weight in zip(row, weights, strict=False) if entry), start=Fraction(0))
        weights[pivot] = Fraction(row[size] - rest, 1) / row[pivot]
    return weights if all(weights) else None


def _solve_three(codes: list[list[int]], wanted: list[int]) -> list[Fraction] | None:
    """Return the weights of three groups that give ``wanted``, or None, like ``_solve``.

    The only possible combinations are z = a + b − c, with weight 1 for two groups a and b, and weight −1 for the third
    group c. In each attribute, one of a and b has the value of z, and c has the value of the other one.
    """
    for negative in range(3):
        rest, first, second = codes[negative], codes[negative - 1], codes[negative - 2]
        if all(
            (a == z and c == b) or (b == z and c == a) for z, a, b, c in zip(wanted, first, second, rest, strict=True)
        ):
            return [Fraction(-1 if number == negative else 1) for number in range(3)]
    return None


def _nearest_combination(groups: IntArray, code: IntArray, sizes: Sequence[int]) -> list[tuple[int, Fraction]]:
    """Return a combination of groups (k, m) that share many values with ``code`` (m,), as positions and weights.

    Groups are added in the order of the number of values in which they differ, until they determine ``code``.
    """
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    span = Span(int(sum(sizes)))
    columns = groups + offsets
    wanted = code + offsets
    added: list[int] = []
    distance = (groups != code).sum(axis=1)
    for near in np.unique(distance):
        members = np.flatnonzero(distance == near)
        added += [int(members[place]) for place in span.add_all(columns[members])]
        if span.contains(wanted[None])[0]:
            break
    return [(place, weight) for place, weight in zip(added, span.coordinates(wanted), strict=True) if weight]
