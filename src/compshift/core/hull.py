"""The discrete affine hull: which groups the seen ones determine, decided in whole numbers."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from compshift._checks import check_codes, check_flag, check_generator
from compshift._errors import InputError, rough
from compshift.core.accuracy import wilson_interval
from compshift.core.arrays import BLOCK_CELLS, BoolArray, IntArray
from compshift.core.groups import GroupSpace, check_space
from compshift.core.plan import Plan, complete_plan, make_offers, target_plan
from compshift.core.span import Span, connected_values, shortest_witness

MAX_WIDTH = 1 << 14
"""Most values of all attributes together: exact arithmetic begins with a square table of so many numbers a side."""

MAX_COUNTED = 10_000_000
"""Up to so many groups are counted one by one; of more, a random sample is."""

SAMPLE = 200_000
"""Size of that sample."""

MAX_SHOWN = 1 << 16
"""Up to so many groups are counted to show a hull."""


class Coverage(float):
    """Share of all groups that are inside a hull, and how it was found.

    ``method`` is ``"closed form"``, ``"enumeration"`` or ``"estimate"``; ``n_inside`` the number of groups inside, None
    if it was estimated; ``lower`` and ``upper`` the ends of a 95 % interval, equal to the share if it is exact.
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
    """Values of two attributes that the seen groups connect; every combination of them is inside the hull."""

    left: IntArray  # codes of the first attribute's values
    right: IntArray  # codes of the second's


