"""Three studies of the affine hull: the paper's two illustrations, and the number of random groups that complete it.

The first illustration ("A Closer Look") is a 6 × 6 grid whose seen groups form two components. The second builds a
complete hull from as few groups as possible, one after the other.

In the third study, groups of m attributes with d values each are drawn uniformly with replacement until every group is
inside the hull. The paper bounds the number of draws that suffice with probability 1 − 1/c by 2c(md + d·log d) (theorem
"thm4"), 2cd(m + 1 + ln d) (appendix) and, for two attributes, 8cd·log d. No fewer than m(d − 1) + 1 groups can suffice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compshift._checks import check_count
from compshift.core.arrays import IntArray
from compshift.core.groups import GroupSpace
from compshift.core.hull import AffineHull
from compshift.core.span import Span
from compshift.studies.figure_file import check_figure_path, new_figure, save_figure

SEEN_CELLS = ((0, 0), (0, 2), (1, 0), (2, 1), (2, 2), (3, 3), (3, 4), (4, 4), (4, 5), (5, 5))
"""Seen cells (row, column) of the illustration. They form two components of three rows and three columns each.

The paper's figure has other cells.
"""

GROWTH_SETTINGS = ((2, (2, 5, 10, 20, 30, 40, 50)), (3, (2, 5, 10, 20)), (5, (2, 5, 10)), (9, (2, 5)))
"""Pairs of a number of attributes m and the numbers of values d that are simulated with it."""

BOUND_C = 10
"""The paper's c. The bounds hold with probability 1 − 1/c, and the reported quantile is that of 1 − 1/c."""

STEP_VALUES = 4
"""Values of each attribute in the illustration of the steps, as in the paper."""

EXAMPLE_COLOURS = (("#f0f0f0", "#f0f0f0"), ("#0072b2", "#9fd0ec"), ("#e69f00", "#fbe3ab"))
"""Colour of seen cells and colour of extrapolable cells, by component; component 0 stands for cells out of reach."""

STEP_COLOURS = (("#6b6b6b", "#cfcfcf"), *EXAMPLE_COLOURS[1:])
"""Pairs of colours, for added groups and for the cells that they bring into the hull.

The first pair is for the base set; the other two alternate from step to step.
"""

GROWTH_COLOURS = {"mean": "#0072b2", "quantile": "#56b4e9", "bound": "#d55e00", "two": "#cc79a7", "least": "#555555"}

EXAMPLE_CAPTION = (
    "The discrete affine hull of two attributes with six values each. Each cell is a group. The seen groups (left) "
    "form two connected components. Their hull (right) has every combination of the rows and columns of a component; "
    "no other group can be extrapolated."
)
STEPS_CAPTION = (
    "Building a complete hull of 4 × 4 groups from 2 · 4 − 1 = 7 of them. Step 1: three seen groups determine a "
    "fourth. Each further step adds one seen group in a new column, then in a new row, and the hull gains that whole "
    "column or row of its square: it grows from 2 × 2 to 3 × 3 to 4 × 4 groups."
)
HULL_GROWTH_CAPTION = (
    "Number of groups, drawn at random, until every group is inside the affine hull of those drawn: mean over trials "
    f"with its standard error, the number that sufficed in {1 - 1 / BOUND_C:.0%} of trials, the paper's bounds on that "
    "number, and the smallest number that can suffice, m(d − 1) + 1."
)


def hull_example() -> list[dict[str, Any]]:
    """Return every cell of the grid with its state, its component (0 if out of reach) and, if extrapolable, a witness.

    The state is "seen", "extrapolable" or "out of reach"; the witness is an equation that ``AffineHull.explain`` gives.
    """
    space = GroupSpace(("z1", "z2"), (tuple(range(1, 7)), tuple(range(1, 7))))
    hull = AffineHull(space, np.array(SEEN_CELLS))
    component = np.zeros(space.cardinalities, dtype=np.int64)
    for number, (left, right) in enumerate(hull.components(), 1):
        component[np.ix_(left, right)] = number
    cells = []
    for left, right in np.ndindex(space.cardinalities):
        number = int(component[left, right])
        state = "seen" if (left, right) in SEEN_CELLS else "extrapolable" if number else "out of reach"
        witness = hull.explain(np.array((left, right))) if state == "extrapolable" else ""
        cells.append({"z1": left + 1, "z2": right + 1, "state": state, "component": number, "witness": witness})
    return cells


