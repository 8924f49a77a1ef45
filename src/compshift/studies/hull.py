"""The paper's illustration of the hull: a 6 × 6 grid whose seen groups form two components ("A Closer Look").

How fast the hull of random groups grows, against the paper's bounds.

Groups are drawn uniformly with replacement until every combination is inside the hull. The paper bounds the number of
draws that suffice with probability 1 − 1/c by 2c(md + d·log d) (theorem "thm4"), 2cd(m + 1 + ln d) (its appendix) and,
for two attributes, 8cd·log d; no fewer than m(d − 1) + 1 groups can do, and for two attributes 2d − 1 well-chosen ones
do.

The paper's illustration of the hull as a picture: what is seen, and what follows from it.

The growth of the hull as a picture and a table of numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compshift._checks import check_count
from compshift.core.groups import GroupSpace
from compshift.core.hull import AffineHull
from compshift.core.span import Span
from compshift.studies.figure_file import check_figure_path, save_figure

SEEN = ((0, 0), (0, 2), (1, 0), (2, 1), (2, 2), (3, 3), (3, 4), (4, 4), (4, 5), (5, 5))
"""A path through three rows and columns each; the paper's own picture has other cells, and shows the same."""


def hull_example() -> list[dict[str, Any]]:
    """Every cell of the grid: is it seen, does it follow and from which component, or is it out of reach (0)?"""
    space = GroupSpace(("z1", "z2"), (tuple(range(1, 7)), tuple(range(1, 7))))
    hull = AffineHull(space, np.array(SEEN))
    component = np.zeros(space.cardinalities, dtype=np.int64)
    for number, (left, right) in enumerate(hull.components(), 1):
        component[np.ix_(left, right)] = number
    return [
        {
            "z1": left + 1,
            "z2": right + 1,
            "state": "seen" if (left, right) in SEEN else "extrapolable" if component[left, right] else "out of reach",
            "component": int(component[left, right]),
            "witness": hull.explain(np.array((left, right)))
            if component[left, right] and (left, right) not in SEEN
            else "",
        }
        for left, right in np.ndindex(space.cardinalities)
    ]


SETTINGS = ((2, (2, 5, 10, 20, 30, 40, 50)), (3, (2, 5, 10, 20)), (5, (2, 5, 10)), (9, (2, 5)))
"""Numbers of attributes, and for each the numbers of values that are tried."""

CONFIDENCE = 10
"""The paper's c: bounds and quantile are for a probability of 1 − 1/c."""


@dataclass(frozen=True)
class Growth:
    """Draws until the hull is complete, over repeated trials of one setting."""

    attributes: int
    values: int
    groups: int
    least: int  # m(d − 1) + 1: no plan needs fewer
    mean: float
    standard_error: float
    quantile: float  # draws that were enough in 1 − 1/c of the trials
    bound: float  # 2c(md + d log d)
    appendix_bound: float  # 2cd(m + 1 + ln d)
    two_attribute_bound: float | None  # 8cd log d, if m = 2

    def to_dict(self) -> dict[str, Any]:
        """The numbers by name."""
        return asdict(self)


def run_hull_growth(trials: int = 100, random_state: int = 0) -> list[Growth]:
    """Simulate every setting."""
    check_count(trials, "trials")
    return [
        hull_growth(m, d, trials, np.random.default_rng([random_state, m, d])) for m, sizes in SETTINGS for d in sizes
    ]


def hull_growth(m: int, d: int, trials: int, rng: np.random.Generator) -> Growth:
    """Draws that complete the hull of m attributes with d values each."""
    draws = np.array([draws_to_complete(m, d, rng) for _ in range(trials)], dtype=np.float64)
    c = CONFIDENCE
    return Growth(
        attributes=m,
        values=d,
        groups=d**m,
        least=m * (d - 1) + 1,
        mean=float(draws.mean()),
        standard_error=float(draws.std(ddof=1) / math.sqrt(trials)) if trials > 1 else math.nan,
        quantile=float(np.quantile(draws, 1 - 1 / c, method="higher")),
        bound=2 * c * (m * d + d * math.log(d)),
        appendix_bound=2 * c * d * (m + 1 + math.log(d)),
        two_attribute_bound=8 * c * d * math.log(d) if m == 2 else None,
    )


