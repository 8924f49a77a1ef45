"""Choosing the ridge by accuracy on combinations that were held out, not on those that were fitted."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from compshift.core.arrays import FloatArray, IntArray
from compshift.core.groups import GroupSpace
from compshift.core.hull import AffineHull
from compshift.estimators.crm import CRMClassifier

HELD_OUT = 0.2
"""Share of the groups, and of the other rows, that is held out."""

REPEATS = 3
"""Draws of held-out groups."""

TOL = 1e-4
"""Of the fits: beyond it no accuracy changes."""


def choose_alpha(
    X: FloatArray, codes: IntArray, space: GroupSpace, alphas: Sequence[float], rng: np.random.Generator
) -> float:
    """The alpha whose worse accuracy, on held-out groups or on held-out rows of the others, is best on average."""
    groups, position = space.distinct(codes)
    scores = np.zeros(len(alphas))
    first = np.zeros(len(codes), dtype=np.bool_)
    first[np.unique(position, return_index=True)[1]] = True  # one row of each group stays
    for _ in range(REPEATS):
        held = np.isin(position, _spare_groups(space, groups, rng))
        rows = ~held & (rng.random(len(codes)) < HELD_OUT) & ~first
        train = ~held & ~rows
        for index, alpha in enumerate(alphas):
            right = fit_codes(X[train], codes[train], space, alpha).predict(X) == codes[:, 0]
            scores[index] += min((part.mean() for part in (right[held], right[rows]) if part.size), default=0.0)
    return float(alphas[int(np.argmax(scores))])


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


def _spare_groups(space: GroupSpace, groups: IntArray, rng: np.random.Generator) -> list[int]:
    """Positions of about a fifth of the groups, at random, that stay inside the hull of the others."""
    rank = AffineHull(space, groups).rank
    kept = np.ones(len(groups), dtype=np.bool_)
    spare: list[int] = []
    for position in rng.permutation(len(groups)):
        if len(spare) >= HELD_OUT * len(groups):
            break
        kept[position] = False
        if AffineHull(space, groups[kept]).rank == rank:
            spare.append(int(position))
        else:
            kept[position] = True
    return spare
