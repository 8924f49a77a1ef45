"""Read tables of attribute values (pandas, Polars, Arrow, arrays, lists, mappings) as named columns of codes."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from compshift._checks import as_array, check_list, check_not_lazy, mask_of
from compshift._errors import InputError, listing, shown
from compshift.core.arrays import IntArray

FIRST_BEYOND_INT64 = 2.0**63
"""Smallest positive float that does not fit into int64."""

MAX_VALUES = 1000
"""Default limit on the number of values of an attribute; an attribute with more is probably an identifier."""


class Column(NamedTuple):
    """One attribute of n rows: its distinct values in order, and the code of each row, a position in ``values``."""

    name: str
    values: tuple[Hashable, ...]
    codes: IntArray  # (n,) −1 where the value is missing (only if missing values are allowed)
    named: bool  # True if the name comes from the caller or the table, False if it is a default


def read_columns(
    table: Any,
    names: Sequence[str] | None = None,
    default: str = "z",
    taken: Collection[str] = (),
    *,
    missing: bool = False,
) -> list[Column]:
    """Return the columns of a DataFrame, Series, mapping, array or nested list.

    Names come from ``names``, or from the table, or are default names: ``default`` for a single column, else
    ``default`` and a number; names in ``taken`` are not used as defaults. Values are sorted; those of a pandas
    categorical keep the order of the categories, without categories that do not occur. Missing values (None, NaN, NA,
    masked) raise an error unless ``missing`` is True.
    """
    found = _split(native_table(table))
    if not found:
        raise InputError("the table has no columns: pass at least one")
    own = [name for name, _ in found]
    if names is not None:
        own = [str(name) for name in check_list(names, "names", "names, one for each column")]
    if len(own) != len(found):
        raise InputError(
            f"names has {len(own)} entries but the table has {len(found)} columns: pass one name per column"
        )
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


def named_columns(table: Any, names: Sequence[str]) -> list[Column]:
    """Return the columns of a table for the attributes ``names``, in that order and with those names.

    A DataFrame or mapping is read by name and may have other columns too; anything else is read by position.
    """
    table = as_mapping(table)
    keys = table if isinstance(table, Mapping) else getattr(table, "columns", None)
    if keys is not None:
        by_name = {str(key): key for key in keys}
        absent = [name for name in names if name not in by_name]
        if absent:
            raise InputError(f"the table has no column {listing(absent)}: its columns are {listing(by_name)}")
        table = {name: table[by_name[name]] for name in names}
    columns = read_columns(table)
    if len(columns) == len(names):
        columns = [column._replace(name=name) for name, column in zip(names, columns, strict=True)]
    return columns


def match_columns(columns: Sequence[Column], attributes: Sequence[str]) -> list[int]:
    """Return the position of each column's attribute: matched by name if all names agree, otherwise by order.

    If only some names agree and one of these columns is not at the position of its attribute, the columns may be in the
    wrong order, which raises an error. Default names are ignored: they do not say which attribute a column holds.
    """
    names = [column.name for column in columns]
    if len(names) != len(attributes):
        raise InputError(
            f"there are {len(names)} columns ({listing(names)}) for {len(attributes)} attributes "
            f"({listing(attributes)}): pass one column for each"
        )
    defaults_agree = all(column.named or column.name == name for column, name in zip(columns, attributes, strict=True))
    if set(names) == set(attributes) and defaults_agree:
        return [attributes.index(name) for name in names]
    for position, column in enumerate(columns):
        if column.named and column.name in attributes and attributes[position] != column.name:
            raise InputError(
                f"the columns {listing(names)} and the attributes {listing(attributes)} agree only in part: use "
                "the names of the attributes for all columns, or pass the columns in the order of the attributes"
            )
    return list(range(len(names)))


def _default_names(own: Sequence[str | None], default: str, taken: Collection[str]) -> list[str]:
    """Return the names, with each None replaced by a default name that is not used yet."""
    used = {name for name in own if name is not None} | set(taken)
    numbered: Iterable[str] = (f"{default}{number}" for number in itertools.count(1))
    if len(own) == 1:
        numbered = itertools.chain([default], numbered)
    fresh = (name for name in numbered if name not in used)
    return [next(fresh) if name is None else name for name in own]


def _split(table: Any) -> list[tuple[str | None, Any]]:
    """Return (name or None, values) of every column of the table."""
    if hasattr(table, "columns") and hasattr(table, "iloc"):  # a pandas DataFrame
        return [(str(name), table.iloc[:, position]) for position, name in enumerate(table.columns)]
    if hasattr(table, "iloc"):  # a pandas Series
        return [(None if table.name is None else str(table.name), table)]
    table = as_mapping(table)
    if isinstance(table, Mapping):
        return [(str(name), values) for name, values in table.items()]
    if hasattr(table, "categories"):  # a pandas Categorical
        return [(None, table)]
    series = _narwhals_series(table)
    if series is not None:
        return [(str(series.name) if series.name else None, table)]
    if isinstance(table, str):
        raise InputError(f"the attribute values are the text {table!r}: pass a table with one row per sample")
    array = table if isinstance(table, np.ndarray) else _from_sequence(table)
    if array.ndim not in (1, 2):
        raise InputError(
            f"the table of attribute values has {array.ndim} dimensions instead of 1 or 2: pass one row per "
            "sample and one column per attribute"
        )
    if array.ndim == 1:
        return [(None, array)]
    return [(None, array[:, position]) for position in range(array.shape[1])]


def native_table(table: Any, name: str = "the table") -> Any:
    """Return the pandas, Polars or Arrow object inside a narwhals one, and anything else unchanged.

    The error for a lazy frame calls it ``name``.
    """
    check_not_lazy(table, name)
    return table.to_native() if _module(table) == "narwhals" else table


def _module(table: Any) -> str:
    """Return the name of the package that defines the type of an object."""
    return type(table).__module__.split(".")[0]


def _is_foreign(table: Any) -> bool:
    """Return whether an object is of Polars or Arrow, without importing them."""
    return _module(table) in ("polars", "pyarrow")


def as_mapping(table: Any) -> Any:
    """Convert a frame of Polars or Arrow to a mapping from names to its columns; return anything else unchanged."""
    table = native_table(table)
    if not _is_foreign(table):
        return table
    names = list(getattr(table, "column_names", None) or getattr(table, "columns", None) or ())
    if not names or not hasattr(table, "select"):
        return table  # a single column
    if len(set(names)) < len(names):
        raise InputError(f"the table has columns of the same name ({listing(names)}): rename all but one")
    return {name: table[name] for name in names}


def as_pandas(table: Any, name: str = "X") -> Any:
    """Convert a frame of Polars or Arrow to a pandas DataFrame; return anything else unchanged."""
    table = native_table(table, name)
    return table.to_pandas() if _is_foreign(table) and hasattr(table, "to_pandas") else table


def frame_like(frame: Any, table: Any) -> Any:
    """Convert a pandas DataFrame of numbers, text and booleans to a frame of the library of ``table``.

    It stays as it is unless ``table`` is a frame of Polars or Arrow.
    """
    table = native_table(table)
    if not _is_foreign(table) or not hasattr(table, "select"):
        return frame
    import narwhals as nw

    columns = {
        name: column.to_numpy() if column.dtype.kind in "biuf" else column.tolist() for name, column in frame.items()
    }
    return nw.from_dict(columns, backend=sys.modules[_module(table)]).to_native()


def _narwhals_series(values: Any) -> Any:
    """Return a column of Polars or Arrow as a narwhals Series, which reads both alike; None for anything else."""
    if not _is_foreign(values):
        return None
    import narwhals as nw

    if _module(values) == "pyarrow":
        if not hasattr(values, "chunks"):  # an Array
            values = sys.modules["pyarrow"].chunked_array([values])
        values = values.unify_dictionaries()
    return nw.from_native(values, series_only=True)


def _from_sequence(table: Any) -> Any:
    """Convert nested sequences to an array of objects, so that the 1 of ``("a", 1)`` does not become text."""
    if not isinstance(table, list | tuple):
        return as_array(table, "a table of attribute values")
    array = np.array(table, dtype=object)
    if array.ndim == 1 and any(isinstance(row, list | tuple) for row in array):
        raise InputError("the rows of the table differ in length: pass the same number of values in every row")
    return array


def _column(name: str, values: Any, *, named: bool, missing: bool) -> Column:
    """Return the distinct values and codes of one column."""
    array, categories = column_values(values)
    if array.ndim != 1:
        raise InputError(f"attribute {name!r} holds {array.ndim}-dimensional values: pass one value per row")
    absent = missing_values(array)
    if absent.any() and not missing:
        count = int(np.count_nonzero(absent))
        raise InputError(
            f"attribute {name!r} has {count} missing (NaN) value{'s' * (count > 1)}, the first at row "
            f"{int(np.argmax(absent))}: remove those rows, or replace missing values by a value such as 'unknown'"
        )
    codes = np.full(len(array), -1, dtype=np.int64)
    if absent.any() and absent.all():
        return Column(name, (), codes, named)
    known = array[~absent]
    if known.dtype == object:
        known = _infer(name, known)
    if absent.any() and known.dtype.kind == "f":
        known = _integers_if_whole(known)
    distinct, codes[~absent] = _distinct(name, known, categories)
    return Column(name, distinct, codes, named)


def column_values(values: Any) -> tuple[Any, Sequence[Hashable] | None]:
    """Convert a column to an array, and return its categories in order, or None if their order means nothing.

    The array has dtype object where a common type would change some values, and None where a value is missing.
    """
    series = _narwhals_series(values)
    if series is not None:
        return _series_values(series)
    categorical = getattr(values, "cat", values)
    if hasattr(categorical, "categories"):
        categories = list(categorical.categories)
        return np.array([*categories, None], dtype=object)[np.asarray(categorical.codes)], categories
    if isinstance(values, list | tuple):
        return np.array(values, dtype=object), None
    if hasattr(getattr(values, "dtype", None), "pyarrow_dtype"):  # NumPy would round integers beside missing values
        values = values.astype(object)
    array = as_array(values, "a table of attribute values")
    if array.dtype.kind == "T":  # NumPy's StringDType
        return array.astype(object), None
    mask = mask_of(values)
    if mask is not None:
        array = array.astype(object)
        array[mask] = None
    return array, None


def _series_values(series: Any) -> tuple[Any, Sequence[Hashable] | None]:
    """Return the values and the categories of a narwhals Series, as ``column_values`` does.

    The categories of an Enum or an Arrow dictionary have an order. A Categorical of Polars has none of its own.
    """
    import narwhals as nw

    categories = None
    if isinstance(series.dtype, nw.Enum):
        categories = list(series.dtype.categories)
    elif series.dtype == nw.Categorical and series.implementation.is_pyarrow() and len(series):
        categories = series.to_native().chunk(0).dictionary.to_pylist()
    if series.dtype in (nw.Categorical, nw.Enum) or series.null_count():
        array = np.empty(len(series), dtype=object)
        array[:] = series.to_list()
        return array, categories
    return series.to_numpy(), None


def missing_values(array: Any) -> Any:
    """Return a mask (n,) of the missing values of an array."""
    if array.dtype == object:
        return np.fromiter((is_missing(value) for value in array), dtype=bool, count=len(array))
    return np.isnan(array) if array.dtype.kind == "f" else np.zeros(len(array), dtype=bool)


def is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN, ``pandas.NA``, ``pandas.NaT`` or ``numpy.ma.masked``."""
    pandas = sys.modules.get("pandas")
    if value is None or value is np.ma.masked or (pandas is not None and (value is pandas.NA or value is pandas.NaT)):
        return True
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def _integers_if_whole(numbers: Any) -> Any:
    """Convert floats to integers if all are whole numbers, because a NaN turns a column of integers into floats."""
    fits = float(np.abs(numbers).max()) < FIRST_BEYOND_INT64
    return numbers.astype(np.int64) if fits and (numbers == np.floor(numbers)).all() else numbers


