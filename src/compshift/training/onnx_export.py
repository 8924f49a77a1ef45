"""Write any CRM model, fitted or trained, as one ONNX file."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compshift._errors import InputError, an, check_name
from compshift._files import check_path, check_target, replacing

if TYPE_CHECKING:
    from compshift.estimators.onnx_source import OnnxSource

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
    from compshift.estimators.onnx_model import onnx_model

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
    from compshift.estimators.fitted_crm import FittedCRM
    from compshift.estimators.onnx_source import classifier_source

    if isinstance(model, FittedCRM):
        return classifier_source(model, prior)
    if "compshift.nn.head" in sys.modules:  # else nobody can have made a head
        from compshift.nn.head import AdditiveEnergyHead
        from compshift.nn.onnx_source import head_source, trained_source

        if isinstance(model, AdditiveEnergyHead):
            return head_source(model, prior)
        trained = sys.modules.get("compshift.training.trained")
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
