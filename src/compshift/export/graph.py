r"""Build the ONNX graph that computes the probabilities of a CRM model. Needs ``compshift[onnx]``.

With :math:`s(z) = \log q(z) + w(z)`, where w is −B(z) plus the offset of unseen groups (paper, label "hatq" in
docs/maths.md),

.. math:: \hat q(z_i = v | x) \propto \sum_{z: z_i = v} \exp(-\langle \sigma(z), E(x) \rangle + s(z))

Up to ``FEW_GROUPS`` groups are summed one by one. More groups are laid out as the cells of a table, and their sums are
matrix products: see ``compshift.core.energy.GroupTable``. Functions that "add" something add the nodes that compute it
to the graph, and return the name of their output.
"""

from __future__ import annotations

from itertools import count
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from compshift.core.arrays import FloatArray, IntArray, underflow_floor
from compshift.core.energy import WIDE
from compshift.core.groups import GroupSpace
from compshift.export.basis import add_basis
from compshift.export.sources import OnnxSource

FEW_GROUPS = 64
"""Largest number of groups that are summed one by one; for few groups, a table would cost more than it saves."""

NEGLIGIBLE_NATS = 25.0
"""Sums that are this many nats below the largest sum of a sample are negligible: their share is below 2e-11."""

LOWEST = -1e30
"""Replaces a maximum of −inf, because −inf − (−inf) would be NaN."""


