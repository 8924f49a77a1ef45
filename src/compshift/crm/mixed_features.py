"""Read features of mixed kinds, numbers and categories with or without missing values, as a matrix of numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from compshift._checks import changed_names_error, check_magnitude, unreadable_error
from compshift._errors import InputError, InputTypeError
from compshift.core.arrays import FloatArray
from compshift.core.columns import as_pandas, plain_value

MAX_CATEGORIES = 10_000
"""Largest accepted number of categories of a column."""


class MixedColumns(NamedTuple):
    """Conversion of the columns of a table to numbers: a category becomes its position in ``categories``."""

    categories: tuple[tuple[Any, ...] | None, ...]  # (p,) values of a categorical column in order; None for numbers

    @property
    def categorical(self) -> tuple[int, ...]:
        """Indices of the categorical columns."""
        return tuple(index for index, values in enumerate(self.categories) if values is not None)


def mixed_features(
    estimator: BaseEstimator, X: Any, columns: MixedColumns | None, categorical_features: Any = "from_dtype"
) -> tuple[FloatArray, MixedColumns]:
    """Read features (n, p) as float64: NaN where a value is missing, and a category as its number.

    Without ``columns``, this is training: columns of text, categories or booleans, and those in
    ``categorical_features``, are categorical. Otherwise a category that training lacks counts as missing.
    """
    reset, X = columns is None, as_pandas(X)
    if not hasattr(X, "iloc"):
        X = _as_numbers(estimator, X, reset)
        if isinstance(X, np.ndarray) and columns is None and isinstance(categorical_features, str):
            return X, MixedColumns((None,) * X.shape[1])
    import pandas as pd

    frame = X if hasattr(X, "iloc") else pd.DataFrame(X)
    if hasattr(X, "iloc"):
        if X.ndim != 2:
            raise InputError(f"X has {X.ndim} dimension: pass a table, one row per sample")
        try:
            validate_data(estimator, frame, reset=reset, skip_check_array=True)
        except (TypeError, ValueError) as error:
            if (changed := changed_names_error(error, fitted=not reset)) is not None:
                raise changed from None
            kind = InputTypeError if isinstance(error, TypeError) else InputError
            raise kind(f"X cannot be read as a table: {' '.join(str(error).split())}") from None
        if not len(frame) or not frame.shape[1]:
            raise InputError(f"X has {len(frame)} rows and {frame.shape[1]} columns: pass at least one of each")
    if columns is None:
        chosen = _chosen_columns(frame, categorical_features)
        columns = MixedColumns(
            tuple(_categories(frame.iloc[:, index]) if index in chosen else None for index in range(frame.shape[1]))
        )
    parts = [
        _numbers(frame.iloc[:, index]) if values is None else _codes(frame.iloc[:, index], values)
        for index, values in enumerate(columns.categories)
    ]
    return np.column_stack(parts), columns


def _as_numbers(estimator: BaseEstimator, X: Any, reset: bool) -> Any:
    """Return an array of numbers, or a DataFrame of an array that holds other values."""
    try:
        array = validate_data(estimator, X, dtype=None, ensure_all_finite=False, reset=reset)
    except (TypeError, ValueError) as error:
        kind = InputTypeError if isinstance(error, TypeError) else InputError
        raise kind(f"X cannot be read as a table, one row per sample: {error}") from None
    except RuntimeError:
        raise unreadable_error(X, "X") from None
    if array.dtype.kind in "biuf":
        array = np.asarray(array, dtype=np.float64)
        return _checked(array)
    import pandas as pd

    return pd.DataFrame(array).infer_objects()


def _checked(array: FloatArray) -> FloatArray:
    """Check that numbers are finite or missing, and not so large that sums overflow."""
    if np.isinf(array).any():
        raise InputError("X contains infinite values: replace them by NaN, which counts as missing")
    check_magnitude(np.where(np.isnan(array), 0.0, array))
    return array


def _chosen_columns(frame: Any, categorical_features: Any) -> set[int]:
    """Return the indices of the categorical columns of a DataFrame."""
    by_type = {index for index in range(frame.shape[1]) if _is_categorical(frame.iloc[:, index])}
    if categorical_features is None or (isinstance(categorical_features, str) and categorical_features == "from_dtype"):
        return by_type
    if isinstance(categorical_features, str) or np.ndim(categorical_features) != 1:
        raise InputError(
            f"categorical_features is {categorical_features!r}: pass 'from_dtype', or a list of names or indices"
        )
    names = list(frame.columns)
    chosen = set()
    for entry in categorical_features:
        entry = plain_value(entry)
        if entry in names:
            chosen.add(names.index(entry))
        elif isinstance(entry, int) and not isinstance(entry, bool) and 0 <= entry < len(names):
            chosen.add(entry)
        else:
            raise InputError(f"categorical_features has {entry!r}, which is not a column of X: pass names or indices")
    return by_type | chosen


def _is_categorical(column: Any) -> bool:
    kind = getattr(column.dtype, "kind", "O")
    return bool(kind in "OUSTb" and not _is_numeric(column))


def _is_numeric(column: Any) -> bool:
    import pandas as pd

    return bool(pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(column.dtype))


def _categories(column: Any) -> tuple[Any, ...]:
    """Return the distinct values of a column without missing ones: numbers and booleans sorted, then text sorted."""
    import pandas as pd

    try:
        found = [plain_value(value) for value in pd.unique(column.dropna())]
    except TypeError as error:  # scikit-learn's checks look for the beginning of this sentence
        raise InputTypeError(
            f"argument must be a string or a number, but column {column.name!r} of X has another value ({error}): "
            "convert or drop the column"
        ) from None
    if len(found) > MAX_CATEGORIES:
        raise InputError(
            f"column {column.name!r} has {len(found)} categories: drop it, or group its values; at most "
            f"{MAX_CATEGORIES} are accepted"
        )
    odd = [value for value in found if not isinstance(value, str | int | float | bool)]
    if odd:
        raise InputError(
            f"column {column.name!r} holds {odd[0]!r}, which is neither a number nor text: convert or drop the column"
        )
    return tuple(sorted(found, key=lambda value: (isinstance(value, str), value)))


def _codes(column: Any, values: tuple[Any, ...]) -> FloatArray:
    """Return the position in ``values`` of each entry of a column; NaN if it is missing or not among them."""
    number = {value: float(index) for index, value in enumerate(values)}
    import pandas as pd

    position, distinct = pd.factorize(column, use_na_sentinel=True)
    known = np.array([number.get(plain_value(value), np.nan) for value in distinct] + [np.nan])
    return np.asarray(known[position])


def _numbers(column: Any) -> FloatArray:
    """Return a column of numbers; NaN where a value is missing."""
    if getattr(column.dtype, "kind", "") in "mM":
        raise InputError(
            f"column {column.name!r} of X holds times: pass numbers instead, for example the year, month and weekday"
        )
    try:
        return _checked(column.to_numpy(dtype=np.float64, na_value=np.nan))
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"column {column.name!r} of X holds values that are not numbers ({error}): convert them to numbers, or "
            "replace them by NaN, which counts as missing"
        ) from None
