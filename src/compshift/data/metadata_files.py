"""Metadata tables of published data sets, read strictly: an error names the file and line of a wrong entry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from compshift._errors import InputError, listing
from compshift.core.arrays import IntArray
from compshift.data.dataset import PROBED_IMAGES, ImageFiles

SPLIT_CODES = {"0": 0, "1": 1, "2": 2}
SPLIT_WORDS = {"train": 0, "val": 1, "test": 2}
BINARY = {"0": 0, "1": 1}
"""Codings of columns: the text in the file, and its code."""


def read_metadata(path: Path, columns: Sequence[str], **options: Any) -> dict[str, Any]:
    """Read columns of a CSV file as text, (n,) each, with ``options`` of ``pandas.read_csv``; NA stays the text NA."""
    import pandas as pd

    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}: the download is incomplete")
    try:
        header = pd.read_csv(path, nrows=0, **options)
        absent = [name for name in columns if name not in header.columns]
        if absent:
            raise InputError(
                f"{str(path)!r} has no column {listing(absent)}: its columns are {listing(header.columns, 12)}"
            )
        frame = pd.read_csv(path, usecols=list(columns), dtype=str, keep_default_na=False, **options)
    except InputError:
        raise
    except (OSError, ValueError, OverflowError, MemoryError) as error:
        raise InputError(f"{str(path)!r} cannot be read as a table ({error})") from None
    if not len(frame):
        raise InputError(f"{str(path)!r} has no rows: the download is incomplete")
    return {name: frame[name].to_numpy(dtype=object) for name in columns}


def coded(values: Any, coding: Mapping[str, int], column: str, path: Path, first_line: int = 2) -> IntArray:
    """Return the codes (n,) of a column's texts; a text outside the coding raises an error with its line."""
    distinct, position = np.unique(np.asarray(values, dtype=str), return_inverse=True)
    for number, value in enumerate(distinct):
        if value not in coding:
            row = int(np.argmax(position == number))
            raise InputError(
                f"{str(path)!r}, line {row + first_line}: {column} is {str(value)!r}, not one of {listing(coding)}"
            )
    return np.array([coding[str(value)] for value in distinct], dtype=np.int64)[position]


def numbers(values: Any, column: str, path: Path, first_line: int = 2) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the numbers (n,) of a column's texts; an empty text is NaN."""
    import pandas as pd

    parsed = pd.to_numeric(pd.Series(values).replace("", None), errors="coerce").to_numpy(dtype=np.float64)
    wrong = np.isnan(parsed) & (np.asarray(values, dtype=object) != "")
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(f"{str(path)!r}, line {row + first_line}: {column} is {values[row]!r}, not a number")
    return np.asarray(parsed)


def image_files(folders: Iterable[Path], names: Any) -> ImageFiles:
    """Return the images below the first folder in which one of the first ``PROBED_IMAGES`` names exists."""
    probed = list(folders)
    for row, name in enumerate(names):
        path = PurePosixPath(str(name).replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts:
            raise InputError(f"the image {name!r} of row {row} is not below its data set's folder: it is not read")
    for folder in probed:
        found = ImageFiles(folder, names, folder)
        if any((folder / name).is_file() for name in found.names[:PROBED_IMAGES]):
            return found
    raise InputError(
        f"there is no image {names[0]!r} in {', '.join(repr(str(folder)) for folder in probed)}: the download is "
        "incomplete"
    )


def after(names: Any, folder: str, path: Path, first_line: int = 2) -> list[str]:
    """Return the part of each file name after ``folder/``, for tables with paths of another machine."""
    found = []
    for row, name in enumerate(names):
        _, separator, rest = f"/{name}".replace("\\", "/").partition(f"/{folder}/")
        if not separator:
            raise InputError(
                f"{str(path)!r}, line {row + first_line}: the file {name!r} is not below a {folder!r} folder"
            )
        found.append(rest)
    return found
