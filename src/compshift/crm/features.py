"""Read and check the features of training samples and of new samples, dense or sparse."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import Any

import numpy as np
from array_api_compat import device, is_torch_array
from sklearn import get_config
from sklearn.base import BaseEstimator
from sklearn.utils import _safe_indexing, get_tags
from sklearn.utils.validation import check_is_fitted, validate_data

from compshift._checks import (
    MAX_FEATURE,
    changed_names_error,
    check_finite,
    check_magnitude,
    check_unmasked,
    unreadable_error,
)
from compshift._errors import InputError, InputTypeError, listing, shown
from compshift.core.arrays import IntArray, index_like, is_other_library, namespace, to_numpy
from compshift.core.columns import as_mapping, column_values, native_table, plain_value
from compshift.core.sparse import Features, SparseRows, is_sparse
from compshift.crm.problem import MAX_EXTENT_RATIO
from compshift.data.feature_store import FeatureStore

MAX_SCALE_RATIO = 30
"""Largest ratio of the scales of two columns without a warning."""

MAX_UNNAMED_COLUMNS = 64
"""Largest number of columns of an array without column names whose scales are compared: wider arrays are mostly
embeddings, in which it is normal that some columns hardly vary."""

SCALED_ROWS = 10_000
"""Approximate number of samples from which the scales of columns are computed: fewer than twice as many are used."""


def is_dispatched(values: Any) -> bool:
    """Return whether values are an array of another library, and scikit-learn is set to compute in that library."""
    return bool(get_config()["array_api_dispatch"]) and is_other_library(values)


def labels_in_numpy(X: Any, labels: Mapping[str, Any]) -> list[Any]:
    """Return labels or weights of samples as NumPy arrays if they are arrays that scikit-learn would dispatch on.

    They may be in main memory or on the device of X; anything else is probably a mistake.
    """
    found = []
    for name, values in labels.items():
        if not is_dispatched(values):
            found.append(values)
            continue
        where, of_features = str(device(values)), str(device(X)) if is_dispatched(X) else "cpu"
        if where not in ("cpu", of_features):
            raise InputError(
                f"{name} is on the device {where} but X is on {of_features}: move both to one device, or {name} to the "
                "CPU"
            )
        found.append(to_numpy(values))
    return found


def training_features(estimator: BaseEstimator, X: Any, *, any_library: bool = False) -> Features:
    """Check training features (n, p), return them as float64, and store their number and names in the estimator.

    With ``any_library`` they stay in their library and on their device if scikit-learn dispatches on them.
    """
    if isinstance(X, str | PathLike):
        raise InputError(
            f"X is {fspath(X)!r}: pass features as an array or DataFrame or, to a CRMClassifier, "
            f"compshift.data.FeatureStore({fspath(X)!r})"
        )
    return feature_matrix(estimator, X, fitted=False, any_library=any_library)


def prediction_features(estimator: BaseEstimator, X: Any, *, any_library: bool = False) -> Features:
    """Check features (n, p) for a prediction, with the columns used in ``fit``, and return them as float64.

    With ``any_library`` they stay in their library, on their device and in single precision if scikit-learn dispatches
    on them.
    """
    check_is_fitted(estimator)
    if isinstance(X, FeatureStore):
        raise InputError(
            "X is a FeatureStore, which only fit accepts: pass arrays, for example the blocks of store.blocks(10000)"
        )
    if isinstance(X, str | PathLike):
        remedy = _embedded(estimator) or "pass features as an array or DataFrame with the columns used in fit"
        raise InputError(f"X is {fspath(X)!r}: {remedy}")
    return feature_matrix(estimator, X, fitted=True, any_library=any_library)


def _embedded(estimator: BaseEstimator) -> str | None:
    """Return the remedy for a model that the command line fitted to images or texts; None for any other model."""
    inputs = getattr(estimator, "inputs_", None) or {}
    if inputs.get("kind") == "tfidf":
        return "the model takes TF-IDF of texts: pass the table to `compshift predict`, or use compshift.load"
    if inputs.get("kind") not in ("images", "text"):
        return None
    backbone = inputs.get("backbone")
    return (
        f"the model takes features that the backbone {backbone!r} computes from {inputs['kind']}: compute them with "
        "compshift.features.Embedder, or run `compshift predict`, which takes the table"
    )


def feature_matrix(estimator: BaseEstimator, X: Any, *, fitted: bool, any_library: bool = False) -> Features:
    """Check features by scikit-learn's rules, and return them as finite float64.

    Arrays that scikit-learn dispatches on become NumPy arrays, or with ``any_library`` stay as they are; new samples
    then also in single precision.

    Sparse features become ``SparseRows``, if the estimator's tags say that it accepts them. An estimator that also
    accepts other features, such as categories, reads them by its own method ``_check_features``.
    """
    if isinstance(X, SparseRows) or is_sparse(X):
        return _sparse_rows(estimator, X, fitted=fitted)
    dtype: Any = np.float64
    if is_dispatched(X):
        xp = namespace(X)
        if str(device(X)) == "meta":
            raise InputError("X is on the device meta, which holds no numbers: pass a tensor on the CPU or on a GPU")
        if any_library and xp.isdtype(X.dtype, ("real floating", "integral", "bool")):
            X = X.detach() if is_torch_array(X) else X
            dtype = [xp.float64, xp.float32] if fitted else xp.float64
        else:
            X = to_numpy(X)
    if hasattr(estimator, "_check_features"):
        return estimator._check_features(X, fitted=fitted)
    X = native_table(X, "X")  # scikit-learn reads the names of these columns
    check_unmasked(X, "X")
    if _has_times(X):  # scikit-learn would convert them to numbers
        raise _not_numbers(_odd_columns(X), fitted=fitted)
    try:
        array = validate_data(estimator, X, dtype=dtype, ensure_all_finite=False, reset=not fitted)
    except (TypeError, ValueError, OverflowError) as error:
        if (changed := changed_names_error(error, fitted=fitted)) is not None:
            raise changed from None
        if fitted and "is expecting" in str(error):
            raise InputError(f"{error}: pass the columns used in fit, in the same order") from None
        odd = _odd_columns(X) if isinstance(error, ValueError) or hasattr(X, "columns") else []
        remedy = _embedded(estimator) if fitted and odd else None
        if remedy is not None:
            raise InputError(f"X holds {shown(odd[0][1])}, which is not a number: {remedy}") from None
        if odd:
            raise _not_numbers(odd, fitted=fitted) from None
        kind = InputTypeError if isinstance(error, TypeError) else InputError
        raise kind(f"X cannot be read as a matrix of numbers, one row per sample: {error}") from None
    except RuntimeError:
        raise unreadable_error(X, "X") from None
    if is_other_library(array):
        if not bool((abs(array) <= MAX_FEATURE).all()):
            check_finite(to_numpy(array))
            check_magnitude(to_numpy(array))
        return array
    check_finite(array)
    check_magnitude(array)
    return np.asarray(array)


def _sparse_rows(estimator: BaseEstimator, X: Any, *, fitted: bool) -> SparseRows:
    """Check sparse features by scikit-learn's rules, and return them as finite float64."""
    if not get_tags(estimator).input_tags.sparse:
        raise InputTypeError(
            "X is sparse, but dense features are needed here: reduce X to a few hundred columns, for example with "
            "TruncatedSVD, or pass X.toarray() if that fits in memory"
        )
    matrix = X.matrix if isinstance(X, SparseRows) else X
    try:
        matrix = validate_data(
            estimator, matrix, accept_sparse="csr", dtype=np.float64, ensure_all_finite=False, reset=not fitted
        )
    except (TypeError, ValueError) as error:
        remedy = "pass the columns used in fit" if fitted else "pass a sparse matrix of numbers, one row per sample"
        raise InputError(f"X cannot be read as sparse features ({error}): {remedy}") from None
    rows = SparseRows.of(matrix)
    odd = np.flatnonzero(~np.isfinite(rows.matrix.data))
    if len(odd):
        row = int(np.searchsorted(rows.matrix.indptr, odd[0], side="right")) - 1
        column = int(rows.matrix.indices[odd[0]])
        raise InputError(
            f"X has {len(odd)} NaN or infinite (inf) value{'s' * (len(odd) > 1)}, the first at row {row}, column "
            f"{column}: remove those rows or impute them before this call"
        )
    check_magnitude(rows.matrix.data)
    return rows


