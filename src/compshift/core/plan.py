"""Collection plans: the fewest or cheapest groups that complete an affine hull, or extend it to target groups.

Completing the hull is a matroid problem, so the greedy choice by cost is optimal. Extending it to target groups is a
Steiner problem if costs differ or if the targets themselves cannot be collected. It is solved exactly for a single
target with two attributes (a shortest path), otherwise by a heuristic with a lower bound on the cost.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from compshift._checks import check_codes, check_finite, check_numbers
from compshift._errors import InputError, listing, rough
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.groups import GroupSpace, codes_of_index, distinct_codes, locate_codes
from compshift.core.span import Span, connected_values

MAX_CANDIDATES = 1_000_000
"""Largest number of groups for which all groups are candidates by default."""

MAX_STARS = 100
"""Maximum number of seen groups around which ``_stars`` builds candidates if there are too many groups to list all."""


class Plan(np.ndarray[Any, np.dtype[np.int64]]):
    """Codes (c, m) of the groups to collect, cheapest first.

    Attributes
    ----------
    cost : float
        Total cost of the groups.
    bound : float
        Lower bound on the cost of any plan.
    optimal : bool
        Whether the plan is known to be the cheapest, because its cost equals the bound or an exact method was used.
    """

    cost: float
    bound: float
    optimal: bool

    def __array_finalize__(self, source: Any) -> None:
        self.cost = getattr(source, "cost", np.nan)
        self.bound = getattr(source, "bound", np.nan)
        self.optimal = getattr(source, "optimal", False)


class Offers:
    """Groups that can be collected and their costs, cheapest first."""

    def __init__(
        self, space: GroupSpace, codes: IntArray, costs: FloatArray, forbidden: IntArray, *, exhaustive: bool = True
    ) -> None:
        allowed = locate_codes(codes, forbidden, space.cardinalities) < 0
        order = np.flatnonzero(allowed)[np.argsort(costs[allowed], kind="stable")]
        self.codes, self.costs = codes[order], costs[order]
        self.columns = self.codes + space.offsets
        self.exhaustive = exhaustive  # False if there are other groups that could be collected

    def plan(self, chosen: Sequence[int], *, bound: float | None = None) -> Plan:
        """Return the plan that consists of the chosen offers; without a ``bound`` it is marked as optimal."""
        cost = float(self.costs[list(chosen)].sum())
        plan = self.codes[sorted(chosen)].view(Plan)
        plan.cost, plan.bound = cost, cost if bound is None else bound
        plan.optimal = bound is None or cost <= bound
        return plan


def complete_plan(span: Span, offers: Offers, full_rank: int) -> Plan:
    """Return the cheapest offers that complete the hull, by the greedy algorithm, which is optimal for a matroid."""
    grown = span.copy()
    chosen = grown.add_all(offers.columns, limit=full_rank)
    if grown.rank < full_rank and not offers.exhaustive:
        raise InputError(
            "without the forbidden groups, the groups that differ from a seen group in one value do not complete the "
            "hull: pass candidates= with the codes of all groups that can be collected"
        )
    if grown.rank < full_rank:
        raise InputError(
            f"the hull cannot be completed: with every group that can be collected its rank is {grown.rank}, but rank "
            f"{full_rank} is needed; list more groups in cost or candidates, or fewer in forbidden"
        )
    return offers.plan(chosen)


def target_plan(space: GroupSpace, span: Span, seen: IntArray, wanted: IntArray, offers: Offers) -> Plan:
    """Return the cheapest plan found that extends the hull to the ``wanted`` groups (t, m), all of them outside it."""
    columns = wanted + space.offsets
    grown = span.copy()
    grown.add_all(columns)
    needed = grown.rank - span.rank  # minimum number of groups: each raises the rank by at most 1
    useful = offers.costs[~span.contains(offers.columns)]
    bound = float(useful[:needed].sum())
    if len(space.names) == 2 and len(wanted) == 1:
        path = _cheapest_path(seen, wanted[0], offers)
        if path is not None:
            return offers.plan(path)
    else:
        direct = [int(row) for row in locate_codes(wanted, offers.codes, space.cardinalities) if row >= 0]
        others = np.setdiff1d(np.arange(len(offers.codes)), direct)
        found = [
            chosen
            for order in (np.arange(len(offers.codes)), np.concatenate([direct, others]).astype(np.int64))
            if (chosen := _until_inside(span, columns, offers, order)) is not None
        ]
        if found:
            return offers.plan(min(found, key=lambda chosen: offers.costs[chosen].sum()), bound=bound)
    raise InputError(
        f"{listing(space.label(code) for code in wanted)} cannot be brought inside the hull by the groups that can be "
        "collected: list more groups in cost or candidates, or fewer in forbidden"
    )


def make_offers(
    space: GroupSpace, seen: IntArray, cost: Any, forbidden: Any, candidates: Any, target: IntArray | None
) -> Offers:
    """Return the groups that can be collected and their costs; see ``AffineHull.plan`` for the arguments."""
    sizes = space.cardinalities
    banned = distinct_codes(check_codes([] if forbidden is None else forbidden, sizes, "forbidden"), sizes)[0]
    listed = None
    if candidates is not None:
        listed = distinct_codes(check_codes(candidates, sizes, "candidates"), sizes)[0]
    if isinstance(cost, Mapping):
        codes, costs = space._encode_keys(cost, "cost"), _checked_costs(list(cost.values()))
        if listed is not None:
            kept = locate_codes(codes, listed, sizes) >= 0
            codes, costs = codes[kept], costs[kept]
        return Offers(space, codes, costs, banned)
    if listed is not None:
        codes = listed
    elif space.n_groups <= MAX_CANDIDATES:
        codes = codes_of_index(np.arange(space.n_groups), sizes)
    elif cost is None:
        codes = _stars(space, seen, target)
    else:
        raise InputError(
            f"there are {rough(space.n_groups)} groups, too many to call cost for each: pass candidates= with the "
            "codes of the groups that can be collected"
        )
    if cost is None:
        every = listed is not None or space.n_groups <= MAX_CANDIDATES
        return Offers(space, codes, np.ones(len(codes)), banned, exhaustive=every)
    if not callable(cost):
        raise InputError(f"cost is {cost!r}: pass a mapping from groups to costs, or a function of a group's values")
    return Offers(space, codes, _checked_costs([cost(tuple(row)) for row in space.decode(codes).tolist()]), banned)


def _stars(space: GroupSpace, seen: IntArray, target: IntArray | None) -> IntArray:
    """Return the target groups, and all groups that differ in at most one value from one of ``MAX_STARS`` seen groups.

    The groups around a single seen group already complete the hull.
    """
    stars = [] if target is None else [target]
    for centre in seen[:MAX_STARS] if len(seen) else np.zeros((1, len(space.names)), dtype=np.int64):
        for attribute, size in enumerate(space.cardinalities):
            rays = np.repeat(centre[None, :], size, axis=0)
            rays[:, attribute] = np.arange(size)
            stars.append(rays)
    return distinct_codes(np.concatenate(stars), space.cardinalities)[0]


def _checked_costs(costs: list[Any]) -> FloatArray:
    """Check that costs are finite numbers ≥ 0 and return them as an array."""
    array = check_numbers(costs, "cost", "pass one number per group")
    if array.shape != (len(costs),):
        raise InputError(f"cost has shape {array.shape}: pass one number per group")
    check_finite(array, "cost")
    if (array < 0).any():
        raise InputError(f"cost is negative for a group ({array.min():g}): costs must be ≥ 0")
    return np.asarray(array)


def _until_inside(span: Span, columns: IntArray, offers: Offers, order: IntArray) -> list[int] | None:
    """Take offers in the given order until the wanted codes are inside, then drop unneeded offers, costliest first.

    Return None if the wanted codes stay outside.
    """
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
    """Return the cheapest offers that connect the two values of ``code`` (2,), or None if no offers connect them.

    Values that seen groups connect already form one node, so this is Dijkstra's algorithm on the connected components
    of the seen groups.
    """
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
                pushed += 1  # tie-breaker, because nodes of different types cannot be compared
                heapq.heappush(queue, (spent + price, pushed, there, [*path, row]))
    return None
