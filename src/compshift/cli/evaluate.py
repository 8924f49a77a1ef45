"""``compshift evaluate``: accuracy of a model on each group of labelled features."""

from pathlib import Path
from typing import Annotated

import typer

from compshift.cli.options import Json, Model, Prior, read_prior


def evaluate(
    model: Model,
    features: Annotated[
        Path, typer.Argument(help="Feature file with the model's targets and attributes.", show_default=False)
    ],
    prior: Prior = None,
    split: Annotated[
        str | None, typer.Option(help="Rows to score: train, val, test or all.", show_default="test if there is one")
    ] = None,
    json: Json = False,
) -> None:
    """Report average, balanced and worst-group accuracy, and every group with its interval."""
    from compshift.data.feature_files import read_features
    from compshift.estimators.evaluation import evaluate as evaluate_model
    from compshift.estimators.load import load
    from compshift.report.terminal import print_evaluation

    clf = load(model)
    if prior is not None:
        clf.set_prior(read_prior(prior, clf.space_))
    data = read_features(features, clf.space_.names)
    part = split or ("test" if "test" in data.splits else "all")
    print_evaluation(evaluate_model(clf, data.part(part)), part, as_json=json)
