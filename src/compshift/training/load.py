"""Read any model that compshift wrote."""

from os import PathLike
from typing import Any

from compshift._files import check_path


def load(path: str | PathLike[str], device: Any = "cpu") -> Any:
    """The fitted classifier in a model file, or the trained one in the folder of a run, on a device.

    Nothing in a file is ever executed. A run needs ``compshift[torch]``.
    """
    if check_path(path).is_dir():
        from compshift.training.trained import TrainedClassifier

        return TrainedClassifier.load(path, device)
    from compshift.estimators.load import load as load_file

    return load_file(path)
