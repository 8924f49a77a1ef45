"""``compshift predict``: from a model and inputs to a table of predictions."""

from pathlib import Path
from typing import Annotated

import typer

from compshift._errors import InputError
from compshift.cli.options import Model, MovedBackbone, Prior, Root, SkipBroken, read_prior


def predict(
    model: Model,
    source: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT",
            help="Feature file (.npz, .parquet, a folder of shards), or a table like the one the model was fitted to.",
            show_default=False,
        ),
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
        str | None,
        typer.Option(help="Rows of a feature file to predict: train, val, test or all.", show_default="all"),
    ] = None,
    root: Root = None,
    skip_broken: SkipBroken = False,
    backbone: MovedBackbone = None,
) -> None:
    """Predict the target of every row and write a table, in the order of the rows.

    With --skip-broken, the row of an image that cannot be read has no prediction.
    """
    from compshift.cli.model_input import embed_rows, table_recipe
    from compshift.data.feature_files import read_inputs
    from compshift.estimators.load import load
    from compshift.report.predictions import check_table_path, prediction_frame, write_frame

    check_table_path(output, source, model)
    clf = load(model)
    if prior is not None:
        clf.set_prior(read_prior(prior, clf.space_))
    recipe = table_recipe(clf, source, backbone)
    if recipe is None:
        frame = prediction_frame(clf, read_inputs(source, split or "all"), groups=groups, explain=explain)
    else:
        if split is not None:
            raise InputError("--split is for feature files: every row of a table is predicted")
        samples = recipe.load_samples(source, root)
        X, rows = embed_rows(recipe, samples, skip_broken=skip_broken)
        frame = prediction_frame(clf, X, groups=groups, explain=explain)
        if len(rows) < len(samples):
            frame = frame.convert_dtypes().set_index(rows).reindex(range(len(samples)))
        if recipe.kind == "images":
            frame.insert(0, f"{recipe.columns[0]} (image)", samples.names)
    write_frame(frame, output)
    typer.echo(f"{len(frame)} predictions written to {output}")
