"""The paper's illustration of the hull as a picture: what is seen, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compshift.report.figure_file import check_figure_path, save_figure

COLOURS = (("#f0f0f0", "#f0f0f0"), ("#0072b2", "#9fd0ec"), ("#e69f00", "#fbe3ab"))
"""Of the cells that are seen and of those that follow, for no component, the first and the second."""


def draw_hull_example(cells: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Two panels: the seen groups by component, and their hull."""
    check_figure_path(path)
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=(6.8, 4.5), layout="constrained")
    for panel, title, hull in zip(figure.subplots(1, 2), ("seen groups", "their hull"), (False, True), strict=True):
        for cell in cells:
            _draw_cell(panel, cell, hull=hull)
        values = sorted({cell["z1"] for cell in cells})
        panel.set(xlim=(0.5, values[-1] + 0.5), ylim=(values[-1] + 0.5, 0.5), aspect="equal", xlabel="$z_2$")
        panel.set(xticks=values, yticks=values, ylabel="$z_1$")
        panel.set_title(title, fontsize=11)
        panel.tick_params(length=0)
        for side in panel.spines.values():
            side.set_visible(False)
    handles = [
        Patch(facecolor=COLOURS[1][0], label="seen, first component"),
        Patch(facecolor=COLOURS[2][0], label="seen, second component"),
        Patch(facecolor=COLOURS[1][1], edgecolor="white", hatch="///", label="can be extrapolated"),
        Patch(facecolor=COLOURS[0][0], edgecolor="#999999", label="out of reach"),
    ]
    save_figure(figure, path, legend=(handles, [handle.get_label() for handle in handles]), columns=2)


def _draw_cell(panel: Any, cell: Mapping[str, Any], *, hull: bool) -> None:
    from matplotlib.patches import Rectangle

    seen, follows = cell["state"] == "seen", hull and cell["state"] == "extrapolable"
    colour = COLOURS[cell["component"]][0 if seen else 1] if seen or follows else COLOURS[0][0]
    corner = cell["z2"] - 0.5, cell["z1"] - 0.5
    hatch = "///" if follows else None
    panel.add_patch(Rectangle(corner, 1, 1, facecolor=colour, edgecolor="white", linewidth=1.5, hatch=hatch))
