"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compshift._errors import InputError, listing, unknown_name

if TYPE_CHECKING:
    from compshift.core.groups import GroupSpace

Model = Annotated[Path, typer.Argument(help="Model file that `compshift fit` wrote.", show_default=False)]
Prior = Annotated[
    str | None,
    typer.Option(
        help="Prior over groups: uniform, hull, train, or a CSV file with a column per attribute and 'prior'."
    ),
]
Json = Annotated[bool, typer.Option("--json", metavar="", help="Print the result as JSON.")]


PRIORS = ("uniform", "hull", "train")


def names(text: str, option: str) -> list[str]:
    """The names in a comma-separated option."""
    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found:
        raise InputError(f"{option} is empty: pass one or more column names, separated by commas")
    return found


def read_prior(text: str, space: GroupSpace) -> Any:
    """A prior's name as it is, or a CSV file's content as a mapping from values to probabilities."""
    if not text.endswith(".csv"):
        if text not in PRIORS:
            raise unknown_name("prior", text, (*PRIORS, "FILE.csv"))
        return text
    import pandas as pd

    try:
        frame = pd.read_csv(text, dtype=str, keep_default_na=False, skipinitialspace=True)
    except (OSError, ValueError) as error:
        raise InputError(f"the prior {text!r} cannot be read as CSV ({error})") from None
    absent = [name for name in (*space.names, "prior") if name not in frame.columns]
    if absent:
        raise InputError(f"{text!r} has no column {listing(absent)}: its columns are {listing(frame.columns)}")
    known = [{str(value): value for value in values} for values in space.values]
    prior: dict[tuple[Any, ...], float] = {}
    for row, record in enumerate(frame.to_dict("records")):
        key = tuple(value.get(record[name], record[name]) for name, value in zip(space.names, known, strict=True))
        if key in prior:
            raise InputError(f"{text!r} lists {key} twice: give each group one row")
        try:
            prior[key] = float(record["prior"])
        except ValueError:
            raise InputError(f"{text!r}: the prior of row {row} is {record['prior']!r}, not a number") from None
    return prior
