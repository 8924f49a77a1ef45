"""Choice of settings by their scores on held-out combinations.

``held_out`` measures the scores, and ``ridge`` says how alpha follows from them, also if no group can be held out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import rankdata

from compshift.core.arrays import BoolArray, FloatArray, IntArray
from compshift.crm.fit import FitParams, Setting, StandardisedRows, step_one, step_two
from compshift.crm.held_out import OFFSETS, CombinationScores, Folds, Scorer, combination_scores, extrapolated_start
from compshift.crm.inputs import LabelledSamples
from compshift.crm.problem import transformed_samples
from compshift.crm.ridge import GROUP_SPREAD, default_alphas, further_alphas, ridge_criterion, typical_alpha
from compshift.crm.solver import CurvaturePairs, Parameters

RELIABILITY_TOL = 3e-5
"""Tolerance of the fits whose tail indices are reported. At a weak ridge it changes a Pareto k̂ by up to .04; 1e-4 would
change it by .12."""

CLEAR_ERRORS = 2.0
"""Number of standard errors above which a difference between two settings counts as significant."""

OFFSET_SHARE = 0.25
"""Factor by which the equalising offset is multiplied. Folds have fewer groups than the final fit, so held-out groups
look worse than unseen groups will be. On three real data sets (docs/unseen.md), a quarter of the equalising offset
improves the worst group on all three, whereas the full offset does so on only one."""

WORST_QUANTILE = 0.1
"""Quantile of the accuracies on held-out groups that ``scoring="worst"`` maximises."""


class SearchSpace(NamedTuple):
    """Settings to choose from. The first anchor, cross_fit, bias and transform are kept unless others clearly win."""

    alphas: tuple[float, ...]  # empty for alphas around the typical one
    anchors: tuple[str, ...] = ("zero",)
    cross_fits: tuple[int, ...] = (0,)
    biases: tuple[str, ...] = ("extrapolated",)
    offset: float | None = 0.0  # unseen offset; None to choose it
    transforms: tuple[str, ...] = ("none",)

    @property
    def paths(self) -> list[list[FitParams]]:
        """Parameters of fits with the first transform: a list of increasing alpha per pair of anchor and cross_fit."""
        return [
            [FitParams(alpha, anchor, folds, self.transforms[0]) for alpha in sorted(self.alphas)]
            for anchor in self.anchors
            for folds in self.cross_fits
        ]


class Choice(NamedTuple):
    """The chosen setting, and the scores of all settings."""

    setting: Setting
    scores: CombinationScores
    setting_score: FloatArray  # (s,) see ``setting_scores``
    criterion: FloatArray  # (s,) quantity that the chosen alpha minimises among the settings of its kind


def choose(
    data: LabelledSamples,
    space: SearchSpace,
    fold: IntArray,
    prior: Any,
    scoring: str | Scorer,
    *,
    max_iter: int,
    seed: int,
    n_jobs: int | None = None,
) -> Choice:
    """Choose the best alpha for each kind of setting, then a kind: the first, unless others are clearly better.

    A kind is a combination of anchor, cross_fit and bias. The first anchor and cross_fit are tried with every alpha;
    the others only with alphas around the best of these, and only if groups can be held out. Then the chosen setting
    is tried with the other transforms. Its alpha stays the same: at another alpha a transform might be better only
    because of the alpha. ``fold`` (k,) is the fold of each seen group, −1 for groups that are never held out.
    """
    typical = typical_alpha(data.X.shape[1], data.sample_weight)
    held_out = bool((fold >= 0).any())

    @cache
    def folds(transform: str) -> Folds:
        return Folds.of(transformed_samples(data, transform), fold, prior, seed)

    def score(path: Sequence[FitParams]) -> CombinationScores:
        scorer = scoring if held_out and not isinstance(scoring, str) else None
        of_transform = folds(path[0].feature_transform)
        return combination_scores(of_transform, path, space.biases, max_iter=max_iter, n_jobs=n_jobs, scorer=scorer)

    extends = not space.alphas
    if extends:
        space = space._replace(alphas=default_alphas(typical))
    plain, *others = space.paths
    first = score(plain)
    while extends:
        further = further_alphas(tuple(first.alphas), _best_alpha(first, scoring, typical), typical)
        if not further:
            break
        first = first.joined(score([plain[0]._replace(alpha=alpha) for alpha in further])).by_alpha()
    scores = first
    if held_out:
        for path in others:
            scores = scores.joined(_search_alphas(score, path, first, scoring, typical))
    chosen = _best_kind(scores, scores.kinds.values(), scoring, typical)
    if held_out:
        kept = scores.settings[chosen]
        alternatives = [
            kept._replace(params=kept.params._replace(feature_transform=name)) for name in space.transforms[1:]
        ]
        for setting in alternatives:
            scores = scores.joined(score([setting.params]))
        positions = [chosen, *(scores.settings.index(setting) for setting in alternatives)]
        chosen = _best_kind(scores, np.array(positions)[:, None], scoring, typical)
    setting, offset = scores.settings[chosen], space.offset
    if offset is None:
        accuracies = folds(setting.params.feature_transform).offset_accuracies(setting)
        offset = OFFSET_SHARE * equalising_offset(accuracies)
    return Choice(
        setting._replace(offset=offset), scores, setting_scores(scores, scoring), _criterion(scores, scoring, typical)
    )


def _best_kind(scores: CombinationScores, kinds: Iterable[IntArray], scoring: str | Scorer, typical: float) -> int:
    """Return the position of the best setting of the first of ``kinds``, or of a kind that is clearly better.

    Each kind is given by the positions of its settings. Without held-out groups, the first kind is always used.
    """
    score, criterion = setting_scores(scores, scoring), _criterion(scores, scoring, typical)
    standard, *others = (int(rows[np.argmin(criterion[rows])]) for rows in kinds)
    chosen = standard
    for other in others if (scores.fold >= 0).any() else ():
        if _clearly_better(scores, other, standard) and score[other] > score[chosen]:
            chosen = other
    return chosen


def _best_alpha(scores: CombinationScores, scoring: str | Scorer, typical: float) -> float:
    """Return the alpha that is chosen for the first kind of setting."""
    rows = next(iter(scores.kinds.values()))
    return float(scores.alphas[rows[np.argmin(_criterion(scores, scoring, typical)[rows])]])


def bias_reliability(data: LabelledSamples, settings: Sequence[Setting], prior: Any, max_iter: int) -> FloatArray:
    """Return how far B* of unseen groups can be relied on at each setting, in a fit to all samples, (s, 2).

    The columns are the lowest effective sample size and the highest Pareto k̂ among the unseen groups inside the hull
    to which the prior gives weight. They are NaN without such groups, and for all but the first anchor, cross_fit and
    transform.
    """
    data = transformed_samples(data, settings[0].params.feature_transform)
    result = np.full((len(settings), 2), np.nan)
    candidates = data.candidates
    asked = (candidates.in_seen < 0) & candidates.inside_hull & (candidates.log_prior(prior) > -np.inf)
    if not asked.any():
        return result
    rows = StandardisedRows.of(data.X, data.position, data.sample_weight, candidates)
    first = settings[0].params
    path = {setting.params for setting in settings if setting.params._replace(alpha=first.alpha) == first}
    ends: list[tuple[FitParams, Parameters]] = []
    pairs = CurvaturePairs()
    for params in sorted(path, key=lambda params: -params.alpha):
        start = extrapolated_start(ends, params)
        fitted = step_one(rows, params, tol=RELIABILITY_TOL, max_iter=max_iter, start=start, pairs=pairs)
        ends.append((params, fitted.solution.start))
        model = step_two(candidates, fitted)
        found = model.effective_sample_size[asked].min(), model.pareto_k[asked].max()
        result[[setting.params == params for setting in settings]] = found
    return result


def _criterion(scores: CombinationScores, scoring: str | Scorer, typical: float) -> FloatArray:
    """Return the criterion (s,) that the choice of alpha minimises within each kind of setting.

    It depends on the scores only if groups can be held out: held-out samples of seen groups prefer a weak ridge.
    """
    known = scores.test_scores if (scores.fold >= 0).any() else np.empty((len(scores.settings), 0))
    score, alphas = setting_scores(scores, scoring), scores.alphas
    spread = GROUP_SPREAD if scores.by_scorer is None else float(scores.by_scorer.std()) or 1.0
    result = np.empty(len(alphas))
    for rows in scores.kinds.values():
        result[rows] = ridge_criterion(known[rows], score[rows], alphas[rows], typical, spread)
    return result


def setting_scores(scores: CombinationScores, scoring: str | Scorer = "accuracy") -> FloatArray:
    """Return one score per setting, (s,): the mean of its test scores, or their ``WORST_QUANTILE`` for ``"worst"``."""
    found = scores.test_scores
    if not found.shape[1]:  # nothing could be held out
        return np.full(len(found), np.nan)
    if isinstance(scoring, str) and scoring == "worst":
        return np.asarray(np.quantile(found, WORST_QUANTILE, axis=1))
    return np.asarray(found.mean(axis=1))


def _search_alphas(
    score: Callable[[Sequence[FitParams]], CombinationScores],
    path: list[FitParams],
    first: CombinationScores,
    scoring: str | Scorer,
    typical: float,
) -> CombinationScores:
    """Score another pair of anchor and cross_fit, that of ``path``, around the best alpha of the first pair.

    The range of alphas is extended while the best alpha lies at its end. The search stops at once if, for every bias,
    accuracy on held-out groups is clearly lower than with the first pair.
    """
    alphas = sorted(set(first.alphas.tolist()))
    path = [path[0]._replace(alpha=alpha) for alpha in alphas]
    standard = _best_alpha(first, scoring, typical)
    low = alphas.index(standard)
    high = low + 1
    scores = score(path[low:high])
    before = {
        setting.bias: row
        for setting, row in zip(first.settings, first.unseen, strict=True)
        if setting.params.alpha == standard
    }
    if all(_far_behind(row, before[setting.bias]) for setting, row in zip(scores.settings, scores.unseen, strict=True)):
        return scores
    lowest, highest = max(low - 1, 0), min(high + 1, len(path))
    while (lowest, highest) != (low, high):
        scores = scores.joined(score(path[lowest:low] + path[high:highest]))
        low, high = lowest, highest
        best = alphas.index(_best_alpha(scores, scoring, typical))
        lowest = max(low - 1, 0) if best == low else low
        highest = min(high + 1, len(path)) if best == high - 1 else high
    return scores


def _far_behind(one: FloatArray, other: FloatArray) -> bool:
    """Return whether accuracies ``one`` (k,) on groups are clearly lower than ``other`` (k,)."""
    mean, error = mean_and_error(one - other)
    return mean < -CLEAR_ERRORS * error


def _clearly_better(scores: CombinationScores, one: int, other: int) -> bool:
    """Return whether setting ``one`` is clearly better on held-out or on seen groups, and not worse on either.

    A bias that favours unseen groups is better on them and worse on seen groups: it acts like another prior and is not
    a better model.
    """
    gains = []
    for accuracy in (scores.unseen, scores.seen):
        mean, error = mean_and_error(accuracy[one] - accuracy[other])
        if mean < 0:
            return False
        gains.append(mean > CLEAR_ERRORS * error)
    return any(gains)


def mean_and_error(difference: FloatArray) -> tuple[float, float]:
    """Return the mean and standard error of the entries that are not NaN; the error of fewer than two is infinite."""
    known: BoolArray = ~np.isnan(difference)
    n = int(known.sum())
    if n < 2:
        return float(difference[known].sum()), math.inf
    return float(difference[known].mean()), float(difference[known].std(ddof=1) / math.sqrt(n))


def equalising_offset(offset_accuracies: FloatArray) -> float:
    """Return the offset of unseen groups, smallest in absolute value, that equalises held-out and seen accuracy.

    ``offset_accuracies`` (offsets, 2) are the two mean accuracies at each of OFFSETS. The result is 0 if an accuracy is
    NaN, and the first or last of OFFSETS if no offset within the range is sufficient.
    """
    ahead = offset_accuracies[:, 0] - offset_accuracies[:, 1]  # increases with the offset
    middle = len(OFFSETS) // 2
    if np.isnan(ahead).any() or ahead[middle] == 0:
        return 0.0
    sign = 1.0 if ahead[middle] < 0 else -1.0
    behind, sizes = (-ahead[middle:], OFFSETS[middle:]) if sign > 0 else (ahead[middle::-1], -OFFSETS[middle::-1])
    if behind.min() > 0:
        return sign * float(sizes[-1])
    end = int(np.argmax(behind <= 0))
    return sign * float(np.interp(0.0, behind[[end, end - 1]], sizes[[end, end - 1]]))


def cv_results(choice: Choice, reliability: FloatArray) -> dict[str, Any]:
    """Return the cross-validation results, one entry per setting (scikit-learn's ``cv_results_`` layout)."""
    scores = choice.scores
    params = [{**setting.params._asdict(), "bias": setting.bias} for setting in scores.settings]
    return {
        **{f"param_{name}": np.array([values[name] for values in params]) for name in params[0]},
        "params": params,
        "mean_test_score": choice.setting_score,
        "std_test_score": scores.test_scores.std(axis=1) if scores.test_scores.size else np.full(len(params), np.nan),
        "rank_test_score": rankdata(-np.nan_to_num(choice.setting_score, nan=-np.inf), method="min").astype(np.int32),
        "criterion": choice.criterion,
        "effective_sample_size": reliability[:, 0],
        "pareto_k": reliability[:, 1],
        "unseen_accuracy": known_means(scores.unseen),
        "seen_accuracy": known_means(scores.seen),
        "group_accuracy": scores.unseen,
    }


def known_means(values: FloatArray) -> FloatArray:
    """Return the mean of each row over its entries that are not NaN, (n,); NaN if all entries are NaN."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN, as intended
        return np.asarray(np.where(known, values, 0.0).sum(axis=1) / known.sum(axis=1))
