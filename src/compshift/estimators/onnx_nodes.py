"""Nodes of an ONNX graph, one call for each. Needs ``compshift[onnx]``."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper


class Nodes:
    """A graph in the making. Every method returns the name of what it adds.

    A branch is a graph within another, and may use whatever was added to that one before.
    """

    def __init__(self, dtype: Any, parent: Nodes | None = None) -> None:
        self.dtype = np.dtype(dtype)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._numbers: count[int] = count() if parent is None else parent._numbers

    @property
    def element(self) -> int:
        """The type of its numbers, as ONNX has it."""
        return int(helper.np_dtype_to_tensor_dtype(self.dtype))

    def add(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """One node with one output."""
        output = output or self._fresh(operator)
        self.nodes.append(helper.make_node(operator, list(inputs), [output], name=f"node_{output}", **attributes))
        return output

    def numbers(self, values: Any, name: str | None = None) -> str:
        """A constant array in the precision of the graph."""
        return self._constant(np.asarray(values, dtype=self.dtype), name)

    def integers(self, values: Any) -> str:
        """A constant array of indices."""
        return self._constant(np.asarray(values, dtype=np.int64), None)

    def values(self, values: Any) -> str:
        """A constant array of labels: booleans, whole numbers, other numbers or text."""
        array = np.array(values)
        types = {"b": np.bool_, "i": np.int64, "u": np.int64, "f": np.float64}
        return self._constant(array.astype(types.get(array.dtype.kind, object)), None)

    def largest(self, values: str) -> str:
        """Maximum of each row, (n, 1)."""
        return self.add("ReduceMax", values, axes=[1], keepdims=1)

    def total(self, values: str) -> str:
        """Sum of each row, (n, 1)."""
        return self.add("ReduceSum", values, self.integers([1]), keepdims=1)

    def branch(self) -> Nodes:
        """A graph within this one."""
        return Nodes(self.dtype, self)

    def subgraph(self, inputs: list[onnx.ValueInfoProto], output: str, element: int, shape: list[Any]) -> Any:
        """What a branch comes to, as the attribute of a node."""
        found = [helper.make_tensor_value_info(output, element, shape)]
        return helper.make_graph(self.nodes, f"branch_{output}", inputs, found, self.constants)

    def _constant(self, array: Any, name: str | None) -> str:
        name = name or self._fresh("constant")
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def _fresh(self, stem: str) -> str:
        return f"{stem.lower()}_{next(self._numbers)}"
