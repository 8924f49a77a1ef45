"""export_onnx: write any CRM model, fitted or trained, as one ONNX file.

``export.sources`` reads the arrays of the model, ``export.graph`` builds a graph from them, with ``export.basis`` for
trees and mixed columns, and ``export.model`` adds inputs, outputs and metadata. The package onnx is imported only when
a model is exported.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np

from compshift._checks import check_flag
from compshift._errors import InputError, an, check_name
from compshift._files import check_path, check_target, replacing
from compshift.export.sources import onnx_source


@dataclass(frozen=True)
class OnnxFile:
    """An ONNX file that was written.

    Attributes
    ----------
    path : Path
        Path of the file.
    size : int
        Size of the file in bytes.
    inputs, outputs : mapping of str to tuple
        Shape of each input and output; None stands for the number of samples.
    """

    path: Path
    size: int
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

    The input ``X`` (N, p) holds features, with any number of rows. For a ``CRMBoostingClassifier``, NaN stands for a
    missing value, and a category is the number of its position (0, 1, …) in the list of its column; NaN also stands for
    a category that training lacks. The outputs are ``label`` (N,), the predicted values
    themselves (int64, text, booleans or float64), and ``probabilities`` (N, d). With several targets there is one such
    pair per target, for example ``label_bird`` and ``probabilities_bird``. A second input ``prior`` (g,) holds the
    probability of each group in the order of ``groups_``. It need not sum to 1; it is optional and defaults to the
    prior at export. There is no input for attributes that are known in use: to predict rows with the same known values,
    pass a prior that is 0 on the groups that disagree. The entry ``compshift`` of the file's metadata is JSON with the
    attributes, values and order of the groups, the names of the features and, for mixed columns, the list
    ``categories``: the categories of each column, or null if it holds numbers.

    Exporting needs ``compshift[onnx]``. Files with boosted trees use the operator ``TreeEnsemble`` of ``ai.onnx.ml`` 5,
    which onnxruntime has since version 1.21.

    Parameters
    ----------
    model : CRMClassifier, CRMClassifierCV, CRMBoostingClassifier, Pipeline, AdditiveEnergyHead or TrainedClassifier
        A fitted model, or one trained by CRM. A pipeline may have a ``StandardScaler`` before a ``CRMClassifier``,
        which becomes part of the weights. For the latter two the head is written, hidden layers included; ``X`` is then
        the output of the backbone.
    path : str or path
        Path of the file, ending in ``.onnx``. An existing file is replaced.
    prior : str, array or mapping, optional
        Prior of the exported model, as for ``set_prior``. Default: the model's current prior; for a head,
        ``"uniform"``.
    group_probabilities : bool, default=False
        Whether to add the output ``group_probabilities`` (N, g), in the order of ``groups_``.
    fixed_prior : bool, default=False
        Whether to leave out the input ``prior``. With thousands of groups, this makes predicting single samples faster.
    dtype : "float32", "float64" or a NumPy dtype, default="float32"
        Precision of inputs, outputs and all computations. In float32, probabilities agree with those of the
        classifier for the same features within about 1e-6. Features far from zero lose precision when they are rounded
        to float32.

    Returns
    -------
    OnnxFile
        Path, size, inputs and outputs of the file.

    Raises
    ------
    InputError
        If the package onnx is missing, the model cannot be exported, or the file cannot be written.

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
    _check_argument_order(model, path)
    check_onnx_path(path)
    dtype = _precision(dtype)
    source = onnx_source(model, prior)
    for flag, name in ((group_probabilities, "group_probabilities"), (fixed_prior, "fixed_prior")):
        check_flag(flag, name)
    from compshift.export.model import onnx_model

    proto = onnx_model(source, dtype=dtype, group_probabilities=group_probabilities, fixed_prior=fixed_prior)
    content = proto.SerializeToString()
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return OnnxFile(Path(path), len(content), _shapes(proto.graph.input), _shapes(proto.graph.output))


def _check_argument_order(model: Any, path: Any) -> None:
    """Check that ``path`` is a path; if the two arguments are swapped, say so."""
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
    """Return "float32" or "float64" for a dtype passed as a name or a NumPy dtype; raise for any other."""
    name = dtype
    with suppress(TypeError, ValueError, SyntaxError):
        name = dtype if dtype is None else np.dtype(dtype).name  # np.dtype(None) would be float64
    check_name("dtype", name, ("float32", "float64"))
    return str(name)


def check_onnx_path(path: str | PathLike[str], *sources: str | PathLike[str] | None) -> None:
    """Check that the package onnx is installed, and that a model can be written to the path.

    ``sources`` are files that must not be overwritten, because they are read; None is ignored.
    """
    try:
        import onnx  # noqa: F401
    except ModuleNotFoundError:
        raise InputError('ONNX files need the package onnx: pip install "compshift[onnx]"') from None
    if check_path(path).suffix.lower() != ".onnx":
        raise InputError(f"{Path(path).name!r} does not end in '.onnx': choose a name that does, as in 'model.onnx'")
    check_target(path, *sources)


def _shapes(values: Any) -> dict[str, tuple[int | None, ...]]:
    """Return the shape of each input or output of a graph."""
    return {
        value.name: tuple(
            None if axis.HasField("dim_param") else axis.dim_value for axis in value.type.tensor_type.shape.dim
        )
        for value in values
    }
