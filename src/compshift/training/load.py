"""``load``: read a model that compshift wrote, either a model file or the folder of a training run."""

from os import PathLike
from typing import Any

from compshift._errors import InputError
from compshift._files import check_path
from compshift.crm import io as model_file
from compshift.crm.boosting import CRMBoostingClassifier
from compshift.crm.classifier import CRMClassifier


def load_file(path: str | PathLike[str]) -> Any:
    """Read the fitted classifier in a model file, without running any code from it."""
    kind, header, arrays = model_file.read(path)
    kinds: dict[str, Any] = {"CRMClassifier": CRMClassifier, "CRMBoostingClassifier": CRMBoostingClassifier}
    if kind not in kinds:
        raise InputError(
            f"{str(path)!r} holds a {kind!r}, but this release can only load a CRMClassifier or a "
            "CRMBoostingClassifier: use the release that wrote the file"
        )
    try:
        return kinds[kind]._from_file(header, arrays)
    except InputError as error:
        raise InputError(f"{str(path)!r} cannot be loaded: {error}") from None


def load(path: str | PathLike[str], device: Any = "cpu") -> Any:
    """Read the fitted classifier in a model file, or the trained classifier in the folder of a run.

    No code from the file is run. The folder of a run needs ``compshift[torch]``.

    Parameters
    ----------
    path : str or path
        A file written by ``save`` or ``compshift fit``, or a folder written by ``train`` or ``compshift train``.
    device : str or torch.device, default="cpu"
        Device of a trained network; ignored for model files.

    Returns
    -------
    CRMClassifier, CRMBoostingClassifier or TrainedClassifier
        The model. A saved ``CRMClassifierCV`` is loaded as the ``CRMClassifier`` with the selected settings.

    Raises
    ------
    InputError
        If the file is damaged, or not written by compshift.

    Examples
    --------
    >>> import compshift
    >>> clf = compshift.CRMClassifier().fit([[0.0], [1.0], [2.0]], [0, 1, 1], attributes=[0, 0, 1])
    >>> clf.save("birds.safetensors")  # doctest: +SKIP
    >>> clf = compshift.load("birds.safetensors")  # doctest: +SKIP
    """
    if check_path(path).is_dir():
        from compshift.training.classifier import TrainedClassifier

        return TrainedClassifier.load(path, device)

    return load_file(path)
