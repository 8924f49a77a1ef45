"""Charts of accuracy by group and method, shared by the model page and the benchmark page."""

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
"""Maximum number of groups in a heat map; if there are more, those with the lowest accuracy are shown."""


@dataclass(frozen=True, eq=False)
class GroupAccuracy:
    """Accuracy of several methods on the same groups."""

    space: GroupSpace
    groups: IntArray  # (g, m)
    unseen: BoolArray  # (g,) whether the group was absent from training
    rows: IntArray  # (g,) number of test rows
    methods: tuple[str, ...]
    accuracy: FloatArray  # (methods, g), NaN where a group was not tested
    confidence: float  # confidence level of the intervals

    def chart_rows(self, selected: IntArray, *, on_grid: bool = False) -> list[dict[str, Any]]:
        """Return a chart row, with a Wilson interval, for each method and each selected group that it was tested on.

        A row names its group by the label or, with ``on_grid``, by the two values. The flags ``unseen`` and ``worst``
        are omitted where they are false, to keep pages small.
        """
        right = np.nan_to_num(self.accuracy) * self.rows
        lower, upper = wilson_interval(right, self.rows, self.confidence)
        worst = [np.nan if np.isnan(row).all() else np.nanmin(row) for row in self.accuracy]
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
        """Return the fields of a chart row that name the group."""
        code = self.groups[group]
        if not on_grid:
            return {"group": self.space.label(code)}
        return {"first": str(self.space.values[0][code[0]]), "second": str(self.space.values[1][code[1]])}


def accuracy_blocks(results: GroupAccuracy, caption: str) -> list[Block]:
    """Return heat maps of the tested groups.

    With one method and two attributes, the heat map is the grid of the attributes. Otherwise it has a row per group and
    a column per method. If there are more than ``MAX_HEAT_MAP_GROUPS`` groups, only those with the lowest accuracy have
    a row; with two attributes, a grid of all groups comes first, with a menu that selects the method.
    """
    tested = np.flatnonzero(~np.isnan(results.accuracy).all(axis=0))
    if not len(tested):
        return []
    interval = f"Point at a cell to see its {results.confidence:.0%} interval. ▾ marks the worst group of each method."
    order = tested[np.lexsort((tested, ~results.unseen[tested]))]  # unseen groups first
    blocks: list[Block] = []
    if results.groups.shape[1] == 2 and (len(results.methods) == 1 or len(order) > MAX_HEAT_MAP_GROUPS):
        rows = results.chart_rows(order, on_grid=True)
        orders = [
            [str(values[code]) for code in np.unique(results.groups[order, attribute])]
            for attribute, values in enumerate(results.space.values)
        ]
        both = len(np.unique(results.unseen[order])) > 1  # seen and unseen groups
        grid_caption = f"{caption}{' ∘ marks groups absent from training.' if both else ''} {interval}"
        blocks.append(Charts([accuracy_maps(rows, results.space.names, orders, results.methods, grid_caption, both)]))
        if len(results.methods) == 1:
            return blocks
    if len(order) <= MAX_HEAT_MAP_GROUPS:
        return [Charts([_heat_map(results, order, f"{caption} {interval}")])]
    lowest = np.nanmin(results.accuracy[:, order], axis=0)
    worst = order[np.argsort(lowest, kind="stable")[: MAX_HEAT_MAP_GROUPS // 2 if blocks else MAX_HEAT_MAP_GROUPS]]
    text = f"The {len(worst)} of {len(order)} groups with the lowest accuracy by any method. {interval}"
    return [*blocks, Charts([_heat_map(results, worst, text)])]


def _heat_map(results: GroupAccuracy, order: IntArray, caption: str) -> Chart:
    """Return the heat map of the selected groups and all methods."""
    labels = [results.space.label(results.groups[group]) for group in order]
    return heat_map(results.chart_rows(order), labels, results.methods, caption)


def bar_blocks(methods: Sequence[str], seen: FloatArray, unseen: FloatArray) -> list[Block]:
    """Return a bar chart of mean accuracy over seen and over unseen groups, from accuracies of shape (methods, g)."""
    rows = [
        {
            "method": method,
            "state": state,
            "accuracy": round(float(np.nanmean(row)), 4),
            "n": int((~np.isnan(row)).sum()),
        }
        for state, accuracy in (("seen", seen), ("unseen", unseen))
        for method, row in zip(methods, accuracy, strict=True)
        if not np.isnan(row).all()
    ]
    if not rows:
        return []
    caption = "Mean accuracy over groups in the training data (seen) and over groups absent from it (unseen)."
    blocks: list[Block] = [Charts([seen_unseen_bars(rows, methods, caption)])]
    if np.isnan(unseen).all():
        blocks.append(Words(["The test rows have no group that was absent from training."], soft=True))
    return blocks
