"""The coverage section of a page: which groups are seen, can be extrapolated, or are out of reach."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compshift._errors import rough
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.combination import tries_per_group
from compshift.core.hull import AffineHull
from compshift.data.audit import Audit
from compshift.report.audit import plan_words, rows_words, small_words
from compshift.report.charts import PAIR_STATES, pair_panel, short_count
from compshift.report.grid import Grid
from compshift.report.page import Block, Card, Chart, Charts, Explorer, Heading, Numbers, Section, Words

WINDOW = 60
"""Number of values of an attribute that the grid shows at a time; must equal ``WINDOW`` in ``explorer.js``."""

MAX_GRID_GROUPS = 20_000
"""Maximum number of seen groups in the grid's data; if there are more, only the most frequent values are included."""

MAX_LISTED_GROUPS = 50_000
"""Largest number of groups of a table for which unseen groups are listed and explained, and pairs of attributes drawn.

It counts seen and unseen groups.
"""

MAX_EXPLAINED_GROUPS = 1000
"""Maximum number of unseen groups whose combination of seen groups is included in the grid's data."""

MAX_MISSING_ROWS = 200
"""Maximum number of rows in the table of missing groups."""

MAX_PANEL_VALUES = 30
"""Maximum number of values of an attribute in a panel; if there are more, ``_value_order`` decides which are drawn."""

MAX_PAIR_PANELS = 15
"""Maximum number of pairs of attributes that are drawn."""


@dataclass(frozen=True)
class Dropped:
    """A scenario of a benchmark: the groups that are dropped from training."""

    label: str
    codes: IntArray  # (q, m)


def coverage_section(audit: Audit, scenarios: Sequence[Dropped] = (), title: str = "Coverage") -> Section:
    """Return the section: row counts, interactive grid, panels of attribute pairs, and missing groups.

    Panels are included if there are more than two attributes, the table of missing groups if there are no scenarios.
    """
    blocks: list[Block] = [Words([_as_sentence(line) for line in _rows_words(audit)])]
    data, notes = explorer_data(audit, scenarios)
    blocks.append(Explorer(data, notes))
    if len(audit.space.names) > 2:
        blocks += _pair_blocks(audit)
    blocks += [] if scenarios else _missing_blocks(audit, data["witnesses"])
    return Section(title, blocks)


def _rows_words(audit: Audit) -> list[str]:
    """Return sentences on the number of rows, or on their total weight if the counts are not integers."""
    first, *others = rows_words(audit)
    if np.array_equal(audit.counts.count, np.round(audit.counts.count)):
        return [first, *others, *small_words(audit)]
    return [f"a total weight of {audit.counts.n_rows:g} in {first.partition(' rows in ')[2]}", *others]


def coverage_cards(audit: Audit) -> list[Card]:
    """Return cards with the numbers of groups that are seen, can be extrapolated, and are out of reach."""
    seen, total = len(audit.counts.groups), audit.space.n_groups
    inside = audit.coverage.n_inside
    cards = [Card(f"{seen:,} of {_count(total)}", "groups seen in training")]
    if inside is None:
        return [*cards, Card(f"≈ {float(audit.coverage):.1%}", "of all groups determined")]
    return [
        *cards,
        Card(f"{inside - seen:,}", f"unseen group{'s' * (inside - seen != 1)} that can be extrapolated"),
        Card(_count(total - inside), f"group{'s' * (total - inside != 1)} out of reach"),
    ]


