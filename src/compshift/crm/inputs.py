"""Input checks of the estimators: read labels as codes, and check seeds and numbers of jobs.

All arguments of the estimators are checked here; the functions called later rely on types and shapes.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import DataConversionWarning
from sklearn.utils import check_random_state

from compshift._checks import (
    check_not_lazy,
    check_same_order,
    check_same_rows,
    check_sample_weight,
)
from compshift._errors import InputError, listing
from compshift.core.arrays import BoolArray, FloatArray, IntArray, is_other_library, to_numpy
from compshift.core.candidates import Candidates
from compshift.core.columns import (
    Column,
    check_repeats,
    check_value_count,
    match_columns,
    read_columns,
)
from compshift.core.groups import GroupSpace, check_space
from compshift.core.posterior import Pattern, known_patterns
from compshift.core.sparse import Features
from compshift.crm.features import labels_in_numpy, rows_of, training_features
from compshift.data.feature_store import FeatureStore
from compshift.metrics.group import correct_rows


@contextmanager
def restored_on_error(estimator: Any) -> Iterator[None]:
    """Restore an estimator's attributes if the block raises, so that attributes of two fits are never mixed.

    A fit replaces attributes and never modifies their values in place, so restoring the references is sufficient.
    """
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


MAX_JOBS = 1024
"""Largest accepted ``n_jobs``."""


def random_numbers(random_state: Any) -> np.random.RandomState:
    """Return the RandomState for a seed, a RandomState, or None, which means NumPy's global RandomState."""
    try:
        return check_random_state(random_state)  # type: ignore[no-any-return]
    except (TypeError, ValueError):
        raise InputError(
            f"random_state is {random_state!r}: pass an integer from 0 to 2**32 − 1, a numpy.random.RandomState, "
            "or None"
        ) from None


def seed_of(random_state: Any) -> int:
    """Draw one seed from a random state."""
    return int(random_numbers(random_state).randint(2**31))


def check_jobs(n_jobs: Any) -> int | None:
    """Check ``n_jobs``: None, or a nonzero integer up to ``MAX_JOBS``, where −1 means all cores."""
    if n_jobs is None:
        return None
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, int | np.integer) or n_jobs == 0 or n_jobs > MAX_JOBS:
        raise InputError(f"n_jobs is {n_jobs!r}: pass a nonzero integer up to {MAX_JOBS}, −1 for all cores, or None")
    return int(n_jobs)


@contextmanager
def visible_log(verbose: bool | int) -> Iterator[None]:
    """Show informational log messages while a fit runs, on standard error if logging is not configured."""
    if not verbose:
        yield
        return
    logger = logging.getLogger("compshift")
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


MAX_COLUMN_NAMES = 10
"""A list of strings that is shorter than this, and shorter than the number of samples, is taken for column names."""


def is_streamed(X: Any) -> bool:
    """Return whether features are a FeatureStore or a Dask collection, which are fitted in blocks."""
    return isinstance(X, FeatureStore) or is_dask(X)


def is_dask(values: Any) -> bool:
    """Return whether values are a Dask collection, without importing Dask."""
    return type(values).__module__.split(".")[0] == "dask"


class Labels(NamedTuple):
    """Codes of the samples, in a space with the targets first and then the attributes."""

    space: GroupSpace
    codes: IntArray  # (n, m); −1 where an attribute is missing
    n_targets: int
    one_dimensional: bool  # whether there is a single target, so that predictions are (n,)


class Incomplete(NamedTuple):
    """Training samples in which attributes are missing."""

    X: Features  # (i, p)
    sample_weight: FloatArray  # (i,) all above 0
    patterns: tuple[Pattern, ...]  # samples by known attribute values


class LabelledSamples(NamedTuple):
    """Training samples as arrays, and the candidate groups."""

    X: Features  # (n, p)
    position: IntArray  # (n,) index of each sample's seen group
    sample_weight: FloatArray  # (n,) all above 0
    candidates: Candidates
    n_targets: int
    one_dimensional: bool  # whether there is a single target, so that predictions are (n,)
    incomplete: Incomplete | None = None  # samples with missing attributes
    place: IntArray | None = None  # index in X of each row passed to ``fit``, −1 if not in X; None if all are in X


