"""Models in MLflow: a flavour of the pickle-free model files that ``mlflow.pyfunc`` loads. Needs ``compshift[mlflow]``.

``mlflow.sklearn`` is no alternative: it writes models with skops or pickle, which know nothing of these files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from compshift import __version__
from compshift._errors import InputError, check_name
from compshift._files import check_path

__all__ = ["load_model", "log_model", "save_model"]

METHODS = ("predict", "predict_proba", "predict_log_proba", "predict_group", "group_log_proba", "explain")
"""Methods of a model that the parameter ``method`` of MLflow's ``predict`` may name; the first is the default."""


def save_model(
    model: Any,
    path: str | PathLike[str],
    *,
    input_example: Any = None,
    signature: Any = None,
    pip_requirements: list[str] | None = None,
    **options: Any,
) -> None:
    """Write a fitted model to a folder in MLflow's format.

    Parameters
    ----------
    model : CRMClassifier, CRMClassifierCV, CRMBoostingClassifier, Pipeline or TrainedClassifier
        A fitted model that ``compshift.save`` can write.
    path : path
        Folder to create.
    input_example : array, DataFrame or list, optional
        A few samples, stored with the model. The signature is inferred from them.
    signature : mlflow.models.ModelSignature, optional
        Types of the columns and of the predictions. Default: inferred from ``input_example``; without one, MLflow
        checks no columns.
    pip_requirements : list of str, optional
        Packages that the model needs. Default: this version of compshift, with the extras that the model needs.
    **options
        Further options of ``mlflow.pyfunc.save_model``, such as ``metadata``.

    Raises
    ------
    InputError
        If the model cannot be saved, or mlflow is not installed.

    Examples
    --------
    >>> import compshift as cs
    >>> clf = cs.CRMClassifier().fit([[0.0], [1.0], [2.0]], [0, 1, 1], attributes=[0, 0, 1])
    >>> cs.mlflow.save_model(clf, "birds")  # doctest: +SKIP
    """
    with _arguments(model, input_example, signature, pip_requirements) as arguments:
        _mlflow().pyfunc.save_model(path=str(check_path(path)), **arguments, **options)


def log_model(
    model: Any,
    name: str = "model",
    *,
    input_example: Any = None,
    signature: Any = None,
    pip_requirements: list[str] | None = None,
    **options: Any,
) -> Any:
    """Log a fitted model to the active run of MLflow, or to a new one.

    ``mlflow.pyfunc.load_model`` and MLflow's servers load it. Their ``predict`` takes ``params={"method":
    "predict_proba"}`` to call another method of the model.

    Parameters
    ----------
    model : CRMClassifier, CRMClassifierCV, CRMBoostingClassifier, Pipeline or TrainedClassifier
        A fitted model that ``compshift.save`` can write.
    name : str, default="model"
        Name of the model.
    input_example : array, DataFrame or list, optional
        A few samples, stored with the model. The signature is inferred from them.
    signature : mlflow.models.ModelSignature, optional
        Types of the columns and of the predictions. Default: inferred from ``input_example``; without one, MLflow
        checks no columns.
    pip_requirements : list of str, optional
        Packages that the model needs. Default: this version of compshift, with the extras that the model needs.
    **options
        Further options of ``mlflow.pyfunc.log_model``, such as ``registered_model_name``.

    Returns
    -------
    mlflow.models.model.ModelInfo
        Description of the logged model, with its ``model_uri``.

    Raises
    ------
    InputError
        If the model cannot be saved, or mlflow is not installed.

    Examples
    --------
    >>> import compshift as cs
    >>> clf = cs.CRMClassifier().fit([[0.0], [1.0], [2.0]], [0, 1, 1], attributes=[0, 0, 1])
    >>> info = cs.mlflow.log_model(clf, "birds", input_example=[[0.0], [1.0]])  # doctest: +SKIP
    >>> cs.mlflow.load_model(info.model_uri).set_prior("train")  # doctest: +SKIP
    """
    with _arguments(model, input_example, signature, pip_requirements) as arguments:
        return _mlflow().pyfunc.log_model(name=name, **arguments, **options)


def load_model(model_uri: str | PathLike[str]) -> Any:
    """Load a model that was logged or saved here, with all of its methods, without running any code from its files.

    Parameters
    ----------
    model_uri : str or path
        Address of the model, such as ``"models:/birds/1"`` or ``"runs:/…/model"``, or its folder.

    Returns
    -------
    CRMClassifier, CRMBoostingClassifier, Pipeline or TrainedClassifier
        The model, as ``compshift.load`` returns it.

    Raises
    ------
    InputError
        If it is a model of another library.

    Examples
    --------
    >>> import compshift as cs
    >>> clf = cs.mlflow.load_model("models:/birds/1")  # doctest: +SKIP
    """
    mlflow = _mlflow()
    flavour = mlflow.models.get_model_info(str(model_uri)).flavors.get("python_function", {})
    if flavour.get("loader_module") != __name__:
        raise InputError(
            f"{str(model_uri)!r} was not logged by compshift.mlflow: load it with mlflow.pyfunc.load_model"
        )
    return mlflow.pyfunc.load_model(str(model_uri)).get_raw_model()


class _PyFunc:
    """Wrapper that MLflow calls: its ``predict`` calls a method of the model."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def get_raw_model(self) -> Any:
        """Return the model."""
        return self.model

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> Any:
        """Call a method of the model, by default ``predict``, with samples in one of the forms that MLflow has."""
        known = [name for name in METHODS if hasattr(self.model, name)]
        method = (params or {}).get("method", METHODS[0])
        check_name("method", method, known)
        if getattr(self.model, "kind", "") in ("images", "text") and hasattr(model_input, "columns"):
            if model_input.shape[1] != 1:
                raise InputError(f"the samples have {model_input.shape[1]} columns: pass a single one")
            model_input = list(model_input.iloc[:, 0])
        found = getattr(self.model, method)(model_input)
        return found.to_frame() if method == "explain" else found  # a table, which MLflow's servers can send


def _load_pyfunc(path: str) -> _PyFunc:
    """Load a model for ``mlflow.pyfunc``, which calls this function by its name."""
    from compshift.training.load import load

    return _PyFunc(load(path))


@contextmanager
def _arguments(
    model: Any, input_example: Any, signature: Any, pip_requirements: list[str] | None
) -> Iterator[dict[str, Any]]:
    """Yield the arguments that ``mlflow.pyfunc`` takes for a model, whose file exists until the end of the block."""
    from compshift.training.load import needed_extra, save

    models = _mlflow().models
    extra = needed_extra(model)
    if signature is None:
        schema = {"params": {"method": METHODS[0]}}
        if input_example is None:
            signature = models.infer_signature(**schema)
        else:
            predicted = _PyFunc(model).predict(input_example)
            signature = models.infer_signature(input_example, predicted, **schema)
    with TemporaryDirectory(prefix="compshift-") as folder:
        path = Path(folder) / ("model" if hasattr(model, "head_") else "model.safetensors")
        save(model, path)
        yield {
            "loader_module": __name__,
            "data_path": str(path),
            "input_example": input_example,
            "signature": signature,
            "pip_requirements": pip_requirements or [f"compshift{f'[{extra}]' if extra else ''}=={__version__}"],
        }


def _mlflow() -> Any:
    """Return the package mlflow, which has the extra ``mlflow``."""
    try:
        import mlflow
        import mlflow.models
        import mlflow.pyfunc
    except ModuleNotFoundError:
        raise InputError("MLflow needs the package mlflow: pip install 'compshift[mlflow]'") from None
    return mlflow
