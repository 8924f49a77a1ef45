"""Where a model is written to.

``compshift fit``: from features, or a table of images, texts or numbers, to a model file.
"""

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from compshift._errors import InputError
from compshift._files import check_apart, check_target
from compshift.cli.options import (
    PRIORS,
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
    TextColumns,
    Workers,
    check_prior,
    chosen_part,
    names,
    read_prior,
)

TABLES = (".csv", ".tsv", ".txt", ".xls", ".xlsx", ".parquet", ".pq", ".npz", ".npy", ".json", ".jsonl")
PAGES = (".html", ".htm", ".md", ".png", ".jpg", ".jpeg", ".svg", ".pdf", ".py", ".ipynb", ".toml", ".yaml")
ARCHIVES = (".zip", ".gz", ".pkl", ".joblib", ".pt", ".pth")
"""Endings of files that a model would be mistaken for, or would replace by mistake."""


def check_model_path(output: Path, *sources: str | Path | None) -> None:
    """Refuse a path that a model cannot be written to, or that is one of the ``sources``."""
    check_apart(output, *sources)
    ending = output.suffix.lower()
    fitted = output.with_suffix(".safetensors") if ending else output
    if ending == ".onnx":
        raise InputError(
            f"--output is {str(output)!r}, and `compshift fit` writes no ONNX: fit with -o {fitted} first, then run "
            f"`compshift export {fitted} -o {output}`"
        )
    if ending in (*TABLES, *PAGES, *ARCHIVES):
        raise InputError(
            f"--output is {str(output)!r}, which names another kind of file: models are written as .safetensors, as in "
            f"-o {fitted}"
        )
    check_target(output, *sources)


def cache_beside(output: Path) -> Path:
    """``birds.features`` for ``birds.safetensors``."""
    stem = output.stem if output.suffix == ".safetensors" else output.name
    return output.with_name(f"{stem}.features")


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
    features: FeatureColumns = None,
    root: Root = None,
    backbone: Backbone = None,
    cache: Annotated[
        Path | None,
        typer.Option(help="Folder for the features of images or texts.", show_default="MODEL.features"),
    ] = None,
    split_column: SplitColumn = None,
    shares: Shares = None,
    seed: Annotated[int, typer.Option(help="Seed of --shares.", min=0)] = 0,
    skip_broken: SkipBroken = False,
    overwrite: Overwrite = False,
    batch_size: BatchSize = 32,
    workers: Workers = None,
    device: Device = "auto",
    alpha: Annotated[
        str,
        typer.Option(
            help="Strength of the ridge penalty, free of the features' unit; several to choose from, separated by "
            "commas, or auto: chosen by accuracy on groups that are held out."
        ),
    ] = "1e-2",
    prior: Annotated[
        str, typer.Option(help="Prior over groups in use: uniform, hull, train, or a CSV file.")
    ] = "uniform",
    bias: Annotated[
        str | None,
        typer.Option(
            help="Bias of a group: extrapolated, cumulant, shrunk, learned (0 if unseen) or auto.",
            show_default="extrapolated, or auto if alpha is chosen",
        ),
    ] = None,
    anchor: Annotated[
        str | None,
        typer.Option(
            help="What the ridge pulls to: zero, gaussian or auto.", show_default="zero, or auto if alpha is chosen"
        ),
    ] = None,
    cross_fit: Annotated[
        bool, typer.Option("--cross-fit", metavar="", help="Estimate biases on energies of rows not fitted to.")
    ] = False,
    unseen_offset: Annotated[
        str | None,
        typer.Option(
            help="Nats by which groups that training lacks are favoured, or auto.",
            show_default="0, or auto if alpha is chosen",
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes to choose alpha with.", min=1)] = 1,
    support: Annotated[str, typer.Option(help="Groups that can be predicted: all, hull or observed.")] = "all",
    split: Annotated[
        str | None,
        typer.Option(help="Rows to fit on: train, val, test or all.", show_default="train if there are splits"),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Read Parquet features in blocks that take so much memory, such as 2G, instead of whole.",
        ),
    ] = None,
    tol: Annotated[float, typer.Option(help="Largest gradient entry at which the fit has converged.")] = 1e-6,
    max_iter: Annotated[int, typer.Option(help="Most iterations.")] = 1000,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", metavar="", help="Log every iteration.")] = False,
    json: Json = False,
) -> None:
    """Fit a classifier and write it to a file.

    With --path or --text the features are computed first, by --backbone, and kept in --cache.
    """
    from compshift.cli.inputs import made_by, refuse, samples_recipe, table_options, warn_of_scales
    from compshift.cli.options import resumable
    from compshift.data.table import SPLIT_COLUMN
    from compshift.data.table_files import column_names
    from compshift.data.text_tables import TEXT, ending
    from compshift.report.terminal import print_extraction, print_fit, progress_bar

    check_model_path(output, source, None if prior in PRIORS else prior, backbone)
    check_apart(cache or cache_beside(output), source, root, backbone)
    clf = _classifier(
        alpha,
        jobs,
        bias=bias,
        anchor=anchor,
        cross_fit=cross_fit,
        unseen_offset=_number_or_auto(unseen_offset),
        support=support,
        tol=tol,
        max_iter=max_iter,
        verbose=verbose,
    )
    check_prior(prior)
    targets = names(target, "--target")
    nuisances = names(attributes, "--attributes") if attributes else []
    if path is None and text is None and features is None and ending(source) not in TEXT:
        given = {"--root": root, "--backbone": backbone, "--cache": cache, "--split-column": split_column}
        further = {"--shares": shares, "--skip-broken": skip_broken, "--overwrite": overwrite}
        of_networks = {"--workers": workers is not None, "--device": device != "auto"}
        refuse({**given, **further, **of_networks}, "for tables (with --path, --text or --features)")
        if memory is not None:
            _check_streamed(alpha, bias=bias, anchor=anchor, cross_fit=cross_fit, unseen_offset=unseen_offset)
            n_rows = _fit_store(clf, source, targets, nuisances, split, prior, memory)
            clf.save(output, inputs=made_by(source))
            print_fit(clf, n_rows, output, as_json=json)
            return
        from compshift.data.feature_files import read_features

        data = read_features(source, [*targets, *nuisances])
        inputs = made_by(source)
    else:
        if memory is not None:
            raise InputError(
                f"--memory given, and {source.name!r} is a table: leave it out, or pass features in Parquet, such as "
                "`compshift features` writes"
            )
        recipe = samples_recipe(path, text, features, backbone)
        if shares is not None and SPLIT_COLUMN in column_names(source):
            raise InputError("--shares given, and the table has a column 'split': leave one of them out")
        options = table_options(target, attributes, split_column, shares, seed)
        data = recipe.load_table(source, **options, root=root)
        recipe = recipe.with_split(data, options["split"], seed)
        if recipe.kind != "features":
            folder = cache if cache is not None else cache_beside(output)
            with resumable(), progress_bar("features", len(data), unit="rows") as advance:
                data, recipe, done = recipe.cached(
                    data,
                    folder,
                    skip_broken=skip_broken,
                    overwrite=overwrite,
                    progress=advance,
                    batch_size=batch_size,
                    num_workers=workers,
                    device=device,
                )
            if not json:
                print_extraction(done, recipe.backbone, as_json=False)
            elif done.broken:
                typer.echo(f"{len(done.broken)} samples cannot be read and are left out", err=True)
        else:
            warn_of_scales(data.X, recipe.columns)
        inputs = recipe.to_dict()
    data, _ = chosen_part(data, split, "train")
    y = data.columns(targets)
    clf.set_params(prior=read_prior(prior, data.space)).fit(
        data.X,
        y[targets[0]] if len(targets) == 1 else y,
        attributes=data.columns(nuisances) if nuisances else None,
    )
    clf.save(output, inputs=inputs)
    if not json:
        _print_choice(clf)
    print_fit(clf, len(data), output, as_json=json)


