"""How many groups CRM needs: accuracy on all groups when only a share of them is in the training data.

This is the paper's study with a varying number of groups, on data whose Bayes accuracy is known. Each ``alpha`` has two
validation accuracies: on held-out groups inside the hull of the remaining ones, and on held-out rows of the remaining
groups. The ``alpha`` that maximises the lower of the two is used. Test data play no part in the choice.

The paper does not say how many training rows there are. By default their total is fixed, so that with fewer groups
each has more rows, and only the number of groups varies. The authors' code draws 100 rows of each group, so that with
fewer groups there are also fewer rows; pass ``rows_per_group`` to ``plan_cases`` for that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from compshift._checks import check_count
from compshift._errors import InputError
from compshift._files import append_line, check_ordinary, parse_json
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.folds import combination_folds
from compshift.core.groups import GroupSpace
from compshift.core.hull import AffineHull
from compshift.crm.coded import coded_samples, fit_codes
from compshift.crm.fit import FitParams
from compshift.crm.held_out import Folds, combination_scores
from compshift.data.gaussians import AdditiveGaussians
from compshift.studies.figure_file import check_figure_path, new_figure, save_figure

QUICK_CASES = ((2, 10, 0.2), (2, 10, 0.5), (2, 20, 0.1), (2, 20, 0.2), (7, 2, 0.2))
"""Number of attributes, values per attribute and share of groups kept, for each case of the quick version."""

ALPHAS = (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.2, 0.4)
"""Strengths of the ridge to choose from."""

N_TRAIN = 8000
"""Total number of training rows of a case, if the number of rows per group is not given."""

GROWTH_CAPTION = (
    "Accuracy of CRM on all groups when predicting z1, against the share of groups in training (mean and standard "
    "error over seeds), beside that of the Bayes classifier and the share of groups inside the affine hull of those in "
    "training; m attributes with d values each."
)

LOG_TICKS = (5, 10, 20, 50, 100)
"""Percentages that are marked on logarithmic axes."""

CURVE_COLOURS = {"accuracy": "#0072b2", "bayes": "#d55e00", "inside": "#009e73"}


@dataclass(frozen=True)
class GrowthCase:
    """One point of the study: number of attributes, values per attribute, share of groups kept, and seed."""

    attributes: int
    values: int
    share: float
    seed: int
    n_train: int = N_TRAIN

    @property
    def n_kept(self) -> int:
        """Number of groups in training."""
        return max(2, round(self.share * math.prod([self.values] * self.attributes)))


@dataclass(frozen=True)
class GrowthOutcome:
    """Result of a case. Accuracies are of predictions of the first attribute, z1."""

    case: GrowthCase
    norm: float  # norm of the mean μ of an attribute value, the same for all values
    alpha: float  # the chosen ridge strength
    groups_kept: int
    share_inside: float  # share of all groups that lie inside the hull of the kept ones
    accuracy: float  # on rows of all groups
    accuracy_seen: float  # on rows of the kept groups
    accuracy_unseen: float  # on rows of the other groups inside the hull; NaN if there are none
    bayes: float  # accuracy of the Bayes classifier on the same test rows

    def to_dict(self) -> dict[str, Any]:
        """Return the case and its numbers as one flat mapping; None stands for NaN."""
        numbers = {name: value for name, value in asdict(self).items() if name != "case"}
        return asdict(self.case) | {name: None if value != value else value for name, value in numbers.items()}

    def to_line(self) -> str:
        """Return the result as a line of the store, which keeps the case under the key "job"."""
        content = asdict(self)
        return json.dumps({"job": content.pop("case"), **content})


def plan_cases(*, quick: bool, rows_per_group: int | None = None) -> list[GrowthCase]:
    """Return the cases of the paper's settings with three seeds each; if ``quick``, ``QUICK_CASES`` with one seed.

    Cases have ``N_TRAIN`` training rows in total, or ``rows_per_group`` rows of each group in training.
    """
    shares = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
    settings = [(2, d) for d in (10, 20, 30, 40, 50)] + [(m, 2) for m in (7, 8, 9)]
    points = [(m, d, share, seed) for m, d in settings for share in shares for seed in range(3)]
    if quick:
        points = [(*point, 0) for point in QUICK_CASES]
    cases = [GrowthCase(*point) for point in points]
    if rows_per_group is None:
        return cases
    check_count(rows_per_group, "rows per group")
    return [replace(case, n_train=rows_per_group * case.n_kept) for case in cases]


def run_growth(
    cases: Sequence[GrowthCase], store: Path, finished: Callable[[GrowthOutcome], None] = lambda _: None
) -> list[GrowthOutcome]:
    """Return the results of all cases in order; run only those that are not in the store, a JSON-lines file.

    ``finished`` is called with each result, whether it was run or read.
    """
    known = {outcome.case: outcome for outcome in _read(store)}
    for case in cases:
        if case not in known:
            known[case] = run_case(case)
            append_line(store, known[case].to_line())
        finished(known[case])
    return [known[case] for case in cases]


def choose_alpha(
    X: FloatArray, codes: IntArray, space: GroupSpace, alphas: Sequence[float], rng: np.random.Generator
) -> float:
    """Return the alpha that maximises the lower of two accuracies: on held-out groups and on held-out rows of others.

    Both count, because the study reports accuracy on seen and on unseen groups. If no group can be held out, the
    accuracy on held-out rows decides; if no row can be held out either, the middle alpha is returned.
    """
    data = coded_samples(X, codes, space)
    fold = combination_folds(space, data.candidates.seen_groups, 10, rng)
    path = [FitParams(alpha) for alpha in alphas]
    seed = int(rng.integers(2**31))
    scores = combination_scores(Folds.of(data, fold, "hull", seed), path, ["extrapolated"], max_iter=1000)
    parts = [np.nanmean(part, axis=1) for part in (scores.unseen, scores.seen) if not np.isnan(part).all()]
    if not parts:
        return sorted(alphas)[len(alphas) // 2]
    return scores.settings[int(np.argmax(np.min(parts, axis=0)))].params.alpha


def run_case(case: GrowthCase) -> GrowthOutcome:
    """Draw groups and data, choose alpha, fit, and score on new rows of every group."""
    source = AdditiveGaussians(case.attributes, case.values)
    rng = np.random.default_rng([case.seed, case.attributes, case.values, round(1000 * case.share)])
    space = source.space
    seen = space.codes(np.sort(rng.choice(space.n_groups, size=case.n_kept, replace=False)))
    codes = seen[np.arange(case.n_train) % len(seen)]
    X = source.sample(codes, rng)
    alpha = choose_alpha(X, codes, space, ALPHAS, rng)
    clf = fit_codes(X, codes, space, alpha)
    test = space.codes(rng.integers(0, space.n_groups, size=20_000))
    X_test = source.sample(test, rng)
    correct = clf.predict(X_test) == test[:, 0]
    hull = AffineHull(space, seen)
    was_seen = space.locate(test, seen) >= 0
    unseen = hull.contains(test) & ~was_seen
    return GrowthOutcome(
        case=case,
        norm=source.norm,
        alpha=alpha,
        groups_kept=len(seen),
        share_inside=float(hull.coverage()),
        accuracy=float(correct.mean()),
        accuracy_seen=float(correct[was_seen].mean()),
        accuracy_unseen=float(correct[unseen].mean()) if unseen.any() else float("nan"),
        bayes=float((source.bayes(X_test) == test[:, 0]).mean()),
    )


def _read(store: Path) -> Iterator[GrowthOutcome]:
    """Yield the results in the store. A line that was cut off is skipped, so that its case runs again."""
    if not store.exists():
        return
    for number, line in enumerate(check_ordinary(store).read_bytes().splitlines(), start=1):
        try:
            content = parse_json(line)
        except ValueError:
            continue
        outcome = _outcome(content)
        if outcome is None:
            raise InputError(
                f"{str(store)!r}, line {number}, is not a result of this study: delete the file, or choose another "
                "output"
            )
        yield outcome


def _outcome(content: Any) -> GrowthOutcome | None:
    """Return the result that a line of the store holds; None if the line is not a valid result."""
    try:
        case = GrowthCase(**content["job"])
        outcome = GrowthOutcome(case, **{name: value for name, value in content.items() if name != "job"})
        unseen = outcome.accuracy_unseen
        counts = (case.attributes, case.values, case.seed, case.n_train, outcome.groups_kept)
        shares = (outcome.share_inside, outcome.accuracy, outcome.accuracy_seen, outcome.bayes)
        finite = all(map(math.isfinite, (case.share, outcome.norm, outcome.alpha)))
        in_range = all(0 <= share <= 1 for share in (*shares, 0.0 if math.isnan(unseen) else unseen))
    except (KeyError, TypeError, OverflowError):
        return None
    return outcome if finite and in_range and all(type(count) is int for count in counts) else None


def draw_growth(outcomes: Sequence[GrowthOutcome], path: Path, *, caption: bool = True) -> None:
    """Draw one panel per number m of attributes and d of values: accuracy on z1 against the share of groups kept.

    Two further curves are the Bayes accuracy and the share of groups inside the hull. With more than two attributes the
    axis of shares is logarithmic, as in the paper.
    """
    check_figure_path(path)
    settings = sorted({(outcome.case.attributes, outcome.case.values) for outcome in outcomes})
    columns = min(3, len(settings))
    rows = -(-len(settings) // columns)
    text = f"{GROWTH_CAPTION} {training_rows(outcomes)}"
    figure = new_figure(2.2 * columns + 0.4, 2.3 * rows + 0.7, text if caption else None)
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel()
    for panel in panels[len(settings) :]:
        panel.set_axis_off()
    for panel, (m, d) in zip(panels, settings, strict=False):
        chosen = [outcome for outcome in outcomes if (outcome.case.attributes, outcome.case.values) == (m, d)]
        shares = sorted({outcome.case.share for outcome in chosen})
        at = [[outcome for outcome in chosen if outcome.case.share == share] for share in shares]
        percent = [100 * share for share in shares]
        means = [np.mean([outcome.accuracy for outcome in part]) for part in at]
        errors = [_standard_error([outcome.accuracy for outcome in part]) for part in at]
        inside = [np.mean([outcome.share_inside for outcome in part]) for part in at]
        bayes = float(np.mean([outcome.bayes for outcome in chosen]))
        panel.axhline(bayes, ls="--", color=CURVE_COLOURS["bayes"], label="Bayes")
        panel.plot(percent, inside, "d:", ms=4, color=CURVE_COLOURS["inside"], label="share of groups inside the hull")
        panel.errorbar(percent, means, errors, fmt="o-", ms=4, color=CURVE_COLOURS["accuracy"], label="CRM, all groups")
        panel.set(title=f"$m = {m}$, $d = {d}$", xlabel="groups kept (%)", ylim=(0, 1.04))
        panel.grid(alpha=0.25)
        if m > 2:
            panel.set(xscale="log", xlim=(4, 120), xticks=LOG_TICKS, xticklabels=LOG_TICKS)
            panel.minorticks_off()
        else:
            panel.set_xlim(0, 104)
    for panel in panels[::columns]:
        panel.set_ylabel("accuracy on $z_1$")
    save_figure(figure, path, legend=panels[0].get_legend_handles_labels(), columns=min(3, columns))


def training_rows(outcomes: Sequence[GrowthOutcome]) -> str:
    """Return a sentence about the number of training rows: their total, or the rows of each group."""
    totals = {outcome.case.n_train for outcome in outcomes}
    each = {outcome.case.n_train / outcome.groups_kept for outcome in outcomes}
    if len(totals) == 1:
        return f"Every point has {next(iter(totals))} training rows in total."
    if len(each) == 1:
        return f"Every group in training has {next(iter(each)):.0f} training rows."
    return "The numbers of training rows differ."


def _standard_error(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
