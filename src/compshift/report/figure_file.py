"""Where figures can be written."""

from importlib.util import find_spec
from pathlib import Path

from compshift._errors import InputError
from compshift._files import check_target

ENDINGS = (".png", ".svg", ".pdf")


def check_figure_path(path: Path, *sources: Path) -> None:
    """Refuse a path that a figure cannot be written to, or a Python without matplotlib."""
    if path.suffix not in ENDINGS:
        raise InputError(f"{path.name!r} has the ending {path.suffix!r}: figures are written as {', '.join(ENDINGS)}")
    if find_spec("matplotlib") is None:
        raise InputError("drawing needs matplotlib: pip install 'compshift[plot]'")
    check_target(path, *sources)
