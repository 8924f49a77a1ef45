"""``compshift fit``: from features, or a table of images, texts or numbers, to a model file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compshift._errors import InputError
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
    Workers,
    check_prior,
    is_named_prior,
    read_prior,
    reject_unused,
)

if TYPE_CHECKING:
    from compshift.cli.inputs import TableOptions

MODEL, CHOOSING = "Model", "Choosing"
"""Further headings of the help."""


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
    seed: Annotated[int, typer.Option(help="Seed of --shares.", min=0, rich_help_panel=DATA)] = 0,
    split: Annotated[
        str | None,
        typer.Option(
            help="Rows to fit on: train, val, test or all.",
            show_default="train if there are splits",
            rich_help_panel=DATA,
        ),
    ] = None,
    backbone: Backbone = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the features of images or texts.", show_default="MODEL.features", rich_help_panel=DATA
        ),
    ] = None,
    overwrite: Overwrite = False,
    skip_broken: SkipBroken = False,
    prior: Annotated[
        str,
        typer.Option(help="Prior over groups in use: uniform, hull, train, or a CSV file.", rich_help_panel=MODEL),
    ] = "uniform",
    support: Annotated[
        str, typer.Option(help="Groups that can be predicted: all, hull or observed.", rich_help_panel=MODEL)
    ] = "all",
    cross_fit: Annotated[
        bool,
        typer.Option(
            "--cross-fit",
            metavar="",
            help="Estimate biases on energies of rows that were not fitted.",
            rich_help_panel=MODEL,
        ),
    ] = False,
    tol: Annotated[
        float, typer.Option(help="Largest gradient entry at which the fit has converged.", rich_help_panel=MODEL)
    ] = 1e-6,
    max_iter: Annotated[int, typer.Option(help="Most iterations.", rich_help_panel=MODEL)] = 1000,
    alpha: Annotated[
        str,
        typer.Option(
            help="Strength of the ridge penalty, independent of the features' unit; several to choose from, separated "
            "by commas, or auto: chosen by accuracy on held-out groups.",
            rich_help_panel=CHOOSING,
        ),
    ] = "1e-2",
    bias: Annotated[
        str | None,
        typer.Option(
            help="Bias of a group: extrapolated, cumulant, shrunk, learned (0 if unseen) or auto.",
            show_default="extrapolated, or auto if alpha is chosen",
            rich_help_panel=CHOOSING,
        ),
    ] = None,
    anchor: Annotated[
        str | None,
        typer.Option(
            help="Weights that the ridge pulls to: zero, gaussian or auto.",
            show_default="zero, or auto if alpha is chosen",
            rich_help_panel=CHOOSING,
        ),
    ] = None,
    unseen_offset: Annotated[
        str | None,
        typer.Option(
            help="Nats by which groups that training lacks are favoured, or auto.",
            show_default="0, or auto if alpha is chosen",
            rich_help_panel=CHOOSING,
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes to choose with.", min=1, rich_help_panel=CHOOSING)] = 1,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Read Parquet features in blocks that take this much memory, such as 2G, instead of whole.",
            rich_help_panel=MACHINE,
        ),
    ] = None,
    batch_size: BatchSize = 32,
    workers: Workers = None,
    device: Device = "auto",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", metavar="", help="Log every iteration.")] = False,
    json: Json = False,
) -> None:
    """Fit a classifier and write it to a file.

    With --path or --text the features are computed first, by --backbone, and kept in --cache.
    """
    from compshift.cli.inputs import TableOptions, cache_beside, check_model_path, feature_maker, split_part
    from compshift.report.terminal import print_fit

    check_model_path(output, source, None if is_named_prior(prior) else prior, backbone)
    cache_folder = cache or cache_beside(output)
    check_apart(cache_folder, source, root, backbone)
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
        split=split,
        skip_broken=skip_broken,
    )
    clf = _classifier(
        alpha,
        jobs,
        bias=bias,
        anchor=anchor,
        unseen_offset=_number_or_text(unseen_offset),
        cross_fit=cross_fit,
        support=support,
        tol=tol,
        max_iter=max_iter,
        verbose=verbose,
    )
    check_prior(prior)
    targets, nuisances = table.targets, table.nuisances
    if table.is_feature_file(source):
        given = {"--root": root, "--backbone": backbone, "--cache": cache, "--split-column": split_column}
        further = {"--shares": shares, "--skip-broken": skip_broken, "--overwrite": overwrite}
        of_networks = {"--workers": workers is not None, "--device": device != "auto"}
        reject_unused({**given, **further, **of_networks}, "for tables (with --path, --text or --features)")
        inputs = feature_maker(source)
        if memory is not None:
            _check_streamed(alpha, bias=bias, anchor=anchor, cross_fit=cross_fit, unseen_offset=unseen_offset)
            n_rows = _fit_store(clf, source, table, prior, memory)
            clf.save(output, inputs=inputs)
            print_fit(clf, n_rows, output, as_json=json)
            return
        from compshift.data.feature_files import read_features

        data = read_features(source, [*targets, *nuisances])
    else:
        if memory is not None:
            raise InputError(
                f"--memory given, and {source.name!r} is a table: leave it out, or pass features in Parquet, such as "
                "`compshift features` writes"
            )
        machine = {"batch_size": batch_size, "num_workers": workers, "device": device}
        data, inputs = _table_features(table, source, cache_folder, overwrite=overwrite, quiet=json, **machine)
    data, _ = split_part(data, split, "train")
    y = data.columns(targets)
    clf.set_params(prior=read_prior(prior, data.space)).fit(
        data.X,
        y[targets[0]] if len(targets) == 1 else y,
        attributes=data.columns(nuisances) if nuisances else None,
    )
    clf.save(output, inputs=inputs)
    print_fit(clf, len(data), output, as_json=json)


def _table_features(
    table: TableOptions, source: Path, cache: Path, *, overwrite: bool, quiet: bool, **machine: Any
) -> tuple[Any, dict[str, Any]]:
    """Return a table with features as samples, computed and cached if need be, and the recipe that a model keeps."""
    from compshift.cli.inputs import warn_of_scales
    from compshift.cli.interruption import resumable
    from compshift.data.table import SPLIT_COLUMN
    from compshift.data.table_files import column_names
    from compshift.report.terminal import print_extraction, progress_bar

    recipe = table.recipe()
    if table.shares is not None and SPLIT_COLUMN in column_names(source):
        raise InputError("--shares given, and the table has a column 'split': leave one of them out")
    data, recipe = table.load_table(source, recipe)
    if recipe.kind == "features":
        warn_of_scales(data.X, recipe.columns)
        return data, recipe.to_dict()
    with resumable(), progress_bar("features", len(data), unit="rows") as advance:
        data, recipe, done = recipe.cached(
            data, cache, skip_broken=table.skip_broken, overwrite=overwrite, progress=advance, **machine
        )
    if not quiet:
        print_extraction(done, recipe.backbone, as_json=False)
    elif done.broken:
        typer.echo(f"{len(done.broken)} samples cannot be read and are left out", err=True)
    return data, recipe.to_dict()


def _fit_store(clf: Any, source: Path, table: TableOptions, prior: str, memory: str) -> int:
    """Fit Parquet features block by block, and return the number of rows."""
    from compshift.core.groups import GroupSpace
    from compshift.data.feature_store import FeatureStore
    from compshift.data.shards import is_parquet

    if not is_parquet(source):
        raise InputError(
            f"--memory given, and {source.name!r} is not Parquet: leave it out, or store features as Parquet"
        )
    targets, nuisances = table.targets, table.nuisances
    part = ("train" if "split" in FeatureStore(source).columns else "all") if table.split is None else table.split
    store = FeatureStore(source, part, memory=_size(memory))
    given = read_prior(prior, GroupSpace.from_table(store.frame([*targets, *nuisances])))
    clf.set_params(prior=given).fit(store, targets[0] if len(targets) == 1 else targets, attributes=nuisances or None)
    return store.n_rows


def _check_streamed(
    alpha: str, *, bias: str | None, anchor: str | None, cross_fit: bool, unseen_offset: str | None
) -> None:
    """Check that no setting needs all rows in memory."""
    options = {"--bias": bias, "--anchor": anchor, "--unseen-offset": unseen_offset}
    chosen = [f"--alpha {alpha}"] if alpha == "auto" or "," in alpha else []
    chosen += [f"{option} auto" for option, value in options.items() if value == "auto"]
    if chosen:
        raise InputError(
            f"--memory given with {' and '.join(chosen)}: leave --memory out to choose one on rows that fit in memory, "
            "for example on a sample of them, then pass what was chosen"
        )
    whole = [f"--anchor {anchor}"] if anchor not in (None, "zero") else []
    whole += ["--cross-fit"] if cross_fit else []
    if whole:
        raise InputError(
            f"--memory given with {' and '.join(whole)}: rows that are read in blocks are fitted with --anchor zero "
            "and without --cross-fit; leave one or the other out"
        )


def _size(text: str) -> int:
    """Return the bytes of a size such as 500M or 2G."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None or float(match[1]) == 0:
        raise InputError(f"--memory is {text!r}: pass a size such as 500M or 2G")
    size = int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))
    if size < 1 << 20:
        raise InputError(f"--memory is {text!r}, less than a megabyte: pass a size such as 500M or 2G")
    return size


def _classifier(alpha: str, jobs: int, **options: Any) -> Any:
    """Return a classifier with checked parameters: one that chooses if anything is "auto" or has several values."""
    from compshift.crm.classifier import CRMClassifier
    from compshift.crm.cv import ALPHAS, CRMClassifierCV

    given = {name: value for name, value in options.items() if value is not None}
    if alpha == "auto":
        alphas: list[float] = list(ALPHAS)
    else:
        try:
            alphas = [float(part) for part in alpha.split(",")]
        except ValueError:
            raise InputError(
                f"--alpha is {alpha!r}: pass a number, several separated by commas, or auto to have it chosen"
            ) from None
    clf: Any
    if len(alphas) > 1:
        clf = CRMClassifierCV(alphas, n_jobs=jobs, **given)
    elif "auto" in given.values():
        fixed = {"bias": "extrapolated", "anchor": "zero", "unseen_offset": 0.0}
        clf = CRMClassifierCV(alphas, n_jobs=jobs, **{**fixed, **given})
    else:
        clf = CRMClassifier(alphas[0], **given)
    clf._check_parameters()
    return clf


def _number_or_text(text: str | None) -> float | str | None:
    """Return a number if the text is one; the classifier checks any other text."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text
