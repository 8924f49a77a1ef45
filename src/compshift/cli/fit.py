"""``compshift fit``: fit a classifier to features, or to a table of images, texts or numbers, and save it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compshift._errors import InputError, check_name
from compshift._files import check_apart
from compshift.cli.options import (
    DATA,
    MACHINE,
    Attributes,
    Backbone,
    BatchSize,
    Device,
    FeatureColumns,
    Json,
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
"""Help heading for the options of the classifier that the user sets."""

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
            help="Feature file (.npz, .parquet, a folder of shards), or a table with --path, --text or --features.",
            show_default=False,
        ),
    ],
    target: Target,
    output: Annotated[Path, typer.Option("--output", "-o", help="Model file to write.", show_default=False)],
    attributes: Attributes = "",
    path: PathColumn = None,
    text: TextColumns = None,
    features: FeatureColumns = None,
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
            help="Prior over groups for predictions: uniform, hull, train, or a CSV file with a column per attribute "
            "and 'prior'.",
            rich_help_panel=MODEL,
        ),
    ] = "uniform",
    support: Annotated[
        str, typer.Option(help="Groups that can be predicted: all, hull or observed.", rich_help_panel=MODEL)
    ] = "all",
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
        float,
        typer.Option(help="The fit has converged once no gradient entry exceeds this.", rich_help_panel=MODEL),
    ] = 1e-6,
    max_iter: Annotated[int, typer.Option(help="Maximum number of iterations.", rich_help_panel=MODEL)] = 1000,
    alpha: Annotated[
        str,
        typer.Option(
            help="Strength of the ridge penalty, independent of the unit of the features. Pass several values, "
            "separated by commas, or auto, to choose by accuracy on held-out groups; where none can be held out, "
            "the numbers of features and rows decide.",
            rich_help_panel=MODEL_SELECTION,
        ),
    ] = "1e-2",
    bias: Annotated[
        str | None,
        typer.Option(
            help="Bias of each group: extrapolated, cumulant, shrunk, learned (0 for unseen groups) or auto.",
            show_default="extrapolated; auto with several alphas",
            rich_help_panel=MODEL_SELECTION,
        ),
    ] = None,
    anchor: Annotated[
        str | None,
        typer.Option(
            help="Weights toward which the ridge penalty shrinks the solution: zero, gaussian or auto.",
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
            help="Transform of each row of features: none, signed_root, unit_length (length 1) or auto.",
            show_default="none",
            rich_help_panel=MODEL_SELECTION,
        ),
    ] = None,
    jobs: Annotated[
        int, typer.Option(help="Number of processes for model selection.", min=1, rich_help_panel=MODEL_SELECTION)
    ] = 1,
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

    With --path or --text, --backbone first computes the features, which are kept in --cache. With --unlabelled, the fit
    also uses rows without labels, in which groups that training lacks may occur.
    """
    from compshift.cli.inputs import (
        TableOptions,
        cache_beside,
        check_attribute_sizes,
        check_model_path,
        embedded,
        feature_origin,
        split_part,
        table_features,
    )
    from compshift.cli.model_inputs import pool_rows
    from compshift.features.recipe import portable_backbone
    from compshift.report.terminal import print_fit

    check_model_path(output, source, None if is_named_prior(prior) else prior, backbone, weights, unlabelled)
    cache_folder = cache or cache_beside(output)
    check_apart(cache_folder, source, root, backbone, unlabelled)
    _check_pool(unlabelled, use_unlabelled, memory=memory, cross_fit=cross_fit)
    table = TableOptions(
        target=target,
        attributes=attributes,
        path=path,
        text=text,
        features=features,
        root=root,
        split_column=split_column,
        shares=shares,
        seed=seed,
        backbone=backbone,
        weights=weights,
        split=split,
        skip_broken=skip_broken,
    )
    clf = _classifier(
        alpha,
        jobs,
        bias=bias,
        anchor=anchor,
        unseen_offset=_number_or_text(unseen_offset),
        feature_transform=transform,
        cross_fit=cross_fit,
        use_unlabelled=use_unlabelled,
        support=support,
        tol=tol,
        max_iter=max_iter,
        verbose=verbose,
    )
    check_prior(prior)
    targets, nuisances = table.targets, table.nuisances
    if table.is_feature_file(source):
        given = {"--root": root, "--backbone": backbone, "--weights": weights, "--cache": cache}
        given |= {"--split-column": split_column}
        further = {"--shares": shares, "--skip-broken": skip_broken, "--overwrite": overwrite}
        network_options = {"--workers": workers is not None, "--device": device != "auto"}
        reject_unused({**given, **further, **network_options}, "for tables (with --path, --text or --features)")
        inputs = feature_origin(source)
        if memory is not None:
            choosable = {"--bias": bias, "--anchor": anchor, "--unseen-offset": unseen_offset, "--transform": transform}
            _check_streamed(alpha, choosable, cross_fit=cross_fit)
            n_rows = _fit_streamed(clf, source, table, prior, memory)
            clf.save(output, inputs=inputs)
            print_fit(clf, n_rows, output, as_json=json)
            return
        from compshift.data.feature_files import read_features

        data = read_features(source, [*targets, *nuisances])
        check_attribute_sizes(data.space, nuisances)
        pool = None if unlabelled is None else pool_rows(unlabelled, output, inputs, table.for_pool())[0].X
    else:
        if memory is not None:
            raise InputError(
                f"--memory cannot be used with {source.name!r}, which is read as a table: leave out --memory, or pass "
                "Parquet features, as `compshift features` writes them"
            )
        machine: dict[str, Any] = {"batch_size": batch_size, "num_workers": workers, "device": device}
        embed = partial(embedded, table, overwrite=overwrite, quiet=json, machine=machine)
        if unlabelled is not None:  # raise errors about it before features are computed
            pool_rows(unlabelled, output, table.recipe().to_dict(), table.for_pool())
        data, recipe = table_features(table, source, cache_folder, embed)
        pool = None
        if unlabelled is not None:
            rows, pool_recipe = pool_rows(unlabelled, output, recipe.to_dict(), table.for_pool())
            pool = (rows if pool_recipe is None else embed(cache_folder / POOL_FOLDER, rows, pool_recipe)[0]).X
        inputs = recipe.to_dict() | {"backbone": portable_backbone(recipe.backbone, output.parent)}
    data, _ = split_part(data, split, "train")
    if pool is not None and pool.shape[1] != data.X.shape[1]:
        raise InputError(
            f"{str(unlabelled)!r} has {pool.shape[1]} features but {str(source)!r} has {data.X.shape[1]}: pass "
            "unlabelled rows with the features of the labelled rows"
        )
    y = data.columns(targets)
    clf.set_params(prior=read_prior(prior, data.space)).fit(
        data.X,
        y[targets[0]] if len(targets) == 1 else y,
        attributes=data.columns(nuisances) if nuisances else None,
        unlabelled=pool,
    )
    clf.save(output, inputs=inputs)
    print_fit(clf, len(data), output, as_json=json)


