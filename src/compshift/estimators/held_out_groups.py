"""Choosing the ridge by accuracy on combinations that were held out, not on those that were fitted."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from compshift.core.arrays import FloatArray, IntArray
from compshift.core.candidates import Candidates
from compshift.core.combination_folds import combination_folds
from compshift.core.groups import GroupSpace
from compshift.estimators.choice import balanced_points
from compshift.estimators.combination_scores import combination_scores
from compshift.estimators.crm import CRMClassifier
from compshift.estimators.crm_fit import Recipe
from compshift.estimators.group_classifier import Labelled

TOL = 1e-4
"""Of a fit: beyond it no accuracy changes."""

N_SPLITS = 10
"""Folds of groups."""


def choose_alpha(
    X: FloatArray, codes: IntArray, space: GroupSpace, alphas: Sequence[float], rng: np.random.Generator
) -> float:
    """The alpha whose worse accuracy, on held-out groups or on held-out rows of the others, is best.

    Where no group can be held out, rows alone decide; where no row can be either, it is the middle one.
    """
    groups, position = space.distinct(codes)
    candidates = Candidates.of(space, groups, np.bincount(position).astype(np.float64), "all")
    data = Labelled(X, position, np.ones(len(X)), candidates, n_targets=1, one_dimensional=True)
    fold = combination_folds(space, groups, N_SPLITS, rng)
    recipes = [Recipe(alpha) for alpha in alphas]
    seed = int(rng.integers(2**31))
    scores = combination_scores(data, fold, recipes, ["extrapolated"], "hull", max_iter=1000, seed=seed)
    if np.isnan(scores.unseen).all() and np.isnan(scores.seen).all():
        return sorted(alphas)[len(alphas) // 2]
    return scores.settings[int(np.argmax(balanced_points(scores)))].recipe.alpha


def fit_codes(
    X: FloatArray,
    codes: IntArray,
    space: GroupSpace,
    alpha: float,
    sample_weight: FloatArray | None = None,
    tol: float = TOL,
    prior: str = "hull",
) -> CRMClassifier:
    """A classifier of the first attribute, fitted to codes (n, m); usually it counts on groups inside the hull."""
    plain = GroupSpace.from_cardinalities(space.cardinalities)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # attributes with one value left, when few groups are kept
        return CRMClassifier(alpha=alpha, prior=prior, tol=tol).fit(
            X,
            codes[:, 0],
            attributes=codes[:, 1:] if codes.shape[1] > 1 else None,
            sample_weight=sample_weight,
            space=GroupSpace(("y", *plain.names[1:]), plain.values),
        )
