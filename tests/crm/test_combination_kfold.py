"""CombinationKFold as a splitter of scikit-learn."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score

from compshift import AffineHull, CombinationKFold, CRMClassifier, GroupSpace, InputError

FULL = np.array([(y, a) for y in range(3) for a in range(4)])


def rows(groups=FULL, each=5, seed=0):
    """Rows of the groups, in random order, with two noisy features."""
    rng = np.random.default_rng(seed)
    z = rng.permutation(np.repeat(groups, each, axis=0))
    return z + rng.normal(size=z.shape), z


def test_whole_groups_are_held_out_once_inside_the_hull_of_the_rest():
    X, z = rows()
    space = GroupSpace.from_table(z)
    held_out = []
    for train, test in CombinationKFold(n_splits=4).split(X, z[:, 0], z[:, 1]):
        assert sorted([*train, *test]) == list(range(len(z)))
        left, held = {tuple(row) for row in z[train]}, {tuple(row) for row in z[test]}
        assert not left & held
        assert AffineHull(space, np.array(sorted(left))).contains(np.array(sorted(held))).all()
        held_out += sorted(held)
    assert sorted(held_out) == sorted({tuple(row) for row in z.tolist()})


def test_groups_outside_the_hull_of_the_rest_stay_in_training():
    groups = np.array([[0, 0], [0, 1], [1, 0], [1, 1], [2, 1]])  # (2, 1) is the only group of class 2
    X, z = rows(groups)
    tested = {tuple(row) for _, test in _quiet(CombinationKFold(5), X, z) for row in z[test].tolist()}
    assert tested == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_more_folds_than_requested_warn():
    ring = np.array([[0, 0], [0, 1], [1, 1], [1, 2], [2, 2], [2, 0]])
    X, z = rows(ring)
    with pytest.warns(UserWarning, match="6 folds are used instead of 2"):
        folds = list(CombinationKFold(2).split(X, z[:, 0], z[:, 1]))
    assert len(folds) == 6
    assert CombinationKFold(2).get_n_splits(X, z[:, 0], z[:, 1]) == 6
    assert CombinationKFold(2).get_n_splits() == 2


def test_random_state_decides_the_folds():
    X, z = rows()

    def tests(seed):
        return [test.tolist() for _, test in CombinationKFold(4, random_state=seed).split(X, z[:, 0], z[:, 1])]

    assert tests(1) == tests(1)
    assert tests(1) != tests(2)


def test_tables_several_targets_and_attributes():
    X, z = rows()
    frame = pd.DataFrame({"place": z[:, 1], "time": z[:, 0] % 2}).astype(str)
    targets = pd.DataFrame({"bird": z[:, 0]})
    folds = list(CombinationKFold(3).split(X, targets["bird"], frame[["place"]]))
    plain = list(CombinationKFold(3).split(X, z[:, 0], z[:, 1]))
    for (_, one), (_, other) in zip(folds, plain, strict=True):
        np.testing.assert_array_equal(one, other)
    two = list(CombinationKFold(3).split(X, np.column_stack([z[:, 0], z[:, 1]])))
    assert len(two) == 3


def test_scikit_learn_accepts_it_as_cv():
    """scikit-learn's functions accept the splitter as ``cv`` and pass the attributes to it as ``groups``."""
    X, z = rows(each=20)
    scores = cross_val_score(LogisticRegression(), X, z[:, 0], groups=z[:, 1], cv=CombinationKFold(4))
    assert scores.shape == (4,)
    search = GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}, cv=CombinationKFold(4))
    search.fit(X, z[:, 0], groups=z[:, 1])
    assert search.n_splits_ == 4
    with config_context(enable_metadata_routing=True):
        search.fit(X, z[:, 0], groups=z[:, 1])
        assert search.n_splits_ == 4
    assert (
        repr(clone(CombinationKFold(3, random_state=1), safe=False)) == "CombinationKFold(n_splits=3, random_state=1)"
    )


def test_crm_predicts_held_out_groups():
    X, z = rows(each=60)
    X = X + 3 * z
    for train, test in CombinationKFold(4).split(X, z[:, 0], z[:, 1]):
        clf = CRMClassifier(prior="hull").fit(X[train], z[train, 0], attributes=z[train, 1])
        assert clf.score(X[test], z[test, 0]) > 0.85


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda X, z: CombinationKFold(1).split(X, z[:, 0], z[:, 1]), "n_splits is 1: pass an integer ≥ 2"),
        (lambda X, z: CombinationKFold("5").split(X, z[:, 0], z[:, 1]), "n_splits is '5'"),
        (lambda X, z: CombinationKFold().split(X, z[:, 0]), "none of the 3 groups can be held out"),
        (lambda X, z: CombinationKFold().split(X, z[:, 0], z[:-1, 1]), "attributes has 59 rows"),
        (lambda X, z: CombinationKFold().split(X, None, z[:, 1]), "y is None"),
        (lambda X, z: CombinationKFold().split(X[:-1], z[:, 0], z[:, 1]), "y has 60 rows but X has 59"),
        (lambda X, z: CombinationKFold().split(X, z[:, 0], z[:, 1], z[:, 1]), "attributes and groups cannot both be"),
        (
            lambda X, z: CombinationKFold(random_state=None).split(X, z[:, 0], z[:, 1]),
            "random_state is None: pass an i",
        ),
        (lambda *_: [CombinationKFold(1).get_n_splits()], "n_splits is 1: pass an integer ≥ 2"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(InputError, match=message):
        list(make(*rows()))


def _quiet(splitter, X, z):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(splitter.split(X, z[:, 0], z[:, 1]))
