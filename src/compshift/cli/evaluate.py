"""``compshift evaluate``: accuracy of a model on each group of labelled data."""

from pathlib import Path
from typing import Annotated

import typer

from compshift.cli.options import Json, Model, MovedBackbone, Prior, Root, SkipBroken, read_prior


def evaluate(
    model: Model,
    source: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT",
            help="Feature file, or a table like the one the model was fitted to, with its targets and attributes.",
            show_default=False,
        ),
    ],
    prior: Prior = None,
    split: Annotated[
        str | None, typer.Option(help="Rows to score: train, val, test or all.", show_default="test if there is one")
    ] = None,
    root: Root = None,
    skip_broken: SkipBroken = False,
    backbone: MovedBackbone = None,
    json: Json = False,
) -> None:
    """Report average, balanced and worst-group accuracy, and every group with its interval."""
    from compshift.cli.model_input import labelled_rows
    from compshift.estimators.evaluation import evaluate as evaluate_model
    from compshift.estimators.load import load
    from compshift.report.terminal import print_evaluation

    clf = load(model)
    if prior is not None:
        clf.set_prior(read_prior(prior, clf.space_))
    data, part = labelled_rows(clf, source, root=root, split=split, skip_broken=skip_broken, backbone=backbone)
    print_evaluation(evaluate_model(clf, data), part, as_json=json)
