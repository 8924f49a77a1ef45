"""Training of networks by any method: settings, training loop and trained classifiers. Needs ``compshift[torch]``."""

from typing import TYPE_CHECKING

from compshift._lazy import lazy_names

if TYPE_CHECKING:
    from compshift.training.classifier import TrainedClassifier as TrainedClassifier
    from compshift.training.finetuning import train as train
    from compshift.training.settings import Settings as Settings

__all__ = ["Settings", "TrainedClassifier", "train"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Settings": "compshift.training.settings",
        "TrainedClassifier": "compshift.training.classifier",
        "train": "compshift.training.finetuning",
    },
)
