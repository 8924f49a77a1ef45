"""``compshift compare``: compare CRM with the classifiers that one would use instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compshift._errors import InputError
from compshift.cli.options import (
    Attributes,
    FeatureColumns,
    Json,
    KeptOut,
    Methods,
    Shares,
    SplitColumn,
    Target,
    names,
    reject_unused,
)

if TYPE_CHECKING:
    from compshift.data.dataset import GroupedDataset
    from compshift.estimators.comparison import Comparison

COMPARE_SHARES = "0.7,0.3"
"""Shares of the train and test rows of a table without splits."""


def compare(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FEATURES|TABLE",
            help="Feature file (.npz, .parquet, a folder of shards), or a table. Without --columns, all columns of a "
            "table that are not labels are features.",
            show_default=False,
        ),
    ],
    target: Target,
    attributes: Attributes,
    columns: FeatureColumns = None,
    keep: KeptOut = None,
    split_column: SplitColumn = None,
    shares: Shares = None,
    methods: Methods = None,
    attributes_known: Annotated[
        bool, typer.Option("--known", metavar="", help="Also score CRM with the attributes known in use.")
    ] = False,
    n_splits: Annotated[int, typer.Option("--splits", help="Number of folds of held-out groups.", min=2)] = 5,
    seed: Annotated[int, typer.Option(help="Seed of the split, the folds and the methods.", min=0)] = 0,
    jobs: Annotated[int, typer.Option(help="Number of processes for the fits.", min=1)] = 1,
    json: Json = False,
) -> None:
    """Compare CRM with the classifiers that one would use instead, on test rows and on held-out groups.

    Every method is fitted to the train rows and scored on the test rows; without these splits, 30 % of the rows of
    every group are set aside. For held-out groups, every method is fitted once more per fold.

    Columns of a table become features as they are, as in `compshift fit --energies boosted`; methods that need complete
    numbers get medians, standardised columns and one feature per category, from the rows that they are fitted to.
    """
    from compshift._progress import on_terminal, show_progress
    from compshift.cli.inputs import TableOptions, load_source, raw_table_features
    from compshift.crm.inputs import seed_of
    from compshift.data.table import SPLIT_COLUMN
    from compshift.data.table_files import column_names

    show_progress(on_terminal())
    if not attributes:
        raise InputError("--attributes is empty: name the attributes that define the groups together with --target")
    chosen = None if methods is None else names(methods, "--methods")
    table = TableOptions(
        target=target,
        attributes=attributes,
        columns=columns,
        split_column=split_column,
        shares=shares,
        seed=seed,
        energies="boosted",
        keep=keep,
    )
    categorical: list[int] = []
    if table.is_raw_table(source) and source.exists():
        if split_column is None and shares is None and SPLIT_COLUMN not in column_names(source):
            table = replace(table, shares=COMPARE_SHARES, seed=seed_of(seed))  # as estimators.compare splits
        data, recipe = raw_table_features(table, source, quiet=json)
        categorical = [] if recipe.table is None else recipe.table.categorical
    else:
        reject_unused({"--keep": keep}, "for tables whose columns are features by default")
        data = load_source(str(source), table).data
    parts = [data.part(name) for name in ("train", "test")] if {"train", "test"} <= set(data.splits) else [data]
    options = {"known": attributes_known, "n_splits": n_splits, "random_state": seed, "n_jobs": jobs}
    found = compared(parts, table.targets, table.nuisances, categorical, methods=chosen, **options)
    typer.echo(dumps(found.to_dict()) if json else str(found))


def compared(
    parts: Sequence[GroupedDataset],
    targets: Sequence[str],
    nuisances: Sequence[str],
    categorical: Sequence[int],
    **options: Any,
) -> Comparison:
    """Compare methods that are fitted to the first part and scored on the second; a single part is split at random.

    ``categorical`` are the indices of the features that hold category numbers.
    """
    import pandas as pd

    from compshift.estimators.compare import compare as compare_methods

    rows = []
    for part in parts:
        X = pd.DataFrame(part.X).astype(dict.fromkeys(categorical, "category")) if categorical else part.X
        y = part.columns(targets)
        rows.append((X, y.squeeze(axis=1), part.columns(nuisances) if nuisances else None))
    test = dict(zip(("X_test", "y_test", "attributes_test"), rows[1], strict=True)) if len(rows) > 1 else {}
    X, y, known = rows[0]
    return compare_methods(X, y, attributes=known, **test, **options)
