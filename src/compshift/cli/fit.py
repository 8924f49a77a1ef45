"""``compshift fit``: from a feature file to a model file."""

from pathlib import Path
from typing import Annotated

import typer

from compshift._files import check_target
from compshift.cli.options import Json, names, read_prior


def fit(
    features: Annotated[
        Path, typer.Argument(help="Feature file: .npz, .parquet or a folder of shards.", show_default=False)
    ],
    target: Annotated[
        str, typer.Option(help="What to predict: one attribute, or several separated by commas.", show_default=False)
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Model file to write.", show_default=False)],
    attributes: Annotated[
        str, typer.Option(help="Further attributes, separated by commas, known in training only.")
    ] = "",
    alpha: Annotated[float, typer.Option(help="Strength of the ridge penalty, free of the features' unit.")] = 1e-2,
    prior: Annotated[
        str, typer.Option(help="Prior over groups in use: uniform, hull, train, or a CSV file.")
    ] = "uniform",
    bias: Annotated[
        str, typer.Option(help="Bias of a group: extrapolated, or learned (0 if unseen).")
    ] = "extrapolated",
    support: Annotated[str, typer.Option(help="Groups that can be predicted: all or hull.")] = "all",
    split: Annotated[
        str, typer.Option(help="Rows to fit on, where the file has splits: train, val, test or all.")
    ] = "train",
    tol: Annotated[float, typer.Option(help="Largest gradient entry at which the fit has converged.")] = 1e-6,
    max_iter: Annotated[int, typer.Option(help="Most iterations.")] = 1000,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", metavar="", help="Log every iteration.")] = False,
    json: Json = False,
) -> None:
    """Fit a classifier to features and write it to a file."""
    from compshift.data.feature_files import read_features
    from compshift.estimators.crm import CRMClassifier
    from compshift.report.terminal import print_fit

    check_target(output, features)
    targets = names(target, "--target")
    nuisances = names(attributes, "--attributes") if attributes else []
    data = read_features(features, [*targets, *nuisances]).part(split)
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
    clf.save(output)
    print_fit(clf, len(data), output, as_json=json)
