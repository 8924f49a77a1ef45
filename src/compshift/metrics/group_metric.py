"""Any metric by group, with bootstrap intervals, and exchange with fairlearn's ``MetricFrame``."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from compshift._checks import (
    as_array,
    check_count,
    check_fraction,
    check_generator,
    check_list,
    check_same_order,
    check_same_rows,
    check_sample_weight,
)
from compshift._errors import InputError, an, listing, shown, unknown_name
from compshift._html import TableResult
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.columns import Column, read_columns
from compshift.core.groups import GroupSpace, check_space
from compshift.metrics.group import GroupReport, listed_groups

if TYPE_CHECKING:
    import pandas as pd

NO_ROWS = "no rows"
"""Reason why a group without samples has no value."""

UNKNOWN = "no rows, or the metric is undefined"
"""Reason why a group has no value if the number of its samples is not known."""

MIN_DEFINED_SHARE = 0.5
"""Smallest share of resamples in which the metric must be defined for an interval."""


@dataclass(frozen=True, eq=False, repr=False)
class GroupMetric(TableResult):
    """A metric by group, with intervals; the result of ``group_metric``. ``str(result)`` is a table for the terminal.

    A value or interval that does not exist is NaN, never 0 or 1, and ``reason`` says why.

    Parameters
    ----------
    name : str
        Name of the metric.
    space : GroupSpace
        The attributes that define the groups, with their values.
    groups : array (g, m)
        Codes of the groups; the arrays below are in this order.
    count : array (g,)
        Number of samples of each group; NaN if it is not known.
    value : array (g,)
        Metric of each group; NaN for a group without samples, or in which the metric is undefined.
    lower : array (g,)
        Lower end of the interval; NaN if there is none.
    upper : array (g,)
        Upper end of the interval; NaN if there is none.
    reason : tuple of str (g,)
        Why a group has no value or no interval; empty if it has both.
    overall : float
        Metric over all samples.
    confidence : float
        Confidence level of the intervals; NaN if there are none.

    Examples
    --------
    >>> from compshift.metrics import group_metric
    >>> def share(y_true, y_pred):
    ...     return (y_true == y_pred).mean()
    >>> group_metric(share, [0, 1, 1, 0], [0, 1, 0, 0], {"place": ["land", "land", "sea", "sea"]}).overall
    0.75
    """

    _missing = "–"

    name: str
    space: GroupSpace
    groups: IntArray
    count: IntArray | FloatArray
    value: FloatArray
    lower: FloatArray
    upper: FloatArray
    reason: tuple[str, ...]
    overall: float
    confidence: float

    def to_frame(self) -> pd.DataFrame:
        """Return the metric as a table.

        Returns
        -------
        DataFrame
            One row per group: its attribute values, ``count``, ``value``, ``lower``, ``upper`` and ``reason``.
        """
        names = ("count", "value", "lower", "upper")
        return self.space.frame(self.groups, **{name: getattr(self, name) for name in names}, reason=list(self.reason))

    def to_dict(self) -> dict[str, Any]:
        """Return the metric as numbers, text and lists that JSON can hold.

        Returns
        -------
        dict
            ``metric``, ``overall``, ``confidence`` and the list ``groups``; what is NaN or infinite is None.
        """
        frame = self.to_frame().astype(object)
        frame = frame.mask(frame.isna() | frame.isin([np.inf, -np.inf]), None)
        return {
            "metric": self.name,
            "overall": self.overall if math.isfinite(self.overall) else None,
            "confidence": None if math.isnan(self.confidence) else self.confidence,
            "groups": frame.to_dict("records"),
        }

    @classmethod
    def from_fairlearn(cls, frame: Any, metric: str | None = None) -> GroupMetric:
        """Return one metric of a ``fairlearn.metrics.MetricFrame``, with its intervals, if it was bootstrapped.

        Parameters
        ----------
        frame : MetricFrame
            Its sensitive features, and its control features before them, become attributes.
        metric : str, optional
            Name of the metric; needed if ``frame`` has several besides ``count``.

        Returns
        -------
        GroupMetric
            The metric by group. The number of samples is known if ``frame`` has a metric named ``count``, such as
            ``fairlearn.metrics.count``.
        """
        table = getattr(frame, "by_group", None)
        if table is None or not hasattr(frame, "overall"):
            raise InputError(f"frame is {an(type(frame).__name__)}: pass a fairlearn.metrics.MetricFrame")
        single = table.ndim == 1
        names = [str(table.name or "metric")] if single else [str(name) for name in table.columns]
        if metric is None:
            others = [name for name in names if name != "count"] or names
            if len(others) > 1:
                raise InputError(f"frame has the metrics {listing(others)}: name one of them as metric")
            metric = others[0]
        if metric not in names:
            raise unknown_name("metric", metric, names)

        def numbers(values: Any) -> FloatArray:
            try:
                return np.asarray(values if single else values[metric], dtype=np.float64)
            except (TypeError, ValueError):
                raise InputError(f"metric {metric!r} does not return numbers: name another metric") from None

        value = numbers(table)
        keys = table.index.to_frame(index=False)
        space = GroupSpace.from_table(keys)
        count = np.full(len(value), np.nan)
        if not single and "count" in names:
            count = table["count"].fillna(0).to_numpy(dtype=np.int64)
        lower = upper = np.full(len(value), np.nan)
        confidence, quantiles = math.nan, getattr(frame, "ci_quantiles", None) or []
        if len(set(quantiles)) > 1:
            first, last = int(np.argmin(quantiles)), int(np.argmax(quantiles))
            lower, upper = numbers(frame.by_group_ci[first]), numbers(frame.by_group_ci[last])
            confidence = float(quantiles[last] - quantiles[first])
        whole = np.asarray(frame.overall if single else frame.overall[metric], dtype=np.float64)
        return cls(
            name=metric,
            space=space,
            groups=space.encode(keys),
            count=count,
            value=value,
            lower=lower,
            upper=upper,
            reason=tuple(
                NO_ROWS if n == 0 else (UNKNOWN if np.isnan(n) else "the metric is undefined") if np.isnan(own) else ""
                for n, own in zip(count, value, strict=True)
            ),
            overall=float(whole) if whole.ndim == 0 else math.nan,  # with control features there is one for each level
            confidence=confidence,
        )

    def _summary(self) -> str:
        head = f"{self.name}, over all samples {self.overall:.4f}"
        head += "" if math.isnan(self.confidence) else f"; {self.confidence:.0%} intervals"
        return head

    def _shown_frame(self) -> pd.DataFrame:
        return self.to_frame().drop(columns=[] if any(self.reason) else ["reason"])


def group_metric(
    metric: Callable[..., Any],
    y_true: Any,
    y_pred: Any,
    attributes: Any = None,
    *,
    by: Sequence[str] | str | None = None,
    sample_weight: Any = None,
    space: GroupSpace | None = None,
    n_resamples: int = 500,
    confidence: float = 0.9,
    random_state: Any = 0,
) -> GroupMetric:
    """Compute any metric in each group, with bootstrap intervals.

    Rows are drawn with replacement within each group, and an interval has the percentiles of the metric over
    ``n_resamples`` such draws.

    Parameters
    ----------
    metric : callable
        Function of ``y_true`` and ``y_pred``, and of ``sample_weight`` if weights are passed, that returns a number,
        such as most of ``sklearn.metrics``. It is called with arrays of the rows of one group.
    y_true : array (n,) or (n, t)
        True classes or numbers.
    y_pred : array (n,), (n, t) or (n, c)
        Whatever ``metric`` compares with them: predictions, scores or probabilities.
    attributes : array (n,) or (n, s), DataFrame or mapping, optional
        True attributes.
    by : str or list of str, optional
        Names of the attributes whose combinations are the groups; those of ``y_true`` can be named too. By default, all
        columns of ``attributes``.
    sample_weight : array (n,), optional
        Weights, passed to ``metric``.
    space : GroupSpace, optional
        Attributes with all their values; by default the values that occur in the data.
    n_resamples : int, default=500
        Number of draws; the metric is called that often for each group.
    confidence : float, default=0.9
        Confidence level of the intervals.
    random_state : int or numpy.random.Generator, default=0
        Seed of the draws.

    Returns
    -------
    GroupMetric
        Value and interval of each group. Both are NaN, with a reason, for a group without rows and where the metric
        raises an error, is not finite, or is undefined by scikit-learn's ``UndefinedMetricWarning``. A group has no
        interval if the metric is undefined in more than half of the draws, or the same in all of them: the bootstrap
        then says nothing about the uncertainty.

    Raises
    ------
    InputError
        If the numbers of rows differ, a name is unknown, or the metric raises an error on all samples together.

    Examples
    --------
    >>> from sklearn.metrics import recall_score
    >>> from compshift.metrics import group_metric
    >>> place = {"place": ["land"] * 4 + ["sea"] * 3}
    >>> found = group_metric(recall_score, [1, 1, 1, 0, 0, 0, 0], [1, 1, 0, 0, 1, 0, 0], place)
    >>> found.to_frame()[["place", "count", "value"]].round(2)
      place  count  value
    0  land      4   0.67
    1   sea      3    NaN
    """
    if not callable(metric):
        raise InputError(f"metric is {shown(metric)}: pass a function of y_true and y_pred")
    confidence, n_resamples = check_fraction(confidence, "confidence"), check_count(n_resamples, "n_resamples")
    random = check_generator(random_state)
    check_same_order({"y_true": y_true, "y_pred": y_pred, "attributes": attributes, "sample_weight": sample_weight})
    arrays = [as_array(y_true, "y_true"), as_array(y_pred, "y_pred")]
    n_rows = len(arrays[0]) if arrays[0].ndim else 0
    if n_rows == 0:
        raise InputError("y_true has no rows: pass at least one")
    check_same_rows(n_rows, arrays[1], "y_pred", "y_true")
    if sample_weight is not None:
        _check_takes_weights(metric)
        arrays.append(check_sample_weight(sample_weight, n_rows))
    columns = _group_columns(y_true, attributes, by, n_rows)
    space = GroupSpace._from_columns(columns) if space is None else _space_of(check_space(space), columns)
    codes = space._encode_columns(columns)
    groups, position = listed_groups(space, codes)

    def measured(rows: IntArray) -> float:
        parts = [array[rows] for array in arrays]
        return _number(metric(*parts[:2]) if sample_weight is None else metric(*parts[:2], sample_weight=parts[2]))

    try:
        overall, _ = _defined(measured, np.arange(n_rows), strict=True)
    except Exception as error:
        raise InputError(f"the metric {_name(metric)} fails on all rows together: {error}") from error
    order = np.argsort(position, kind="stable")
    parts = np.split(order, np.searchsorted(position[order], np.arange(1, len(groups))))
    results = [
        _with_interval(measured, rows, n_resamples, confidence, generator)
        for rows, generator in zip(parts, random.spawn(len(groups)), strict=True)
    ]
    count = np.bincount(position, minlength=len(groups))
    value, lower, upper = np.array([numbers for *numbers, _ in results], dtype=np.float64).T
    reason = tuple(why for *_, why in results)
    return GroupMetric(_name(metric), space, groups, count, value, lower, upper, reason, overall, confidence)


def as_metric(result: GroupReport | GroupMetric) -> GroupMetric:
    """Return the accuracy of a report as a metric by group."""
    if isinstance(result, GroupMetric):
        return result
    return GroupMetric(
        name="accuracy",
        space=result.space,
        groups=result.groups,
        count=result.count,
        value=result.accuracy,
        lower=result.lower,
        upper=result.upper,
        reason=tuple("" if count else NO_ROWS for count in result.count),
        overall=result.average,
        confidence=result.confidence,
    )


def _with_interval(
    measured: Callable[[IntArray], float],
    rows: IntArray,
    n_resamples: int,
    confidence: float,
    random: np.random.Generator,
) -> tuple[float, float, float, str]:
    """Return the metric on the ``rows`` of one group, the ends of its interval, and why it has none of these."""
    nothing = (math.nan, math.nan)
    if not len(rows):
        return math.nan, *nothing, NO_ROWS
    value, why = _defined(measured, rows)
    if math.isnan(value):
        return value, *nothing, why
    if len(rows) == 1:
        return value, *nothing, "one row has no interval"
    from sklearn import config_context

    with warnings.catch_warnings(), config_context(skip_parameter_validation=True, assume_finite=True):
        warnings.simplefilter("ignore")
        drawn = np.array([_defined(measured, random.choice(rows, len(rows)))[0] for _ in range(n_resamples)])
    drawn = drawn[~np.isnan(drawn)]
    if len(drawn) < MIN_DEFINED_SHARE * n_resamples:
        return value, *nothing, f"the metric is undefined in {n_resamples - len(drawn)} of {n_resamples} resamples"
    if np.ptp(drawn) == 0:
        return value, *nothing, "the metric is the same in all resamples"
    lower, upper = np.quantile(drawn, [0.5 - confidence / 2, 0.5 + confidence / 2])
    return value, float(lower), float(upper), ""


def _defined(measured: Callable[[IntArray], float], rows: IntArray, *, strict: bool = False) -> tuple[float, str]:
    """Return the metric on ``rows`` and "", or NaN and the reason why it is undefined; if ``strict``, raise errors."""
    from sklearn.exceptions import UndefinedMetricWarning

    with warnings.catch_warnings():
        warnings.simplefilter("error", UndefinedMetricWarning)
        try:
            value = measured(rows)
        except UndefinedMetricWarning as warning:
            return math.nan, " ".join(str(warning).split())
        except Exception as error:
            if strict:
                raise
            return math.nan, " ".join(f"{type(error).__name__}: {error}".split())
    return (value, "") if math.isfinite(value) else (math.nan, "the metric is not a finite number")


def _number(value: Any) -> float:
    """Return what a metric returned as a float."""
    array = np.asarray(value)
    if array.ndim or array.dtype.kind not in "biuf":
        raise InputError(f"it returned {shown(value)}, but must return one number")
    return float(array)


def _name(metric: Any) -> str:
    """Return the name of a function, also inside ``functools.partial``."""
    inner = getattr(metric, "func", metric)
    return str(getattr(inner, "__name__", type(inner).__name__))


def _check_takes_weights(metric: Callable[..., Any]) -> None:
    """Raise an InputError if a metric is known to have no parameter ``sample_weight``."""
    try:
        parameters = inspect.signature(metric).parameters.values()
    except (TypeError, ValueError):  # a built-in function: calling it will tell
        return
    if not any(one.name == "sample_weight" or one.kind is one.VAR_KEYWORD for one in parameters):
        raise InputError(
            f"the metric {_name(metric)} has no parameter sample_weight: leave sample_weight out, or pass a metric "
            "that takes weights"
        )


def _group_columns(y_true: Any, attributes: Any, by: Sequence[str] | str | None, n_rows: int) -> list[Column]:
    """Return the columns whose combinations are the groups."""
    columns = [] if attributes is None else read_columns(attributes, default="a")
    if columns:
        check_same_rows(n_rows, columns[0].codes, "attributes", "y_true")
    if by is None:
        if not columns:
            raise InputError("there are no groups: pass attributes, or the name of the target as by")
        return columns
    chosen = [by] if isinstance(by, str) else check_list(by, "by", "names of attributes")
    known = {column.name: column for column in columns}
    if not set(map(str, chosen)) <= set(known):
        known = {column.name: column for column in read_columns(y_true, default="y", taken=list(known))} | known
    for name in chosen:
        if name not in known:
            raise unknown_name("attribute", name, list(known))
    if len(set(chosen)) < len(chosen) or not chosen:
        raise InputError(f"by is {listing(chosen)}: name at least one attribute, and each of them once")
    return [known[name] for name in chosen]


def _space_of(space: GroupSpace, columns: Sequence[Column]) -> GroupSpace:
    """Return the part of a space that has the attributes of the columns."""
    names = [column.name for column in columns]
    if not set(names) <= set(space.names) and len(names) == len(space.names):
        return space  # matched by position
    for name in names:
        if name not in space.names:
            raise unknown_name("attribute", name, space.names)
    return GroupSpace(tuple(names), tuple(space.values[space.names.index(name)] for name in names))