def _check_pool(pool: Path | None, use: str | None, *, memory: str | None, cross_fit: bool) -> None:
    """Check the options that are used with, or cannot be used with, --unlabelled."""
    if pool is None:
        reject_unused({"--use-unlabelled": use}, "for the rows of --unlabelled, which is missing")
        return
    check_name("--use-unlabelled", use or "auto", ("auto", "always"))
    if memory is not None:
        raise InputError(
            "--unlabelled cannot be used with --memory, because EM needs all rows in memory: leave out one of the two, "
            "or fit to a sample of the rows"
        )
    if cross_fit:
        raise InputError(
            "--unlabelled cannot be used with --cross-fit, which would need EM in every fold: leave out one of the two"
        )


def _fit_streamed(clf: Any, source: Path, table: TableOptions, prior: str, memory: str) -> int:
    """Fit a classifier to Parquet features that are read in blocks, and return the number of rows."""
    from compshift.cli.inputs import check_attribute_sizes
    from compshift.core.groups import GroupSpace
    from compshift.data.feature_store import FeatureStore
    from compshift.data.shards import is_parquet

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


def _check_streamed(alpha: str, options: Mapping[str, str | None], *, cross_fit: bool) -> None:
    """Check that every setting works with --memory: nothing is chosen by cross-validation or needs all rows at once.

    ``options`` are options that can be chosen, with their values.
    """
    chosen = [f"--alpha {alpha}"] if alpha == "auto" or "," in alpha else []
    chosen += [f"{option} auto" for option, value in options.items() if value == "auto"]
    if chosen:
        raise InputError(
            f"--memory cannot be used with {' and '.join(chosen)}: first choose the settings without --memory, on rows "
            "that fit in memory (such as a sample), then pass the chosen values together with --memory"
        )
    if options["--transform"] not in (None, "none"):
        raise InputError(
            f"--memory cannot be used with --transform {options['--transform']}: leave out one of the two, or store "
            "transformed features"
        )
    anchor = options["--anchor"]
    in_memory = [f"--anchor {anchor}"] if anchor not in (None, "zero") else []
    in_memory += ["--cross-fit"] if cross_fit else []
    if in_memory:
        names = " and ".join(in_memory)
        raise InputError(
            f"--memory cannot be used with {names}, which need{'s' * (len(in_memory) == 1)} all rows in memory: leave "
            f"out --memory or {names}"
        )


def parse_bytes(text: str) -> int:
    """Return the number of bytes in a size such as 500M or 2G."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None or float(match[1]) == 0:
        raise InputError(f"--memory is {text!r}: pass a size such as 500M or 2G")
    size = int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))
    if size < 1 << 20:
        raise InputError(f"--memory is {text!r}, less than a megabyte: pass a size such as 500M or 2G")
    return size


def _classifier(alpha: str, jobs: int, **options: Any) -> Any:
    """Return a classifier with checked parameters.

    It is a ``CRMClassifierCV``, which chooses settings on held-out groups, if ``alpha`` has several values or any
    option is "auto"; otherwise it is a ``CRMClassifier``.
    """
    from compshift.crm.classifier import CRMClassifier
    from compshift.crm.cv import CRMClassifierCV

    given = {name: value for name, value in options.items() if value is not None}
    alphas: list[float] | None = None
    if alpha != "auto":
        try:
            alphas = [float(part) for part in alpha.split(",")]
        except ValueError:
            raise InputError(
                f"--alpha is {alpha!r}: pass a number, several numbers separated by commas, or auto to choose one"
            ) from None
    clf: Any
    if alphas is None or len(alphas) > 1:
        clf = CRMClassifierCV(alphas, n_jobs=jobs, **given)
    elif "auto" in given.values():
        fixed = {"bias": "extrapolated", "anchor": "zero", "unseen_offset": 0.0}
        clf = CRMClassifierCV(alphas, n_jobs=jobs, **{**fixed, **given})
    else:
        given.pop("use_unlabelled", None)  # without a choice, a pool is always used
        clf = CRMClassifier(alphas[0], **given)
    clf._check_parameters()
    return clf


def _number_or_text(text: str | None) -> float | str | None:
    """Convert a text to a number if possible; return other texts unchanged, for the classifier to check."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text
