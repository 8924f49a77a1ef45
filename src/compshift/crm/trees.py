"""Boosted trees as arrays, which a model file can hold and check; LightGBM evaluates them.

LightGBM's own text format is never read from a file, because its parser is not made for untrusted input. ``Trees.of``
reads the arrays from the text of a booster that was just trained, ``check_trees`` makes sure that arrays from a file
describe trees, and ``Trees.booster`` writes the text for LightGBM from the arrays.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from compshift._errors import InputError
from compshift.core.arrays import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    import lightgbm

CATEGORICAL = 1
"""Bit of ``decision``: the split is by categories, not by a threshold."""

DECISIONS = (0, 1, 2, 4, 6, 8, 9, 10)
"""Accepted kinds of split, as sums of bits: ``CATEGORICAL``, 2 if missing values go left, and 4 if zeros or 8 if NaN
are missing values."""

MAX_TREES = 1_000_000
"""Largest accepted number of trees."""

MAX_LEAF = 1e6
"""Largest accepted absolute value of a leaf, in nats."""

WORD_BITS = 32
"""Number of categories per entry of ``category_bits``."""


def import_lightgbm() -> Any:
    """Import LightGBM, or raise an error that says how to install it."""
    try:
        import lightgbm
    except ImportError:
        raise InputError("boosted energies need LightGBM: run pip install 'compshift[boosting]'") from None
    return lightgbm


@dataclass(frozen=True, eq=False)
class Trees:
    """Binary trees of a booster, ``n_outputs`` per round, as arrays.

    The nodes, leaves and categories of all trees are concatenated. A child that is not negative is a node of the same
    tree; a negative child c is the leaf −c − 1 of the same tree. The threshold of a categorical node is its number
    among the categorical nodes of its tree.
    """

    n_features: int
    n_outputs: int
    scale: FloatArray  # (p,) factors of the features; LightGBM treats numbers below 1e-35 as zero
    leaves: IntArray  # (t,) number of leaves of each tree; it has one node less
    feature: IntArray  # (nodes,) column that a node looks at
    threshold: FloatArray  # (nodes,)
    decision: IntArray  # (nodes,) one of DECISIONS
    left: IntArray  # (nodes,)
    right: IntArray  # (nodes,)
    value: FloatArray  # (leaves,)
    categorical: IntArray  # (t,) number of categorical nodes of each tree
    words: IntArray  # (categorical nodes,) number of entries of ``category_bits`` of each categorical node
    category_bits: IntArray  # (words,) bit sets of the categories that go left

    @classmethod
    def of(cls, booster: lightgbm.Booster, scale: FloatArray) -> Trees:
        """Return the trees of a booster that was trained on features times ``scale`` (p,)."""
        _, *blocks = booster.model_to_string().split("end of trees")[0].split("\nTree=")
        trees = [dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in blocks]

        def joined(name: str, dtype: Any) -> Any:
            parts = [np.array(tree.get(name, "").split(), dtype=dtype) for tree in trees]
            return np.concatenate(parts) if parts else np.empty(0, dtype=dtype)

        boundaries = [np.array(tree.get("cat_boundaries", "0").split(), dtype=np.int64) for tree in trees]
        return cls(
            n_features=booster.num_feature(),
            n_outputs=booster.num_model_per_iteration(),
            scale=scale,
            leaves=joined("num_leaves", np.int64),
            feature=joined("split_feature", np.int64),
            threshold=joined("threshold", np.float64),
            decision=joined("decision_type", np.int64),
            left=joined("left_child", np.int64),
            right=joined("right_child", np.int64),
            value=joined("leaf_value", np.float64),
            categorical=joined("num_cat", np.int64),
            words=np.concatenate([np.diff(part) for part in boundaries]) if boundaries else np.empty(0, np.int64),
            category_bits=joined("cat_threshold", np.int64),
        )

    @property
    def n_rounds(self) -> int:
        """Number of rounds of boosting."""
        return len(self.leaves) // self.n_outputs

    @classmethod
    def array_types(cls) -> dict[str, Any]:
        """Return the type of the entries of each array."""
        floats = ("scale", "threshold", "value")
        names = [field.name for field in fields(cls) if not field.name.startswith("n_")]
        return {name: np.float64 if name in floats else np.int64 for name in names}

    @property
    def arrays(self) -> dict[str, Any]:
        """The arrays by name."""
        return {name: getattr(self, name) for name in self.array_types()}

    def scores(self, X: FloatArray) -> FloatArray:
        """Return the sum of the leaves of each sample (n, p) for every output, (n, outputs)."""
        return leaf_sums(self.booster, X, self.scale)

    @classmethod
    def without_splits(cls, n_features: int, n_outputs: int, n_rounds: int) -> Trees:
        """Return trees of one leaf each, whose value is 0."""
        t, nothing = n_outputs * n_rounds, np.empty(0, dtype=np.int64)
        arrays: dict[str, Any] = dict.fromkeys(cls.array_types(), nothing) | {
            "scale": np.ones(n_features),
            "leaves": np.ones(t, dtype=np.int64),
            "threshold": np.empty(0),
            "value": np.zeros(t),
            "categorical": np.zeros(t, dtype=np.int64),
        }
        return cls(n_features, n_outputs, **arrays)

    @cached_property
    def booster(self) -> Any:
        """A LightGBM booster of these trees."""
        return import_lightgbm().Booster(model_str=self._text())

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _text(self) -> str:
        """Return the trees in LightGBM's text format."""
        blocks = [f"Tree={number}\n{block}\n\n" for number, block in enumerate(self._blocks())]
        names = " ".join(f"Column_{column}" for column in range(self.n_features))
        header = (
            f"tree\nversion=v4\nnum_class={self.n_outputs}\nnum_tree_per_iteration={self.n_outputs}\nlabel_index=0\n"
            f"max_feature_idx={self.n_features - 1}\nfeature_names={names}\n"
            f"feature_infos={' '.join(['[-1:1]'] * self.n_features)}\n"
            f"tree_sizes={' '.join(str(len(block)) for block in blocks)}\n\n"
        )
        return header + "".join(blocks) + "end of trees\n\nparameters:\nend of parameters\n\npandas_categorical:null\n"

    def _blocks(self) -> list[str]:
        """Return the text of each tree, without its first line."""
        node_ends, leaf_ends = np.cumsum(self.leaves - 1), np.cumsum(self.leaves)
        category_ends = np.cumsum(self.categorical)
        word_ends = np.concatenate([[0], np.cumsum(self.words)])
        blocks = []
        for tree, n_leaves in enumerate(self.leaves):
            nodes = slice(node_ends[tree] - n_leaves + 1, node_ends[tree])
            leaves = slice(leaf_ends[tree] - n_leaves, leaf_ends[tree])
            lines: dict[str, Any] = {"num_leaves": [n_leaves], "num_cat": [self.categorical[tree]]}
            if n_leaves > 1:
                lines |= {
                    "split_feature": self.feature[nodes],
                    "split_gain": np.zeros(n_leaves - 1, dtype=np.int64),
                    "threshold": self.threshold[nodes],
                    "decision_type": self.decision[nodes],
                    "left_child": self.left[nodes],
                    "right_child": self.right[nodes],
                }
            lines["leaf_value"] = self.value[leaves]
            if self.categorical[tree]:
                first, last = category_ends[tree] - self.categorical[tree], category_ends[tree]
                lines["cat_boundaries"] = word_ends[first : last + 1] - word_ends[first]
                lines["cat_threshold"] = self.category_bits[word_ends[first] : word_ends[last]]
            text = [f"{name}={' '.join(map(_number_text, values))}" for name, values in lines.items()]
            blocks.append("\n".join([*text, "is_linear=0", "shrinkage=1"]))
        return blocks


