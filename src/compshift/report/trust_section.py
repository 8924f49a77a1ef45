"""How far a model's word on unseen groups can be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from compshift._errors import InputError
from compshift.core.accuracy import calibration, confidence_bins, wilson_interval
from compshift.core.arrays import BoolArray, FloatArray
from compshift.crm.model import ENOUGH_SAMPLES
from compshift.data.dataset import GroupedDataset
from compshift.estimators.diagnose import diagnose
from compshift.estimators.diagnosis import HEAVY_TAIL
from compshift.estimators.evaluation import Evaluation
from compshift.report.charts import calibration_curves, expected_and_actual, trust_dots
from compshift.report.grid import Cell, Grid
from compshift.report.page import Block, Chart, Charts, Numbers, Section, Words

MAX_DOTS = 40
MAX_TABLE_ROWS = 500
MAX_DIAGNOSED = 2000
"""Of more rows a random sample is looked at."""

QUICK = 5e6
"""Additivity is judged without being asked to if rows × features × groups are no more than this, some ten seconds."""

CERTAIN = 2.0
"""Standard deviations by which confidence and accuracy must differ to be said to."""

ESS_CAPTION = (
    f"Effective sample size: how many training rows the bias of each group rests on. Left of the line, at "
    f"{ENOUGH_SAMPLES}, it is uncertain."
)
TAIL_CAPTION = (
    f"Pareto k̂ of the weights behind each bias. Right of the line, at {HEAVY_TAIL}, a few rows decide, whatever the "
    "effective sample size."
)


class Confidences(NamedTuple):
    """Of each row's predicted class, whether it was right, and whether training lacked the row's group."""

    confidence: FloatArray  # (n,)
    right: BoolArray  # (n,)
    unseen: BoolArray  # (n,)

    @classmethod
    def of(cls, clf: Any, data: GroupedDataset) -> Confidences:
        """Predict the first target of every row."""
        proba = clf.predict_proba(data.X)
        proba = proba[0] if isinstance(proba, list) else proba
        frame = data.columns(clf.space_.names)
        codes = clf.space_.encode(frame)
        place = clf.space_.locate(codes, clf.groups_)
        unseen = (place < 0) | ~clf.seen_[place]
        return cls(proba.max(axis=1), proba.argmax(axis=1) == codes[:, 0], unseen)

    def words(self, target: str) -> list[str]:
        """Whether probabilities can be believed, on rows of seen and of unseen groups."""
        sentences = []
        for state, chosen in (("seen", ~self.unseen), ("unseen", self.unseen)):
            if not chosen.any():
                continue
            found = calibration(np.minimum(self.confidence[chosen], 1), self.right[chosen], np.random.default_rng(0))
            confidence, how = found.accuracy + found.overconfidence, "calibrated, as far as can be told"
            if found.off:
                sure = abs(found.overconfidence) > CERTAIN * found.overconfidence_error
                how = "miscalibrated" if not sure else "too high" if found.overconfidence > 0 else "too low"
            sentences.append(
                f"Probabilities of {target} on the {int(chosen.sum()):,} rows of {state} groups are {how}: "
                f"{confidence:.1%} on average, where {found.accuracy:.1%} are right."
            )
        return sentences

    def chart_rows(self) -> list[dict[str, Any]]:
        """Bins of equal count, of rows of seen and of unseen groups."""
        rows = []
        for state, chosen in (("seen", ~self.unseen), ("unseen", self.unseen)):
            if not chosen.any():
                continue
            confidence, right = self.confidence[chosen], self.right[chosen]
            bins = confidence_bins(confidence)
            for number in np.unique(bins):
                own = bins == number
                lower, upper = wilson_interval(float(right[own].sum()), int(own.sum()), 0.95)
                figures = (confidence[own].mean(), right[own].mean(), lower, upper)
                names = ("confidence", "accuracy", "lower", "upper")
                rows.append(
                    {"state": state, "n": int(own.sum())}
                    | {name: round(float(figure), 4) for name, figure in zip(names, figures, strict=True)}
                )
        return rows


def trust_section(
    clf: Any, evaluation: Evaluation | None, data: GroupedDataset | None, judge: bool | None = None
) -> Section:
    """The verdict, sample sizes and tails behind the biases, calibration, and every group in a table.

    Additivity is part of the verdict if ``judge`` says so, or if it takes seconds and ``judge`` is None.
    """
    words, charts = _bias_words(clf), _bias_charts(clf)
    if data is None or evaluation is None:
        words.append("No labelled rows were given, so nothing is said about calibration and additivity.")
    else:
        found = Confidences.of(clf, data)
        words += [*found.words(clf.targets_.names[0]), *_additivity_words(clf, data, judge)]
        charts += [_calibration_chart(clf, found), *_expected_charts(evaluation)]
    blocks: list[Block] = [Words(words)]
    if charts:
        blocks.append(Charts(charts))
    if hasattr(clf, "inside_hull_"):
        blocks.append(Numbers(_table(clf, evaluation), folded=True))
    return Section("Trust", blocks)


def _bias_words(clf: Any) -> list[str]:
    """What the biases rest on, and whether the fit is at its optimum."""
    if not hasattr(clf, "inside_hull_"):
        return ["This model predicts classes alone: it has no biases, and says nothing about groups it never saw."]
    return [_extrapolation_words(clf), _convergence_words(clf)]


def _extrapolation_words(clf: Any) -> str:
    unseen = clf.inside_hull_ & ~clf.seen_
    if not unseen.any():
        return "No unseen group can be extrapolated."
    return bias_words(clf.effective_sample_size_[unseen], clf.pareto_k_[unseen])


def bias_words(size: FloatArray, tail: FloatArray) -> str:
    """What the biases of extrapolated groups rest on, by their sample sizes and tail indices, NaN if unknown."""
    few = int(np.count_nonzero((size < ENOUGH_SAMPLES) | (tail > HEAVY_TAIL)))
    every = "the extrapolated group" if len(size) == 1 else f"all {len(size)} extrapolated groups"
    if not few:
        known = not np.isnan(tail).any()
        end = ", without a heavy tail" if known else "; whether their weights have a heavy tail is not known"
        return f"Effective sample size of {every}: {ENOUGH_SAMPLES} or more{end}."
    groups = every if few == len(size) else f"{few} of the {len(size)} extrapolated groups"
    return (
        f"Effective sample size of {groups}: below {ENOUGH_SAMPLES}, or large with a heavy tail. Do not rely on the "
        "bias there without data."
    )


def _convergence_words(clf: Any) -> str:
    gap = f"B* and the learned bias of seen groups differ by {clf.bias_gap_:.1e} at most"
    if clf.bias_gap_ > 0.01:
        return f"{gap}, which should be 0: the fit had not converged, or training went on after the biases."
    return f"{gap}, as they should at the optimum."


def _additivity_words(clf: Any, data: GroupedDataset, judge: bool | None) -> list[str]:
    """Whether an additive model is enough for these rows, if it is to be judged."""
    if judge is False or not hasattr(clf, "inside_hull_"):
        return []
    cells = min(len(data), MAX_DIAGNOSED) * data.X.shape[1] * int(clf.seen_.sum())
    if judge is None and cells > QUICK:
        return ["Whether energies add up was not judged, which would take a while here: --diagnose does it."]
    try:
        return [_diagnosed(clf, data)]
    except InputError as error:
        return [f"Whether energies add up cannot be judged on these rows: {error}."]


def _diagnosed(clf: Any, data: GroupedDataset) -> str:
    if len(data) > MAX_DIAGNOSED:
        rows = np.sort(np.random.default_rng(0).choice(len(data), MAX_DIAGNOSED, replace=False))
        data = data.rows(rows)
    targets = list(clf.targets_.names)
    frame = data.columns(clf.space_.names)
    nuisances = frame.drop(columns=targets)
    found = diagnose(clf, data.X, frame[targets], nuisances if nuisances.shape[1] else None)
    return f"On {found.n_rows:,} rows of seen groups: {found.additivity_verdict}"


def _bias_charts(clf: Any) -> list[Chart]:
    """Dots for effective sample size and k̂ of the extrapolated groups, or of the seen ones if there are none."""
    if not hasattr(clf, "effective_sample_size_"):
        return []
    size, tail = clf.effective_sample_size_, clf.pareto_k_
    unseen = clf.inside_hull_ & ~clf.seen_
    shown = unseen if unseen.any() else clf.seen_
    inside = np.flatnonzero(shown & np.isfinite(size) & (size > 0))
    order = inside[np.argsort(size[inside], kind="stable")][:MAX_DOTS]
    if not len(order):
        return []
    cut = f" The {MAX_DOTS} lowest of {len(inside)} groups are shown." if len(inside) > MAX_DOTS else ""
    labels = [clf.space_.label(clf.groups_[group]) for group in order]
    return bias_charts(labels, clf.seen_[order], size[order], tail[order], cut)


def bias_charts(labels: Sequence[str], seen: BoolArray, size: FloatArray, tail: FloatArray, cut: str) -> list[Chart]:
    """Dots for effective sample size and k̂, NaN if unknown, of groups; ``cut`` says which are left out."""
    rows = [
        {
            "group": label,
            "state": "seen" if had else "unseen",
            "ess": round(float(samples), 2),
            "k": round(float(k), 3) if np.isfinite(k) else None,
        }
        for label, had, samples, k in zip(labels, seen, size, tail, strict=True)
    ]
    charts = [trust_dots(rows, labels, "ess", "effective sample size", ENOUGH_SAMPLES, ESS_CAPTION + cut)]
    known = [row for row in rows if row["k"] is not None]
    if known:
        charts.append(trust_dots(known, labels, "k", "Pareto k̂", HEAVY_TAIL, TAIL_CAPTION + cut))
    return charts


def _calibration_chart(clf: Any, found: Confidences) -> Chart:
    of_unseen = "with those of unseen groups apart" if found.unseen.any() else "all of seen groups"
    caption = (
        f"Calibration of {clf.targets_.names[0]} on {len(found.right):,} rows, {of_unseen}: on the dashed line "
        "probabilities are right. Bars are 95% intervals."
    )
    return calibration_curves(found.chart_rows(), caption)


def _expected_charts(evaluation: Evaluation) -> list[Chart]:
    """Expected against actual accuracy of unseen groups, where both are known."""
    report, rows = evaluation.report, []
    for group in np.flatnonzero((report.count > 0) & ~np.isnan(evaluation.expected[:, 0])):
        names = ("expected", "expected_lower", "expected_upper", "accuracy", "lower", "upper")
        figures = (*evaluation.expected[group], report.accuracy[group], report.lower[group], report.upper[group])
        rows.append(
            {"group": report.space.label(report.groups[group]), "n": int(report.count[group])}
            | {name: round(float(figure), 4) for name, figure in zip(names, figures, strict=True)}
        )
    text = "What the fit expected of each unseen group, by held-out groups, against what came. Lines are intervals."
    return [expected_and_actual(rows, text)] if rows else []


def _table(clf: Any, evaluation: Evaluation | None) -> Grid:
    """Every candidate group: what training had, what its bias rests on, and what came of it."""
    headings = ["group", "in training", "ESS", "k̂", "|B* − B|", "expected", "actual", "rows"]
    grid = Grid("trust", "Every group", headings, 2)
    place = None if evaluation is None else clf.space_.locate(clf.groups_, evaluation.report.groups)
    order = np.argsort(clf.seen_, kind="stable")[:MAX_TABLE_ROWS]
    for group in order:
        seen, inside = clf.seen_[group], clf.inside_hull_[group]
        state = f"{clf.group_weight_[group]:g} rows" if seen else "extrapolated" if inside else "outside the hull"
        gap = abs(clf.bias_[group] - clf.learned_bias_[group])
        expected = actual = count = ""
        if evaluation is not None and place is not None and place[group] >= 0:
            row, report = int(place[group]), evaluation.report
            expected = _with_interval(*evaluation.expected[row])
            actual = _with_interval(report.accuracy[row], report.lower[row], report.upper[row])
            count = str(int(report.count[row]))
        figures = [
            _shown(clf.effective_sample_size_[group], ".0f"),
            _shown(clf.pareto_k_[group], ".2f"),
            f"{gap:.1e}" if seen else "",
            expected,
            actual,
            count,
        ]
        grid.add([clf.space_.label(clf.groups_[group]), state], [Cell(text) for text in figures])
    if len(clf.groups_) > MAX_TABLE_ROWS:
        grid.notes.append(f"The first {MAX_TABLE_ROWS} of {len(clf.groups_):,} candidate groups, unseen ones first.")
    return grid


def _with_interval(value: float, lower: float, upper: float) -> str:
    return "" if np.isnan(value) else f"{value:.2f} ({lower:.2f}–{upper:.2f})"


def _shown(value: float, how: str) -> str:
    return "" if np.isnan(value) else format(value, how)
