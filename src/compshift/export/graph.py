r"""The ONNX graph of CRM's inference, from the equations. Needs ``compshift[onnx]``.

With :math:`s(z) = \log q(z) + w(z)`, where w is −B(z) plus the offset of unseen groups (paper, eq. "hatq"),

.. math:: \hat q(z_i = v | x) \propto \sum_{z: z_i = v} \exp(-\langle \sigma(z), E(x) \rangle + s(z))

Up to ``FEW_GROUPS`` groups are summed one by one. More groups are laid out as the cells of a table, and their sums are
a matrix product: see ``compshift.core.energy.GroupTable``.
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
from compshift.export.sources import OnnxSource

FEW_GROUPS = 64
"""Largest number of groups that are summed one by one, which then costs less than the nodes of a table."""

NEGLIGIBLE_NATS = 25.0
"""Terms that are smaller than the largest by more nats than this do not change a sum in 32 bits."""

LOWEST = -1e30
"""Replaces a maximum of −inf, because −inf − (−inf) would be NaN."""


class Nodes:
    """Builder of an ONNX graph: each method adds a node or a constant and returns its name.

    A branch is a subgraph, which may use everything that was added to its parent before.
    """

    def __init__(self, dtype: Any, parent: Nodes | None = None) -> None:
        self.dtype = np.dtype(dtype)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._numbers: count[int] = count() if parent is None else parent._numbers

    @property
    def element(self) -> int:
        """ONNX data type of the graph's numbers."""
        return int(helper.np_dtype_to_tensor_dtype(self.dtype))

    def add(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Add a node with one output."""
        output = output or self._fresh(operator)
        self.nodes.append(helper.make_node(operator, list(inputs), [output], name=f"node_{output}", **attributes))
        return output

    def numbers(self, values: Any, name: str | None = None) -> str:
        """Add a constant array in the precision of the graph."""
        return self._constant(np.asarray(values, dtype=self.dtype), name)

    def integers(self, values: Any) -> str:
        """Add a constant array of indices."""
        return self._constant(np.asarray(values, dtype=np.int64), None)

    def values(self, values: Any) -> str:
        """Add a constant array of labels: booleans, integers, floats or text."""
        array = np.array(values)
        types = {"b": np.bool_, "i": np.int64, "u": np.int64, "f": np.float64}
        return self._constant(array.astype(types.get(array.dtype.kind, object)), None)

    def largest(self, values: str) -> str:
        """Add the maximum of each row, (n, 1)."""
        return self.add("ReduceMax", values, axes=[1], keepdims=1)

    def total(self, values: str) -> str:
        """Add the sum of each row, (n, 1)."""
        return self.add("ReduceSum", values, self.integers([1]), keepdims=1)

    def branch(self) -> Nodes:
        """Start a subgraph."""
        return Nodes(self.dtype, self)

    def subgraph(self, inputs: list[onnx.ValueInfoProto], output: str, element: int, shape: list[Any]) -> Any:
        """Return this branch as a graph attribute of a node, with one output."""
        outputs = [helper.make_tensor_value_info(output, element, shape)]
        return helper.make_graph(self.nodes, f"branch_{output}", inputs, outputs, self.constants)

    def _constant(self, array: Any, name: str | None) -> str:
        name = name or self._fresh("constant")
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def _fresh(self, stem: str) -> str:
        return f"{stem.lower()}_{next(self._numbers)}"


class Probabilities(NamedTuple):
    """Names of the graph's probabilities."""

    targets: list[str]  # (n, d_i) each
    groups: str | None  # (n, g)


def add_probabilities(graph: Nodes, source: OnnxSource, X: str, prior: str, *, groups: bool) -> Probabilities:
    """Add the probabilities of every target and, if ``groups``, of the candidate groups."""
    energies = _negated_energies(graph, source, X)
    table = source.candidates.table
    if groups or len(source.log_weight) <= FEW_GROUPS or table.shape[1] == 1:
        return _by_groups(graph, source, energies, prior, groups)
    return Probabilities(_by_table(graph, source, energies, prior), None)


def _negated_energies(graph: Nodes, source: OnnxSource, X: str) -> str:
    """Add −E(x), (n, D).

    Features are centred first, in the precision of the graph; the rounding error of the mean goes to the intercept.
    """
    mean = source.feature_mean.astype(graph.dtype)
    if mean.any():
        X = graph.add("Sub", X, graph.numbers(mean))
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
    """Add ``value @ weights.T + intercept``."""
    if not intercept.any():
        return graph.add("MatMul", value, graph.numbers(weights.T))
    return graph.add("Gemm", value, graph.numbers(weights.T), graph.numbers(intercept))


def _by_groups(graph: Nodes, source: OnnxSource, energies: str, prior: str, groups: bool) -> Probabilities:
    """Add probabilities by way of one column per group."""
    table, codes = source.candidates.table, source.candidates.groups
    if len(codes) <= FEW_GROUPS or table.shape[1] == 1:
        log_group = _combinations(graph, energies, source.space, range(len(source.space.names)), codes)
    else:
        left, right = _halves(graph, source, energies)
        picked = [graph.add("Gather", left, graph.integers(table.row), axis=1)]
        picked += [graph.add("Gather", right, graph.integers(table.column), axis=1)]
        log_group = graph.add("Add", *picked)
    log_score = graph.add("Add", graph.add("Log", prior), graph.numbers(_from_zero(source.log_weight)))  # (g,)
    weights = _exponentials(graph, graph.add("Add", log_group, log_score))  # (n, g)
    total = graph.total(weights)
    return Probabilities(
        [_shares(graph, source, weights, total, target, codes[:, target]) for target in range(source.n_targets)],
        graph.add("Div", weights, total) if groups else None,
    )


def _by_table(graph: Nodes, source: OnnxSource, energies: str, prior: str) -> list[str]:
    """Add the targets' probabilities by way of a table, with one column per combination of half the attributes."""
    table = source.candidates.table
    left, right = _halves(graph, source, energies)
    cells = _prior_table(graph, source, prior)  # (l, r)
    log_weight = table.fill(_from_zero(source.log_weight))
    split = table.left.shape[1]
    sides: dict[bool, tuple[str, str]] = {}
    shares = []
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
        shares.append(_shares(graph, source, *sides[on_left], target, value_of))
    return shares


def _halves(graph: Nodes, source: OnnxSource, energies: str) -> tuple[str, str]:
    """Add the negated energies of the table's rows (n, l) and columns (n, r)."""
    table, space = source.candidates.table, source.space
    split, m = table.left.shape[1], len(space.names)
    return (
        _combinations(graph, energies, space, range(split), table.left),
        _combinations(graph, energies, space, range(split, m), table.right),
    )


def _combinations(graph: Nodes, energies: str, space: GroupSpace, attributes: range, codes: IntArray) -> str:
    """Add the negated energies (n, q) of combinations (q, s) of the values of some attributes."""
    columns = codes + space.offsets[attributes.start : attributes.stop]  # (q, s) among the D
    width = sum(space.cardinalities[attribute] for attribute in attributes)
    first = int(space.offsets[attributes.start])
    if len(attributes) == 1 and width == space.width and np.array_equal(columns[:, 0], np.arange(width)):
        return energies
    if len(attributes) == 1 or width > WIDE * len(attributes):
        picked = [graph.add("Gather", energies, graph.integers(column), axis=1) for column in columns.T]
        total = picked[0]
        for other in picked[1:]:
            total = graph.add("Add", total, other)
        return total
    one_hot = np.zeros((space.width, len(codes)))
    np.put_along_axis(one_hot, columns.T, 1.0, axis=0)
    if width < space.width:
        energies = graph.add("Gather", energies, graph.integers(np.arange(first, first + width)), axis=1)
    return graph.add("MatMul", energies, graph.numbers(one_hot[first : first + width]))


def _prior_table(graph: Nodes, source: OnnxSource, prior: str) -> str:
    """Add the prior as a table (l, r), at most 1; cells without a group are arbitrary, because their weight is 0."""
    table = source.candidates.table
    rows, columns = table.shape
    prior = graph.add("Div", prior, graph.add("ReduceMax", prior, keepdims=1))
    position = np.zeros((rows, columns), dtype=np.int64)
    position[table.row, table.column] = np.arange(len(table.row))
    if np.array_equal(position.ravel(), np.arange(rows * columns)):
        return graph.add("Reshape", prior, graph.integers([rows, columns]))
    return graph.add("Gather", prior, graph.integers(position), axis=0)


def _log_sums(graph: Nodes, own: str, other: str, cells: str, log_weight: FloatArray) -> str:
    r"""Add the log of the sum over each row of the table, (n, q), up to a constant per sample.

    .. math:: a_j + \log \sum_k \exp(b_k) q_{jk} \exp(w_{jk})

    ``own`` is a (n, q), ``other`` b (n, s), ``cells`` the prior (q, s), ``log_weight`` w (q, s). One matrix product of
    exponentials, each at most 1. If underflow may have spoilt a sum that is not negligible, all sums are computed again
    in log space, one row of the table at a time.
    """
    scale = log_weight.max(axis=1)  # (q,)
    factors = graph.add("Mul", cells, graph.numbers(np.exp(log_weight - scale[:, None])))  # (q, s)
    sums = graph.add("MatMul", _exponentials(graph, other), graph.add("Transpose", factors, perm=[1, 0]))  # (n, q)
    floor = graph.numbers(underflow_floor(np.zeros(0, dtype=graph.dtype), log_weight.shape[1]))
    raised = graph.add("Add", own, graph.numbers(scale))  # (n, q)
    bound = graph.add("Add", raised, graph.add("Log", graph.add("Max", sums, floor)))
    counts = graph.add("Greater", bound, graph.add("Sub", graph.largest(bound), graph.numbers(NEGLIGIBLE_NATS)))
    doubtful = graph.add("And", graph.add("Less", sums, floor), counts)
    number = graph.add("ReduceSum", graph.add("Cast", doubtful, to=TensorProto.INT32), keepdims=0)
    quick, slow = graph.branch(), graph.branch()
    shape = ["N", len(log_weight)]
    quick_result = quick.add("Add", raised, quick.add("Log", sums))
    slow_result = slow.add("Add", own, _row_by_row(slow, other, cells, log_weight))
    return graph.add(
        "If",
        graph.add("Cast", number, to=TensorProto.BOOL),
        then_branch=slow.subgraph([], slow_result, graph.element, shape),
        else_branch=quick.subgraph([], quick_result, graph.element, shape),
    )


def _row_by_row(graph: Nodes, other: str, cells: str, log_weight: FloatArray) -> str:
    """Add the log-sum-exp over each row of the table, (n, q), in (n, s) numbers at a time."""
    log_cells = graph.add("Add", graph.add("Log", cells), graph.numbers(log_weight))  # (q, s)
    body = graph.branch()
    row = f"{log_cells}_row"
    terms = body.add("Add", other, row)  # (n, s)
    top = body.add("Max", body.largest(terms), body.numbers(LOWEST))
    sums = body.add("Log", body.total(body.add("Exp", body.add("Sub", terms, top))))
    result = body.add("Squeeze", body.add("Add", sums, top), body.integers([1]))
    inputs = [helper.make_tensor_value_info(row, graph.element, [log_weight.shape[1]])]
    step = body.subgraph(inputs, result, graph.element, ["N"])
    return graph.add("Scan", log_cells, num_scan_inputs=1, scan_output_axes=[1], body=step)


def _exponentials(graph: Nodes, log_values: str) -> str:
    """Add the exponentials of each row, scaled so that the largest is 1."""
    return graph.add("Exp", graph.add("Sub", log_values, graph.largest(log_values)))


def _shares(graph: Nodes, source: OnnxSource, weights: str, total: str, target: int, value_of: Any) -> str:
    """Add the share of each value of a target (n, d).

    ``weights`` (n, q) belong to combinations that have the values ``value_of`` (q,); ``total`` (n, 1) is their sum.
    """
    values = np.arange(source.space.cardinalities[target])
    if not np.array_equal(value_of, values):
        weights = graph.add("MatMul", weights, graph.numbers(value_of[:, None] == values))
    return graph.add("Div", weights, total)


def _from_zero(log_weight: FloatArray) -> FloatArray:
    """Subtract the maximum, which cancels in every probability."""
    return np.asarray(log_weight - log_weight.max())
