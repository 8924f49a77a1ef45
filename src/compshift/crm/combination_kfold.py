"""Cross-validation by combinations: whole groups are held out, and only such as the others determine."""

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
    """Folds that hold out whole groups, each inside the affine hull of the groups that remain.

    What a model scores on such a fold tells how it will do on combinations that it never saw; rows held out of groups
    that it did see tell nothing of it. A group is held out, exactly once, if the hull of the others has it; the other
    groups are in every training part, and in no test part.

    Parameters
    ----------
    n_splits : int, default=5
        Folds to make. There are more where so few are not found, as when only one group at a time can be spared, and
        fewer if fewer groups can be held out.
    random_state : int, default=0
        Which groups share a fold. A whole number, because scikit-learn asks for the number of folds and for the folds
        in turn, and both must be about the same ones.

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

    __metadata_request__split = {"groups": True}  # noqa: RUF012 - as scikit-learn's own splitters by group have it

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
        """Training and test rows of each fold.

        ``y`` (n,) or (n, t) and ``attributes`` (n,) or (n, s) are as in ``CRMClassifier.fit``. Functions of
        scikit-learn that know of ``groups`` alone may pass the attributes under that name.
        """
        if y is None:
            raise InputError("CombinationKFold needs to know groups, but y is None: pass the class of each row")
        check_same_order({"X": X, "y": y, "attributes": attributes, "groups": groups})
        if X is not None:
            check_same_rows(_rows(X), y, "y")
        fold = self._row_folds(y, attributes, groups)
        n_folds = int(fold.max()) + 1
        if n_folds > self.n_splits:
            warnings.warn(
                f"{n_folds} folds instead of {self.n_splits}: with larger ones the groups that remain would not "
                "determine those held out",
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
        """Number of folds: the one asked for or, if labels are given, the one that there will be."""
        return self._check()[0] if y is None else int(self._row_folds(y, attributes, groups).max()) + 1

    def group_folds(self, space: GroupSpace, groups: IntArray) -> IntArray:
        """Fold of each of the groups (k, m), all different; −1 for those that are never held out, (k,)."""
        n_splits, seed = self._check()
        fold = combination_folds(space, groups, n_splits, np.random.default_rng(seed))
        if fold.max(initial=-1) < 0:
            raise InputError(
                f"none of the {len(groups)} groups can be held out: each of them is needed to determine the others"
                + ("; pass attributes as well" if len(space.names) == 1 else "")
                + "; collect one more combination of values that are there already, or choose by rows instead"
            )
        return fold

    def _row_folds(self, y: Any, attributes: Any, groups: Any) -> IntArray:
        """Fold of each row, (n,)."""
        if attributes is not None and groups is not None:
            raise InputError("attributes and groups were both passed, and are the same here: leave one of them out")
        labels = read_labels(y, groups if attributes is None else attributes, None, np.ones(_rows(y), dtype=np.bool_))
        seen, position = labels.space.distinct(labels.codes)
        return self.group_folds(labels.space, seen)[position]

    def _check(self) -> tuple[int, int]:
        """Refuse parameters that make no folds; the number of folds and the seed."""
        n_splits = check_count(self.n_splits, "n_splits")
        if n_splits < 2:
            raise InputError(f"n_splits is {n_splits}: pass 2 or more")
        if isinstance(self.random_state, bool) or not hasattr(self.random_state, "__index__") or self.random_state < 0:
            raise InputError(f"random_state is {self.random_state!r}: pass a whole number of 0 or more")
        return n_splits, int(self.random_state)


def _rows(values: Any) -> int:
    """Length of a list, array or table; scipy's sparse matrices have a shape alone."""
    shape = getattr(values, "shape", None)
    return int(shape[0]) if shape else len(values) if hasattr(values, "__len__") else 0
