"""Tables of attribute values, whatever holds them, as named columns."""

import itertools
import sys
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from compshift._checks import as_array, check_list, masked_where
from compshift._errors import InputError, listing, shown
from compshift.core.arrays import IntArray

FIRST_BEYOND_INTEGERS = 2.0**63
"""What 64 bits do not hold."""


class Column(NamedTuple):
    """One attribute of n rows: its distinct values in order, and the position of each row's value among them."""

    name: str
    values: tuple[Hashable, ...]
    codes: IntArray  # (n,) −1 where the value is missing, if that was allowed
    named: bool  # whether the name is the caller's, not ours


def read_columns(
    table: Any,
    names: Sequence[str] | None = None,
    default: str = "z",
    taken: Collection[str] = (),
    *,
    missing: bool = False,
) -> list[Column]:
    """Columns of a DataFrame, Series, mapping, array or nested list.

    Names come from ``names``, else from the table, else they are ``default`` (one column) or ``default`` with a
    number, avoiding those that are ``taken``. Values are sorted, except those of a pandas categorical, which keep the
    order of their categories; a category that no row has is left out. Missing values (None, NaN, NA, masked) are
    refused, unless ``missing``.
    """
    found = _split(table)
    if not found:
        raise InputError("the table has no columns: pass at least one")
    own = [name for name, _ in found]
    if names is not None:
        own = [str(name) for name in check_list(names, "names", "names, one for each column")]
    if len(own) != len(found):
        raise InputError(f"{len(own)} names for {len(found)} columns: pass one name per column")
    labels = _default_names(own, default, taken)
    if len(set(labels)) < len(labels):
        raise InputError(f"attribute names repeat ({listing(labels)}): give each column its own name")
    columns = [
        _column(label, values, named=name is not None, missing=missing)
        for label, name, (_, values) in zip(labels, own, found, strict=True)
    ]
    for column in columns:
        if len(column.codes) != len(columns[0].codes):
            raise InputError(
                f"attribute {column.name!r} has {len(column.codes)} rows but {columns[0].name!r} has "
                f"{len(columns[0].codes)}: pass columns of equal length"
            )
    return columns


def _default_names(own: Sequence[str | None], default: str, taken: Collection[str]) -> list[str]:
    """The names that there are, and new ones where there are none."""
    used = {name for name in own if name is not None} | set(taken)
    fresh = (name for name in itertools.chain([default] if len(own) == 1 else [],
                                              (f"{default}{number}" for number in itertools.count(1)))
             if name not in used)  # fmt: skip
    return [next(fresh) if name is None else name for name in own]


def _split(table: Any) -> list[tuple[str | None, Any]]:
    """(name or None, values) of every column of the table."""
    if hasattr(table, "columns") and hasattr(table, "iloc"):  # a DataFrame
        return [(str(name), table.iloc[:, position]) for position, name in enumerate(table.columns)]
    table = without_arrow(table)
    if hasattr(table, "get_columns"):  # a Polars DataFrame
        columns = table.get_columns()
        return [
            (str(column.name), column.to_list() if column.null_count() else column.to_numpy()) for column in columns
        ]
    if hasattr(table, "iloc"):  # a Series
        return [(None if table.name is None else str(table.name), table)]
    if isinstance(table, Mapping):
        return [(str(name), values) for name, values in table.items()]
    if hasattr(table, "categories"):  # a pandas Categorical
        return [(None, table)]
    if isinstance(table, str):
        raise InputError(f"a table of attribute values is needed, not the text {table!r}")
    array = table if isinstance(table, np.ndarray) else _from_sequence(table)
    if array.ndim not in (1, 2):
        raise InputError(
            f"a table of attribute values must have 1 or 2 dimensions, not {array.ndim}: pass one row per sample"
        )
    if array.ndim == 1:
        return [(None, array)]
    return [(None, array[:, position]) for position in range(array.shape[1])]


def is_arrow(table: Any) -> bool:
    """Whether it is a table of Arrow, which need not be imported to find out."""
    return hasattr(table, "column_names") and hasattr(table, "itercolumns")


def without_arrow(table: Any) -> Any:
    """A table of Arrow as a mapping from names to columns, anything else as it is."""
    if not is_arrow(table):
        return table
    names = list(table.column_names)
    if len(set(names)) < len(names):
        raise InputError(f"the table has columns of the same name ({listing(names)}): rename all but one")
    return {name: column.to_pandas() for name, column in zip(names, table.itercolumns(), strict=True)}


def _from_sequence(table: Any) -> Any:
    """Nested sequences as an array, without turning the 1 of ``("a", 1)`` into text."""
    if not isinstance(table, list | tuple):
        return as_array(table, "a table of attribute values")
    array = np.array(table, dtype=object)
    if array.ndim == 1 and any(isinstance(row, list | tuple) for row in array):
        raise InputError("the rows of the table differ in length: pass the same number of values in every row")
    return array


