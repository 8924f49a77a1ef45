"""How well recipes do on groups that were held out, and on held-out rows of the groups that were not."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed

from compshift.core.arrays import BoolArray, FloatArray, IntArray
from compshift.core.candidates import Candidates
from compshift.estimators.crm_fit import Recipe, TrainingRows, step_one, step_two
from compshift.estimators.crm_model import CRMModel
from compshift.estimators.group_classifier import Labelled
from compshift.estimators.solver import Start

TOL = 3e-3
"""Of the fits: beyond it no accuracy changes to speak of."""

OFFSETS = np.linspace(-3.0, 3.0, 13)
"""Nats by which groups that a fold lacks are favoured, to see what that costs the others."""

ROW_PARTS = 5
"""One of so many rows of every group that stays is held out too, to see what the seen groups pay."""


class Setting(NamedTuple):
    """One way to fit and to predict."""

    recipe: Recipe
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
    recipes: Sequence[Recipe],
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
        self.rows = TrainingRows.of(data.X[train], position, weight, self.candidates)
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
    fold: Fold, path: Sequence[Recipe], biases: Sequence[str], max_iter: int
) -> tuple[FloatArray, FloatArray]:
    """Accuracies (s, 2, k) for each recipe and bias in turn, and under each offset, (s, offsets, 2, k)."""
    scores, levels = [], []
    ends: list[tuple[Recipe, Start]] = []
    for recipe in path:
        fitted = step_one(fold.rows, recipe, tol=TOL, max_iter=max_iter, start=_ahead(ends, recipe))
        ends.append((recipe, fitted.solution.start))
        model = step_two(fold.rows, fold.candidates, fitted, tails=False)
        scores += [fold.accuracy(model, bias) for bias in biases]
        levels += [fold.levels(model, bias) for bias in biases]
    return np.stack(scores), np.stack(levels)


def _ahead(ends: Sequence[tuple[Recipe, Start]], recipe: Recipe) -> Start | None:
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
