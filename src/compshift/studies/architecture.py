"""The architecture of CRM as a diagram: features, one energy layer per attribute, their sum, and the two softmaxes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compshift.studies.figure_file import check_figure_path, new_figure, save_figure

SIZES = (3, 4)
"""Numbers of values of the two attributes in the diagram."""

UNSEEN = ((0, 3), (2, 1))
"""Row and column of the groups that are absent from training in the diagram."""

CELL = 0.34
"""Width of a cell of a table, in inches."""

ATTRIBUTE_COLOURS = ("#0072b2", "#e69f00")
"""Colours of the energies and probabilities of the first and of the second attribute."""

STATE_COLOURS = {"seen": "#009e73", "unseen": "#cc79a7", "absent": "#f0f0f0"}
"""Colours of groups: in training, extrapolated, and left out of the softmax."""

ARCHITECTURE_CAPTION = (
    "The additive energy classifier of CRM for two attributes. The backbone computes features of x, and one linear "
    "layer per attribute the energies of its values. Broadcasting adds them up: the energy of a group is the sum of "
    "the energies of its values. Training (above) adds the log prior of the seen groups, subtracts their learned "
    "biases, and takes the softmax over the seen groups only. For use (below), the prior is replaced by that of the "
    "deployment, uniform if it is not known, and the biases by those extrapolated to all groups from the training "
    "inputs; sums over the other attribute give the probabilities of each value."
)


def draw_architecture(path: Path, *, caption: bool = True) -> None:
    """Draw the path of an input through the classifier, in training (above) and in use (below)."""
    check_figure_path(path)
    from matplotlib.patches import Patch

    width, height, middle = 11.2, 4.85, 2.15
    figure = new_figure(width, height + 0.3, ARCHITECTURE_CAPTION if caption else None)
    panel = figure.subplots()
    panel.set(xlim=(0, width), ylim=(height, 0), aspect="equal")
    panel.set_axis_off()
    _box(panel, 0.05, middle, 0.45, 0.45, "$x$")
    _arrow(panel, (0.5, middle), (0.75, middle))
    _box(panel, 0.75, middle, 1.0, 0.9, "backbone\n$\\phi(x)$")
    heights = (middle - 1.05, middle + 1.05)
    for number, (at, colour) in enumerate(zip(heights, ATTRIBUTE_COLOURS, strict=True), start=1):
        _arrow(panel, (1.75, middle), (2.15, at))
        _box(panel, 2.15, at, 1.1, 0.62, f"energy layer\n$W_{number}\\,\\phi(x)$", colour)
        _arrow(panel, (3.25, at), (3.5, at))
    _values(panel, 3.5, heights[0], 0, "$E_1(x, z_1)$")
    _values(panel, 3.5, heights[1], 1, "$E_2(x, z_2)$")
    _arrow(panel, (3.9, heights[0]), (5.2, middle - 0.3))
    _arrow(panel, (4.9, heights[1]), (5.3, middle + 0.58))
    _groups(panel, 5.2, middle, "$-E_1(x, z_1) - E_2(x, z_2)$")
    train, use = 0.75, 3.35
    _arrow(panel, (6.6, middle - 0.3), (7.0, train))
    _box(panel, 7.0, train, 1.35, 0.95, "$+\\;\\log\\,\\hat p(z) - \\hat B(z)$\nsoftmax over\nseen groups")
    _arrow(panel, (8.35, train), (8.6, train))
    _groups(panel, 8.6, train, "$\\hat p(z \\mid x)$", training=True)
    _arrow(panel, (9.98, train), (10.2, train))
    _text(panel, 10.7, train, "loss:\n$-\\log\\,\\hat p(z \\mid x)$")
    _arrow(panel, (6.6, middle + 0.3), (7.0, use))
    _box(panel, 7.0, use, 1.35, 0.95, "$+\\;\\log\\,q(z) - B^{*}(z)$\nsoftmax over\nall groups")
    _arrow(panel, (8.35, use), (8.6, use))
    _groups(panel, 8.6, use, "$\\hat q(z \\mid x)$")
    _arrow(panel, (9.98, use), (10.3, use))
    _values(panel, 10.3, use, 0, "$\\hat q(z_1 \\mid x)$")
    _arrow(panel, (8.6 + 2 * CELL, use + 0.53), (8.6 + 2 * CELL, use + 0.85))
    _values(panel, 8.6, use + 1.05, 1, "")
    _text(panel, 10.5, use + 1.05, "$\\hat q(z_2 \\mid x)$")
    _text(panel, 7.68, 0.1, "training", style="italic")
    _text(panel, 7.68, use + 0.65, "use", style="italic")
    handles = [
        Patch(facecolor=STATE_COLOURS["seen"], alpha=0.75, label="group in training"),
        Patch(facecolor=STATE_COLOURS["unseen"], alpha=0.75, edgecolor="white", hatch="///", label="unseen group"),
        Patch(facecolor=STATE_COLOURS["absent"], edgecolor="#999999", label="left out of the softmax"),
    ]
    save_figure(figure, path, legend=(handles, [handle.get_label() for handle in handles]))


def _values(panel: Any, left: float, middle: float, attribute: int, title: str) -> None:
    """Draw one cell per value of an attribute: in a column for the first, in a row for the second."""
    colour = ATTRIBUTE_COLOURS[attribute]
    _table(panel, left, middle, [[colour] * SIZES[1]] if attribute else [[colour]] * SIZES[0], title)


def _groups(panel: Any, left: float, middle: float, title: str, *, training: bool = False) -> None:
    """Draw one cell per group; in training, the unseen groups are left out."""
    unseen = STATE_COLOURS["absent" if training else "unseen"]
    rows = [
        [unseen if (row, column) in UNSEEN else STATE_COLOURS["seen"] for column in range(SIZES[1])]
        for row in range(SIZES[0])
    ]
    _table(panel, left, middle, rows, title, hatched=() if training else UNSEEN)


def _table(
    panel: Any,
    left: float,
    middle: float,
    rows: Sequence[Sequence[str]],
    title: str,
    hatched: Sequence[tuple[int, int]] = (),
) -> None:
    """Draw a table of coloured cells, centred at a height, with a title above."""
    from matplotlib.patches import Rectangle

    top = middle - CELL * len(rows) / 2
    for row, colours in enumerate(rows):
        for column, colour in enumerate(colours):
            corner = left + CELL * column, top + CELL * row
            hatch = "///" if (row, column) in hatched else None
            panel.add_patch(
                Rectangle(corner, CELL, CELL, facecolor=colour, edgecolor="white", lw=1.5, alpha=0.75, hatch=hatch)
            )
    panel.text(left + CELL * len(rows[0]) / 2, top - 0.06, title, ha="center", va="bottom", fontsize=9)


def _box(
    panel: Any, left: float, middle: float, width: float, height: float, text: str, colour: str = "#555555"
) -> None:
    """Draw a box with text, centred at a height."""
    from matplotlib.patches import FancyBboxPatch

    corner = left + 0.04, middle - height / 2 + 0.04
    style = "round,pad=0.04"
    panel.add_patch(
        FancyBboxPatch(corner, width - 0.08, height - 0.08, boxstyle=style, facecolor="white", edgecolor=colour, lw=1.5)
    )
    _text(panel, left + width / 2, middle, text)


def _text(panel: Any, centre: float, middle: float, text: str, **style: Any) -> None:
    """Write text around a point."""
    panel.text(centre, middle, text, ha="center", va="center", fontsize=9, linespacing=1.4, **style)


def _arrow(panel: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Draw an arrow between two points."""
    panel.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": "#555555", "lw": 1.2, "shrinkA": 1})