def _fit_store(
    clf: Any, source: Path, targets: list[str], nuisances: list[str], split: str | None, prior: str, memory: str
) -> int:
    """Fit Parquet features block by block, and say how many rows there were."""
    from compshift.core.groups import GroupSpace
    from compshift.data.feature_store import FeatureStore
    from compshift.data.shards import is_parquet

    if not is_parquet(source):
        raise InputError(
            f"--memory given, and {source.name!r} is not Parquet: leave it out, or store features as Parquet"
        )
    part = ("train" if "split" in FeatureStore(source).columns else "all") if split is None else split
    store = FeatureStore(source, part)
    given = read_prior(prior, GroupSpace.from_table(store.frame([*targets, *nuisances])))
    clf.set_params(prior=given, memory=_size(memory)).fit(
        store, targets[0] if len(targets) == 1 else targets, attributes=nuisances or None
    )
    return store.n_rows


def _check_streamed(
    alpha: str, *, bias: str | None, anchor: str | None, cross_fit: bool, unseen_offset: str | None
) -> None:
    """Refuse settings that need all rows at once."""
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
            f"--memory given with {' and '.join(whole)}: rows that are read in blocks are fitted with anchor='zero' "
            "and cross_fit=False; leave one or the other out"
        )


def _print_choice(clf: Any) -> None:
    """What was chosen beside alpha; where alpha was chosen too, the fit's own lines tell all of it."""
    if hasattr(clf, "n_splits_"):
        return
    found = {
        "anchor": f"{clf.anchor_} anchor",
        "bias": f"{clf.selected_bias_} bias",
        "unseen_offset": f"unseen groups {round(clf.unseen_offset_, 2) + 0.0:+.2f} nats",  # never −0.00
    }
    chosen = [text for name, text in found.items() if getattr(clf, name) == "auto"]
    if chosen:
        typer.echo(f"chosen on held-out groups: {', '.join(chosen)}")


def _size(text: str) -> int:
    """Bytes of a size such as 500M or 2G."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None or float(match[1]) == 0:
        raise InputError(f"--memory is {text!r}: pass a size such as 500M or 2G")
    size = int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))
    if size < 1 << 20:
        raise InputError(f"--memory is {text!r}, less than a megabyte: pass a size such as 500M or 2G")
    return size


def _classifier(alpha: str, jobs: int, **options: Any) -> Any:
    """A classifier with one ridge, or with several to choose from, once its parameters have been checked."""
    options = {name: value for name, value in options.items() if value is not None}
    from compshift.crm.classifier import CRMClassifier
    from compshift.crm.cv import ALPHAS, CRMClassifierCV

    if alpha == "auto":
        alphas: list[float] = list(ALPHAS)
    else:
        try:
            alphas = [float(part) for part in alpha.split(",")]
        except ValueError:
            raise InputError(
                f"--alpha is {alpha!r}: pass a number, several separated by commas, or auto to have it chosen"
            ) from None
    clf = CRMClassifier(alphas[0], **options) if len(alphas) == 1 else CRMClassifierCV(alphas, n_jobs=jobs, **options)
    clf._check_parameters()
    return clf


def _number_or_auto(text: str | None) -> float | str | None:
    """A number, where it is one; what else it may be the classifier knows."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text
