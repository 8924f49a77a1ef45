"""A table of text cells, and its conversion to Markdown, LaTeX and a terminal table. Pages render it as HTML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from compshift.report.terminal import plain_table

if TYPE_CHECKING:
    from rich.table import Table

MARK = "▾"
"""Sign printed after the text of a marked cell."""

LATEX_ESCAPES = {
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
    "≥": r"$\geq$",
    MARK: r"$\blacktriangledown$",
}
"""LaTeX commands for characters that are special in LaTeX or absent from its fonts."""

POWER = re.compile(r"(\d+\^U\([^()]*\))")
"""Matches a range such as 10^U(−5, −3): a number to a power drawn uniformly."""


@dataclass(frozen=True)
class Cell:
    """The text of a cell and its emphasis."""

    text: str
    best: bool = False  # best of its column or row: printed in bold
    marked: bool = False  # followed by ``MARK``


@dataclass
class Grid:
    """A table with a title, headings, rows of cells, and notes below."""

    name: str  # kind of table, for example "main" or "scenarios"
    title: str
    headings: list[str]
    n_keys: int  # number of leading columns that identify a row
    rows: list[list[Cell]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    sections: list[int] = field(default_factory=list)  # row numbers, from 1, after which a rule is drawn

    def add(self, keys: Sequence[str], cells: Sequence[Cell]) -> None:
        """Append a row: the texts of its key columns, then its cells."""
        self.rows.append([*(Cell(key) for key in keys), *cells])


def to_markdown(grid: Grid) -> str:
    """Return the table as GitHub Markdown, with its title as a heading above and its notes below."""

    def line(texts: Sequence[str]) -> str:
        return "| " + " | ".join(texts) + " |"

    def escaped(text: str) -> str:
        return re.sub(r"([\\|*_<`])", r"\\\1", text)

    def shown(cell: Cell) -> str:
        text = escaped(cell.text)
        return (f"**{text}**" if cell.best and text else text) + (f" {MARK}" if cell.marked else "")

    align = ["---"] * grid.n_keys + ["---:"] * (len(grid.headings) - grid.n_keys)
    lines = [f"### {grid.title}", "", line([escaped(heading) for heading in grid.headings]), line(align)]
    lines += [line([shown(cell) for cell in row]) for row in grid.rows]
    return "\n".join([*lines, *(part for note in grid.notes for part in ("", note))]) + "\n"


def to_latex(grid: Grid) -> str:
    """Return the table as a LaTeX ``table`` with ``booktabs`` rules; title and notes form the caption."""

    def escaped(text: str) -> str:
        parts = POWER.split(text)  # text and powers in turn
        return "".join(power(part) if number % 2 else plain(part) for number, part in enumerate(parts))

    def plain(text: str) -> str:
        signs = "".join(LATEX_ESCAPES.get(sign, sign) for sign in text)
        return signs.replace(r"B\_hat", r"$\hat{B}$").replace("B*", "$B^*$")

    def power(text: str) -> str:
        base, exponent = text.replace("−", "-").split("^")
        return f"${base}^{{{exponent}}}$"

    def shown(cell: Cell) -> str:
        text = rf"\textbf{{{escaped(cell.text)}}}" if cell.best and cell.text else escaped(cell.text)
        return f"{text} {LATEX_ESCAPES[MARK]}" if cell.marked else text

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
    """Return the table as a Rich table for the terminal, without its notes."""
    from rich.markup import escape

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
