"""Tables of attribute values, whatever holds them, as named columns."""

import itertools
import sys
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from compshift._checks import check_list
from compshift._errors import InputError, listing
from compshift.core.arrays import IntArray


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
    order of their categories; a category that no row has is left out. Missing values (None, NaN, NA) are
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
    if hasattr(table, "get_columns"):  # a Polars DataFrame
        return [(str(column.name), column.to_numpy()) for column in table.get_columns()]
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


def _from_sequence(table: Any) -> Any:
    """Nested sequences as an array, without turning the 1 of ``("a", 1)`` into text."""
    if not isinstance(table, list | tuple):
        return np.asarray(table)
    array = np.array(table, dtype=object)
    if array.ndim == 1 and any(isinstance(row, list | tuple) for row in array):
        raise InputError("the rows of the table differ in length: pass the same number of values in every row")
    return array


def _column(name: str, values: Any, *, named: bool, missing: bool) -> Column:
    """Distinct values and codes of one column."""
    array = _as_array(values)
    if array.ndim != 1:
        raise InputError(f"attribute {name!r} holds {array.ndim}-dimensional values: pass one value per row")
    absent = _absent(array)
    if not absent.any():
        return _known_column(name, array, values, named=named)
    if not missing:
        raise _missing(name, absent)
    codes = np.full(len(array), -1, dtype=np.int64)
    if absent.all():
        return Column(name, (), codes, named)
    known = array[~absent]
    if known.dtype.kind == "f" and (known == np.floor(known)).all() and np.isfinite(known).all():
        known = known.astype(np.int64)  # whole numbers, which NaN among them had made floats
    column = _known_column(name, known, values, named=named)
    codes[~absent] = column.codes
    return column._replace(codes=codes)


def _as_array(values: Any) -> Any:
    """A column as an array; in a list of texts NaN stays what it is."""
    if isinstance(values, list | tuple) and any(_is_missing(value) for value in values):
        return np.array(values, dtype=object)
    return np.asarray(values)


def _absent(array: Any) -> Any:
    """Which values are missing, (n,)."""
    if array.dtype == object:
        return np.fromiter((_is_missing(value) for value in array), dtype=bool, count=len(array))
    return np.isnan(array) if array.dtype.kind == "f" else np.zeros(len(array), dtype=bool)


def _known_column(name: str, array: Any, values: Any, *, named: bool) -> Column:
    """Distinct values and codes of an array without missing values; ``values`` may know an order of categories."""
    order: list[Hashable] | None = None
    categories = getattr(getattr(values, "cat", values), "categories", None)
    if categories is not None:
        order = [plain_value(category) for category in categories]
    if array.dtype == object:
        array = _infer(name, array)
    if array.dtype.kind == "T":  # NumPy's text of variable length
        array = array.astype(str)
    if array.dtype.kind == "f" and np.isinf(array).any():
        raise InputError(f"attribute {name!r} has an infinite value (inf) at row {int(np.argmax(np.isinf(array)))}")
    if array.dtype.kind not in "biufU":
        raise InputError(f"attribute {name!r} has type {array.dtype}: convert it to text or whole numbers")
    distinct, codes = np.unique(array, return_inverse=True)
    plain = [plain_value(value) for value in distinct]
    if order is not None:
        rank = {value: position for position, value in enumerate(order)}
        ranks = np.array([rank[value] for value in plain], dtype=np.int64)
        permutation = np.argsort(ranks)
        plain = [plain[position] for position in permutation]
        codes = np.argsort(permutation)[codes]
    return Column(name, tuple(plain), codes.astype(np.int64).reshape(-1), named)


def _infer(name: str, array: Any) -> Any:
    """An object column as text, numbers or booleans; mixed values are refused."""
    kinds = {"text" if isinstance(value, str) else "number" if np.isscalar(value) else "other" for value in array}
    if kinds - {"text", "number"}:
        odd = next(value for value in array if not np.isscalar(value))
        raise InputError(f"attribute {name!r} holds {odd!r}: values must be text, numbers or booleans")
    if len(kinds) > 1:
        raise InputError(f"attribute {name!r} mixes text and numbers: convert all of its values to one type")
    return np.array(array.tolist())


def _is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, NaT or pandas' NA."""
    pandas = sys.modules.get("pandas")
    if value is None or (pandas is not None and (value is pandas.NA or value is pandas.NaT)):
        return True
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def _missing(name: str, missing: Any) -> InputError:
    """The error for a column with missing values."""
    count = int(np.count_nonzero(missing))
    return InputError(
        f"attribute {name!r} has {count} missing (NaN) value{'s' * (count > 1)}, the first at row "
        f"{int(np.argmax(missing))}: remove those rows or give the missing value a name of its own"
    )


def plain_value(value: Any) -> Hashable:
    """A NumPy scalar as the Python scalar it stands for."""
    plain: Hashable = value.item() if isinstance(value, np.generic) else value
    return plain
