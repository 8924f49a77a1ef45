"""Data sets whose samples belong to groups.

A ``GroupedDataset`` contains samples, the attributes of every row and, optionally, splits. Samples are a matrix of
features (n, p), or images, texts or token ids (``ImageFiles``, ``ImageArrays``, ``Texts``, ``Tokens``). Indexing any of
them with a mask, row numbers or a slice returns those rows as an object of the same class.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compshift._checks import check_codes, check_list, check_same_rows
from compshift._errors import InputError, an, check_name, listing, shown
from compshift._files import check_inside
from compshift.core.arrays import IntArray
from compshift.core.columns import Column, is_missing
from compshift.core.groups import GroupSpace, check_space
from compshift.data.splits import Rows, check_split, split_names, split_rows

if TYPE_CHECKING:
    import pandas as pd

PROBED_IMAGES = 100
"""Number of images that are looked for in a folder; if none of them exists, it is taken to be the wrong folder."""

DECIMAL = re.compile(r"-?(0|[1-9]\d*)\.\d+")
"""Matches a decimal number with digits on both sides of the point."""


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Images on disk, as file names below the folder ``root``.

    If ``within`` is given, a name or symbolic link that leads out of that folder raises an InputError.
    """

    root: Path
    names: np.ndarray[Any, Any]  # (n,) text, with / between folders; may be absolute
    within: Path | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", _text_array(self.names, "path"))
        nul = np.flatnonzero(["\0" in name for name in self.names])
        if len(nul):
            raise InputError(f"the path of row {nul[0]} contains a NUL character, which paths cannot have: remove it")

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, rows: Rows) -> ImageFiles:
        return replace(self, names=self.names[rows])

    def path(self, row: int) -> Path:
        """Return the path of the image of one row."""
        path = self.root / str(self.names[row])
        return path if self.within is None else check_inside(path, self.within)


