"""How many groups CRM needs: accuracy on all groups when only a share of them is in training, computed and drawn.

The paper's study with a varying number of groups, on data whose Bayes accuracy is known. ``alpha`` is chosen without
test data, by the worse of two accuracies: on seen groups that were held out and lie inside the hull of the others, and
on held-out rows of the others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compshift._errors import InputError
from compshift._files import append_line, check_ordinary, parse_json
from compshift.core.hull import AffineHull
from compshift.crm.cv import choose_alpha, fit_codes
from compshift.data.gaussians import AdditiveGaussians
from compshift.studies.figure_file import check_figure_path, save_figure

STUDY_ALPHAS = (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.2, 0.4)
"""Ridges to choose from."""

QUICK_CASES = ((2, 10, 0.2), (2, 10, 0.5), (2, 20, 0.1), (2, 20, 0.2), (7, 2, 0.2))
"""Attributes, values and share of kept groups in the quick version."""

N_TEST = 20_000
"""Test rows of a case, uniform over all groups."""

CURVE_COLOURS = {"accuracy": "#0072b2", "bayes": "#d55e00", "inside": "#009e73"}


@dataclass(frozen=True)
class GrowthCase:
    """One point of the study: numbers of attributes and values, the share of groups kept, and a seed."""

    attributes: int
    values: int
    share: float
    seed: int
    n_train: int = 8000


@dataclass(frozen=True)
class GrowthOutcome:
    """Result of a case. Accuracies are those of predicting z1."""

    job: GrowthCase
    norm: float
    alpha: float
    groups_kept: int
    share_inside: float  # share of all groups inside the hull of the kept ones
    accuracy: float  # over all groups
    accuracy_seen: float
    accuracy_unseen: float  # over unseen groups inside the hull; NaN if there is none
    bayes: float  # on the same test rows

    def to_dict(self) -> dict[str, Any]:
        """Return the case and its numbers as one flat mapping; None where there is no number."""
        numbers = {name: value for name, value in asdict(self).items() if name != "job"}
        return asdict(self.job) | {name: None if value != value else value for name, value in numbers.items()}


def plan_cases(*, quick: bool) -> list[GrowthCase]:
    """Return the paper's settings with three seeds, or a few of them with one."""
    if quick:
        return [GrowthCase(m, d, share, 0) for m, d, share in QUICK_CASES]
    shares = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
    settings = [(2, d) for d in (10, 20, 30, 40, 50)] + [(m, 2) for m in (7, 8, 9)]
    return [GrowthCase(m, d, share, seed) for m, d in settings for share in shares for seed in range(3)]


def run_growth(
    cases: Sequence[GrowthCase], store: Path, finished: Callable[[GrowthOutcome], None] = lambda _: None
) -> list[GrowthOutcome]:
    """Run the cases that the store (a JSON-lines file) lacks, and return the results of all, in order."""
    known = {outcome.job: outcome for outcome in _read(store)}
    for case in cases:
        if case not in known:
            known[case] = run_case(case)
            append_line(store, json.dumps(asdict(known[case])))
        finished(known[case])
    return [known[case] for case in cases]


def run_case(case: GrowthCase) -> GrowthOutcome:
    """Draw groups and data, choose alpha, fit, and score on new rows of every group."""
    source = AdditiveGaussians(case.attributes, case.values)
    rng = np.random.default_rng([case.seed, case.attributes, case.values, round(1000 * case.share)])
    space = source.space
    kept = max(2, round(case.share * space.n_groups))
    seen = space.codes(np.sort(rng.choice(space.n_groups, size=kept, replace=False)))
    codes = seen[np.arange(case.n_train) % kept]
    X = source.sample(codes, rng)
    alpha = choose_alpha(X, codes, space, STUDY_ALPHAS, rng)
    clf = fit_codes(X, codes, space, alpha)
    test = space.codes(rng.integers(0, space.n_groups, size=N_TEST))
    X_test = source.sample(test, rng)
    right = clf.predict(X_test) == test[:, 0]
    hull = AffineHull(space, seen)
    was_seen = space.locate(test, seen) >= 0
    unseen = hull.contains(test) & ~was_seen
    return GrowthOutcome(
        job=case,
        norm=source.norm,
        alpha=alpha,
        groups_kept=kept,
        share_inside=float(hull.coverage()),
        accuracy=float(right.mean()),
        accuracy_seen=float(right[was_seen].mean()),
        accuracy_unseen=float(right[unseen].mean()) if unseen.any() else float("nan"),
        bayes=float((source.bayes(X_test) == test[:, 0]).mean()),
    )


