"""Draws of a feature set with some of its groups dropped from training, and additive Gaussians with few groups seen.

A draw: 40 % of the rows are test rows, at most 4000 of the others training rows, of which 30 % of the groups are
dropped, at random but so that every value stays. Features are standardised, brought to 100 principal components and
divided by one number to unit variance, all by what training keeps. Scored are the groups inside the hull with at least
8 test rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from scipy.special import logsumexp
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from compshift import AffineHull, GroupSpace
from compshift.data.feature_files import load_features

TEST_SHARE, MOST_ROWS, DROPPED_SHARE, DIMENSIONS, FEWEST = 0.4, 4000, 0.3, 100, 8


@dataclass(frozen=True, eq=False)
class Draw:
    """Training rows without the dropped groups, the rows that an oracle would have, and test rows."""

    seed: int
    space: GroupSpace
    X: np.ndarray
    codes: np.ndarray
    X_all: np.ndarray
    codes_all: np.ndarray
    X_test: np.ndarray
    codes_test: np.ndarray

    @cached_property
    def hull(self) -> AffineHull:
        """Of the groups that training keeps."""
        return AffineHull(self.space, self.codes)

    @cached_property
    def scored(self) -> np.ndarray:
        """Groups (q, m) inside the hull with enough test rows."""
        groups, position = self.space.distinct(self.codes_test)
        return groups[(np.bincount(position) >= FEWEST) & self.hull.contains(groups)]

    @cached_property
    def unseen(self) -> np.ndarray:
        """Which of the scored groups training lacks, (q,)."""
        return self.space.locate(self.scored, self.hull.observed) < 0

    def fit(self, estimator, codes=None, X=None, attributes=None):
        """Fit to the training rows, the first attribute being the class."""
        y = self.codes[:, 0] if codes is None else codes
        further = {} if attributes is False else {"attributes": self.codes[:, 1:] if attributes is None else attributes}
        if hasattr(estimator, "support"):
            further["space"] = GroupSpace(("y", *self.space.names[1:]), self.space.values)
        return estimator.fit(self.X if X is None else X, y, **further)

    def accuracy(self, predicted) -> np.ndarray:
        """Accuracy on each of the scored groups, (q,)."""
        return self.by_group(np.asarray(predicted) == self.codes_test[:, 0])

    def by_group(self, values: np.ndarray) -> np.ndarray:
        """Mean of a number per test row in each of the scored groups, (q,)."""
        position = self.space.locate(self.codes_test, self.scored)
        return np.array([values[position == group].mean() for group in range(len(self.scored))])


def feature_sets(folder: Path) -> Iterator[Path]:
    """The feature files in a folder."""
    yield from sorted(folder.glob("*.npz"))


def real_draw(path: Path, seed: int) -> Draw:
    """One draw of a feature file."""
    features, codes, space, (kept, train, test) = drawn_rows(path, seed)
    scaler = StandardScaler().fit(features[kept])
    components = min(DIMENSIONS, len(kept), features.shape[1])
    pca = PCA(components, svd_solver="full").fit(scaler.transform(features[kept]))
    scale = pca.transform(scaler.transform(features[kept])).std()
    parts = [(pca.transform(scaler.transform(features[rows])) / scale, codes[rows]) for rows in (kept, train, test)]
    return Draw(seed, space, *parts[0], *parts[1], *parts[2])


def raw_draw(path: Path, seed: int) -> Draw:
    """The same rows with the features as the file has them."""
    features, codes, space, parts = drawn_rows(path, seed)
    kept, train, test = ((features[rows], codes[rows]) for rows in parts)
    return Draw(seed, space, *kept, *train, *test)


def drawn_rows(path: Path, seed: int) -> tuple[np.ndarray, np.ndarray, GroupSpace, tuple[np.ndarray, ...]]:
    """Features, codes and attributes of a file, and indices of kept training rows, all training rows and test rows."""
    data = load_features(path)
    features = np.asarray(data.X, dtype=np.float64)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(data))
    n_test = round(TEST_SHARE * len(data))
    test, train = order[:n_test], order[n_test:][:MOST_ROWS]
    space = GroupSpace.from_cardinalities(data.space.cardinalities)
    groups, codes = space.distinct(data.codes[train])[0], data.codes
    while True:
        dropped = groups[rng.choice(len(groups), round(DROPPED_SHARE * len(groups)), replace=False)]
        kept = train[space.locate(codes[train], dropped) < 0]
        if all(len(np.unique(column)) == size for column, size in zip(codes[kept].T, space.cardinalities, strict=True)):
            return features, codes, space, (kept, train, test)


def with_lone_class(draw: Draw, rows: int) -> Draw | None:
    """The draw with one class, at random, that keeps at most ``rows`` rows of a single group; None if none can."""
    rng = np.random.default_rng([draw.seed, 5])
    groups = draw.hull.observed
    for value in rng.permutation(draw.space.cardinalities[0]):
        own = groups[groups[:, 0] == value]
        kept = np.flatnonzero((draw.codes == own[rng.integers(len(own))]).all(axis=1))
        chosen = draw.codes[:, 0] != value
        chosen[rng.permutation(kept)[:rows]] = True
        hull = AffineHull(draw.space, draw.codes[chosen])
        if hull.is_complete and len(hull.observed) > draw.space.width - len(draw.space.cardinalities) + 1:
            return replace(draw, X=draw.X[chosen], codes=draw.codes[chosen])
    return None


def erm(X: np.ndarray, y: np.ndarray) -> LogisticRegression:
    """Logistic regression on the class, with a ridge of 1e-2."""
    return LogisticRegression(C=1 / (1e-2 * len(X)), max_iter=2000).fit(X, y)


def gaussian_draw(seed: int, dimensions: int = 100, values: int = 10, rows: int = 4000, bayes: float = 0.98) -> Draw:
    """Unit Gaussians with additive means, a fifth of the groups seen, at the distance at which Bayes has ``bayes``."""
    rng = np.random.default_rng(seed)
    space = GroupSpace.from_cardinalities([values, values])
    groups = space.codes(np.arange(space.n_groups))
    directions = rng.normal(size=(space.width, dimensions))
    means = space.one_hot(groups) @ directions
    low, high = 0.01, 10.0
    for _ in range(25):
        middle = (low + high) / 2
        low, high = (middle, high) if bayes_accuracy(space, middle * means, 20_000, seed) < bayes else (low, middle)
    means = low * means
    while True:
        seen = rng.choice(len(groups), len(groups) // 5, replace=False)
        if AffineHull(space, groups[seen]).is_complete:
            break
    train, test = seen[rng.integers(len(seen), size=rows)], rng.integers(len(groups), size=20_000)
    X, X_test = (means[index] + rng.normal(size=(len(index), dimensions)) for index in (train, test))
    return Draw(seed, space, X, groups[train], X, groups[train], X_test, groups[test])


def bayes_accuracy(space: GroupSpace, means: np.ndarray, rows: int, seed: int) -> float:
    """Accuracy of Bayes' rule for the class, all groups being as frequent."""
    rng = np.random.default_rng([seed, 1])
    index = rng.integers(len(means), size=rows)
    X = means[index] + rng.normal(size=(rows, means.shape[1]))
    joint = X @ means.T - 0.5 * (means**2).sum(axis=1)
    classes = space.codes(np.arange(space.n_groups))[:, 0]
    marginal = np.stack([logsumexp(joint[:, classes == y], axis=1) for y in range(space.cardinalities[0])], axis=1)
    return float((marginal.argmax(axis=1) == classes[index]).mean())