def deterministic_groups(m: int, d: int) -> IntArray:
    """Return m(d − 1) + 1 codes of groups, in the order in which the paper's deterministic procedure adds them.

    Paper, "Growth of Discrete Affine Hull": with two attributes, start with (1, 1), (1, 2) and (2, 1), and for each i
    add (1, i + 1), then (i + 1, 1). Each such pair lets the hull grow from i × i to (i + 1) × (i + 1) groups. The paper
    gives the procedure for two attributes. With m attributes, each value i + 1 is added to one attribute after the
    other, with value 1 everywhere else, and the hull grows from i^m to (i + 1)^m groups.
    """
    codes = np.zeros((m * (d - 1) + 1, m), dtype=np.int64)
    for number in range(1, len(codes)):
        value, attribute = divmod(number - 1, m)
        codes[number, m - 1 - attribute] = value + 1
    return codes


def hull_steps(d: int = STEP_VALUES) -> list[dict[str, Any]]:
    """Return every cell of a d × d grid with the step that brings it into the hull, and whether it is added or implied.

    Step 1 is the base set of three groups; each further step adds one group.
    """
    space = GroupSpace.from_cardinalities([d, d])
    added = deterministic_groups(2, d)
    every = space.codes(np.arange(space.n_groups))
    step = np.zeros(len(every), dtype=np.int64)
    for number in range(len(added), 2, -1):  # backwards, so that the first step with a cell inside is kept
        step[AffineHull(space, added[:number]).contains(every)] = number - 2
    seen = space.locate(every, added) >= 0
    return [
        {"z1": int(z1) + 1, "z2": int(z2) + 1, "step": int(when), "state": "added" if is_seen else "implied"}
        for (z1, z2), when, is_seen in zip(every, step, seen, strict=True)
    ]


