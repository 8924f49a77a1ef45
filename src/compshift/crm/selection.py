"""How well recipes do on groups that were held out, and on held-out rows of the groups that were not.

Choosing a setting by what it does on combinations that were held out.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed

from compshift._errors import InputError
from compshift.core.arrays import BoolArray, FloatArray, IntArray
from compshift.core.candidates import Candidates
from compshift.crm.base import Labelled
from compshift.crm.fit import FitParams, StandardisedRows, step_one, step_two
from compshift.crm.model import CRMModel
from compshift.crm.solver import Start

TOL = 3e-3
"""Of the fits: beyond it no accuracy changes to speak of."""

OFFSETS = np.linspace(-3.0, 3.0, 13)
"""Nats by which groups that a fold lacks are favoured, to see what that costs the others."""

ROW_PARTS = 5
"""One of so many rows of every group that stays is held out too, to see what the seen groups pay."""


class Setting(NamedTuple):
    """One way to fit and to predict."""

    recipe: FitParams
    bias: str
    offset: float = 0.0  # by which groups that training lacks are favoured


class CombinationScores(NamedTuple):
    """Accuracy of each setting on each seen group; NaN where the group or its rows could not be held out."""

    settings: tuple[Setting, ...]
    unseen: FloatArray  # (s, k) of the groups when they were held out
    seen: FloatArray  # (s, k) of rows that were held out while their group stayed, averaged over folds
    fold: IntArray  # (k,) in which each group was held out, −1 for never
    levels: FloatArray  # (s, offsets, 2) mean of both under each of OFFSETS, all groups in the hull being as likely

    def joined(self, other: CombinationScores) -> CombinationScores:
        """With further settings on the same folds."""
        unseen, seen, levels = (
            np.concatenate(pair)
            for pair in ((self.unseen, other.unseen), (self.seen, other.seen), (self.levels, other.levels))
        )
        return CombinationScores(self.settings + other.settings, unseen, seen, self.fold, levels)


def combination_scores(
    data: Labelled,
    fold: IntArray,
    recipes: Sequence[FitParams],
    biases: Sequence[str],
    prior: Any,
    *,
    max_iter: int,
    seed: int,
    n_jobs: int | None = None,
) -> CombinationScores:
    """Fit every recipe without each fold of groups (k,). The recipes differ in alpha alone: the fits make a path."""
    path = sorted(recipes, key=lambda recipe: -recipe.alpha)
    part = row_parts(data.position, seed)
    if isinstance(prior, str) and prior == "train":  # which gives held-out groups no chance
        prior = "hull"
    n_folds = max(int(fold.max()) + 1, 1)  # without any group to hold out, rows still are
    found = Parallel(n_jobs=n_jobs)(
        delayed(_score_fold)(Fold(data, fold == number, part == number % ROW_PARTS, prior), path, biases, max_iter)
        for number in range(n_folds)
    )
    settings = tuple(Setting(recipe, bias) for recipe in recipes for bias in biases)
    along = [Setting(recipe, bias) for recipe in path for bias in biases]
    order = [along.index(setting) for setting in settings]
    right = np.stack([scores for scores, _ in found])[:, order]  # (folds, s, 2, k)
    levels = np.stack([scores for _, scores in found])[:, order]  # (folds, s, offsets, 2, k)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # groups of one row are never held out in part
        by_group = np.nanmean(right, axis=0)  # (s, 2, k): a group is held out in one fold
        by_level = np.nanmean(np.nanmean(levels, axis=0), axis=-1)
    return CombinationScores(settings, by_group[:, 0], by_group[:, 1], fold, by_level)


def row_parts(position: IntArray, seed: int) -> IntArray:
    """Part of each row, (n,): every group is spread over the parts, and its first row, in random order, is in none."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(position))
    order = order[np.argsort(position[order], kind="stable")]
    starts = np.flatnonzero(np.r_[True, np.diff(position[order]) > 0])
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
    part = np.empty(len(position), dtype=np.int64)
    part[order] = np.where(rank == 0, -1, (rank + position[order]) % ROW_PARTS)
    return part


