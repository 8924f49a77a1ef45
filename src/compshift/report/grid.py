"""A table of texts, and the forms in which it is printed: Markdown, LaTeX, or on the terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

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
