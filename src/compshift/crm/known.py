r"""Predictions for samples of which some attributes are known; these may be different attributes for each sample.

The paper assumes that only the features of a new sample are known, and so do predictions without ``attributes``. If
some attributes a of a sample are known, its posterior is that over the groups that agree with them, in other words the
posterior under the prior restricted to these groups,

.. math:: \hat q(z | x, a) = \frac{1[z \text{ agrees with } a] \, \hat q(z|x)}{\sum_{z' \text{ agrees}} \hat q(z'|x)}.

Samples with the same known values share a restricted prior, so a copy of the classifier predicts them together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from array_api_compat import device

from compshift._checks import check_same_order, check_same_rows
from compshift._errors import InputError, listing, shown, unknown_name
from compshift.core.arrays import FloatArray, IntArray, index_like, is_other_library, namespace
from compshift.core.columns import Column, as_mapping, read_columns
from compshift.core.groups import GroupSpace
from compshift.core.posterior import agreement, rows_by_known_values
from compshift.crm.features import labels_in_numpy, prediction_features, rows_of
from compshift.crm.inputs import reject_names
from compshift.data.dataset import as_known

if TYPE_CHECKING:
    from compshift.crm.base import GroupClassifier

Classifier = TypeVar("Classifier", bound="GroupClassifier")


def predict_known(
    clf: Classifier,
    X: Any,
    attributes: Any,
    predict: Callable[[Classifier, FloatArray], Sequence[Any]],
    *,
    any_library: bool = False,
) -> list[Any]:
    """Check features and known attributes, call ``predict`` on them, and return its arrays, with one row per sample.

    ``predict`` takes a classifier and features (r, p). It is called once if ``attributes`` is None, otherwise once for
    each set of samples with the same known values, with a classifier whose prior is restricted to agreeing groups. With
    ``any_library``, features that scikit-learn dispatches on are passed on in their library.
    """
    check_same_order({"X": X, "attributes": attributes})
    (attributes,) = labels_in_numpy(X, {"attributes": attributes})
    X = prediction_features(clf, X, any_library=any_library)
    if attributes is None:
        return list(predict(clf, X))
    results: list[Any] = []
    for rows, part in restricted_parts(clf, known_codes(clf, attributes, len(X))):
        found = predict(part, rows_of(X, rows))
        results = results or [_empty(array, len(X)) for array in found]
        for result, array in zip(results, found, strict=True):
            result[index_like(rows, result) if is_other_library(result) else rows] = array
    return results


def _empty(array: Any, n_rows: int) -> Any:
    """Return an uninitialised array like ``array`` with another number of rows."""
    shape = (n_rows, *array.shape[1:])
    if is_other_library(array):
        return namespace(array).empty(shape, dtype=array.dtype, device=device(array))
    return np.empty(shape, dtype=array.dtype)


def known_codes(clf: GroupClassifier, attributes: Any, n_rows: int) -> IntArray:
    """Read known attributes as codes (n, m) with −1 for an unknown value; targets are never known.

    Raise an InputError if they cannot be read, if training lacks a value, or if no group with the known values of a
    sample has a positive probability.
    """
    space, n_targets = clf.space_, len(clf.targets_.names)
    columns = _attribute_columns(space, n_targets, attributes, n_rows)
    check_same_rows(n_rows, columns[0].codes, "attributes")
    codes = np.full((n_rows, len(space.names)), -1, dtype=np.int64)
    for column in columns:
        attribute = space.names.index(column.name)
        codes[:, attribute] = _codes(column, space, attribute)
    for known, rows in rows_by_known_values(space, codes):
        agreeing = agreement(clf.groups_, known)
        if not (agreeing & (clf.log_prior_ > -np.inf)).any():
            raise _no_group(space, known, int(rows[0]), candidates=bool(agreeing.any()))
    return codes


def restricted_parts(clf: Classifier, codes: IntArray) -> Iterator[tuple[IntArray, Classifier]]:
    """Yield the rows of samples with the same known ``codes`` (n, m), and a classifier to predict them.

    The prior of the classifier is restricted to the groups that agree with the codes. If all groups agree, the
    classifier is ``clf`` itself.
    """
    for known, rows in rows_by_known_values(clf.space_, codes):
        agreeing = agreement(clf.groups_, known)
        part = clf
        if not agreeing.all():
            part = copy(clf)
            part.log_prior_ = np.where(agreeing, clf.log_prior_, -np.inf)  # posteriors do not need its sum
        yield rows, part


def _attribute_columns(space: GroupSpace, n_targets: int, attributes: Any, n_rows: int) -> list[Column]:
    """Return known attributes as columns with the names of the model's attributes; they may be only some of these."""
    targets, names = space.names[:n_targets], space.names[n_targets:]
    _check_any(targets, names)
    reject_names(attributes, "attributes", n_rows)
    attributes = as_mapping(attributes)
    keys = attributes if isinstance(attributes, Mapping) else getattr(attributes, "columns", None)
    if keys is not None:
        _check_names([str(key) for key in keys], targets, names)
    columns = read_columns(attributes, missing=True)
    own = columns[0].name
    if keys is not None or (len(columns) == 1 and columns[0].named and own in names):
        return columns
    if len(columns) == 1 and columns[0].named and (own in targets or len(names) > 1):  # a Series
        _check_names([own], targets, names)
    if len(columns) != len(names):
        raise InputError(
            f"attributes has {len(columns)} column{'s' * (len(columns) > 1)} without names, but the model has "
            f"{len(names)} attribute{'s' * (len(names) > 1)} ({listing(names)}): pass a column for each of them, in "
            "this order, or a DataFrame with some of them"
        )
    return [column._replace(name=name) for name, column in zip(names, columns, strict=True)]


