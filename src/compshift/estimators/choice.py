"""Choosing a setting by what it does on combinations that were held out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from compshift._errors import InputError
from compshift.core.arrays import BoolArray, FloatArray, IntArray
from compshift.estimators.combination_scores import OFFSETS, CombinationScores, Setting, combination_scores
from compshift.estimators.crm_fit import Recipe
from compshift.estimators.group_classifier import Labelled

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
        return Setting(Recipe(self.alphas[0], self.anchors[0], self.cross_fits[0]), self.biases[0], offset)

    @property
    def paths(self) -> list[list[Recipe]]:
        """Ways to fit, those that differ in alpha alone together."""
        return [
            [Recipe(alpha, anchor, parts) for alpha in sorted(self.alphas)]
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

    def score(recipes: Sequence[Recipe]) -> CombinationScores:
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
    score: Callable[[Sequence[Recipe]], CombinationScores],
    path: list[Recipe],
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
