"""A table of texts, and the forms in which it is printed: Markdown, LaTeX, or on the terminal.

The hull as a picture: the attribute grid, or one panel for each pair of attributes (paper, "A Closer Look").
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compshift.studies.figure_file import check_figure_path, save_figure

if TYPE_CHECKING:
    from rich.table import Table

    from compshift.data.audit import Audit

MARK = "▾"

LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "−": "$-$",
    "±": r"$\pm$",
    "×": r"$\times$",
    MARK: r"$\blacktriangledown$",
}


@dataclass(frozen=True)
class Cell:
    """A text, which may be the best of its kind, or marked."""

    text: str
    best: bool = False
    marked: bool = False


@dataclass
class Grid:
    """A table: headings, rows, and lines of explanation."""

    name: str  # for programs: main, scenarios …
    title: str
    headings: list[str]
    n_keys: int  # columns at the left that say what a row is
    rows: list[list[Cell]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    sections: list[int] = field(default_factory=list)  # rows after which there is a line

    def add(self, keys: Sequence[str], cells: Sequence[Cell]) -> None:
        """One more row."""
        self.rows.append([*(Cell(key) for key in keys), *cells])


def to_markdown(grid: Grid) -> str:
    """A table of GitHub's Markdown with a heading above it."""

    def line(texts: Sequence[str]) -> str:
        return "| " + " | ".join(texts) + " |"

    def shown(cell: Cell) -> str:
        text = re.sub(r"([\\|*_<`])", r"\\\1", cell.text)
        return (f"**{text}**" if cell.best and text else text) + (f" {MARK}" if cell.marked else "")

    align = ["---"] * grid.n_keys + ["---:"] * (len(grid.headings) - grid.n_keys)
    heads = [re.sub(r"([\\|*_<`])", r"\\\1", heading) for heading in grid.headings]
    lines = [f"### {grid.title}", "", line(heads), line(align)]
    lines += [line([shown(cell) for cell in row]) for row in grid.rows]
    return "\n".join([*lines, *(part for note in grid.notes for part in ("", note))]) + "\n"


def to_latex(grid: Grid) -> str:
    """A ``table`` with ``booktabs`` rules."""

    def escaped(text: str) -> str:
        signs = "".join(LATEX.get(sign, sign) for sign in text)
        return signs.replace(r"B\_hat", r"$\hat{B}$").replace("B*", "$B^*$")

    def shown(cell: Cell) -> str:
        text = rf"\textbf{{{escaped(cell.text)}}}" if cell.best and cell.text else escaped(cell.text)
        return f"{text} {LATEX[MARK]}" if cell.marked else text

    columns = "l" * grid.n_keys + "r" * (len(grid.headings) - grid.n_keys)
    lines = [
        "% needs the packages booktabs and amssymb",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escaped(' '.join([grid.title + '.', *grid.notes]))}}}",
    ]
    lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
    lines += [" & ".join(map(escaped, grid.headings)) + r" \\", r"\midrule"]
    for number, row in enumerate(grid.rows, start=1):
        lines.append(" & ".join(shown(cell) for cell in row) + r" \\")
        if number in grid.sections and number < len(grid.rows):
            lines.append(r"\midrule")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def to_rich(grid: Grid) -> Table:
    """For the terminal."""
    from rich.markup import escape

    from compshift.report.terminal import plain_table

    table = plain_table(grid.title)
    for number, heading in enumerate(grid.headings):
        table.add_column(escape(heading), justify="left" if number < grid.n_keys else "right", overflow="fold")
    for number, row in enumerate(grid.rows, start=1):
        cells = []
        for cell in row:
            text = escape(cell.text) + (f" {MARK}" if cell.marked else "")
            cells.append(f"[bold]{text}[/bold]" if cell.best and text else text)
        table.add_row(*cells, end_section=number in grid.sections)
    return table


SEEN, INSIDE, OUTSIDE = "#0072b2", "#9fd0ec", "#f0f0f0"  # told apart with any colour vision, and in print
MAX_CELLS_WITH_NUMBERS = 400
MAX_VALUES = 60
"""Attributes with more values than this are drawn by their first ones."""


