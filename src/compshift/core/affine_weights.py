r"""Affine weights: groups inside the hull as combinations of seen ones.

.. math:: \sigma(z') = \sum_z \alpha_z \, \sigma(z), \qquad \sum_z \alpha_z = 1

Where several combinations give the same group, they differ in how far they spread over the seen groups.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compshift._errors import check_name
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.hull import AffineHull

WEIGHTS = ("minimum-norm", "minimum-variance", "sparse")


def affine_weights(hull: AffineHull, codes: IntArray, kind: str, seen_weight: FloatArray) -> FloatArray:
    """Weights α (g, k) on the seen groups that give each group inside the hull; a seen group is 1 on itself.

    ``kind`` says which of the combinations that give an unseen group: ``"minimum-norm"`` has the least Σ α²,
    ``"minimum-variance"`` the least Σ α²/n over the rows n of the seen groups (``seen_weight``, (k,)), and ``"sparse"``
    is ``hull.weights``, with two attributes the shortest path.
    """
    check_name("weights", kind, WEIGHTS)
    own = hull.space.locate(codes, hull.observed)  # (g,)
    unseen = np.flatnonzero(own < 0)
    weights = np.zeros((len(codes), len(hull.observed)))
    weights[own >= 0, own[own >= 0]] = 1.0
    if kind == "sparse":
        for row in unseen:
            weights[row] = hull.weights(codes[row]).astype(np.float64)
    else:
        precision = seen_weight if kind == "minimum-variance" else np.ones(len(hull.observed))
        weights[unseen] = least_squares_weights(hull, codes[unseen], precision)
    return weights


def least_squares_weights(hull: AffineHull, codes: IntArray, precision: FloatArray) -> FloatArray:
    r"""Weights (g, k) with the least Σ α²/``precision`` among those that give each group, all of them inside the hull.

    .. math:: \alpha = N^{1/2} \, (S^\top N^{1/2})^+ \, \sigma(z')

    S (k, D) are the seen codes and N is the diagonal of ``precision`` (k,). The rank of S is known exactly, so that no
    tolerance decides which singular values count. A second step on what the first left over removes its rounding.
    """
    scale = np.sqrt(precision / precision.max())  # (k,)
    seen = hull.space.one_hot(hull.observed)  # (k, D)
    inverse = scale[:, None] * _pseudo_inverse(seen.T * scale, hull.rank)  # (k, D)
    wanted = hull.space.one_hot(codes)  # (g, D)
    weights = wanted @ inverse.T  # (g, k)
    return np.asarray(weights + (wanted - weights @ seen) @ inverse.T)


def value_weights(hull: AffineHull) -> FloatArray:
    r"""Weights (D, k) that read what is additive off numbers of the seen groups, one row per attribute value.

    .. math:: F_v = \sum_z (S^+)_{vz} \, \ell_z

    are the numbers, one per value, whose sums over a group's values come closest to ℓ in least squares.
    """
    return _pseudo_inverse(hull.space.one_hot(hull.observed), hull.rank)


def _pseudo_inverse(matrix: FloatArray, rank: int) -> FloatArray:
    """Moore–Penrose inverse of a matrix whose rank is known."""
    left, singular, right = np.linalg.svd(matrix, full_matrices=False)
    result: Any = (right[:rank].T / singular[:rank]) @ left[:, :rank].T
    return np.asarray(result)
