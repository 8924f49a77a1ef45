r"""About how curved a risk is along the weights: what sets the unit in which a search takes them.

The Hessian of a softmax in the weights of one value, of share f, is about :math:`f (1 - f)\, C` with the features'
second moments C. A search that takes biases in units of curvature 1 wants weights in such units too. Directions differ,
though, and those that tell groups apart need not be the ones that vary most; so weights are taken in a unit halfway
between that of the mean direction and that of the leading ones. On embeddings of images, whose leading directions have
two hundred times the mean variance, a search takes two thirds of the steps; elsewhere a third less to a fifth more.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from compshift.core.arrays import FloatArray

PROBES = 16
"""Directions along which second moments are looked at: the spread need be known to a factor of two only."""


def softmax_curvature(share: FloatArray, spread: float, alpha: float) -> FloatArray:
    """Along the weights of values with these shares (d,) of the rows, with the penalty's own, (d,); at least 1.

    That the spread counts twice, and the root of it all, is by measurement: on embeddings and on Gaussians.
    """
    return np.sqrt(np.maximum(2 * spread * share * (1 - share) + alpha, 1.0))


@cache
def probes(n_features: int) -> FloatArray:
    """Random directions, always the same, at right angles to each other and of length √p: (p, q)."""
    found = np.random.default_rng(0).normal(size=(n_features, min(PROBES, n_features)))
    return np.asarray(np.linalg.qr(found).Q) * math.sqrt(n_features)


def spread_of(products: FloatArray) -> float:
    r"""Mean variance of the principal directions of standardised features, each counted by its variance.

    .. math:: \frac{\sum_j \lambda_j^2}{\sum_j \lambda_j} = \frac{\lVert C \rVert_F^2}{p}, \qquad
        \lVert C \rVert_F^2 = E\, \lVert C r \rVert^2

    ``products`` (p, q) are the C r of the probes r. It is 1 if all directions are alike, else more.
    """
    return max(1.0, float(np.square(products).mean()))