def read_training(
    estimator: BaseEstimator,
    X: Any,
    y: Any,
    attributes: Any,
    sample_weight: Any,
    space: GroupSpace | None,
    support: Any,
    *,
    missing: bool = False,
    any_library: bool = False,
) -> LabelledSamples:
    """Check and read training data in memory, without samples of weight 0.

    ``support`` names or lists the candidate groups; ``missing`` allows attributes to be missing in some samples. With
    ``any_library``, features that scikit-learn dispatches on stay in their library if no attribute is missing. Call
    only from a method that ``fit`` itself calls: ``stacklevel`` of the warnings assumes that depth.
    """
    check_same_order({"X": X, "y": y, "attributes": attributes, "sample_weight": sample_weight})
    labels_given = {"y": y, "attributes": attributes, "sample_weight": sample_weight}
    y, attributes, sample_weight = labels_in_numpy(X, labels_given)
    X = training_features(estimator, X, any_library=any_library)
    weight = check_sample_weight(sample_weight, len(X))
    keep = weight > 0
    labels = read_labels(y, attributes, space, keep, stacklevel=5, missing=missing)
    if not keep.all():
        X, weight = rows_of(X, np.flatnonzero(keep)), weight[keep]
    complete = (labels.codes >= 0).all(axis=1)
    place = None
    if len(X) < len(keep) or not complete.all():
        kept = np.flatnonzero(keep)[complete]
        place = np.full(len(keep), -1, dtype=np.int64)
        place[kept] = np.arange(len(kept))
    seen_groups, position = labels.space.distinct(labels.codes[complete])
    incomplete = None
    if not complete.all():
        X = to_numpy(X) if is_other_library(X) else X
        patterns = known_patterns(labels.space, seen_groups, labels.codes[~complete])
        incomplete = Incomplete(X[~complete], weight[~complete], patterns)
        X, weight = X[complete], weight[complete]
    seen_weight = np.bincount(position, weights=weight).astype(np.float64)  # (k,)
    candidates = Candidates.of(labels.space, seen_groups, seen_weight, support)
    return LabelledSamples(X, position, weight, candidates, labels.n_targets, labels.one_dimensional, incomplete, place)


