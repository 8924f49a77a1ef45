r"""Additive energies by gradient-boosted trees.

Step 1 minimises the same risk as for linear energies, by LightGBM. With
:math:`p(z|x) \propto \hat p(z) \exp(-\langle \sigma(z), E(x) \rangle - B(z))` over the seen groups, the gradient of a
sample's risk with respect to its energies is :math:`\sigma(z) - \mathbb{E}_{p(\cdot|x)} \sigma`, and the diagonal of
the Hessian is :math:`p(v|x)(1 - p(v|x))` for each attribute value v. Both are sums over a ``GroupTable``, so no array
of samples × groups exists. Each round also moves B towards the value at which the mean of p(z|x) is the frequency of z.

An attribute with two values needs one output, the difference of its energies; the others need one per value.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from compshift.core.arrays import BoolArray, FloatArray, IntArray, row_blocks
from compshift.core.energy import GroupTable, group_expectations
from compshift.core.groups import GroupSpace
from compshift.crm.blocks import over_blocks
from compshift.crm.trees import import_lightgbm

MAX_EXPONENT = 1000
"""Largest absolute exponent of the powers of two that scale columns."""

HESSIAN_FLOOR = 1e-6
"""Smallest diagonal entry of a sample's Hessian, relative to its weight."""


class BoostingParams(NamedTuple):
    """Parameters of the trees."""

    learning_rate: float = 0.2
    max_leaf_nodes: int = 15
    min_samples_leaf: int = 20
    l2_regularization: float = 1.0
    seed: int = 0
    n_threads: int = 0  # 0: all cores


class TreeRows(NamedTuple):
    """Training samples for trees."""

    X: FloatArray  # (n, p), NaN where a value is missing
    position: IntArray  # (n,) index of each sample's seen group
    weight: FloatArray  # (n,) above 0
    seen: GroupTable
    categorical: tuple[int, ...]  # columns of X that hold codes of categories

    @property
    def frequency(self) -> FloatArray:
        """Frequency of the seen groups, (k,)."""
        total = np.bincount(self.position, self.weight, minlength=len(self.seen.row))
        return np.asarray(total / total.sum(), dtype=np.float64)

    def subset(self, rows: BoolArray) -> tuple[TreeRows, IntArray]:
        """Return some of the samples, with only the groups that occur in them, and the indices of these groups."""
        present, position = np.unique(self.position[rows], return_inverse=True)
        seen = GroupTable.of(self.seen.space, self.seen.codes[present])
        return TreeRows(self.X[rows], position.reshape(-1), self.weight[rows], seen, self.categorical), present


def value_basis(space: GroupSpace) -> FloatArray:
    """Return the matrix (D, w) that turns the w outputs of the trees into energies.

    There is one output per attribute value, but a single output for an attribute with two values.
    """
    blocks = [np.array([[-0.5], [0.5]]) if size == 2 else np.eye(size) for size in space.cardinalities]
    basis = np.zeros((space.width, sum(block.shape[1] for block in blocks)))
    row = column = 0
    for block in blocks:
        basis[row : row + block.shape[0], column : column + block.shape[1]] = block
        row, column = row + block.shape[0], column + block.shape[1]
    return basis


class _TreeObjective:
    """Gradient and diagonal Hessian of the step-1 risk for LightGBM; keeps the biases of the seen groups."""

    def __init__(self, rows: TreeRows, basis: FloatArray) -> None:
        self.rows, self.basis, self.square = rows, basis, basis**2
        self.weight = rows.weight / rows.weight.mean()
        self.frequency = rows.frequency
        self.code = rows.seen.space._one_hot(rows.seen.codes)  # (k, D)
        self.bias = np.zeros(len(self.frequency))

    def __call__(self, scores: FloatArray, _: Any) -> tuple[FloatArray, FloatArray]:
        """Return gradient and Hessian with respect to the outputs, (n, w) each or (n,) if w is 1; move the biases."""
        scores = scores.reshape(len(self.weight), -1)
        log_score = np.log(self.frequency) - self.bias
        gradient, hessian = np.empty(scores.shape), np.empty(scores.shape)

        def fill(rows: slice) -> FloatArray:
            total = np.zeros(len(log_score))
            for part in row_blocks(rows.stop - rows.start, self.rows.seen.width + len(self.basis)):
                block = slice(rows.start + part.start, rows.start + part.stop)
                weight = self.weight[block]
                energies = scores[block] @ self.basis.T  # (b, D)
                _, expected, mass = group_expectations(energies, weight, self.rows.seen, log_score)
                own = weight[:, None] * self.code[self.rows.position[block]]
                gradient[block] = (own - expected) @ self.basis
                variance = expected @ self.square - (expected @ self.basis) ** 2 / weight[:, None]
                hessian[block] = np.maximum(variance, HESSIAN_FLOOR * weight[:, None])
                total += mass
            return total

        total = sum(over_blocks(fill, len(scores)), np.zeros(len(log_score)))
        self.bias += np.log(np.maximum(total / len(scores), np.finfo(np.float64).tiny)) - np.log(self.frequency)
        return (gradient[:, 0], hessian[:, 0]) if scores.shape[1] == 1 else (gradient, hessian)


def grow(rows: TreeRows, params: BoostingParams, n_rounds: int) -> tuple[Any, FloatArray]:
    """Minimise the step-1 risk by rounds of trees; return LightGBM's booster, and a scale for each feature (p,).

    LightGBM treats numbers below 1e-35 as zero, so each column is multiplied by its scale, a power of two that brings
    its largest absolute value near 1. The booster is None if all columns are constant.
    """
    lightgbm = import_lightgbm()
    scale = _scales(rows.X, rows.categorical)
    if not _varies(rows.X).any():
        return None, scale
    objective = _TreeObjective(rows, value_basis(rows.seen.space))
    settings = {
        "objective": objective,
        "num_class": objective.basis.shape[1],
        "learning_rate": params.learning_rate,
        "num_leaves": params.max_leaf_nodes,
        "min_data_in_leaf": params.min_samples_leaf,
        "lambda_l2": params.l2_regularization,
        "min_sum_hessian_in_leaf": 1e-3,
        "seed": params.seed,
        "num_threads": params.n_threads,
        "deterministic": True,
        "force_col_wise": True,
        "feature_pre_filter": False,
        "verbosity": -1,
    }
    data = lightgbm.Dataset(rows.X * scale, categorical_feature=list(rows.categorical), params={"verbosity": -1})
    return lightgbm.train(settings, data, n_rounds), scale


def _varies(X: FloatArray) -> BoolArray:
    """Return whether each column (n, p) has at least two different values, (p,); a missing value counts as one."""
    missing = np.isnan(X)
    first = np.where(missing, -np.inf, X).max(axis=0)
    last = np.where(missing, np.inf, X).min(axis=0)
    return np.asarray((first > last) | (missing.any(axis=0) & ~missing.all(axis=0)))


def _scales(X: FloatArray, categorical: tuple[int, ...]) -> FloatArray:
    """Return a power of two for each column (n, p) that brings its largest absolute value near 1; 1 for categories."""
    largest = np.nanmax(np.abs(X), axis=0, initial=0.0)
    exponent = np.where(largest > 0, np.frexp(np.where(largest > 0, largest, 1.0))[1], 0)
    exponent[list(categorical)] = 0
    return np.asarray(np.ldexp(1.0, -np.clip(exponent, -MAX_EXPONENT, MAX_EXPONENT)))
