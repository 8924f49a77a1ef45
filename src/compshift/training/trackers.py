"""Experiment trackers of a training run, such as TensorBoard and Weights & Biases, by accelerate's trackers."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compshift._errors import InputError, an, check_name, reason
from compshift.training.folder import read_json, write_json
from compshift.training.progress import ValidationStep

if TYPE_CHECKING:
    from accelerate import Accelerator

PROJECT = "compshift"
"""Project, or experiment, in which trackers file the runs."""

PACKAGES = {"tensorboard": "'compshift[tensorboard]'", "mlflow": "'compshift[mlflow]'", "comet_ml": "comet-ml"}
"""Package of each tracker whose name differs from that of its package."""

OWN_ID = {"mlflow": ("info", "run_id"), "aim": ("hash",), "clearml": ("id",)}
"""Trackers that choose a run's id themselves, and the attributes that lead to it."""

CONTINUED_BY = {"mlflow": "run_id", "aim": "run_hash", "clearml": "continue_last_task"}
"""Argument by which each of these trackers continues the run with an id."""


def check_trackers(trackers: Any) -> list[Any]:
    """Return a list of names and of accelerate's ``GeneralTracker`` objects, after checking that each can be used."""
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker, get_available_trackers
    from accelerate.utils import LoggerType

    listed = [trackers] if isinstance(trackers, str | GeneralTracker) else trackers
    if not isinstance(listed, Sequence):
        raise InputError(f"trackers is {an(type(trackers).__name__)}: pass a list of names, such as ['tensorboard']")
    for tracker in listed:
        if isinstance(tracker, GeneralTracker):
            continue
        check_name("tracker", tracker, sorted(LOGGER_TYPE_TO_CLASS))
        if tracker in LoggerType.list() and tracker not in map(str, get_available_trackers()):
            raise InputError(f"{tracker} is not installed: pip install {PACKAGES.get(tracker, tracker)}")
    return list(dict.fromkeys(listed))


class Trackers:
    """Logs of one run in all trackers that an accelerator was made with; only the main process logs.

    ``folder`` keeps the logs of trackers that write files, and the run's ids in the others, so that a resumed run
    continues them.
    """

    def __init__(self, accelerator: Accelerator, folder: Path) -> None:
        self.accelerator, self.folder = accelerator, folder

    def start(self, step: int, config: Mapping[str, Any]) -> None:
        """Start the run in every tracker, or continue it after ``step``."""
        if not (self.accelerator.log_with and self.accelerator.is_main_process):
            return
        path = self.folder / "ids.json"
        ids = read_json(path) if path.exists() else {"run": uuid.uuid4().hex}
        values = {name: value if isinstance(value, int | float | str) else str(value) for name, value in config.items()}
        self.folder.mkdir(exist_ok=True)
        try:
            self.accelerator.init_trackers(PROJECT, init_kwargs=_continuing(ids, self.folder, step))
            for tracker in self.accelerator.trackers:
                if tracker.name not in ids:
                    tracker.store_init_configuration(values)
                    ids[tracker.name] = _own_id(tracker)
        except Exception as error:  # trackers raise errors of many types, for example without a network or a key
            raise InputError(
                f"a tracker cannot start ({type(error).__name__}: {reason(error)}): check its settings, or leave it out"
            ) from error
        write_json(path, ids)

    def log(self, evaluation: ValidationStep) -> None:
        """Log an evaluation."""
        self.accelerator.log(evaluation.scalars(), step=evaluation.step)

    def finish(self) -> None:
        """Close the trackers."""
        for tracker in self.accelerator.trackers:  # end_training would also end the caller's process group
            tracker.finish()
        self.accelerator.trackers = []


def _continuing(ids: Mapping[str, str], folder: Path, step: int) -> dict[str, dict[str, Any]]:
    """Return the arguments with which each tracker starts the run with these ids, or continues it after ``step``."""
    run, name = ids["run"], folder.parent.name
    named: dict[str, dict[str, Any]] = {"mlflow": {"run_name": name}, "clearml": {"task_name": name}}
    known = {name: {argument: ids[name]} for name, argument in CONTINUED_BY.items() if name in ids}
    return (
        named
        | known
        | {
            "tensorboard": {"purge_step": step + 1},
            "wandb": {"id": run, "resume": "allow", "name": name},
            "comet_ml": {"experiment_key": run},
            "swanlab": {"id": run[:21], "resume": "allow"},  # swanlab's ids have 21 characters
            "trackio": {"name": run, "resume": "allow"},
            "dvclive": {"dir": str(folder / "dvclive"), "resume": True},
        }
    )


def _own_id(tracker: Any) -> str:
    """Return the id that a tracker chose for its run, or "" if it does not choose ids."""
    if tracker.name not in OWN_ID:
        return ""
    found = tracker.tracker
    for name in OWN_ID[tracker.name]:
        found = getattr(found, name)
    return str(found)
