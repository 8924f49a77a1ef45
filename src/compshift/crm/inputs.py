"""What becomes of an estimator whose fit fails: nothing.

Seeds and numbers of jobs, as scikit-learn takes them.

Progress of a fit, by way of the logger ``compshift``.

Folds of rows, with every group spread over them.

What estimators take: features as a matrix, targets and attributes as codes in one space.

The share of rows that a classifier is right on, as its ``score``.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import DataConversionWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from compshift._checks import check_finite, check_same_rows, check_sample_weight, check_sums, check_unmasked, unreadable
from compshift._errors import InputError, InputTypeError, listing
from compshift.core.arrays import BoolArray, FloatArray, IntArray
from compshift.core.columns import Column, hardly_repeats, match_columns, plain_value, read_columns
from compshift.core.groups import GroupSpace, check_space
from compshift.data.feature_store import FeatureStore
from compshift.metrics.group import right_rows


@contextmanager
def unchanged_if_refused(estimator: Any) -> Iterator[None]:
    """Give an estimator the attributes back that it had, if what is done within ends in an error.

    Half of a new fit beside half of an old one would predict nonsense. A fit replaces attributes and writes into none,
    so that their names and values are enough.
    """
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


MOST_JOBS = 1024
"""More processes at once are a mistake."""


def random_numbers(random_state: Any) -> np.random.RandomState:
    """A source of random numbers from a seed, a RandomState, or None for the global one."""
    try:
        return check_random_state(random_state)  # type: ignore[no-any-return]
    except (TypeError, ValueError):
        raise InputError(
            f"random_state is {random_state!r}: pass a whole number from 0 to 2**32 − 1, a numpy.random.RandomState, "
            "or None"
        ) from None


def seed_of(random_state: Any) -> int:
    """One number that stands for all."""
    return int(random_numbers(random_state).randint(2**31))


def check_jobs(n_jobs: Any) -> int | None:
    """How many processes work at once: None, or a whole number other than 0, negative ones counted from all cores."""
    if n_jobs is None:
        return None
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, int | np.integer) or n_jobs == 0 or n_jobs > MOST_JOBS:
        raise InputError(f"n_jobs is {n_jobs!r}: pass a whole number up to {MOST_JOBS}, −1 for all cores, or None")
    return int(n_jobs)


LOGGER = "compshift"


@contextmanager
def visible_log(verbose: bool | int) -> Iterator[None]:
    """Let informational messages through while a fit runs; to standard error if logging is not set up."""
    if not verbose:
        yield
        return
    logger = logging.getLogger(LOGGER)
    level, handler = logger.level, None
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        if handler is not None:
            logger.removeHandler(handler)


def row_folds(position: IntArray, n_folds: int, random: Any) -> IntArray:
    """Fold (n,) of each row: the rows of every group (n,) are dealt out in turn, in an order that ``random`` permutes.

    A group of two rows or more is in at least two folds, so that every fit which leaves a fold out still has it.
    """
    order = random.permutation(len(position))
    order = order[np.argsort(position[order], kind="stable")]
    folds = np.empty(len(position), dtype=np.int64)
    folds[order] = np.arange(len(position)) % n_folds
    return folds


MOST_NAMES = 10
"""A shorter list of texts, other than one for each row, may hold names of columns."""


class Labels(NamedTuple):
    """Groups of the training rows. The space has the targets first, then the attributes."""

    space: GroupSpace
    codes: IntArray  # (n, m) −1 where an attribute is missing, if that was allowed
    n_targets: int
    one_dimensional: bool  # whether there is one target, so that predictions are (n,)


def training_features(estimator: BaseEstimator, X: Any) -> FloatArray:
    """Features (n, p) to fit on, as finite float64; the estimator notes their number and names."""
    if isinstance(X, str | PathLike):
        raise InputError(
            f"X is {fspath(X)!r}: pass features as an array or DataFrame or, to a CRMClassifier, "
            f"compshift.data.FeatureStore({fspath(X)!r})"
        )
    return _numbers(estimator, X, fitted=False)


def known_features(estimator: BaseEstimator, X: Any) -> FloatArray:
    """Features (n, p) for a fitted estimator: the columns it was fitted on, as finite float64."""
    check_is_fitted(estimator)
    if isinstance(X, FeatureStore):
        raise InputError(
            "X is a FeatureStore, which can be fitted only: pass arrays, for example of store.blocks(10000)"
        )
    if isinstance(X, str | PathLike):
        remedy = _embedded(estimator) or "pass features as an array or DataFrame, the columns it was fitted on"
        raise InputError(f"X is {fspath(X)!r}: {remedy}")
    return _numbers(estimator, X, fitted=True)


def _embedded(estimator: BaseEstimator) -> str | None:
    """What to pass to a model of images or texts that the command line fitted; None for any other."""
    inputs = getattr(estimator, "inputs_", None) or {}
    if inputs.get("kind") not in ("images", "text"):
        return None
    backbone = inputs.get("backbone")
    return (
        f"the model takes features, which the backbone {backbone!r} makes of {inputs['kind']}; pass the table to "
        "`compshift predict`, or compute features with compshift.features.Embedder"
    )


def _numbers(estimator: BaseEstimator, X: Any, *, fitted: bool) -> FloatArray:
    """Features as finite float64, by scikit-learn's rules."""
    check_unmasked(X, "X")
    if _has_times(X):  # which scikit-learn would take for numbers
        raise _not_numbers(_odd_columns(X), frame=hasattr(X, "columns"), fitted=fitted)
    try:
        array = validate_data(estimator, X, dtype=np.float64, ensure_all_finite=False, reset=not fitted)
    except (TypeError, ValueError) as error:
        if fitted and isinstance(error, ValueError) and "feature names" in str(error):
            # scikit-learn's own words, line by line, which its estimator checks look for
            message = f"{str(error).rstrip()}\nPass the columns it was fitted on, in the same order."
            raise InputError(message, lines=True) from None
        if fitted and "is expecting" in str(error):
            raise InputError(f"{error}: pass the columns it was fitted on, in the same order") from None
        odd = _odd_columns(X) if isinstance(error, ValueError) or hasattr(X, "columns") else []
        remedy = _embedded(estimator) if fitted and odd else None
        if remedy is not None:
            raise InputError(f"X holds {odd[0][1]!r}, which is not a number: {remedy}") from None
        if odd:
            raise _not_numbers(odd, frame=hasattr(X, "columns"), fitted=fitted) from None
        kind = InputTypeError if isinstance(error, TypeError) else InputError
        raise kind(f"X cannot be read as a matrix of numbers, one row per sample: {error}") from None
    except RuntimeError:
        raise unreadable(X, "X") from None
    check_finite(array)
    check_sums(array)
    return np.asarray(array)