def _has_times(X: Any) -> bool:
    """Return whether an array, or a column of a DataFrame, contains dates or durations."""
    if getattr(X, "ndim", 0) != 2:
        return False
    dtypes = getattr(X, "dtypes", [getattr(X, "dtype", None)])
    return any(getattr(dtype, "kind", "") in ("m", "M") for dtype in dtypes)


def _not_numbers(odd: Sequence[tuple[Any, Any]], *, fitted: bool) -> InputError:
    """Return the error for feature columns with values that are not numbers."""
    (first, value), names = odd[0], [name for name, _ in odd]
    if first is None:
        texts = ", which TfidfVectorizer makes of texts in a pipeline" if not fitted else ""
        return InputError(
            f"X holds {shown(value)}, which is not a number: pass a matrix of numbers{texts}, one row per sample"
        )
    if fitted:
        remedy = "encode or drop these columns as you did for fit"
    else:
        remedy = (
            "pass targets and attributes separately, and encode or drop other columns (compshift.table_classifier "
            "encodes them; texts become features by TfidfVectorizer in a pipeline, or by `compshift fit --text`)"
        )
    where = f"column{'s' * (len(odd) > 1)} {listing(names)}"
    return InputError(f"X has values that are not numbers in {where} ({shown(value)} is the first): {remedy}")


