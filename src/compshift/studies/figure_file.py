"""Figure files (PNG, SVG or PDF), and CSV files with the numbers they show."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from compshift._errors import InputError
from compshift._files import check_target, replacing
from compshift.metrics.displays import check_matplotlib

FIGURE_ENDINGS = (".png", ".svg", ".pdf")

CAPTION_SIZE = 8
"""Font size of captions, in points."""

CAPTION_SPACING = 1.25
"""Distance of the lines of a caption, in units of the font size."""

CAPTION_MARGIN = 0.1
"""Space around captions, in inches."""

CHARACTER_WIDTH = 0.53
"""Mean width of a character of the caption, in units of the font size."""


def check_figure_path(path: Path, *sources: str | Path | None) -> None:
    """Check that matplotlib is installed and that a figure can be written to ``path``.

    ``sources`` are files that must not be overwritten, because they are read; None is ignored.
    """
    if path.suffix.lower() not in FIGURE_ENDINGS:
        raise InputError(
            f"{path.name!r} has the ending {path.suffix!r}, but figures are written as {', '.join(FIGURE_ENDINGS)}: "
            "choose a name with one of these endings"
        )
    check_matplotlib()
    check_target(path, *sources)


def new_figure(width: float, height: float, caption: str | None = None) -> Any:
    """Return a new figure of a size in inches; with a caption, the part of a taller figure above the caption."""
    from matplotlib.figure import Figure

    if caption is None:
        return Figure(figsize=(width, height), layout="constrained")
    characters = int((width - 2 * CAPTION_MARGIN) * 72 / (CAPTION_SIZE * CHARACTER_WIDTH))
    lines = wrap(caption, characters)
    below = len(lines) * CAPTION_SPACING * CAPTION_SIZE / 72 + 2 * CAPTION_MARGIN
    whole = Figure(figsize=(width, height + below), layout="constrained")
    parts: Any = whole.subfigures(2, 1, height_ratios=[height, below])
    figure, foot = parts
    foot.text(
        CAPTION_MARGIN / width,
        1 - CAPTION_MARGIN / below,
        "\n".join(lines),
        ha="left",
        va="top",
        fontsize=CAPTION_SIZE,
        linespacing=CAPTION_SPACING,
    )
    return figure


def save_figure(figure: Any, path: Path, *, legend: tuple[Any, Any] | None = None, columns: int = 3) -> None:
    """Write a figure made by ``new_figure`` atomically; ``legend`` is (handles, labels) and is placed below it."""
    if legend is not None:
        figure.legend(*legend, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
    with replacing(path) as temporary:
        figure.figure.savefig(temporary, dpi=160)  # the figure with its caption


def write_numbers(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the numbers of a figure as CSV, with the keys of the first row as header."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