def _has_times(X: Any) -> bool:
    """Whether an array, or a column of a frame, holds dates or durations."""
    if getattr(X, "ndim", 0) != 2:
        return False
    dtypes = getattr(X, "dtypes", [getattr(X, "dtype", None)])
    return any(getattr(dtype, "kind", "") in ("m", "M") for dtype in dtypes)


def _not_numbers(odd: Sequence[tuple[Any, Any]], *, frame: bool, fitted: bool) -> InputError:
    """The error for columns of features that cannot be numbers."""
    (first, value), names = odd[0], [name for name, _ in odd]
    if first is None:
        return InputError(f"X holds {value!r}, which is not a number: pass a matrix of numbers, one row per sample")
    remedy = "encode or drop them, as for the fit" if fitted else "encode them as numbers or drop them"
    if frame and not fitted:
        remedy += f", as in X=df[features]; targets and attributes go beside X as values, as in y=df[{first!r}]"
    where = f"column{'s' * (len(odd) > 1)} {listing(names)}"
    return InputError(f"X has values that are not numbers in {where} ({value!r} is the first): {remedy}")


def _odd_columns(X: Any) -> list[tuple[Any, Any]]:
    """Name or number of each column with values that cannot be numbers, and its first such value."""
    if hasattr(X, "columns") and hasattr(X, "iloc"):
        columns = [(name, X.iloc[:, position]) for position, name in enumerate(X.columns)]
    elif hasattr(X, "get_columns"):  # a Polars DataFrame
        columns = [(column.name, column.to_numpy()) for column in X.get_columns()]
    else:
        array = np.asarray(X, dtype=object) if isinstance(X, list | tuple) else np.asarray(X)
        if array.ndim == 1:
            return [(None, value) for value in _odd_values(array) if isinstance(value, str)]
        columns = list(enumerate(array.T)) if array.ndim == 2 and array.dtype.kind in "OUSTmM" else []
    return [(name, value) for name, values in columns for value in _odd_values(np.asarray(values))]


def _odd_values(array: Any) -> list[Any]:
    """The first value that cannot be a number, if there is one."""
    if array.dtype.kind in "biuf" or not len(array):
        return []
    if array.dtype.kind in "cmM":  # complex numbers and times
        return [str(array[0])]
    import pandas as pd

    for value in array:
        try:
            float(value)
        except (TypeError, ValueError):
            if np.ndim(value) or not pd.isna(value):  # what is missing is told of elsewhere
                return [plain_value(value)]
    return []


def read_labels(
    y: Any,
    attributes: Any,
    space: GroupSpace | None,
    keep: BoolArray,
    stacklevel: int = 3,
    *,
    missing: bool = False,
) -> Labels:
    """Labels of the rows to keep, a mask over all n rows; values come from those rows, or from ``space``.

    The values of a target are sorted, as scikit-learn expects of ``classes_``. Warnings point ``stacklevel`` calls up.
    ``missing`` allows attributes, though not targets, to be missing in some rows.
    """
    for name, values in (("y", y), ("attributes", attributes)):
        _refuse_names(values, name, len(keep))
    targets = read_columns(y, default="y")
    names = [column.name for column in targets]
    nuisances = [] if attributes is None else read_columns(attributes, default="a", taken=names, missing=missing)
    for name, group in (("y", targets), ("attributes", nuisances)):
        if group:
            check_same_rows(len(keep), group[0].codes, name)
    columns = [_keep_rows(column, keep) for column in [*targets, *nuisances]]
    _check_complete(columns)
    for column in columns[: len(targets)]:
        _check_classes(column, weighted_out=not keep.all())
    for column in columns[len(targets) :]:
        _check_repeats(column)
        if len(column.values) == 1:
            warnings.warn(
                f"attribute {column.name!r} has the single value {column.values[0]!r} in training: it tells groups "
                "apart only if space= names further values",
                stacklevel=stacklevel,
            )
    space = _labels_space(columns, len(targets), space)
    dimensions = _dimensions(y)
    if dimensions == 2 and len(targets) == 1:
        warnings.warn(
            "A column-vector y was passed when a 1d array was expected: it is read as y.ravel()",
            DataConversionWarning,
            stacklevel=stacklevel,
        )
    return Labels(space, _encode(space, columns), len(targets), len(targets) == 1)


