"""Choosing a setting by what it does on combinations that were held out."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from compshift._errors import InputError
from compshift.core.arrays import BoolArray, FloatArray, IntArray
from compshift.estimators.combination_scores import CombinationScores, Setting, combination_scores
from compshift.estimators.crm_fit import Recipe
from compshift.estimators.group_classifier import Labelled

CLEARLY = 2.0
"""So many standard errors, and a difference between two kinds of settings counts."""


class Options(NamedTuple):
    """What there is to choose from; the first of each is what an undecided comparison falls back to."""

    alphas: tuple[float, ...]
    anchors: tuple[str, ...] = ("zero",)
    cross_fits: tuple[int, ...] = (0,)
    biases: tuple[str, ...] = ("extrapolated",)

    @property
    def single(self) -> bool:
        """Whether there is nothing to choose."""
        return max(len(part) for part in self) == 1

    @property
    def recipes(self) -> list[Recipe]:
        """Every way to fit."""
        return [
            Recipe(alpha, anchor, parts)
            for anchor in self.anchors
            for parts in self.cross_fits
            for alpha in self.alphas
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
    """The best alpha of each kind of setting by its points, then the kind that is clearly better, if any is."""
    scores = combination_scores(
        data, fold, options.recipes, options.biases, prior, max_iter=max_iter, seed=seed, n_jobs=n_jobs
    )
    points = held_out_points(scores, quantile)
    best: dict[tuple[Any, ...], int] = {}
    for index, (recipe, bias) in enumerate(scores.settings):
        kind = (recipe.anchor, recipe.cross_fit, bias)
        if kind not in best or points[index] > points[best[kind]]:
            best[kind] = index
    first, *others = best.values()
    chosen = first
    for other in others:
        if _clearly_better(scores, other, first) and points[other] > points[chosen]:
            chosen = other
    return Choice(scores.settings[chosen], scores, points)


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


def check_scoring(scoring: Any) -> float | None:
    """``"mean"`` as None, ``"worst"`` as a low quantile, or the quantile that a number is."""
    if scoring == "mean":
        return None
    if scoring == "worst":
        return 0.1
    if isinstance(scoring, float) and 0 <= scoring <= 1:
        return scoring
    raise InputError(f"scoring is {scoring!r}: pass 'mean', 'worst', or a quantile between 0.0 and 1.0")
