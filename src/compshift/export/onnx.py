"""A whole ONNX model of CRM: inputs, outputs, labels, and what they mean. Needs ``compshift[onnx]``.

The head as what a graph of CRM is made from.

Write any CRM model, fitted or trained, as one ONNX file.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper
from torch import Tensor, nn

from compshift import __version__
from compshift._checks import check_flag
from compshift._errors import InputError, an, check_name
from compshift._files import check_path, check_target, replacing
from compshift.core.arrays import FloatArray
from compshift.crm.classifier import CRMClassifier
from compshift.export.graph import Layer, Nodes, OnnxSource, add_probabilities, centred, classifier_source
from compshift.nn.head import AdditiveEnergyHead
from compshift.nn.tensors import to_numpy

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


def trained_source(head: AdditiveEnergyHead, clf: CRMClassifier, prior: Any = None) -> OnnxSource:
    """A trained head, with the prior and the biases of its classifier of features."""
    return replace(classifier_source(clf, prior), feature_mean=np.zeros(head.in_features), networks=_networks(head))


def head_source(head: AdditiveEnergyHead, prior: Any = None) -> OnnxSource:
    """A head whose biases are known, hidden layers included; the first attribute is the target."""
    log_weight = _array(head.log_score("uniform"))  # one constant more than −B*, and a constant cancels
    return OnnxSource(
        candidates=head.candidates,
        n_targets=1,
        feature_mean=np.zeros(head.in_features),
        networks=_networks(head),
        log_prior=head.candidates.log_prior("uniform" if prior is None else to_numpy(prior, "prior")),
        log_weight=log_weight,
    )


def _networks(head: AdditiveEnergyHead) -> tuple[tuple[Layer, ...], ...]:
    """The energies of each attribute."""
    return tuple(_network(layers) for layers in head.layers)


def _network(layers: nn.Module) -> tuple[Layer, ...]:
    """Layers of one attribute's energies."""
    chain = list(layers) if isinstance(layers, nn.Sequential) else [layers]
    *hidden, last = [_layer(module) for module in chain if isinstance(module, nn.Linear)]
    return (*hidden, last._replace(weights=centred(last.weights, (len(last.weights),))))


def _layer(linear: nn.Linear) -> Layer:
    weights = _array(linear.weight)
    return Layer(weights, np.zeros(len(weights)) if linear.bias is None else _array(linear.bias))


def _array(values: Tensor) -> FloatArray:
    return np.asarray(values.detach().cpu().double().numpy())


PRECISIONS = ("float32", "float64")


@dataclass(frozen=True)
class OnnxFile:
    """What was written. An axis of shape None is that of the samples."""

    path: Path
    size: int  # bytes
    inputs: Mapping[str, tuple[int | None, ...]]
    outputs: Mapping[str, tuple[int | None, ...]]


def export_onnx(
    model: Any,
    path: str | PathLike[str],
    *,
    prior: Any = None,
    group_probabilities: bool = False,
    fixed_prior: bool = False,
    dtype: Any = "float32",
) -> OnnxFile:
    """Write a model as one ONNX file, which predicts without compshift, scikit-learn or PyTorch.

    Its input ``X`` (N, p) holds features, in any number of rows. Its outputs are ``label`` (N,), the predicted values
    themselves (int64, text, booleans or float64), and ``probabilities`` (N, d); if there are several targets, such a
    pair for each, as ``label_bird`` and ``probabilities_bird``. A second input ``prior`` (g,) may be left out: then it
    is the prior in force. It holds the probability of each group in the order of ``groups_``, and need not sum to 1.
    The entry ``compshift`` of the file's metadata tells attributes, values and the order of the groups, as JSON.

    Parameters
    ----------
    model : CRMClassifier, CRMClassifierCV, AdditiveEnergyHead or TrainedClassifier
        Fitted, or trained by CRM. Of the latter two the head is written, hidden layers included: ``X`` is what the
        backbone gives.
    path : path
        Where to: a name that ends in ``.onnx``. A file that is there is replaced.
    prior : optional
        Prior that the file starts from, as for ``set_prior``; by default the one in force (of a head: ``"uniform"``).
    group_probabilities : bool, default=False
        Whether there is a further output, ``group_probabilities`` (N, g), in the order of ``groups_``.
    fixed_prior : bool, default=False
        Leave out the input ``prior``. With thousands of groups a sample by itself is then predicted faster.
    dtype : "float32" or "float64", or the like of NumPy, default="float32"
        Precision of inputs, outputs and all that is between them. With 32 bits probabilities are those of the
        classifier for the same features within about 1e-6. Features far from zero lose digits before they get here.

    Needs ``compshift[onnx]``.

    Examples
    --------
    >>> import numpy as np, onnxruntime, tempfile
    >>> from compshift import CRMClassifier
    >>> rng = np.random.default_rng(0)
    >>> z = np.repeat([[0, 1], [1, 0], [1, 1]], 500, axis=0)
    >>> X = rng.normal(size=z.shape) + 4 * z
    >>> clf = CRMClassifier().fit(X, z[:, 0], attributes=z[:, 1])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = export_onnx(clf, f"{folder}/model.onnx")
    ...     session = onnxruntime.InferenceSession(f"{folder}/model.onnx")
    >>> label, probabilities = session.run(None, {"X": np.array([[0, 0], [4, 4]], dtype=np.float32)})
    >>> label.tolist()
    [0, 1]
    """
    _check_order(model, path)
    check_onnx_path(path)
    dtype = _precision(dtype)
    source = _source(model, prior)

    proto = onnx_model(source, dtype=dtype, group_probabilities=group_probabilities, fixed_prior=fixed_prior)
    content = proto.SerializeToString()
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return OnnxFile(Path(path), len(content), _shapes(proto.graph.input), _shapes(proto.graph.output))


