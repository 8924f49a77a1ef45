"""The trust section of a page: evidence on how reliable predictions for unseen groups are.

The evidence is the effective sample size and the Pareto k̂ behind each bias, the convergence of the fit, calibration,
additivity of the energies, and expected against actual accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from compshift._errors import InputError
from compshift.core.accuracy import calibration, confidence_bins, wilson_interval
from compshift.core.arrays import BoolArray, FloatArray, to_numpy
from compshift.core.bias import ENOUGH_SAMPLES, HEAVY_TAIL
from compshift.data.dataset import GroupedDataset
from compshift.estimators.diagnose import diagnose
from compshift.metrics.displays import least_reliable
from compshift.metrics.evaluation import Evaluation, absent_from_training, expected_accuracy
from compshift.report.charts import calibration_curves, expected_and_actual, trust_dots
from compshift.report.grid import Cell, Grid
from compshift.report.page import Block, Chart, Charts, Numbers, Section, Words

MAX_DOTS = 40
"""Maximum number of groups in the charts of effective sample size and k̂: those with the smallest effective size."""

MAX_GROUP_ROWS = 500
"""Maximum number of rows in the table of groups."""

MAX_DIAGNOSED_ROWS = 2000
"""Maximum number of data rows in the test of additivity; if there are more, a random sample is used."""

MAX_DEFAULT_WORK = 5e6
"""Largest product rows × features × seen groups for which additivity is tested by default: about ten seconds."""

OVERCONFIDENCE_Z = 2.0
"""Standard errors between mean confidence and accuracy above which probabilities are called too high or too low."""

MAX_BIAS_GAP = 0.01
"""Maximum |B* − B| over seen groups, in nats, at which a fit counts as converged."""

ESS_CAPTION = (
    f"Effective sample size behind the bias of each group. Left of the line, at {ENOUGH_SAMPLES} training rows, the "
    "bias is uncertain."
)
TAIL_CAPTION = (
    f"Pareto k̂ of the importance weights behind the bias of each group. Right of the line, at {HEAVY_TAIL}, a few "
    "training rows dominate, and the effective sample size is unreliable."
)


class Confidences(NamedTuple):
    """Confidence and correctness of the prediction for each row."""

    confidence: FloatArray  # (n,) probability of the predicted class
    right: BoolArray  # (n,) whether the prediction is correct
    unseen: BoolArray  # (n,) whether the row's group was absent from training

    @classmethod
    def of(cls, clf: Any, data: GroupedDataset) -> Confidences:
        """Predict the first target of every row and compare it with the label."""
        proba = clf.predict_proba(data.X)
        proba = proba[0] if isinstance(proba, list) else proba
        frame = data.columns(clf.space_.names)
        codes = clf.space_.encode(frame)
        return cls(proba.max(axis=1), proba.argmax(axis=1) == codes[:, 0], absent_from_training(clf, codes))

    def words(self, target: str) -> list[str]:
        """Return sentences on the calibration of ``target``, for rows of seen and of unseen groups."""
        sentences = []
        for state, chosen in (("seen", ~self.unseen), ("unseen", self.unseen)):
            if not chosen.any():
                continue
            found = calibration(np.minimum(self.confidence[chosen], 1), self.right[chosen], np.random.default_rng(0))
            confidence, how = found.accuracy + found.overconfidence, "not detectably miscalibrated"
            if found.off:
                clear = abs(found.overconfidence) > OVERCONFIDENCE_Z * found.overconfidence_error
                how = "miscalibrated" if not clear else "too high" if found.overconfidence > 0 else "too low"
            sentences.append(
                f"Probabilities of {target} on the {int(chosen.sum()):,} rows of {state} groups are {how}: the mean "
                f"confidence is {confidence:.1%} and the accuracy {found.accuracy:.1%}."
            )
        return sentences

    def chart_rows(self, interval: float) -> list[dict[str, Any]]:
        """Return the bins of the calibration curves of seen and unseen groups; ``interval`` is the confidence level."""
        rows = []
        for state, chosen in (("seen", ~self.unseen), ("unseen", self.unseen)):
            if not chosen.any():
                continue
            confidence, right = self.confidence[chosen], self.right[chosen]
            bins = confidence_bins(confidence)
            for number in np.unique(bins):
                members = bins == number
                lower, upper = wilson_interval(float(right[members].sum()), int(members.sum()), interval)
                figures = (confidence[members].mean(), right[members].mean(), lower, upper)
                names = ("confidence", "accuracy", "lower", "upper")
                rows.append(
                    {"state": state, "n": int(members.sum())}
                    | {name: round(float(figure), 4) for name, figure in zip(names, figures, strict=True)}
                )
        return rows


def trust_section(
    clf: Any, evaluation: Evaluation | None, data: GroupedDataset | None, additivity: bool | None = None
) -> Section:
    """Return the section: sentences that sum up the evidence, charts of it, and a table of every group.

    Additivity is tested on ``data`` if ``additivity`` is true, or if it is None and the test takes only seconds.
    """
    words, charts = bias_sentences(clf, evaluation), _bias_charts(clf)
    if data is None or evaluation is None:
        words.append("No labelled rows were given, so calibration and additivity are not assessed.")
    else:
        found = Confidences.of(clf, data)
        words += [*found.words(clf.targets_.names[0]), *_additivity_words(clf, data, additivity)]
        charts += [_calibration_chart(clf, found, evaluation.report.confidence), *_expected_charts(evaluation)]
    blocks: list[Block] = [Words(words)]
    if charts:
        blocks.append(Charts(charts))
    if hasattr(clf, "inside_hull_"):
        blocks.append(Numbers(_table(clf, evaluation), folded=True))
    return Section("Trust", blocks)


def bias_sentences(clf: Any, evaluation: Evaluation | None) -> list[str]:
    """Return sentences on the evidence behind extrapolated biases and on the convergence of the fit."""
    if not hasattr(clf, "inside_hull_"):
        return ["This model predicts classes only: it has no group biases and does not extrapolate to unseen groups."]
    unseen = clf.inside_hull_ & ~clf.seen_
    if not unseen.any():
        return ["No unseen group can be extrapolated.", convergence_words(clf.bias_gap_)]
    measured, expected = _accuracies(clf, evaluation)
    size, tail = to_numpy(clf.effective_sample_size_), to_numpy(clf.pareto_k_)
    words = bias_words(size[unseen], tail[unseen], measured[unseen], expected[unseen])
    return [words, convergence_words(clf.bias_gap_)]


def _accuracies(clf: Any, evaluation: Evaluation | None) -> tuple[FloatArray, FloatArray]:
    """Return the measured and the expected accuracy of every candidate group, (g,) each, NaN if there is none."""
    measured = np.full(len(clf.groups_), np.nan)
    if evaluation is not None:
        place = clf.space_.locate(clf.groups_, evaluation.report.groups)
        tested = (place >= 0) & (evaluation.report.count[place] > 0)
        measured[tested] = evaluation.report.accuracy[place[tested]]
    return measured, expected_accuracy(clf, clf.groups_)[:, 0]


def bias_words(
    size: FloatArray, tail: FloatArray, measured: FloatArray | None = None, expected: FloatArray | None = None
) -> str:
    """Return sentences on the evidence behind extrapolated biases, and on how far to rely on the extrapolation.

    ``size`` (q,) holds the effective sample sizes and ``tail`` (q,) the Pareto k̂ of the groups, NaN if unknown. A
    group is judged by its ``measured`` accuracy (q,) or, where that is NaN, by its ``expected`` accuracy (q,); only
    groups without either are judged by the evidence behind their biases.
    """
    measured = np.full(len(size), np.nan) if measured is None else measured
    expected = np.full(len(size), np.nan) if expected is None else expected
    expected = np.where(np.isnan(measured), expected, np.nan)
    unknown = np.isnan(measured) & np.isnan(expected)
    uncertain = (size < ENOUGH_SAMPLES) | (tail > HEAVY_TAIL)
    n_uncertain = int(np.count_nonzero(uncertain))
    every = (
        "bias of the extrapolated group rests"
        if len(size) == 1
        else f"biases of all {len(size)} extrapolated groups rest"
    )
    if n_uncertain:
        some = f"biases of {n_uncertain} of the {len(size)} extrapolated groups rest"
        evidence = (
            f"The {every if n_uncertain == len(size) else some} on an effective sample size below {ENOUGH_SAMPLES}, or "
            "on importance weights with a heavy tail."
        )
    else:
        known = not np.isnan(tail).any()
        end = ", without a heavy tail" if known else "; whether the importance weights have a heavy tail is not known"
        evidence = f"The {every} on an effective sample size of {ENOUGH_SAMPLES} or more{end}."
    sentences = [evidence]
    for start, accuracy in (("On labelled rows, the accuracy", measured), ("The expected accuracy", expected)):
        sentences += _accuracy_sentence(start, accuracy)
    if not unknown.all() and not n_uncertain:
        sentences[0] = sentences[0][:-1] + ", which says nothing about accuracy."
    doubtful = int(np.count_nonzero(uncertain & unknown))
    if doubtful:
        others = "the other one" if doubtful == 1 else f"the other {doubtful}"
        what, them = ("the extrapolation", "it") if unknown.all() else (others, "it" if doubtful == 1 else "them")
        sentences.append(f"Do not rely on {what} without labelled rows to check {them}.")
    return " ".join(sentences)


def _accuracy_sentence(start: str, accuracy: FloatArray) -> list[str]:
    """Return a sentence with the average and the lowest accuracy (q,) of extrapolated groups; [] if all are NaN."""
    values = accuracy[~np.isnan(accuracy)]
    if not len(values):
        return []
    which = f"{len(values)} of these {len(accuracy)} groups"
    if len(values) == len(accuracy):
        which = "this group" if len(accuracy) == 1 else "these groups"
    worst = f" on average and {values.min():.1%} on the worst" if len(values) > 1 else ""
    return [f"{start} on {which} is {values.mean():.1%}{worst}: rely on it no further than that."]


def convergence_words(gap: float) -> str:
    """Return a sentence on convergence; ``gap`` is the largest |B* − B| over seen groups, which is 0 at the optimum."""
    words = f"B* and the learned bias of seen groups differ by at most {gap:.1e}"
    if gap > MAX_BIAS_GAP:
        return f"{words}, which should be 0: the optimum was not reached, or training continued after B* was computed."
    return f"{words}, as they should at the optimum."


def _additivity_words(clf: Any, data: GroupedDataset, additivity: bool | None) -> list[str]:
    """Return a sentence on whether the energies of these rows are additive, or nothing if that is not tested."""
    if additivity is False or not hasattr(clf, "inside_hull_"):
        return []
    work = min(len(data), MAX_DIAGNOSED_ROWS) * data.X.shape[1] * int(clf.seen_.sum())
    if additivity is None and work > MAX_DEFAULT_WORK:
        return [
            "To save time, additivity of the energies was not tested: use `compshift report --diagnose` to test it."
        ]
    try:
        return [_additivity_verdict(clf, data)]
    except InputError as error:
        return [f"Additivity of the energies cannot be tested on these rows: {error}."]


def _additivity_verdict(clf: Any, data: GroupedDataset) -> str:
    """Test additivity on at most ``MAX_DIAGNOSED_ROWS`` rows and return the verdict."""
    if len(data) > MAX_DIAGNOSED_ROWS:
        rows = np.sort(np.random.default_rng(0).choice(len(data), MAX_DIAGNOSED_ROWS, replace=False))
        data = data.rows(rows)
    targets = list(clf.targets_.names)
    frame = data.columns(clf.space_.names)
    nuisances = frame.drop(columns=targets)
    found = diagnose(clf, data.X, frame[targets], nuisances if nuisances.shape[1] else None)
    return f"On {found.n_rows:,} rows of seen groups: {found.additivity_verdict}"


def _bias_charts(clf: Any) -> list[Chart]:
    """Return charts of the evidence behind the biases of extrapolated groups or, if there are none, of seen groups."""
    if not hasattr(clf, "effective_sample_size_"):
        return []
    size, tail = to_numpy(clf.effective_sample_size_), to_numpy(clf.pareto_k_)
    order, n_groups = least_reliable(clf, MAX_DOTS)
    if not n_groups:
        return []
    cut = (
        f" Of {n_groups} groups, the {MAX_DOTS} with the smallest effective sample size are shown."
        if n_groups > MAX_DOTS
        else ""
    )
    labels = [clf.space_.label(clf.groups_[group]) for group in order]
    return bias_charts(labels, clf.seen_[order], size[order], tail[order], cut)


def bias_charts(labels: Sequence[str], seen: BoolArray, size: FloatArray, tail: FloatArray, cut: str) -> list[Chart]:
    """Return charts of effective sample size and k̂ (NaN if unknown) by group; ``cut`` is appended to the captions."""
    rows = [
        {
            "group": label,
            "state": "seen" if is_seen else "unseen",
            "ess": round(float(samples), 2),
            "k": round(float(k), 3) if np.isfinite(k) else None,
        }
        for label, is_seen, samples, k in zip(labels, seen, size, tail, strict=True)
    ]
    charts = [trust_dots(rows, labels, "ess", "effective sample size", ENOUGH_SAMPLES, ESS_CAPTION + cut)]
    known = [row for row in rows if row["k"] is not None]
    if known:
        charts.append(trust_dots(known, labels, "k", "Pareto k̂", HEAVY_TAIL, TAIL_CAPTION + cut))
    return charts


def _calibration_chart(clf: Any, found: Confidences, interval: float) -> Chart:
    """Return the calibration curves; ``interval`` is the confidence level of the intervals."""
    curves = "seen and unseen groups separately" if found.unseen.any() else "all of seen groups"
    caption = (
        f"Calibration of {clf.targets_.names[0]} on {len(found.right):,} rows, {curves}. On the dashed line, "
        f"accuracy equals confidence. Bars are {interval:.0%} intervals."
    )
    return calibration_curves(found.chart_rows(interval), caption)


def _expected_charts(evaluation: Evaluation) -> list[Chart]:
    """Return a chart of expected and actual accuracy of the unseen groups that have both, or nothing."""
    report, rows = evaluation.report, []
    for group in np.flatnonzero((report.count > 0) & ~np.isnan(evaluation.expected[:, 0])):
        names = ("expected", "expected_lower", "expected_upper", "accuracy", "lower", "upper")
        figures = (*evaluation.expected[group], report.accuracy[group], report.lower[group], report.upper[group])
        rows.append(
            {"group": report.space.label(report.groups[group]), "n": int(report.count[group])}
            | {name: round(float(figure), 4) for name, figure in zip(names, figures, strict=True)}
        )
    caption = (
        "Expected accuracy of each unseen group, estimated on held-out groups during the fit, against its actual "
        "accuracy. Horizontal and vertical lines are their intervals."
    )
    return [expected_and_actual(rows, caption)] if rows else []


def _table(clf: Any, evaluation: Evaluation | None) -> Grid:
    """Return a table of every candidate group: its role in training, the evidence behind its bias, and its accuracy."""
    headings = ["group", "in training", "ESS", "k̂", "|B* − B|", "expected", "actual", "rows"]
    grid = Grid("trust", "Every group", headings, 2)
    place = None if evaluation is None else clf.space_.locate(clf.groups_, evaluation.report.groups)
    order = np.argsort(clf.seen_, kind="stable")[:MAX_GROUP_ROWS]
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
    grid.notes.append(
        "ESS and k̂: effective sample size and Pareto k̂ of the importance weights behind the group's bias. |B* − B|: "
        "difference of the extrapolated and the learned bias. Expected and actual: accuracy with its interval."
    )
    if len(clf.groups_) > MAX_GROUP_ROWS:
        grid.notes.append(f"The first {MAX_GROUP_ROWS} of {len(clf.groups_):,} candidate groups, unseen ones first.")
    return grid


def _with_interval(value: float, lower: float, upper: float) -> str:
    """Format a value with its interval, or return empty text for NaN."""
    return "" if np.isnan(value) else f"{value:.2f} ({lower:.2f}–{upper:.2f})"


def _shown(value: float, spec: str) -> str:
    """Format a value by a format specification, or return empty text for NaN."""
    return "" if np.isnan(value) else format(value, spec)
