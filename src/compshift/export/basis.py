"""Build the ONNX nodes that turn the columns of a table into features of energies. Needs ``compshift[onnx]``.

The features are the outputs of boosted trees (``crm.trees``), standardised numbers and indicators
(``crm.linear_columns``), or both. Trees become the operator ``TreeEnsemble`` of the domain ``ai.onnx.ml``. Every number
that the graph's precision can hold takes the branches that it takes in LightGBM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import numpy_helper

from compshift._errors import InputError
from compshift.core.arrays import BoolArray, FloatArray, IntArray
from compshift.crm.linear_columns import MISSING, NUMERIC_LEVEL, LinearColumns, TreesAndColumns
from compshift.crm.trees import CATEGORICAL, WORD_BITS, Trees

if TYPE_CHECKING:
    from compshift.export.graph import Nodes
    from compshift.export.sources import OnnxSource

TREE_DOMAIN = "ai.onnx.ml"
"""Domain of the operator ``TreeEnsemble``."""

AT_MOST, MEMBER = 0, 6
"""Modes of a node: go left if the number is at most the threshold, or if it is in a set."""

DEFAULT_LEFT, ZERO_IS_MISSING, NAN_IS_MISSING = 2, 4, 8
"""Bits of ``Trees.decision`` beside ``CATEGORICAL``."""

ZERO = float(np.float32(1e-35))
"""LightGBM reads numbers up to this absolute value as zero."""


def add_basis(graph: Nodes, source: OnnxSource, X: str) -> str:
    """Add nodes for the features of the energies, (n, q), of the columns ``X`` of a table, (n, p)."""
    basis, parts = source.basis, []
    for part in basis if isinstance(basis, TreesAndColumns) else (basis,):
        if isinstance(part, Trees):
            _check_columns(graph, source, part.feature, 1 / part.scale[part.feature])
            parts.append(_tree_outputs(graph, part, X))
        elif part is not None:
            numbers = part.level == NUMERIC_LEVEL
            for size in (part.scale, np.maximum(np.abs(part.mean), part.scale)):
                _check_columns(graph, source, part.column[numbers], size[numbers])
            parts.append(_column_features(graph, part, X))
    return parts[0] if len(parts) == 1 else graph.add("Concat", *parts, axis=1)


def _check_columns(graph: Nodes, source: OnnxSource, column: IntArray, size: FloatArray) -> None:
    """Check that the graph's precision can hold numbers of the given ``size``, one for each entry of ``column``."""
    limits = np.finfo(graph.dtype)
    outside = np.flatnonzero((size < limits.tiny) | (size > limits.max))
    if graph.dtype == np.float32 and len(outside):
        index = int(column[outside[0]])
        name = index if source.feature_names is None else repr(source.feature_names[index])
        raise InputError(
            f"column {name} of X has numbers near {size[outside[0]]:.0e}, which 32 bits cannot hold: export in 64 bits "
            "(dtype 'float64', option --float64), or divide the column by a constant before the fit"
        )


def _tree_outputs(graph: Nodes, trees: Trees, X: str) -> str:
    """Add nodes for the sum of the leaves for every output, (n, outputs)."""
    t, nodes = len(trees.leaves), len(trees.feature)
    tree = np.repeat(np.arange(t), trees.leaves - 1)  # (nodes,)
    first_node = np.cumsum(trees.leaves - 1) - (trees.leaves - 1)
    first_leaf = np.cumsum(trees.leaves) - trees.leaves
    by_category = (trees.decision & CATEGORICAL) > 0
    sets = _category_sets(trees, tree, by_category)
    nonempty = by_category.copy()
    nonempty[by_category] = [len(members) > 0 for members in sets]
    splits = np.full(nodes, -np.inf, dtype=graph.dtype)  # of an empty set, to which no number belongs
    number = ~by_category
    splits[number] = rounded_thresholds(trees.threshold[number], trees.scale[trees.feature[number]], graph.dtype)
    X, feature = _with_gaps(graph, trees, X)

    lone = np.flatnonzero(trees.leaves == 1)  # trees of one leaf become a node with two equal branches
    roots = first_node.copy()
    roots[lone] = nodes + np.arange(len(lone))
    branches: dict[str, Any] = {}
    for name, child in (("true", trees.left), ("false", trees.right)):
        target = np.where(child < 0, first_leaf[tree] - child - 1, first_node[tree] + child)
        branches[f"nodes_{name}nodeids"] = [*target.tolist(), *first_leaf[lone].tolist()]
        branches[f"nodes_{name}leafs"] = [*(child < 0).astype(int).tolist(), *[1] * len(lone)]
    if nonempty.any():
        kept = [part for members in sets if len(members) for part in (members, [np.nan])]
        branches["membership_values"] = _tensor(np.concatenate(kept).astype(graph.dtype))
    return graph.add(
        "TreeEnsemble",
        X,
        domain=TREE_DOMAIN,
        n_targets=trees.n_outputs,
        tree_roots=roots.tolist(),
        nodes_featureids=[*feature.tolist(), *[0] * len(lone)],
        nodes_modes=_tensor(np.append(np.where(nonempty, MEMBER, AT_MOST), [AT_MOST] * len(lone)).astype(np.uint8)),
        nodes_splits=_tensor(np.append(splits, np.zeros(len(lone), dtype=graph.dtype))),
        nodes_missing_value_tracks_true=[*_gaps_go_left(trees).astype(int).tolist(), *[0] * len(lone)],
        leaf_targetids=np.repeat(np.arange(t) % trees.n_outputs, trees.leaves).tolist(),
        leaf_weights=_tensor(trees.value.astype(graph.dtype)),
        **branches,
    )


