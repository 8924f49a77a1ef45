"""Groups: combinations of attribute values, as values, codes, flat indices and one-hot rows."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from compshift._checks import check_codes, check_count, check_list
from compshift._errors import InputError, an, listing, rough, shown
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.columns import Column, exact_array, plain_value, read_columns, without_arrow

if TYPE_CHECKING:
    import pandas as pd

MAX_FLAT_INDEX = 2**63 - 1

MAX_VALUES = 1 << 24
"""More values than this, of all attributes together, are not made from their number alone."""


@dataclass(frozen=True)
class GroupSpace:
    """The attributes and the values each can take; a group is one value of each.

    A *code* is a group as m integers, the positions of its values. The flat index numbers all groups with the last
    attribute moving fastest. The one-hot row σ(z) has ``width`` entries, m of them 1.

    ``from_table`` finds names and values in data, ``from_cardinalities`` numbers them.

    Parameters
    ----------
    names : tuple of str
        The attributes.
    values : tuple of tuples
        Of each attribute, its values: all text or all numbers.

    Examples
    --------
    >>> space = GroupSpace.from_table([("land", 0), ("water", 1), ("water", 0)], names=["place", "bird"])
    >>> space.values
    (('land', 'water'), (0, 1))
    >>> space.encode([("water", 1)])
    array([[1, 1]])
    >>> space.one_hot([[1, 1]])
    array([[0., 1., 0., 1.]])
    """

    names: tuple[str, ...]
    values: tuple[tuple[Hashable, ...], ...]

    def __post_init__(self) -> None:
        names = check_list(self.names, "names", "names, one for each attribute")
        object.__setattr__(self, "names", tuple(str(name) for name in names))
        object.__setattr__(self, "values", tuple(check_list(self.values, "values", "lists, one for each attribute")))
        if not self.names:
            raise InputError("a group space needs at least one attribute")
        if len(self.names) != len(self.values):
            raise InputError(f"{len(self.names)} names for {len(self.values)} attributes: pass one name for each")
        if len(set(self.names)) < len(self.names):
            raise InputError(f"attribute names repeat ({listing(self.names)}): give each attribute its own name")
        values = tuple(_checked_values(name, given) for name, given in zip(self.names, self.values, strict=True))
        object.__setattr__(self, "values", values)

    @classmethod
    def from_table(cls, table: Any, names: Sequence[str] | None = None) -> GroupSpace:
        """The attributes and values that occur in a DataFrame, Series, mapping, array or nested list."""
        return cls._from_columns(read_columns(table, names))

    @classmethod
    def _from_columns(cls, columns: Sequence[Column]) -> GroupSpace:
        """The space of columns that were read before."""
        return cls(tuple(column.name for column in columns), tuple(column.values for column in columns))

    @classmethod
    def from_cardinalities(cls, cardinalities: Sequence[int], names: Sequence[str] | None = None) -> GroupSpace:
        """Attributes whose values are 0, 1, … up to each cardinality."""
        listed = check_list(cardinalities, "cardinalities", "whole numbers, one for each attribute")
        sizes = [check_count(size, "a cardinality") for size in listed]
        if sum(sizes) > MAX_VALUES:
            raise InputError(
                f"cardinalities add up to {rough(sum(sizes))}, too many values to hold: pass at most {MAX_VALUES:,} in "
                "all, for example by grouping values"
            )
        labels = [f"z{number}" for number in range(1, len(sizes) + 1)] if names is None else names
        return cls(
            tuple(check_list(labels, "names", "names, one for each attribute")),
            tuple(tuple(range(size)) for size in sizes),
        )

    @cached_property
    def cardinalities(self) -> tuple[int, ...]:
        """Number of values of each attribute."""
        return tuple(len(values) for values in self.values)

    @property
    def n_groups(self) -> int:
        """Number of combinations, seen or not."""
        return math.prod(self.cardinalities)

    @property
    def width(self) -> int:
        """Length D of a one-hot row, the number of values of all attributes together."""
        return sum(self.cardinalities)

    @cached_property
    def offsets(self) -> IntArray:
        """Where each attribute's block begins in a one-hot row, (m,)."""
        return np.concatenate([[0], np.cumsum(self.cardinalities)[:-1]]).astype(np.int64)

    @cached_property
    def _strides(self) -> IntArray:
        """How far the flat index moves with each attribute's code, (m,)."""
        return np.concatenate([np.cumprod(self.cardinalities[:0:-1])[::-1], [1]]).astype(np.int64)

    @cached_property
    def _positions(self) -> tuple[dict[Hashable, int], ...]:
        return tuple({value: position for position, value in enumerate(values)} for values in self.values)

    def encode(self, table: Any) -> IntArray:
        """Codes (n, m) of a table's rows. A DataFrame or mapping is read by name, anything else by position."""
        return self._encode_columns(self._columns_of(table))

    def _columns_of(self, table: Any) -> list[Column]:
        """The attributes' columns of a table, in their order and under their names; values may be unknown ones."""
        table = without_arrow(table)
        keys = table if isinstance(table, Mapping) else getattr(table, "columns", None)
        if keys is not None:
            found = {str(key): key for key in keys}
            absent = [name for name in self.names if name not in found]
            if absent:
                raise InputError(f"the table has no column {listing(absent)}: its columns are {listing(found)}")
            table = {name: table[found[name]] for name in self.names}
        columns = read_columns(table)
        if len(columns) == len(self.names):
            columns = [column._replace(name=name) for name, column in zip(self.names, columns, strict=True)]
        return columns

    def _encode_columns(self, columns: Sequence[Column]) -> IntArray:
        """Codes (n, m) of columns that were read before, in the order of the attributes."""
        codes = [np.zeros(0, dtype=np.int64)] * len(self.names)
        for position, column in zip(self._match(columns), columns, strict=True):
            codes[position] = self._encode(position, column)
        return np.stack(codes, axis=1)

    def _encode_keys(self, keys: Iterable[Any], name: str) -> IntArray:
        """Codes (q, m) of a mapping's keys: tuples of values, or with one attribute the values themselves."""
        rows = [key if isinstance(key, tuple) else (key,) for key in keys]
        if not rows:
            raise InputError(f"{name} is an empty mapping: list at least one group")
        for row in rows:
            if len(row) != len(self.names):
                raise InputError(f"{name} has the key {row!r}: each must be one value of each attribute {self.names}")
        return self.encode({label: [row[column] for row in rows] for column, label in enumerate(self.names)})

    def _match(self, columns: Sequence[Column]) -> list[int]:
        """Which attribute each column holds: by name if the caller's names agree, else by position.

        Names that agree only in part, and not in their order, are refused: they would be mixed up in silence. A name
        that is ours, for want of another, says nothing about where a column belongs.
        """
        names = [column.name for column in columns]
        if len(names) != len(self.names):
            raise InputError(
                f"there are {len(names)} columns ({listing(names)}) for {len(self.names)} attributes "
                f"({listing(self.names)}): pass one column for each"
            )
        ours_agree = all(column.named or column.name == own for column, own in zip(columns, self.names, strict=True))
        if set(names) == set(self.names) and ours_agree:
            return [self.names.index(name) for name in names]
        for position, column in enumerate(columns):
            if column.named and column.name in self.names and self.names[position] != column.name:
                raise InputError(
                    f"the columns {listing(names)} and the attributes {listing(self.names)} agree only in part: name "
                    "every column, or pass them in the order of the attributes"
                )
        return list(range(len(names)))

    def _encode(self, position: int, column: Column) -> IntArray:
        known = self._positions[position]
        for order, value in enumerate(column.values):
            if value not in known:
                row = int(np.argmax(column.codes == order))
                raise InputError(
                    f"attribute {self.names[position]!r} has the unknown value {shown(value)} (row {row}): "
                    f"known values are {listing(self.values[position])}"
                )
        lookup = np.array([known[value] for value in column.values], dtype=np.int64)
        return lookup[column.codes] if len(lookup) else column.codes

    def decode(self, codes: Any) -> np.ndarray[Any, Any]:
        """Values (q, m) of the groups, as one array: of the attributes' type where they share one, else of objects."""
        codes = check_codes(codes, self.cardinalities)
        columns = [np.array(values)[codes[:, position]] for position, values in enumerate(self.values)]
        if len({column.dtype.kind for column in columns}) == 1:
            return np.stack(columns, axis=1)
        return np.stack([column.astype(object) for column in columns], axis=1)

    def frame(self, codes: Any, **further: Any) -> pd.DataFrame:
        """Values of the groups, one column per attribute, and further columns.

        An attribute with the name of a further column appears as ``name (attribute)``.
        """
        import pandas as pd

        codes = check_codes(codes, self.cardinalities)
        names = [f"{name} (attribute)" if name in further else name for name in self.names]
        columns = zip(names, self.values, codes.T, strict=True)
        return pd.DataFrame({name: np.array(values)[column] for name, values, column in columns} | further)

    def index(self, codes: Any) -> IntArray:
        """Flat index (q,) of each group."""
        self._check_flat()
        codes = check_codes(codes, self.cardinalities)
        return np.asarray(codes @ self._strides, dtype=np.int64)

    def codes(self, index: Any) -> IntArray:
        """Codes (q, m) of flat indices."""
        self._check_flat()
        flat = np.atleast_1d(np.asarray(index))
        if flat.dtype.kind not in "iu" or flat.ndim != 1:
            raise InputError("index must be a whole number or a list of them")
        if flat.size and (flat.min() < 0 or flat.max() >= self.n_groups):
            raise InputError(f"index has {int(flat.min())} to {int(flat.max())}: it runs from 0 to {self.n_groups - 1}")
        return np.asarray(flat.astype(np.int64)[:, None] // self._strides % np.asarray(self.cardinalities))

    def distinct(self, codes: Any) -> tuple[IntArray, IntArray]:
        """The different groups among the rows, (k, m) in order of their codes, and each row's position there, (n,)."""
        codes = check_codes(codes, self.cardinalities)
        if self.n_groups > MAX_FLAT_INDEX:
            groups, position = np.unique(codes, axis=0, return_inverse=True)
            return groups, position.reshape(-1)
        flat, position = np.unique(self.index(codes), return_inverse=True)
        return self.codes(flat), position

    def locate(self, codes: Any, among: Any) -> IntArray:
        """Position of each group in ``among`` (g, m), a list of different groups; −1 where it is not listed. (q,)"""
        codes = check_codes(codes, self.cardinalities)
        among = check_codes(among, self.cardinalities, "among")
        distinct, identity = self.distinct(np.concatenate([among, codes]))
        position = np.full(len(distinct), -1, dtype=np.int64)
        position[identity[: len(among)]] = np.arange(len(among))
        return position[identity[len(among) :]]

    def one_hot(self, codes: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
        """One-hot rows σ(z), (q, D)."""
        codes = check_codes(codes, self.cardinalities)
        rows = np.zeros((len(codes), self.width))
        np.put_along_axis(rows, codes + self.offsets, 1.0, axis=1)
        return rows

    def _one_code(self, code: Any) -> IntArray:
        """A single code (m,)."""
        codes = check_codes(code, self.cardinalities, "code")
        if len(codes) != 1:
            raise InputError(f"code has {len(codes)} rows: pass the {len(self.names)} integers of one group")
        return np.asarray(codes[0])

    def frequencies(self, codes: IntArray) -> FloatArray:
        """Share of each group among rows with these codes (n, m), in the shape of the cardinalities."""
        flat = np.bincount(self.index(codes), minlength=self.n_groups)
        return np.asarray(flat.reshape(self.cardinalities) / len(codes))

    def label(self, code: Any) -> str:
        """One group as ``(waterbird, land)``, for people."""
        row = self._one_code(code)
        return "(" + ", ".join(str(values[position]) for values, position in zip(self.values, row, strict=True)) + ")"

    def _check_flat(self) -> None:
        if self.n_groups > MAX_FLAT_INDEX:
            raise InputError(f"there are {rough(self.n_groups)} groups, too many to number: work with codes instead")


def check_space(space: Any) -> GroupSpace:
    """Refuse anything but a group space."""
    if not isinstance(space, GroupSpace):
        raise InputError(f"space is {an(type(space).__name__)}: pass a compshift.GroupSpace")
    return space


def _checked_values(name: str, given: Any) -> tuple[Hashable, ...]:
    """An attribute's values as plain scalars of one type, all different."""
    if isinstance(given, str) or not hasattr(given, "__iter__"):
        raise InputError(f"attribute {name!r} has the values {given!r}: pass a list or tuple of them")
    values = tuple(plain_value(value) for value in given)
    if not values:
        raise InputError(f"attribute {name!r} has no values: every attribute needs at least one")
    kinds = {str if isinstance(value, str) else float if isinstance(value, int | float) else None for value in values}
    if len(kinds) > 1 or None in kinds:
        raise InputError(f"attribute {name!r} has the values {listing(values)}: they must be all text or all numbers")
    if len(set(values)) < len(values) or any(value != value for value in values):
        raise InputError(f"attribute {name!r} lists a value twice, or a missing one ({listing(values)})")
    exact_array(name, values)
    return values