class Fold:
    """What is left to fit when some groups, and one part of the other rows, are held out."""

    def __init__(self, data: Labelled, held_groups: BoolArray, in_part: BoolArray, prior: Any) -> None:
        held = held_groups[data.position]
        train = ~held & ~in_part
        self.groups, self.n_targets = data.candidates.seen_groups, data.n_targets
        kept, position = np.unique(data.position[train], return_inverse=True)
        position, weight = position.reshape(-1), data.sample_weight[train]
        kept_weight = np.bincount(position, weights=weight).astype(np.float64)
        self.candidates = Candidates.of(data.candidates.space, self.groups[kept], kept_weight, data.candidates.groups)
        self.rows = StandardisedRows.of(data.X[train], position, weight, self.candidates)
        self.log_prior = self.candidates.log_prior(prior)
        self.lacking = self.candidates.in_seen < 0  # (g,)
        self.X, self.weight = data.X[~train], data.sample_weight[~train]
        self.position, self.unseen = data.position[~train], held[~train]

    def accuracy(self, model: CRMModel, bias: str, offset: float = 0.0) -> FloatArray:
        """Accuracy (2, k) on the held-out groups, and on the held-out rows of the others; NaN where there are none."""
        log_score = self.log_prior + offset * self.lacking - model.bias_of(bias)
        return self._accuracy(model.log_sums(self.X, log_score, range(self.n_targets)))

    def levels(self, model: CRMModel, bias: str) -> FloatArray:
        """The same under each offset, (offsets, 2, k), all groups in the hull being as likely."""
        log_score = self.candidates.log_prior("hull") - model.bias_of(bias)
        kept, lacking = (
            model.log_sums(self.X, np.where(mask, log_score, -np.inf), range(self.n_targets))
            for mask in (~self.lacking, self.lacking)
        )
        sums = []
        for one, other in zip(kept, lacking, strict=True):
            largest = np.maximum(one.max(axis=1), other.max(axis=1))[:, None]
            sums.append((np.exp(one - largest), np.exp(other - largest)))
        return np.stack([self._accuracy([one + factor * other for one, other in sums]) for factor in np.exp(OFFSETS)])

    def _accuracy(self, scores: list[FloatArray]) -> FloatArray:
        """Accuracy (2, k) of the targets with the highest scores, (n, d) for each target."""
        predicted = np.stack([np.argmax(part, axis=1) for part in scores], axis=1)
        right = (predicted == self.groups[self.position, : self.n_targets]).all(axis=1)
        return np.stack(
            [
                _accuracy(right[mask], self.weight[mask], self.position[mask], len(self.groups))
                for mask in (self.unseen, ~self.unseen)
            ]
        )


def _score_fold(
    fold: Fold, path: Sequence[FitParams], biases: Sequence[str], max_iter: int
) -> tuple[FloatArray, FloatArray]:
    """Accuracies (s, 2, k) for each recipe and bias in turn, and under each offset, (s, offsets, 2, k)."""
    scores, levels = [], []
    ends: list[tuple[FitParams, Start]] = []
    for recipe in path:
        fitted = step_one(fold.rows, recipe, tol=TOL, max_iter=max_iter, start=_ahead(ends, recipe))
        ends.append((recipe, fitted.solution.start))
        model = step_two(fold.rows, fold.candidates, fitted, tails=False)
        scores += [fold.accuracy(model, bias) for bias in biases]
        levels += [fold.levels(model, bias) for bias in biases]
    return np.stack(scores), np.stack(levels)


def _ahead(ends: Sequence[tuple[FitParams, Start]], recipe: FitParams) -> Start | None:
    """Where the path leads that the last two fits are on: it is nearly straight in the logarithm of alpha.

    Never from a fit to all rows: it knows the groups that are held out, and a search that ends early would still.
    """
    if not ends:
        return None
    (last, start), (before, earlier) = ends[-1], ends[max(len(ends) - 2, 0)]
    if min(recipe.alpha, last.alpha) == 0 or before.alpha == last.alpha:
        return start
    step = math.log(recipe.alpha / last.alpha) / math.log(last.alpha / before.alpha)
    return Start(*(one + step * (one - other) for one, other in zip(start, earlier, strict=True)))


