"""Accuracy by group and method, as rows of charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compshift.core.accuracy import wilson_interval
from compshift.core.arrays import BoolArray, FloatArray, IntArray
from compshift.core.groups import GroupSpace
from compshift.report.charts import accuracy_maps, heat_map, seen_unseen_bars
from compshift.report.page import Block, Charts, Words

MAX_LISTED = 48
"""More groups than this are drawn as a grid if they have two attributes; of others the worst are listed."""


@dataclass(frozen=True, eq=False)
class GroupAccuracy:
    """Of one set of groups: accuracy (methods, g), NaN where there is none."""

    space: GroupSpace
    groups: IntArray  # (g, m)
    unseen: BoolArray  # (g,) whether training lacked them
    rows: IntArray  # (g,) tested
    methods: tuple[str, ...]
    accuracy: FloatArray  # (methods, g)

    def chart_rows(self, chosen: IntArray, *, on_grid: bool = False) -> list[dict[str, Any]]:
        """A row for each method and chosen group that was tested, with a 95 % interval of as many rows.

        Groups have their name or, on a grid, their two values. What is false is left out: a page can have many rows.
        """
        right = np.nan_to_num(self.accuracy) * self.rows
        lower, upper = wilson_interval(right, self.rows, 0.95)
        worst = [np.nanmin(own) if not np.isnan(own).all() else np.nan for own in self.accuracy]
        unseen = self.unseen.tolist()
        return [
            {
                **self._name(group, on_grid=on_grid),
                "method": method,
                "accuracy": round(float(self.accuracy[number, group]), 4),
                "lower": round(float(lower[number, group]), 4),
                "upper": round(float(upper[number, group]), 4),
                "n": int(self.rows[group]),
                **({"unseen": True} if unseen[group] else {}),
                **({"worst": True} if self.accuracy[number, group] == worst[number] else {}),
            }
            for group in chosen.tolist()
            for number, method in enumerate(self.methods)
            if not np.isnan(self.accuracy[number, group])
        ]

    def _name(self, group: int, *, on_grid: bool) -> dict[str, str]:
        code = self.groups[group]
        if not on_grid:
            return {"group": self.space.label(code)}
        return {"first": str(self.space.values[0][code[0]]), "second": str(self.space.values[1][code[1]])}


def accuracy_blocks(found: GroupAccuracy, caption: str) -> list[Block]:
    """Heat maps: all groups by all methods, or a method's groups on the grid of two attributes; of many, the worst."""
    tested = np.flatnonzero(~np.isnan(found.accuracy).all(axis=0))
    if not len(tested):
        return []
    interval = "Pointing at a cell shows its 95% interval; ▾ marks the worst group of each method."
    order = tested[np.lexsort((tested, ~found.unseen[tested]))]  # unseen groups first
    blocks: list[Block] = []
    if found.groups.shape[1] == 2 and (len(found.methods) == 1 or len(order) > MAX_LISTED):
        rows = found.chart_rows(order, on_grid=True)
        orders = [
            [str(values[code]) for code in np.unique(found.groups[order, attribute])]
            for attribute, values in enumerate(found.space.values)
        ]
        mixed = len(np.unique(found.unseen[order])) > 1
        whole = f"{caption}{' ∘ marks groups that training lacked.' if mixed else ''} {interval}"
        blocks.append(Charts([accuracy_maps(rows, found.space.names, orders, found.methods, whole, mixed)]))
        if len(found.methods) == 1:
            return blocks
    if len(order) <= MAX_LISTED:
        return [Charts([_listed(found, order, f"{caption} {interval}")])]
    lowest = np.nanmin(found.accuracy[:, order], axis=0)
    worst = order[np.argsort(lowest, kind="stable")[: MAX_LISTED // 2 if blocks else MAX_LISTED]]
    text = f"The {len(worst)} of {len(order)} groups with the lowest accuracy by any method. {interval}"
    return [*blocks, Charts([_listed(found, worst, text)])]


def _listed(found: GroupAccuracy, order: IntArray, caption: str) -> Any:
    labels = [found.space.label(found.groups[group]) for group in order]
    return heat_map(found.chart_rows(order), labels, found.methods, caption)


def bar_blocks(methods: Sequence[str], seen: FloatArray, unseen: FloatArray) -> list[Block]:
    """Mean accuracy over groups while training had them and while it had not, from accuracies (methods, g)."""
    rows = [
        {
            "method": method,
            "state": state,
            "accuracy": round(float(np.nanmean(own)), 4),
            "n": int((~np.isnan(own)).sum()),
        }
        for state, accuracy in (("seen", seen), ("unseen", unseen))
        for method, own in zip(methods, accuracy, strict=True)
        if not np.isnan(own).all()
    ]
    if not rows:
        return []
    blocks: list[Block] = [
        Charts(
            [seen_unseen_bars(rows, methods, "Mean accuracy over groups that training had, and over those it lacked.")]
        )
    ]
    if np.isnan(unseen).all():
        blocks.append(Words(["No group that training lacked was tested."], soft=True))
    return blocks
