"""Folds of whole groups that stay inside the hull of the groups left: practice for combinations nobody has seen."""

from __future__ import annotations

import numpy as np

from compshift.core.arrays import BoolArray, IntArray
from compshift.core.groups import GroupSpace
from compshift.core.span import Span

ORDERS = 10
"""In which groups are dealt out to folds, until there are no more folds than were asked for."""


def combination_folds(space: GroupSpace, groups: IntArray, n_splits: int, rng: np.random.Generator) -> IntArray:
    """Fold of each of the groups (k, m), all different; −1 for those that the others do not determine, (k,).

    Taking any fold away leaves the rank of the codes as it is, so that every group of the fold is inside the hull of
    what remains. A group can be taken away at all exactly if it is in a fold. There are ``n_splits`` folds or, where
    rank does not allow it, more; each group goes, in random order, to the smallest fold that can take it. If that makes
    too many folds, a few other orders are tried, and the fewest taken.
    """
    columns = groups + space.offsets
    removable = can_be_removed(space, groups)
    n_folds = min(n_splits, int(removable.sum()))
    fewest: IntArray | None = None
    for _ in range(ORDERS):
        order = rng.permutation(len(groups))
        fold = _deal(columns, space.width, order[removable[order]], n_folds)
        if fewest is None or fold.max() < fewest.max():
            fewest = fold
        if fewest.max() < n_folds:
            break
    assert fewest is not None
    return fewest


def _deal(columns: IntArray, width: int, order: IntArray, n_folds: int) -> IntArray:
    """Fold of each group, (k,), if they are dealt out in this order."""
    fold = np.full(len(columns), -1, dtype=np.int64)
    kept = [_Kept(columns, width) for _ in range(n_folds)]
    for position in order.tolist():
        for number in sorted(range(len(kept)), key=lambda number: (kept[number].n_removed, number)):
            if kept[number].remove(position):
                break
        else:
            number = len(kept)
            kept.append(_Kept(columns, width))
            kept[number].remove(position)
        fold[position] = number
    return fold


def can_be_removed(space: GroupSpace, groups: IntArray) -> BoolArray:
    """Whether each of the groups (k, m), all different, is inside the hull of the others, (k,)."""
    columns = groups + space.offsets
    removable = np.ones(len(groups), dtype=np.bool_)
    for position in Span(space.width).add_all(columns):  # whatever is not in this basis can go
        removable[position] = _Kept(columns, space.width).remove(position)
    return removable


class _Kept:
    """The groups that a fold leaves, with a basis of their codes: what is not in the basis can go unasked."""

    def __init__(self, columns: IntArray, width: int) -> None:
        self.columns, self.width = columns, width
        self.left = np.ones(len(columns), dtype=np.bool_)
        self.basis = self._find_basis()

    @property
    def n_removed(self) -> int:
        return int(np.count_nonzero(~self.left))

    def remove(self, position: int) -> bool:
        """Take a group away if that leaves the rank as it is, and say whether it does."""
        self.left[position] = False
        if position not in self.basis:
            return True
        basis = self._find_basis()
        if len(basis) == len(self.basis):
            self.basis = basis
            return True
        self.left[position] = True
        return False

    def _find_basis(self) -> set[int]:
        remaining = np.flatnonzero(self.left)
        return set(remaining[Span(self.width).add_all(self.columns[remaining])].tolist())
