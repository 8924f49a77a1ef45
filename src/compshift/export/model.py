"""The whole ONNX model of CRM: inputs, outputs, labels and metadata around the graph. Needs ``compshift[onnx]``."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import onnx
from onnx import helper

from compshift import __version__
from compshift._errors import InputError
from compshift.export.graph import Nodes, add_probabilities
from compshift.export.sources import OnnxSource

METADATA_VERSION = 1
"""Version of the JSON metadata, its ``format_version``."""

OPSET, IR_VERSION = 17, 8
"""Versions of the operators and of the file format, both from 2022, which runtimes of recent years read."""

MAX_GROUP_COLUMNS = 1 << 16
"""Largest number of groups for which the model can output a probability each."""

MAX_ONNX_BYTES = (1 << 31) - (1 << 20)
"""Largest total size of a model's arrays: ONNX files are limited to 2 GB, and the rest needs a little space."""


def onnx_model(
    source: OnnxSource, *, dtype: str = "float32", group_probabilities: bool = False, fixed_prior: bool = False
) -> onnx.ModelProto:
    """Return the ONNX model. Inputs: ``X`` and, unless it is fixed, ``prior``. Outputs: labels and probabilities."""
    n_groups = len(source.candidates.groups)
    if group_probabilities and n_groups > MAX_GROUP_COLUMNS:
        raise InputError(
            f"the model has {n_groups} groups, and group probabilities are given for {MAX_GROUP_COLUMNS} at most: "
            "leave them out, or fit with a support of fewer groups"
        )
    graph = Nodes(dtype)
    prior = graph.numbers(np.exp(source.log_prior), "prior")
    computed = add_probabilities(graph, source, "X", prior, groups=group_probabilities)
    names = output_names(source.space.names[: source.n_targets])
    outputs = []
    for (label, probabilities), values, share in zip(names, source.space.values, computed.targets, strict=False):
        graph.add("Identity", share, output=probabilities)
        best = graph.add("ArgMax", share, axis=1, keepdims=0)
        classes = graph.values(values)
        graph.add("Gather", classes, best, output=label)
        kind = graph.constants[-1].data_type
        outputs += [helper.make_tensor_value_info(label, kind, ["N"])]
        outputs += [helper.make_tensor_value_info(probabilities, graph.element, ["N", len(values)])]
    if computed.groups is not None:
        graph.add("Identity", computed.groups, output="group_probabilities")
        outputs += [helper.make_tensor_value_info("group_probabilities", graph.element, ["N", n_groups])]
    inputs = [helper.make_tensor_value_info("X", graph.element, ["N", len(source.feature_mean)])]
    if not fixed_prior:  # it is a constant as well, which makes the input optional
        inputs += [helper.make_tensor_value_info("prior", graph.element, [n_groups])]
    _check_size(graph)
    model = helper.make_model(
        helper.make_graph(graph.nodes, "compshift", inputs, outputs, graph.constants),
        producer_name="compshift",
        producer_version=__version__,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    helper.set_model_props(model, {"compshift": json.dumps(_metadata(source, names), ensure_ascii=False)})
    onnx.checker.check_model(model)
    return model


def output_names(targets: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the names of each target's label and probabilities, with the name of the target if there are several."""
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
        "format_version": METADATA_VERSION,
        "compshift_version": __version__,
        "names": list(space.names),
        "values": [list(values) for values in space.values],
        "targets": {
            target: {"label": label, "probabilities": probabilities}
            for target, (label, probabilities) in zip(space.names, names, strict=False)
        },
        "groups": "all" if len(groups) == space.n_groups else groups.tolist(),
        "feature_names": None if source.feature_names is None else list(source.feature_names),
    }


def _check_size(graph: Nodes) -> None:
    """Check that the arrays fit into one ONNX file."""
    size = sum(len(array.raw_data) for array in graph.constants)
    if size > MAX_ONNX_BYTES:
        raise InputError(
            f"the model has {size / 1e9:.1f} GB, and an ONNX file holds 2: use fewer features, or a support of fewer "
            "groups"
        )
