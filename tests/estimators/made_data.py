"""Synthetic rows around additive means, and tables in which some values are missing."""

import numpy as np

from compshift import GroupSpace


def make_data(cardinalities=(2, 3), n=400, p=4, missing=(0,), seed=0):
    """Return features around additive means, and codes; groups whose flat index is in ``missing`` have no rows."""
    rng = np.random.default_rng(seed)
    space = GroupSpace.from_cardinalities(cardinalities)
    codes = space.codes(rng.choice(np.setdiff1d(np.arange(space.n_groups), missing), size=n))
    means = [rng.normal(size=(size, p)) for size in cardinalities]
    X = rng.normal(size=(n, p)) + sum(mean[column] for mean, column in zip(means, codes.T, strict=True))
    return X, codes


def hide(codes, share, seed=0, first=1):
    """Return the codes from column ``first`` on as floats, with NaN in place of a share of them."""
    table = codes[:, first:].astype(float)
    table[np.random.default_rng(seed).random(table.shape) < share] = np.nan
    return table


def make_pool(cardinalities=(3, 3), n=200, n_pool=300, p=8, missing=(0, 4), seed=4):
    """Return labelled features and codes, and features and codes of a pool in which no group is missing.

    Means are additive up to a random term per group, so that a pool helps: ``CRMClassifierCV`` uses this one.
    """
    rng = np.random.default_rng(seed)
    space = GroupSpace.from_cardinalities(cardinalities)
    means = [rng.normal(size=(size, p)) for size in cardinalities]
    own = rng.normal(scale=0.5, size=(*cardinalities, p))
    parts = []
    for count, groups in ((n, np.setdiff1d(np.arange(space.n_groups), missing)), (n_pool, np.arange(space.n_groups))):
        codes = space.codes(rng.choice(groups, size=count))
        X = rng.normal(size=(count, p)) + own[tuple(codes.T)]
        parts += [X + sum(mean[column] for mean, column in zip(means, codes.T, strict=True)), codes]
    return tuple(parts)
