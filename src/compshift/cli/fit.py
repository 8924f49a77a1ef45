"""``compshift fit``: from features, or a table of images, texts or numbers, to a model file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compshift._files import check_target
from compshift.cli.options import (
    Attributes,
    Backbone,
    BatchSize,
    Device,
    Json,
    PathColumn,
    Root,
    SkipBroken,
    SplitColumn,
    TextColumns,
    Workers,
    names,
    read_prior,
)

if TYPE_CHECKING:
    from compshift.data.dataset import GroupedDataset
    from compshift.features.recipe import Recipe


def fit(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FEATURES|TABLE",
            help="Feature file (.npz, .parquet, a folder of shards), or a table with --path, --text or --features.",
            show_default=False,
        ),
    ],
    target: Annotated[
        str, typer.Option(help="What to predict: one attribute, or several separated by commas.", show_default=False)
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Model file to write.", show_default=False)],
    attributes: Attributes = "",
    path: PathColumn = None,
    text: TextColumns = None,
    features: Annotated[
        str | None,
        typer.Option(metavar="COLUMNS", help="Columns of numbers, separated by commas.", show_default=False),
    ] = None,
    root: Root = None,
    backbone: Backbone = None,
    cache: Annotated[
        Path | None,
        typer.Option(help="Folder for the features of images or texts.", show_default="MODEL.features"),
    ] = None,
    split_column: SplitColumn = None,
    shares: Annotated[
        str | None,
        typer.Option(help="Split a table at random within groups, as in 0.7,0.1,0.2 for train, val, test."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of --shares.", min=0)] = 0,
    skip_broken: SkipBroken = False,
    batch_size: BatchSize = 32,
    workers: Workers = None,
    device: Device = "auto",
    alpha: Annotated[float, typer.Option(help="Strength of the ridge penalty, free of the features' unit.")] = 1e-2,
    prior: Annotated[
        str, typer.Option(help="Prior over groups in use: uniform, hull, train, or a CSV file.")
    ] = "uniform",
    bias: Annotated[
        str, typer.Option(help="Bias of a group: extrapolated, or learned (0 if unseen).")
    ] = "extrapolated",
    support: Annotated[str, typer.Option(help="Groups that can be predicted: all or hull.")] = "all",
    split: Annotated[
        str, typer.Option(help="Rows to fit on, where there are splits: train, val, test or all.")
    ] = "train",
    tol: Annotated[float, typer.Option(help="Largest gradient entry at which the fit has converged.")] = 1e-6,
    max_iter: Annotated[int, typer.Option(help="Most iterations.")] = 1000,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", metavar="", help="Log every iteration.")] = False,
    json: Json = False,
) -> None:
    """Fit a classifier and write it to a file.

    With --path or --text the features are computed first, by --backbone, and kept in --cache.
    """
    from compshift.estimators.crm import CRMClassifier
    from compshift.report.terminal import print_fit

    check_target(output, source)
    targets = names(target, "--target")
    nuisances = names(attributes, "--attributes") if attributes else []
    recipe: Recipe | None = None
    if path is None and text is None and features is None:
        from compshift.data.feature_files import read_features

        data = read_features(source, [*targets, *nuisances])
    else:
        from compshift.cli.own_table import samples_recipe, table_options

        recipe = samples_recipe(path, text, features, backbone)
        options = table_options(target, attributes, split_column, shares, seed)
        data = recipe.load_table(source, **options, root=root)
        if recipe.kind != "features":
            folder = cache if cache is not None else output.with_suffix(".features")
            data, recipe = _embed(data, recipe, folder, skip_broken, batch_size, workers, device, as_json=json)
    data = data.part(split)
    y = data.columns(targets)
    clf = CRMClassifier(
        alpha=alpha,
        prior=read_prior(prior, data.space),
        bias=bias,
        support=support,
        tol=tol,
        max_iter=max_iter,
        verbose=verbose,
    )
    clf.fit(
        data.X,
        y[targets[0]] if len(targets) == 1 else y,
        attributes=data.columns(nuisances) if nuisances else None,
    )
    clf.save(output, inputs=None if recipe is None else recipe.to_dict())
    print_fit(clf, len(data), output, as_json=json)


def _embed(
    data: GroupedDataset,
    recipe: Recipe,
    folder: Path,
    skip_broken: bool,
    batch_size: int,
    workers: int | None,
    device: str,
    *,
    as_json: bool,
) -> tuple[GroupedDataset, Recipe]:
    """The features of images or texts, from the cache as far as it goes."""
    from compshift.report.features_terminal import print_extraction
    from compshift.report.terminal import progress_bar

    with progress_bar("features", len(data), unit="rows") as advance:
        features, used, done = recipe.cached(
            data,
            folder,
            skip_broken=skip_broken,
            progress=advance,
            batch_size=batch_size,
            num_workers=workers,
            device=device,
        )
    if not as_json:
        print_extraction(done, used.backbone, as_json=False)
    return features, used