def _accuracy(right: BoolArray, weight: FloatArray, group: IntArray, n_groups: int) -> FloatArray:
    """Weighted share of right rows in each group, (k,); NaN where there is none."""
    total = np.bincount(group, weights=weight, minlength=n_groups)
    share = np.bincount(group, weights=weight * right, minlength=n_groups)
    return np.asarray(np.divide(share, total, out=np.full(n_groups, np.nan), where=total > 0))


AUTO = "auto"
"""What parameters are set to that are to be chosen."""

CLEARLY = 2.0
"""So many standard errors, and a difference between two kinds of settings counts."""

LEVEL = 0.25
"""Of the offset that would make groups as accurate when they are held out as when they are seen, this part is taken:
folds have fewer groups than the final fit, and make unseen ones look worse than they will be. Measured on three real
sets (docs/unseen.md): the worst group gains from a quarter of it on each, and from all of it on one."""


class Options(NamedTuple):
    """What there is to choose from; the first of each is what an undecided comparison falls back to."""

    alphas: tuple[float, ...]
    anchors: tuple[str, ...] = ("zero",)
    cross_fits: tuple[int, ...] = (0,)
    biases: tuple[str, ...] = ("extrapolated",)
    offset: float | None = 0.0  # None to choose it

    @property
    def single(self) -> bool:
        """Whether there is nothing to choose."""
        lists = (self.alphas, self.anchors, self.cross_fits, self.biases)
        return self.offset is not None and max(len(part) for part in lists) == 1

    @property
    def first(self) -> Setting:
        """The first of each."""
        offset = 0.0 if self.offset is None else self.offset
        return Setting(FitParams(self.alphas[0], self.anchors[0], self.cross_fits[0]), self.biases[0], offset)

    @property
    def paths(self) -> list[list[FitParams]]:
        """Ways to fit, those that differ in alpha alone together."""
        return [
            [FitParams(alpha, anchor, parts) for alpha in sorted(self.alphas)]
            for anchor in self.anchors
            for parts in self.cross_fits
        ]


class Choice(NamedTuple):
    """The setting that was chosen, with what each scored."""

    setting: Setting
    scores: CombinationScores
    points: FloatArray  # (s,) what alpha was chosen by


def choose(
    data: Labelled,
    options: Options,
    fold: IntArray,
    prior: Any,
    quantile: float | None,
    *,
    max_iter: int,
    seed: int,
    n_jobs: int | None,
) -> Choice:
    """The best alpha of each kind of setting by its points, then the kind that is clearly better, if any is.

    The first way to fit is tried with every alpha, the others about the best of these.
    """

    def score(recipes: Sequence[FitParams]) -> CombinationScores:
        return combination_scores(
            data, fold, recipes, options.biases, prior, max_iter=max_iter, seed=seed, n_jobs=n_jobs
        )

    plain, *others = options.paths
    first = scores = score(plain)
    for path in others:
        scores = scores.joined(_climb(score, path, first, quantile))
    points = held_out_points(scores, quantile)
    best: dict[tuple[Any, ...], int] = {}
    for index, (recipe, bias, _) in enumerate(scores.settings):
        kind = (recipe.anchor, recipe.cross_fit, bias)
        if kind not in best or points[index] > points[best[kind]]:
            best[kind] = index
    standard, *alternatives = best.values()
    chosen = standard
    for other in alternatives:
        if _clearly_better(scores, other, standard) and points[other] > points[chosen]:
            chosen = other
    offset = LEVEL * levelling_offset(scores.levels[chosen]) if options.offset is None else options.offset
    return Choice(scores.settings[chosen]._replace(offset=offset), scores, points)


