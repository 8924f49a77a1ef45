"""Present an audit as sentences, on the terminal, as JSON, and as a picture of the hull.

The terminal and the report pages share the sentences.
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compshift._errors import listing
from compshift.core.combination import tries_per_group
from compshift.data.audit import SMALL_GROUP, Audit
from compshift.report.terminal import print_lines
from compshift.studies.figure_file import check_figure_path, save_figure

if TYPE_CHECKING:
    from rich.console import Console

MAX_AUDIT_GROUPS = 12
"""Maximum number of groups named in a sentence; the rest are only counted."""

INSIDE_MARK = "+"
"""Mark of an unseen group inside the hull, in the grid on the terminal."""

OUTSIDE_MARK = "×"
"""Mark of an unseen group outside the hull, in the grid on the terminal."""

# The colours of the picture can be distinguished with any colour vision, and in print.

SEEN_FILL = "#0072b2"
"""Colour of seen groups in the picture."""

INSIDE_FILL = "#9fd0ec"
"""Colour of unseen groups inside the hull in the picture."""

OUTSIDE_FILL = "#f0f0f0"
"""Colour of unseen groups outside the hull in the picture."""

MAX_DRAWN_VALUES = 60
"""Maximum number of values of an attribute in the picture; if there are more, the first ones are drawn."""

MAX_PANELS = 24
"""Maximum number of panels in the picture, one for each combination of the attributes that are not its axes."""

MAX_CELLS_WITH_COUNTS = 400
"""Maximum number of cells in a panel that shows row counts; larger panels show colours only."""


def rows_words(audit: Audit) -> list[str]:
    """Return sentences with the numbers of rows and groups, and of rows that were left out."""
    counts = audit.counts
    sizes = " × ".join(str(size) for size in audit.space.cardinalities)
    lines = [f"{_plain_number(counts.n_rows)} rows in {len(counts.groups)} of {audit.space.n_groups} groups ({sizes})"]
    if counts.n_dropped:
        parts = ", ".join(f"{name}: {_plain_number(number)}" for name, number in counts.missing.items())
        if counts.missing_words:
            parts += f"; {listing(counts.missing_words)} is read as missing"
        lines.append(f"{_plain_number(counts.n_dropped)} rows were left out because an attribute is missing ({parts})")
    return lines


def small_words(audit: Audit) -> list[str]:
    """Return a sentence that names the groups with few rows, if there are any."""
    if not len(audit.small):
        return []
    named = _group_names(audit, audit.counts.groups[audit.small], audit.counts.count[audit.small])
    return [f"fewer than {SMALL_GROUP} rows: {named}"]


def plan_words(audit: Audit) -> list[str]:
    """Return a sentence that names the groups to collect to complete the hull."""
    if audit.hull.is_complete:
        return ["nothing needs to be collected: every combination is determined by the seen ones"]
    noun = "this group" if len(audit.plan) == 1 else f"these {len(audit.plan)} groups, the fewest that suffice"
    return [f"to determine every combination, collect {noun}: {_group_names(audit, np.asarray(audit.plan))}"]


def _coverage_words(audit: Audit) -> list[str]:
    """Return sentences on rank and coverage of the hull, and on the unseen groups inside and outside it."""
    hull, coverage = audit.hull, audit.coverage
    interval = f", 95 % interval {coverage.lower:.2%} to {coverage.upper:.2%}" if coverage.method == "estimate" else ""
    lines = [f"rank {hull.rank} of {hull.full_rank}; {float(coverage):.2%} of all groups are determined{interval}"]
    inside, outside = audit.extrapolable, audit.out_of_reach
    if inside is not None and outside is not None:
        lines.append(f"unseen groups: {len(inside)} can be extrapolated, {len(outside)} out of reach")
        if len(audit.space.names) != 2:
            lines += [f"can be extrapolated: {_group_names(audit, inside)}"] if len(inside) else []
            lines += [f"out of reach: {_group_names(audit, outside)}"] if len(outside) else []
    return lines


def _group_names(audit: Audit, codes: Any, counts: Any = None) -> str:
    """Return the names of at most ``MAX_AUDIT_GROUPS`` groups, with their row counts if given, as one text."""
    labels = [audit.space.label(code) for code in codes[:MAX_AUDIT_GROUPS]]
    if counts is not None:
        labels = [f"{label} {_plain_number(count)}" for label, count in zip(labels, counts, strict=False)]
    more = len(codes) - len(labels)
    return ", ".join(labels) + (f" and {more} more" if more > 0 else "")


def _plain_number(count: float) -> str:
    """Format an integer count without decimals, and a fractional weight with six significant digits."""
    return f"{count:.0f}" if float(count).is_integer() else f"{count:g}"


def print_audit(audit: Audit, *, explain: bool, as_json: bool) -> None:
    """Print coverage, small groups, the groups to collect and, for two attributes, the grid of groups.

    With ``explain``, also print each extrapolable group as a combination of seen groups.
    """
    inside = audit.extrapolable
    if as_json:
        content = audit.to_dict()
        if explain:
            content["witnesses"] = explanations(audit, [] if inside is None else inside)
        print(json.dumps(content))
        return
    from rich.console import Console

    console = Console()
    print_lines(console, *rows_words(audit), *_coverage_words(audit))
    if len(audit.space.names) == 2:
        _print_grid(console, audit)
    print_lines(console, *small_words(audit), *plan_words(audit))
    if explain and inside is not None:
        print_lines(console, *(f"  {line}" for line in explanations(audit, inside[:MAX_AUDIT_GROUPS])))
        if len(inside) > MAX_AUDIT_GROUPS:
            print_lines(console, f"  and {len(inside) - MAX_AUDIT_GROUPS} more; --json --explain lists all of them")


def explanations(audit: Audit, codes: Any) -> list[str]:
    """Return equations that express groups (q, m) inside the hull as the sparsest combinations of seen groups."""
    return [audit.hull.explain(code, audit.counts.count, tries_per_group(len(codes))) for code in codes]


def _print_grid(console: Console, audit: Audit) -> None:
    """Print the grid of two attributes: row counts of seen groups, + for extrapolable and × for out-of-reach groups."""
    from rich.box import SIMPLE
    from rich.markup import escape
    from rich.table import Table

    left, right = audit.space.values
    widest = max(len(str(value)) for value in left)
    if widest + 3 + sum(max(5, len(str(value))) + 3 for value in right) > console.width:
        print_lines(console, "the grid is too wide for this terminal: draw it with -o FILE.png, or widen the terminal")
        return
    cells = np.full(audit.space.cardinalities, OUTSIDE_MARK, dtype=object)
    if audit.extrapolable is not None:
        cells[tuple(audit.extrapolable.T)] = INSIDE_MARK
    for code, count in zip(audit.counts.groups, audit.counts.count, strict=True):
        cells[tuple(code)] = _plain_number(count)
    table = Table(box=SIMPLE, show_edge=False, pad_edge=False)
    table.add_column(escape(f"{audit.space.names[0]} \\ {audit.space.names[1]}"))
    for value in right:
        table.add_column(escape(str(value)), justify="right", no_wrap=True)
    for value, row in zip(left, cells, strict=True):
        table.add_row(escape(str(value)), *row)
    console.print(table)
    print_lines(console, f"{INSIDE_MARK} can be extrapolated, {OUTSIDE_MARK} out of reach")


def draw_hull(audit: Audit, path: Path) -> None:
    """Draw seen, extrapolable and out-of-reach groups (paper, "A Closer Look").

    A panel is a grid of two attributes, in which each cell is one group. With more than two attributes there is a panel
    for each combination of the others; if there are more than ``MAX_PANELS``, those with the most rows are drawn.
    """
    check_figure_path(path)
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    sizes = audit.space.cardinalities
    first, second = 0, 1 + int(np.argmax(sizes[1:])) if len(sizes) > 1 else 0  # a wide axis saves panels
    slices, n_slices = _slices(audit, [axis for axis in range(len(sizes)) if axis not in (first, second)])
    columns = min(4 if len(slices) > 6 else 3, len(slices))
    rows = -(-len(slices) // columns)
    largest = min(MAX_DRAWN_VALUES, max(sizes[first], sizes[second]))
    side = float(np.clip(0.42 * largest + 1.6, 2.6 if len(slices) > 1 else 3.6, 11.0))
    figure = Figure(figsize=(max(5.4, side * columns), side * rows + 0.5), layout="constrained")
    panels = np.atleast_1d(figure.subplots(rows, columns)).ravel()
    for panel in panels[len(slices) :]:
        panel.set_axis_off()
    for panel, fixed in zip(panels, slices, strict=False):
        _draw_slice(panel, audit, fixed, first, second)
    if 1 < n_slices == len(slices):
        figure.suptitle(f"{n_slices} grids: each cell is one group", fontsize=10)
    elif len(slices) < n_slices:
        others = " × ".join(name for axis, name in enumerate(audit.space.names) if axis not in (first, second))
        title = f"{len(slices)} of the {n_slices} combinations of {others}, those with the most rows"
        figure.suptitle(title, fontsize=10)
    handles = [
        Patch(facecolor=SEEN_FILL, label="seen (rows)"),
        Patch(facecolor=INSIDE_FILL, hatch="///", edgecolor="white", label="can be extrapolated"),
        Patch(facecolor=OUTSIDE_FILL, edgecolor="#999999", label="out of reach"),
    ]
    save_figure(figure, path, legend=(handles, [handle.get_label() for handle in handles]))


def _slices(audit: Audit, others: list[int]) -> tuple[list[dict[int, int]], int]:
    """Return the combinations of values of the attributes ``others`` to draw, and how many there are in all."""
    space, counts = audit.space, audit.counts
    total = math.prod(space.cardinalities[axis] for axis in others)
    if total <= MAX_PANELS:
        codes = itertools.product(*(range(space.cardinalities[axis]) for axis in others))
        return [dict(zip(others, code, strict=True)) for code in codes], total
    rows: dict[tuple[int, ...], float] = {}
    for code, count in zip(counts.groups[:, others].tolist(), counts.count, strict=True):
        rows[tuple(code)] = rows.get(tuple(code), 0.0) + float(count)
    chosen = sorted(sorted(rows, key=lambda code: -rows[code])[:MAX_PANELS])
    return [dict(zip(others, code, strict=True)) for code in chosen], total


def _draw_slice(panel: Any, audit: Audit, fixed: dict[int, int], first: int, second: int) -> None:
    """Draw the grid of attributes ``first`` and ``second``; ``fixed`` are the codes of the other attributes."""
    from matplotlib.patches import Rectangle

    space, hull = audit.space, audit.hull
    shape = tuple(min(MAX_DRAWN_VALUES, space.cardinalities[axis]) for axis in (first, second))
    counts = np.zeros(shape)
    shown = (audit.counts.groups[:, first] < shape[0]) & (audit.counts.groups[:, second] < shape[1])
    for axis, value in fixed.items():
        shown &= audit.counts.groups[:, axis] == value
    np.add.at(counts, tuple(audit.counts.groups[shown][:, [first, second]].T), audit.counts.count[shown])
    cells = np.zeros((shape[0] * shape[1], len(space.names)), dtype=np.int64)
    for axis, value in fixed.items():
        cells[:, axis] = value
    cells[:, [first, second]] = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), axis=-1).reshape(-1, 2)
    inside = hull.contains(cells).reshape(shape)
    if fixed:
        parts = [f"{_short(space.names[axis])} = {_short(space.values[axis][value])}" for axis, value in fixed.items()]
        panel.set_title(", ".join(parts), fontsize=9)
    for left, right in np.ndindex(shape):
        seen = counts[left, right] > 0
        colour = SEEN_FILL if seen else INSIDE_FILL if inside[left, right] else OUTSIDE_FILL
        hatch = "///" if not seen and inside[left, right] else None
        corner = (right - 0.5, left - 0.5)
        panel.add_patch(Rectangle(corner, 1, 1, facecolor=colour, edgecolor="white", linewidth=1, hatch=hatch))
        if seen and counts.size <= MAX_CELLS_WITH_COUNTS:
            panel.text(right, left, f"{counts[left, right]:g}", ha="center", va="center", fontsize=8, color="white")
    panel.set(xlim=(-0.5, shape[1] - 0.5), ylim=(shape[0] - 0.5, -0.5), aspect="equal")
    panel.set_xlabel(_axis_label(space.names[second], space.cardinalities[second], shape[1]))
    panel.set_ylabel(_axis_label(space.names[first], space.cardinalities[first], shape[0]))
    labels = [_short(value) for value in space.values[second][: shape[1]]]
    turn = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"} if max(map(len, labels)) > 3 else {}
    panel.set_xticks(range(shape[1]), labels, **turn)
    panel.set_yticks(range(shape[0]), [_short(value) for value in space.values[first][: shape[0]]])
    panel.tick_params(labelsize=8, length=0)


def _axis_label(name: str, size: int, shown: int) -> str:
    """Return the attribute's name, with a note if only some of its values are shown."""
    return name if size == shown else f"{name} (first {shown} of {size} values)"


def _short(value: object) -> str:
    """Return a value as text of at most 18 characters."""
    text = str(value)
    return text if len(text) <= 18 else text[:17] + "…"
