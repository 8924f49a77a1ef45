"""The one training loop. Needs ``compshift[torch]``."""

from typing import TYPE_CHECKING

from compshift._lazy import lazy_names

if TYPE_CHECKING:
    from compshift.training.loop import train as train
    from compshift.training.settings import Settings as Settings
    from compshift.training.trained import TrainedClassifier as TrainedClassifier

__all__ = ["Settings", "TrainedClassifier", "train"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Settings": "compshift.training.settings",
        "TrainedClassifier": "compshift.training.trained",
        "train": "compshift.training.loop",
    },
)
