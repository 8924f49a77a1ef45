"""The tables that come with published data sets, read strictly: a wrong entry is named with its file and line.

Whether every sample of a data set can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from compshift._errors import InputError, listing
from compshift.core.arrays import IntArray
from compshift.data.dataset import GroupedDataset, ImageFiles
from compshift.data.images import BrokenImageError, check_image

SPLIT_CODES = {"0": 0, "1": 1, "2": 2}
SPLIT_WORDS = {"train": 0, "val": 1, "test": 2}
PROBED = 100
"""Images that are looked for before a folder is given up: a few may be missing."""

BINARY = {"0": 0, "1": 1}


def read_metadata(path: Path, columns: Sequence[str], **options: Any) -> dict[str, Any]:
    """Columns of a CSV file as text, (n,) each; what looks like a missing value is text too."""
    import pandas as pd

    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}: the download is not whole")
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
        raise InputError(f"{str(path)!r} has no rows: the download is not whole")
    return {name: frame[name].to_numpy(dtype=object) for name in columns}


def coded(values: Any, coding: Mapping[str, int], column: str, path: Path, first_line: int = 2) -> IntArray:
    """Codes (n,) of a column's texts; one outside the coding is refused with its line."""
    distinct, position = np.unique(np.asarray(values, dtype=str), return_inverse=True)
    for number, value in enumerate(distinct):
        if value not in coding:
            row = int(np.argmax(position == number))
            raise InputError(
                f"{str(path)!r}, line {row + first_line}: {column} is {str(value)!r}, not one of {listing(coding)}"
            )
    return np.array([coding[str(value)] for value in distinct], dtype=np.int64)[position]


def numbers(values: Any, column: str, path: Path, first_line: int = 2) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Numbers (n,) of a column's texts; an empty one is NaN."""
    import pandas as pd

    parsed = pd.to_numeric(pd.Series(values).replace("", None), errors="coerce").to_numpy(dtype=np.float64)
    wrong = np.isnan(parsed) & (np.asarray(values, dtype=object) != "")
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(f"{str(path)!r}, line {row + first_line}: {column} is {values[row]!r}, not a number")
    return np.asarray(parsed)


def image_files(folders: Iterable[Path], names: Any) -> ImageFiles:
    """Images below the first folder that has one of the first of them, and nowhere else."""
    probed = list(folders)
    for row, name in enumerate(names):
        path = PurePosixPath(str(name).replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts:
            raise InputError(f"the image {name!r} of row {row} is not below its data set's folder: it is not read")
    for folder in probed:
        found = ImageFiles(folder, names, folder)
        if any((folder / name).is_file() for name in found.names[:PROBED]):
            return found
    raise InputError(
        f"there is no image {names[0]!r} in {', '.join(repr(str(folder)) for folder in probed)}: the download is not "
        "whole"
    )


def after(names: Any, folder: str, path: Path, first_line: int = 2) -> list[str]:
    """The part of each file name that follows ``folder/``, for tables that were written on another machine."""
    found = []
    for row, name in enumerate(names):
        _, separator, rest = f"/{name}".replace("\\", "/").partition(f"/{folder}/")
        if not separator:
            raise InputError(
                f"{str(path)!r}, line {row + first_line}: the file {name!r} is not below a {folder!r} folder"
            )
        found.append(rest)
    return found


AHEAD = 256
"""Files that are being read at a time."""


def broken_samples(data: GroupedDataset, progress: Callable[[int], None] = lambda _: None) -> Iterator[str]:
    """A sentence for every image that is missing or cannot be decoded, in the order of the rows."""
    if not isinstance(data.samples, ImageFiles):
        return
    rows, problem = iter(range(len(data))), partial(_problem, data.samples)
    with ThreadPoolExecutor() as pool:
        while block := list(islice(rows, AHEAD)):
            yield from (sentence for sentence in pool.map(problem, block) if sentence)
            progress(len(block))


def _problem(samples: ImageFiles, row: int) -> str:
    try:
        path = samples.path(row)
    except InputError as error:  # it leads out of the data set's folder
        return str(error)
    try:
        check_image(path)
    except BrokenImageError as error:
        return str(error)
    return ""
