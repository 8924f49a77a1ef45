"""``compshift predict``: from a model and features to a table of predictions."""

from pathlib import Path
from typing import Annotated

import typer

from compshift.cli.options import Model, Prior, read_prior


def predict(
    model: Model,
    features: Annotated[
        Path, typer.Argument(help="Feature file: .npz, .parquet or a folder of shards.", show_default=False)
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Table to write: .csv or .parquet.", show_default=False)
    ],
    groups: Annotated[bool, typer.Option("--groups", metavar="", help="Add the probability of every group.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", metavar="", help="Add the most probable group, and how far it can be trusted.")
    ] = False,
    prior: Prior = None,
    split: Annotated[
        str, typer.Option(help="Rows to predict, where the file has splits: train, val, test or all.")
    ] = "all",
) -> None:
    """Predict the target of every row and write a table, in the order of the rows."""
    from compshift.data.feature_files import read_inputs
    from compshift.estimators.load import load
    from compshift.report.predictions import check_table_path, prediction_frame, write_frame

    check_table_path(output, features, model)
    clf = load(model)
    if prior is not None:
        clf.set_prior(read_prior(prior, clf.space_))
    frame = prediction_frame(clf, read_inputs(features, split), groups=groups, explain=explain)
    write_frame(frame, output)
    typer.echo(f"{len(frame)} predictions written to {output}")