def rounded_thresholds(threshold: FloatArray, scale: FloatArray, dtype: Any) -> Any:
    r"""Return, for each threshold t, the largest number x of a precision with :math:`\text{scale} \cdot x \le t`.

    Every number of that precision is then on the same side of x as its product with ``scale`` is of t. Products up to
    ``ZERO`` count as zero, as in LightGBM. An infinite threshold stays as it is.
    """
    near_zero = np.where(threshold >= 0, ZERO, np.nextafter(-ZERO, -np.inf))
    threshold = np.where(np.abs(threshold) <= ZERO, near_zero, threshold)
    dtype = np.dtype(dtype).type
    with np.errstate(over="ignore", under="ignore"):
        found = (threshold / scale).astype(dtype)
        while (high := found.astype(np.float64) * scale > threshold).any():
            found = np.where(high, np.nextafter(found, dtype(-np.inf)), found)
        while True:
            above = np.nextafter(found, dtype(np.inf))
            low = np.isfinite(threshold) & (above > found) & (above.astype(np.float64) * scale <= threshold)
            if not low.any():
                return found
            found = np.where(low, above, found)


def _gaps_go_left(trees: Trees) -> BoolArray:
    """Return for each node whether a missing value (NaN) goes left, (nodes,).

    Without missing values in training, LightGBM reads NaN as zero. At a split by categories NaN goes right.
    """
    known_gaps = (trees.decision & (ZERO_IS_MISSING | NAN_IS_MISSING)) > 0
    left = np.where(known_gaps, (trees.decision & DEFAULT_LEFT) > 0, trees.threshold >= 0)
    return np.asarray(left & ((trees.decision & CATEGORICAL) == 0))


def _with_gaps(graph: Nodes, trees: Trees, X: str) -> tuple[str, IntArray]:
    """Add columns with NaN in place of zeros, for nodes to which zeros are missing; return the column of each node."""
    without_zeros = (trees.decision & ZERO_IS_MISSING) > 0
    if not without_zeros.any():
        return X, trees.feature
    column, position = np.unique(trees.feature[without_zeros], return_inverse=True)
    largest = rounded_thresholds(np.zeros(len(column)), trees.scale[column], graph.dtype)
    values = graph.add("Gather", X, graph.integers(column), axis=1)
    is_zero = graph.add("LessOrEqual", graph.add("Abs", values), graph.floats(largest))
    added = graph.add("Where", is_zero, graph.floats(np.nan), values)
    feature = trees.feature.copy()
    feature[without_zeros] = trees.n_features + position
    return graph.add("Concat", X, added, axis=1), feature


def _category_sets(trees: Trees, tree: IntArray, by_category: BoolArray) -> list[IntArray]:
    """Return the categories that go left at each of the nodes ``by_category``, in their order."""
    if (trees.scale[trees.feature[by_category]] != 1).any():
        raise InputError("trees with scaled categories cannot be written as ONNX: fit the model again")
    first_split = np.cumsum(trees.categorical) - trees.categorical  # (t,)
    place = first_split[tree[by_category]] + trees.threshold[by_category].astype(np.int64)
    last_word = np.cumsum(trees.words)
    sets = []
    for first, last in zip((last_word - trees.words)[place], last_word[place], strict=True):
        bits = trees.category_bits[first:last, None] >> np.arange(WORD_BITS) & 1  # (words, WORD_BITS)
        sets.append(np.flatnonzero(bits))
    return sets


def _column_features(graph: Nodes, columns: LinearColumns, X: str) -> str:
    """Add nodes for the standardised numbers and the indicators, (n, q)."""
    values = X
    if not np.array_equal(columns.column, np.arange(columns.n_features)):
        values = graph.add("Gather", X, graph.integers(columns.column), axis=1)
    missing = graph.add("IsNaN", values)
    is_number = columns.level == NUMERIC_LEVEL
    features = []
    if is_number.any():
        mean = columns.mean.astype(graph.dtype)
        rounding = (mean.astype(np.float64) - columns.mean) / columns.scale
        number = graph.add("Div", graph.add("Sub", values, graph.floats(mean)), graph.floats(columns.scale))
        if rounding.any():
            number = graph.add("Add", number, graph.floats(rounding))
        filled = graph.floats((columns.fill - columns.mean) / columns.scale)
        features.append(graph.add("Where", missing, filled, number))
    if not is_number.all():
        level = np.where(columns.level >= 0, columns.level, np.nan)  # NaN equals nothing
        is_gap = graph.add("And", missing, graph.labels(columns.level == MISSING))
        indicator = graph.add("Or", graph.add("Equal", values, graph.floats(level)), is_gap)
        features.append(graph.add("Cast", indicator, to=graph.element_type))
    return features[0] if len(features) == 1 else graph.add("Where", graph.labels(is_number), *features)


def _tensor(values: Any) -> Any:
    return numpy_helper.from_array(np.ascontiguousarray(values), "")