def _distinct(name: str, array: Any, categories: Any) -> tuple[tuple[Hashable, ...], IntArray]:
    """Return the distinct values of an array without missing values, in order, and the code of each row."""
    if array.dtype.kind == "f" and np.isinf(array).any():
        row = int(np.argmax(np.isinf(array)))
        raise InputError(f"attribute {name!r} has an infinite value (inf) at row {row}: replace it or remove the row")
    if array.dtype.kind not in "biufU":
        raise InputError(f"attribute {name!r} has type {array.dtype}: convert it to text or integers")
    distinct, codes = np.unique(array, return_inverse=True)
    plain, codes = [plain_value(value) for value in distinct], codes.astype(np.int64).reshape(-1)
    if categories is None:
        return tuple(plain), codes
    rank = {plain_value(category): position for position, category in enumerate(categories)}
    order = np.argsort([rank[value] for value in plain])
    return tuple(plain[position] for position in order), np.argsort(order)[codes]


def _infer(name: str, array: Any) -> Any:
    """Convert an object column to text, numbers or booleans; raise if it mixes text and numbers."""
    kinds = {"text" if isinstance(value, str) else "number" if np.isscalar(value) else "other" for value in array}
    if kinds - {"text", "number"}:
        odd = next(value for value in array if not np.isscalar(value))
        raise InputError(
            f"attribute {name!r} holds {odd!r}: values must be text, numbers or booleans; convert them, "
            "for example with str()"
        )
    if len(kinds) > 1:
        raise InputError(f"attribute {name!r} mixes text and numbers: convert all of its values to one type")
    return _exact_array(name, array.tolist())


