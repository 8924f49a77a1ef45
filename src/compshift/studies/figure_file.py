"""Figure files (PNG, SVG or PDF), and CSV files with the numbers they show."""

import csv
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from compshift._errors import InputError
from compshift._files import check_target, replacing

FIGURE_ENDINGS = (".png", ".svg", ".pdf")


def check_figure_path(path: Path, *sources: str | Path | None) -> None:
    """Check that matplotlib is installed and that a figure can be written to ``path``.

    ``sources`` are files that must not be overwritten, because they are read; None is ignored.
    """
    if path.suffix.lower() not in FIGURE_ENDINGS:
        raise InputError(
            f"{path.name!r} has the ending {path.suffix!r}, but figures are written as {', '.join(FIGURE_ENDINGS)}: "
            "choose a name with one of these endings"
        )
    if find_spec("matplotlib") is None:
        raise InputError("drawing needs matplotlib: pip install 'compshift[plot]'")
    check_target(path, *sources)


def save_figure(figure: Any, path: Path, *, legend: tuple[Any, Any] | None = None, columns: int = 3) -> None:
    """Write a figure atomically; a legend, as (handles, labels), goes below it in ``columns`` columns."""
    if legend is not None:
        figure.legend(*legend, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=160)


def write_numbers(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the numbers of a figure as CSV, with the keys of the first row as header."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
