"""Accuracy by group: average, balanced, worst, and every group with its interval."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from compshift._checks import check_fraction, check_numbers, check_same_order, check_same_rows
from compshift._errors import InputError
from compshift.core.accuracy import wilson_interval
from compshift.core.arrays import BoolArray, FloatArray, IntArray
from compshift.core.candidates import given_log_prior
from compshift.core.columns import Column, read_columns
from compshift.core.groups import GroupSpace, check_space

if TYPE_CHECKING:
    import pandas as pd

MAX_LISTED_GROUPS = 100_000
"""Up to this many groups every one is listed, empty or not; beyond it only those that have rows."""


@dataclass(frozen=True, eq=False)
class GroupReport:
    """Accuracies of one set of predictions (paper, "Metric Details"); empty groups are listed but count for nothing.

    ``group_report`` makes it. ``str`` gives a table for the terminal.

    Attributes
    ----------
    space : GroupSpace
        Targets first, then attributes.
    groups : array (g, m)
        Codes of the groups; the arrays below follow it.
    count : array (g,)
        Rows of each group.
    accuracy : array (g,)
        Share of them that is right; NaN where a group is empty.
    lower, upper : arrays (g,)
        Ends of the Wilson interval.
    confidence : float
        Of the interval.
    compositional_risk : float or None
        If log-probabilities of groups were given.
    """

    space: GroupSpace
    groups: IntArray
    count: IntArray
    accuracy: FloatArray
    lower: FloatArray
    upper: FloatArray
    confidence: float
    compositional_risk: float | None

    @property
    def average(self) -> float:
        """Share of rows that are right, whatever their group."""
        held = self.count > 0
        return float(self.accuracy[held] @ self.count[held] / self.count.sum())

    @property
    def balanced(self) -> float:
        """Mean of the accuracies of the groups that have rows."""
        return float(np.nanmean(self.accuracy))

    @property
    def worst(self) -> float:
        """Lowest accuracy of a group that has rows."""
        return float(np.nanmin(self.accuracy))

    @property
    def worst_group(self) -> tuple[Hashable, ...]:
        """Values of the group with the lowest accuracy; the first such group in order of codes."""
        code = self.groups[int(np.nanargmin(self.accuracy))]
        return tuple(values[position] for values, position in zip(self.space.values, code, strict=True))

    @property
    def n_empty(self) -> int:
        """How many combinations of values have no row."""
        return self.space.n_groups - int(np.count_nonzero(self.count))

    def to_frame(self) -> pd.DataFrame:
        """One row per group: its values, rows, accuracy and interval."""
        return self.space.frame(
            self.groups, count=self.count, accuracy=self.accuracy, lower=self.lower, upper=self.upper
        )

    def to_dict(self) -> dict[str, Any]:
        """The report as numbers, text and lists, for JSON; None for an empty group's accuracy or an infinite risk."""
        frame, risk = self.to_frame().astype(object), self.compositional_risk
        return {
            "average": self.average,
            "balanced": self.balanced,
            "worst": self.worst,
            "worst_group": list(self.worst_group),
            "n_empty": self.n_empty,
            "confidence": self.confidence,
            "compositional_risk": risk if risk is not None and math.isfinite(risk) else None,
            "groups": frame.where(frame.notna(), None).to_dict("records"),
        }

    def __str__(self) -> str:
        lines = [
            f"average accuracy   {self.average:.4f}",
            f"balanced accuracy  {self.balanced:.4f}",
            f"worst group        {self.worst:.4f}  ({', '.join(map(str, self.worst_group))})",
        ]
        if self.compositional_risk is not None:
            lines.append(f"compositional risk {self.compositional_risk:.4f}")
        if self.n_empty:
            lines.append(f"empty groups       {self.n_empty} of {self.space.n_groups}")
        return "\n".join([*lines, "", self.to_frame().to_string(index=False, na_rep="empty")])