def _climb(
    score: Callable[[Sequence[FitParams]], CombinationScores],
    path: list[FitParams],
    first: CombinationScores,
    quantile: float | None,
) -> CombinationScores:
    """Scores of another way to fit: at the alpha that is best in the first way, then uphill to stronger and weaker
    ridges, unless it is far behind there.
    """
    alphas = [recipe.alpha for recipe in path]
    plain = [number for number, setting in enumerate(first.settings) if setting.bias == first.settings[0].bias]
    points = held_out_points(first, quantile)
    standard = first.settings[max(plain, key=lambda number: points[number])].recipe.alpha
    low = alphas.index(standard)
    high = low + 1
    scores = score(path[low:high])
    before = {
        setting.bias: row
        for setting, row in zip(first.settings, first.unseen, strict=True)
        if setting.recipe.alpha == standard
    }
    if all(_far_behind(row, before[setting.bias]) for setting, row in zip(scores.settings, scores.unseen, strict=True)):
        return scores
    lowest, highest = max(low - 1, 0), min(high + 1, len(path))
    while (lowest, highest) != (low, high):
        scores = scores.joined(score(path[lowest:low] + path[high:highest]))
        low, high = lowest, highest
        best = alphas.index(scores.settings[int(np.argmax(held_out_points(scores, quantile)))].recipe.alpha)
        lowest = max(low - 1, 0) if best == low else low
        highest = min(high + 1, len(path)) if best == high - 1 else high
    return scores


def _far_behind(one: FloatArray, other: FloatArray) -> bool:
    """Whether accuracies on groups (k,) are lower by more than chance, counted as in ``_clearly_better``."""
    mean, error = _paired(one - other)
    return mean < -CLEARLY * error


def levelling_offset(levels: FloatArray) -> float:
    """Smallest offset at which held-out groups and seen ones are as accurate, from their accuracies (offsets, 2).

    It is 0 if one of the two is not known, and the largest there is if none is enough.
    """
    ahead = levels[:, 0] - levels[:, 1]  # it rises with the offset
    middle = len(OFFSETS) // 2
    if np.isnan(ahead).any() or ahead[middle] == 0:
        return 0.0
    sign = 1.0 if ahead[middle] < 0 else -1.0
    behind, sizes = (-ahead[middle:], OFFSETS[middle:]) if sign > 0 else (ahead[middle::-1], -OFFSETS[middle::-1])
    if behind.min() > 0:
        return sign * float(sizes[-1])
    end = int(np.argmax(behind <= 0))
    return sign * float(np.interp(0.0, behind[[end, end - 1]], sizes[[end, end - 1]]))


def held_out_points(scores: CombinationScores, quantile: float | None) -> FloatArray:
    """Mean accuracy over the groups that were held out, or a quantile of it, for each setting, (s,)."""
    held = scores.unseen[:, scores.fold >= 0]
    return np.asarray(held.mean(axis=1) if quantile is None else np.quantile(held, quantile, axis=1))


def balanced_points(scores: CombinationScores) -> FloatArray:
    """The worse of the mean accuracies on held-out groups and on held-out rows of the others, (s,)."""
    parts = [part for part in (scores.unseen, scores.seen) if not np.isnan(part).all()]
    return np.asarray(np.min([np.nanmean(part, axis=1) for part in parts], axis=0))


def _clearly_better(scores: CombinationScores, one: int, other: int) -> bool:
    """Whether a setting gains on the held-out groups or on the seen ones, clearly, and loses on neither.

    A bias that favours unseen groups gains there and loses on the seen ones. That is another prior, not a better model.
    """
    gains = []
    for accuracy in (scores.unseen, scores.seen):
        mean, error = _paired(accuracy[one] - accuracy[other])
        if mean < 0:
            return False
        gains.append(mean > CLEARLY * error)
    return any(gains)


def _paired(difference: FloatArray) -> tuple[float, float]:
    """Mean and standard error over the groups that have a value; an error of 0 needs two of them."""
    known: BoolArray = ~np.isnan(difference)
    n = int(known.sum())
    if n < 2:
        return float(difference[known].sum()), math.inf
    return float(difference[known].mean()), float(difference[known].std(ddof=1) / math.sqrt(n))


QUANTILES = {"mean": None, "worst": 0.1}


def check_scoring(scoring: Any) -> float | None:
    """``"mean"`` as None, ``"worst"`` as a low quantile, or the quantile that a number is."""
    if isinstance(scoring, str) and scoring in QUANTILES:
        return QUANTILES[scoring]
    if isinstance(scoring, float) and 0 <= scoring <= 1:
        return scoring
    raise InputError(f"scoring is {scoring!r}: pass 'mean', 'worst', or a quantile between 0.0 and 1.0")