def draw_hull(audit: Audit, path: Path) -> None:
    """Seen, extrapolable and out-of-reach groups; with more than two attributes, of each pair."""
    check_figure_path(path)
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    names = audit.space.names
    pairs = list(itertools.combinations(range(len(names)), 2)) or [(0, 0)]
    columns = min(3, len(pairs))
    rows = -(-len(pairs) // columns)
    largest = min(MAX_VALUES, max(audit.space.cardinalities))
    side = float(np.clip(0.42 * largest + 1.6, 3.6, 11.0))
    figure = Figure(figsize=(max(5.4, side * columns), side * rows + 0.5), layout="constrained")
    panels = np.atleast_1d(figure.subplots(rows, columns)).ravel()
    for panel in panels[len(pairs) :]:
        panel.set_axis_off()
    for panel, pair in zip(panels, pairs, strict=False):
        _draw_pair(panel, audit, *pair)
    if len(names) > 2:
        title = f"pairs of values; the other attributes are those of the largest group, {_largest_group(audit)}"
        figure.suptitle(title, fontsize=10)
    handles = [
        Patch(facecolor=SEEN, label="seen (rows)"),
        Patch(facecolor=INSIDE, hatch="///", edgecolor="white", label="can be extrapolated"),
        Patch(facecolor=OUTSIDE, edgecolor="#999999", label="out of reach"),
    ]
    save_figure(figure, path, legend=(handles, [handle.get_label() for handle in handles]))


def _draw_pair(panel: Any, audit: Audit, first: int, second: int) -> None:
    """One panel: a cell is seen, or determined for the other attributes of some seen group, or neither."""
    space, hull = audit.space, audit.hull
    shape = tuple(min(MAX_VALUES, space.cardinalities[axis]) for axis in (first, second))
    counts = np.zeros(shape)
    shown = (audit.counts.groups[:, first] < shape[0]) & (audit.counts.groups[:, second] < shape[1])
    np.add.at(counts, tuple(audit.counts.groups[shown][:, [first, second]].T), audit.counts.count[shown])
    base = audit.counts.groups[int(np.argmax(audit.counts.count))]
    cells = np.repeat(base[None, :], shape[0] * shape[1], axis=0)
    cells[:, [first, second]] = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), axis=-1).reshape(-1, 2)
    inside = hull.contains(cells).reshape(shape)
    for left, right in np.ndindex(shape):
        seen = counts[left, right] > 0
        colour = SEEN if seen else INSIDE if inside[left, right] else OUTSIDE
        hatch = "///" if not seen and inside[left, right] else None
        panel.add_patch(_cell(right, left, colour, hatch))
        if seen and counts.size <= MAX_CELLS_WITH_NUMBERS:
            panel.text(right, left, f"{counts[left, right]:g}", ha="center", va="center", fontsize=8, color="white")
    panel.set(xlim=(-0.5, shape[1] - 0.5), ylim=(shape[0] - 0.5, -0.5), aspect="equal")
    panel.set_xlabel(_axis_label(space.names[second], space.cardinalities[second], shape[1]))
    panel.set_ylabel(_axis_label(space.names[first], space.cardinalities[first], shape[0]))
    labels = [_short(value) for value in space.values[second][: shape[1]]]
    turn = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"} if max(map(len, labels)) > 3 else {}
    panel.set_xticks(range(shape[1]), labels, **turn)
    panel.set_yticks(range(shape[0]), [_short(value) for value in space.values[first][: shape[0]]])
    panel.tick_params(labelsize=8, length=0)


def _largest_group(audit: Audit) -> str:
    """The largest group by name."""
    return audit.space.label(audit.counts.groups[int(np.argmax(audit.counts.count))])


def _cell(x: int, y: int, colour: str, hatch: str | None) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="white", linewidth=1, hatch=hatch)


def _axis_label(name: str, size: int, shown: int) -> str:
    return name if size == shown else f"{name} (first {shown} of {size} values)"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 18 else text[:17] + "…"