def _read(store: Path) -> Iterator[GrowthOutcome]:
    """Yield the results in the store; a line that was cut off is skipped, and its case runs again."""
    if not store.exists():
        return
    for number, line in enumerate(check_ordinary(store).read_bytes().splitlines(), start=1):
        try:
            content = parse_json(line)
        except ValueError:
            continue
        outcome = _outcome(content)
        if outcome is None:
            raise InputError(f"{str(store)!r}, line {number}, is not a result of this study: choose another output")
        yield outcome


def _outcome(content: Any) -> GrowthOutcome | None:
    """Return the result in a line of the store; None if it is not one."""
    try:
        outcome = GrowthOutcome(**{**content, "job": GrowthCase(**content["job"])})
        job, unseen = outcome.job, outcome.accuracy_unseen
        counts = (job.attributes, job.values, job.seed, job.n_train, outcome.groups_kept)
        shares = (outcome.share_inside, outcome.accuracy, outcome.accuracy_seen, outcome.bayes)
        finite = all(map(math.isfinite, (job.share, outcome.norm, outcome.alpha)))
        right = all(0 <= share <= 1 for share in (*shares, 0.0 if math.isnan(unseen) else unseen))
    except (KeyError, TypeError, OverflowError):
        return None
    return outcome if finite and right and all(type(count) is int for count in counts) else None


def draw_growth(outcomes: Sequence[GrowthOutcome], path: Path) -> None:
    """Draw a panel per setting: accuracy on z1 against the share of groups kept, with Bayes and the hull's share."""
    check_figure_path(path)
    from matplotlib.figure import Figure

    settings = sorted({(outcome.job.attributes, outcome.job.values) for outcome in outcomes})
    columns = min(3, len(settings))
    rows = -(-len(settings) // columns)
    figure = Figure(figsize=(2.2 * columns + 0.4, 2.3 * rows + 0.7), layout="constrained")
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel()
    for panel in panels[len(settings) :]:
        panel.set_axis_off()
    for panel, (m, d) in zip(panels, settings, strict=False):
        chosen = [outcome for outcome in outcomes if (outcome.job.attributes, outcome.job.values) == (m, d)]
        shares = sorted({outcome.job.share for outcome in chosen})
        at = [[outcome for outcome in chosen if outcome.job.share == share] for share in shares]
        percent = [100 * share for share in shares]
        means = [np.mean([outcome.accuracy for outcome in part]) for part in at]
        errors = [_standard_error([outcome.accuracy for outcome in part]) for part in at]
        inside = [np.mean([outcome.share_inside for outcome in part]) for part in at]
        bayes = float(np.mean([outcome.bayes for outcome in chosen]))
        panel.axhline(bayes, ls="--", color=CURVE_COLOURS["bayes"], label="Bayes")
        panel.plot(percent, inside, "d:", ms=4, color=CURVE_COLOURS["inside"], label="share of groups inside the hull")
        panel.errorbar(percent, means, errors, fmt="o-", ms=4, color=CURVE_COLOURS["accuracy"], label="CRM, all groups")
        panel.set(title=f"$m = {m}$, $d = {d}$", xlabel="groups kept (%)", xlim=(0, 104), ylim=(0, 1.04))
        panel.grid(alpha=0.25)
    panels[0].set_ylabel("accuracy on $z_1$")
    save_figure(figure, path, legend=panels[0].get_legend_handles_labels(), columns=min(3, columns))


def _standard_error(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