def _check_order(model: Any, path: Any) -> None:
    """Refuse a path that is none, above all a model in its place."""
    if isinstance(path, str | PathLike):
        return
    what = an(type(path).__name__)
    if isinstance(model, str | PathLike):
        raise InputError(
            f"the first argument is {fspath(model)!r} and the second {what}: pass the model first, then the path, as "
            f"in export_onnx(model, {fspath(model)!r})"
        )
    raise InputError(f"path is {what}: pass the path of a file, as in 'model.onnx'")


def _precision(dtype: Any) -> str:
    """The name of what NumPy takes for 32 or 64 bits."""
    name = dtype
    with suppress(TypeError, ValueError, SyntaxError):
        name = dtype if dtype is None else np.dtype(dtype).name  # which takes None for 64 bits
    check_name("dtype", name, PRECISIONS)
    return str(name)


def check_onnx_path(path: str | PathLike[str], *sources: str | PathLike[str] | None) -> None:
    """Refuse to go on without the package onnx, or to a path that a model cannot be written to."""
    try:
        import onnx  # noqa: F401
    except ModuleNotFoundError:
        raise InputError('ONNX files need the package onnx: pip install "compshift[onnx]"') from None
    if check_path(path).suffix.lower() != ".onnx":
        raise InputError(f"{Path(path).name!r} does not end in '.onnx': name the file so, as in 'model.onnx'")
    check_target(path, *sources)


def _source(model: Any, prior: Any) -> OnnxSource:
    """What the graph is made from, whatever the model is."""
    from compshift.crm.classifier import CRMClassifier
    from compshift.export.graph import classifier_source

    if isinstance(model, CRMClassifier):
        return classifier_source(model, prior)
    if "compshift.nn.head" in sys.modules:  # else nobody can have made a head
        from compshift.nn.head import AdditiveEnergyHead

        if isinstance(model, AdditiveEnergyHead):
            return head_source(model, prior)
        trained = sys.modules.get("compshift.training.classifier")
        if trained is not None and isinstance(model, trained.TrainedClassifier):
            if isinstance(model.model.head, AdditiveEnergyHead):
                return trained_source(model.model.head, model.head_, prior)
            raise InputError(
                f"the model was trained by {model.method.name!r}, which predicts classes alone: those that CRM "
                "trained can be written as ONNX"
            )
    given = f"the class {model.__name__}" if isinstance(model, type) else an(type(model).__name__)
    stored = f", for example compshift.load({fspath(model)!r})" if isinstance(model, str | PathLike) else ""
    raise InputError(
        f"{given} cannot be written as ONNX: pass a fitted CRMClassifier or CRMClassifierCV, an AdditiveEnergyHead, or "
        f"a TrainedClassifier of CRM{stored}"
    )


def _shapes(values: Any) -> dict[str, tuple[int | None, ...]]:
    """Shape of each input or output."""
    return {
        value.name: tuple(
            None if axis.HasField("dim_param") else axis.dim_value for axis in value.type.tensor_type.shape.dim
        )
        for value in values
    }
