"""Options that several commands share, and the parsing of their values."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compshift._errors import InputError, check_name, listing
from compshift._files import check_path

if TYPE_CHECKING:
    from compshift.core.groups import GroupSpace

DATA = "Data"
"""Help heading for the options that say how to read the input."""

PROTOCOL = "Protocol"
"""Help heading for the options that name a protocol and change it."""

MACHINE = "Machine"
"""Help heading for the options about processes, memory and devices."""

Model = Annotated[
    Path,
    typer.Argument(
        help="Model file written by `compshift fit`, or folder written by `compshift train`.", show_default=False
    ),
]
ModelRows = Annotated[
    str,
    typer.Argument(
        metavar="INPUT",
        help="Feature file, table with the columns of the training table, or name of a data set.",
        show_default=False,
    ),
]
Prior = Annotated[
    str | None,
    typer.Option(
        help="Prior over groups: uniform, hull (uniform inside the affine hull), train (training frequencies), or a "
        "CSV file with a column per attribute (or for the target alone) and 'prior'."
    ),
]
Known = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Attributes that are known in use, separated by commas: predict given their values in INPUT.",
        show_default="all attributes are unknown",
    ),
]
Root = Annotated[
    Path | None,
    typer.Option(
        help="Folder of the downloaded data set, or folder that the image paths in a table are relative to.",
        show_default="the table's folder",
        rich_help_panel=DATA,
    ),
]
Target = Annotated[
    str,
    typer.Option(
        help="Attribute to predict, or several separated by commas.", show_default=False, rich_help_panel=DATA
    ),
]
Attributes = Annotated[
    str,
    typer.Option(
        help="Further attributes that define the groups, separated by commas; needed only for training.",
        show_default=False,
        rich_help_panel=DATA,
    ),
]
PathColumn = Annotated[
    str | None,
    typer.Option("--path", metavar="COLUMN", help="Column of image paths.", show_default=False, rich_help_panel=DATA),
]
TextColumns = Annotated[
    str | None,
    typer.Option(
        "--text",
        metavar="COLUMN",
        help="Column of texts, or two columns separated by a comma for pairs of texts.",
        show_default=False,
        rich_help_panel=DATA,
    ),
]
FeatureColumns = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="COLUMNS",
        help="Columns of numbers, separated by commas; columns of any kind for `compare`, and for `fit` with "
        "boosted energies.",
        show_default=False,
        rich_help_panel=DATA,
    ),
]
KeptOut = Annotated[
    str | None,
    typer.Option(
        "--keep",
        metavar="COLUMNS",
        help="Columns of a table that are not features, such as an id, separated by commas.",
        show_default=False,
        rich_help_panel=DATA,
    ),
]
Methods = Annotated[
    str | None,
    typer.Option(
        "--methods",
        metavar="NAMES",
        help="Methods to compare, separated by commas: logistic, logistic-balanced, boosting, boosting-attributes, lc, "
        "sla, crm and crm-boosting.",
        show_default="all that are installed",
    ),
]
Shares = Annotated[
    str | None,
    typer.Option(
        help="Split the rows of every group at random: shares of train, val and test, such as 0.7,0.1,0.2.",
        rich_help_panel=DATA,
    ),
]
SplitColumn = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Column with the values train, val and test.",
        show_default="the column 'split', if there is one",
        rich_help_panel=DATA,
    ),
]
Backbone = Annotated[
    str | None,
    typer.Option(
        help="Network that computes features: efficientnet-lite0, torchvision/resnet50, minilm, a folder, or a Hugging "
        "Face model. tfidf makes features of the words of texts, without a network.",
        show_default="efficientnet-lite0 for images, minilm for --text, tfidf for columns of a table",
        rich_help_panel=DATA,
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Checkpoint file of the backbone torchvision/resnet50, as torchvision publishes it.",
        show_default="resnet50-0676ba61.pth in torch's cache",
        rich_help_panel=DATA,
    ),
]
ProtocolName = Annotated[
    str | None,
    typer.Option(
        "--protocol",
        metavar="NAME",
        help="Protocol: compshift, paper (what the paper's text says) or authors (what its authors' code does). "
        "`compshift train` uses the middle of each range; a protocol given here overrides the configuration file.",
        show_default="compshift; none in `compshift train`",
        rich_help_panel=PROTOCOL,
    ),
]
ProtocolSet = Annotated[
    list[str] | None,
    typer.Option(
        "--protocol-set",
        metavar="NAME=VALUE",
        help="Change a setting of the protocol, such as pooling=mean or mixup.alpha=10^U(-1,1). Repeatable.",
        show_default=False,
        rich_help_panel=PROTOCOL,
    ),
]
MovedBackbone = Annotated[
    str | None,
    typer.Option(
        "--backbone",
        help="Folder of the model's backbone, if it is neither beside the model nor in the current folder.",
        show_default=False,
        rich_help_panel=DATA,
    ),
]
SkipBroken = Annotated[
    bool,
    typer.Option(
        "--skip-broken",
        metavar="",
        help="Leave out images that cannot be read, and report how many.",
        rich_help_panel=DATA,
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite",
        metavar="",
        help="Replace existing features that another network or other settings produced.",
        rich_help_panel=DATA,
    ),
]
BatchSize = Annotated[int, typer.Option(help="Samples per forward pass.", min=1, rich_help_panel=MACHINE)]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Number of processes that read images.",
        min=0,
        show_default="cores minus one, at most 4",
        rich_help_panel=MACHINE,
    ),
]
Device = Annotated[
    str, typer.Option(help="Device of the network: auto, cpu, cuda, cuda:1, mps, …", rich_help_panel=MACHINE)
]
Json = Annotated[bool, typer.Option("--json", metavar="", help="Print the result as JSON.")]


def names(text: str, option: str) -> list[str]:
    """Split a comma-separated option into names; double quotes enclose a name with a comma or a leading space."""
    if '"' in text:
        try:
            found = [name for name in next(csv.reader([text], skipinitialspace=True), []) if name]
        except csv.Error as error:
            raise InputError(f"{option} is {text!r} ({error}): pass names separated by commas") from None
    else:
        found = [name.strip() for name in text.split(",") if name.strip()]
    if not found:
        raise InputError(f"{option} is empty: pass one or more names separated by commas")
    return found


def assignments(texts: Sequence[str] | None, option: str) -> dict[str, str]:
    """Parse the values NAME=VALUE of a repeatable option."""
    found = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise InputError(f"{option} is {text!r}: pass NAME=VALUE")
        found[name.strip()] = value.strip()
    return found


def read_shares(text: str) -> dict[str, float]:
    """Parse ``--shares`` into the share of every split: three numbers for train, val, test; two for train, test."""
    from compshift.data.splits import SPLITS

    parts = [part.strip() for part in text.split(",")]
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) not in (2, 3):
        raise InputError(
            f"--shares is {text!r}: pass the shares of train, val and test, such as 0.7,0.1,0.2, or of train and test"
        )
    return dict(zip(SPLITS if len(numbers) == 3 else (SPLITS[0], SPLITS[2]), numbers, strict=True))


def reject_unused(options: Mapping[str, Any], purpose: str) -> None:
    """Raise an InputError if any of the options is set; ``purpose`` says what the options are for."""
    given = [name for name, value in options.items() if value]
    if given:
        verb, object_ = ("is", "it") if len(given) == 1 else ("are", "them")
        raise InputError(f"{' and '.join(given)} {verb} {purpose}: leave {object_} out")


def is_named_prior(text: str) -> bool:
    """Return whether ``--prior`` is the name of a prior, not a file."""
    from compshift.core.candidates import PRIORS

    return text in PRIORS


def check_prior(text: str) -> None:
    """Check that ``--prior`` is the name of a prior or an existing CSV file."""
    from compshift.core.candidates import PRIORS

    if not text.lower().endswith(".csv"):
        check_name("prior", text, (*PRIORS, "FILE.csv"))
    elif not check_path(text).is_file():
        raise InputError(f"there is no file {text!r}: pass the path of a CSV file, or one of {listing(PRIORS)}")


def read_prior(text: str, space: GroupSpace) -> Any:
    """Return the name of a prior unchanged, or the content of a CSV file as a mapping from group to probability."""
    check_prior(text)
    if is_named_prior(text):
        return text
    import pandas as pd

    from compshift.data.dataset import prior_of_records

    path = check_path(text)
    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False, skipinitialspace=True)
    except (OSError, ValueError) as error:
        raise InputError(f"the prior {text!r} cannot be read as CSV ({error}): check the file") from None
    return prior_of_records(list(frame.columns), frame.to_dict("records"), space, f"the prior {text!r}")
