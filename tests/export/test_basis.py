"""The ONNX nodes of trees and mixed columns, against walks down every tree and loops over the features."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import helper

from compshift import GroupSpace, InputError
from compshift.core.candidates import Candidates
from compshift.core.hull import AffineHull
from compshift.crm.linear_columns import MISSING, NUMERIC_LEVEL, LinearColumns, TreesAndColumns
from compshift.crm.trees import CATEGORICAL, DECISIONS, Trees, check_trees
from compshift.export.basis import TREE_DOMAIN, ZERO, add_basis, rounded_thresholds
from compshift.export.graph import Nodes
from compshift.export.model import OPSET, TREE_OPSET
from compshift.export.sources import OnnxSource
from tests.export.onnx_session import run

PRECISIONS = ("float32", "float64")
CATEGORY_COLUMN = 3


def features(basis, X, dtype, names=None):
    """Return the features of the energies that onnxruntime computes."""
    space = GroupSpace.from_cardinalities((2, 2))
    groups = space.codes(np.arange(4))
    candidates = Candidates(AffineHull(space, groups), np.ones(4), groups)
    source = OnnxSource(candidates, 1, np.zeros(1), (), np.zeros(4), np.zeros(4), names, basis=basis)
    graph = Nodes(dtype)
    graph.add("Identity", add_basis(graph, source, "X"), output="Y")
    ends = [helper.make_tensor_value_info(name, graph.element_type, ["N", None]) for name in "XY"]
    parts = helper.make_graph(graph.nodes, "g", ends[:1], ends[1:], graph.constants)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(TREE_DOMAIN, TREE_OPSET)]
    model = helper.make_model(parts, opset_imports=opsets, ir_version=8)
    onnx.checker.check_model(model)
    return run(model, X, dtype)["Y"]


def random_trees(rng, n_trees=12, n_outputs=3, max_leaves=12, max_words=3, scale=(1.0, 1.0, 1.0)):
    """Return trees of any shape, with splits of every kind; the last column holds categories."""
    leaves = rng.integers(1, max_leaves + 1, size=n_trees)
    names = ("feature", "threshold", "decision", "left", "right", "words", "category_bits", "categorical")
    found = {name: [] for name in names}
    for n_leaves in leaves:
        children = np.zeros((2, n_leaves - 1), dtype=np.int64)
        free, n_categorical = [], 0  # free: places for a child
        for node in range(n_leaves - 1):
            if node:
                children[free.pop(rng.integers(len(free)))] = node
            free += [(0, node), (1, node)]
            by_category = rng.random() < 0.4
            kinds = [decision for decision in DECISIONS if bool(decision & CATEGORICAL) == by_category]
            found["decision"].append(rng.choice(kinds))
            found["feature"].append(CATEGORY_COLUMN if by_category else rng.integers(CATEGORY_COLUMN))
            values = (0.0, 1e-36, -1e-36, ZERO, -ZERO, 0.1, -0.1, *rng.normal(size=4))
            found["threshold"].append(n_categorical if by_category else rng.choice(values))
            if by_category:
                n_words = rng.integers(1, max_words + 1)
                found["words"].append(n_words)
                found["category_bits"] += list(rng.integers(2**32, size=n_words) * rng.integers(2))  # half are empty
                n_categorical += 1
        for number, place in enumerate(free):
            children[place] = -number - 1
        found["left"] += list(children[0])
        found["right"] += list(children[1])
        found["categorical"].append(n_categorical)
    types = Trees.array_types()
    arrays = {name: np.array(values, dtype=types[name]) for name, values in found.items()}
    value = rng.normal(size=leaves.sum())
    trees = Trees(4, n_outputs, scale=np.array([*scale, 1.0]), leaves=leaves, value=value, **arrays)
    check_trees(trees)
    return trees


def goes_left(trees, node, bits, x):
    """Decide as LightGBM does: NaN and numbers near zero have rules of their own."""
    value, decision = x[trees.feature[node]] * trees.scale[trees.feature[node]], trees.decision[node]
    if decision & CATEGORICAL:
        return (
            not np.isnan(value) and int(value) // 32 < len(bits) and bool(bits[int(value) // 32] >> int(value) % 32 & 1)
        )
    if decision >> 2 != 2 and np.isnan(value):
        value = 0.0
    value = 0.0 if abs(value) <= ZERO else value
    if np.isnan(value) or (decision >> 2 == 1 and value == 0):
        return bool(decision & 2)
    return value <= trees.threshold[node]


def leaf_sums(trees, x):
    """Sum of the leaves that one sample reaches, by walking down every tree; (outputs,)."""
    total = np.zeros(trees.n_outputs)
    ends = np.concatenate([[0], np.cumsum(trees.words)])
    first_node = first_leaf = first_split = 0
    for number, n_leaves in enumerate(trees.leaves):
        at = 0 if n_leaves > 1 else -1
        while at >= 0:
            node = first_node + at
            bits = None
            if trees.decision[node] & CATEGORICAL:
                split = first_split + int(trees.threshold[node])
                bits = trees.category_bits[ends[split] : ends[split + 1]]
            at = trees.left[node] if goes_left(trees, node, bits, x) else trees.right[node]
        total[number % trees.n_outputs] += trees.value[first_leaf - at - 1]
        first_node, first_leaf = first_node + n_leaves - 1, first_leaf + n_leaves
        first_split += trees.categorical[number]
    return total


def samples(rng, trees, dtype, n=150):
    """Return samples with gaps, any category, thresholds themselves and the numbers next to them in a precision."""
    X = rng.normal(size=(n, 4)).astype(dtype)
    for column, scale in enumerate(trees.scale[:CATEGORY_COLUMN]):
        own = (trees.feature == column) & ((trees.decision & CATEGORICAL) == 0)
        at = (np.append(trees.threshold[own], [0, ZERO, -ZERO]) / scale).astype(dtype)
        near = [np.nextafter(at, np.array(side, dtype=dtype)) for side in (-np.inf, np.inf)]
        X[:, column] /= scale
        X[: n // 2, column] = rng.choice(np.concatenate([at, *near]), size=n // 2)
    X[:, CATEGORY_COLUMN] = rng.integers(120, size=n)
    X[rng.random(X.shape) < 0.15] = np.nan
    return X


class TestTrees:
    @pytest.mark.parametrize("dtype", PRECISIONS)
    @pytest.mark.parametrize("scale", [(1.0, 1.0, 1.0), (2.0**-40, 2.0**30, 0.5), (0.1, 3.0, 1e20)], ids=str)
    @pytest.mark.parametrize("seed", range(3))
    def test_every_sample_takes_the_branches_of_lightgbm(self, seed, scale, dtype):
        rng = np.random.default_rng(seed)
        trees = random_trees(rng, scale=scale)
        X = samples(rng, trees, dtype)
        found, wide = features(trees, X, dtype), X.astype(np.float64)
        np.testing.assert_allclose(
            found, [leaf_sums(trees, x) for x in wide], atol=1e-5 if dtype == "float32" else 1e-12
        )

    @pytest.mark.parametrize("seed", range(3))
    def test_the_walk_is_that_of_lightgbm(self, seed):
        pytest.importorskip("lightgbm")
        rng = np.random.default_rng(seed)
        trees = random_trees(rng, scale=(0.25, 0.1, 8.0))
        X = samples(rng, trees, "float64")
        np.testing.assert_allclose([leaf_sums(trees, x) for x in X], trees.scores(X), atol=1e-12)

    @pytest.mark.parametrize("dtype", PRECISIONS)
    def test_large_sets_of_categories(self, dtype):
        rng = np.random.default_rng(0)
        trees = random_trees(rng, n_trees=6, max_words=300)
        X = samples(rng, trees, dtype)
        X[:, CATEGORY_COLUMN] = rng.integers(10_000, size=len(X))
        expected = [leaf_sums(trees, x) for x in X.astype(np.float64)]
        np.testing.assert_allclose(features(trees, X, dtype), expected, atol=1e-5)

    @pytest.mark.parametrize("n_rows", [0, 1, 5])
    def test_trees_without_a_split(self, n_rows):
        trees = Trees.without_splits(2, 3, 4)
        trees = replace(trees, value=np.arange(12.0))
        found = features(trees, np.zeros((n_rows, 2)), "float32")
        np.testing.assert_array_equal(found, np.tile(np.arange(12.0).reshape(4, 3).sum(axis=0), (n_rows, 1)))

    def test_scaled_categories_are_rejected(self):
        trees = random_trees(np.random.default_rng(0))
        with pytest.raises(InputError, match="trees with scaled categories cannot be written as ONNX: fit the model"):
            features(replace(trees, scale=np.array([1.0, 1.0, 1.0, 2.0])), np.zeros((1, 4)), "float32")

    @pytest.mark.parametrize("scale", [2.0**-200, 2.0**200])
    def test_sizes_that_32_bits_cannot_hold(self, scale):
        rng = np.random.default_rng(0)
        trees = random_trees(rng, scale=(1.0, scale, 1.0))
        names = ("a", "small", "c", "d")
        for given_names, name in ((None, "1"), (names, "'small'")):
            with pytest.raises(InputError, match=rf"^column {name} of X has numbers near \de[-+]\d+, .*: export in 64"):
                features(trees, np.zeros((1, 4)), "float32", given_names)
        X = samples(rng, trees, "float64")
        np.testing.assert_allclose(features(trees, X, "float64"), [leaf_sums(trees, x) for x in X], atol=1e-12)


class TestThresholds:
    numbers = st.floats(allow_nan=False, allow_infinity=False)
    scales = st.floats(min_value=0, exclude_min=True, allow_infinity=False)

    @given(numbers, scales, st.sampled_from(PRECISIONS))
    def test_the_largest_number_on_the_left(self, threshold, scale, dtype):
        found = rounded_thresholds(np.array([threshold]), np.array([scale]), dtype)[0]
        assert found.dtype == dtype

        def left(number):
            with np.errstate(over="ignore", under="ignore"):
                product = np.float64(number) * scale
            return (0.0 if abs(product) <= ZERO else product) <= threshold

        with np.errstate(over="ignore"):
            above = np.nextafter(found, found.dtype.type(np.inf))
        assert left(found) or found == -np.inf
        assert not left(above) or found == np.inf

    def test_infinite_thresholds_stay(self):
        threshold = np.array([np.inf, -np.inf])
        np.testing.assert_array_equal(rounded_thresholds(threshold, np.array([1e-9, 1e9]), "float64"), threshold)

    def test_rounding_is_downwards(self):
        threshold = np.array([0.1, -0.1, 1 + 1e-12, 1e300, -1e300])
        found = rounded_thresholds(threshold, np.ones(5), "float32")
        largest = np.finfo(np.float32).max
        below = [np.nextafter(np.float32(0.1), np.float32(0)), np.float32(-0.1), 1.0, largest, -np.inf]
        np.testing.assert_array_equal(found, np.array(below, dtype=np.float32))


def looped_features(columns, X):
    """Return the features by the definition of ``LinearColumns``, one number at a time."""
    rows = []
    for x in X.astype(np.float64):
        row = []
        for column, level, fill, mean, scale in zip(*columns.arrays.values(), strict=True):
            if level == NUMERIC_LEVEL:
                row.append(((fill if np.isnan(x[column]) else x[column]) - mean) / scale)
            else:
                row.append(float(np.isnan(x[column]) if level == MISSING else x[column] == level))
        rows.append(row)
    return np.array(rows)


class TestColumns:
    """The third column holds −1 and −2, which are also the numbers that stand for kinds of features."""

    X = np.array(
        list(itertools.product([1e6 - 1.5, 1e6, 1e6 + 2, np.nan], [0, 1, 2, 7, np.nan], [-1, -2, 0.5, np.nan]))
    )

    @pytest.mark.parametrize("dtype", PRECISIONS)
    @pytest.mark.parametrize("kept", [[0, 1, 2], [0], [1]])
    def test_features_are_those_of_the_loop(self, kept, dtype):
        X = self.X[:, kept]
        columns = LinearColumns.of(X[X[:, -1] != 7], [place for place, column in enumerate(kept) if column == 1])
        columns = replace(columns, mean=columns.mean + 0.01)  # 32 bits cannot hold 1e6 + 0.01
        found = features(columns, X, dtype)
        np.testing.assert_allclose(found, looped_features(columns, X), atol=1e-5 if dtype == "float32" else 1e-12)
        np.testing.assert_allclose(columns.scores(X), looped_features(columns, X), atol=1e-12)

    def test_complete_numbers(self):
        X = np.random.default_rng(0).normal(size=(20, 3))
        columns = LinearColumns.of(X, ())
        np.testing.assert_allclose(features(columns, X, "float64"), looped_features(columns, X), atol=1e-12)

    def test_a_column_without_values(self):
        """The other column has two features, as many as there are columns."""
        X = np.array([[np.nan, 1.0], [np.nan, 2.0], [np.nan, np.nan]])
        columns = LinearColumns.of(X, ())
        assert columns.column.tolist() == [1, 1]
        np.testing.assert_allclose(features(columns, X, "float64"), looped_features(columns, X), atol=1e-12)

    def test_trees_and_columns_are_side_by_side(self):
        rng = np.random.default_rng(0)
        trees = random_trees(rng)
        X = samples(rng, trees, "float64")
        both = TreesAndColumns(trees, LinearColumns.of(X, (CATEGORY_COLUMN,)))
        expected = np.hstack([[leaf_sums(trees, x) for x in X], looped_features(both.columns, X)])
        np.testing.assert_allclose(features(both, X, "float64"), expected, atol=1e-12)

    @pytest.mark.parametrize("size", [1e-60, 1e60])
    def test_sizes_that_32_bits_cannot_hold(self, size):
        X = size * np.random.default_rng(0).normal(size=(20, 2))
        columns = LinearColumns.of(X, ())
        with pytest.raises(
            InputError, match=r"^column 0 of X has numbers near \de[-+](59|6\d), which 32 bits cannot hold"
        ):
            features(columns, X, "float32")
        np.testing.assert_allclose(features(columns, X, "float64"), looped_features(columns, X), atol=1e-12)
