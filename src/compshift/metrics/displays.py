"""Pictures by scikit-learn's ``*Display`` convention: a metric by group, and the reliability of the biases."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, Self

import numpy as np

from compshift._errors import InputError, an
from compshift.core.arrays import BoolArray, FloatArray, IntArray, to_numpy
from compshift.core.bias import ENOUGH_SAMPLES, HEAVY_TAIL
from compshift.core.groups import GroupSpace
from compshift.metrics.evaluation import expected_accuracy
from compshift.metrics.group import GroupReport, group_report
from compshift.metrics.group_metric import NO_ROWS, GroupMetric, as_metric, group_metric

# The colours can be distinguished with any colour vision, and in print.

SEEN_FILL = "#0072b2"
"""Colour of seen groups."""

UNSEEN_COLOUR = "#d55e00"
"""Colour of unseen groups in pictures with a row for each group."""

QUIET = "#777777"
"""Colour of expected values, of limits and of remarks."""

MAX_GROUPS = 40
"""Maximum number of groups in a picture with a row for each group."""

MAX_LABEL = 44
"""Maximum number of characters of the label of a group."""


def check_matplotlib() -> None:
    """Raise an InputError if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise InputError("drawing needs matplotlib: run pip install 'compshift[plot]'")


class GroupDisplay:
    """Accuracy, or any other metric, of each group with its interval, and the accuracy that the model expects.

    The groups with the lowest values are at the top; of more than 40, only these are drawn. A group without rows has no
    point, but the words "no rows". ``from_estimator`` and ``from_predictions`` create and draw it.

    Parameters
    ----------
    result : GroupReport or GroupMetric
        Values and intervals of the groups.
    seen : array of bool (g,), optional
        Whether each group was seen in training.
    expected : array (g, 3), optional
        Expected value of each group and the ends of its interval; NaN where there is none.

    Attributes
    ----------
    ax_ : Axes
        The axes.
    figure_ : Figure
        The figure that they belong to.

    Examples
    --------
    >>> from compshift.metrics import GroupDisplay
    >>> display = GroupDisplay.from_predictions(["a", "b"], ["a", "a"], attributes=[0, 1])  # doctest: +SKIP
    """

    ax_: Any
    figure_: Any

    def __init__(
        self, result: GroupReport | GroupMetric, *, seen: BoolArray | None = None, expected: FloatArray | None = None
    ) -> None:
        self.result = result
        self.seen = seen
        self.expected = expected

    @classmethod
    def from_estimator(
        cls,
        clf: Any,
        X: Any,
        y: Any,
        *,
        attributes: Any = None,
        metric: Callable[..., Any] | None = None,
        response_method: str = "predict",
        ax: Any = None,
        **options: Any,
    ) -> Self:
        """Predict labelled samples and draw the metric of each group.

        Parameters
        ----------
        clf : classifier over groups
            Fitted classifier, for example a ``CRMClassifier``.
        X : array or DataFrame (n, p)
            Features.
        y : array (n,) or (n, t)
            True classes.
        attributes : array (n,) or (n, s), DataFrame or mapping, optional
            True attributes. The classifier is not given them.
        metric : callable, optional
            As in ``group_metric``, with groups of ``attributes``. By default, the accuracy in groups of ``y`` and
            ``attributes``, with Wilson intervals, beside the accuracy that the model expects of unseen groups.
        response_method : "predict" or "predict_proba", default="predict"
            What ``metric`` compares with ``y``. Of two classes, it is given the probability of the second one.
        ax : Axes, optional
            Axes to draw on; by default those of a new figure.
        **options
            Further arguments of ``group_report`` or ``group_metric``, such as ``confidence`` or ``by``.

        Returns
        -------
        GroupDisplay
            The display, drawn.
        """
        check_has_groups(clf, "groups_", "a CRMClassifier")
        if response_method not in ("predict", "predict_proba"):
            raise InputError(f"response_method is {response_method!r}: pass 'predict' or 'predict_proba'")
        options = {"space": clf.space_} | options
        if metric is None:
            if response_method != "predict":
                raise InputError(
                    "response_method is for other metrics than accuracy: pass metric, too, or leave it out"
                )
            report = group_report(y, clf.predict(X), attributes, **options)
            place = clf.space_.locate(report.groups, clf.groups_)
            seen = (place >= 0) & clf.seen_[place]
            return cls(report, seen=seen, expected=expected_accuracy(clf, report.groups)).plot(ax)
        answers = getattr(clf, response_method)(X)
        if response_method == "predict_proba" and getattr(answers, "shape", (0, 0))[1] == 2:
            answers = answers[:, 1]
        return cls(group_metric(metric, y, answers, attributes, **options)).plot(ax)

    @classmethod
    def from_predictions(
        cls,
        y_true: Any,
        y_pred: Any,
        *,
        attributes: Any = None,
        metric: Callable[..., Any] | None = None,
        ax: Any = None,
        **options: Any,
    ) -> Self:
        """Draw the metric of each group.

        Parameters
        ----------
        y_true : array (n,) or (n, t)
            True classes.
        y_pred : array
            Predictions or, for a ``metric`` that takes them, scores or probabilities.
        attributes : array (n,) or (n, s), DataFrame or mapping, optional
            True attributes.
        metric : callable, optional
            As in ``group_metric``, with groups of ``attributes``. By default, the accuracy in groups of ``y_true`` and
            ``attributes``, with Wilson intervals.
        ax : Axes, optional
            Axes to draw on; by default those of a new figure.
        **options
            Further arguments of ``group_report`` or ``group_metric``, such as ``confidence`` or ``by``.

        Returns
        -------
        GroupDisplay
            The display, drawn.
        """
        if metric is None:
            return cls(group_report(y_true, y_pred, attributes, **options)).plot(ax)
        return cls(group_metric(metric, y_true, y_pred, attributes, **options)).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw the display.

        Parameters
        ----------
        ax : Axes, optional
            Axes to draw on; by default those of a new figure.

        Returns
        -------
        GroupDisplay
            The display itself.
        """
        result = as_metric(self.result)
        value, name = result.value, result.name
        expected = np.full((len(value), 3), np.nan) if self.expected is None else self.expected
        order = np.argsort(value, kind="stable")  # NaN last
        order, cut = order[:MAX_GROUPS], len(order) > MAX_GROUPS
        figure, (panel,), whole = panels_of(ax, 1, 1, (7.0, 0.26 * len(order) + 1.5))
        rows = np.arange(len(order))
        seen = np.ones(len(value), dtype=np.bool_) if self.seen is None else self.seen
        for chosen, colour, label in ((seen[order], SEEN_FILL, "seen"), (~seen[order], UNSEEN_COLOUR, "unseen")):
            shown = chosen & ~np.isnan(value[order])
            if shown.any():
                ends = np.stack([result.lower[order], value[order], result.upper[order]])[:, shown]
                words = "measured" if self.seen is None else f"{label}, measured"
                _points(panel, rows[shown], ends, color=colour, fmt="o", markersize=5, label=words)
        known = ~np.isnan(expected[order, 0])
        if known.any():
            ends = expected[order][known][:, [1, 0, 2]].T
            _points(panel, rows[known] + 0.22, ends, color=QUIET, fmt="D", markersize=4, mfc="white", label="expected")
        if not math.isnan(result.overall):
            panel.axvline(result.overall, color=QUIET, linestyle="--", linewidth=1, label="all rows", zorder=0)
        for row in np.flatnonzero(np.isnan(value[order])):
            remark = NO_ROWS if result.reason[order[row]] == NO_ROWS else "undefined"
            panel.annotate(
                remark, (0.01, row), xycoords=("axes fraction", "data"), va="center", color=QUIET, fontsize=8
            )
        confidence = "" if math.isnan(result.confidence) else f", {result.confidence:.0%} intervals"
        panel.set_xlabel(f"{name}{confidence}")
        drawn = np.concatenate([part[~np.isnan(part)] for part in (value, result.lower, result.upper)])
        if len(drawn) and drawn.min() >= 0 and drawn.max() <= 1:
            panel.set_xlim(-0.02, 1.02)
        counts = [f"  n={count:g}" if count > 0 else "" for count in result.count[order]]
        labels = [_short_label(result.space, result.groups[group]) for group in order]
        _name_rows(panel, [label + count for label, count in zip(labels, counts, strict=True)])
        if cut:
            empty = int(np.count_nonzero(result.count == 0))
            remark = f"; {empty} groups have no rows" if empty else ""
            panel.set_title(f"the {len(order)} of {len(value)} groups with the lowest {name}{remark}", fontsize=10)
        self.figure_, self.ax_ = figure, panel
        add_legend(figure, panel, panel.get_legend_handles_labels()[0], whole=whole)
        return self


class ReliabilityDisplay:
    """Evidence behind the bias of each group: effective sample size and Pareto k̂ of its importance weights.

    These say of which groups predictions rest on few training samples, without labelled rows of these groups; for
    calibration of the probabilities, see scikit-learn's ``CalibrationDisplay``. Drawn are the unseen groups inside the
    hull or, if there are none, the seen groups; of more than 40, those with the smallest effective sample size.
    ``from_estimator`` creates and draws it.

    Parameters
    ----------
    labels : list of str (g,)
        Names of the groups.
    seen : array of bool (g,)
        Whether each group was seen in training.
    effective_sample_size : array (g,)
        Effective sample size behind the bias of each group.
    pareto_k : array (g,)
        Pareto k̂ of the importance weights; NaN if unknown.
    n_groups : int
        Number of groups of which these are the least reliable.

    Attributes
    ----------
    ax_ : array of Axes
        The axes of the effective sample size and, if it is known, of the Pareto k̂.
    figure_ : Figure
        The figure that they belong to.

    Examples
    --------
    >>> from compshift.metrics import ReliabilityDisplay
    >>> display = ReliabilityDisplay(["(owl, sea)"], [False], [12.0], [0.8], 1).plot()  # doctest: +SKIP
    """

    ax_: Any
    figure_: Any

    def __init__(
        self,
        labels: Sequence[str],
        seen: BoolArray,
        effective_sample_size: FloatArray,
        pareto_k: FloatArray,
        n_groups: int,
    ) -> None:
        self.labels = labels
        self.seen = seen
        self.effective_sample_size = effective_sample_size
        self.pareto_k = pareto_k
        self.n_groups = n_groups

    @classmethod
    def from_estimator(cls, clf: Any, *, ax: Any = None) -> Self:
        """Draw the evidence behind the biases of a fitted CRM classifier.

        Parameters
        ----------
        clf : CRMClassifier, CRMClassifierCV or CRMBoostingClassifier
            Fitted classifier.
        ax : Axes, optional
            Axes whose place the two charts share; by default those of a new figure.

        Returns
        -------
        ReliabilityDisplay
            The display, drawn.
        """
        check_has_groups(clf, "effective_sample_size_", "a CRMClassifier")
        order, n_groups = least_reliable(clf, MAX_GROUPS)
        labels = [_short_label(clf.space_, code) for code in clf.groups_[order]]
        size, tail = to_numpy(clf.effective_sample_size_)[order], to_numpy(clf.pareto_k_)[order]
        return cls(labels, clf.seen_[order], size, tail, n_groups).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw the display.

        Parameters
        ----------
        ax : Axes, optional
            Axes whose place the two charts share; by default those of a new figure.

        Returns
        -------
        ReliabilityDisplay
            The display itself.
        """
        size, tail = (np.asarray(part, dtype=np.float64) for part in (self.effective_sample_size, self.pareto_k))
        seen, rows = np.asarray(self.seen, dtype=np.bool_), np.arange(len(size))
        check_matplotlib()
        from matplotlib.ticker import LogLocator, NullFormatter

        charts: list[tuple[FloatArray, float, str, str]] = [
            (size, ENOUGH_SAMPLES, "effective sample size", f"below {ENOUGH_SAMPLES}: uncertain")
        ]
        if not np.isnan(tail).all():
            charts.append((tail, HEAVY_TAIL, r"Pareto $\hat{k}$", f"above {HEAVY_TAIL}: unreliable"))
        figure, panels, whole = panels_of(
            ax, 1, len(charts), (3.0 + 3.0 * len(charts), 0.26 * len(rows) + 1.7), sharey=True
        )
        for panel, (value, limit, name, words) in zip(panels, charts, strict=True):
            for chosen, colour, label in ((seen, SEEN_FILL, "seen"), (~seen, UNSEEN_COLOUR, "unseen")):
                if chosen.any():
                    panel.plot(value[chosen], rows[chosen], "o", color=colour, markersize=5, label=label)
            panel.axvline(limit, color=QUIET, linestyle="--", linewidth=1, zorder=0)
            panel.set_xlabel(f"{name}\n({words})")
        panels[0].set_xscale("log")
        panels[0].xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        panels[0].xaxis.set_major_formatter("{x:g}")
        panels[0].xaxis.set_minor_formatter(NullFormatter())
        _name_rows(panels[0], self.labels)
        for panel in panels[1:]:
            panel.grid(axis="y", linewidth=0.5, color="#e6e6e6")
            panel.tick_params(axis="y", labelleft=False, length=0)
        if len(rows) < self.n_groups:
            text = f"the {len(rows)} of {self.n_groups} groups with the smallest effective sample size"
            panels[0].set_ylabel(text, fontsize=8)
        self.figure_, self.ax_ = figure, panels
        add_legend(figure, panels[-1], panels[0].get_legend_handles_labels()[0], whole=whole)
        return self


