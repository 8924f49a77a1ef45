"""Groups: combinations of attribute values, as values, integer codes, flat indices and one-hot rows.

The public methods of ``GroupSpace`` check their arguments. The functions before it are for internal use and do not
check theirs: codes must be (n, m) int64 arrays within the cardinalities.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from compshift._checks import check_codes, check_count, check_list
from compshift._errors import InputError, an, listing, rough, shown
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.columns import Column, check_attribute_values, match_columns, named_columns, read_columns

if TYPE_CHECKING:
    import pandas as pd

MAX_FLAT_INDEX = 2**63 - 1
"""Largest number of groups for which a flat index fits into int64."""

MAX_SPACE_VALUES = 1 << 24
"""Largest sum of cardinalities that ``GroupSpace.from_cardinalities`` accepts."""


def flat_index(codes: IntArray, cardinalities: Sequence[int]) -> IntArray:
    """Return the flat index (q,) of codes (q, m), with the last attribute varying fastest."""
    return np.asarray(codes @ _strides(cardinalities), dtype=np.int64)


def codes_of_index(index: IntArray, cardinalities: Sequence[int]) -> IntArray:
    """Return the codes (q, m) of flat indices (q,)."""
    return np.asarray(index[:, None] // _strides(cardinalities) % np.asarray(cardinalities))


def _strides(cardinalities: Sequence[int]) -> IntArray:
    """Return the increment of the flat index when the code of each attribute increases by 1, (m,)."""
    return np.concatenate([np.cumprod(cardinalities[:0:-1])[::-1], [1]]).astype(np.int64)


def distinct_codes(codes: IntArray, cardinalities: Sequence[int]) -> tuple[IntArray, IntArray]:
    """Return the distinct codes (k, m) in ascending order, and the position of each row among them, (n,)."""
    if math.prod(cardinalities) > MAX_FLAT_INDEX:
        groups, position = np.unique(codes, axis=0, return_inverse=True)
        return groups, position.reshape(-1)
    index, position = np.unique(flat_index(codes, cardinalities), return_inverse=True)
    return codes_of_index(index, cardinalities), position


def locate_codes(codes: IntArray, among: IntArray, cardinalities: Sequence[int]) -> IntArray:
    """Return the position (q,) of each code (q, m) in the distinct codes ``among`` (g, m); −1 if absent."""
    distinct, identity = distinct_codes(np.concatenate([among, codes]), cardinalities)
    position = np.full(len(distinct), -1, dtype=np.int64)
    position[identity[: len(among)]] = np.arange(len(among))
    return position[identity[len(among) :]]


def one_hot_rows(columns: IntArray, width: int) -> FloatArray:
    """Return one-hot rows (q, width) with ones at ``columns`` (q, m), the codes plus the offset of each attribute."""
    rows = np.zeros((len(columns), width))
    np.put_along_axis(rows, columns, 1.0, axis=1)
    return rows


@dataclass(frozen=True)
class GroupSpace:
    """The attributes and the values of each; a group is a combination of one value per attribute.

    A *code* is a group as m integers, the positions of its values. The flat index numbers all groups, with the last
    attribute varying fastest. The one-hot row σ(z) has ``width`` entries, m of them 1.

    ``from_table`` takes names and values from data; ``from_cardinalities`` uses integers as values. Methods raise an
    ``InputError`` if codes are not integers within the cardinalities, or if a flat index is out of range or exceeds 64
    bits.

    Parameters
    ----------
    names : tuple of str
        Names of the attributes.
    values : tuple of tuples
        The values of each attribute, all text or all numbers.

    Raises
    ------
    InputError
        If names repeat, or if the values of an attribute are missing or repeated, or mix text and numbers.

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
        names = tuple(str(name) for name in check_list(self.names, "names", "names, one for each attribute"))
        values = check_list(self.values, "values", "lists, one for each attribute")
        if not names:
            raise InputError("names is empty: pass at least one attribute")
        if len(names) != len(values):
            raise InputError(
                f"names has {len(names)} entries but values has {len(values)}: pass one of each per attribute"
            )
        if len(set(names)) < len(names):
            raise InputError(f"attribute names repeat ({listing(names)}): give each attribute its own name")
        checked = tuple(check_attribute_values(name, given) for name, given in zip(names, values, strict=True))
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "values", checked)

    @classmethod
    def from_table(cls, table: Any, names: Sequence[str] | None = None) -> GroupSpace:
        """Return the space of the attributes and values that occur in a table.

        Parameters
        ----------
        table : DataFrame, Series, mapping, array or nested list
            One row per sample, one column per attribute.
        names : list of str, optional
            Names of the attributes; by default those of the table, or ``z1``, ``z2``, ….

        Returns
        -------
        GroupSpace
            The values of each attribute are in ascending order, or in the order of the categories of a pandas
            categorical.

        Raises
        ------
        InputError
            If the table has no columns, has missing values, or mixes text and numbers in a column.
        """
        return cls._from_columns(read_columns(table, names))

    @classmethod
    def _from_columns(cls, columns: Sequence[Column]) -> GroupSpace:
        """Return the space of the attributes and values of columns from ``read_columns``."""
        return cls(tuple(column.name for column in columns), tuple(column.values for column in columns))

    @classmethod
    def from_cardinalities(cls, cardinalities: Sequence[int], names: Sequence[str] | None = None) -> GroupSpace:
        """Return the space of attributes whose values are the integers from 0 to the cardinality minus 1.

        Parameters
        ----------
        cardinalities : list of int
            Number of values of each attribute.
        names : list of str, optional
            Names of the attributes; by default ``z1``, ``z2``, ….

        Returns
        -------
        GroupSpace
            The space with integer values.

        Raises
        ------
        InputError
            If a cardinality is not an integer ≥ 1, or if there are too many values in total.
        """
        listed = check_list(cardinalities, "cardinalities", "integers, one for each attribute")
        sizes = [check_count(size, "a cardinality") for size in listed]
        if sum(sizes) > MAX_SPACE_VALUES:
            raise InputError(
                f"cardinalities add up to {rough(sum(sizes))}, too many values to hold: pass at most "
                f"{MAX_SPACE_VALUES:,} in total, for example by merging values"
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
        """Number of groups: all combinations of values, seen or not."""
        return math.prod(self.cardinalities)

    @property
    def width(self) -> int:
        """Length D of a one-hot row: the total number of attribute values."""
        return sum(self.cardinalities)

    @cached_property
    def offsets(self) -> IntArray:
        """First column of each attribute's block in a one-hot row, (m,)."""
        return np.concatenate([[0], np.cumsum(self.cardinalities)[:-1]]).astype(np.int64)

    @cached_property
    def _positions(self) -> tuple[dict[Hashable, int], ...]:
        """Code of each value, one dictionary per attribute."""
        return tuple({value: position for position, value in enumerate(values)} for values in self.values)

    def encode(self, table: Any) -> IntArray:
        """Return the codes of a table's rows.

        Parameters
        ----------
        table : DataFrame, Series, mapping, array or nested list
            One row per sample. A DataFrame or mapping is read by column name, anything else by position.

        Returns
        -------
        array (n, m)
            Integer codes.

        Raises
        ------
        InputError
            If a column is absent, or if a value is missing or not in ``values``.
        """
        return self._encode_columns(named_columns(table, self.names))

    def _encode_columns(self, columns: Sequence[Column]) -> IntArray:
        """Return the codes (n, m), in the order of the attributes, of columns from ``read_columns``."""
        codes = [np.zeros(0, dtype=np.int64)] * len(self.names)
        for position, column in zip(match_columns(columns, self.names), columns, strict=True):
            codes[position] = self._encode(position, column)
        return np.stack(codes, axis=1)

    def _encode_keys(self, keys: Iterable[Any], name: str) -> IntArray:
        """Return the codes (q, m) of a mapping's keys: tuples of values, or plain values for a single attribute."""
        rows = [key if isinstance(key, tuple) else (key,) for key in keys]
        if not rows:
            raise InputError(f"{name} is an empty mapping: pass at least one group")
        for row in rows:
            if len(row) != len(self.names):
                raise InputError(f"{name} has the key {row!r}: pass one value of each attribute {self.names} per key")
        return self.encode({label: [row[column] for row in rows] for column, label in enumerate(self.names)})

    def _encode(self, position: int, column: Column) -> IntArray:
        """Return the codes (n,) of a column that holds the attribute at ``position``."""
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
        """Return the values of groups.

        Parameters
        ----------
        codes : array (q, m)
            Codes of the groups.

        Returns
        -------
        array (q, m)
            Values, as an object array if the attributes have different types.
        """
        codes = check_codes(codes, self.cardinalities)
        columns = [np.array(values)[codes[:, position]] for position, values in enumerate(self.values)]
        if len({column.dtype.kind for column in columns}) == 1:
            return np.stack(columns, axis=1)
        return np.stack([column.astype(object) for column in columns], axis=1)

    def frame(self, codes: Any, **further: Any) -> pd.DataFrame:
        """Return the values of groups as a DataFrame, with further columns.

        Parameters
        ----------
        codes : array (q, m)
            Codes of the groups.
        **further : array (q,)
            Further columns, by name. An attribute of the same name appears as ``name (attribute)``.

        Returns
        -------
        DataFrame
            One row per group, one column per attribute, then the further columns.
        """
        import pandas as pd

        codes = check_codes(codes, self.cardinalities)
        names = [f"{name} (attribute)" if name in further else name for name in self.names]
        columns = zip(names, self.values, codes.T, strict=True)
        return pd.DataFrame({name: np.array(values)[column] for name, values, column in columns} | further)

    def index(self, codes: Any) -> IntArray:
        """Return the flat index of groups.

        Parameters
        ----------
        codes : array (q, m)
            Codes of the groups.

        Returns
        -------
        array (q,)
            Flat indices, with the last attribute varying fastest.
        """
        self._check_flat()
        return flat_index(check_codes(codes, self.cardinalities), self.cardinalities)

    def codes(self, index: Any) -> IntArray:
        """Return the codes of flat indices.

        Parameters
        ----------
        index : int or array (q,)
            Flat indices.

        Returns
        -------
        array (q, m)
            Codes of the groups.
        """
        self._check_flat()
        try:
            flat = np.atleast_1d(np.asarray(index))
        except (TypeError, ValueError):  # nested lists of different lengths
            raise InputError("index has rows of different lengths: pass an integer or a list of integers") from None
        if flat.dtype.kind not in "iu" or flat.ndim != 1:
            raise InputError(f"index has type {flat.dtype}, shape {flat.shape}: pass an integer or a list of integers")
        if flat.size and (flat.min() < 0 or flat.max() >= self.n_groups):
            raise InputError(
                f"index has values from {int(flat.min())} to {int(flat.max())}, but the flat indices of this space "
                f"run from 0 to {self.n_groups - 1}: pass indices in this range"
            )
        return codes_of_index(flat.astype(np.int64), self.cardinalities)

    def distinct(self, codes: Any) -> tuple[IntArray, IntArray]:
        """Return the distinct groups among samples.

        Parameters
        ----------
        codes : array (n, m)
            Codes, one row per sample.

        Returns
        -------
        groups : array (k, m)
            The distinct groups, in ascending order of their codes.
        position : array (n,)
            Position of each sample's group in ``groups``.
        """
        return distinct_codes(check_codes(codes, self.cardinalities), self.cardinalities)

    def locate(self, codes: Any, among: Any) -> IntArray:
        """Return the positions of groups in a list of groups.

        Parameters
        ----------
        codes : array (q, m)
            Codes of the groups to look for.
        among : array (g, m)
            Codes of the list to search, all distinct.

        Returns
        -------
        array (q,)
            Positions in ``among``; −1 for a group that is not in ``among``.
        """
        codes = check_codes(codes, self.cardinalities)
        return locate_codes(codes, check_codes(among, self.cardinalities, "among"), self.cardinalities)

    def one_hot(self, codes: Any) -> FloatArray:
        """Return the one-hot rows σ(z) of groups.

        Parameters
        ----------
        codes : array (q, m)
            Codes of the groups.

        Returns
        -------
        array (q, D)
            Rows with one 1 in each attribute's block.
        """
        return self._one_hot(check_codes(codes, self.cardinalities))

    def _one_hot(self, codes: IntArray) -> FloatArray:
        """Return the one-hot rows (q, D) of codes without checking them."""
        return one_hot_rows(codes + self.offsets, self.width)

    def _one_code(self, code: Any) -> IntArray:
        """Check that ``code`` is the code of a single group and return it, (m,)."""
        codes = check_codes(code, self.cardinalities, "code")
        if len(codes) != 1:
            raise InputError(f"code has {len(codes)} rows: pass the {len(self.names)} integers of one group")
        return np.asarray(codes[0])

    def frequencies(self, codes: IntArray) -> FloatArray:
        """Return the share of each group among samples.

        Parameters
        ----------
        codes : array (n, m)
            Codes, one row per sample.

        Returns
        -------
        array
            Shares that sum to 1, in the shape of ``cardinalities``.
        """
        flat = np.bincount(self.index(codes), minlength=self.n_groups)
        return np.asarray(flat.reshape(self.cardinalities) / len(codes))

    def label(self, code: Any) -> str:
        """Return one group as readable text, such as ``(waterbird, land)``.

        Parameters
        ----------
        code : array (m,)
            Code of the group.

        Returns
        -------
        str
            The group's values in parentheses.
        """
        row = self._one_code(code)
        return "(" + ", ".join(str(values[position]) for values, position in zip(self.values, row, strict=True)) + ")"

    def _check_flat(self) -> None:
        """Check that the flat index of every group fits into 64 bits."""
        if self.n_groups > MAX_FLAT_INDEX:
            raise InputError(
                f"there are {rough(self.n_groups)} groups, too many to number: use codes instead of flat indices"
            )


def check_space(space: Any) -> GroupSpace:
    """Check that an argument is a group space and return it."""
    if not isinstance(space, GroupSpace):
        raise InputError(f"space is {an(type(space).__name__)}: pass a compshift.GroupSpace")
    return space