class AffineHull:
    r"""Groups whose one-hot code is an affine combination of the seen ones (paper, "Discrete Affine Hull").

    .. math:: z \in \mathrm{DAff} \Longleftrightarrow
        \sigma(z) = \sum_j \alpha_j \sigma(z^{(j)}), \quad \sum_j \alpha_j = 1

    Each one-hot block sums to 1, so the weights of a linear combination sum to 1 by themselves, and z is inside exactly
    if every integer vector orthogonal to the seen codes is orthogonal to σ(z). All of it is integer arithmetic, without
    a tolerance, and nothing is ever as large as the number of groups unless groups are asked for.

    Parameters
    ----------
    space : GroupSpace
        All attributes and values, seen or not.
    observed_codes : array (n, m)
        Codes of the seen groups, in any order and as often as they occur.

    Attributes
    ----------
    space : GroupSpace
    observed : array (k, m)
        The seen groups, each once and in order; weights follow it.

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
                f"the attributes have {space.width} values in all, and the hull of at most {MAX_WIDTH} is computed: "
                "leave out attributes that are identifiers, or group their values"
            )
        self.observed: IntArray = space.distinct(codes)[0]  # (k, m) in order of their codes
        self._span = Span(space.width)
        self._basis = self._span.add_all(self.observed + space.offsets, limit=self.full_rank)

    def __repr__(self) -> str:
        total = self.space.n_groups
        size = f"{total} groups" if total <= MAX_COUNTED else f"{rough(total)} groups"
        inside = f"{len(self.observed)} of {size} seen"
        if self.is_complete:
            inside += ", all inside"
        elif len(self.space.names) == 2 or total <= MAX_SHOWN:
            inside += f", {self.coverage().n_inside} inside"
        return f"<AffineHull: {inside}, rank {self.rank} of {self.full_rank}>"

    @property
    def basis(self) -> IntArray:
        """Codes (rank, m) of seen groups that determine the same hull, none of which can be left out."""
        return self.observed[self._basis]

    @property
    def rank(self) -> int:
        """Rank of the seen codes; the hull has this dimension less one."""
        return self._span.rank

    @property
    def full_rank(self) -> int:
        """Rank Σ(d_i − 1) + 1, at which every group is inside."""
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
        return self._span.contains(codes + self.space.offsets)

    def weights(self, code: Any) -> np.ndarray[Any, np.dtype[np.object_]]:
        """Exact weights α (k,) on ``observed`` that give the group, as fractions summing to 1.

        A seen group has weight 1 on itself; with two attributes the weights are ±1 along a shortest path.
        """
        row = self.space._one_code(code)
        if not self.contains(row)[0]:
            raise InputError(
                f"{self.space.label(row)} is outside the affine hull of the seen groups: "
                "no combination of them gives it"
            )
        weights = np.full(len(self.observed), Fraction(0), dtype=object)
        own = int(self.space.locate(row, self.observed)[0])
        if own >= 0:
            weights[own] = Fraction(1)
        elif len(self.space.names) == 2:
            for sign, position in shortest_witness(self.observed, row):
                weights[position] += sign
        else:
            weights[self._basis] = self._span.coordinates(row + self.space.offsets)
        return weights

    def explain(self, code: Any) -> str:
        """The group as a combination of seen ones, for people: ``(w, land) = (w, water) − (l, water) + (l, land)``."""
        weights = self.weights(code)
        parts: list[str] = []
        order = sorted(np.flatnonzero(weights).tolist(), key=lambda position: -weights[position])
        if len(self.space.names) == 2 and len(order) > 1:  # along the path, so that neighbours share a value
            order = [position for _, position in shortest_witness(self.observed, self.space._one_code(code))]
        for position in order:
            weight = weights[position]
            factor = "" if abs(weight) == 1 else f"{abs(weight)}·"
            sign = ("" if weight > 0 else "−") if not parts else (" + " if weight > 0 else " − ")
            parts.append(f"{sign}{factor}{self.space.label(self.observed[position])}")
        return f"{self.space.label(code)} = {''.join(parts)}"

    def certificate(self, code: Any) -> np.ndarray[Any, Any]:
        """Integers (D,) that prove a group to be outside: orthogonal to every seen code, and not to its own.

        Added to the energies, any multiple of it changes no seen group's energy, hence nothing that training can see,
        but it does change this group's (paper, "No extrapolation beyond").
        """
        row = self.space._one_code(code)
        if self.contains(row)[0]:
            raise InputError(f"{self.space.label(row)} is inside the affine hull: nothing can prove it to be outside")
        return np.asarray(self._span.witness(row + self.space.offsets))

    def components(self) -> list[Component]:
        """With two attributes: their values as the seen groups connect them. The hull is the union of the products.

        Values that no seen group has are in no component.
        """
        if len(self.space.names) != 2:
            raise InputError(f"components are defined for 2 attributes, and there are {len(self.space.names)}")
        return [Component(*pair) for pair in connected_values(self.observed)]

    def coverage(self, random_state: int = 0) -> Coverage:
        """Share of all groups that are inside; exact wherever the groups can be counted."""
        total = self.space.n_groups
        if self.is_complete:
            return Coverage(1.0, "closed form", total, 1.0, 1.0)
        if len(self.space.names) == 2:
            inside = sum(len(part.left) * len(part.right) for part in self.components())
            return Coverage(inside / total, "closed form", inside, inside / total, inside / total)
        if total <= MAX_COUNTED:
            inside = sum(int(self.contains(codes).sum()) for codes in self._every_group())
            return Coverage(inside / total, "enumeration", inside, inside / total, inside / total)
        rng = check_generator(random_state)
        sample = rng.integers(0, self.space.cardinalities, size=(SAMPLE, len(self.space.names)))
        hits = int(self.contains(sample).sum())
        lower, upper = wilson_interval(hits, SAMPLE)
        return Coverage(hits / SAMPLE, "estimate", None, float(lower), float(upper))

    def missing(self, inside: bool | None = None) -> IntArray:
        """Codes of the groups that were not seen: all of them, those inside the hull, or those outside."""
        if inside is not None:
            check_flag(inside, "inside")
        if self.space.n_groups > MAX_COUNTED:
            raise InputError(
                f"there are {rough(self.space.n_groups)} groups, too many to list: ask contains() about those of "
                "interest"
            )
        found = []
        for codes in self._every_group():
            unseen = codes[self.space.locate(codes, self.observed) < 0]
            found.append(unseen if inside is None else unseen[self.contains(unseen) == inside])
        return np.concatenate(found)

    def _every_group(self) -> Any:
        """All groups, in blocks of codes."""
        for start in range(0, self.space.n_groups, BLOCK_CELLS):
            yield self.space.codes(np.arange(start, min(start + BLOCK_CELLS, self.space.n_groups)))

    def plan(
        self,
        cost: Mapping[Any, float] | Any = None,
        target: Any = None,
        forbidden: Any = None,
        candidates: Any = None,
    ) -> Plan:
        """Codes of the groups to collect so that the hull has every group, or every ``target``.

        The fewest, or with ``cost`` the cheapest. Completing the hull is solved exactly. So are targets that can all be
        collected themselves at equal cost, and one target of two attributes; for others the plan's ``optimal`` says
        whether it is known to be the cheapest, and ``bound`` what any plan costs at least.

        Parameters
        ----------
        cost : mapping or callable, optional
            Price of each group: a mapping from tuples of values, whose groups are the candidates, or a function of one
            group's values. Without it every group costs 1.
        target : codes (t, m), optional
            Only these must come inside.
        forbidden : codes (f, m), optional
            Groups that cannot be collected.
        candidates : codes (c, m), optional
            The only groups that can be collected. Needed for a cost function if there are more than a million groups.
        """
        wanted = None if target is None else check_codes(target, self.space.cardinalities, "target")
        offers = make_offers(self.space, self.observed, cost, forbidden, candidates, wanted)
        if wanted is None:
            return complete_plan(self._span, offers, self.full_rank)
        outside = self.space.distinct(wanted[~self.contains(wanted)])[0]
        if not len(outside):
            return offers.plan([])
        return target_plan(self.space, self._span, self.observed, outside, offers)