def check_known_names(clf: GroupClassifier, given: Sequence[str]) -> None:
    """Check that each of the ``given`` names is that of an attribute of the model, and not of a target."""
    targets = clf.targets_.names
    names = clf.space_.names[len(targets) :]
    _check_any(targets, names)
    _check_names(given, targets, names)


def _check_any(targets: Sequence[str], names: Sequence[str]) -> None:
    """Check that a model has attributes besides its targets."""
    if not names:
        raise InputError(
            f"the model has no attributes besides its target{'s' * (len(targets) > 1)} {listing(targets)}, so none can "
            "be known: leave attributes out"
        )


def _check_names(given: Sequence[str], targets: Sequence[str], names: Sequence[str]) -> None:
    """Check that the ``given`` names are among the ``names`` of a model's attributes."""
    if not given:
        raise InputError(f"attributes has no columns: pass some of {listing(names)}, or leave attributes out")
    for name in given:
        if name in targets:
            raise InputError(
                f"{name!r} is a target, which the model predicts: as known attributes pass only {listing(names)}"
            )
        if name not in names:
            raise unknown_name("attribute", name, names)


def _codes(column: Column, space: GroupSpace, attribute: int) -> IntArray:
    """Return the codes (n,) of a column that holds an attribute of the space; −1 for a missing value."""
    codes = space._positions[attribute]
    check_values(column, space.values[attribute])
    return np.array([*(codes[value] for value in column.values), -1], dtype=np.int64)[column.codes]


def check_values(column: Column, known: Collection[Hashable]) -> None:
    """Check that all values of a column are among the ``known`` values of its attribute."""
    for order, value in enumerate(column.values):
        if value not in known:
            raise InputError(
                f"attribute {column.name!r} is {shown(value)} in row {int(np.argmax(column.codes == order))}, a value "
                f"that training lacks: known values are {listing(known)}; leave the value missing (None, or an empty "
                "cell) in rows where it is new"
            )


def as_model_values(clf: GroupClassifier, table: Any) -> dict[str, Any]:
    """Return the columns of a table as arrays of the model's own values, with None where a value is missing."""
    values = dict(zip(clf.space_.names, clf.space_.values, strict=True))
    columns = {}
    for column in read_columns(table, missing=True):
        alike = tuple(as_known(value, values[column.name]) for value in column.values)
        check_values(column._replace(values=alike), values[column.name])
        columns[column.name] = np.array([*alike, None], dtype=object)[column.codes]
    return columns


def _no_group(space: GroupSpace, known: IntArray, row: int, *, candidates: bool) -> InputError:
    """Return the error for a row with known values that no group of positive probability has.

    ``candidates`` says whether a candidate group has them.
    """
    named = zip(space.names, space.values, known, strict=True)
    pairs = ", ".join(f"{name}={values[code]!r}" for name, values, code in named if code >= 0)
    reason, remedy = (
        ("which has probability 0 under the current prior", "use set_prior with a prior that includes it")
        if candidates
        else ("which no candidate group has", "fit with a support that includes it")
    )
    return InputError(f"row {row} has {pairs}, {reason}: leave one of its attributes missing (None), or {remedy}")
