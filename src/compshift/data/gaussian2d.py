"""The paper's two-dimensional example, whose distribution is known, so that the best possible classifier is too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from compshift.core.arrays import FloatArray, IntArray
from compshift.core.groups import GroupSpace
from compshift.data.benchmarks import Benchmark
from compshift.data.dataset import GroupedDataset

GAUSSIAN2D_SPACE = GroupSpace(("z1", "z2"), ((-1, 1), (-1, 1)))
GAUSSIAN2D_MISSING = (-1, -1)


@dataclass(frozen=True)
class Gaussian2D:
    """The paper's two-dimensional example: x ~ N((z1, z2), I), with (−1, −1) never seen.

    Paper, "Illustrating CRM's adaptation to test distribution". Its energy is additive:
    E(x, z) = ¼‖x − (2·z1, 0)‖² + ¼‖x − (0, 2·z2)‖² up to a constant.
    """

    random_state: int | None = 0

    def sample(self, n_train: int = 3000, n_test: int = 4000, n_val: int = 0) -> GroupedDataset:
        """Training and validation rows spread evenly over three groups, test rows over all four."""
        rng = np.random.default_rng(self.random_state)
        every = GAUSSIAN2D_SPACE.codes(np.arange(4))
        seen = every[~(GAUSSIAN2D_SPACE.decode(every) == GAUSSIAN2D_MISSING).all(axis=1)]
        parts = [seen[np.arange(n_train) % 3], every[np.arange(n_test) % 4], seen[np.arange(n_val) % 3]]
        codes = np.concatenate(parts)
        X = rng.normal(size=(len(codes), 2)) + GAUSSIAN2D_SPACE.decode(codes)
        return GroupedDataset(X, GAUSSIAN2D_SPACE, codes, np.repeat([0, 2, 1], [n_train, n_test, n_val]))

    def bayes_group(self, X: Any) -> IntArray:
        """Values (n, 2) of the group that the Bayes classifier predicts under the uniform prior: the quadrant of x."""
        return np.where(np.asarray(X) > 0, 1, -1)

    def log_density(self, X: FloatArray) -> FloatArray:
        """Log p(x|z) of each of the four groups, (n, 4)."""
        means = GAUSSIAN2D_SPACE.decode(GAUSSIAN2D_SPACE.codes(np.arange(4)))
        squared = ((X[:, None, :] - means) ** 2).sum(axis=2)
        return np.asarray(-0.5 * squared - np.log(2 * np.pi))


BENCHMARK = Benchmark(
    name="gaussian2d",
    title="z1 × z2, one group is not in training",
    kind="features",
    groups="2 × 2",
    make=lambda: Gaussian2D().sample(n_val=1000),
)
