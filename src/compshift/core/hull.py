"""The discrete affine hull: the groups that the seen groups determine, computed in exact integer arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from compshift._checks import check_codes, check_count, check_flag, check_generator
from compshift._errors import InputError, rough
from compshift.core.accuracy import wilson_interval
from compshift.core.arrays import BoolArray, IntArray, row_blocks
from compshift.core.combination import MAX_TRIES, Combination, check_rows, sparsest_combination
from compshift.core.groups import GroupSpace, check_space, codes_of_index, distinct_codes, locate_codes
from compshift.core.plan import Plan, complete_plan, make_offers, target_plan
from compshift.core.span import Span, connected_values

MAX_WIDTH = 1 << 14
"""Largest total number of attribute values; the exact elimination starts from a square matrix of that size."""

MAX_ENUMERATED = 10_000_000
"""Largest number of groups that are enumerated; above it ``missing`` raises, and ``coverage`` may be an estimate."""

COVERAGE_SAMPLE = 200_000
"""Number of random groups in the sample from which ``coverage`` is estimated if it cannot be computed exactly."""

MAX_REPR_GROUPS = 1 << 16
"""Largest number of groups for which ``repr`` counts the groups inside; with two attributes it always does."""


class Coverage(float):
    """Share of all groups that are inside a hull: a float that also says how it was computed.

    Attributes
    ----------
    method : str
        ``"closed form"``, ``"enumeration"`` or ``"estimate"``.
    n_inside : int or None
        Number of groups inside the hull; None for an estimate.
    lower, upper : float
        Ends of a 95 % interval; both equal the share if it is exact.
    """

    method: str
    n_inside: int | None
    lower: float
    upper: float

    def __new__(cls, share: float, method: str, n_inside: int | None, lower: float, upper: float) -> Coverage:
        self = super().__new__(cls, share)
        self.method, self.n_inside, self.lower, self.upper = method, n_inside, lower, upper
        return self

    def __getnewargs__(self) -> tuple[Any, ...]:
        return float(self), self.method, self.n_inside, self.lower, self.upper


class Component(NamedTuple):
    """Values of two attributes that seen groups connect; each pair of a left and a right value is inside the hull."""

    left: IntArray  # codes of values of the first attribute
    right: IntArray  # codes of values of the second attribute


class AffineHull:
    r"""Groups whose one-hot row is an affine combination of those of the seen groups (paper, "Discrete Affine Hull").

    .. math:: z \in \mathrm{DAff} \Longleftrightarrow
        \sigma(z) = \sum_j \alpha_j \sigma(z^{(j)}), \quad \sum_j \alpha_j = 1

    Each one-hot block sums to 1, so the weights of any linear combination that gives σ(z) sum to 1. Hence z is inside
    exactly if every integer vector that is orthogonal to the one-hot rows of the seen groups is orthogonal to σ(z).
    This is checked in integer arithmetic, without a tolerance. Memory does not grow with the number of groups, except
    in methods that list groups.

    Parameters
    ----------
    space : GroupSpace
        All attributes and values, seen or not.
    observed_codes : array (n, m)
        Codes of the seen groups, in any order; a group may occur several times.

    Attributes
    ----------
    space : GroupSpace
        All attributes and values.
    observed : array (k, m)
        Codes of the distinct seen groups, in ascending order; ``weights`` returns weights in this order.

    Raises
    ------
    InputError
        If the codes are not integers within the cardinalities, or if the attributes have too many values in total.

    Examples
    --------
    >>> space = GroupSpace.from_cardinalities([2, 2])
    >>> hull = AffineHull(space, [[0, 0], [0, 1], [1, 0]])
    >>> hull.contains([[1, 1]])
    array([ True])
    >>> print(hull.explain([1, 1]))
    (1, 1) = (1, 0) − (0, 0) + (0, 1)
    """

    def __init__(self, space: GroupSpace, observed_codes: Any) -> None:
        self.space = check_space(space)
        codes = check_codes(observed_codes, space.cardinalities, "observed_codes")
        if space.width > MAX_WIDTH:
            raise InputError(
                f"the attributes have {space.width} values in total, but the hull supports at most {MAX_WIDTH}: "
                "leave out attributes that are identifiers, or merge values"
            )
        self.observed: IntArray = distinct_codes(codes, space.cardinalities)[0]  # (k, m) in ascending order
        self._span = Span(space.width)
        self._basis = self._span.add_all(self.observed + space.offsets, limit=self.full_rank)

    def __repr__(self) -> str:
        total = self.space.n_groups
        size = f"{total} groups" if total <= MAX_ENUMERATED else f"{rough(total)} groups"
        inside = f"{len(self.observed)} of {size} seen"
        if self.is_complete:
            inside += ", all inside"
        elif len(self.space.names) == 2 or total <= MAX_REPR_GROUPS:
            inside += f", {self.coverage().n_inside} inside"
        return f"<AffineHull: {inside}, rank {self.rank} of {self.full_rank}>"

    def _repr_html_(self) -> str:
        from compshift.core.hull_grid import hull_html

        return hull_html(self)

    @property
    def basis(self) -> IntArray:
        """Codes (rank, m) of a smallest set of seen groups with the same hull."""
        return self.observed[self._basis]

    @property
    def rank(self) -> int:
        """Rank of the one-hot rows of the seen groups; the dimension of the hull is rank − 1."""
        return self._span.rank

    @property
    def full_rank(self) -> int:
        """Rank at which every group is inside: Σ(d_i − 1) + 1 for cardinalities d_i."""
        return self.space.width - len(self.space.names) + 1

    @property
    def is_complete(self) -> bool:
        """Whether every group is inside the hull."""
        return self.rank == self.full_rank

    def contains(self, codes: Any) -> BoolArray:
        """Return whether groups are inside the hull.

        Parameters
        ----------
        codes : array (q, m)
            Codes of the groups.

        Returns
        -------
        array (q,) of bool
            True for groups inside the hull.
        """
        return self._contains(check_codes(codes, self.space.cardinalities))

    def _contains(self, codes: IntArray) -> BoolArray:
        """Return whether groups (q, m) are inside the hull, (q,), without checking the codes."""
        if self.is_complete:
            return np.ones(len(codes), dtype=np.bool_)
        return self._span.contains(codes + self.space.offsets)

    def combination(self, code: Any, rows: Any = None, max_tries: int = MAX_TRIES) -> Combination:
        """Return the sparsest affine combination of seen groups that gives a group.

        Combinations are compared by their number of groups, then by the sum of absolute weights, then by the rows of
        their groups, then by the number of values in which these differ from the group.

        Parameters
        ----------
        code : array (m,)
            Code of the group.
        rows : array (k,), optional
            Number of rows of each group in ``observed``, or their weight: equally short combinations prefer groups
            with many rows. By default all groups count alike.
        max_tries : int, default=10000
            Largest number of sets of seen groups that are tried. If it does not suffice, which cannot happen with two
            attributes, the combination comes from a heuristic.

        Returns
        -------
        Combination
            Positions in ``observed`` and weights of its groups; ``fewest`` says whether no combination has fewer
            groups, and ``optimal`` whether all combinations of as few groups were compared.

        Raises
        ------
        InputError
            If the group is outside the hull, or if ``rows`` is not one number ≥ 0 for each seen group.
        """
        row = self.space._one_code(code)
        count, limit = check_rows(rows, len(self.observed)), check_count(max_tries, "max_tries")
        if not self._contains(row[None])[0]:
            raise InputError(
                f"{self.space.label(row)} is outside the affine hull of the seen groups: "
                "no combination of them gives it; see certificate() for a proof"
            )
        seen = int(locate_codes(row[None], self.observed, self.space.cardinalities)[0])
        if seen >= 0:
            return Combination((seen,), (Fraction(1),), True, True)
        known: list[tuple[int, Fraction]] = []
        if len(self.space.names) != 2:
            pairs = zip(self._basis, self._span.coordinates(row + self.space.offsets), strict=True)
            known = [(position, weight) for position, weight in pairs if weight]
        return sparsest_combination(self.observed, row, count, known, self.space.cardinalities, limit)

    def weights(self, code: Any, rows: Any = None, max_tries: int = MAX_TRIES) -> np.ndarray[Any, np.dtype[np.object_]]:
        """Return exact weights α that express a group as the sparsest affine combination of the seen groups.

        A seen group has weight 1 on itself. With two attributes, an unseen group has weights ±1 on the seen groups of a
        shortest path between its two values in the graph of ``components``.

        Parameters
        ----------
        code : array (m,)
            Code of the group.
        rows : array (k,), optional
            Number of rows of each group in ``observed``, as in ``combination``.
        max_tries : int, default=10000
            Largest number of sets of seen groups that are tried, as in ``combination``.

        Returns
        -------
        array (k,) of Fraction
            Weights in the order of ``observed``; they sum to 1.

        Raises
        ------
        InputError
            If the group is outside the hull.
        """
        found = self.combination(code, rows, max_tries)
        weights = np.full(len(self.observed), Fraction(0), dtype=object)
        for position, weight in zip(found.positions, found.weights, strict=True):
            weights[position] = weight
        return weights

    def explain(self, code: Any, rows: Any = None, max_tries: int = MAX_TRIES) -> str:
        """Return a readable equation that expresses a group as the sparsest combination of seen groups.

        Parameters
        ----------
        code : array (m,)
            Code of the group.
        rows : array (k,), optional
            Number of rows of each group in ``observed``, as in ``combination``.
        max_tries : int, default=10000
            Largest number of sets of seen groups that are tried, as in ``combination``.

        Returns
        -------
        str
            For example ``(w, land) = (w, water) − (l, water) + (l, land)``. If the combination comes from a heuristic,
            the text ends in ``(perhaps not the shortest)``.

        Raises
        ------
        InputError
            If the group is outside the hull.
        """
        found = self.combination(code, rows, max_tries)
        terms = list(zip(found.positions, found.weights, strict=True))
        if len(self.space.names) != 2:  # with two attributes, in the order of the path: neighbours share a value
            terms.sort(key=lambda term: (-term[1], -term[0]))
        parts: list[str] = []
        for position, weight in terms:
            factor = "" if abs(weight) == 1 else f"{abs(weight)}·"
            sign = ("" if weight > 0 else "−") if not parts else (" + " if weight > 0 else " − ")
            parts.append(f"{sign}{factor}{self.space.label(self.observed[position])}")
        doubt = "" if found.fewest else " (perhaps not the shortest)"
        return f"{self.space.label(code)} = {''.join(parts)}{doubt}"

    def certificate(self, code: Any) -> np.ndarray[Any, Any]:
        """Return an integer vector which proves that a group is outside the hull.

        The vector is orthogonal to the one-hot row of every seen group, but not to that of this group. Adding a
        multiple of it to the energies leaves the energies of seen groups unchanged, so training cannot detect it, but
        changes the energy of this group (paper, "No extrapolation beyond").

        Parameters
        ----------
        code : array (m,)
            Code of the group.

        Returns
        -------
        array (D,) of int
            The certificate.

        Raises
        ------
        InputError
            If the group is inside the hull.
        """
        row = self.space._one_code(code)
        if self._contains(row[None])[0]:
            raise InputError(
                f"{self.space.label(row)} is inside the affine hull: call certificate() only for groups outside"
            )
        return np.asarray(self._span.witness(row + self.space.offsets))

    def components(self) -> list[Component]:
        """Return the connected components of the graph that has attribute values as nodes and seen groups as edges.

        Only for two attributes. The hull is the union of the components' Cartesian products. A value that no
        seen group has is in no component.

        Returns
        -------
        list of Component
            The codes of each component's values, ``left`` of the first attribute and ``right`` of the second.

        Raises
        ------
        InputError
            If there are not exactly two attributes.
        """
        if len(self.space.names) != 2:
            raise InputError(
                f"components() needs exactly 2 attributes, but there are {len(self.space.names)}: use contains()"
            )
        return [Component(*pair) for pair in connected_values(self.observed)]

    def coverage(self, random_state: int = 0) -> Coverage:
        """Return the share of all groups that are inside the hull.

        The share is exact for two attributes, for a complete hull and for up to ten million groups; otherwise it is
        estimated from a random sample.

        Parameters
        ----------
        random_state : int or numpy.random.Generator
            Seed of the random sample.

        Returns
        -------
        Coverage
            A float with the attributes ``method``, ``n_inside``, ``lower`` and ``upper``.
        """
        total = self.space.n_groups
        if self.is_complete:
            return Coverage(1.0, "closed form", total, 1.0, 1.0)
        if len(self.space.names) == 2:
            inside = sum(len(part.left) * len(part.right) for part in self.components())
            return Coverage(inside / total, "closed form", inside, inside / total, inside / total)
        if total <= MAX_ENUMERATED:
            inside = sum(int(self._contains(codes).sum()) for codes in self._every_group())
            return Coverage(inside / total, "enumeration", inside, inside / total, inside / total)
        rng = check_generator(random_state)
        sample = rng.integers(0, self.space.cardinalities, size=(COVERAGE_SAMPLE, len(self.space.names)))
        hits = int(self._contains(sample).sum())
        lower, upper = wilson_interval(hits, COVERAGE_SAMPLE, 0.95)
        return Coverage(hits / COVERAGE_SAMPLE, "estimate", None, float(lower), float(upper))

    def missing(self, inside: bool | None = None) -> IntArray:
        """Return the unseen groups.

        Parameters
        ----------
        inside : bool, optional
            True for only the unseen groups inside the hull, False for only those outside; by default all.

        Returns
        -------
        array (q, m)
            Codes of the groups, in ascending order.

        Raises
        ------
        InputError
            If there are too many groups to list.
        """
        if inside is not None:
            check_flag(inside, "inside")
        if self.space.n_groups > MAX_ENUMERATED:
            raise InputError(
                f"there are {rough(self.space.n_groups)} groups, too many to list: call contains() with the codes "
                "of interest"
            )
        found = []
        for codes in self._every_group():
            unseen = codes[locate_codes(codes, self.observed, self.space.cardinalities) < 0]
            found.append(unseen if inside is None else unseen[self._contains(unseen) == inside])
        return np.concatenate(found)

    def _every_group(self) -> Iterator[IntArray]:
        """Yield the codes of all groups, in blocks."""
        for rows in row_blocks(self.space.n_groups, 1):
            yield codes_of_index(np.arange(rows.start, rows.stop), self.space.cardinalities)

    def plan(
        self,
        cost: Mapping[Any, float] | Any = None,
        target: Any = None,
        forbidden: Any = None,
        candidates: Any = None,
    ) -> Plan:
        """Return the fewest or cheapest groups to collect so that the hull contains all groups, or all of ``target``.

        The plan is optimal in three cases: without ``target``; if all groups cost the same and the target groups can be
        collected themselves; and for a single target group with two attributes. Otherwise the plan comes from a
        heuristic: its ``optimal`` says whether it is known to be the cheapest, and its ``bound`` is a lower bound on
        the cost of any plan.

        Parameters
        ----------
        cost : mapping or callable, optional
            Cost of each group: a mapping from tuples of values to costs (groups without a cost cannot be collected), or
            a function of the tuple of a group's values. By default every group costs 1.
        target : codes (t, m), optional
            Groups that the hull must contain after the collection; by default all groups.
        forbidden : codes (f, m), optional
            Groups that cannot be collected.
        candidates : codes (c, m), optional
            The only groups that can be collected. Required with a cost function if there are more than a million
            groups.

        Returns
        -------
        Plan
            Codes (c, m) of the groups to collect, cheapest first, with the attributes ``cost``, ``bound`` and
            ``optimal``.

        Raises
        ------
        InputError
            If the groups that can be collected do not suffice, or if a cost is negative or not a finite number.
        """
        wanted = None if target is None else check_codes(target, self.space.cardinalities, "target")
        offers = make_offers(self.space, self.observed, cost, forbidden, candidates, wanted)
        if wanted is None:
            return complete_plan(self._span, offers, self.full_rank)
        outside = distinct_codes(wanted[~self._contains(wanted)], self.space.cardinalities)[0]
        if not len(outside):
            return offers.plan([])
        return target_plan(self.space, self._span, self.observed, outside, offers)