@dataclass(frozen=True)
class HullGrowth:
    """Numbers of random draws that complete the hull, over repeated trials of one setting."""

    attributes: int
    values: int
    groups: int
    least: int  # m(d − 1) + 1, the smallest number of groups whose hull can contain all groups
    mean: float  # mean number of draws
    standard_error: float  # standard error of the mean; NaN for a single trial
    quantile: float  # number of draws that sufficed in a share 1 − 1/c of the trials
    bound: float  # 2c(md + d log d)
    appendix_bound: float  # 2cd(m + 1 + ln d)
    two_attribute_bound: float | None  # 8cd log d, if m = 2

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary."""
        return asdict(self)


def run_hull_growth(trials: int = 100, random_state: int = 0) -> list[HullGrowth]:
    """Simulate every setting of ``GROWTH_SETTINGS``."""
    check_count(trials, "trials")
    return [
        hull_growth(m, d, trials, np.random.default_rng([random_state, m, d]))
        for m, sizes in GROWTH_SETTINGS
        for d in sizes
    ]


def hull_growth(m: int, d: int, trials: int, rng: np.random.Generator) -> HullGrowth:
    """Simulate how many draws complete the hull of m attributes with d values each."""
    draws = np.array([draws_to_complete(m, d, rng) for _ in range(trials)], dtype=np.float64)
    c = BOUND_C
    return HullGrowth(
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
    """Draw groups with replacement until every group is inside the hull, and return the number of draws."""
    space = GroupSpace.from_cardinalities([d] * m)
    span, full_rank = Span(space.width), m * (d - 1) + 1
    drawn = 0
    while True:
        block = rng.integers(0, d, size=(64, m)) + space.offsets
        added = span.add_all(block, limit=full_rank)
        if span.rank == full_rank:
            return drawn + added[-1] + 1
        drawn += len(block)


def draw_hull_example(cells: Sequence[Mapping[str, Any]], path: Path, *, caption: bool = True) -> None:
    """Draw two panels: the seen groups, coloured by component, and their hull."""
    check_figure_path(path)
    from matplotlib.patches import Patch

    figure = new_figure(6.8, 4.2, EXAMPLE_CAPTION if caption else None)
    for panel, title, hull in zip(figure.subplots(1, 2), ("seen groups", "their hull"), (False, True), strict=True):
        for cell in cells:
            seen, marked = cell["state"] == "seen", hull and cell["state"] == "extrapolable"
            colours = EXAMPLE_COLOURS[cell["component"] if seen or marked else 0]
            _draw_cell(panel, cell, colours[0 if seen else 1], hatched=marked)
        _frame_grid(panel, max(cell["z1"] for cell in cells), title)
        panel.set_ylabel("$z_1$")
    handles = [
        Patch(facecolor=EXAMPLE_COLOURS[1][0], label="seen, first component"),
        Patch(facecolor=EXAMPLE_COLOURS[2][0], label="seen, second component"),
        Patch(facecolor=EXAMPLE_COLOURS[1][1], edgecolor="white", hatch="///", label="can be extrapolated"),
        Patch(facecolor=EXAMPLE_COLOURS[0][0], edgecolor="#999999", label="out of reach"),
    ]
    legend = handles, [handle.get_label() for handle in handles]
    save_figure(figure, path, legend=legend, columns=2)


def draw_hull_steps(cells: Sequence[Mapping[str, Any]], path: Path, *, caption: bool = True) -> None:
    """Draw one panel per step: added groups in full colour, and hatched the groups that they bring into the hull."""
    check_figure_path(path)
    from matplotlib.patches import Patch

    d, n_steps = max(cell["z1"] for cell in cells), max(cell["step"] for cell in cells)
    figure = new_figure(1.55 * n_steps, 2.75, STEPS_CAPTION if caption else None)
    for number, panel in enumerate(np.atleast_1d(figure.subplots(1, n_steps, sharey=True)), start=1):
        for cell in cells:
            inside, added = cell["step"] <= number, cell["state"] == "added"
            turn = 0 if cell["step"] == 1 else 1 + cell["step"] % 2
            colour = STEP_COLOURS[turn][0 if added else 1] if inside else EXAMPLE_COLOURS[0][0]
            _draw_cell(panel, cell, colour, hatched=inside and not added)
        new = [f"({cell['z1']}, {cell['z2']})" for cell in cells if cell["step"] == number and cell["state"] == "added"]
        _frame_grid(panel, d, f"step {number}\n" + ("base set" if number == 1 else f"add {new[0]}"))
        if number == 1:
            panel.set_ylabel("$z_1$")
    names = ("base set", "blue group, added", "yellow group, added")
    handles = [
        *(Patch(facecolor=STEP_COLOURS[turn][0], label=name) for turn, name in enumerate(names)),
        *(
            Patch(facecolor=STEP_COLOURS[turn][1], edgecolor="white", hatch="///", label="determined by it")
            for turn in range(3)
        ),
    ]
    order = [handles[number] for number in (0, 3, 1, 4, 2, 5)]
    legend = order, [handle.get_label() for handle in order]
    save_figure(figure, path, legend=legend)


def _draw_cell(panel: Any, cell: Mapping[str, Any], colour: str, *, hatched: bool) -> None:
    """Draw a cell of the grid at row z1 and column z2."""
    from matplotlib.patches import Rectangle

    corner = cell["z2"] - 0.5, cell["z1"] - 0.5
    hatch = "///" if hatched else None
    panel.add_patch(Rectangle(corner, 1, 1, facecolor=colour, edgecolor="white", linewidth=1.5, hatch=hatch))


def _frame_grid(panel: Any, d: int, title: str) -> None:
    """Number the rows from the top and the columns from the left, and remove the frame."""
    panel.set(xlim=(0.5, d + 0.5), ylim=(d + 0.5, 0.5), aspect="equal", xlabel="$z_2$")
    panel.set(xticks=range(1, d + 1), yticks=range(1, d + 1))
    panel.set_title(title, fontsize=11 if d > STEP_VALUES else 9)
    panel.tick_params(length=0)
    for side in panel.spines.values():
        side.set_visible(False)


def draw_hull_growth(rows: Sequence[HullGrowth], path: Path, *, caption: bool = True) -> None:
    """Draw one panel per number of attributes: the simulated draws, the bounds, and the smallest possible number."""
    check_figure_path(path)
    settings = sorted({row.attributes for row in rows})
    n_lines = -(-len(settings) // 2)
    figure = new_figure(6.8, 2.6 * n_lines + 0.8, HULL_GROWTH_CAPTION if caption else None)
    panels = figure.subplots(n_lines, 2, sharey=True, squeeze=False).ravel()
    for panel in panels[len(settings) :]:
        panel.set_axis_off()
    for panel, m in zip(panels, settings, strict=False):
        chosen = [row for row in rows if row.attributes == m]
        d = [row.values for row in chosen]
        share = f"{1 - 1 / BOUND_C:.0%}"
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
    """Return at most five of the values: all of them, or every second, third and so on from the first."""
    return values if len(values) <= 5 else values[:: -(-len(values) // 5)]