def draws_to_complete(m: int, d: int, rng: np.random.Generator) -> int:
    """Number of groups drawn, with replacement, when the last combination comes inside the hull."""
    space = GroupSpace.from_cardinalities([d] * m)
    span, full_rank = Span(space.width), m * (d - 1) + 1
    drawn = 0
    while True:
        block = rng.integers(0, d, size=(64, m)) + space.offsets
        added = span.add_all(block, limit=full_rank)
        if span.rank == full_rank:
            return drawn + added[-1] + 1
        drawn += len(block)


def staircase(d: int) -> Any:
    """The paper's deterministic construction for two attributes: 2d − 1 groups, (2d − 1, 2), that determine all d²."""
    steps = [(k // 2 + k % 2, k // 2) for k in range(2 * d - 1)]
    return np.array(steps, dtype=np.int64)


EXAMPLE_COLOURS = (("#f0f0f0", "#f0f0f0"), ("#0072b2", "#9fd0ec"), ("#e69f00", "#fbe3ab"))
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
        Patch(facecolor=EXAMPLE_COLOURS[1][0], label="seen, first component"),
        Patch(facecolor=EXAMPLE_COLOURS[2][0], label="seen, second component"),
        Patch(facecolor=EXAMPLE_COLOURS[1][1], edgecolor="white", hatch="///", label="can be extrapolated"),
        Patch(facecolor=EXAMPLE_COLOURS[0][0], edgecolor="#999999", label="out of reach"),
    ]
    save_figure(figure, path, legend=(handles, [handle.get_label() for handle in handles]), columns=2)


def _draw_cell(panel: Any, cell: Mapping[str, Any], *, hull: bool) -> None:
    from matplotlib.patches import Rectangle

    seen, follows = cell["state"] == "seen", hull and cell["state"] == "extrapolable"
    colour = EXAMPLE_COLOURS[cell["component"]][0 if seen else 1] if seen or follows else EXAMPLE_COLOURS[0][0]
    corner = cell["z2"] - 0.5, cell["z1"] - 0.5
    hatch = "///" if follows else None
    panel.add_patch(Rectangle(corner, 1, 1, facecolor=colour, edgecolor="white", linewidth=1.5, hatch=hatch))


GROWTH_COLOURS = {"mean": "#0072b2", "quantile": "#56b4e9", "bound": "#d55e00", "two": "#cc79a7", "least": "#555555"}


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
        panel.plot(d, [row.bound for row in chosen], "--", color=GROWTH_COLOURS["bound"], label=f"bound for {share}")
        if m == 2:
            two = [row.two_attribute_bound or float("nan") for row in chosen]
            panel.plot(d, two, ":", color=GROWTH_COLOURS["two"], label=f"bound for {share}, $m=2$")
        panel.plot(
            d,
            [row.quantile for row in chosen],
            "s-",
            ms=4,
            color=GROWTH_COLOURS["quantile"],
            label=f"enough in {share} of trials",
        )
        errors = [row.standard_error for row in chosen]
        panel.errorbar(
            d, [row.mean for row in chosen], errors, fmt="o-", ms=4, color=GROWTH_COLOURS["mean"], label="mean of draws"
        )
        panel.plot(d, [row.least for row in chosen], "-", lw=1, color=GROWTH_COLOURS["least"], label="least possible")
        panel.set(title=f"$m = {m}$ attributes", xlabel="values per attribute $d$", yscale="log", xticks=_ticks(d))
        panel.grid(alpha=0.25)
    for panel in panels[::2]:
        panel.set_ylabel("groups drawn until\nall are determined")
    save_figure(figure, path, legend=panels[0].get_legend_handles_labels())


def _ticks(values: list[int]) -> list[int]:
    """At most five of the values."""
    return values if len(values) <= 5 else values[:: -(-len(values) // 5)]
