"""What to collect: the fewest or cheapest groups that complete a hull, or bring chosen groups inside.

Completing the hull is a matroid problem, so the greedy choice by cost is optimal. Bringing in chosen groups is a
Steiner problem as soon as costs differ or those groups themselves cannot be collected: solved exactly for one group of
two attributes (a shortest path), otherwise by a heuristic that tells how far it is from the bound.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from compshift._checks import check_codes, check_finite, check_numbers
from compshift._errors import InputError, listing, rough
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.groups import GroupSpace
from compshift.core.span import Span, connected_values

MAX_CANDIDATES = 1_000_000
"""Up to so many groups all are candidates; of more, they must be listed."""


class Plan(np.ndarray[Any, np.dtype[np.int64]]):
    """Codes (c, m) of the groups to collect, cheapest first.

    ``cost`` is what they cost together, ``bound`` what any plan costs at least, ``optimal`` whether none is known to be
    cheaper: a plan whose cost equals its bound, or that an exact method found.
    """

    cost: float
    bound: float
    optimal: bool

    def __array_finalize__(self, source: Any) -> None:
        self.cost = getattr(source, "cost", np.nan)
        self.bound = getattr(source, "bound", np.nan)
        self.optimal = getattr(source, "optimal", False)


class Offers:
    """Groups that can be collected and what they cost, cheapest first."""

    def __init__(
        self, space: GroupSpace, codes: IntArray, costs: FloatArray, forbidden: IntArray, *, all_of_them: bool = True
    ) -> None:
        allowed = space.locate(codes, forbidden) < 0
        order = np.flatnonzero(allowed)[np.argsort(costs[allowed], kind="stable")]
        self.codes, self.costs = codes[order], costs[order]
        self.columns = self.codes + space.offsets
        self.all_of_them = all_of_them  # whether nothing else can be collected

    def plan(self, chosen: Sequence[int], *, bound: float | None = None) -> Plan:
        """The plan that takes the chosen offers; without a bound it is optimal."""
        cost = float(self.costs[list(chosen)].sum())
        plan = self.codes[sorted(chosen)].view(Plan)
        plan.cost, plan.bound = cost, cost if bound is None else bound
        plan.optimal = bound is None or cost <= bound
        return plan


def complete_plan(span: Span, offers: Offers, full_rank: int) -> Plan:
    """The cheapest offers that complete the hull: greedy, which is optimal for a matroid."""
    grown = span.copy()
    chosen = grown.add_all(offers.columns, limit=full_rank)
    if grown.rank < full_rank and not offers.all_of_them:
        raise InputError(
            "the groups that differ from a seen one in one value do not complete the hull, less the forbidden ones: "
            "pass candidates= with those that can be collected"
        )
    if grown.rank < full_rank:
        raise InputError(
            f"the hull cannot be completed: with every group that may be collected its rank is {grown.rank}, and ranks "
            f"{grown.rank + 1} to {full_rank} are out of reach; allow more groups to be collected"
        )
    return offers.plan(chosen)


def target_plan(space: GroupSpace, span: Span, seen: IntArray, wanted: IntArray, offers: Offers) -> Plan:
    """The cheapest offers found that bring the ``wanted`` groups (t, m), all of them outside, inside the hull."""
    columns = wanted + space.offsets
    grown = span.copy()
    grown.add_all(columns)
    needed = grown.rank - span.rank  # any plan raises the rank at least so far, by one a group
    useful = offers.costs[~span.contains(offers.columns)]
    bound = float(useful[:needed].sum())
    if len(space.names) == 2 and len(wanted) == 1:
        path = _cheapest_path(seen, wanted[0], offers)
        if path is not None:
            return offers.plan(path)
    else:
        own = [int(row) for row in space.locate(wanted, offers.codes) if row >= 0]
        others = np.setdiff1d(np.arange(len(offers.codes)), own)
        found = [
            chosen
            for order in (np.arange(len(offers.codes)), np.concatenate([own, others]).astype(np.int64))
            if (chosen := _until_inside(span, columns, offers, order)) is not None
        ]
        if found:
            return offers.plan(min(found, key=lambda chosen: offers.costs[chosen].sum()), bound=bound)
    raise InputError(
        f"{listing(space.label(code) for code in wanted)} cannot be brought inside the hull by the groups that may be "
        "collected: allow more of them"
    )


def make_offers(
    space: GroupSpace, seen: IntArray, cost: Any, forbidden: Any, candidates: Any, target: IntArray | None
) -> Offers:
    """What can be collected: the candidates, or the groups that have a cost, or all, less the forbidden."""
    banned = space.distinct(check_codes([] if forbidden is None else forbidden, space.cardinalities, "forbidden"))[0]
    listed = None
    if candidates is not None:
        listed = space.distinct(check_codes(candidates, space.cardinalities, "candidates"))[0]
    if isinstance(cost, Mapping):
        codes, costs = space._encode_keys(cost, "cost"), _checked_costs(list(cost.values()))
        if listed is not None:
            kept = space.locate(codes, listed) >= 0
            codes, costs = codes[kept], costs[kept]
        return Offers(space, codes, costs, banned)
    if listed is not None:
        codes = listed
    elif space.n_groups <= MAX_CANDIDATES:
        codes = space.codes(np.arange(space.n_groups))
    elif cost is None:
        codes = _stars(space, seen, target)
    else:
        raise InputError(
            f"there are {rough(space.n_groups)} groups, too many to price one by one: pass candidates= with those that "
            "can be collected"
        )
    if cost is None:
        every = listed is not None or space.n_groups <= MAX_CANDIDATES
        return Offers(space, codes, np.ones(len(codes)), banned, all_of_them=every)
    if not callable(cost):
        raise InputError(f"cost is {cost!r}: pass a mapping from groups to costs, or a function of a group's values")
    return Offers(space, codes, _checked_costs([cost(tuple(row)) for row in space.decode(codes).tolist()]), banned)


def _stars(space: GroupSpace, seen: IntArray, target: IntArray | None) -> IntArray:
    """Targets, and groups that differ from a seen one in one value; such a star completes any hull."""
    stars = [] if target is None else [target]
    for centre in seen[:100] if len(seen) else np.zeros((1, len(space.names)), dtype=np.int64):
        for attribute, size in enumerate(space.cardinalities):
            rays = np.repeat(centre[None, :], size, axis=0)
            rays[:, attribute] = np.arange(size)
            stars.append(rays)
    return space.distinct(np.concatenate(stars))[0]


def _checked_costs(costs: list[Any]) -> FloatArray:
    """Costs as finite numbers, none negative."""
    array = check_numbers(costs, "cost", "give one number per group")
    if array.shape != (len(costs),):
        raise InputError(f"cost gives {array.shape[1:]} numbers per group: give one")
    check_finite(array, "cost")
    if (array < 0).any():
        raise InputError(f"cost is negative for a group ({array.min():g}): costs must be 0 or more")
    return np.asarray(array)


def _until_inside(span: Span, columns: IntArray, offers: Offers, order: IntArray) -> list[int] | None:
    """Offers in the given order until the wanted codes are inside, less those that can be spared, the dearest first."""
    enlarging = [int(order[row]) for row in span.copy().add_all(offers.columns[order])]
    grown, chosen = span.copy(), []
    for row in enlarging:
        if grown.contains(columns).all():
            break
        grown.add(offers.columns[row])
        chosen.append(row)
    if not grown.contains(columns).all():
        return None
    for row in sorted(chosen, key=lambda row: -offers.costs[row]):
        rest = [other for other in chosen if other != row]
        smaller = span.copy()
        smaller.add_all(offers.columns[rest])
        if smaller.contains(columns).all():
            chosen = rest
    return chosen


def _cheapest_path(seen: IntArray, code: IntArray, offers: Offers) -> list[int] | None:
    """Offers that join the two values of ``code`` at the least cost, where seen groups join values for nothing."""
    component: dict[tuple[int, int], int] = {}
    for number, sides in enumerate(connected_values(seen)):
        for side, values in enumerate(sides):
            component.update({(side, int(value)): number for value in values})

    def node(side: int, value: int) -> Any:
        return component.get((side, value), (side, value))

    edges: dict[Any, list[tuple[float, Any, int]]] = {}
    for row, (left, right) in enumerate(offers.codes.tolist()):
        ends = node(0, left), node(1, right)
        edges.setdefault(ends[0], []).append((float(offers.costs[row]), ends[1], row))
        edges.setdefault(ends[1], []).append((float(offers.costs[row]), ends[0], row))
    start, goal = node(0, int(code[0])), node(1, int(code[1]))
    done: set[Any] = set()
    queue: list[tuple[float, int, Any, list[int]]] = [(0.0, 0, start, [])]
    pushed = 0
    while queue:
        spent, _, here, path = heapq.heappop(queue)
        if here == goal:
            return path
        if here in done:
            continue
        done.add(here)
        for price, there, row in edges.get(here, []):
            if there not in done:
                pushed += 1  # breaks ties, so that nodes of different kinds are never compared
                heapq.heappush(queue, (spent + price, pushed, there, [*path, row]))
    return None
