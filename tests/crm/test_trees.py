"""Boosted trees as arrays: LightGBM's own predictions, and arrays that do not describe trees."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from compshift import InputError

lightgbm = pytest.importorskip("lightgbm")

from compshift.crm.trees import CATEGORICAL, Trees, check_trees, leaf_sums


@pytest.fixture(scope="module")
def table():
    """Features with missing values, and with a categorical column of forty values."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 4))
    X[:, 3] = rng.integers(40, size=600)
    X[::7, 0] = np.nan
    X[::11, 3] = np.nan
    return X


@pytest.fixture(scope="module")
def booster(table):
    wanted = np.column_stack([np.nan_to_num(table[:, 0]), table[:, 1] * (np.nan_to_num(table[:, 3]) % 3 == 0)])
    settings = {
        "objective": lambda scores, _: (scores - wanted, np.ones_like(scores)),
        "num_class": 2,
        "num_leaves": 9,
        "verbosity": -1,
        "min_data_per_group": 5,
        "cat_smooth": 1,
    }
    return lightgbm.train(settings, lightgbm.Dataset(table, categorical_feature=[3]), 12)


@pytest.fixture(scope="module")
def trees(booster):
    return Trees.of(booster, np.ones(4))


def leaf_sum(trees, x):
    """Sum of the leaves that one sample reaches, by walking down every tree; (outputs,)."""
    total = np.zeros(trees.n_outputs)
    first_node = first_leaf = first_category = first_word = 0
    for number, n_leaves in enumerate(trees.leaves):
        at = 0 if n_leaves > 1 else -1
        n_categorical = trees.categorical[number]
        ends = first_word + np.concatenate(
            [[0], np.cumsum(trees.words[first_category : first_category + n_categorical])]
        )
        while at >= 0:
            node = first_node + at
            value, decision = x[trees.feature[node]], trees.decision[node]
            if decision & CATEGORICAL:
                place = int(trees.threshold[node])
                bits = trees.category_bits[ends[place] : ends[place + 1]]
                left = (
                    not np.isnan(value)
                    and int(value) // 32 < len(bits)
                    and bits[int(value) // 32] >> int(value) % 32 & 1
                )
            elif np.isnan(value) and decision >> 2 == 2:
                left = bool(decision & 2)
            else:
                left = np.nan_to_num(value) <= trees.threshold[node]
            at = trees.left[node] if left else trees.right[node]
        total[number % trees.n_outputs] += trees.value[first_leaf - at - 1]
        first_node, first_leaf = first_node + n_leaves - 1, first_leaf + n_leaves
        first_category, first_word = first_category + n_categorical, ends[-1]
    return total


def test_scores_are_those_of_the_booster(trees, booster, table):
    np.testing.assert_array_equal(trees.scores(table), booster.predict(table, raw_score=True))
    assert (trees.decision & CATEGORICAL).any()


def test_scores_are_sums_of_leaves(trees, table):
    np.testing.assert_allclose(trees.scores(table[:50]), [leaf_sum(trees, x) for x in table[:50]], atol=1e-12)


def test_trees_survive_a_pickle_and_an_empty_table(trees, table):
    trees.scores(table)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(trees)).scores(table), trees.scores(table))
    assert trees.scores(table[:0]).shape == (0, 2)


def test_trees_without_a_split(table):
    settings = {"objective": lambda scores, _: (np.ones_like(scores), np.ones_like(scores)), "num_class": 2}
    booster = lightgbm.train(settings | {"verbosity": -1}, lightgbm.Dataset(table), 3)
    trees = Trees.of(booster, np.ones(4))
    check_trees(trees)
    np.testing.assert_array_equal(trees.scores(table), booster.predict(table, raw_score=True))


def test_good_trees_pass(trees):
    check_trees(trees)


def changed(name, index, value):
    def change(trees):
        array = getattr(trees, name).copy()
        array[index] = value
        return replace(trees, **{name: array})

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (changed("left", 0, 0), "a child node is invalid"),  # a loop
        (changed("left", 0, 1000), "a child node is invalid"),
        (changed("right", 0, -1000), "a child leaf is invalid"),
        (changed("feature", 0, 4), "a feature is invalid"),
        (changed("feature", 0, -1), "a feature is invalid"),
        (changed("threshold", 0, np.nan), "a threshold is invalid"),
        (changed("value", 0, np.inf), "a leaf value is invalid"),
        (changed("value", 0, np.nan), "a leaf value is invalid"),
        (changed("decision", 0, 64), "a kind of split is invalid"),
        (changed("scale", 0, 0.0), "a scale is invalid"),
        (changed("scale", 0, np.inf), "a scale is invalid"),
        (lambda trees: replace(trees, scale=trees.scale[:-1]), "the number of scales is invalid"),
        (changed("leaves", 0, 0), "a number of leaves is invalid"),
        (changed("leaves", 0, 10**9), "is invalid"),
        (changed("words", 0, 10**9), "the number of category_bits is invalid"),
        (changed("category_bits", 0, 2**40), "category_bits is invalid"),
        (changed("categorical", 0, 7), "is invalid"),
        (lambda trees: replace(trees, value=trees.value[:-1]), "the number of leaf values is invalid"),
        (lambda trees: replace(trees, n_outputs=5), "the number of trees per round is invalid"),
        (lambda trees: replace(trees, n_features=0), "the number of trees is invalid"),
    ],
)
def test_damaged_trees(trees, change, sentence):
    with pytest.raises(InputError, match=sentence):
        check_trees(change(trees))


def test_a_leaf_with_two_parents(trees):
    leaf = np.flatnonzero(trees.left < 0)[0]
    other = np.flatnonzero(trees.right < 0)[0]
    right = trees.right.copy()
    right[other] = trees.left[leaf]
    with pytest.raises(InputError, match="the parent of a leaf is invalid"):
        check_trees(replace(trees, right=right))


def test_a_categorical_threshold_beyond_the_sets_of_its_tree(trees):
    node = np.flatnonzero(trees.decision & CATEGORICAL)[0]
    with pytest.raises(InputError, match="the threshold of a categorical node is invalid"):
        check_trees(changed("threshold", node, 99.0)(trees))


def test_trees_of_scaled_features(trees, table):
    """Powers of two change no digit, so the trees agree exactly."""
    scale = np.array([2.0**-300, 2.0**-40, 1.0, 1.0])
    np.testing.assert_array_equal(replace(trees, scale=1 / scale).scores(table * scale), trees.scores(table))


def test_rounds_add_up(trees, table):
    parts = sum(leaf_sums(trees.booster, table, trees.scale, *rounds) for rounds in ((0, 5), (5, 12)))
    np.testing.assert_allclose(parts, trees.scores(table), atol=1e-12)


def test_trees_of_one_leaf(table):
    trees = Trees.without_splits(4, 2, 3)
    check_trees(trees)
    assert trees.n_rounds == 3
    np.testing.assert_array_equal(trees.scores(table), np.zeros((600, 2)))
