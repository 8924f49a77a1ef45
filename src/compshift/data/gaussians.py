"""Gaussian data whose distribution, and therefore the Bayes classifier, is known.

``Gaussian2D`` is the paper's two-dimensional example; ``AdditiveGaussians`` has an additive energy, any number
of attributes and a chosen Bayes accuracy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from compshift._errors import InputError
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.groups import GroupSpace
from compshift.data.benchmarks import Benchmark
from compshift.data.dataset import GroupedDataset

GAUSSIAN2D_MISSING = (-1, -1)
"""Values of z1 and z2 in the group that is absent from the training data."""

GAUSSIAN2D_SPACE = GroupSpace(("z1", "z2"), ((-1, 1), (-1, 1)))


@dataclass(frozen=True)
class Gaussian2D:
    """The paper's two-dimensional example: x ~ N((z1, z2), I), without training rows of (−1, −1).

    Paper, "Illustrating CRM's adaptation to test distribution". Its energy is additive:
    E(x, z) = ¼‖x − (2·z1, 0)‖² + ¼‖x − (0, 2·z2)‖² up to a constant.
    """

    random_state: int | None = 0

    def sample(self, n_train: int = 3000, n_test: int = 4000, n_val: int = 0) -> GroupedDataset:
        """Draw training and validation rows evenly from three groups, and test rows from all four."""
        rng = np.random.default_rng(self.random_state)
        every = GAUSSIAN2D_SPACE.codes(np.arange(4))
        seen = every[~(GAUSSIAN2D_SPACE.decode(every) == GAUSSIAN2D_MISSING).all(axis=1)]
        parts = [seen[np.arange(n_train) % 3], every[np.arange(n_test) % 4], seen[np.arange(n_val) % 3]]
        codes = np.concatenate(parts)
        X = rng.normal(size=(len(codes), 2)) + GAUSSIAN2D_SPACE.decode(codes)
        return GroupedDataset(X, GAUSSIAN2D_SPACE, codes, np.repeat([0, 2, 1], [n_train, n_test, n_val]))

    def bayes_group(self, X: Any) -> IntArray:
        """Return the values (n, 2) of the most probable group under the uniform prior: the signs of x."""
        return np.where(np.asarray(X) > 0, 1, -1)

    def log_density(self, X: FloatArray) -> FloatArray:
        """Return log p(x|z) for each of the four groups z, (n, 4)."""
        means = GAUSSIAN2D_SPACE.decode(GAUSSIAN2D_SPACE.codes(np.arange(4)))
        squared = ((X[:, None, :] - means) ** 2).sum(axis=2)
        return np.asarray(-0.5 * squared - np.log(2 * np.pi))


GAUSSIAN2D = Benchmark(
    name="gaussian2d",
    title="z1 × z2, one group is absent from training",
    kind="features",
    groups="2 × 2",
    make=lambda: Gaussian2D().sample(n_val=1000),
)


@dataclass(frozen=True)
class AdditiveGaussians:
    """Gaussian groups with the additive energy E(x, z) = Σ_i ‖x − μ(z_i)‖².

    Paper, "CRM's Analysis with Varying Group Size".

    Every attribute value has a feature of its own, along which its mean μ points, so the means are orthogonal; all have
    the same norm. Given z, x is Gaussian with covariance I/(2m); its
    mean is the average of the μ(z_i) over the m attributes. The paper does not state the norm; here it is chosen such
    that the Bayes classifier of one attribute has the accuracy ``bayes_accuracy``.
    """

    n_attributes: int
    n_values: int
    n_features: int = 100
    bayes_accuracy: float = 0.98

    def __post_init__(self) -> None:
        if self.n_attributes * self.n_values > self.n_features:
            raise InputError(
                f"{self.n_attributes} × {self.n_values} orthogonal means do not fit in n_features={self.n_features} "
                f"dimensions: pass n_features={self.n_attributes * self.n_values} or more"
            )
        if not 1 / self.n_values < self.bayes_accuracy < 1:
            raise InputError(f"bayes_accuracy is {self.bayes_accuracy}: pass a number between 1/{self.n_values} and 1")

    @property
    def space(self) -> GroupSpace:
        """Attributes z1, z2, … and their values."""
        return GroupSpace.from_cardinalities([self.n_values] * self.n_attributes)

    @property
    def deviation(self) -> float:
        """Standard deviation of every feature within a group, 1/√(2m)."""
        return 1 / math.sqrt(2 * self.n_attributes)

    @cached_property
    def norm(self) -> float:
        r"""Norm of the means for which the Bayes classifier of one attribute has the accuracy P = ``bayes_accuracy``.

        .. math:: P = \int \phi(t) \, \Phi(t + \delta)^{d - 1} dt, \qquad \delta = \frac{\|\mu\|}{m \sigma}

        with σ = ``deviation`` and d values per attribute, because the mean of the feature that belongs to the true
        value is δ standard deviations above the means of the d − 1 features that belong to the other values.
        """
        from scipy.integrate import quad
        from scipy.optimize import brentq
        from scipy.special import ndtr

        def accuracy(delta: float) -> float:
            def density(t: float) -> float:
                return math.exp(-0.5 * t * t) / math.sqrt(2 * math.pi) * float(ndtr(t + delta)) ** (self.n_values - 1)

            return float(quad(density, -10, 10)[0])

        delta = brentq(lambda value: accuracy(value) - self.bayes_accuracy, 0.0, 40.0)
        return float(delta) * self.n_attributes * self.deviation

    def sample(self, codes: IntArray, rng: np.random.Generator) -> FloatArray:
        """Draw one row of features (n, p) for each group in ``codes`` (n, m)."""
        X = rng.normal(scale=self.deviation, size=(len(codes), self.n_features))
        rows = np.arange(len(codes))
        for column in (codes + self.space.offsets).T:
            X[rows, column] += self.norm / self.n_attributes
        return np.asarray(X)

    def bayes(self, X: FloatArray, attribute: int = 0) -> IntArray:
        """Return the codes (n,) that the Bayes classifier predicts for one attribute under the uniform prior."""
        start = attribute * self.n_values
        return np.asarray(np.argmax(X[:, start : start + self.n_values], axis=1), dtype=np.int64)

    def balanced(self, rows: tuple[int, int, int] = (60, 20, 20), random_state: int = 0) -> GroupedDataset:
        """Draw a data set in which every group has ``rows[0]`` train, ``rows[1]`` val and ``rows[2]`` test rows."""
        groups = self.space.codes(np.arange(self.space.n_groups))
        codes = np.concatenate([np.repeat(groups, count, axis=0) for count in rows])
        split = np.repeat([0, 1, 2], [count * len(groups) for count in rows])
        return GroupedDataset(self.sample(codes, np.random.default_rng(random_state)), self.space, codes, split)


ADDITIVE_GAUSSIANS = Benchmark(
    name="additive-gaussians",
    title="z1 × z2, to drop a share of the groups",
    kind="features",
    groups="10 × 10",
    make=lambda: AdditiveGaussians(2, 10).balanced(),
)
