"""monitor: tell from unlabelled rows of use whether groups occur that training lacked, and rows that fit no group."""

from __future__ import annotations

import html
import warnings
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.pipeline import Pipeline

from compshift._checks import check_fraction
from compshift._errors import InputError
from compshift.core.arrays import BoolArray, FloatArray, IntArray
from compshift.core.columns import plain_value
from compshift.core.groups import GroupSpace
from compshift.core.novelty import (
    Components,
    GroupCentres,
    find_unseen_groups,
    frequency_intervals,
    outlier_tests,
)
from compshift.crm.base import GroupClassifier, check_group_classifier
from compshift.crm.features import prediction_features
from compshift.crm.fitted import FittedCRM
from compshift.crm.model import CRMModel, OutOfFold
from compshift.crm.pipelines import as_classifier_and_features
from compshift.crm.sets import log_density_ratios
from compshift.estimators.prior_estimate import MAX_PRIOR_GROUPS, estimate_prior

if TYPE_CHECKING:
    import pandas as pd

MAX_MONITOR_CELLS = 1 << 26
"""Largest number of probabilities (rows times groups) that are held in memory: half a gigabyte, several times."""

OUTLYING = 0.01
"""Conformal p-value up to which a row counts as fitting no group: one labelled row in a hundred is as far away."""

OUTLIER_WEIGHT = 0.2
"""Part of the level that is spent on the test for rows that fit no group; the rest is for new groups."""

MAX_LISTED_ROWS = 100
"""Largest number of rows that fit no group in ``MonitorReport.to_dict``, furthest first."""

MAX_NAMED_GROUPS = 6
"""Largest number of new groups that a sentence names."""

NOT_TESTED = (
    "whether new combinations occur was not tested, because the model has no out-of-fold energies: fit a "
    "CRMClassifierCV (`compshift fit --alpha auto`), or a CRMClassifier with cross_fit=True; the intervals assume that "
    "its probabilities are right"
)
"""Note of a report about a model without out-of-fold energies."""