class Nodes:
    """Builder of an ONNX graph: each method adds a node or a constant and returns its name.

    A branch is a subgraph. It may use every node and constant that was added to its parent before.
    """

    def __init__(self, dtype: Any, parent: Nodes | None = None) -> None:
        self.dtype = np.dtype(dtype)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._counter: count[int] = count() if parent is None else parent._counter

    @property
    def element_type(self) -> int:
        """ONNX data type of the graph's floats."""
        return int(helper.np_dtype_to_tensor_dtype(self.dtype))

    def add(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Add a node with one output; its name is generated unless ``output`` is passed."""
        output = output or self._fresh(operator)
        self.nodes.append(helper.make_node(operator, list(inputs), [output], name=f"node_{output}", **attributes))
        return output

    def floats(self, values: Any, name: str | None = None) -> str:
        """Add a constant array of floats in the precision of the graph."""
        return self._constant(np.asarray(values, dtype=self.dtype), name)

    def integers(self, values: Any) -> str:
        """Add a constant array of indices."""
        return self._constant(np.asarray(values, dtype=np.int64), None)

    def labels(self, values: Any) -> str:
        """Add a constant array of labels: booleans, integers, floats or text."""
        array = np.array(values)
        types = {"b": np.bool_, "i": np.int64, "u": np.int64, "f": np.float64}
        return self._constant(array.astype(types.get(array.dtype.kind, object)), None)

    def largest(self, values: str) -> str:
        """Add nodes for the maximum of each row, (n, 1)."""
        return self.add("ReduceMax", values, axes=[1], keepdims=1)

    def total(self, values: str) -> str:
        """Add nodes for the sum of each row, (n, 1)."""
        return self.add("ReduceSum", values, self.integers([1]), keepdims=1)

    def branch(self) -> Nodes:
        """Start a subgraph."""
        return Nodes(self.dtype, self)

    def subgraph(self, inputs: list[onnx.ValueInfoProto], output: str, element_type: int, shape: list[Any]) -> Any:
        """Return this branch as a graph with one output, for use as an attribute of a node."""
        outputs = [helper.make_tensor_value_info(output, element_type, shape)]
        return helper.make_graph(self.nodes, f"branch_{output}", inputs, outputs, self.constants)

    def _constant(self, array: Any, name: str | None) -> str:
        name = name or self._fresh("constant")
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def _fresh(self, stem: str) -> str:
        return f"{stem.lower()}_{next(self._counter)}"


class Probabilities(NamedTuple):
    """Names of the tensors that hold the probabilities."""

    targets: list[str]  # (n, d_i) each
    groups: str | None  # (n, g)


def add_probabilities(graph: Nodes, source: OnnxSource, X: str, prior: str, *, groups: bool) -> Probabilities:
    """Add nodes for the probabilities of every target and, if ``groups``, of the candidate groups."""
    X = _transformed(graph, source.feature_transform, X) if source.basis is None else add_basis(graph, source, X)
    negated = _negated_energies(graph, source, X)
    table = source.candidates.table
    if groups or len(source.log_weight) <= FEW_GROUPS or table.shape[1] == 1:
        return _by_groups(graph, source, negated, prior, groups)
    return Probabilities(_by_table(graph, source, negated, prior), None)


def _transformed(graph: Nodes, transform: str, X: str) -> str:
    """Add nodes for the transform of the features, as in ``crm.problem``."""
    if transform == "none":
        return X
    size = graph.add("Abs", X)
    if transform == "signed_root":
        return graph.add("Mul", graph.add("Sign", X), graph.add("Sqrt", size))
    smallest = graph.floats(np.finfo(graph.dtype).tiny)
    scaled = graph.add("Div", X, graph.add("Max", graph.largest(size), smallest))  # squares cannot overflow
    length = graph.add("Sqrt", graph.total(graph.add("Mul", scaled, scaled)))  # at least 1, unless the row is zero
    return graph.add("Div", scaled, graph.add("Max", length, graph.floats(1.0)))


def _negated_energies(graph: Nodes, source: OnnxSource, X: str) -> str:
    """Add nodes for the negated energies −E(x), (n, D).

    Features are centred first. Their mean is rounded to the precision of the graph, and the intercept of the first
    layer makes up for the rounding error.
    """
    mean = source.feature_mean.astype(graph.dtype)
    if mean.any():
        X = graph.add("Sub", X, graph.floats(mean))
    rounding = mean.astype(np.float64) - source.feature_mean  # (p,)
    parts = []
    for network in source.networks:
        value, shift = X, network[0].weights @ rounding
        for layer in network[:-1]:
            value = graph.add("Relu", _linear(graph, value, layer.weights, layer.intercept + shift))
            shift = np.zeros(1)
        parts.append(_linear(graph, value, -network[-1].weights, -(network[-1].intercept + shift)))
    return parts[0] if len(parts) == 1 else graph.add("Concat", *parts, axis=1)


def _linear(graph: Nodes, value: str, weights: FloatArray, intercept: FloatArray) -> str:
    """Add nodes that compute ``value @ weights.T + intercept``."""
    if not intercept.any():
        return graph.add("MatMul", value, graph.floats(weights.T))
    return graph.add("Gemm", value, graph.floats(weights.T), graph.floats(intercept))


def _by_groups(graph: Nodes, source: OnnxSource, negated: str, prior: str, groups: bool) -> Probabilities:
    """Add nodes for the probabilities, with one column per group."""
    table, codes = source.candidates.table, source.candidates.groups
    if len(codes) <= FEW_GROUPS or table.shape[1] == 1:
        log_group = _combinations(graph, negated, source.space, range(len(source.space.names)), codes)
    else:
        left, right = _halves(graph, source, negated)
        picked = [graph.add("Gather", left, graph.integers(table.row), axis=1)]
        picked += [graph.add("Gather", right, graph.integers(table.column), axis=1)]
        log_group = graph.add("Add", *picked)
    log_score = graph.add("Add", graph.add("Log", prior), graph.floats(_minus_max(source.log_weight)))  # (g,)
    weights = _exponentials(graph, graph.add("Add", log_group, log_score))  # (n, g)
    total = graph.total(weights)
    return Probabilities(
        [_marginals(graph, source, weights, total, target, codes[:, target]) for target in range(source.n_targets)],
        graph.add("Div", weights, total) if groups else None,
    )


def _by_table(graph: Nodes, source: OnnxSource, negated: str, prior: str) -> list[str]:
    """Add nodes for the targets' probabilities: matrix products over the table, without a column per group."""
    table = source.candidates.table
    left, right = _halves(graph, source, negated)
    cells = _prior_table(graph, source, prior)  # (l, r)
    log_weight = table.fill(_minus_max(source.log_weight))
    split = table.left.shape[1]
    sides: dict[bool, tuple[str, str]] = {}
    marginals = []
    for target in range(source.n_targets):
        on_left = target < split
        if on_left not in sides:
            if on_left:
                log_sums = _log_sums(graph, left, right, cells, log_weight)
            else:
                log_sums = _log_sums(graph, right, left, graph.add("Transpose", cells, perm=[1, 0]), log_weight.T)
            weights = _exponentials(graph, log_sums)
            sides[on_left] = weights, graph.total(weights)
        value_of = table.left[:, target] if on_left else table.right[:, target - split]
        marginals.append(_marginals(graph, source, *sides[on_left], target, value_of))
    return marginals


def _halves(graph: Nodes, source: OnnxSource, negated: str) -> tuple[str, str]:
    """Add nodes for the negated energies of the table's rows, (n, l), and for those of its columns, (n, r)."""
    table, space = source.candidates.table, source.space
    split, m = table.left.shape[1], len(space.names)
    return (
        _combinations(graph, negated, space, range(split), table.left),
        _combinations(graph, negated, space, range(split, m), table.right),
    )


def _combinations(graph: Nodes, negated: str, space: GroupSpace, attributes: range, codes: IntArray) -> str:
    """Add nodes for the negated energies (n, q) of the combinations ``codes`` (q, s) of values of ``attributes``."""
    columns = codes + space.offsets[attributes.start : attributes.stop]  # (q, s) columns of ``negated``
    width = sum(space.cardinalities[attribute] for attribute in attributes)
    first = int(space.offsets[attributes.start])
    if len(attributes) == 1 and width == space.width and np.array_equal(columns[:, 0], np.arange(width)):
        return negated
    if len(attributes) == 1 or width > WIDE * len(attributes):
        picked = [graph.add("Gather", negated, graph.integers(column), axis=1) for column in columns.T]
        total = picked[0]
        for other in picked[1:]:
            total = graph.add("Add", total, other)
        return total
    one_hot = np.zeros((space.width, len(codes)))
    np.put_along_axis(one_hot, columns.T, 1.0, axis=0)
    if width < space.width:
        negated = graph.add("Gather", negated, graph.integers(np.arange(first, first + width)), axis=1)
    return graph.add("MatMul", negated, graph.floats(one_hot[first : first + width]))


def _prior_table(graph: Nodes, source: OnnxSource, prior: str) -> str:
    """Add nodes for the prior divided by its maximum, as a table (l, r).

    Cells without a group hold arbitrary numbers; ``_log_sums`` gives them weight 0.
    """
    table = source.candidates.table
    rows, columns = table.shape
    prior = graph.add("Div", prior, graph.add("ReduceMax", prior, keepdims=1))
    position = np.zeros((rows, columns), dtype=np.int64)
    position[table.row, table.column] = np.arange(len(table.row))
    if np.array_equal(position.ravel(), np.arange(rows * columns)):
        return graph.add("Reshape", prior, graph.integers([rows, columns]))
    return graph.add("Gather", prior, graph.integers(position), axis=0)


def _log_sums(graph: Nodes, rows: str, columns: str, cells: str, log_weight: FloatArray) -> str:
    r"""Add nodes for the log of the sum over each row of the table, (n, q), up to a constant per sample.

    .. math:: a_j + \log \sum_k \exp(b_k) q_{jk} \exp(w_{jk})

    a (n, q) and b (n, s) are ``rows`` and ``columns``, the negated energies of the table's rows and columns. ``cells``
    (q, s) holds the prior :math:`q_{jk}`, ``log_weight`` (q, s) is w. The sums are one matrix product of exponentials,
    which are scaled to be at most 1. If underflow may have made a sum inaccurate, and the sum is not negligible, all
    sums are computed again in log space, one row of the table at a time.
    """
    scale = log_weight.max(axis=1)  # (q,)
    factors = graph.add("Mul", cells, graph.floats(np.exp(log_weight - scale[:, None])))  # (q, s)
    sums = graph.add("MatMul", _exponentials(graph, columns), graph.add("Transpose", factors, perm=[1, 0]))  # (n, q)
    floor = graph.floats(underflow_floor(np.zeros(0, dtype=graph.dtype), log_weight.shape[1]))
    scaled = graph.add("Add", rows, graph.floats(scale))  # (n, q)
    bound = graph.add("Add", scaled, graph.add("Log", graph.add("Max", sums, floor)))
    relevant = graph.add("Greater", bound, graph.add("Sub", graph.largest(bound), graph.floats(NEGLIGIBLE_NATS)))
    inaccurate = graph.add("And", graph.add("Less", sums, floor), relevant)
    n_inaccurate = graph.add("ReduceSum", graph.add("Cast", inaccurate, to=TensorProto.INT32), keepdims=0)
    quick, slow = graph.branch(), graph.branch()
    shape = ["N", len(log_weight)]
    quick_result = quick.add("Add", scaled, quick.add("Log", sums))
    slow_result = slow.add("Add", rows, _row_by_row(slow, columns, cells, log_weight))
    return graph.add(
        "If",
        graph.add("Cast", n_inaccurate, to=TensorProto.BOOL),
        then_branch=slow.subgraph([], slow_result, graph.element_type, shape),
        else_branch=quick.subgraph([], quick_result, graph.element_type, shape),
    )


def _row_by_row(graph: Nodes, columns: str, cells: str, log_weight: FloatArray) -> str:
    """Add nodes for the log-sum-exp over each row of the table, (n, q), with one (n, s) array in memory at a time."""
    log_cells = graph.add("Add", graph.add("Log", cells), graph.floats(log_weight))  # (q, s)
    body = graph.branch()
    row = f"{log_cells}_row"
    terms = body.add("Add", columns, row)  # (n, s)
    top = body.add("Max", body.largest(terms), body.floats(LOWEST))
    sums = body.add("Log", body.total(body.add("Exp", body.add("Sub", terms, top))))
    result = body.add("Squeeze", body.add("Add", sums, top), body.integers([1]))
    inputs = [helper.make_tensor_value_info(row, graph.element_type, [log_weight.shape[1]])]
    step = body.subgraph(inputs, result, graph.element_type, ["N"])
    return graph.add("Scan", log_cells, num_scan_inputs=1, scan_output_axes=[1], body=step)


def _exponentials(graph: Nodes, log_values: str) -> str:
    """Add nodes for the exponential of every entry, scaled so that the largest in each row is 1."""
    return graph.add("Exp", graph.add("Sub", log_values, graph.largest(log_values)))


def _marginals(graph: Nodes, source: OnnxSource, weights: str, total: str, target: int, value_of: Any) -> str:
    """Add nodes for the marginal probability of each value of a target, (n, d).

    ``weights`` (n, q) are unnormalised probabilities of combinations, ``total`` (n, 1) is their sum, and ``value_of``
    (q,) is the target's value in each combination.
    """
    values = np.arange(source.space.cardinalities[target])
    if not np.array_equal(value_of, values):
        weights = graph.add("MatMul", weights, graph.floats(value_of[:, None] == values))
    return graph.add("Div", weights, total)


def _minus_max(log_weight: FloatArray) -> FloatArray:
    """Subtract the maximum; this constant cancels in every probability."""
    return np.asarray(log_weight - log_weight.max())
