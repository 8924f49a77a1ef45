"""HTML of results for notebooks: sentences and a table, or a grid of groups."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from html import escape
from typing import Any


class TableResult:
    """Base of results that are shown as a table below some words, as text and in notebooks."""

    _missing = ""
    """Text of missing numbers."""

    @abstractmethod
    def to_frame(self) -> Any:
        """Return the table."""

    @abstractmethod
    def _summary(self) -> str:
        """Return the words above the table."""

    def _shown_frame(self) -> Any:
        """Return the table that is shown."""
        return self.to_frame()

    def __str__(self) -> str:
        table = self._shown_frame().to_string(index=False, na_rep=self._missing, float_format=_number)
        return f"{self._summary()}\n\n{table}"

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        table = self._shown_frame().to_html(index=False, na_rep=self._missing, float_format=_number, max_rows=60)
        words = f'<pre style="white-space:pre-wrap">{escape(self._summary())}</pre>'
        return f"<div>{words}{table}</div>"


def _number(value: float) -> str:
    return f"{value:.4g}"


CELL = "padding:.15em .6em;text-align:center;border:2px solid transparent;background-clip:padding-box;"
STYLES = {
    "seen": (CELL + "background-color:#0072b2;color:#fff", "●"),
    "inside": (CELL + "background-color:#9fd0ec;color:#000", "+"),
    "outside": (CELL + "background-color:#eceff1;color:#666", "×"),
}
"""Style and text of a group's cell, by state; the states have the same colours in the pages of reports."""

LEGEND = "● seen, + unseen and inside the hull, × outside the hull"


def grid_html(names: Sequence[str], rows: Sequence[str], columns: Sequence[str], states: Any, title: str = "") -> str:
    """Return a grid of groups as a table; ``states`` (rows, columns) are keys of ``STYLES``."""
    corner = f"{names[0]} \\ {names[1]}" if len(names) > 1 else names[0]
    head = "".join(f'<th style="text-align:center">{escape(column)}</th>' for column in columns)
    body = "".join(
        f"<tr><th>{escape(row)}</th>"
        + "".join(f'<td style="{STYLES[state][0]}" title="{state}">{STYLES[state][1]}</td>' for state in own)
        + "</tr>"
        for row, own in zip(rows, states, strict=True)
    )
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    return f"<table>{caption}<thead><tr><th>{escape(corner)}</th>{head}</tr></thead><tbody>{body}</tbody></table>"