def _odd_columns(X: Any) -> list[tuple[Any, Any]]:
    """Return the name or index of each column with values that are not numbers, and the first of these values."""
    if hasattr(X, "columns") and hasattr(X, "iloc"):
        columns = [(name, X.iloc[:, position]) for position, name in enumerate(X.columns)]
    elif isinstance(as_mapping(X), Mapping):  # of Polars or Arrow
        columns = [(name, column_values(column)[0]) for name, column in as_mapping(X).items()]
    else:
        array = np.asarray(X, dtype=object) if isinstance(X, list | tuple) else np.asarray(X)
        if array.ndim == 1:
            return [(None, value) for value in _odd_values(array) if isinstance(value, str)]
        columns = list(enumerate(array.T)) if array.ndim == 2 and array.dtype.kind in "OUSTmM" else []
    return [(name, value) for name, values in columns for value in _odd_values(np.asarray(values))]


def _odd_values(array: Any) -> list[Any]:
    """Return a list with the first value that is not a number; empty if all values are numbers."""
    if array.dtype.kind in "biuf" or not len(array):
        return []
    if array.dtype.kind in "cmM":  # complex numbers and times
        return [str(array[0])]
    import pandas as pd

    for value in array:
        try:
            float(value)
        except (TypeError, ValueError):
            if np.ndim(value) or not pd.isna(value):  # ``check_finite`` reports missing values
                return [plain_value(value)]
    return []


def unequal_scales(X: Features) -> tuple[int, int, float] | None:
    """Return the columns of the largest and the smallest scale, and the ratio of these scales; None if that is small.

    The scale of a column is its standard deviation. The scale of a column with two values is half of their distance, so
    that a rare category does not count as a small scale. Constant columns are ignored.
    """
    X = X[:: max(1, len(X) // SCALED_ROWS)]
    X = X.matrix.toarray() if isinstance(X, SparseRows) else np.asarray(to_numpy(X), dtype=np.float64)
    X = X / (float(np.abs(X).max()) or 1.0)  # avoids overflow of the squares
    low, high = X.min(axis=0), X.max(axis=0)
    scale = np.where(((low == X) | (high == X)).all(axis=0), (high - low) / 2, X.std(axis=0))
    if not (scale > 0).any():
        return None
    small, large = int(np.where(scale > 0, scale, np.inf).argmin()), int(scale.argmax())
    ratio = float(scale[large] / scale[small])
    return (large, small, ratio) if ratio > MAX_SCALE_RATIO else None


def warn_of_unequal_scales(estimator: Any, X: Features) -> None:
    """Warn if the ridge acts on only some of the columns, because of their scales.

    There is no warning without a ridge, or for wide arrays without column names. Call only from ``fit`` itself:
    ``stacklevel`` assumes that depth.
    """
    names = getattr(estimator, "feature_names_in_", None)
    if (names is None and X.shape[1] > MAX_UNNAMED_COLUMNS) or getattr(estimator, "alpha", None) == 0:
        return
    found = unequal_scales(X)
    if found is None or not found[2] < MAX_EXTENT_RATIO:  # ``standard_of`` warns of larger ratios
        return
    large, small = (f"column {index}" if names is None else repr(str(names[index])) for index in found[:2])
    warnings.warn(
        f"the standard deviation of {large} is {found[2]:.0f} times that of {small}, so the penalty mostly shrinks the "
        "weights of the latter: standardise the columns, as in make_pipeline(StandardScaler(), CRMClassifierCV()) or "
        "compshift.table_classifier",
        stacklevel=3,
    )


def rows_of(X: Any, rows: IntArray) -> Any:
    """Return some rows of features, or of the table that an estimator takes as it is."""
    if is_other_library(X):
        return X[index_like(rows, X)]
    return X[rows] if isinstance(X, SparseRows) else _safe_indexing(X, rows)
