"""Read the columns of a raw table: numbers, booleans, dates and text, with missing values.

A text file does not say what its columns hold, so they are read as text. In training, ``column_kind`` infers the kind
of each column. Afterwards the ``as_…`` functions convert the column of any table to this kind, even if its values would
suggest another kind there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compshift._checks import MAX_FEATURE
from compshift._errors import InputError, shown
from compshift._files import check_path, ending
from compshift.core.arrays import FloatArray
from compshift.core.columns import as_pandas, plain_value
from compshift.data.dataset import as_known
from compshift.data.table import NUMBER
from compshift.data.table_files import check_columns, column_names, read_raw
from compshift.data.text_tables import TEXT
from compshift.data.typed_tables import EXCEL

DATE = re.compile(
    r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}:?\d{2})?)?", re.ASCII | re.IGNORECASE
)
"""Matches a date, or a date with a time, in ISO 8601."""

BOOLEANS = {"true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0, "1.0": 1.0, "0.0": 0.0}
"""Value of each way to write a boolean, in lower case."""


def raw_names(table: Any) -> list[str]:
    """Return the names of a table's columns."""
    if isinstance(table, str | Path):
        return column_names(check_path(table))
    return [str(name) for name in as_pandas(table, "the table")]


def is_typed(table: Any) -> bool:
    """Return whether text in a table is just text; in text files and Excel sheets it may stand for numbers or dates."""
    return not isinstance(table, str | Path) or ending(table) not in (*TEXT, EXCEL)


def read_raw_columns(table: Any, columns: Sequence[str]) -> dict[str, Any]:
    """Read the named columns of a file, DataFrame or mapping as pandas Series; those of a text file are text.

    In text files, spaces around a value are removed, and empty entries and words like NA are missing values.
    """
    import pandas as pd

    if not isinstance(table, str | Path):
        frame = pd.DataFrame(as_pandas(table, "the table")).rename(columns=str).reset_index(drop=True)
        check_columns(columns, list(frame.columns), Path("the table"))
        return {name: frame[name] for name in columns}
    found = read_raw(check_path(table), columns)
    return {name: _series(found.column(name)) for name in columns}


def _series(column: Any) -> Any:
    """Return an Arrow column as a Series: decimals as floats, dates as timestamps, times of day as text.

    Spaces around a text are removed, and empty text is a missing value.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    elif pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("s"))
    elif pa.types.is_time(column.type):
        column = column.cast(pa.string())
    elif pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = pc.utf8_trim_whitespace(column)
        column = pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)
    return column.to_pandas()


def column_kind(column: Any, *, typed: bool) -> str | None:
    """Return the kind of a column: "number", "boolean", "date" or "category"; None if it is empty or of another kind.

    If the table is ``typed``, text is always a category. Otherwise text is a number, boolean or date if all of it is
    written like one.
    """
    import pandas as pd
    from pandas.api import types

    values = column.dropna()
    if not len(values):
        return None
    found = types.infer_dtype(values, skipna=True)
    if types.is_bool_dtype(values.dtype) or found == "boolean":
        return "boolean"
    if types.is_numeric_dtype(values.dtype) and not types.is_complex_dtype(values.dtype):
        return "number"
    if types.is_datetime64_any_dtype(values.dtype) or found in ("datetime", "datetime64", "date"):
        return "date"
    if found not in ("string", "categorical"):
        return None
    if typed:
        return "category"
    distinct = list(values.unique())
    if all(NUMBER.fullmatch(value) for value in distinct):
        return "number"
    if all(value.lower() in ("true", "false") for value in distinct):
        return "boolean"
    return "date" if not pd.isna(_times(distinct)).any() else "category"


def _times(values: Sequence[Any]) -> Any:
    """Convert dates, and texts in ISO 8601, to times in UTC without a zone; other values become NaT."""
    import pandas as pd

    kept = [
        None
        if isinstance(value, int | float | np.number) or (isinstance(value, str) and not DATE.fullmatch(value))
        else value
        for value in values
    ]
    return pd.to_datetime(pd.Series(kept, dtype=object), errors="coerce", utc=True, format="ISO8601").dt.tz_localize(
        None
    )


def as_numbers(column: Any, name: str) -> FloatArray:
    """Return a column of numbers as floats (n,), with NaN where a value is missing."""
    if getattr(column.dtype, "kind", "") in "iufb":
        numbers = column.to_numpy(dtype=np.float64, na_value=np.nan)
        if not (np.abs(numbers) > MAX_FEATURE).any():
            return np.asarray(numbers)
    found = _converted(column, name, lambda values: [_number(value) for value in values], "a number")
    return np.asarray(found, dtype=np.float64)


def as_booleans(column: Any, name: str) -> FloatArray:
    """Return a column of booleans as 1.0 for true and 0.0 for false, (n,), with NaN where a value is missing."""
    found = _converted(
        column, name, lambda values: [BOOLEANS.get(str(value).lower(), np.nan) for value in values], "true or false"
    )
    return np.asarray(found, dtype=np.float64)


def as_times(column: Any, name: str) -> Any:
    """Return a column of dates as a Series of times (n,), converted to UTC if they have a zone; NaT if missing."""
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        return column if column.dt.tz is None else column.dt.tz_convert("UTC").dt.tz_localize(None)
    return pd.Series(_converted(column, name, _times, "a date such as 2024-05-31"))


def as_text(column: Any, levels: Sequence[str] = ()) -> Any:
    """Return a column as text, an array of objects (n,), with None where a value is missing.

    A value that is not text becomes the level that is written like it: both 1 and 1.0 become "1" if that is a level.
    """
    import pandas as pd

    position, distinct = pd.factorize(column, use_na_sentinel=True)
    known = set(levels)
    texts = [value if isinstance(value, str) else str(as_known(value, known)) for value in distinct]
    return np.array([*texts, None], dtype=object)[position]


def _number(value: Any) -> float:
    """Return a value as a number; NaN if it is not a number, or above ``MAX_FEATURE`` in absolute value."""
    if isinstance(value, str) and not NUMBER.fullmatch(value):
        return np.nan
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return np.nan
    return number if abs(number) <= MAX_FEATURE else np.nan


def _converted(column: Any, name: str, convert: Callable[[Any], Any], expected: str) -> Any:
    """Apply a function to the distinct values of a column; raise an InputError for a value that it turns into NaN."""
    import pandas as pd

    position, distinct = pd.factorize(column, use_na_sentinel=True)
    converted = pd.Series(convert(distinct))
    refused = np.flatnonzero(converted.isna())
    if len(refused):
        row = int(np.argmax(position == refused[0]))
        raise InputError(
            f"the column {name!r} has {shown(plain_value(distinct[refused[0]]))} at row {row}, which is not "
            f"{expected}: correct the value, or leave it empty, which counts as missing"
        )
    return converted.reindex(position).to_numpy()  # −1, the position of a missing value, is not in the index
