"""``compshift evaluate``: accuracy of a model on each group of labelled data."""

from typing import Annotated

import typer

from compshift.cli.options import Json, Model, MovedBackbone, Prior, Root, SkipBroken


def evaluate(
    model: Model,
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="Feature file, table like the one that the model is made from, or name of a data set.",
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
    from compshift.cli.model_input import labelled_rows, load_model
    from compshift.estimators.evaluation import evaluate as evaluate_model
    from compshift.report.terminal import print_evaluation

    loaded = load_model(model, prior)
    data, part = labelled_rows(loaded, source, root=root, split=split, skip_broken=skip_broken, backbone=backbone)
    print_evaluation(evaluate_model(loaded.clf, data), part, as_json=json)
