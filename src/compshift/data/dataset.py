"""A data set whose rows belong to groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from compshift._checks import as_array, check_codes, check_list, check_same_rows
from compshift._errors import InputError, an, check_name, listing
from compshift.core.arrays import IntArray
from compshift.core.groups import GroupSpace, check_space
from compshift.data.samples import KINDS, Rows, Samples

if TYPE_CHECKING:
    import pandas as pd

SPLITS = ("train", "val", "test")
"""Names of the split codes 0, 1 and 2."""


@dataclass(frozen=True, eq=False)
class GroupedDataset:
    """Samples with the attributes of every row, and the split that a row belongs to.

    Parameters
    ----------
    samples : array (n, p), ImageFiles, ImageArrays, Texts or Tokens
        Features, images, texts or token ids.
    space : GroupSpace
        The attributes and their values.
    codes : array (n, m)
        The group of each row.
    split : array (n,), optional
        0, 1, 2, or "train", "val", "test".
    targets : names, optional
        The attributes that are predicted; the first one if none is named.
    origin : array (n,), optional
        Rows of equal origin show the same thing: a comment that mentions two identities and so has two rows, or one
        scan on two backgrounds.
    source : str, optional
        Where the rows were found.

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
                f"X is {an(type(self.samples).__name__)} of shape {getattr(self.samples, 'shape', '?')}: pass a "
                "matrix, one row of features per sample"
            )
        codes = check_codes(self.codes, check_space(self.space).cardinalities, "Z")
        object.__setattr__(self, "codes", codes)
        check_same_rows(len(self), self.codes, "Z")
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
        """``"features"``, ``"images"`` or ``"text"``, as the samples are."""
        return KINDS.get(type(self.samples), "features")

    @property
    def X(self) -> Any:  # noqa: N802 - a matrix, as in scikit-learn
        """The features, (n, p)."""
        if self.kind != "features":
            raise InputError(
                f"the data set holds {self.kind}, not features: compute them first, for example with "
                "`compshift features`"
            )
        return self.samples

    @property
    def attributes(self) -> tuple[str, ...]:
        """The attributes that are not predicted."""
        return tuple(name for name in self.space.names if name not in self.targets)

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits that have rows."""
        return split_names(self.split)

    def part(self, name: str) -> GroupedDataset:
        """The rows of one split; ``"all"``, or a set without splits, gives every row."""
        return self.rows(split_rows(self.split, name))

    def rows(self, chosen: Rows) -> GroupedDataset:
        """The chosen rows, by mask or by number."""
        split = None if self.split is None else self.split[chosen]
        origin = None if self.origin is None else self.origin[chosen]
        return replace(self, samples=self.samples[chosen], codes=self.codes[chosen], split=split, origin=origin)

    def columns(self, names: Sequence[str]) -> pd.DataFrame:
        """Values (n, len(names)) of some attributes."""
        names = check_list(names, "names", "names of attributes")
        self._check_names(names)
        return self.space.frame(self.codes)[names]

    def class_first(self) -> GroupedDataset:
        """The data set with its one target before the other attributes, as training takes it."""
        if len(self.targets) != 1:
            raise InputError(
                f"the targets are {', '.join(self.targets)}: training predicts one attribute; name one, the others are "
                "attributes all the same"
            )
        names, values = self.space.names, self.space.values
        order = sorted(range(len(names)), key=lambda position: names[position] != self.targets[0])
        space = GroupSpace(tuple(names[position] for position in order), tuple(values[position] for position in order))
        return replace(self, space=space, codes=self.codes[:, order])

    def _check_names(self, names: Sequence[str]) -> None:
        for name in names:
            check_name("attribute", name, self.space.names)


def check_dataset(data: Any) -> GroupedDataset:
    """Refuse anything but a data set."""
    if not isinstance(data, GroupedDataset):
        raise InputError(
            f"the data set is {an(type(data).__name__)}: pass a compshift.data.GroupedDataset, for example from "
            "compshift.data.load_table"
        )
    return data


def check_split(split: Any, n_rows: int) -> IntArray:
    """Split codes (n,), from 0, 1, 2 or the names of the splits."""
    try:
        array = as_array(split, "split")
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError("split has rows of different lengths: pass one split per row") from None
    if array.ndim != 1:
        raise InputError(f"split has {array.ndim} dimensions: pass one split per row")
    check_same_rows(n_rows, array, "split")
    if array.dtype == bool:
        raise InputError(f"split holds True and False: use 0, 1, 2 or {listing(SPLITS)}")
    known: dict[Any, int] = {name: code for code, name in enumerate(SPLITS)}
    known |= {code: code for code in range(3)} | {str(code): code for code in range(3)}
    values, position = np.unique(
        np.array([str(value) for value in array]) if array.dtype == object else array, return_inverse=True
    )
    odd = [value for value in values.tolist() if value not in known]
    if odd:
        raise InputError(f"the split {odd[0]!r} is not known: use 0, 1, 2 or {listing(SPLITS)}")
    return np.array([known[value] for value in values.tolist()], dtype=np.int64)[position]


def split_names(split: IntArray | None) -> tuple[str, ...]:
    """Names of the splits that occur."""
    return () if split is None else tuple(SPLITS[code] for code in np.unique(split))


def split_rows(split: IntArray | None, name: str) -> Rows:
    """Which rows one split has; all of them for ``"all"`` or where there are no splits."""
    check_name("split", name, (*SPLITS, "all"))
    if name == "all" or split is None:
        return slice(None)
    chosen = split == SPLITS.index(name)
    if not chosen.any():
        raise InputError(f"there are no {name} rows: the splits that occur are {listing(split_names(split))}")
    return np.asarray(chosen)