@dataclass(frozen=True, eq=False)
class ImageArrays:
    """Images in memory, as 8-bit RGB."""

    pixels: np.ndarray[Any, Any]  # (n, height, width, 3) uint8

    def __post_init__(self) -> None:
        if self.pixels.ndim != 4 or self.pixels.shape[3] != 3 or self.pixels.dtype != np.uint8:
            raise InputError(
                f"pixels has type {self.pixels.dtype} and shape {self.pixels.shape}: pass uint8 RGB images "
                "of shape (n, height, width, 3)"
            )

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, rows: Rows) -> ImageArrays:
        return replace(self, pixels=self.pixels[rows])


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts, or pairs of texts, for example premise and hypothesis."""

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
    """Tokenised texts, as ids of one vocabulary."""

    ids: np.ndarray[Any, Any]  # (n, length) int32
    mask: np.ndarray[Any, Any]  # (n, length) 1 for a token, 0 for padding
    segments: np.ndarray[Any, Any]  # (n, length) 0 for the first text of a pair, 1 for the second
    vocabulary: str  # name of the tokeniser

    def __post_init__(self) -> None:
        if self.ids.ndim != 2 or not self.ids.shape == self.mask.shape == self.segments.shape:
            raise InputError(
                f"ids, mask and segments have shapes {self.ids.shape}, {self.mask.shape} and {self.segments.shape}: "
                "pass three matrices of the same shape"
            )

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: Rows) -> Tokens:
        return replace(self, ids=self.ids[rows], mask=self.mask[rows], segments=self.segments[rows])


@dataclass(frozen=True, eq=False)
class RawColumns:
    """Columns of a raw table, before they become features."""

    columns: Mapping[str, Any]  # Series or array (n, …) by name; at least one

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, rows: Rows) -> RawColumns:
        return RawColumns(
            {
                name: column.iloc[rows] if hasattr(column, "iloc") else column[rows]
                for name, column in self.columns.items()
            }
        )


KINDS = {ImageFiles: "images", ImageArrays: "images", Texts: "text", Tokens: "text", RawColumns: "columns of a table"}
"""Kind of samples of each class; samples of any other class are a matrix of ``"features"``."""

DEFAULT_BACKBONES = {"features": "linear", "images": "efficientnet-lite0", "text": "minilm"}
"""Default backbone for each kind of samples."""

TFIDF = "tfidf"
"""Name that selects the words of texts as features, in place of a backbone."""

Samples = Any
"""A matrix of features (n, p), or one of the classes in ``KINDS``."""


def has_pairs(samples: Any) -> bool:
    """Return whether samples are pairs of texts, or token ids of pairs."""
    if isinstance(samples, Tokens):
        return bool(samples.segments.any())
    return isinstance(samples, Texts) and samples.second is not None


def _text_array(values: Any, name: str) -> np.ndarray[Any, Any]:
    """Check that all values are text and return them as an array of objects.

    NumPy's own text type has a fixed width, so one long text would enlarge every entry.
    """
    array = np.empty(len(values), dtype=object)
    array[:] = values
    for row, value in enumerate(array):
        if is_missing(value):
            raise InputError(
                f"the {name} of row {row} is missing: every row needs one; remove the rows without a {name}"
            )
        if not isinstance(value, str):
            raise InputError(f"the {name} of row {row} is {value!r}: pass text")
    return array


@dataclass(frozen=True, eq=False)
class GroupedDataset:
    """Samples with the group and, optionally, the split of every row.

    Parameters
    ----------
    samples : array (n, p), ImageFiles, ImageArrays, Texts or Tokens
        Features, images, texts or token ids, one per row.
    space : GroupSpace
        Attributes and their values.
    codes : array (n, m)
        Group of each row, as codes of ``space``.
    split : array (n,), optional
        Split of each row: 0, 1, 2, or "train", "val", "test".
    targets : sequence of str, optional
        Names of the attributes to predict. By default, the first attribute.
    origin : array (n,), optional
        Number of the original sample that each row was made from. A comment that mentions two identities gives two rows
        with the same origin, and so does a scan that is placed on two backgrounds.
    source : str, optional
        Description of where the rows come from, used in messages.

    Raises
    ------
    InputError
        If the arguments differ in their number of rows, a code is out of range, or a split or target is unknown.

    Examples
    --------
    >>> import numpy as np
    >>> space = GroupSpace.from_cardinalities([2, 2], names=["bird", "place"])
    >>> data = GroupedDataset(np.eye(4), space, [[0, 0], [0, 1], [1, 0], [1, 1]], split=[0, 0, 0, 2])
    >>> data
    <GroupedDataset: 4 rows of features, bird × place (2 × 2), splits train, test>
    >>> data.part("test").codes
    array([[1, 1]])
    """

    samples: Samples
    space: GroupSpace
    codes: IntArray
    split: IntArray | None = None
    targets: tuple[str, ...] = ()
    origin: IntArray | None = None
    source: str = ""

    def __post_init__(self) -> None:
        if self.kind == "features" and len(getattr(self.samples, "shape", ())) != 2:
            raise InputError(
                f"samples is {an(type(self.samples).__name__)} of shape {getattr(self.samples, 'shape', '?')}: pass a "
                "matrix with one row of features per sample"
            )
        codes = check_codes(self.codes, check_space(self.space).cardinalities, "codes")
        object.__setattr__(self, "codes", codes)
        check_same_rows(len(self), self.codes, "codes", "samples")
        if self.split is not None:
            object.__setattr__(self, "split", check_split(self.split, len(self)))
        if self.origin is not None:
            check_same_rows(len(self), self.origin, "origin")
        targets = check_list(self.targets, "targets", "names of attributes")
        object.__setattr__(self, "targets", tuple(targets) or self.space.names[:1])
        self._check_names(self.targets)

    def __len__(self) -> int:
        return int(self.samples.shape[0]) if self.kind == "features" else len(self.samples)

    def __repr__(self) -> str:
        shape = " × ".join(map(str, self.space.cardinalities))
        splits = f", splits {', '.join(self.splits)}" if self.splits else ""
        return f"<GroupedDataset: {len(self)} rows of {self.kind}, {' × '.join(self.space.names)} ({shape}){splits}>"

    @property
    def kind(self) -> str:
        """Kind of the samples: ``"features"``, ``"images"``, ``"text"`` or ``"columns of a table"``."""
        return KINDS.get(type(self.samples), "features")

    @property
    def X(self) -> Any:  # noqa: N802 - a matrix, as in scikit-learn
        """Features (n, p); raises an InputError if the samples are images or text."""
        if self.kind != "features":
            raise InputError(
                f"the data set contains {self.kind}, not features: compute features first, for example with "
                "`compshift features`"
            )
        return self.samples

    @property
    def attributes(self) -> tuple[str, ...]:
        """Names of the attributes that are not targets."""
        return tuple(name for name in self.space.names if name not in self.targets)

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits that have rows."""
        return split_names(self.split)

    def part(self, name: str) -> GroupedDataset:
        """Return the rows of one split.

        Parameters
        ----------
        name : {"train", "val", "test", "all"}
            Name of the split. If the data set has no splits, all rows are returned for every name.

        Returns
        -------
        GroupedDataset
            The data set with these rows.

        Raises
        ------
        InputError
            If the name is unknown or the split has no rows.
        """
        return self.rows(split_rows(self.split, name))

    def rows(self, chosen: Rows) -> GroupedDataset:
        """Return the chosen rows.

        Parameters
        ----------
        chosen : array or slice
            A mask (n,), row numbers or a slice.

        Returns
        -------
        GroupedDataset
            The data set with these rows.
        """
        split = None if self.split is None else self.split[chosen]
        origin = None if self.origin is None else self.origin[chosen]
        return replace(self, samples=self.samples[chosen], codes=self.codes[chosen], split=split, origin=origin)

    def columns(self, names: Sequence[str]) -> pd.DataFrame:
        """Return the values of some attributes.

        Parameters
        ----------
        names : sequence of str
            Names of the attributes.

        Returns
        -------
        pandas.DataFrame
            One column per name, one row per sample.
        """
        names = check_list(names, "names", "names of attributes")
        self._check_names(names)
        return self.space.frame(self.codes)[names]

    def class_first(self) -> GroupedDataset:
        """Return the data set with its target as the first attribute, the order that training expects.

        Returns
        -------
        GroupedDataset
            The same rows, with reordered attributes.

        Raises
        ------
        InputError
            If there is more than one target.
        """
        if len(self.targets) != 1:
            raise InputError(
                f"the targets are {', '.join(self.targets)}: training predicts one attribute; name one target, "
                "and the others as attributes"
            )
        names, values = self.space.names, self.space.values
        order = sorted(range(len(names)), key=lambda position: names[position] != self.targets[0])
        space = GroupSpace(tuple(names[position] for position in order), tuple(values[position] for position in order))
        return replace(self, space=space, codes=self.codes[:, order])

    def _check_names(self, names: Sequence[str]) -> None:
        for name in names:
            check_name("attribute", name, self.space.names)


