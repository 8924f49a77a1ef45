"""Folds of rows, with every group spread over them."""

from typing import Any

import numpy as np

from compshift.core.arrays import IntArray


def row_folds(position: IntArray, n_folds: int, random: Any) -> IntArray:
    """Fold (n,) of each row: the rows of every group (n,) are dealt out in turn, in an order that ``random`` permutes.

    A group of two rows or more is in at least two folds, so that every fit which leaves a fold out still has it.
    """
    order = random.permutation(len(position))
    order = order[np.argsort(position[order], kind="stable")]
    folds = np.empty(len(position), dtype=np.int64)
    folds[order] = np.arange(len(position)) % n_folds
    return folds
