"""What the rows of a data set can be, beside a matrix of features: images, texts or token ids.

Each kind is indexed by a mask or by row numbers, as an array is, and gives the same kind back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from compshift._checks import check_same_rows
from compshift._errors import InputError
from compshift._files import check_inside
from compshift.core.arrays import BoolArray, IntArray
from compshift.core.columns import is_missing

Rows = BoolArray | IntArray | slice


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Images on disk, as names below a folder.

    If ``within`` is given, nothing outside of that folder is ever looked at, whatever the names or links in it say.
    """

    root: Path
    names: np.ndarray[Any, Any]  # (n,) text, with / between folders; an absolute path stands for itself
    within: Path | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", _text_array(self.names, "path"))
        nul = np.flatnonzero(["\0" in name for name in self.names])
        if len(nul):
            raise InputError(f"the path of row {nul[0]} has the character NUL in it, which no path has")

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, rows: Rows) -> ImageFiles:
        return replace(self, names=self.names[rows])

    def path(self, row: int) -> Path:
        """The file of one row."""
        path = self.root / str(self.names[row])
        return path if self.within is None else check_inside(path, self.within)


@dataclass(frozen=True, eq=False)
class ImageArrays:
    """Images in memory."""

    pixels: np.ndarray[Any, Any]  # (n, height, width, 3) uint8

    def __post_init__(self) -> None:
        if self.pixels.ndim != 4 or self.pixels.shape[3] != 3 or self.pixels.dtype != np.uint8:
            raise InputError(
                f"pixels has type {self.pixels.dtype} and shape {self.pixels.shape}: pass 8-bit colour images, "
                "(n, height, width, 3)"
            )

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, rows: Rows) -> ImageArrays:
        return replace(self, pixels=self.pixels[rows])


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts, or pairs of texts such as premise and hypothesis."""

    first: np.ndarray[Any, Any]  # (n,) text
    second: np.ndarray[Any, Any] | None = None  # (n,) text

    def __post_init__(self) -> None:
        object.__setattr__(self, "first", _text_array(self.first, "text"))
        if self.second is not None:
            object.__setattr__(self, "second", _text_array(self.second, "text"))
            check_same_rows(len(self.first), self.second, "the second text", "the first text")

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, rows: Rows) -> Texts:
        return Texts(self.first[rows], None if self.second is None else self.second[rows])


@dataclass(frozen=True, eq=False)
class Tokens:
    """Texts that were tokenised before, for one particular vocabulary."""

    ids: np.ndarray[Any, Any]  # (n, length) int32
    mask: np.ndarray[Any, Any]  # (n, length) 1 where there is a token
    segments: np.ndarray[Any, Any]  # (n, length) 0 or 1: first or second text
    vocabulary: str  # name of the tokeniser that made them

    def __post_init__(self) -> None:
        if self.ids.ndim != 2 or not self.ids.shape == self.mask.shape == self.segments.shape:
            raise InputError(
                f"ids, mask and segments have shapes {self.ids.shape}, {self.mask.shape} and {self.segments.shape}: "
                "pass three matrices of one shape"
            )

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: Rows) -> Tokens:
        return replace(self, ids=self.ids[rows], mask=self.mask[rows], segments=self.segments[rows])


KINDS = {ImageFiles: "images", ImageArrays: "images", Texts: "text", Tokens: "text"}
"""What each kind of samples is called; anything else is a matrix of features."""

Samples = Any
"""A matrix of features (n, p), or one of the kinds above."""


def _text_array(values: Any, name: str) -> np.ndarray[Any, Any]:
    """Texts as an array of objects: text of fixed width would take as much room as the longest for each."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    for row, value in enumerate(array):
        if is_missing(value):
            raise InputError(f"the {name} of row {row} is missing: every row needs one; leave the others out")
        if not isinstance(value, str):
            raise InputError(f"the {name} of row {row} is {value!r}: text is expected")
    return array
