"""Build a complete ONNX model: the graph with inputs, outputs, labels and metadata. Needs ``compshift[onnx]``."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import onnx
from onnx import helper

from compshift import __version__
from compshift._errors import InputError
from compshift.export.basis import TREE_DOMAIN
from compshift.export.graph import Nodes, add_probabilities
from compshift.export.sources import OnnxSource

OPSET = 17
"""Version of the ONNX operators (ONNX 1.12, from 2022): old enough for most runtimes to support it."""

TREE_OPSET = 5
"""Version of the ONNX operators for trees (ONNX 1.16, from 2024): the first whose sums can have 64 bits."""

IR_VERSION = 8
"""Version of the ONNX file format, the one that ONNX 1.12 writes."""

MAX_GROUP_COLUMNS = 1 << 16
"""Largest number of columns of the output ``group_probabilities``, one per group."""

MAX_ONNX_BYTES = (1 << 31) - (1 << 20)
"""Largest total size of a model's arrays: the 2 GiB limit of ONNX files, less 1 MiB for nodes and metadata."""


def onnx_model(
    source: OnnxSource, *, dtype: str = "float32", group_probabilities: bool = False, fixed_prior: bool = False
) -> onnx.ModelProto:
    """Return the ONNX model of a classifier, given by its arrays ``source``.

    Its inputs are ``X`` and, unless ``fixed_prior``, ``prior``. Its outputs are a label and probabilities for each
    target and, if ``group_probabilities``, the probability of each candidate group.
    """
    n_groups = len(source.candidates.groups)
    if group_probabilities and n_groups > MAX_GROUP_COLUMNS:
        raise InputError(
            f"the model has {n_groups} groups, but group probabilities can be exported for at most "
            f"{MAX_GROUP_COLUMNS}: export without them, or fit with a support of fewer groups"
        )
    graph = Nodes(dtype)
    prior = graph.floats(np.exp(source.log_prior), "prior")
    computed = add_probabilities(graph, source, "X", prior, groups=group_probabilities)
    names = output_names(source.space.names[: source.n_targets])
    outputs = []
    for (label, probabilities), values, marginal in zip(names, source.space.values, computed.targets, strict=False):
        graph.add("Identity", marginal, output=probabilities)
        best = graph.add("ArgMax", marginal, axis=1, keepdims=0)
        classes = graph.labels(values)
        graph.add("Gather", classes, best, output=label)
        label_type = graph.constants[-1].data_type
        outputs += [helper.make_tensor_value_info(label, label_type, ["N"])]
        outputs += [helper.make_tensor_value_info(probabilities, graph.element_type, ["N", len(values)])]
    if computed.groups is not None:
        graph.add("Identity", computed.groups, output="group_probabilities")
        outputs += [helper.make_tensor_value_info("group_probabilities", graph.element_type, ["N", n_groups])]
    inputs = [helper.make_tensor_value_info("X", graph.element_type, ["N", source.n_features])]
    if not fixed_prior:  # the constant "prior" above is the input's default value
        inputs += [helper.make_tensor_value_info("prior", graph.element_type, [n_groups])]
    _check_size(graph)
    opsets = [helper.make_opsetid("", OPSET)]
    if any(node.domain == TREE_DOMAIN for node in graph.nodes):
        opsets.append(helper.make_opsetid(TREE_DOMAIN, TREE_OPSET))
    model = helper.make_model(
        helper.make_graph(graph.nodes, "compshift", inputs, outputs, graph.constants),
        producer_name="compshift",
        producer_version=__version__,
        opset_imports=opsets,
        ir_version=IR_VERSION,
    )
    helper.set_model_props(model, {"compshift": json.dumps(_metadata(source, names), ensure_ascii=False)})
    onnx.checker.check_model(model)
    return model


def output_names(targets: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the output names (label, probabilities) of each target; they contain its name if there are several."""
    if len(targets) == 1:
        return [("label", "probabilities")]
    plain = [re.sub(r"\W", "_", name) for name in targets]
    if len(set(plain)) < len(plain):
        plain = [f"{name}_{number}" for number, name in enumerate(plain, start=1)]
    return [(f"label_{name}", f"probabilities_{name}") for name in plain]


def _metadata(source: OnnxSource, names: list[tuple[str, str]]) -> dict[str, Any]:
    """Return the metadata: attributes, values, outputs, and the order of groups and features."""
    space, groups = source.space, source.candidates.groups
    return {
        "format_version": 1,
        "compshift_version": __version__,
        "names": list(space.names),
        "values": [list(values) for values in space.values],
        "targets": {
            target: {"label": label, "probabilities": probabilities}
            for target, (label, probabilities) in zip(space.names, names, strict=False)
        },
        "groups": "all" if len(groups) == space.n_groups else groups.tolist(),
        "feature_names": None if source.feature_names is None else list(source.feature_names),
        "categories": None if source.categories is None else [values and list(values) for values in source.categories],
    }


def _check_size(graph: Nodes) -> None:
    """Check that the arrays fit into one ONNX file."""
    size = sum(len(array.raw_data) for array in graph.constants) + sum(node.ByteSize() for node in graph.nodes)
    if size > MAX_ONNX_BYTES:
        raise InputError(
            f"the arrays of the model take {size / 1e9:.1f} GB, but an ONNX file holds at most 2 GB: fit with fewer "
            "features or rounds, or with a support of fewer groups"
        )