def leaf_sums(
    booster: lightgbm.Booster, X: FloatArray, scale: FloatArray, first: int = 0, last: int | None = None
) -> FloatArray:
    """Return the sum of the leaves of each sample (n, p) for every output of a booster, (n, outputs).

    The trees were grown on features times ``scale`` (p,). Only the rounds from ``first`` to ``last`` − 1 are used, or
    all from ``first`` on if ``last`` is None.
    """
    n_outputs = booster.num_model_per_iteration()
    if not len(X):
        return np.empty((0, n_outputs))
    rounds = -1 if last is None else last - first
    with np.errstate(over="ignore"):  # infinity compares with every threshold as the exact product would
        X = X * scale
    found = booster.predict(X, raw_score=True, start_iteration=first, num_iteration=rounds)
    return np.asarray(found, dtype=np.float64).reshape(len(X), n_outputs)


def _number_text(value: Any) -> str:
    """Return a number as text that gives the same number when it is read."""
    return repr(float(value)) if isinstance(value, float | np.floating) else str(int(value))


def check_trees(trees: Trees) -> None:
    """Check that arrays from a file describe binary trees over the features."""
    t, nodes = len(trees.leaves), int(trees.leaves.sum()) - len(trees.leaves)
    _require(trees.n_outputs > 0 and trees.n_features > 0 and t <= MAX_TREES, "the number of trees")
    _require(len(trees.scale) == trees.n_features, "the number of scales")
    _require(bool(((trees.scale > 0) & (trees.scale < np.inf)).all()), "a scale")
    _require(t % trees.n_outputs == 0, "the number of trees per round")
    _require(bool((trees.leaves >= 1).all()), "a number of leaves")
    for name in ("feature", "threshold", "decision", "left", "right"):
        _require(len(getattr(trees, name)) == nodes, f"the number of entries of {name}")
    _require(len(trees.value) == nodes + t, "the number of leaf values")
    _require(bool((np.abs(trees.value) <= MAX_LEAF).all()), "a leaf value")
    _require(bool(((trees.feature >= 0) & (trees.feature < trees.n_features)).all()), "a feature")
    _require(bool(np.isin(trees.decision, DECISIONS).all()), "a kind of split")
    _require(not np.isnan(trees.threshold).any(), "a threshold")
    tree = np.repeat(np.arange(t), trees.leaves - 1)  # (nodes,)
    first_node, first_leaf = _starts(trees.leaves - 1), _starts(trees.leaves)
    own = np.arange(nodes) - first_node[tree]
    children = np.stack([trees.left, trees.right])
    inner, leaf = children >= 0, -children - 1
    _require(bool((~inner | ((children > own) & (children < trees.leaves[tree] - 1))).all()), "a child node")
    _require(bool((inner | (leaf < trees.leaves[tree])).all()), "a child leaf")
    child_nodes, child_leaves = (first_node[tree] + children)[inner], (first_leaf[tree] + leaf)[~inner]
    once = np.bincount(child_nodes, minlength=nodes) == (own > 0)
    _require(bool(once.all()), "the parent of a node")
    split = np.repeat(trees.leaves > 1, trees.leaves)
    _require(bool((np.bincount(child_leaves, minlength=len(trees.value)) == split).all()), "the parent of a leaf")
    _check_categories(trees, tree)


