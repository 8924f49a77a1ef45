"""Cross-validation folds of whole groups, each inside the affine hull of the rest, and of samples within groups."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np

from compshift.core.arrays import BoolArray, IntArray
from compshift.core.groups import GroupSpace
from compshift.core.span import Span

MAX_ORDERS = 10
"""Maximum number of random orders in which ``combination_folds`` assigns groups to avoid further folds."""


def combination_folds(space: GroupSpace, groups: IntArray, n_splits: int, rng: np.random.Generator) -> IntArray:
    """Return the fold (k,) of each of the distinct groups (k, m); −1 for a group outside the hull of the other groups.

    Removing a fold does not lower the rank of the codes, so every group of the fold is inside the hull of the
    remaining groups. A group is in a fold exactly if it is inside the hull of all other groups. Groups are assigned in
    random order, each to the smallest of ``n_splits`` folds that can take it (of fewer folds if fewer groups can be
    removed). A group that no fold can take starts a further fold. If that happens, up to ``MAX_ORDERS`` orders are
    tried and the assignment with the fewest folds is used.
    """
    columns = groups + space.offsets
    removable = can_be_removed(space, groups)
    n_folds = min(n_splits, int(removable.sum()))
    fewest: IntArray | None = None
    for _ in range(MAX_ORDERS):
        order = rng.permutation(len(groups))
        fold = _assign_in_order(columns, space.width, order[removable[order]], n_folds)
        if fewest is None or fold.max() < fewest.max():
            fewest = fold
        if fewest.max() < n_folds:
            break
    assert fewest is not None
    return fewest


def _assign_in_order(columns: IntArray, width: int, order: IntArray, n_folds: int) -> IntArray:
    """Return the fold of each group, (k,), if groups are assigned in this ``order``; −1 for groups not in ``order``."""
    fold = np.full(len(columns), -1, dtype=np.int64)
    nothing_removed = _Remaining(columns, width)
    remaining = [nothing_removed.copy() for _ in range(n_folds)]
    for position in order.tolist():
        for number in sorted(range(len(remaining)), key=lambda number: (remaining[number].n_removed, number)):
            if remaining[number].remove(position):
                break
        else:
            number = len(remaining)
            remaining.append(nothing_removed.copy())
            remaining[number].remove(position)
        fold[position] = number
    return fold


def can_be_removed(space: GroupSpace, groups: IntArray) -> BoolArray:
    """Return whether each of the distinct groups (k, m) is inside the hull of the others, (k,)."""
    nothing_removed = _Remaining(groups + space.offsets, space.width)
    removable = np.ones(len(groups), dtype=np.bool_)
    for position in nothing_removed.basis:  # groups outside this basis are removable
        removable[position] = nothing_removed.copy().remove(position)
    return removable


class _Remaining:
    """The groups that remain when a fold is removed, and a basis of their codes.

    Removing a group that is not in the basis does not lower the rank, so it needs no new basis.
    """

    def __init__(self, columns: IntArray, width: int) -> None:
        self.columns, self.width = columns, width
        self.kept = np.ones(len(columns), dtype=np.bool_)
        self.basis = self._find_basis()

    def copy(self) -> _Remaining:
        """Return an independent copy."""
        other = copy(self)
        other.kept = self.kept.copy()
        return other

    @property
    def n_removed(self) -> int:
        """Number of groups in the fold."""
        return int(np.count_nonzero(~self.kept))

    def remove(self, position: int) -> bool:
        """Move a group to the fold if that does not lower the rank, and return whether it was moved."""
        self.kept[position] = False
        if position not in self.basis:
            return True
        basis = self._find_basis()
        if len(basis) == len(self.basis):
            self.basis = basis
            return True
        self.kept[position] = True
        return False

    def _find_basis(self) -> set[int]:
        """Return the positions of a basis of the remaining groups."""
        remaining = np.flatnonzero(self.kept)
        return set(remaining[Span(self.width).add_all(self.columns[remaining])].tolist())


def row_folds(position: IntArray, n_folds: int, random: Any) -> IntArray:
    """Return the fold (n,) of each sample: samples of a group, in random order, go to the folds in turn.

    ``position`` (n,) is the group of each sample. A group of two or more samples is in at least two folds, so it
    remains present when one fold is left out.
    """
    order = random.permutation(len(position))
    order = order[np.argsort(position[order], kind="stable")]
    folds = np.empty(len(position), dtype=np.int64)
    folds[order] = np.arange(len(position)) % n_folds
    return folds


def ranks_in_group(position: IntArray, random: Any) -> IntArray:
    """Return the rank (n,) of each sample, from 0, in a random order of the samples of its group ``position`` (n,)."""
    order = random.permutation(len(position))
    order = order[np.argsort(position[order], kind="stable")]
    starts = np.flatnonzero(np.r_[True, np.diff(position[order]) > 0])
    ranks = np.empty(len(position), dtype=np.int64)
    ranks[order] = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
    return ranks
