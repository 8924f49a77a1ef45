"""The growth of the hull as a picture and a table of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from compshift.bench.hull_growth import CONFIDENCE, Growth
from compshift.report.figure_file import check_figure_path, save_figure

COLOURS = {"mean": "#0072b2", "quantile": "#56b4e9", "bound": "#d55e00", "two": "#cc79a7", "least": "#555555"}


def draw_hull_growth(rows: Sequence[Growth], path: Path) -> None:
    """One panel per number of attributes: draws that were needed, the bounds, and the least possible."""
    check_figure_path(path)
    from matplotlib.figure import Figure

    settings = sorted({row.attributes for row in rows})
    n_lines = -(-len(settings) // 2)
    figure = Figure(figsize=(6.8, 2.6 * n_lines + 0.8), layout="constrained")
    panels = figure.subplots(n_lines, 2, sharey=True, squeeze=False).ravel()
    for panel in panels[len(settings) :]:
        panel.set_axis_off()
    for panel, m in zip(panels, settings, strict=False):
        chosen = [row for row in rows if row.attributes == m]
        d = [row.values for row in chosen]
        share = f"{1 - 1 / CONFIDENCE:.0%}"
        panel.plot(d, [row.bound for row in chosen], "--", color=COLOURS["bound"], label=f"bound for {share}")
        if m == 2:
            two = [row.two_attribute_bound or float("nan") for row in chosen]
            panel.plot(d, two, ":", color=COLOURS["two"], label=f"bound for {share}, $m=2$")
        panel.plot(
            d,
            [row.quantile for row in chosen],
            "s-",
            ms=4,
            color=COLOURS["quantile"],
            label=f"enough in {share} of trials",
        )
        errors = [row.standard_error for row in chosen]
        panel.errorbar(
            d, [row.mean for row in chosen], errors, fmt="o-", ms=4, color=COLOURS["mean"], label="mean of draws"
        )
        panel.plot(d, [row.least for row in chosen], "-", lw=1, color=COLOURS["least"], label="least possible")
        panel.set(title=f"$m = {m}$ attributes", xlabel="values per attribute $d$", yscale="log", xticks=_ticks(d))
        panel.grid(alpha=0.25)
    for panel in panels[::2]:
        panel.set_ylabel("groups drawn until\nall are determined")
    save_figure(figure, path, legend=panels[0].get_legend_handles_labels())


def _ticks(values: list[int]) -> list[int]:
    """At most five of the values."""
    return values if len(values) <= 5 else values[:: -(-len(values) // 5)]
