"""``compshift fit``: fit a classifier to features, or to a table of images, texts or numbers, and save it."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compshift._errors import InputError, check_name
from compshift._files import check_apart, is_parquet
from compshift.cli.fit_options import (
    boosted_classifier,
    check_pool,
    check_streamed,
    linear_classifier,
    number_or_text,
    parse_bytes,
)
from compshift.cli.options import (
    DATA,
    MACHINE,
    Attributes,
    Backbone,
    BatchSize,
    Device,
    FeatureColumns,
    Json,
    KeptOut,
    Overwrite,
    PathColumn,
    Root,
    Shares,
    SkipBroken,
    SplitColumn,
    Target,
    TextColumns,
    Weights,
    Workers,
    check_prior,
    is_named_prior,
    read_prior,
    reject_unused,
)

if TYPE_CHECKING:
    from compshift.cli.inputs import TableOptions

MODEL = "Model"
"""Help heading for the options of the classifier that are never chosen automatically."""

POOL = "Unlabelled rows"
"""Help heading for the options about a pool of unlabelled rows."""

POOL_FOLDER = "unlabelled"
"""Folder inside --cache for the features of the pool."""

MODEL_SELECTION = "Choosing"
"""Help heading for options whose value can also be chosen by the accuracy on held-out groups."""


def fit(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FEATURES|TABLE",
            help="Feature file (.npz, .parquet, a folder of shards), or a table. Without --path, --text or --columns, "
            "all columns of a table that are not labels are features.",
            show_default=False,
        ),
    ],
    target: Target,
    output: Annotated[Path, typer.Option("--output", "-o", help="Model file to write.", show_default=False)],
    attributes: Attributes = "",
    path: PathColumn = None,
    text: TextColumns = None,
    columns: FeatureColumns = None,
    keep: KeptOut = None,
    root: Root = None,
    split_column: SplitColumn = None,
    shares: Shares = None,
    seed: Annotated[int, typer.Option(help="Seed of the random split by --shares.", min=0, rich_help_panel=DATA)] = 0,
    split: Annotated[
        str | None,
        typer.Option(
            help="Rows to fit on: train, val, test or all.",
            show_default="train if the data have splits, else all",
            rich_help_panel=DATA,
        ),
    ] = None,
    backbone: Backbone = None,
    weights: Weights = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            help="Folder in which the computed features of images or texts are kept.",
            show_default="MODEL.features",
            rich_help_panel=DATA,
        ),
    ] = None,
    overwrite: Overwrite = False,
    skip_broken: SkipBroken = False,
    prior: Annotated[
        str,
        typer.Option(
            help="Prior over groups for predictions: uniform, hull (uniform inside the affine hull), train (training "
            "frequencies), or a CSV file with a column per attribute and 'prior'.",
            rich_help_panel=MODEL,
        ),
    ] = "uniform",
    support: Annotated[
        str,
        typer.Option(
            help="Groups that can be predicted: all, hull (those inside the affine hull of the seen groups) or "
            "observed (the seen groups).",
            rich_help_panel=MODEL,
        ),
    ] = "all",
    energies: Annotated[
        str,
        typer.Option(
            help="Energies: linear functions of the features; boosted trees (LightGBM), which take numbers with gaps "
            "and categories as they are; or auto, a weighted sum of both.",
            rich_help_panel=MODEL,
        ),
    ] = "linear",
    cross_fit: Annotated[
        bool,
        typer.Option(
            "--cross-fit",
            metavar="",
            help="Estimate biases and a temperature from out-of-fold energies.",
            rich_help_panel=MODEL,
        ),
    ] = False,
    tol: Annotated[
        float | None,
        typer.Option(
            help="The fit has converged once no gradient entry exceeds this.",
            show_default="1e-6",
            rich_help_panel=MODEL,
        ),
    ] = None,
    max_iter: Annotated[
        int | None,
        typer.Option(
            help="Maximum number of iterations, or of rounds of boosting.",
            show_default="1000; 100 rounds",
            rich_help_panel=MODEL,
        ),
    ] = None,
    alpha: Annotated[
        str | None,
        typer.Option(
            help="Strength of the ridge penalty, independent of the unit of the features. Pass several values, "
            "separated by commas, or auto, to choose by accuracy on held-out groups; where none can be held out, "
            "the numbers of features and rows decide.",
            show_default="1e-2",
            rich_help_panel=MODEL_SELECTION,
        ),
    ] = None,
    bias: Annotated[
        str | None,
        typer.Option(
            help="Bias of each group: extrapolated (a mean over the training rows), cumulant (from the moments of the "
            "energies), shrunk (between these two), learned (0 for unseen groups) or auto.",
            show_default="extrapolated; auto with several alphas",
            rich_help_panel=MODEL_SELECTION,
        ),
    ] = None,
    anchor: Annotated[
        str | None,
        typer.Option(
            help="Weights toward which the ridge penalty shrinks the solution: zero, gaussian (those of Gaussian "
            "groups with one covariance) or auto.",
            show_default="zero; auto with several alphas",
            rich_help_panel=MODEL_SELECTION,
        ),
    ] = None,
    unseen_offset: Annotated[
        str | None,
        typer.Option(
            help="Number added to the log-probability of every unseen group before normalising, or auto.",
            show_default="0; auto with several alphas",
            rich_help_panel=MODEL_SELECTION,
        ),
    ] = None,
    transform: Annotated[
        str | None,
        typer.Option(
            help="Transform of each row of features: none, signed_root (root of each absolute value, with its sign), "
            "unit_length (length 1) or auto.",
            show_default="none",
            rich_help_panel=MODEL_SELECTION,
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Number of processes for model selection, or of threads for boosted energies.",
            min=1,
            show_default="1; all cores for boosted energies",
            rich_help_panel=MODEL_SELECTION,
        ),
    ] = None,
    unlabelled: Annotated[
        Path | None,
        typer.Option(
            metavar="POOL",
            help="Unlabelled rows like those on which the model will be used: a feature file, or a table with the same "
            "sample columns. They help if groups that training lacks occur among them.",
            show_default=False,
            rich_help_panel=POOL,
        ),
    ] = None,
    use_unlabelled: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="Use the unlabelled rows always, or only if they help on held-out groups (auto).",
            show_default="always; auto with several alphas",
            rich_help_panel=POOL,
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Read Parquet features in blocks that take at most this much memory together, such as 2G.",
            rich_help_panel=MACHINE,
        ),
    ] = None,
    batch_size: BatchSize = 32,
    workers: Workers = None,
    device: Device = "auto",
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", metavar="", help="Print a line for every iteration.")
    ] = False,
    json: Json = False,
) -> None:
    """Fit a classifier and write it to a file.

    Columns of a table become features as they are: numbers, text, booleans and dates, with empty cells. The model file
    stores how, and `compshift predict` takes tables with the same columns.

    With --path or --text, --backbone first computes the features, which are kept in --cache; with --backbone tfidf, the
    words of the texts are the features. Without --path and --text, --backbone embeds the columns of texts, and the
    other columns stay as they are. With --unlabelled, the fit also uses rows without labels, in which groups that
    training lacks may occur.
    """
    from compshift._progress import on_terminal, show_progress
    from compshift.cli.inputs import (
        TableOptions,
        cache_beside,
        check_attribute_sizes,
        check_model_path,
        embedded,
        embedded_texts,
        feature_origin,
        raw_table_features,
        split_part,
        table_features,
        warn_of_feature_scales,
    )
    from compshift.cli.model_inputs import pool_rows
    from compshift.data.dataset import TFIDF
    from compshift.features.recipe import WITHOUT_NETWORK, portable_backbone
    from compshift.report.terminal import print_fit

    show_progress(on_terminal())
    check_model_path(output, source, None if is_named_prior(prior) else prior, backbone, weights, unlabelled)
    cache_folder = cache or cache_beside(output)
    check_apart(cache_folder, source, root, backbone, unlabelled)
    check_name("energies", energies, ("linear", "boosted", "auto"))
    check_pool(unlabelled, use_unlabelled, memory=memory, cross_fit=cross_fit)
    table = TableOptions(
        target=target,
        attributes=attributes,
        path=path,
        text=text,
        columns=columns,
        root=root,
        split_column=split_column,
        shares=shares,
        seed=seed,
        backbone=backbone,
        weights=weights,
        split=split,
        skip_broken=skip_broken,
        energies="linear" if energies == "linear" else "boosted",
        keep=keep,
    )
    shared: dict[str, Any] = {"bias": bias, "unseen_offset": number_or_text(unseen_offset), "support": support}
    shared |= {"max_iter": max_iter, "verbose": verbose}
    if energies != "linear":
        linear_only: dict[str, Any] = {"--alpha": alpha, "--anchor": anchor, "--transform": transform, "--tol": tol}
        linear_only |= {"--cross-fit": cross_fit, "--unlabelled": unlabelled, "--memory": memory}
        clf = boosted_classifier(energies, jobs, linear_only, **shared)
    else:
        options = {"anchor": anchor, "feature_transform": transform, "cross_fit": cross_fit, "tol": tol}
        clf = linear_classifier(alpha or "1e-2", jobs, use_unlabelled=use_unlabelled, **options, **shared)
    check_prior(prior)
    targets, nuisances = table.targets, table.nuisances
    is_raw, categorical = table.is_raw_table(source), []
    if not is_raw:
        reject_unused({"--keep": keep}, "for tables whose columns are features by default")
    if table.is_feature_file(source) and not is_raw:
        given: dict[str, Any] = {"--root": root, "--backbone": backbone, "--weights": weights, "--cache": cache}
        given |= {"--split-column": split_column}
        further = {"--shares": shares, "--skip-broken": skip_broken, "--overwrite": overwrite}
        network_options = {"--workers": workers is not None, "--device": device != "auto"}
        reject_unused({**given, **further, **network_options}, "for tables (with --path, --text or --columns)")
        inputs = feature_origin(source)
        if memory is not None:
            choosable = {"--bias": bias, "--anchor": anchor, "--unseen-offset": unseen_offset, "--transform": transform}
            check_streamed(alpha or "1e-2", choosable, cross_fit=cross_fit)
            n_rows = _fit_streamed(clf, source, table, prior, memory)
            clf.save(output, inputs=inputs)
            print_fit(clf, n_rows, output, as_json=json)
            return
        from compshift.data.feature_files import read_features

        data = read_features(source, [*targets, *nuisances])
        check_attribute_sizes(data.space, nuisances)
        warn_of_feature_scales(data.X)
        pool = None if unlabelled is None else pool_rows(unlabelled, output, inputs, table.for_pool())[0].X
    else:
        if memory is not None:
            raise InputError(
                f"--memory cannot be used with {source.name!r}, which is read as a table: leave out --memory, or pass "
                "Parquet features, as `compshift features` writes them"
            )
        machine: dict[str, Any] = {"batch_size": batch_size, "num_workers": workers, "device": device}
        embed = partial(embedded, table, overwrite=overwrite, quiet=json, machine=machine)
        embed_texts = partial(embedded_texts, embed)
        if is_raw:
            given = {"--root": root, "--weights": weights, "--skip-broken": skip_broken}
            reject_unused(given, "for --path and --text, not for tables whose columns are features")
            if not table.text_backbone:
                given = {"--cache": cache, "--overwrite": overwrite}
                reject_unused(given, "for networks, and --backbone names none")
            data, recipe = raw_table_features(table, source, partial(embed_texts, cache_folder), quiet=json)
            assert recipe.table is not None
            categorical = recipe.table.categorical
        else:
            if backbone == TFIDF:
                given = {"--cache": cache, "--overwrite": overwrite, "--skip-broken": skip_broken}
                reject_unused(given, f"for networks, not for --backbone {TFIDF}")
                if energies != "linear":
                    raise InputError(f"--backbone {TFIDF} is for --energies linear, not for --energies {energies}")
            if unlabelled is not None and table.recipe().kind not in WITHOUT_NETWORK:
                # raise errors about it before features are computed
                pool_rows(unlabelled, output, table.recipe().to_dict(), table.for_pool())
            data, recipe = table_features(table, source, cache_folder, embed)
        pool = None
        if unlabelled is not None:
            rows, pool_recipe = pool_rows(unlabelled, output, recipe.to_dict(), table.for_pool())
            if pool_recipe is not None and pool_recipe.table is not None:
                texts = pool_recipe.table.embedded
                content, _ = embed_texts(cache_folder / POOL_FOLDER, rows.samples, texts, pool_recipe)
                rows = replace(rows, samples=pool_recipe.table.transform(content.columns))
            elif pool_recipe is not None:
                rows, _ = embed(cache_folder / POOL_FOLDER, rows, pool_recipe)
            pool = rows.X
        inputs = recipe.to_dict() | {"backbone": portable_backbone(recipe.backbone, output.parent)}
    data, _ = split_part(data, split, "train")
    if pool is not None and pool.shape[1] != data.X.shape[1]:
        raise InputError(
            f"{str(unlabelled)!r} has {pool.shape[1]} features but {str(source)!r} has {data.X.shape[1]}: pass "
            "unlabelled rows with the features of the labelled rows"
        )
    y = data.columns(targets)
    if categorical:
        clf.set_params(categorical_features=categorical)
    warnings.filterwarnings("ignore", "the standard deviation of")  # the command line has warned already
    clf.set_params(prior=read_prior(prior, data.space)).fit(
        data.X,
        y[targets[0]] if len(targets) == 1 else y,
        attributes=data.columns(nuisances) if nuisances else None,
        **({} if pool is None else {"unlabelled": pool}),
    )
    clf.save(output, inputs=inputs)
    print_fit(clf, len(data), output, as_json=json)


def _fit_streamed(clf: Any, source: Path, table: TableOptions, prior: str, memory: str) -> int:
    """Fit a classifier to Parquet features that are read in blocks, and return the number of rows."""
    from compshift.cli.inputs import check_attribute_sizes
    from compshift.core.groups import GroupSpace
    from compshift.data.feature_store import FeatureStore

    if not is_parquet(source):
        raise InputError(
            f"--memory cannot be used with {source.name!r}, which is not Parquet: leave out --memory, or store the "
            "features as Parquet"
        )
    targets, nuisances = table.targets, table.nuisances
    part = ("train" if "split" in FeatureStore(source).columns else "all") if table.split is None else table.split
    store = FeatureStore(source, part, memory=parse_bytes(memory))
    space = GroupSpace.from_table(store.frame([*targets, *nuisances]))
    check_attribute_sizes(space, nuisances)
    given = read_prior(prior, space)
    clf.set_params(prior=given).fit(store, targets[0] if len(targets) == 1 else targets, attributes=nuisances or None)
    return store.n_rows
