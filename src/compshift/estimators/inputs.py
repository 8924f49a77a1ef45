"""What estimators take: features as a matrix, targets and attributes as codes in one space."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from compshift._checks import check_finite, check_same_rows
from compshift._errors import InputError, listing
from compshift.core.arrays import BoolArray, FloatArray, IntArray
from compshift.core.columns import Column, read_columns
from compshift.core.groups import GroupSpace


class Labels(NamedTuple):
    """Groups of the training rows. The space has the targets first, then the attributes."""

    space: GroupSpace
    codes: IntArray  # (n, m)
    n_targets: int
    one_dimensional: bool  # whether y was (n,), so that predictions are too


def training_features(estimator: BaseEstimator, X: Any) -> FloatArray:
    """Features (n, p) to fit on, as finite float64; the estimator notes their number and names."""
    array = validate_data(estimator, X, dtype=np.float64, ensure_all_finite=False)
    check_finite(array)
    return np.asarray(array)


def known_features(estimator: BaseEstimator, X: Any) -> FloatArray:
    """Features (n, p) for a fitted estimator: the columns it was fitted on, as finite float64."""
    check_is_fitted(estimator)
    shape = getattr(X, "shape", None) or np.asarray(X).shape
    if not hasattr(X, "columns") and len(shape) == 2 and shape[1] != estimator.n_features_in_:
        raise InputError(
            f"X has {shape[1]} features, but {type(estimator).__name__} is expecting {estimator.n_features_in_} "
            "features as input: pass the columns it was fitted on, in the same order"
        )
    array = validate_data(estimator, X, dtype=np.float64, ensure_all_finite=False, reset=False)
    check_finite(array)
    return np.asarray(array)


def read_labels(y: Any, attributes: Any, space: GroupSpace | None, keep: BoolArray) -> Labels:
    """Labels of the rows to keep, a mask over all n rows; values come from those rows, or from ``space``."""
    targets = read_columns(y, default="y")
    nuisances = [] if attributes is None else read_columns(attributes, default="a")
    columns = []
    for name, group in (("y", targets), ("attributes", nuisances)):
        if group:
            check_same_rows(len(keep), group[0].codes, name)
        columns += [_keep_rows(column, keep) for column in group]
    for column in columns[: len(targets)]:
        check_classification_targets(np.array(column.values))
        if len(column.values) == 1:
            raise InputError(
                f"target {column.name!r} has only one class ({column.values[0]!r}): pass rows of at least two classes"
            )
    for column in columns[len(targets) :]:
        if len(column.values) == 1:
            warnings.warn(
                f"attribute {column.name!r} has the single value {column.values[0]!r} in training: it tells groups "
                "apart only if space= names further values",
                stacklevel=3,
            )
    found = GroupSpace.from_columns(columns)
    space = found if space is None else _arranged(space, found.names)
    table = {column.name: np.array(column.values)[column.codes] for column in columns}
    codes = space.encode(table) if space is not found else np.stack([column.codes for column in columns], axis=1)
    return Labels(space, codes, len(targets), _dimensions(y) == 1)


def _dimensions(values: Any) -> int:
    """Number of dimensions of an array, frame or nested list."""
    return int(values.ndim) if hasattr(values, "ndim") else np.asarray(values, dtype=object).ndim


def _keep_rows(column: Column, keep: BoolArray) -> Column:
    """The column's chosen rows, without values that only other rows have."""
    used, codes = np.unique(column.codes[keep], return_inverse=True)
    return Column(column.name, tuple(column.values[position] for position in used), codes.reshape(-1))


def _arranged(space: GroupSpace, names: Sequence[str]) -> GroupSpace:
    """The given space with its attributes in the order of the columns, by name where the names agree."""
    if len(space.names) != len(names):
        raise InputError(
            f"space has {len(space.names)} attributes ({listing(space.names)}) but y and attributes have "
            f"{len(names)} columns ({listing(names)}): describe each column, targets first"
        )
    if set(names) != set(space.names):
        return space
    order = [space.names.index(name) for name in names]
    return GroupSpace(tuple(names), tuple(space.values[position] for position in order))