def group_report(
    y_true: Any,
    y_pred: Any,
    attributes: Any = None,
    group_log_proba: Any = None,
    *,
    space: GroupSpace | None = None,
    prior: Any = None,
    confidence: float = 0.95,
) -> GroupReport:
    r"""Accuracy of predictions in each group of true class and attributes.

    ``y_true`` and ``y_pred`` are (n,) or, for several targets, (n, t): a row is right if all of its targets are.
    ``attributes`` (n,) or (n, s) are the true attributes. Groups are the combinations of all values that occur, or
    those of ``space`` (targets first).

    With ``group_log_proba``, log p(z|x) of every group in the order of the space's flat index (n, g), or of each row's
    own group (n,), the report has the compositional risk (paper, eq. "comp-risk-justification"). Without ``space`` that
    order is the one of the sorted values that occur; pass ``space=clf.space_`` to be sure that the columns are matched.

    .. math:: R_{comp} = \sum_z q(z) \; \mathrm{mean}_{x \in z} (-\log p(z|x))

    where q is uniform over the groups that have rows, or ``prior`` (an array, Series or mapping) restricted to them.
    ``confidence`` is that of the groups' intervals.

    >>> report = group_report(["a", "a", "b", "b"], ["a", "b", "b", "b"], attributes=[0, 1, 0, 0])
    >>> report.average, report.worst, report.worst_group, report.n_empty
    (0.75, 0.0, ('a', 1), 1)
    """
    confidence = check_fraction(confidence, "confidence")
    tables = {"y_true": y_true, "y_pred": y_pred, "attributes": attributes, "group_log_proba": group_log_proba}
    check_same_order(tables)
    true, predicted = read_columns(y_true, default="y"), read_columns(y_pred, default="y")
    names = [column.name for column in true]
    columns = true + ([] if attributes is None else read_columns(attributes, default="a", taken=names))
    n_rows = len(columns[0].codes)
    if n_rows == 0:
        raise InputError("y_true is empty: pass at least one row")
    for name, column in (("y_pred", predicted[0]), ("attributes", columns[-1])):
        if len(column.codes) != n_rows:
            raise InputError(f"{name} has {len(column.codes)} rows but y_true has {n_rows}: pass one row per sample")
    right = right_rows(true, predicted)
    space = GroupSpace._from_columns(columns) if space is None else check_space(space)
    codes = space._encode_columns(columns)

    if space.n_groups <= MAX_LISTED_GROUPS:
        groups, position = space.codes(np.arange(space.n_groups)), space.index(codes)
    else:
        groups, position = space.distinct(codes)
    count = np.bincount(position, minlength=len(groups))
    correct = np.bincount(position, weights=right, minlength=len(groups))
    lower, upper = wilson_interval(correct, count, confidence)
    accuracy = correct / np.where(count > 0, count, np.nan)
    risk = None
    if group_log_proba is not None:
        own = _own_log_proba(group_log_proba, space, codes)
        risk = _compositional_risk(own, position, count, _group_prior(prior, space, groups, count))
    elif prior is not None:
        raise InputError("prior is used for the compositional risk only: pass group_log_proba too")
    return GroupReport(space, groups, count, accuracy, lower, upper, confidence, risk)


def worst_group_accuracy(y_true: Any, y_pred: Any, attributes: Any = None) -> float:
    """Lowest accuracy over the groups that have rows; the parameters are those of ``group_report``.

    >>> worst_group_accuracy(["a", "a", "b", "b"], ["a", "b", "b", "b"], attributes=[0, 1, 0, 0])
    0.0
    """
    return group_report(y_true, y_pred, attributes).worst


def group_balanced_accuracy(y_true: Any, y_pred: Any, attributes: Any = None) -> float:
    """Mean of the accuracies of the groups that have rows; the parameters are those of ``group_report``.

    >>> round(group_balanced_accuracy(["a", "a", "b", "b"], ["a", "b", "b", "b"], attributes=[0, 1, 0, 0]), 3)
    0.667
    """
    return group_report(y_true, y_pred, attributes).balanced


def right_rows(true: list[Column], predicted: list[Column]) -> BoolArray:
    """Whether every target of a row is predicted as it is, (n,); a value that is never predicted is wrong."""
    if len(true) != len(predicted):
        raise InputError(f"y_true has {len(true)} columns but y_pred has {len(predicted)}: pass the same targets")
    right = np.ones(len(true[0].codes), dtype=np.bool_)
    for expected, found in zip(true, predicted, strict=True):
        left, other = expected.values[0], found.values[0]
        if isinstance(left, str) != isinstance(other, str):
            raise InputError(
                f"target {expected.name!r} is {left!r}, … in y_true but {other!r}, … in y_pred: "
                "pass both as text or both as numbers"
            )
        code = {value: position for position, value in enumerate(found.values)}
        same = np.array([code.get(value, -1) for value in expected.values])  # which value found of each expected
        right &= same[expected.codes] == found.codes
    return right


def _own_log_proba(group_log_proba: Any, space: GroupSpace, codes: IntArray) -> FloatArray:
    """Log p(z|x) of each row's own group, (n,)."""
    expected = "pass logarithms of probabilities, one row per sample"
    values = np.atleast_1d(check_numbers(group_log_proba, "group_log_proba", expected))
    check_same_rows(len(codes), values, "group_log_proba", "y_true")
    if np.isnan(values).any() or (values > 1e-9).any():
        raise InputError("group_log_proba has NaN or positive entries: pass logarithms of probabilities")
    if values.ndim == 1:
        return np.asarray(values)
    if values.shape[1:] != (space.n_groups,):
        raise InputError(
            f"group_log_proba has shape {values.shape} but there are {space.n_groups} groups of {space.names}: pass a "
            "column for each, with space=clf.space_ if some of its values do not occur here, or one number per row"
        )
    return np.asarray(values[np.arange(len(values)), space.index(codes)])


def _group_prior(prior: Any, space: GroupSpace, groups: IntArray, count: IntArray) -> FloatArray:
    """q(z) over the listed groups, 0 for empty ones, summing to 1."""
    if prior is None:
        weights = (count > 0).astype(np.float64)
    else:
        weights = np.where(count > 0, np.exp(given_log_prior(prior, space, groups)), 0.0)
    if not weights.any():
        raise InputError("prior gives no probability to any group that has rows")
    return np.asarray(weights / weights.sum())


def _compositional_risk(own: FloatArray, position: IntArray, count: IntArray, prior: FloatArray) -> float:
    """Σ_z q(z) · mean of −log p(z|x) over the rows of z."""
    total = np.zeros(len(count))
    used = prior > 0
    with np.errstate(over="ignore"):  # a risk that is too large for a number is infinite
        np.add.at(total, position, -own)
        return float(prior[used] @ (total[used] / count[used]))
