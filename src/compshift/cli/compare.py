"""``compshift compare``: CRM beside the classifiers that one would use instead."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from compshift._errors import InputError
from compshift.cli.options import Attributes, FeatureColumns, Json, Shares, SplitColumn, Target, names


def compare(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FEATURES|TABLE",
            help="Feature file (.npz, .parquet, a folder of shards), or a table with --features.",
            show_default=False,
        ),
    ],
    target: Target,
    attributes: Attributes,
    features: FeatureColumns = None,
    split_column: SplitColumn = None,
    shares: Shares = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Methods, separated by commas: logistic, logistic-balanced, boosting, boosting-attributes, lc, sla, "
            "crm and crm-boosting.",
            show_default="all that are installed",
        ),
    ] = None,
    attributes_known: Annotated[
        bool, typer.Option("--known", metavar="", help="Add CRM with the attributes known in use.")
    ] = False,
    n_splits: Annotated[int, typer.Option("--splits", help="Number of folds of held-out groups.", min=2)] = 5,
    seed: Annotated[int, typer.Option(help="Seed of the split, the folds and the methods.", min=0)] = 0,
    jobs: Annotated[int, typer.Option(help="Number of processes for the fits.", min=1)] = 1,
    json: Json = False,
) -> None:
    """Compare CRM with the classifiers that one would use instead, on test rows and on held-out groups.

    Every method is fitted to the train rows and scored on the test rows; without these splits, 30 % of the rows of
    every group are set aside. For held-out groups, it is fitted once more per fold.
    """
    from compshift.cli.inputs import TableOptions, load_source
    from compshift.estimators.compare import compare as compare_methods

    if not attributes:
        raise InputError("--attributes is empty: name the attributes that define the groups together with --target")
    chosen = None if methods is None else names(methods, "--methods")
    table = TableOptions(
        target=target,
        attributes=attributes,
        features=features,
        split_column=split_column,
        shares=shares,
        seed=seed,
    )
    data = load_source(str(source), table).data
    parts = [data.part(name) for name in ("train", "test")] if {"train", "test"} <= set(data.splits) else [data]
    rows = [
        (
            part.X,
            part.columns(table.targets).squeeze(axis=1),
            part.columns(table.nuisances) if table.nuisances else None,
        )
        for part in parts
    ]
    test = dict(zip(("X_test", "y_test", "attributes_test"), rows[1], strict=True)) if len(rows) > 1 else {}
    X, y, known = rows[0]
    found = compare_methods(
        X,
        y,
        attributes=known,
        **test,
        methods=chosen,
        known=attributes_known,
        n_splits=n_splits,
        random_state=seed,
        n_jobs=jobs,
    )
    typer.echo(dumps(found.to_dict()) if json else str(found))
