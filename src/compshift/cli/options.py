"""Options that several commands share.

What happens when a command is told to end: it cleans up, says one line, and ends as shells expect.
"""

from __future__ import annotations

import csv
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compshift._errors import InputError, check_name, listing
from compshift._files import check_path

if TYPE_CHECKING:
    from compshift.core.groups import GroupSpace
    from compshift.data.dataset import GroupedDataset

Model = Annotated[
    Path,
    typer.Argument(help="Model file that `compshift fit` wrote, or folder of `compshift train`.", show_default=False),
]
Prior = Annotated[
    str | None,
    typer.Option(
        help="Prior over groups: uniform, hull, train, or a CSV file with a column per attribute and 'prior'."
    ),
]
Root = Annotated[
    Path | None,
    typer.Option(
        help="Folder of the download, or the one that the image paths of a table start from.",
        show_default="the table's folder",
    ),
]
Target = Annotated[
    str, typer.Option(help="What to predict: one attribute, or several separated by commas.", show_default=False)
]
Attributes = Annotated[
    str, typer.Option(help="Further attributes, separated by commas, known in training only.", show_default=False)
]
PathColumn = Annotated[
    str | None, typer.Option("--path", metavar="COLUMN", help="Column of image files.", show_default=False)
]
TextColumns = Annotated[
    str | None,
    typer.Option("--text", metavar="COLUMN", help="Column of texts, or two for pairs.", show_default=False),
]
FeatureColumns = Annotated[
    str | None,
    typer.Option("--features", metavar="COLUMNS", help="Columns of numbers, separated by commas.", show_default=False),
]
Shares = Annotated[
    str | None,
    typer.Option(help="Split a table at random within groups, as in 0.7,0.1,0.2 for train, val, test."),
]
SplitColumn = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="Column of train, val, test.", show_default="split, if there is one"),
]
Backbone = Annotated[
    str | None,
    typer.Option(
        help="efficientnet-lite0, minilm, a folder, or a model of the Hugging Face hub.",
        show_default="efficientnet-lite0 for images, minilm for texts",
    ),
]
MovedBackbone = Annotated[
    str | None,
    typer.Option("--backbone", help="Where the model's own backbone lies now, if it was moved.", show_default=False),
]
BatchSize = Annotated[int, typer.Option(help="Samples in a forward pass.", min=1)]
Workers = Annotated[
    int | None, typer.Option(help="Processes that read images.", min=0, show_default="cores less one, 4 at most")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps …")]
SkipBroken = Annotated[
    bool, typer.Option("--skip-broken", metavar="", help="Leave out images that cannot be read, and count them.")
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", metavar="", help="Replace features that another backbone made.")
]
Json = Annotated[bool, typer.Option("--json", metavar="", help="Print the result as JSON.")]


SPLIT_NAMES = ("train", "val", "test")
PRIORS = ("uniform", "hull", "train")


def chosen_part(data: GroupedDataset, split: str | None, default: str) -> tuple[GroupedDataset, str]:
    """The rows of the split that was asked for, or of the default one if there are any, else all; and its name."""
    if split is None:
        split = default if default in data.splits else "all"
    elif split in SPLIT_NAMES and data.split is None:
        raise InputError(f"--split is {split!r}, and there are no splits: leave it out, or use 'all'")
    return data.part(split), split


def names(text: str, option: str) -> list[str]:
    """The names in a comma-separated option; one that has a comma or begins with a blank is put in double quotes."""
    if '"' in text:
        try:
            found = [name for name in next(csv.reader([text], skipinitialspace=True), []) if name]
        except csv.Error as error:
            raise InputError(f"{option} is {text!r} ({error}): pass names, separated by commas") from None
    else:
        found = [name.strip() for name in text.split(",") if name.strip()]
    if not found:
        raise InputError(f"{option} is empty: pass one or more names, separated by commas")
    return found


def check_prior(text: str) -> None:
    """Refuse what is neither a prior's name nor a CSV file."""
    if not text.lower().endswith(".csv"):
        check_name("prior", text, (*PRIORS, "FILE.csv"))
    elif not check_path(text).is_file():
        raise InputError(f"there is no file {text!r}: pass the path of a CSV file, or one of {listing(PRIORS)}")


def read_prior(text: str, space: GroupSpace) -> Any:
    """A prior's name as it is, or a CSV file's content as a mapping from values to probabilities."""
    check_prior(text)
    if text in PRIORS:
        return text
    import pandas as pd

    from compshift.data.dataset import as_known

    path = check_path(text)
    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False, skipinitialspace=True)
    except (OSError, ValueError) as error:
        raise InputError(f"the prior {text!r} cannot be read as CSV ({error})") from None
    absent = [name for name in (*space.names, "prior") if name not in frame.columns]
    if absent:
        raise InputError(f"{text!r} has no column {listing(absent)}: its columns are {listing(frame.columns)}")
    prior: dict[tuple[Any, ...], float] = {}
    for row, record in enumerate(frame.to_dict("records")):
        key = tuple(as_known(record[name], known) for name, known in zip(space.names, space.values, strict=True))
        if key in prior:
            raise InputError(f"{text!r} lists {key} twice: give each group one row")
        try:
            prior[key] = float(record["prior"])
        except ValueError:
            raise InputError(f"{text!r}: the prior of row {row} is {record['prior']!r}, not a number") from None
    return prior


SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(SystemExit):
    """Told to end by a signal; the code is the one that shells give."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.words = "interrupted: files are whole, or as they were before"


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn signals into ``Interrupted`` inside; those that are ignored, as under nohup, stay so."""
    owner = os.getpid()

    def stop(number: int, _: FrameType | None) -> None:
        if os.getpid() != owner:  # a fork, which has no line to say
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        raise Interrupted(number)

    before: dict[int, Any] = {}
    try:
        for number in SIGNALS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, stop)
        yield
    finally:
        for changed, handler in before.items():
            signal.signal(changed, handler)


@contextmanager
def resumable() -> Iterator[None]:
    """Say that nothing is lost when the work inside is interrupted."""
    try:
        yield
    except (KeyboardInterrupt, Interrupted) as error:
        stop = error if isinstance(error, Interrupted) else Interrupted(signal.SIGINT)
        stop.words = "interrupted: the same command goes on from here"
        raise stop from None