def _column(name: str, values: Any, *, named: bool, missing: bool) -> Column:
    """Distinct values and codes of one column."""
    array = _as_array(values)
    if array.ndim != 1:
        raise InputError(f"attribute {name!r} holds {array.ndim}-dimensional values: pass one value per row")
    absent = missing_values(array)
    codes = np.full(len(array), -1, dtype=np.int64)
    if absent.any() and not missing:
        raise _missing(name, absent)
    if absent.any() and absent.all():
        return Column(name, (), codes, named)
    known = array[~absent]
    if known.dtype == object:
        known = _infer(name, known)
    if absent.any() and known.dtype.kind == "f":
        known = _whole(known)
    categories = getattr(getattr(values, "cat", values), "categories", None)
    distinct, codes[~absent] = _distinct(name, known, categories)
    return Column(name, distinct, codes, named)


def _as_array(values: Any) -> Any:
    """A column as an array, of objects where NumPy or pandas would change a value to make all of them alike."""
    categorical = getattr(values, "cat", values)
    if hasattr(categorical, "categories"):
        return np.array([*categorical.categories, None], dtype=object)[np.asarray(categorical.codes)]
    if isinstance(values, list | tuple):
        return np.array(values, dtype=object)
    array = as_array(values, "a table of attribute values")
    if array.dtype.kind == "T":  # NumPy's text of variable length
        return array.astype(object)
    hidden = masked_where(values)
    if hidden is not None:
        array = array.astype(object)
        array[hidden] = None
    return array


def missing_values(array: Any) -> Any:
    """Which values are missing, (n,)."""
    if array.dtype == object:
        return np.fromiter((is_missing(value) for value in array), dtype=bool, count=len(array))
    return np.isnan(array) if array.dtype.kind == "f" else np.zeros(len(array), dtype=bool)


def _whole(numbers: Any) -> Any:
    """Whole numbers, which NaN among them had made floats, as integers; others as they are."""
    held = float(np.abs(numbers).max()) < FIRST_BEYOND_INTEGERS
    return numbers.astype(np.int64) if held and (numbers == np.floor(numbers)).all() else numbers


def _distinct(name: str, array: Any, categories: Any) -> tuple[tuple[Hashable, ...], IntArray]:
    """The different values of an array without missing ones, in order, and the position of each row's among them."""
    if array.dtype.kind == "f" and np.isinf(array).any():
        raise InputError(f"attribute {name!r} has an infinite value (inf) at row {int(np.argmax(np.isinf(array)))}")
    if array.dtype.kind not in "biufU":
        raise InputError(f"attribute {name!r} has type {array.dtype}: convert it to text or whole numbers")
    distinct, codes = np.unique(array, return_inverse=True)
    plain, codes = [plain_value(value) for value in distinct], codes.astype(np.int64).reshape(-1)
    if categories is None:
        return tuple(plain), codes
    rank = {plain_value(category): position for position, category in enumerate(categories)}
    order = np.argsort([rank[value] for value in plain])
    return tuple(plain[position] for position in order), np.argsort(order)[codes]


def _infer(name: str, array: Any) -> Any:
    """An object column as text, numbers or booleans; mixed values are refused."""
    kinds = {"text" if isinstance(value, str) else "number" if np.isscalar(value) else "other" for value in array}
    if kinds - {"text", "number"}:
        odd = next(value for value in array if not np.isscalar(value))
        raise InputError(
            f"attribute {name!r} holds {odd!r}: values must be text, numbers or booleans; convert it, for "
            "example to text"
        )
    if len(kinds) > 1:
        raise InputError(f"attribute {name!r} mixes text and numbers: convert all of its values to one type")
    return exact_array(name, array.tolist())


def exact_array(name: str, values: Sequence[Any]) -> Any:
    """Values of an attribute as one array, refused where it would hold another value, perhaps that of another row."""
    array = np.array(values)
    for value, held in zip(values, array.tolist(), strict=True):
        if array.dtype.kind == "U" and value != held:
            raise InputError(
                f"attribute {name!r} has the value {shown(value)}, which ends in NUL, a character that arrays of text "
                "drop: remove it"
            )
        if array.dtype.kind in "biuf" and value != held:
            raise InputError(
                f"attribute {name!r} has the value {shown(value)}, which an array of all its values holds as "
                f"{held!r}: convert them to text"
            )
    return array


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, NaT, pandas' NA or NumPy's masked."""
    pandas = sys.modules.get("pandas")
    if value is None or value is np.ma.masked or (pandas is not None and (value is pandas.NA or value is pandas.NaT)):
        return True
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def _missing(name: str, missing: Any) -> InputError:
    """The error for a column with missing values."""
    count = int(np.count_nonzero(missing))
    return InputError(
        f"attribute {name!r} has {count} missing (NaN) value{'s' * (count > 1)}, the first at row "
        f"{int(np.argmax(missing))}: remove those rows or give the missing value a name of its own"
    )


def hardly_repeats(n_values: int, n_rows: float) -> bool:
    """Whether so few rows share a value that it looks continuous, or like an identifier."""
    return n_values > max(10, n_rows / 2)


def plain_value(value: Any) -> Hashable:
    """A NumPy scalar as the Python scalar it stands for."""
    plain: Hashable = value.item() if isinstance(value, np.generic) else value
    return plain