def check_dataset(data: Any) -> GroupedDataset:
    """Check that ``data`` is a GroupedDataset and return it."""
    if not isinstance(data, GroupedDataset):
        raise InputError(
            f"the data set is {an(type(data).__name__)}: pass a compshift.data.GroupedDataset, for example from "
            "compshift.data.load_table"
        )
    return data


def in_space(data: GroupedDataset, space: GroupSpace) -> GroupedDataset:
    """Encode the rows in another space, usually a model's; raise an InputError for a value that the space lacks."""
    columns = []
    for name, known in zip(space.names, space.values, strict=True):
        if name not in data.space.names:
            raise InputError(
                f"the data set has no attribute {name!r} but the model needs it: add it to the attributes "
                f"{listing(data.space.names)}"
            )
        position = data.space.names.index(name)
        used, codes = np.unique(data.codes[:, position], return_inverse=True)
        values = data.space.values[position]
        matched = tuple(as_known(values[code], known) for code in used)
        columns.append(Column(name, matched, codes.reshape(-1), named=True))
    targets = tuple(name for name in data.targets if name in space.names)
    return replace(data, space=space, codes=space._encode_columns(columns), targets=targets)


def as_known(value: Hashable, known: Collection[Hashable]) -> Hashable:
    """Return the one known value that is written like ``value``; ``value`` itself if there are none or several.

    The types of a text file's columns are inferred for each file separately: if the training file contains 1, 2 and 3b,
    these values are text, but in a test file with only 1 and 2 they are integers. So the integer 1 matches a known
    ``"1"`` or ``1.0``; the text ``"01"`` matches neither.
    """
    if value in known:
        return value
    if str(value) in known:
        return str(value)
    alike = [other for other in known if _normal_text(other) == _normal_text(value)]
    return alike[0] if len(alike) == 1 else value


def _normal_text(value: Hashable) -> str:
    """Return a value as text for comparisons: booleans in lower case, decimals without trailing zeros."""
    text = str(value)
    if text.lower() in ("true", "false"):
        return text.lower()
    return text.rstrip("0").rstrip(".") if DECIMAL.fullmatch(text) else text


def prior_of_records(
    columns: Sequence[str], records: Sequence[Mapping[str, Any]], space: GroupSpace, what: str
) -> dict[Any, float]:
    """Return a prior over groups, or over classes, as a mapping from values to probabilities.

    The ``columns``, which are the keys of every record, are all attributes, or the first one alone, and ``prior``.
    ``what`` begins the messages of errors.
    """
    names = [name for name in space.names if name in columns] or list(space.names)
    names = names if names == [space.names[0]] else list(space.names)  # the target alone: a prior over the classes
    absent = [name for name in (*names, "prior") if name not in columns]
    if absent:
        raise InputError(
            f"{what} lacks the column{'s' * (len(absent) > 1)} {listing(absent)}: add "
            f"{'them' if len(absent) > 1 else 'it'} (the columns are {listing(columns)})"
        )
    prior: dict[Any, float] = {}
    for row, record in enumerate(records):
        values = tuple(as_known(record[name], known) for name, known in zip(names, space.values, strict=False))
        key = values[0] if len(values) == 1 else values
        if key in prior:
            raise InputError(f"{what} lists the group {values} twice: keep one row per group")
        try:
            prior[key] = float(record["prior"])
        except (TypeError, ValueError, OverflowError):
            raise InputError(
                f"{what} has {shown(record['prior'])} in row {row}: the column 'prior' must hold numbers"
            ) from None
    return prior
