"""Read the metadata tables of published data sets; errors name the file and the line of the wrong entry.

A copy that can be read but lacks something, such as images that a table lists, causes a warning (``warn_incomplete``),
which ``compshift datasets check`` shows.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from compshift._errors import InputError, listing, shown
from compshift.core.arrays import IntArray
from compshift.data.dataset import PROBED_IMAGES, ImageFiles

SPLIT_CODES = {"0": 0, "1": 1, "2": 2}
"""Split code of each text in a column of split numbers."""

SPLIT_WORDS = {"train": 0, "val": 1, "test": 2}
"""Split code of each text in a column of split names."""

BINARY = {"0": 0, "1": 1}
"""Code of each text in a binary column."""


def read_metadata(path: Path, columns: Sequence[str | tuple[str, ...]], **options: Any) -> dict[str, Any]:
    """Read columns (n,) of a CSV file as text, NA included; ``options`` are passed to ``pandas.read_csv``.

    A tuple lists the names that one column has in different public copies; in the result it has the first of them.
    """
    import pandas as pd

    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}: the download is incomplete; download it again")
    try:
        header = pd.read_csv(path, nrows=0, **options)
        known = [(column,) if isinstance(column, str) else column for column in columns]
        used = {names[0]: next((name for name in names if name in header.columns), None) for names in known}
        absent = [
            f"{names[0]!r}" + (f" (or {listing(names[1:])})" if names[1:] else "")
            for names in known
            if used[names[0]] is None
        ]
        if absent:
            raise InputError(
                f"{str(path)!r} has no column {', '.join(absent)}: its columns are {listing(header.columns, 12)}; "
                "download it again"
            )
        frame = pd.read_csv(path, usecols=list(used.values()), dtype=str, keep_default_na=False, **options)
    except InputError:
        raise
    except (OSError, ValueError, OverflowError, MemoryError) as error:
        raise InputError(f"{str(path)!r} cannot be read as a table ({error}): download it again") from None
    if not len(frame):
        raise InputError(f"{str(path)!r} has no rows: the download is incomplete; download it again")
    return {name: frame[column].to_numpy(dtype=object) for name, column in used.items()}


def encode_column(values: Any, codes: Mapping[str, int], column: str, path: Path, first_line: int = 2) -> IntArray:
    """Return the codes (n,) of a column of texts; raise an error with the line number of a text without a code."""
    distinct, position = np.unique(np.asarray(values, dtype=str), return_inverse=True)
    for number, value in enumerate(distinct):
        if value not in codes:
            row = int(np.argmax(position == number))
            raise InputError(
                f"{str(path)!r}, line {row + first_line}: {column} is {str(value)!r}, not one of {listing(codes)}"
            )
    return np.array([codes[str(value)] for value in distinct], dtype=np.int64)[position]


def parse_numbers(values: Any, column: str, path: Path, first_line: int = 2) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Parse a column of texts as numbers (n,); an empty text becomes NaN."""
    import pandas as pd

    parsed = pd.to_numeric(pd.Series(values).replace("", None), errors="coerce").to_numpy(dtype=np.float64)
    wrong = np.isnan(parsed) & (np.asarray(values, dtype=object) != "")
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(f"{str(path)!r}, line {row + first_line}: {column} is {values[row]!r}, not a number")
    return np.asarray(parsed)


def image_files(folders: Iterable[Path], names: Any) -> ImageFiles:
    """Return the images below the first folder that contains one of the first ``PROBED_IMAGES`` names."""
    probed = list(folders)
    for row, name in enumerate(names):
        path = PurePosixPath(str(name).replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts:
            raise InputError(
                f"the image {name!r} of row {row} is not below its data set's folder: download the metadata again"
            )
    for folder in probed:
        found = ImageFiles(folder, names, folder)
        if any((folder / name).is_file() for name in found.names[:PROBED_IMAGES]):
            _warn_of_missing(found)
            return found
    raise InputError(
        f"there is no image {names[0]!r} in {', '.join(repr(str(folder)) for folder in probed)}: the download is "
        "incomplete; download the images again"
    )


def _warn_of_missing(images: ImageFiles) -> None:
    """Warn if images do not exist; each folder is listed once, which is faster than looking up every image."""
    present: dict[str, set[str]] = {}
    missing = []
    for name in images.names:
        parent, _, file = name.rpartition("/")
        if parent not in present:
            try:
                present[parent] = set(os.listdir(images.root / parent))
            except OSError:
                present[parent] = set()
        if file not in present[parent] and not os.path.isfile(images.root / name):  # some file systems ignore case
            missing.append(name)
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        warn_incomplete(
            f"{len(missing)} of the {len(images)} images {verb} missing from {str(images.root)!r}, such as "
            f"{shown(missing[0])}: download the images again, or leave these rows out with "
            "skip_broken"
        )


def warn_incomplete(sentence: str) -> None:
    """Warn that a copy of a data set lacks something that it should have; the rest of it is loaded."""
    warnings.warn(sentence, UserWarning, stacklevel=3)


def strip_folder(names: Any, folder: str, path: Path, first_line: int = 2) -> list[str]:
    """Return the part of each path after ``folder/``, because tables can contain absolute paths of another machine."""
    found = []
    for row, name in enumerate(names):
        _, separator, rest = f"/{name}".replace("\\", "/").partition(f"/{folder}/")
        if not separator:
            raise InputError(
                f"{str(path)!r}, line {row + first_line}: the path {name!r} does not contain the folder {folder!r}"
            )
        found.append(rest)
    return found