def coverage_lead(audit: Audit) -> list[str]:
    """Return sentences for the top of a page: which groups are missing, and which ones to collect."""
    seen, total, inside = len(audit.counts.groups), audit.space.n_groups, audit.coverage.n_inside
    names = " × ".join(audit.space.names)
    missing = total - seen
    if not missing:
        return [f"Training has rows of every combination of {names}."]
    if inside is None:
        known = f"about {float(audit.coverage):.1%} of all groups are determined by the seen ones"
    elif missing == 1:
        known = "it can be extrapolated from the seen ones" if inside > seen else "it cannot be extrapolated"
    else:
        number = {0: "none", missing: "all"}.get(inside - seen, f"{inside - seen:,}")
        known = f"{number} of them can be extrapolated from the seen ones"
    lacking = "one is" if missing == 1 else f"{_count(missing)} are"
    sentence = f"Of the {_count(total)} combinations of {names}, {lacking} missing from training; {known}."
    return [sentence, *map(_as_sentence, plan_words(audit))]


def explorer_data(audit: Audit, scenarios: Sequence[Dropped] = ()) -> tuple[dict[str, Any], list[str]]:
    """Return the data of the interactive grid, and notes on the groups and values that it does not show."""
    space, counts, notes = audit.space, audit.counts, []
    order = [_value_order(audit, attribute) for attribute in range(len(space.names))]
    kept = np.arange(len(counts.groups))
    if len(kept) > MAX_GRID_GROUPS:
        window, order, kept = _most_frequent(audit)
        notes.append(
            f"There are {len(counts.groups):,} seen groups: the grid has only the {window} values of each attribute "
            "with the most rows. Coverage, rank and plan are computed from all groups."
        )
    for name, values, shown in zip(space.names, space.values, order, strict=True):
        if len(shown) > WINDOW:
            notes.append(
                f"{name} has {len(values):,} values: the grid shows {WINDOW} at a time, those with the most rows "
                "first. Coverage, rank and plan are computed from all values."
            )
    position = {tuple(code): number for number, code in enumerate(counts.groups[kept].tolist())}
    data = {
        "names": list(space.names),
        "values": [[str(value) for value in values] for values in space.values],
        "order": [values.tolist() for values in order],
        "seen": counts.groups[kept].tolist(),
        "n_seen": len(counts.groups),
        "counts": [_whole(count) for count in counts.count[kept]],
        "base": counts.groups[kept[np.argmax(counts.count[kept])]].tolist(),
        "basis": audit.hull.basis.tolist(),
        "plan": np.asarray(audit.plan).reshape(-1, len(space.names)).tolist(),
        "scenarios": [
            {
                "label": scenario.label,
                "dropped": [position[code] for code in map(tuple, scenario.codes.tolist()) if code in position],
                "witnesses": _scenario_witnesses(audit, scenario, MAX_EXPLAINED_GROUPS // len(scenarios)),
            }
            for scenario in scenarios
        ],
        "witnesses": {}
        if scenarios
        else _witnesses(audit.hull, counts.count, _listed_missing(audit, inside=True), MAX_EXPLAINED_GROUPS),
    }
    return data, notes


def _most_frequent(audit: Audit) -> tuple[int, list[IntArray], IntArray]:
    """Choose the values with the most rows, the same number for each attribute, for a grid of limited size.

    That number is the largest, up to ``WINDOW``, for which the grid has at most ``MAX_GRID_GROUPS`` seen groups, but
    large enough for one seen group. Return the number, the values of each attribute, and the positions of all seen
    groups that consist of these values: the grid would show a seen group without a position as unseen.
    """
    groups = audit.counts.groups
    orders = [np.argsort(-_rows(audit, attribute), kind="stable") for attribute in range(groups.shape[1])]
    ranks = [np.argsort(order)[groups[:, attribute]] for attribute, order in enumerate(orders)]
    depth = np.max(ranks, axis=0)  # (k,) a window of depth + 1 values contains the group
    inside = np.searchsorted(np.sort(depth), np.arange(1, WINDOW + 1))
    window = max(int(np.count_nonzero(inside <= MAX_GRID_GROUPS)), int(depth.min()) + 1)
    return window, [np.sort(order[:window]) for order in orders], np.flatnonzero(depth < window)


def _witnesses(hull: AffineHull, rows: FloatArray, unseen: IntArray | None, limit: int) -> dict[str, str]:
    """Return the combination of seen groups for each of at most ``limit`` extrapolable groups, keyed by their codes.

    ``rows`` (k,) are the numbers of rows of the seen groups. With two attributes the result is empty, because
    ``hull.js`` computes the combinations itself.
    """
    if unseen is None or len(hull.space.names) == 2:
        return {}
    inside = unseen[hull.contains(unseen)][:limit]
    tries = tries_per_group(len(inside) * MAX_EXPLAINED_GROUPS // max(1, limit))  # shared by all scenarios
    return {",".join(map(str, code)): _reason(hull, rows, np.array(code), tries) for code in inside.tolist()}


def _reason(hull: AffineHull, rows: FloatArray, code: IntArray, tries: int) -> str:
    """Return the combination of seen groups that equals the group ``code``, as text."""
    return hull.explain(code, rows, tries).removeprefix(f"{hull.space.label(code)} = ")


def _scenario_witnesses(audit: Audit, scenario: Dropped, limit: int) -> dict[str, str]:
    """Return the dropped groups of a scenario as combinations of the groups that remain in training."""
    kept = audit.space.locate(audit.counts.groups, audit.space.distinct(scenario.codes)[0]) < 0
    if not kept.any():
        return {}
    return _witnesses(
        AffineHull(audit.space, audit.counts.groups[kept]), audit.counts.count[kept], scenario.codes, limit
    )


def _listed_missing(audit: Audit, *, inside: bool) -> IntArray | None:
    """Return the unseen groups inside or outside the hull; None if there are too many groups to list."""
    return audit.hull.missing(inside=inside) if audit.space.n_groups <= MAX_LISTED_GROUPS else None


def _missing_blocks(audit: Audit, witnesses: Mapping[str, str]) -> list[Block]:
    """Return a table of the missing groups, each with the combination of seen groups that equals it.

    ``witnesses`` are combinations that are known already, keyed by the codes of the groups.
    """
    inside, outside = _listed_missing(audit, inside=True), _listed_missing(audit, inside=False)
    if inside is None or outside is None:
        return [Words([f"There are {_count(audit.space.n_groups)} groups, too many to list the missing ones."], True)]
    missing = len(inside) + len(outside)
    if not missing:
        return []
    title = "The missing group" if missing == 1 else f"The {missing:,} missing groups"
    grid = Grid("missing", title, [*audit.space.names, "combination of seen groups"], len(audit.space.names) + 1)
    rows = [(code, True) for code in inside] + [(code, False) for code in outside]
    for code, extrapolable in rows[:MAX_MISSING_ROWS]:
        reason = "out of reach"
        if extrapolable:
            reason = witnesses.get(",".join(map(str, code))) or _reason(
                audit.hull, audit.counts.count, code, tries_per_group(MAX_MISSING_ROWS)
            )
        grid.add([*map(str, audit.space.decode(code[None])[0]), reason], [])
    if missing > MAX_MISSING_ROWS:
        grid.notes.append(
            f"The first {MAX_MISSING_ROWS} of {missing:,} groups; `compshift audit --json` lists all of them."
        )
    return [Numbers(grid, folded=True)]


def _pair_blocks(audit: Audit) -> list[Block]:
    """Return a panel for each pair of attributes."""
    space = audit.space
    if space.n_groups > MAX_LISTED_GROUPS:
        return [Words([f"There are {_count(space.n_groups)} groups, too many to draw each pair of attributes."], True)]
    every = space.codes(np.arange(space.n_groups))
    inside = audit.hull.contains(every)
    count = np.zeros(len(every))
    count[space.index(audit.counts.groups)] = audit.counts.count
    pairs = list(itertools.combinations(range(len(space.names)), 2))
    charts = [_panel(audit, pair, every, inside, count) for pair in pairs[:MAX_PAIR_PANELS]]
    blocks: list[Block] = [
        Heading("Pairs of attributes"),
        Words(
            [
                "A cell stands for all groups that have its two values, whatever their other values: its number counts "
                "their rows, and its colour says whether all of these groups are seen. A group is determined if it is "
                "inside the affine hull of the seen groups."
            ]
        ),
        Charts(charts),
    ]
    if len(pairs) > MAX_PAIR_PANELS:
        blocks.append(Words([f"The first {MAX_PAIR_PANELS} of {len(pairs)} pairs are drawn."], soft=True))
    return blocks


def _panel(audit: Audit, pair: tuple[int, int], every: IntArray, inside: Any, count: Any) -> Chart:
    """Return the chart of one pair of attributes.

    ``every`` (g, m) holds all groups; ``inside`` (g,) says whether each is inside the hull, and ``count`` (g,) how
    many rows it has.
    """
    space = audit.space
    orders = [_value_order(audit, attribute)[:MAX_PANEL_VALUES] for attribute in pair]
    sizes = [space.cardinalities[attribute] for attribute in pair]
    cell = every[:, pair[0]] * sizes[1] + every[:, pair[1]]
    total, determined, seen, n = (
        np.bincount(cell, weights=weights, minlength=sizes[0] * sizes[1]).reshape(sizes)
        for weights in (np.ones(len(every)), inside, count > 0, count)
    )
    names = space.names[pair[0]], space.names[pair[1]]
    labels = [
        [str(space.values[attribute][value]) for value in order] for attribute, order in zip(pair, orders, strict=True)
    ]
    rows = [
        {
            "first": labels[0][i],
            "second": labels[1][j],
            "n": float(n[left, right]),
            "shown": short_count(float(n[left, right])),
            "groups": int(total[left, right]),
            "seen": int(seen[left, right]),
            "inside": int(determined[left, right]),
            "state": _pair_state(total[left, right], seen[left, right], determined[left, right]),
        }
        for i, left in enumerate(orders[0])
        for j, right in enumerate(orders[1])
    ]
    cut = [
        f"the {'first' if size <= WINDOW else 'most frequent'} {len(order)} of {size} values of {name}"
        for name, order, size in zip(names, orders, sizes, strict=True)
        if len(order) < size
    ]
    caption = f"{names[0]} × {names[1]}" + (f": {' and '.join(cut)}" if cut else "")
    return pair_panel(rows, names, labels, caption)


def _pair_state(total: float, seen: float, inside: float) -> str:
    """Return the state of a cell from its numbers of groups, of seen groups, and of groups inside the hull."""
    all_seen, some_seen, none_seen, undetermined = PAIR_STATES
    if seen == total:
        return all_seen
    if inside < total:
        return undetermined
    return some_seen if seen else none_seen


def _value_order(audit: Audit, attribute: int) -> IntArray:
    """Return the values of an attribute in their own order, or by frequency if there are more than ``WINDOW``."""
    size = audit.space.cardinalities[attribute]
    if size <= WINDOW:
        return np.arange(size)
    return np.argsort(-_rows(audit, attribute), kind="stable")


def _rows(audit: Audit, attribute: int) -> FloatArray:
    """Return the number of rows of each value of an attribute, (d,)."""
    size = audit.space.cardinalities[attribute]
    return np.bincount(audit.counts.groups[:, attribute], weights=audit.counts.count, minlength=size).astype(float)


def _whole(count: float) -> float | int:
    """Return a count as an int if it is an integer, so that JSON has no decimals."""
    return int(count) if float(count).is_integer() else float(count)


def _count(number: int) -> str:
    """Format a count with thousands separators, or roughly from a billion on."""
    return f"{number:,}" if number < 10**9 else rough(number)


def _as_sentence(line: str) -> str:
    """Return a line with a capital first letter and a final full stop."""
    return line[:1].upper() + line[1:] + ("" if line.endswith(".") else ".")
