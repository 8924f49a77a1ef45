"""Evaluation of a fitted classifier on a labelled data set: each group's accuracy, and its role in training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compshift.core.arrays import BoolArray, FloatArray, IntArray
from compshift.data.dataset import GroupedDataset
from compshift.metrics.group import GroupReport, group_report


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Accuracy of each group and its role in training; arrays are in the order of ``report.groups``."""

    report: GroupReport
    states: tuple[str, ...]  # (g,) such as "562 rows", or "extrapolated"; see ``_training_state``
    effective_sample_size: FloatArray  # (g,) NaN for groups that are not candidates
    expected: FloatArray  # (g, 3) accuracy expected by the model, lower and upper end; NaN without an estimate
    without_unlabelled: GroupReport | None = None  # report of the fit without unlabelled samples, if the model used any
    known: tuple[str, ...] = ()  # attributes whose values the model was given with every row

    def to_dict(self) -> dict[str, Any]:
        """Return the evaluation as numbers, text and lists that JSON can hold."""
        content = {"attributes_known_in_use": list(self.known), **self.report.to_dict()}
        sizes = [None if np.isnan(size) else float(size) for size in self.effective_sample_size]
        for group, state, size, expected in zip(content["groups"], self.states, sizes, self.expected, strict=True):
            group["in_training"] = state
            group["effective_sample_size"] = size
            if not np.isnan(expected[0]):
                names = ("expected_accuracy", "expected_lower", "expected_upper")
                group |= dict(zip(names, expected.tolist(), strict=True))
        if self.without_unlabelled is not None:
            content["without_unlabelled"] = self.without_unlabelled.to_dict()
        return content


def evaluate(clf: Any, data: GroupedDataset, known: Sequence[str] = ()) -> Evaluation:
    """Predict the rows of ``data`` and report accuracy by group.

    ``known`` names attributes that are known in use, so the model is given their values. Raise an InputError if a row
    has an attribute value that is not in ``clf.space_``. The compositional risk is computed only if the classifier has
    ``group_log_proba``. If the fit used unlabelled samples, the fit without them is evaluated too. The accuracy that
    the model expects is left out if attributes are known, because it is an estimate for unknown attributes.
    """
    report = _report(clf, data, known)
    plain = _report(clf.without_unlabelled(), data, known) if getattr(clf, "n_rounds_", 0) else None
    where = clf.space_.locate(report.groups, clf.groups_)
    behind = getattr(clf, "effective_sample_size_", None)
    sizes = np.full(len(where), np.nan) if behind is None else np.where(where >= 0, behind[where], np.nan)
    expected = np.full((len(where), 3), np.nan) if known else expected_accuracy(clf, report.groups)
    states = tuple(_training_state(clf, int(row)) for row in where)
    return Evaluation(report, states, sizes, expected, plain, tuple(known))


def expected_accuracy(clf: Any, groups: IntArray) -> FloatArray:
    """Return the accuracy that a classifier expects of each group (g, m) and its interval, (g, 3); NaN if unknown."""
    expected = np.full((len(groups), 3), np.nan)
    frame = getattr(clf, "expected_group_accuracy_", None)
    if frame is not None and len(frame):
        row = clf.space_.locate(groups, clf.space_.encode(frame[list(clf.space_.names)]))
        expected[row >= 0] = frame[["accuracy", "lower", "upper"]].to_numpy()[row[row >= 0]]
    return expected


def absent_from_training(clf: Any, codes: IntArray) -> BoolArray:
    """Return whether each group (q, m) was absent from the training data of a classifier, (q,)."""
    place = clf.space_.locate(codes, clf.groups_)
    return np.asarray((place < 0) | ~np.asarray(clf.seen_)[place])


def _report(clf: Any, data: GroupedDataset, known: Sequence[str]) -> GroupReport:
    """Return the accuracy of a classifier on every group if it is given the values of the attributes ``known``."""
    targets = list(clf.targets_.names)
    frame = data.columns(clf.space_.names)
    nuisances = frame.drop(columns=targets)
    told = {"attributes": frame[list(known)]} if known else {}
    present, position = clf.space_.distinct(clf.space_.encode(frame))
    own_log_proba = None  # (n,) log-probability of each sample's true group
    if hasattr(clf, "group_log_proba"):
        own_log_proba = clf.group_log_proba(data.X, present, **told)[np.arange(len(data)), position]
    predicted = clf.predict(data.X, **told)
    return group_report(
        frame[targets], predicted, nuisances if nuisances.shape[1] else None, own_log_proba, space=clf.space_
    )


def _training_state(clf: Any, position: int) -> str:
    """Return the role in training of the group at a position in ``clf.groups_``, −1 if it is not listed there.

    It is the number of its rows, such as "562 rows"; "extrapolated" or "outside the hull" for an unseen group; and "not
    a candidate" or, if the classifier does not model groups, "no rows" for a group that is not listed.
    """
    if position < 0:
        return "not a candidate" if hasattr(clf, "inside_hull_") else "no rows"
    if clf.seen_[position]:
        return f"{clf.group_weight_[position]:g} rows"
    return "extrapolated" if clf.inside_hull_[position] else "outside the hull"
