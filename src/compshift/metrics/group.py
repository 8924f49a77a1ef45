"""Accuracy by group with confidence intervals, its average, balanced and worst value, and the compositional risk."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from compshift._checks import check_fraction, check_numbers, check_same_order, check_same_rows
from compshift._errors import InputError
from compshift._html import TableResult
from compshift.core.accuracy import wilson_interval
from compshift.core.arrays import BoolArray, FloatArray, IntArray
from compshift.core.candidates import given_log_prior
from compshift.core.columns import Column, read_columns
from compshift.core.groups import GroupSpace, check_space, codes_of_index, distinct_codes, flat_index

if TYPE_CHECKING:
    import pandas as pd

MAX_REPORTED_GROUPS = 100_000
"""Maximum number of groups for which a report also lists empty groups; with more, it lists groups with samples only."""


@dataclass(frozen=True, eq=False, repr=False)
class GroupReport(TableResult):
    """Accuracy of predictions in each group (paper, "Metric Details"); the result of ``group_report``.

    Empty groups are excluded from all averages; they are listed if there are at most 100,000 groups. ``str(report)`` is
    a table for the terminal.

    Parameters
    ----------
    space : GroupSpace
        The targets and the attributes, with their values.
    groups : array (g, m)
        Codes of the groups; the arrays below are in this order.
    count : array (g,)
        Number of samples of each group.
    accuracy : array (g,)
        Share of correct predictions; NaN for an empty group.
    lower : array (g,)
        Lower end of the Wilson interval of the accuracy.
    upper : array (g,)
        Upper end of the Wilson interval of the accuracy.
    confidence : float
        Confidence level of the intervals.
    compositional_risk : float or None
        Compositional risk; None if ``group_log_proba`` was not passed.

    Examples
    --------
    >>> from compshift.metrics import group_report
    >>> report = group_report(["a", "a", "b", "b"], ["a", "b", "b", "b"], attributes=[0, 1, 0, 0])
    >>> report.to_frame()[["y", "a", "count", "accuracy"]]
       y  a  count  accuracy
    0  a  0      1       1.0
    1  a  1      1       0.0
    2  b  0      2       1.0
    3  b  1      0       NaN
    """

    _missing = "empty"

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
        """Share of correct predictions over all samples."""
        nonempty = self.count > 0
        return float(self.accuracy[nonempty] @ self.count[nonempty] / self.count.sum())

    @property
    def balanced(self) -> float:
        """Mean accuracy over the groups that have samples."""
        return float(np.nanmean(self.accuracy))

    @property
    def worst(self) -> float:
        """Lowest accuracy of a group that has samples."""
        return float(np.nanmin(self.accuracy))

    @property
    def worst_group(self) -> tuple[Hashable, ...]:
        """Attribute values of the group with the lowest accuracy; ties go to the group that is listed first."""
        code = self.groups[int(np.nanargmin(self.accuracy))]
        return tuple(values[position] for values, position in zip(self.space.values, code, strict=True))

    @property
    def n_empty(self) -> int:
        """Number of groups without samples."""
        return self.space.n_groups - int(np.count_nonzero(self.count))

    def to_frame(self) -> pd.DataFrame:
        """Return the report as a table.

        Returns
        -------
        DataFrame
            One row per group: its values, ``count``, ``accuracy``, ``lower`` and ``upper``.
        """
        return self.space.frame(
            self.groups, count=self.count, accuracy=self.accuracy, lower=self.lower, upper=self.upper
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the report as numbers, text and lists that JSON can hold.

        Returns
        -------
        dict
            The summary and the list ``groups``. The accuracy of an empty group is None, and so is a compositional risk
            that is infinite or was not computed.
        """
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

    def to_fairlearn(self) -> Any:
        """Return the report as a fairlearn ``MetricFrame``, for its differences, ratios and plots.

        Returns
        -------
        fairlearn.metrics.MetricFrame
            Metrics ``count`` and ``accuracy``; the sensitive features are the targets and attributes. A report has no
            rows, so in the frame's rows ``y_true`` is 1, and ``y_pred`` is 1 for a correct prediction and 0 otherwise.
        """
        try:
            from fairlearn.metrics import MetricFrame, count
        except ImportError:
            raise InputError("to_fairlearn needs fairlearn: run pip install fairlearn") from None
        from sklearn.metrics import accuracy_score

        n_correct = np.round(np.nan_to_num(self.accuracy) * self.count).astype(np.int64)
        pairs = np.stack([n_correct, self.count - n_correct], axis=1)  # (g, 2) rows of each group: correct, wrong
        rows = np.repeat(np.arange(len(pairs)), self.count)
        correct = np.repeat(np.tile([1, 0], len(pairs)), pairs.ravel())
        return MetricFrame(
            metrics={"count": count, "accuracy": accuracy_score},
            y_true=np.ones_like(correct),
            y_pred=correct,
            sensitive_features=self.space.frame(self.groups[rows]),
        )

    def _summary(self) -> str:
        lines = [
            f"average accuracy   {self.average:.4f}",
            f"balanced accuracy  {self.balanced:.4f}",
            f"worst group        {self.worst:.4f}  ({', '.join(map(str, self.worst_group))})",
        ]
        if self.compositional_risk is not None:
            lines.append(f"compositional risk {self.compositional_risk:.4f}")
        if self.n_empty:
            lines.append(f"empty groups       {self.n_empty} of {self.space.n_groups}")
        return "\n".join(lines)


