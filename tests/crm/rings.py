"""Samples whose groups are rings, which boosted energies tell apart and linear ones do not."""

import numpy as np

QUICK = {"max_iter": 20, "n_jobs": 1}
"""Parameters of quick fits."""


def grid(n, values=3, seed=0, dropped=(0, 0)):
    """Samples of ``values`` × ``values`` groups, one of them dropped: each attribute is the radius of two features.

    No linear energy tells the radii apart.
    """
    rng = np.random.default_rng(seed)
    codes = rng.integers(values, size=(n, 2))
    angle = rng.uniform(0, 2 * np.pi, size=(n, 2))
    radius = codes + 0.5 + 0.35 * rng.normal(size=(n, 2))
    X = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=2).reshape(n, 4)
    return X, codes, (codes != dropped).any(axis=1)
