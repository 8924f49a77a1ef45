"""Read any fitted classifier that compshift saved.

Read any model that compshift wrote.
"""

from os import PathLike
from typing import Any

from compshift._errors import InputError, listing
from compshift._files import check_path
from compshift.crm import io as model_file
from compshift.crm.classifier import CRMClassifier

KINDS: dict[str, Any] = {"CRMClassifier": CRMClassifier}


def load_file(path: str | PathLike[str]) -> Any:
    """The fitted classifier in a model file. Nothing in the file is ever executed."""
    kind, header, arrays = model_file.read(path)
    if kind not in KINDS:
        raise InputError(f"{str(path)!r} holds a {kind!r}: this release can load {listing(KINDS)}")
    try:
        return KINDS[kind]._from_file(header, arrays)
    except InputError as error:
        raise InputError(f"{str(path)!r} cannot be loaded: {error}") from None


def load(path: str | PathLike[str], device: Any = "cpu") -> Any:
    """The fitted classifier in a model file, or the trained one in the folder of a run, on a device.

    Nothing in a file is ever executed. A run needs ``compshift[torch]``.

    Parameters
    ----------
    path : str or path
        A file that ``save`` or ``compshift fit`` wrote, or the folder of a run of ``compshift train``.
    device : default="cpu"
        Where the network of a run goes; a fitted model has none.

    Returns
    -------
    CRMClassifier or TrainedClassifier
        Of a ``CRMClassifierCV``, the ``CRMClassifier`` that has what was chosen.

    Examples
    --------
    ``clf.save("birds.safetensors")``, and elsewhere ``clf = compshift.load("birds.safetensors")``.
    """
    if check_path(path).is_dir():
        from compshift.training.classifier import TrainedClassifier

        return TrainedClassifier.load(path, device)

    return load_file(path)
