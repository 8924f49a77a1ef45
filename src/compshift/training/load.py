"""Read any model that compshift wrote."""

from os import PathLike
from typing import Any

from compshift._files import check_path


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
        from compshift.training.trained import TrainedClassifier

        return TrainedClassifier.load(path, device)
    from compshift.estimators.load import load as load_file

    return load_file(path)
