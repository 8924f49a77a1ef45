"""A whole ONNX model of CRM: inputs, outputs, labels, and what they mean. Needs ``compshift[onnx]``."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import onnx
from onnx import helper

from compshift import __version__
from compshift._checks import check_flag
from compshift._errors import InputError
from compshift.estimators.onnx_graph import add_probabilities
from compshift.estimators.onnx_nodes import Nodes
from compshift.estimators.onnx_source import OnnxSource

FORMAT_VERSION = 1
OPSET = 17
IR_VERSION = 8
"""Both of 2022: what runtimes of the last years read."""

MAX_GROUP_COLUMNS = 1 << 16
"""With more groups than this, a probability for each is more than a graph should give."""

MAX_BYTES = (1 << 31) - (1 << 20)
"""What one ONNX file can hold, less a little for all that is not an array."""


def onnx_model(
    source: OnnxSource, *, dtype: str = "float32", group_probabilities: bool = False, fixed_prior: bool = False
) -> onnx.ModelProto:
    """The model: ``X`` and, unless it is fixed, ``prior`` in; labels and probabilities of the targets out."""
    for flag, name in ((group_probabilities, "group_probabilities"), (fixed_prior, "fixed_prior")):
        check_flag(flag, name)
    n_groups = len(source.candidates.groups)
    if group_probabilities and n_groups > MAX_GROUP_COLUMNS:
        raise InputError(
            f"the model has {n_groups} groups, and group probabilities are given for {MAX_GROUP_COLUMNS} at most: "
            "leave them out, or fit with a support of fewer groups"
        )
    graph = Nodes(dtype)
    prior = graph.numbers(np.exp(source.log_prior), "prior")
    found = add_probabilities(graph, source, "X", prior, groups=group_probabilities)
    names = output_names(source.space.names[: source.n_targets])
    outputs = []
    for (label, probabilities), values, share in zip(names, source.space.values, found.targets, strict=False):
        graph.add("Identity", share, output=probabilities)
        best = graph.add("ArgMax", share, axis=1, keepdims=0)
        classes = graph.values(values)
        graph.add("Gather", classes, best, output=label)
        kind = graph.constants[-1].data_type
        outputs += [helper.make_tensor_value_info(label, kind, ["N"])]
        outputs += [helper.make_tensor_value_info(probabilities, graph.element, ["N", len(values)])]
    if found.groups is not None:
        graph.add("Identity", found.groups, output="group_probabilities")
        outputs += [helper.make_tensor_value_info("group_probabilities", graph.element, ["N", n_groups])]
    inputs = [helper.make_tensor_value_info("X", graph.element, ["N", len(source.feature_mean)])]
    if not fixed_prior:  # an input that has a value already may be left out
        inputs += [helper.make_tensor_value_info("prior", graph.element, [n_groups])]
    _check_size(graph)
    model = helper.make_model(
        helper.make_graph(graph.nodes, "compshift", inputs, outputs, graph.constants),
        producer_name="compshift",
        producer_version=__version__,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    helper.set_model_props(model, {"compshift": json.dumps(_meaning(source, names), ensure_ascii=False)})
    onnx.checker.check_model(model)
    return model


def output_names(targets: tuple[str, ...]) -> list[tuple[str, str]]:
    """Names of each target's outputs: ``label`` and ``probabilities``, with the target's name if there are several."""
    if len(targets) == 1:
        return [("label", "probabilities")]
    plain = [re.sub(r"\W", "_", name) for name in targets]
    if len(set(plain)) < len(plain):
        plain = [f"{name}_{number}" for number, name in enumerate(plain, start=1)]
    return [(f"label_{name}", f"probabilities_{name}") for name in plain]


def _meaning(source: OnnxSource, names: list[tuple[str, str]]) -> dict[str, Any]:
    """What the numbers stand for, as JSON."""
    space, groups = source.space, source.candidates.groups
    return {
        "format_version": FORMAT_VERSION,
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
    """Refuse what one file cannot hold."""
    size = sum(len(array.raw_data) for array in graph.constants)
    if size > MAX_BYTES:
        raise InputError(
            f"the model has {size / 1e9:.1f} GB, and an ONNX file holds 2: use fewer features, or a support of fewer "
            "groups"
        )