def _refuse_names(values: Any, name: str, n_rows: int) -> None:
    """Refuse names of columns where the columns themselves are expected."""
    if isinstance(values, str):
        raise InputError(
            f"{name} is the text {values!r}: pass the values of the column, as in {name}=df[{values!r}], beside "
            "X=df[features]; names alone are for a FeatureStore"
        )
    if not isinstance(values, list | tuple) or len(values) >= min(n_rows, MOST_NAMES):
        return
    if len(values) and all(isinstance(value, str) for value in values):
        columns = values[0] if len(values) == 1 else list(values)
        raise InputError(
            f"{name} is {values!r} but X has {n_rows} rows: pass one value per sample or, if these are names of "
            f"columns, the columns, as in {name}=df[{columns!r}], beside X=df[features]"
        )


def _encode(space: GroupSpace, columns: Sequence[Column]) -> IntArray:
    """Codes (n, m) of columns in the order of the attributes, −1 where a value is missing."""
    known = [column._replace(codes=np.maximum(column.codes, 0)) for column in columns]
    codes = space._encode_columns(known)
    for position, column in enumerate(columns):
        codes[column.codes < 0, position] = -1
    return codes


def _check_complete(columns: Sequence[Column]) -> None:
    """Refuse rows of which each lacks an attribute: nobody could tell which groups there are."""
    absent = [column.name for column in columns if (column.codes < 0).any()]
    if absent and not np.logical_and.reduce([column.codes >= 0 for column in columns]).any():
        raise InputError(
            f"every row has a missing value among the attributes {listing(absent)}: which groups there are is known "
            "from rows that have all of them; pass some, or leave an attribute out"
        )


def _check_repeats(column: Column) -> None:
    """Refuse an attribute that hardly any two rows share."""
    known = int(np.count_nonzero(column.codes >= 0))
    if hardly_repeats(len(column.values), known):
        raise InputError(
            f"attribute {column.name!r} has {len(column.values)} different values in {known} rows: it "
            "looks continuous or like an identifier; bin it, or leave it out"
        )


def _check_classes(column: Column, *, weighted_out: bool) -> None:
    """Refuse a target that is continuous or has one class, perhaps because the rows of others have no weight."""
    values = np.array(column.values)
    if values.dtype.kind == "f" and (values != np.floor(values)).any():
        odd = values[values != np.floor(values)][0]
        raise InputError(
            f"Unknown label type: target {column.name!r} is continuous (it has the value {odd:g}); a classifier needs "
            "discrete classes: turn it into text or whole numbers, for example by binning"
        )
    if len(values) == 1:
        where = " in the rows with a weight above 0" if weighted_out else ""
        raise InputError(
            f"target {column.name!r} has only one class ({column.values[0]!r}){where}: pass rows of two classes or more"
        )


def _labels_space(columns: Sequence[Column], n_targets: int, space: GroupSpace | None) -> GroupSpace:
    """The space of the columns, or the given one in their order, with the targets' values sorted."""
    if space is None:
        space = GroupSpace._from_columns(columns)
    order = match_columns(columns, check_space(space).names)
    values: list[Sequence[Any]] = [space.values[position] for position in order]
    values[:n_targets] = [sorted(part) for part in values[:n_targets]]
    return GroupSpace(tuple(space.names[position] for position in order), tuple(tuple(part) for part in values))


def _dimensions(values: Any) -> int:
    """Number of dimensions of an array, frame or nested list."""
    return int(values.ndim) if hasattr(values, "ndim") else np.asarray(values, dtype=object).ndim


def _keep_rows(column: Column, keep: BoolArray) -> Column:
    """The column's chosen rows, without values that only other rows have."""
    used, codes = np.unique(column.codes[keep], return_inverse=True)
    codes = codes.reshape(-1)
    if len(used) and used[0] < 0:  # what is missing keeps −1
        used, codes = used[1:], codes - 1
    return column._replace(values=tuple(column.values[position] for position in used), codes=codes)


def accuracy(true: list[Column], predicted: list[Column], sample_weight: Any) -> float:
    """Weighted share of rows on which every target is predicted as it is."""
    check_same_rows(len(predicted[0].codes), true[0].codes, "y")
    right = right_rows(true, predicted)
    return float(np.average(right, weights=check_sample_weight(sample_weight, len(right))))
