"""CombinationKFold: cross-validation that holds out whole groups, each inside the affine hull of the others."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.model_selection import BaseCrossValidator

from compshift._checks import check_count, check_same_order, check_same_rows
from compshift._errors import InputError
from compshift.core.arrays import IntArray
from compshift.core.folds import combination_folds
from compshift.core.groups import GroupSpace
from compshift.crm.inputs import read_labels


class CombinationKFold(BaseCrossValidator):
    """Cross-validation folds that hold out whole groups, each inside the affine hull of the groups that remain.

    The score on these folds estimates the accuracy on unseen combinations; a score on held-out rows of seen groups does
    not. Every group that lies inside the affine hull of the other groups is held out exactly once. The remaining groups
    are in every training set and in no test set.

    Parameters
    ----------
    n_splits : int, default=5
        Number of folds. The actual number is larger if held-out groups would otherwise lie outside the affine hull of
        the remaining groups, and smaller if fewer than ``n_splits`` groups can be held out.
    random_state : int, default=0
        Seed that decides which groups share a fold. It must be an integer, because scikit-learn calls ``get_n_splits``
        and ``split`` separately, and both must give the same folds.

    Examples
    --------
    >>> import numpy as np
    >>> y, place = np.array([0, 0, 1, 1, 2, 2]), np.array(["a", "b", "a", "b", "a", "b"])
    >>> X = np.zeros((6, 1))
    >>> for train, test in CombinationKFold(n_splits=3).split(X, y, place):
    ...     print([(int(y[i]), str(place[i])) for i in test])
    [(1, 'b'), (2, 'a')]
    [(0, 'a'), (1, 'a')]
    [(0, 'b'), (2, 'b')]
    """

    __metadata_request__split = {"groups": True}  # noqa: RUF012 - as in scikit-learn's group splitters

    def __init__(self, n_splits: int = 5, *, random_state: int = 0) -> None:
        self.n_splits = n_splits
        self.random_state = random_state

    def split(
        self,
        X: Any,
        y: Any,
        attributes: Any = None,
        groups: Any = None,
    ) -> Iterator[tuple[IntArray, IntArray]]:
        """Yield the training and test rows of each fold.

        Parameters
        ----------
        X : array or DataFrame (n, p)
            Features. Only the number of rows is used, to check the other arguments. May be None.
        y : array (n,) or (n, t)
            One target or several, as in ``CRMClassifier.fit``.
        attributes : array (n,) or (n, s), optional
            Further attributes, as in ``CRMClassifier.fit``.
        groups : array (n,) or (n, s), optional
            Another name of ``attributes``, for compatibility: scikit-learn's functions pass ``groups`` to a splitter.

        Yields
        ------
        train, test : int arrays
            Row numbers of the training set and of the test set.

        Raises
        ------
        InputError
            If the labels are invalid, both ``attributes`` and ``groups`` are passed, or no group can be held out.
        """
        if y is None:
            raise InputError("CombinationKFold needs the class of each row to know its group, but y is None: pass y")
        check_same_order({"X": X, "y": y, "attributes": attributes, "groups": groups})
        if X is not None:
            check_same_rows(_rows(X), y, "y")
        fold = self._row_folds(y, attributes, groups)
        n_folds = int(fold.max()) + 1
        if n_folds > self.n_splits:
            warnings.warn(
                f"{n_folds} folds are used instead of {self.n_splits}: with fewer folds some held-out groups would lie "
                "outside the affine hull of the remaining groups",
                stacklevel=2,
            )
        for number in range(n_folds):
            held = fold == number
            yield np.flatnonzero(~held), np.flatnonzero(held)

    def get_n_splits(
        self,
        X: Any = None,  # noqa: ARG002 - scikit-learn passes it
        y: Any = None,
        attributes: Any = None,
        groups: Any = None,
    ) -> int:
        """Return the number of folds: ``n_splits`` if ``y`` is None, otherwise the number that ``split`` yields.

        Parameters
        ----------
        X : array or DataFrame, optional
            Ignored.
        y : array (n,) or (n, t), optional
            One target or several.
        attributes : array (n,) or (n, s), optional
            Further attributes.
        groups : array (n,) or (n, s), optional
            Another name of ``attributes``, for compatibility with scikit-learn.

        Returns
        -------
        int
            Number of folds.
        """
        return self._check()[0] if y is None else int(self._row_folds(y, attributes, groups).max()) + 1

    def group_folds(self, space: GroupSpace, codes: IntArray) -> IntArray:
        """Return the fold of each group.

        Parameters
        ----------
        space : GroupSpace
            Attributes and their values.
        codes : int array (k, m)
            Codes of distinct groups.

        Returns
        -------
        int array (k,)
            Fold of each group, counted from 0; −1 for groups that are never held out.

        Raises
        ------
        InputError
            If no group can be held out.
        """
        n_splits, seed = self._check()
        fold = combination_folds(space, codes, n_splits, np.random.default_rng(seed))
        if fold.max(initial=-1) < 0:
            raise InputError(
                f"none of the {len(codes)} groups can be held out: no group lies inside the affine hull of the others"
                + ("; pass attributes as well" if len(space.names) == 1 else "")
                + "; collect samples of another combination of the existing values, or hold out rows instead of groups"
            )
        return fold

    def _row_folds(self, y: Any, attributes: Any, groups: Any) -> IntArray:
        """Return the fold of each row, (n,)."""
        if attributes is not None and groups is not None:
            raise InputError(
                "attributes and groups cannot both be passed, because they mean the same here: leave one of them out"
            )
        labels = read_labels(y, groups if attributes is None else attributes, None, np.ones(_rows(y), dtype=np.bool_))
        seen, position = labels.space.distinct(labels.codes)
        return self.group_folds(labels.space, seen)[position]

    def _check(self) -> tuple[int, int]:
        """Check the parameters and return the number of folds and the seed."""
        n_splits = check_count(self.n_splits, "n_splits")
        if n_splits < 2:
            raise InputError(f"n_splits is {n_splits}: pass an integer ≥ 2")
        if isinstance(self.random_state, bool) or not hasattr(self.random_state, "__index__") or self.random_state < 0:
            raise InputError(f"random_state is {self.random_state!r}: pass an integer ≥ 0")
        return n_splits, int(self.random_state)


def _rows(values: Any) -> int:
    """Return the number of rows of a list, array, table or sparse matrix; sparse matrices have no ``len``."""
    shape = getattr(values, "shape", None)
    return int(shape[0]) if shape else len(values) if hasattr(values, "__len__") else 0
