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
    part = _row_parts(data.position, seed)
    found = Parallel(n_jobs=n_jobs)(
        delayed(_score_fold)(data, fold == number, part == number % ROW_PARTS, path, biases, prior, max_iter)
        for number in range(int(fold.max()) + 1)
        for path in _paths(recipes)
    )
    order = [(recipe, bias) for path in _paths(recipes) for recipe in path for bias in biases]
    where = [order.index((setting.recipe, setting.bias)) for setting in settings]
    n_folds, n_paths = int(fold.max()) + 1, len(_paths(recipes))
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


def _row_parts(position: IntArray, seed: int) -> IntArray:
    """Part of each row, (n,): every group is spread over the parts, and its first row, in random order, is in none."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(position))
    order = order[np.argsort(position[order], kind="stable")]
    starts = np.flatnonzero(np.r_[True, np.diff(position[order]) > 0])
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
    part = np.empty(len(position), dtype=np.int64)
    part[order] = np.where(rank == 0, -1, (rank + position[order]) % ROW_PARTS)
    return part


def _score_fold(
    data: Labelled,
    held_groups: BoolArray,
    in_part: BoolArray,
    path: Sequence[Recipe],
    biases: Sequence[str],
    prior: Any,
    max_iter: int,
) -> FloatArray:
    """Accuracies (s, 2, k) of held-out groups and of held-out rows of the others, for each recipe and bias in turn."""
    held = held_groups[data.position]
    train = ~held & ~in_part
    space, groups = data.candidates.space, data.candidates.seen_groups
    kept, position = np.unique(data.position[train], return_inverse=True)
    weight = data.sample_weight[train]
    position = position.reshape(-1)
    kept_weight = np.bincount(position, weights=weight).astype(np.float64)
    candidates = Candidates.of(space, groups[kept], kept_weight, data.candidates.groups)
    rows = TrainingRows.of(data.X[train], position, weight, candidates)
    log_prior = candidates.log_prior("hull" if isinstance(prior, str) and prior == "train" else prior)
    X, truth = data.X[~train], groups[data.position[~train], : data.n_targets]
    own, weights, unseen = data.position[~train], data.sample_weight[~train], held[~train]
    result = np.empty((len(path) * len(biases), 2, len(groups)))
    start, number = None, 0
    for recipe in path:
        fitted = step_one(rows, recipe, tol=TOL, max_iter=max_iter, start=start)
        start = fitted.solution.start
        model = step_two(rows, candidates, fitted, tails=False)
        for bias in biases:
            marginals = model.marginals(X, log_prior - model.bias_of(bias), range(data.n_targets))
            predicted = np.stack([np.argmax(part, axis=1) for part in marginals], axis=1)
            right = (predicted == truth).all(axis=1)
            for kind, mask in enumerate((unseen, ~unseen)):
                result[number, kind] = _accuracy(right[mask], weights[mask], own[mask], len(groups))
            number += 1
    return result


def _accuracy(right: BoolArray, weight: FloatArray, group: IntArray, n_groups: int) -> FloatArray:
    """Weighted share of right rows in each group, (k,); NaN where there is none."""
    total = np.bincount(group, weights=weight, minlength=n_groups)
    share = np.bincount(group, weights=weight * right, minlength=n_groups)
    return np.asarray(np.divide(share, total, out=np.full(n_groups, np.nan), where=total > 0))
