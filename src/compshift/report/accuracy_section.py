"""Accuracy by group and method, as charts: shared by the pages on models and on benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compshift.core.accuracy import wilson_interval
from compshift.core.arrays import BoolArray, FloatArray, IntArray
from compshift.core.groups import GroupSpace
from compshift.report.charts import accuracy_maps, heat_map, seen_unseen_bars
from compshift.report.page import Block, Chart, Charts, Words

MAX_HEAT_MAP_GROUPS = 48
"""Largest number of groups in a heat map; of more, those with the lowest accuracy are shown."""


@dataclass(frozen=True, eq=False)
class GroupAccuracy:
    """Accuracy of several methods on the same groups."""

    space: GroupSpace
    groups: IntArray  # (g, m)
    unseen: BoolArray  # (g,) whether the group was absent from training
    rows: IntArray  # (g,) number of test rows
    methods: tuple[str, ...]
    accuracy: FloatArray  # (methods, g), NaN where a group was not tested
    confidence: float  # level of the intervals

    def chart_rows(self, selected: IntArray, *, on_grid: bool = False) -> list[dict[str, Any]]:
        """Return a chart row with a Wilson interval for each method and selected group that was tested.

        A group is given by its label or, ``on_grid``, by its two values. False flags are left out to keep pages small.
        """
        right = np.nan_to_num(self.accuracy) * self.rows
        lower, upper = wilson_interval(right, self.rows, self.confidence)
        worst = [np.nanmin(own) if not np.isnan(own).all() else np.nan for own in self.accuracy]
        return [
            {
                **self._name(group, on_grid=on_grid),
                "method": method,
                "accuracy": round(float(self.accuracy[number, group]), 4),
                "lower": round(float(lower[number, group]), 4),
                "upper": round(float(upper[number, group]), 4),
                "n": int(self.rows[group]),
                **({"unseen": True} if self.unseen[group] else {}),
                **({"worst": True} if self.accuracy[number, group] == worst[number] else {}),
            }
            for group in selected.tolist()
            for number, method in enumerate(self.methods)
            if not np.isnan(self.accuracy[number, group])
        ]

    def _name(self, group: int, *, on_grid: bool) -> dict[str, str]:
        code = self.groups[group]
        if not on_grid:
            return {"group": self.space.label(code)}
        return {"first": str(self.space.values[0][code[0]]), "second": str(self.space.values[1][code[1]])}


def accuracy_blocks(found: GroupAccuracy, caption: str) -> list[Block]:
    """Return heat maps of the tested groups.

    One method on two attributes is drawn on their grid. Several methods are drawn beside each other; if there are more
    groups than ``MAX_HEAT_MAP_GROUPS``, those with the lowest accuracy, after a grid with a menu of methods.
    """
    tested = np.flatnonzero(~np.isnan(found.accuracy).all(axis=0))
    if not len(tested):
        return []
    interval = f"Point at a cell to see its {found.confidence:.0%} interval. ▾ marks the worst group of each method."
    order = tested[np.lexsort((tested, ~found.unseen[tested]))]  # unseen groups first
    blocks: list[Block] = []
    if found.groups.shape[1] == 2 and (len(found.methods) == 1 or len(order) > MAX_HEAT_MAP_GROUPS):
        rows = found.chart_rows(order, on_grid=True)
        orders = [
            [str(values[code]) for code in np.unique(found.groups[order, attribute])]
            for attribute, values in enumerate(found.space.values)
        ]
        mixed = len(np.unique(found.unseen[order])) > 1
        whole = f"{caption}{' ∘ marks groups that were absent from training.' if mixed else ''} {interval}"
        blocks.append(Charts([accuracy_maps(rows, found.space.names, orders, found.methods, whole, mixed)]))
        if len(found.methods) == 1:
            return blocks
    if len(order) <= MAX_HEAT_MAP_GROUPS:
        return [Charts([_heat_map(found, order, f"{caption} {interval}")])]
    lowest = np.nanmin(found.accuracy[:, order], axis=0)
    worst = order[np.argsort(lowest, kind="stable")[: MAX_HEAT_MAP_GROUPS // 2 if blocks else MAX_HEAT_MAP_GROUPS]]
    text = f"The {len(worst)} of {len(order)} groups with the lowest accuracy by any method. {interval}"
    return [*blocks, Charts([_heat_map(found, worst, text)])]


def _heat_map(found: GroupAccuracy, order: IntArray, caption: str) -> Chart:
    labels = [found.space.label(found.groups[group]) for group in order]
    return heat_map(found.chart_rows(order), labels, found.methods, caption)


def bar_blocks(methods: Sequence[str], seen: FloatArray, unseen: FloatArray) -> list[Block]:
    """Return bars of the mean accuracy over seen and over unseen groups, from accuracies (methods, g)."""
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
    caption = "Mean accuracy over groups that training had (seen) and over groups that it lacked (unseen)."
    blocks: list[Block] = [Charts([seen_unseen_bars(rows, methods, caption)])]
    if np.isnan(unseen).all():
        blocks.append(Words(["No group that was absent from training has been tested."], soft=True))
    return blocks
