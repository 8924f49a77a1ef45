"""How well recipes do on groups that were held out, and on held-out rows of the groups that were not."""

from __future__ import annotations

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

TOL = 1e-3
"""Of the fits: beyond it no accuracy changes to speak of."""

ROW_PARTS = 5
"""One of so many rows of every group that stays is held out too, to see what the seen groups pay."""


class Setting(NamedTuple):
    """One way to fit and to predict."""

    recipe: Recipe
    bias: str


class CombinationScores(NamedTuple):
    """Accuracy of each setting on each seen group; NaN where the group or its rows could not be held out."""

    settings: tuple[Setting, ...]
    unseen: FloatArray  # (s, k) of the groups when they were held out
    seen: FloatArray  # (s, k) of rows that were held out while their group stayed, averaged over folds
    fold: IntArray  # (k,) in which each group was held out, −1 for never


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
    """Fit every recipe without each fold of groups (k,), along paths of alpha that start where the last one ended."""
    settings = tuple(Setting(recipe, bias) for recipe in recipes for bias in biases)
    part = row_parts(data.position, seed)
    n_folds = max(int(fold.max()) + 1, 1)  # without any group to hold out, rows still are
    found = Parallel(n_jobs=n_jobs)(
        delayed(_score_fold)(Fold(data, fold == number, part == number % ROW_PARTS, prior), path, biases, max_iter)
        for number in range(n_folds)
        for path in _paths(recipes)
    )
    order = [(recipe, bias) for path in _paths(recipes) for recipe in path for bias in biases]
    where = [order.index((setting.recipe, setting.bias)) for setting in settings]
    n_paths = len(_paths(recipes))
    right = np.stack(
        [
            np.concatenate([found[number * n_paths + path] for path in range(n_paths)])[where]
            for number in range(n_folds)
        ]
    )  # (folds, s, 2, k): accuracy, NaN where nothing was held out
    unseen = np.full((len(settings), len(fold)), np.nan)
    for position, number in enumerate(fold):
        if number >= 0:
            unseen[:, position] = right[number, :, 0, position]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # groups of one row are never held out in part
        seen = np.nanmean(right[:, :, 1], axis=0)
    return CombinationScores(settings, unseen, seen, fold)


def _paths(recipes: Sequence[Recipe]) -> list[list[Recipe]]:
    """Recipes that differ in alpha alone, the strongest ridge first."""
    kinds = dict.fromkeys((recipe.anchor, recipe.cross_fit) for recipe in recipes)
    return [
        sorted((one for one in recipes if (one.anchor, one.cross_fit) == kind), key=lambda one: -one.alpha)
        for kind in kinds
    ]


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
        self.log_prior = self.candidates.log_prior("hull" if isinstance(prior, str) and prior == "train" else prior)
        self.X, self.weight = data.X[~train], data.sample_weight[~train]
        self.position, self.unseen = data.position[~train], held[~train]

    def accuracy(self, model: CRMModel, bias: str) -> FloatArray:
        """Accuracy (2, k) on the held-out groups, and on the held-out rows of the others; NaN where there are none."""
        marginals = model.marginals(self.X, self.log_prior - model.bias_of(bias), range(self.n_targets))
        predicted = np.stack([np.argmax(part, axis=1) for part in marginals], axis=1)
        right = (predicted == self.groups[self.position, : self.n_targets]).all(axis=1)
        return np.stack(
            [
                _accuracy(right[mask], self.weight[mask], self.position[mask], len(self.groups))
                for mask in (self.unseen, ~self.unseen)
            ]
        )


def _score_fold(fold: Fold, path: Sequence[Recipe], biases: Sequence[str], max_iter: int) -> FloatArray:
    """Accuracies (s, 2, k) for each recipe and bias in turn."""
    result, start = [], None
    for recipe in path:
        fitted = step_one(fold.rows, recipe, tol=TOL, max_iter=max_iter, start=start)
        start = fitted.solution.start
        model = step_two(fold.rows, fold.candidates, fitted, tails=False)
        result += [fold.accuracy(model, bias) for bias in biases]
    return np.stack(result)


def _accuracy(right: BoolArray, weight: FloatArray, group: IntArray, n_groups: int) -> FloatArray:
    """Weighted share of right rows in each group, (k,); NaN where there is none."""
    total = np.bincount(group, weights=weight, minlength=n_groups)
    share = np.bincount(group, weights=weight * right, minlength=n_groups)
    return np.asarray(np.divide(share, total, out=np.full(n_groups, np.nan), where=total > 0))