def read_labels(
    y: Any,
    attributes: Any,
    space: GroupSpace | None,
    keep: BoolArray,
    stacklevel: int = 3,
    *,
    missing: bool = False,
) -> Labels:
    """Read the labels of the samples selected by ``keep`` (n,), in ``space`` or else in the space of their values.

    The values of a target are sorted, as scikit-learn expects of ``classes_``. ``stacklevel`` is that of the warnings.
    ``missing`` allows attributes, but not targets, to be missing in some samples.
    """
    for name, values in (("y", y), ("attributes", attributes)):
        reject_names(values, name, len(keep))
    targets = read_columns(y, default="y")
    names = [column.name for column in targets]
    nuisances = [] if attributes is None else read_columns(attributes, default="a", taken=names, missing=missing)
    for name, parts in (("y", targets), ("attributes", nuisances)):
        if parts:
            check_same_rows(len(keep), parts[0].codes, name)
    columns = [_keep_rows(column, keep) for column in [*targets, *nuisances]]
    _check_complete(columns)
    for column in columns[: len(targets)]:
        _check_classes(column, weighted_out=not keep.all())
    for column in columns[len(targets) :]:
        check_repeats(column)
        if space is None:
            check_value_count(column.name, len(column.values), "pass a space that lists them")
        if len(column.values) == 1:
            warnings.warn(
                f"attribute {column.name!r} has the single value {column.values[0]!r} in training, so it does not "
                "distinguish groups: leave it out, or pass a space with further values",
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


def reject_names(values: Any, name: str, n_rows: int) -> None:
    """Check that ``values`` are labels, and neither column names nor a lazy frame."""
    check_not_lazy(values, name)
    if isinstance(values, str):
        raise InputError(
            f"{name} is the text {values!r}: pass the values of the column, as in {name}=df[{values!r}] with "
            "X=df[features]; column names are accepted only with a FeatureStore"
        )
    if not isinstance(values, list | tuple) or len(values) >= min(n_rows, MAX_COLUMN_NAMES):
        return
    if len(values) and all(isinstance(value, str) for value in values):
        columns = values[0] if len(values) == 1 else list(values)
        raise InputError(
            f"{name} is {values!r} but X has {n_rows} rows: pass one value per sample or, if these are column names, "
            f"the columns, as in {name}=df[{columns!r}] with X=df[features]"
        )


def _encode(space: GroupSpace, columns: Sequence[Column]) -> IntArray:
    """Return the codes (n, m) of columns in the order of the attributes; −1 for a missing value."""
    known = [column._replace(codes=np.maximum(column.codes, 0)) for column in columns]
    codes = space._encode_columns(known)
    for position, column in enumerate(columns):
        codes[column.codes < 0, position] = -1
    return codes


def _check_complete(columns: Sequence[Column]) -> None:
    """Check that at least one sample is complete: only groups of complete samples are seen groups."""
    absent = [column.name for column in columns if (column.codes < 0).any()]
    if absent and not np.logical_and.reduce([column.codes >= 0 for column in columns]).any():
        raise InputError(
            f"every row has a missing value among the attributes {listing(absent)}, but the seen groups are those of "
            "rows without missing values: pass some complete rows, or leave out an attribute"
        )


def _check_classes(column: Column, *, weighted_out: bool) -> None:
    """Check that a target is not continuous, and that it has two or more classes."""
    values = np.array(column.values)
    if values.dtype.kind == "f" and (values != np.floor(values)).any():
        odd = values[values != np.floor(values)][0]
        raise InputError(
            f"Unknown label type: target {column.name!r} is continuous (it has the value {odd:g}); a classifier needs "
            "discrete classes: convert it to text or integers, for example by binning"
        )
    if len(values) == 1:
        where = " in the rows with a weight above 0" if weighted_out else ""
        raise InputError(
            f"target {column.name!r} has only one class ({column.values[0]!r}){where}: pass rows of two classes or more"
        )


def _labels_space(columns: Sequence[Column], n_targets: int, space: GroupSpace | None) -> GroupSpace:
    """Return ``space`` in the order of the columns, or the space of the columns if it is None, with sorted targets."""
    if space is None:
        space = GroupSpace._from_columns(columns)
    order = match_columns(columns, check_space(space).names)
    values: list[Sequence[Any]] = [space.values[position] for position in order]
    values[:n_targets] = [sorted(part) for part in values[:n_targets]]
    return GroupSpace(tuple(space.names[position] for position in order), tuple(tuple(part) for part in values))


def _dimensions(values: Any) -> int:
    """Return the number of dimensions of an array, DataFrame or nested list."""
    return int(values.ndim) if hasattr(values, "ndim") else np.asarray(values, dtype=object).ndim


def _keep_rows(column: Column, keep: BoolArray) -> Column:
    """Return a column with only the samples selected by ``keep``, and only the values that occur in them."""
    used, codes = np.unique(column.codes[keep], return_inverse=True)
    codes = codes.reshape(-1)
    if len(used) and used[0] < 0:  # missing values stay −1
        used, codes = used[1:], codes - 1
    return column._replace(values=tuple(column.values[position] for position in used), codes=codes)


def accuracy(true: list[Column], predicted: list[Column], sample_weight: Any) -> float:
    """Return the weighted share of samples for which every target is predicted correctly."""
    check_same_rows(len(predicted[0].codes), true[0].codes, "y")
    right = correct_rows(true, predicted)
    return float(np.average(right, weights=check_sample_weight(sample_weight, len(right))))