def _check_categories(trees: Trees, tree: IntArray) -> None:
    """Check the categorical nodes; ``tree`` (nodes,) is the tree of each node."""
    by_category: BoolArray = (trees.decision & CATEGORICAL) > 0
    _require(len(trees.categorical) == len(trees.leaves) and bool((trees.categorical >= 0).all()), "num_cat")
    found = np.bincount(tree[by_category], minlength=len(trees.leaves))
    _require(bool((found == trees.categorical).all()), "the number of categorical nodes")
    number = trees.threshold[by_category]
    allowed = (number == np.floor(number)) & (number >= 0) & (number < trees.categorical[tree[by_category]])
    _require(bool(allowed.all()), "the threshold of a categorical node")
    _require(len(trees.words) == int(trees.categorical.sum()) and bool((trees.words >= 1).all()), "words")
    _require(len(trees.category_bits) == int(trees.words.sum()), "the number of category_bits")
    _require(bool(((trees.category_bits >= 0) & (trees.category_bits < 2**WORD_BITS)).all()), "category_bits")


def _starts(lengths: IntArray) -> IntArray:
    """Return the position at which each part of a concatenation starts."""
    return np.asarray(np.cumsum(lengths) - lengths)


def _require(valid: bool, what: str) -> None:
    if not valid:
        raise InputError(f"the trees of the model are damaged, because {what} is invalid: save the model again")