@dataclass(frozen=True, eq=False)
class MonitorReport:
    """Results of ``monitor`` on unlabelled rows; ``print`` them, or see ``to_frame`` and ``to_dict``.

    p-values are adjusted for the number of tests: each is compared with ``level``, and if nothing is new, the
    probability that any is below ``level`` is about ``level`` at most.

    Parameters
    ----------
    n_rows : int
        Number of rows of use.
    n_training : float
        Number, or total weight, of training rows.
    space : GroupSpace
        All attributes and their values.
    groups : array (g, m)
        Codes of the groups that the classifier knows of, seen or not.
    seen : bool array (g,)
        Whether training had the group.
    inside_hull : bool array (g,)
        Whether the group is in the affine hull of the seen ones, so that training determines it.
    reference : array (g,)
        Frequency in training.
    frequency, lower, upper : array (g,)
        Estimated frequency in the rows, with its interval. NaN for groups outside the hull that were not found.
    p_value : array (g,)
        Of the hypothesis that the group does not occur; NaN if it was seen, or not tested.
    new : bool array (g,)
        Whether the group occurs although training lacked it.
    total_p_value : float
        Of the hypothesis that no unseen group occurs.
    outlier_p_values : array (n,)
        Conformal p-value of every row: the share of labelled rows that are as far from all groups. NaN if unknown.
    outlier_share_p_value : float
        Of the hypothesis that no more rows than among labelled rows have a conformal p-value of 0.01 or less.
    level, confidence : float
        Level of the tests, and confidence level of the intervals.
    tested : bool
        Whether the model has what the tests need.
    notes : tuple of str
        What else a reader should know.
    """

    n_rows: int
    n_training: float
    space: GroupSpace
    groups: IntArray
    seen: BoolArray
    inside_hull: BoolArray
    reference: FloatArray
    frequency: FloatArray
    lower: FloatArray
    upper: FloatArray
    p_value: FloatArray
    new: BoolArray
    total_p_value: float
    outlier_p_values: FloatArray = field(repr=False)
    outlier_share_p_value: float
    level: float
    confidence: float
    tested: bool
    notes: tuple[str, ...] = ()

    @property
    def new_groups(self) -> list[tuple[Hashable, ...]]:
        """Values of the groups that occur although training lacked them, the surest first."""
        chosen = np.flatnonzero(self.new)
        order = chosen[np.argsort(self.p_value[chosen], kind="stable")]
        return [tuple(row) for row in self.space.decode(self.groups[order]).tolist()]

    @property
    def has_new_groups(self) -> bool:
        """Whether unseen groups occur, even if it cannot be told which."""
        return bool(self.new.any() or self.total_p_value <= self.level)

    @property
    def outlier_rows(self) -> IntArray:
        """Row numbers of the rows that fit no group, those with the smallest p-values first."""
        chosen = np.flatnonzero(self.outlier_p_values <= OUTLYING)
        return chosen[np.argsort(self.outlier_p_values[chosen], kind="stable")]

    @property
    def outlier_share(self) -> float:
        """Share of rows that fit no group; among rows as in training it is about 0.01."""
        return len(self.outlier_rows) / self.n_rows if self.tested else np.nan

    @property
    def has_outliers(self) -> bool:
        """Whether more rows fit no group than chance explains."""
        return bool(self.outlier_share_p_value <= self.level)

    @property
    def alarm(self) -> bool:
        """Whether there are new groups, or too many rows that fit no group."""
        return self.has_new_groups or self.has_outliers

    @property
    def change(self) -> list[str]:
        """For each group, "more" or "less" if it is clearly more or less frequent than in training, or "".

        That is a difference which ``level`` allows by chance in any of the seen groups, counting the sampling of the
        training rows, too.
        """
        quantile = NormalDist().inv_cdf(0.5 + self.confidence / 2)
        clear = NormalDist().inv_cdf(1 - self.level / (2 * max(int(self.seen.sum()), 1)))
        error = (self.upper - self.lower) / (2 * quantile)
        limit = clear * np.sqrt(error**2 + self.reference * (1 - self.reference) / self.n_training)
        difference = np.where(self.seen, self.frequency - self.reference, 0.0)
        return ["more" if d > most else "less" if d < -most else "" for d, most in zip(difference, limit, strict=True)]

    def to_frame(self) -> pd.DataFrame:
        """Return a table of the groups.

        Returns
        -------
        DataFrame
            One row per group: its attribute values, whether it was ``seen`` and is ``inside_hull``, its frequency in
            training (``reference``) and in the rows (``frequency`` with ``lower`` and ``upper``), the ``change``, the
            ``p_value`` of an unseen group, and whether it is ``new``.
        """
        return self.space.frame(
            self.groups,
            seen=self.seen,
            inside_hull=self.inside_hull,
            reference=self.reference,
            frequency=self.frequency,
            lower=self.lower,
            upper=self.upper,
            change=self.change,
            p_value=self.p_value,
            new=self.new,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as numbers, texts, lists and dictionaries, which JSON can hold; unknown numbers are None.

        Returns
        -------
        dict
            The ``alarm``, what was found and how sure it is, every group, and at most a hundred rows that fit no group.
        """
        groups = []
        for position, change in enumerate(self.change):
            entry: dict[str, Any] = {"group": self._values(position), "change": change}
            for name in ("seen", "inside_hull", "new"):
                entry[name] = bool(getattr(self, name)[position])
            for name in ("reference", "frequency", "lower", "upper", "p_value"):
                entry[name] = _number(getattr(self, name)[position])
            groups.append(entry)
        return {
            "rows": self.n_rows,
            "alarm": self.alarm,
            "tested": self.tested,
            "level": self.level,
            "confidence": self.confidence,
            "new_combinations": {
                "found": self.has_new_groups,
                "p_value": _number(self.total_p_value),
                "groups": [entry["group"] for entry in groups if entry["new"]],
            },
            "outliers": {
                "found": self.has_outliers,
                "p_value": _number(self.outlier_share_p_value),
                "share": _number(self.outlier_share),
                "expected_share": OUTLYING,
                "rows": self.outlier_rows[:MAX_LISTED_ROWS].tolist(),
            },
            "groups": groups,
            "notes": list(self.notes),
        }

    def _values(self, position: int) -> dict[str, Any]:
        """Return the attribute values of one group by attribute."""
        code = self.groups[position]
        pairs = zip(self.space.names, self.space.values, code, strict=True)
        return {name: plain_value(values[place]) for name, values, place in pairs}

    def _among(self, position: IntArray, n_rows: int) -> MonitorReport:
        """Return the report with its rows numbered as in an input of n_rows rows, of which only some could be read."""
        p_values = np.full(n_rows, np.nan)
        p_values[position] = self.outlier_p_values
        return replace(self, outlier_p_values=p_values)

    def sentences(self) -> list[str]:
        """Return what was found, in sentences.

        Returns
        -------
        list of str
            One sentence for each finding, then the notes.
        """
        found = []
        if self.tested:
            found += self._new_sentences()
            share = f"{self.outlier_share:.1%} of the rows are as far from every group as 1% of the training rows"
            verdict = "some rows fit no group" if self.has_outliers else "no sign of rows that fit no group"
            found.append(f"{share}: {verdict} (p = {self.outlier_share_p_value:.2g})")
            if self.has_outliers and self.has_new_groups:
                found.append("rows that fit no group can pass for new combinations, and the reverse: see them first")
        return found + list(self.notes)

    def _new_sentences(self) -> list[str]:
        """Return sentences on the unseen groups."""
        if self.seen.all():
            return ["training has every combination of attributes that the model knows of"]
        if not self.has_new_groups:
            smallest = min(self.total_p_value, float(np.nanmin(self.p_value)))
            return [f"no sign of combinations that training lacked (p = {smallest:.2g})"]
        if not self.new.any():
            return [
                f"combinations occur that training lacked (p = {self.total_p_value:.2g}), but it cannot be told which"
            ]
        found = np.flatnonzero(self.new)
        found = found[np.argsort(self.p_value[found], kind="stable")]
        named = [
            f"{self.space.label(self.groups[position])} (p = {self.p_value[position]:.2g}, about "
            f"{self.frequency[position]:.1%} of the rows{'' if self.inside_hull[position] else ', outside the hull'})"
            for position in found[:MAX_NAMED_GROUPS]
        ]
        if len(found) > len(named):
            named.append(f"and {len(found) - len(named)} more")
        start = "a combination occurs" if len(found) == 1 else f"{len(found)} combinations occur"
        sentences = [f"{start} that training lacked: {'; '.join(named)}"]
        if not self.inside_hull[found].all():
            sentences.append("training does not determine groups outside the hull: rows of another kind could look so")
        return sentences

    def __str__(self) -> str:
        table = self.to_frame().to_string(index=False, na_rep="", float_format=lambda value: f"{value:.3g}")
        return "\n".join([*self.sentences(), "", table])

    def __repr__(self) -> str:
        found = "; ".join(self.sentences())
        return f"MonitorReport({self.n_rows} rows: {found})"

    def _repr_html_(self) -> str:
        words = "".join(f"<p>{html.escape(text)}</p>" for text in self.sentences())
        table = self.to_frame().to_html(index=False, na_rep="", float_format=lambda value: f"{value:.3g}")
        return f"<div>{words}{table}</div>"


def _number(value: float) -> float | None:
    """Return a number that JSON can hold; None for NaN."""
    return None if np.isnan(value) else float(value)


def monitor(clf: GroupClassifier | Pipeline, X: Any, *, level: float = 0.05, confidence: float = 0.9) -> MonitorReport:
    """Tell from unlabelled rows of use whether groups occur that training lacked, and how frequent all groups are.

    Posterior probabilities alone cannot tell: rows of seen groups have some for unseen groups, too. How much they have
    is measured on the labelled rows of the fit, whose out-of-fold energies are in the model, and only an excess over it
    counts. This holds whether or not the energies are right, as long as rows of a seen group look as they did in
    training. If they do not, the alarm is as likely a new look as a new group: label some of the rows.

    Parameters
    ----------
    clf : CRMClassifierCV, or a CRMClassifier with cross_fit, or CRMBoostingClassifier, or a Pipeline
        The fitted model, or a pipeline that ends in one. For a model without out-of-fold energies, and any other
        classifier over groups, the report has frequencies only.
    X : array or DataFrame (n, p)
        Unlabelled rows of use; for a pipeline, what its first step takes. A hundred rows show little: thousands are
        needed to find a group of one in a hundred.
    level : float, default=0.05
        Probability of an alarm about rows in which nothing is new.
    confidence : float, default=0.9
        Confidence level of the intervals of frequencies.

    Returns
    -------
    MonitorReport
        New groups, frequencies beside those of training, and rows that fit no group.

    Raises
    ------
    InputError
        If a parameter or the data cannot be used, or there are too many rows and groups.

    Examples
    --------
    >>> import numpy as np
    >>> from compshift import CRMClassifier, monitor
    >>> rng = np.random.default_rng(0)
    >>> z = np.repeat([[0, 1], [1, 0], [1, 1]], 500, axis=0)
    >>> clf = CRMClassifier(cross_fit=True).fit(rng.normal(size=z.shape) + 4 * z, z[:, 0], attributes=z[:, 1])
    >>> use = np.repeat([[0, 0], [0, 1], [1, 0], [1, 1]], [20, 300, 300, 380], axis=0)
    >>> report = monitor(clf, rng.normal(size=use.shape) + 4 * use)
    >>> report.alarm, report.new_groups
    (True, [(0, 0)])
    """
    clf, X = as_classifier_and_features(clf, X)
    check_group_classifier(clf)
    level, confidence = check_fraction(level, "level"), check_fraction(confidence, "confidence")
    X = prediction_features(clf, X)
    known = _labelled(clf._model) if isinstance(clf, FittedCRM) else None
    n_groups = len(clf.groups_)
    cells = max(len(X), 0 if known is None else len(known.position)) * n_groups
    if n_groups > MAX_PRIOR_GROUPS or cells > MAX_MONITOR_CELLS:
        raise InputError(
            f"{len(X)} rows and {n_groups} groups are too many to monitor (at most {MAX_PRIOR_GROUPS} groups, and "
            f"{MAX_MONITOR_CELLS} rows × groups): pass fewer rows"
        )
    if known is None:
        return _without_tests(clf, X, level, confidence)
    return _tested(clf, X, known, level, confidence)


def _labelled(model: CRMModel) -> OutOfFold | None:
    """Return the out-of-fold energies of samples with a weight; None unless there are some of every seen group."""
    known = model.out_of_fold
    if known is None:
        return None
    kept = known.weight > 0
    known = known._replace(energies=known.energies[kept], position=known.position[kept], weight=known.weight[kept])
    return known if len(np.unique(known.position)) == len(model.candidates.seen_groups) else None


def _without_tests(clf: Any, X: FloatArray, level: float, confidence: float) -> MonitorReport:
    """Return a report with frequencies only, from a classifier without out-of-fold energies."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about confused groups: their intervals are wide
        estimate = estimate_prior(clf, X, confidence=confidence)
    unknown = np.full(len(clf.groups_), np.nan)
    return MonitorReport(
        len(X),
        **_groups(clf),
        frequency=np.exp(estimate.log_prior),
        lower=estimate.lower,
        upper=estimate.upper,
        p_value=unknown,
        new=np.zeros(len(unknown), dtype=np.bool_),
        total_p_value=np.nan,
        outlier_p_values=np.full(len(X), np.nan),
        outlier_share_p_value=np.nan,
        level=level,
        confidence=confidence,
        tested=False,
        notes=(NOT_TESTED,),
    )


def _groups(clf: Any) -> dict[str, Any]:
    """Return the groups of a classifier and their part in training, as fields of a report."""
    seen = np.asarray(clf.seen_)
    weight = np.where(seen, np.asarray(clf.group_weight_, dtype=np.float64), 0.0)
    return {
        "n_training": float(weight.sum()),
        "space": clf.space_,
        "groups": clf.groups_,
        "seen": seen,
        "inside_hull": np.asarray(clf.inside_hull_),
        "reference": weight / weight.sum(),
    }


def _tested(clf: FittedCRM, X: FloatArray, known: OutOfFold, level: float, confidence: float) -> MonitorReport:
    """Return the report on rows, from a model with out-of-fold energies."""
    fields, energies = _groups(clf), clf._model.energies(X)
    seen, inside = fields["seen"], fields["inside_hull"]
    order, k = np.argsort(~seen, kind="stable"), int(seen.sum())  # seen groups first
    labelled, new, log_weight = log_density_ratios(clf._model, known, energies, clf.groups_[order])
    components = Components.of(known.position, known.weight)
    found = find_unseen_groups(labelled, new, components, log_weight[:, k:], level * (1 - OUTLIER_WEIGHT))
    centres = GroupCentres.of(
        known.energies, components, clf.space_, clf.groups_[order[:k]], clf.groups_[inside & ~seen]
    )
    distances = centres.distances(known.energies), centres.distances(energies)
    outlier_p_values, outlier_share = outlier_tests(*distances, found.components, found.share, OUTLYING)
    g = len(order)
    p_value, is_new = np.full(g, np.nan), np.zeros(g, dtype=np.bool_)
    p_value[order[k:]] = np.minimum(found.p_value / (1 - OUTLIER_WEIGHT), 1.0)
    is_new[order[k:][found.found]] = True
    shown = np.flatnonzero((seen | inside | is_new)[order])
    every = components.joined(*log_weight[:, shown[k:]].T)
    frequency = np.full((3, g), np.nan)
    frequency[:, order[shown]] = frequency_intervals(labelled[:, shown], new[:, shown], every, confidence)
    return MonitorReport(
        len(X),
        **fields,
        frequency=frequency[0],
        lower=frequency[1],
        upper=frequency[2],
        p_value=p_value,
        new=is_new,
        total_p_value=min(found.total_p_value / (1 - OUTLIER_WEIGHT), 1.0),
        outlier_p_values=outlier_p_values,
        outlier_share_p_value=min(outlier_share / OUTLIER_WEIGHT, 1.0),
        level=level,
        confidence=confidence,
        tested=True,
    )