def _exact_array(name: str, values: Sequence[Any]) -> Any:
    """Convert an attribute's values to an array; raise if NumPy would round a value or drop a trailing NUL."""
    array = np.array(values)
    for value, stored in zip(values, array.tolist(), strict=True):
        if array.dtype.kind == "U" and value != stored:
            raise InputError(
                f"attribute {name!r} has the value {shown(value)}, which ends in NUL, a character that NumPy drops "
                "from text: remove it"
            )
        if array.dtype.kind in "biuf" and value != stored:
            raise InputError(
                f"attribute {name!r} has the value {shown(value)}, which a NumPy array rounds to {stored!r}: "
                "convert the values to text"
            )
    return array


def check_attribute_values(name: str, given: Any) -> tuple[Hashable, ...]:
    """Check that an attribute's values are distinct and all text or all numbers; return them as Python scalars."""
    if isinstance(given, str) or not hasattr(given, "__iter__"):
        raise InputError(f"attribute {name!r} has the values {given!r}: pass a list or tuple of values")
    values = tuple(plain_value(value) for value in given)
    if not values:
        raise InputError(f"attribute {name!r} has no values: pass at least one")
    kinds = {str if isinstance(value, str) else float if isinstance(value, int | float) else None for value in values}
    if len(kinds) > 1 or None in kinds:
        raise InputError(f"attribute {name!r} has the values {listing(values)}: pass only text or only numbers")
    if len(set(values)) < len(values) or any(value != value for value in values):
        raise InputError(
            f"attribute {name!r} has a repeated or missing value ({listing(values)}): pass distinct values"
        )
    _exact_array(name, values)
    return values


def check_value_count(name: str, n_values: int, remedy: str = "", limit: int = MAX_VALUES) -> None:
    """Check that an attribute has at most ``limit`` values; the message ends with ``remedy``."""
    if n_values > limit:
        ways = f"Leave it out, group its values, or {remedy}" if remedy else "Leave it out, or group its values"
        raise InputError(f"attribute {name!r} has {n_values} different values: is it an identifier? {ways}")


def check_repeats(column: Column) -> None:
    """Check that the values of an attribute repeat: otherwise it is continuous or an identifier."""
    known = int(np.count_nonzero(column.codes >= 0))
    if hardly_repeats(len(column.values), known):
        raise InputError(
            f"attribute {column.name!r} has {len(column.values)} different values in {known} rows: it "
            "looks continuous or like an identifier; bin it, or leave it out"
        )


def hardly_repeats(n_values: int, n_rows: float) -> bool:
    """Return whether a column has so many distinct values that it looks continuous or like an identifier."""
    return n_values > max(10, n_rows / 2)


def plain_value(value: Any) -> Hashable:
    """Convert a NumPy scalar to a Python scalar; return anything else unchanged."""
    plain: Hashable = value.item() if isinstance(value, np.generic) else value
    return plain