def least_reliable(clf: Any, limit: int) -> tuple[IntArray, int]:
    """Return the positions of at most ``limit`` groups in order of their effective sample size, and how many there are.

    These are the unseen groups inside the hull or, if there are none, the seen groups.
    """
    size = to_numpy(clf.effective_sample_size_)
    unseen = clf.inside_hull_ & ~clf.seen_
    shown = np.flatnonzero((unseen if unseen.any() else clf.seen_) & np.isfinite(size) & (size > 0))
    return shown[np.argsort(size[shown], kind="stable")][:limit], len(shown)


def short(value: object, limit: int = 18) -> str:
    """Return a value as text of at most ``limit`` characters; a long one keeps its beginning and its end."""
    text = str(value)
    end = (limit - 1) // 2
    return text if len(text) <= limit else f"{text[: limit - 1 - end]}…{text[-end:]}"


def _short_label(space: GroupSpace, code: IntArray) -> str:
    """Return the values of a group as text of about ``MAX_LABEL`` characters."""
    limit = max(6, MAX_LABEL // len(space.names))
    return f"({', '.join(short(values[place], limit) for values, place in zip(space.values, code, strict=True))})"


def check_has_groups(clf: Any, attribute: str, example: str) -> None:
    """Raise an error if a classifier is not fitted, or is of another kind."""
    from sklearn.base import BaseEstimator
    from sklearn.utils.validation import check_is_fitted

    if isinstance(clf, BaseEstimator):
        check_is_fitted(clf)
    if not hasattr(clf, attribute):
        raise InputError(
            f"clf is {an(type(clf).__name__)}: pass a fitted classifier over groups, for example {example}"
        )


def panels_of(
    ax: Any, rows: int, columns: int, size: tuple[float, float], *, sharey: bool = False
) -> tuple[Any, Any, bool]:
    """Return a figure, an array of its axes, and whether it has nothing else: then the legend is below.

    The axes are those of a new figure of a ``size`` in inches, ``ax`` itself, or parts of the place of ``ax``. If
    ``ax`` is a figure, as on the command line, where pyplot is not used, it gets that size.
    """
    check_matplotlib()
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    whole = ax is None or isinstance(ax, Figure)
    if ax is None:
        from matplotlib import pyplot

        ax = pyplot.figure(figsize=size, layout="constrained")
    if whole:
        ax.set_size_inches(size)
        return ax, ax.subplots(rows, columns, sharey=sharey, squeeze=False).ravel(), whole
    if not isinstance(ax, Axes):
        raise InputError(f"ax is {an(type(ax).__name__)}: pass matplotlib Axes, or None for a new figure")
    if rows * columns == 1:
        return ax.figure, np.array([ax]), whole
    place = ax.get_subplotspec()
    if place is None:
        raise InputError("ax has no place in a grid of subplots: create it with plt.subplots, or pass None")
    ax.set_axis_off()
    parts: Any = place.subgridspec(rows, columns).subplots(sharey=sharey, squeeze=False)
    return ax.figure, parts.ravel(), whole


def add_legend(figure: Any, panel: Any, handles: list[Any], *, whole: bool) -> None:
    """Add a legend below the ``whole`` figure, or beside a panel if the figure is not ours."""
    if whole and handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    elif handles:
        panel.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)


def _points(panel: Any, rows: FloatArray | IntArray, ends: FloatArray, **style: Any) -> None:
    """Draw values with intervals, where there are any; ``ends`` (3, r) are lower ends, values and upper ends."""
    lower, value, upper = ends
    width = np.nan_to_num(np.stack([value - lower, upper - value])).clip(0)
    panel.errorbar(value, rows, xerr=width, elinewidth=1.2, capsize=0, linestyle="none", **style)


def _name_rows(panel: Any, labels: Sequence[str]) -> None:
    """Write one label for each row, the first at the top."""
    panel.set_yticks(range(len(labels)), labels, fontsize=8)
    panel.set_ylim(len(labels) - 0.5, -0.5)
    panel.tick_params(axis="y", length=0)
    panel.grid(axis="y", linewidth=0.5, color="#e6e6e6")
    panel.set_axisbelow(True)
