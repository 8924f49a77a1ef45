"""Rows are matched by position: tables whose indexes disagree raise, wherever they meet."""

import numpy as np
import pandas as pd
import pytest

from compshift import CombinationKFold, CRMClassifier, InputError, LogitAdjustedClassifier, diagnose, infer_attributes
from compshift.data import load_table
from compshift.metrics import group_report
from tests.estimators.made_data import make_data


@pytest.fixture(scope="module")
def frame():
    X, codes = make_data()
    features = pd.DataFrame(X, columns=list("abcd"), index=[f"r{i}" for i in range(len(X))])
    return features.assign(bird=codes[:, 0], place=codes[:, 1], weight=1.0)


@pytest.fixture(scope="module")
def clf(frame):
    return CRMClassifier().fit(frame[list("abcd")], frame.bird, attributes=frame.place)


def misaligned(other, name):
    return pytest.raises(
        InputError,
        match=rf"{other} has the index labels of {name} in another order \('r\d+' instead of 'r\d+' at row \d+\), "
        rf"but rows are matched by position: reorder {other}, for example with \.loc\[{name}\.index\], or call "
        r"\.reset_index\(drop=True\) on both",
    )


@pytest.mark.parametrize("estimator", [CRMClassifier(), LogitAdjustedClassifier()])
@pytest.mark.parametrize("name", ["bird", "place", "weight"])
def test_fit_raises_for_labels_in_another_order(frame, estimator, name):
    mixed = frame.assign(**{name: frame[name]})
    columns = {own: mixed[own] for own in ("bird", "place", "weight")}
    columns[name] = frame[name].sample(frac=1, random_state=0)
    argument = {"bird": "y", "place": "attributes", "weight": "sample_weight"}[name]
    with misaligned(argument, "X"):
        estimator.fit(
            frame[list("abcd")], columns["bird"], attributes=columns["place"], sample_weight=columns["weight"]
        )


def test_labels_are_compared_with_each_other_beside_an_array(frame):
    with misaligned("attributes", "y"):
        CRMClassifier().fit(frame[list("abcd")].to_numpy(), frame.bird, attributes=frame.place[::-1])
    with misaligned(r"attributes\['place'\]", "y"):
        CRMClassifier().fit(frame[list("abcd")].to_numpy(), frame.bird, attributes={"place": frame.place[::-1]})


def test_other_calls_raise_too(frame, clf):
    X, mixed = frame[list("abcd")], frame[::-1]
    with misaligned("y", "X"):
        clf.score(X, mixed.bird)
    with misaligned("sample_weight", "X"):
        clf.estimate_prior(X, sample_weight=mixed.weight)
    with misaligned("attributes", "X"):
        diagnose(clf, X, frame.bird, mixed.place)
    with misaligned("y", "X"):
        infer_attributes(X, mixed.bird)
    with misaligned("groups", "X"):
        next(CombinationKFold().split(X, frame.bird, groups=mixed.place))
    with misaligned("attributes", "y_true"):
        group_report(frame.bird, clf.predict(X), mixed.place)
    with misaligned("y_pred", "y_true"):
        group_report(frame.bird, pd.Series(clf.predict(X), index=frame.index)[::-1], frame.place)


def test_repeated_index_labels_are_compared_in_order(frame):
    twice = frame.set_axis([f"r{i // 2}" for i in range(len(frame))])
    X = twice[list("abcd")]
    with misaligned("attributes", "X"):
        CRMClassifier().fit(X, twice.bird, attributes=twice.place[::-1])
    CRMClassifier().fit(X, twice.bird, attributes=twice.place)


@pytest.mark.parametrize("index", [None, [f"s{i}" for i in range(400)], [f"r{i}" for i in range(1, 401)]])
def test_other_labels_say_nothing_about_the_order(frame, clf, index):
    place = frame.place.reset_index(drop=True) if index is None else frame.place.set_axis(index)
    X = frame[list("abcd")]
    again = CRMClassifier().fit(X, frame.bird, attributes=place)
    np.testing.assert_array_equal(again.predict_proba(X), clf.predict_proba(X))


def test_equal_labels_of_another_type_are_equal(frame):
    X = frame[list("abcd")]
    CRMClassifier().fit(X, frame.bird.set_axis(frame.index.astype(object)), attributes=frame.place)
    numbered = X.reset_index(drop=True)
    CRMClassifier().fit(numbered, frame.bird.set_axis(np.arange(400.0)), attributes=frame.place)


def test_indexes_of_several_levels_are_compared(frame):
    pairs = pd.MultiIndex.from_arrays([np.arange(400) // 20, np.arange(400) % 20])
    X = frame[list("abcd")].set_axis(pairs)
    with pytest.raises(InputError, match=r"attributes has the index labels of X in another order \(\(19, 19\) instead"):
        CRMClassifier().fit(X, frame.bird, attributes=frame.place.set_axis(pairs[::-1]))
    CRMClassifier().fit(X, frame.bird, attributes=frame.place.set_axis(pairs))


def test_load_table_raises_for_columns_in_another_order(frame):
    labels = {"target": "bird", "attributes": "place"}
    with misaligned("features", "table"):
        load_table(frame, **labels, features=frame[list("abcd")][::-1])
    with misaligned("place", "bird"):
        load_table({"bird": frame.bird, "place": frame.place[::-1], "a": frame.a}, **labels, features=["a"])
    assert len(load_table(frame, **labels, features=frame[list("abcd")])) == len(frame)


def test_dask_collections_in_another_order_raise(frame):
    dd = pytest.importorskip("dask.dataframe")
    lazy = dd.from_pandas(frame.reset_index(drop=True), npartitions=4)
    other = dd.from_pandas(frame.bird.reset_index(drop=True)[::-1], npartitions=4, sort=False)
    with pytest.raises(
        InputError, match="y has the index labels of X in a different order, but rows are matched by position"
    ):
        CRMClassifier().fit(lazy[list("abcd")], other, attributes=lazy["place"])
    renumbered = dd.from_pandas(frame.bird.set_axis(range(1000, 1000 + len(frame))), npartitions=4)
    CRMClassifier().fit(lazy[list("abcd")], renumbered, attributes=lazy["place"])
    cut = dd.from_pandas(frame.bird.reset_index(drop=True), npartitions=1).repartition([0, 10, 20, 30, len(frame) - 1])
    with pytest.raises(
        InputError, match=r"a partition of attributes has 100 rows but the same partition of y has \d+: repartition"
    ):
        CRMClassifier().fit(lazy[list("abcd")], cut, attributes=lazy["place"])
