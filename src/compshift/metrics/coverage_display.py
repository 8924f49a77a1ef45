"""Picture of the groups that are seen, extrapolable and out of reach, as a scikit-learn ``*Display``."""

from __future__ import annotations

import itertools
import math
from typing import Any, Self

import numpy as np

from compshift.core.arrays import FloatArray, IntArray
from compshift.core.columns import read_columns
from compshift.core.groups import GroupSpace, check_space
from compshift.core.hull import AffineHull
from compshift.metrics.displays import MAX_LABEL, SEEN_FILL, add_legend, check_has_groups, panels_of, short

INSIDE_FILL = "#9fd0ec"
"""Colour of unseen groups inside the hull in pictures of coverage."""

OUTSIDE_FILL = "#f0f0f0"
"""Colour of unseen groups outside the hull in pictures of coverage."""

MAX_DRAWN_VALUES = 60
"""Maximum number of values of an attribute in a grid; if there are more, the first ones are drawn."""

MAX_PANELS = 24
"""Maximum number of grids, one for each combination of the attributes that are not their axes."""

MAX_CELLS_WITH_COUNTS = 400
"""Maximum number of cells in a grid that shows row counts; larger grids show colours only."""


class CoverageDisplay:
    """Grids of groups: those seen in training with their rows, those that can be extrapolated, and those out of reach.

    A grid has the values of two attributes. With more attributes there is a grid for each combination of the others;
    of more than 24, those with the most rows are drawn. ``from_estimator`` and ``from_attributes`` create and draw it.

    Parameters
    ----------
    hull : AffineHull
        Affine hull of the seen groups.
    groups : array (k, m)
        Codes of the seen groups.
    count : array (k,)
        Number of rows, or total weight, of each of them.

    Attributes
    ----------
    ax_ : Axes, or array of Axes
        The grid, or the grids.
    figure_ : Figure
        The figure that they belong to.

    Examples
    --------
    >>> from compshift.metrics import CoverageDisplay
    >>> place = {"bird": ["owl", "owl", "gull"], "place": ["wood", "sea", "sea"]}
    >>> display = CoverageDisplay.from_attributes(place)  # doctest: +SKIP
    >>> display.figure_.savefig("coverage.png")  # doctest: +SKIP
    """

    ax_: Any
    figure_: Any

    def __init__(self, hull: AffineHull, groups: IntArray, count: FloatArray) -> None:
        self.hull = hull
        self.groups = groups
        self.count = count

    @classmethod
    def from_estimator(cls, clf: Any, *, ax: Any = None) -> Self:
        """Draw the candidate groups of a fitted classifier.

        Parameters
        ----------
        clf : classifier over groups
            Fitted classifier, for example a ``CRMClassifier``.
        ax : Axes, optional
            Axes to draw on; by default those of a new figure.

        Returns
        -------
        CoverageDisplay
            The display, drawn.
        """
        check_has_groups(clf, "hull_", "a CRMClassifier")
        return cls(clf.hull_, clf.groups_[clf.seen_], clf.group_weight_[clf.seen_]).plot(ax)

    @classmethod
    def from_attributes(cls, attributes: Any, *, space: GroupSpace | None = None, ax: Any = None) -> Self:
        """Draw the groups of a table.

        Parameters
        ----------
        attributes : DataFrame, mapping or array (n, m)
            Targets and attributes of the training samples.
        space : GroupSpace, optional
            Attributes with all their values; by default the values that occur.
        ax : Axes, optional
            Axes to draw on; by default those of a new figure.

        Returns
        -------
        CoverageDisplay
            The display, drawn.
        """
        columns = read_columns(attributes)
        space = GroupSpace._from_columns(columns) if space is None else check_space(space)
        groups, position = space.distinct(space._encode_columns(columns))
        return cls(AffineHull(space, groups), groups, np.bincount(position).astype(np.float64)).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw the display.

        Parameters
        ----------
        ax : Axes, optional
            Axes to draw on; by default those of a new figure. If there are several grids, they share its place.

        Returns
        -------
        CoverageDisplay
            The display itself.
        """
        sizes = self.hull.space.cardinalities
        # The attribute with the most values is an axis, which saves grids; a single attribute is a row.
        axes = (0, 1 + int(np.argmax(sizes[1:]))) if len(sizes) > 1 else (None, 0)
        others = [axis for axis in range(len(sizes)) if axis not in axes]
        slices, n_slices = self._slices(others)
        columns = min(4 if len(slices) > 6 else 3, len(slices))
        rows = -(-len(slices) // columns)
        drawn = [1 if axis is None else min(MAX_DRAWN_VALUES, sizes[axis]) for axis in axes]
        least = 2.6 if len(slices) > 1 else 3.6
        tall, wide = (float(np.clip(0.42 * size + 1.6, least, 11.0)) for size in drawn)
        figure, panels, whole = panels_of(ax, rows, columns, (max(5.4, wide * columns), tall * rows + 0.5))
        for panel in panels[len(slices) :]:
            panel.set_axis_off()
        for panel, fixed in zip(panels, slices, strict=False):
            self._draw_grid(panel, fixed, axes, (drawn[0], drawn[1]))
        if whole and n_slices > 1:
            others_text = " × ".join(self.hull.space.names[axis] for axis in others)
            few = f"{len(slices)} of the {n_slices} combinations of {others_text}, those with the most rows"
            title = f"{n_slices} grids: each cell is one group" if len(slices) == n_slices else few
            figure.suptitle(title, fontsize=10)
        self.figure_, self.ax_ = figure, panels[0] if len(slices) == 1 else panels[: len(slices)]
        add_legend(figure, panels[columns - 1], self._handles(), whole=whole)
        return self

    def _handles(self) -> list[Any]:
        from matplotlib.patches import Patch

        return [
            Patch(facecolor=SEEN_FILL, label="seen (rows)"),
            Patch(facecolor=INSIDE_FILL, hatch="///", edgecolor="white", label="can be extrapolated"),
            Patch(facecolor=OUTSIDE_FILL, edgecolor="#999999", label="out of reach"),
        ]

    def _slices(self, others: list[int]) -> tuple[list[dict[int, int]], int]:
        """Return the combinations of values of the attributes ``others`` to draw, and how many there are in all."""
        sizes = self.hull.space.cardinalities
        total = math.prod(sizes[axis] for axis in others)
        if total <= MAX_PANELS:
            codes = itertools.product(*(range(sizes[axis]) for axis in others))
            return [dict(zip(others, code, strict=True)) for code in codes], total
        rows: dict[tuple[int, ...], float] = {}
        for code, count in zip(self.groups[:, others].tolist(), self.count, strict=True):
            rows[tuple(code)] = rows.get(tuple(code), 0.0) + float(count)
        chosen = sorted(sorted(rows, key=lambda code: -rows[code])[:MAX_PANELS])
        return [dict(zip(others, code, strict=True)) for code in chosen], total

    def _draw_grid(
        self, panel: Any, fixed: dict[int, int], axes: tuple[int | None, int], shape: tuple[int, int]
    ) -> None:
        """Draw the grid of two attributes, rows and columns; ``fixed`` has the codes of the other attributes."""
        from matplotlib.patches import Rectangle

        space = self.hull.space
        cells = np.zeros((shape[0] * shape[1], len(space.names)), dtype=np.int64)
        for axis, value in fixed.items():
            cells[:, axis] = value
        for attribute, index in zip(axes, np.indices(shape).reshape(2, -1), strict=True):
            if attribute is not None:
                cells[:, attribute] = index
        place = space.locate(cells, self.groups)
        counts = np.where(place >= 0, self.count[place], 0.0).reshape(shape)
        inside = self.hull.contains(cells).reshape(shape)
        if fixed:
            parts = [f"{short(space.names[axis])} = {short(space.values[axis][code])}" for axis, code in fixed.items()]
            panel.set_title(", ".join(parts), fontsize=9)
        for left, right in np.ndindex(shape):
            seen = counts[left, right] > 0
            colour = SEEN_FILL if seen else INSIDE_FILL if inside[left, right] else OUTSIDE_FILL
            hatch = "///" if not seen and inside[left, right] else None
            corner = (right - 0.5, left - 0.5)
            panel.add_patch(Rectangle(corner, 1, 1, facecolor=colour, edgecolor="white", linewidth=1, hatch=hatch))
            if seen and counts.size <= MAX_CELLS_WITH_COUNTS:
                size = 8 if counts[left, right] < 10_000 else 6
                text = f"{counts[left, right]:.4g}" if counts[left, right] < 10_000 else f"{counts[left, right]:.0e}"
                panel.text(right, left, text, ha="center", va="center", fontsize=size, color="white")
        panel.set(xlim=(-0.5, shape[1] - 0.5), ylim=(shape[0] - 0.5, -0.5), aspect="equal")
        rows, columns = axes
        panel.set_xlabel(_axis_label(space.names[columns], space.cardinalities[columns], shape[1]))
        labels = [short(value) for value in space.values[columns][: shape[1]]]
        turn = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"} if max(map(len, labels)) > 3 else {}
        panel.set_xticks(range(shape[1]), labels, **turn)
        panel.set_yticks([])
        if rows is not None:
            panel.set_ylabel(_axis_label(space.names[rows], space.cardinalities[rows], shape[0]))
            panel.set_yticks(range(shape[0]), [short(value) for value in space.values[rows][: shape[0]]])
        panel.tick_params(labelsize=8, length=0)


def _axis_label(name: str, size: int, shown: int) -> str:
    """Return the attribute's name, with a note if only some of its values are shown."""
    return short(name, MAX_LABEL) if size == shown else f"{short(name)} (first {shown} of {size} values)"