def group_report(
    y_true: Any,
    y_pred: Any,
    attributes: Any = None,
    group_log_proba: Any = None,
    *,
    space: GroupSpace | None = None,
    prior: Any = None,
    confidence: float = 0.9,
) -> GroupReport:
    r"""Compute the accuracy of predictions in each group, a combination of true targets and attributes.

    Parameters
    ----------
    y_true : array (n,) or (n, t)
        True classes, one column per target.
    y_pred : array (n,) or (n, t)
        Predicted classes. A sample counts as correct if all of its targets are.
    attributes : array (n,) or (n, s), optional
        True attributes.
    group_log_proba : array (n, g) or (n,), optional
        log p(z|x) of every group z, (n, g), in the order of ``space.index``; or only of the true group of each sample,
        (n,). To pass the result of a classifier's ``group_log_proba``, pass ``space=clf.space_`` too: the default space
        has only the values that occur in the data, so its groups may be fewer or in another order.
    space : GroupSpace, optional
        Targets and attributes with all their values; by default the values that occur in the data.
    prior : array, Series or mapping, optional
        q(z) in the compositional risk, restricted to groups with samples and renormalised; uniform by default.
    confidence : float, optional
        Confidence level of the intervals.

    Returns
    -------
    GroupReport
        Average, balanced and worst accuracy, the accuracy and interval of each group, and, if ``group_log_proba`` is
        passed, the compositional risk.

    Raises
    ------
    InputError
        If the numbers of rows differ, if values are missing, or if ``prior`` is passed without ``group_log_proba``.

    Notes
    -----
    The compositional risk (paper, label "comp-risk-justification" in docs/maths.md) is

    .. math:: R_{comp} = \sum_z q(z) \; \mathrm{mean}_{x \in z} (-\log p(z|x))

    Examples
    --------
    >>> from compshift.metrics import group_report
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
    is_correct = correct_rows(true, predicted)
    space = GroupSpace._from_columns(columns) if space is None else check_space(space)
    codes = space._encode_columns(columns)
    groups, position = listed_groups(space, codes)
    count = np.bincount(position, minlength=len(groups))
    n_correct = np.bincount(position, weights=is_correct, minlength=len(groups))
    lower, upper = wilson_interval(n_correct, count, confidence)
    accuracy = n_correct / np.where(count > 0, count, np.nan)
    risk = None
    if group_log_proba is not None:
        own = _own_log_proba(group_log_proba, space, codes)
        risk = _compositional_risk(own, position, count, _group_prior(prior, space, groups, count))
    elif prior is not None:
        raise InputError("prior is only used for the compositional risk: pass group_log_proba too, or leave prior out")
    return GroupReport(space, groups, count, accuracy, lower, upper, confidence, risk)


def worst_group_accuracy(y_true: Any, y_pred: Any, attributes: Any = None) -> float:
    """Return the lowest accuracy over the groups that have samples.

    Parameters
    ----------
    y_true : array (n,) or (n, t)
        True classes, one column per target.
    y_pred : array (n,) or (n, t)
        Predicted classes.
    attributes : array (n,) or (n, s), optional
        True attributes.

    Returns
    -------
    float
        ``group_report(y_true, y_pred, attributes).worst``.

    Examples
    --------
    >>> from compshift.metrics import worst_group_accuracy
    >>> worst_group_accuracy(["a", "a", "b", "b"], ["a", "b", "b", "b"], attributes=[0, 1, 0, 0])
    0.0
    """
    return group_report(y_true, y_pred, attributes).worst


def group_balanced_accuracy(y_true: Any, y_pred: Any, attributes: Any = None) -> float:
    """Return the mean accuracy over the groups that have samples.

    Parameters
    ----------
    y_true : array (n,) or (n, t)
        True classes, one column per target.
    y_pred : array (n,) or (n, t)
        Predicted classes.
    attributes : array (n,) or (n, s), optional
        True attributes.

    Returns
    -------
    float
        ``group_report(y_true, y_pred, attributes).balanced``.

    Examples
    --------
    >>> from compshift.metrics import group_balanced_accuracy
    >>> round(group_balanced_accuracy(["a", "a", "b", "b"], ["a", "b", "b", "b"], attributes=[0, 1, 0, 0]), 3)
    0.667
    """
    return group_report(y_true, y_pred, attributes).balanced


def listed_groups(space: GroupSpace, codes: IntArray) -> tuple[IntArray, IntArray]:
    """Return the groups (g, m) that a report lists, and the position among them of each of the ``codes`` (n, m), (n,).

    These are all groups of the space or, if it has more than ``MAX_REPORTED_GROUPS``, those that occur.
    """
    if space.n_groups > MAX_REPORTED_GROUPS:
        return distinct_codes(codes, space.cardinalities)
    return codes_of_index(np.arange(space.n_groups), space.cardinalities), flat_index(codes, space.cardinalities)


def correct_rows(true: list[Column], predicted: list[Column]) -> BoolArray:
    """Return whether all targets of each sample are predicted correctly, (n,)."""
    if len(true) != len(predicted):
        raise InputError(
            f"y_true has {len(true)} columns but y_pred has {len(predicted)}: pass the same targets in both"
        )
    correct = np.ones(len(true[0].codes), dtype=np.bool_)
    for expected, actual in zip(true, predicted, strict=True):
        left, other = expected.values[0], actual.values[0]
        if isinstance(left, str) != isinstance(other, str):
            raise InputError(
                f"target {expected.name!r} is {left!r}, … in y_true but {other!r}, … in y_pred: "
                "pass both as text or both as numbers"
            )
        code = {value: position for position, value in enumerate(actual.values)}
        same = np.array([code.get(value, -1) for value in expected.values])  # −1 if never predicted
        correct &= same[expected.codes] == actual.codes
    return correct


def _own_log_proba(group_log_proba: Any, space: GroupSpace, codes: IntArray) -> FloatArray:
    """Check ``group_log_proba`` and return log p(z|x) of the true group z of each sample, (n,)."""
    expected = "pass logarithms of probabilities, one row per sample"
    values = np.atleast_1d(check_numbers(group_log_proba, "group_log_proba", expected))
    check_same_rows(len(codes), values, "group_log_proba", "y_true")
    if np.isnan(values).any() or (values > 1e-9).any():
        raise InputError("group_log_proba has NaN or positive entries: pass logarithms of probabilities")
    if values.ndim == 1:
        return np.asarray(values)
    if values.shape[1:] != (space.n_groups,):
        raise InputError(
            f"group_log_proba has shape {values.shape} but there are {space.n_groups} groups of {space.names}: pass "
            "one column per group, with space=clf.space_ if some values of the classifier do not occur in the data, or "
            "one number per sample"
        )
    return np.asarray(values[np.arange(len(values)), flat_index(codes, space.cardinalities)])


def _group_prior(prior: Any, space: GroupSpace, groups: IntArray, count: IntArray) -> FloatArray:
    """Return q(z) of the listed groups, (g,): 0 for empty groups, and with a sum of 1."""
    if prior is None:
        weights = (count > 0).astype(np.float64)
    else:
        weights = np.where(count > 0, np.exp(given_log_prior(prior, space, groups)), 0.0)
    if not weights.any():
        raise InputError(
            "prior is 0 for every group with samples: pass a prior that is above 0 for at least one of them"
        )
    return np.asarray(weights / weights.sum())


def _compositional_risk(own: FloatArray, position: IntArray, count: IntArray, prior: FloatArray) -> float:
    """Return Σ_z q(z) · mean of −log p(z|x) over the samples of z."""
    total = np.zeros(len(count))
    used = prior > 0
    with np.errstate(over="ignore"):  # a risk that overflows is infinite
        np.add.at(total, position, -own)
        return float(prior[used] @ (total[used] / count[used]))
