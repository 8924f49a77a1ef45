"""``compshift train``: fine-tune a backbone and a head, in one process or under torchrun."""

from pathlib import Path
from typing import Annotated

import typer

from compshift._errors import unknown_name
from compshift.cli.options import (
    DATA,
    MACHINE,
    Attributes,
    FeatureColumns,
    Json,
    PathColumn,
    Root,
    Shares,
    SplitColumn,
    TextColumns,
    Workers,
)

METHOD, OPTIMISATION, SELECTION = "Method", "Optimisation", "Selection"
"""Further headings of the help."""

BALANCES = ("auto", "classes", "none")


def train(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="DATASET|TABLE|FEATURES", help="A data set's name, a table, or a feature file.", show_default=False
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the run.", show_default=False)
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with any of these options; those given here win.", show_default=False)
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="erm, groupdro, lc, sla, irm, vrex, mixup, crm, rwg, subg, dfr or crm-resolved.",
            show_default="crm",
            rich_help_panel=METHOD,
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A hyper-parameter of the method.",
            show_default=False,
            rich_help_panel=METHOD,
        ),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="small-cnn, efficientnet-lite0, minilm, linear or mlp (for features), a folder, or a Hugging Face "
            "model.",
            show_default="by the kind of samples",
            rich_help_panel=METHOD,
        ),
    ] = None,
    pooling: Annotated[
        str | None,
        typer.Option(
            help="Pooling of a Hugging Face model: auto, pooler, cls or mean.",
            show_default="auto",
            rich_help_panel=METHOD,
        ),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            help="Most tokens of a text.", show_default="as the data set or model says", rich_help_panel=METHOD
        ),
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VALUE,VALUE",
            help="A group to leave out of train and val, one value per attribute, in double quotes if it has a comma; "
            "may be repeated.",
            show_default=False,
            rich_help_panel=DATA,
        ),
    ] = None,
    root: Root = None,
    path: PathColumn = None,
    text: TextColumns = None,
    features: FeatureColumns = None,
    target: Annotated[
        str | None,
        typer.Option(help="The attribute of a table that is predicted.", show_default=False, rich_help_panel=DATA),
    ] = None,
    attributes: Attributes = "",
    split_column: SplitColumn = None,
    shares: Shares = None,
    steps: Annotated[
        int | None, typer.Option(help="Optimiser steps.", show_default="1000", rich_help_panel=OPTIMISATION)
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help="Samples in a step, over all processes.", show_default="64", rich_help_panel=OPTIMISATION),
    ] = None,
    optimiser: Annotated[
        str | None,
        typer.Option(help="auto, sgd or adamw.", show_default="sgd; adamw for texts", rich_help_panel=OPTIMISATION),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option("--lr", help="Learning rate.", show_default="by the backbone", rich_help_panel=OPTIMISATION),
    ] = None,
    weight_decay: Annotated[
        float | None,
        typer.Option(help="Weight decay, of weight matrices only.", show_default="1e-4", rich_help_panel=OPTIMISATION),
    ] = None,
    momentum: Annotated[
        float | None, typer.Option(help="Momentum of sgd.", show_default="0.9", rich_help_panel=OPTIMISATION)
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            help="constant, or linear (warm-up and decay).",
            show_default="constant; linear for adamw",
            rich_help_panel=OPTIMISATION,
        ),
    ] = None,
    warmup: Annotated[
        int | None,
        typer.Option(
            help="Steps over which the learning rate rises.",
            show_default="a tenth, if linear",
            rich_help_panel=OPTIMISATION,
        ),
    ] = None,
    clip: Annotated[
        float | None, typer.Option(help="Largest gradient norm.", show_default="any", rich_help_panel=OPTIMISATION)
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Largest entry of a batch's gradient at which training stops, for full batches.",
            show_default="never",
            rich_help_panel=OPTIMISATION,
        ),
    ] = None,
    eval_every: Annotated[
        int | None,
        typer.Option(help="Steps between evaluations and checkpoints.", show_default="100", rich_help_panel=SELECTION),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="Validation accuracy that selects: balanced, worst or average.",
            show_default="balanced",
            rich_help_panel=SELECTION,
        ),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            help="Evaluations without a better one before training stops.",
            show_default="never",
            rich_help_panel=SELECTION,
        ),
    ] = None,
    balance: Annotated[
        str,
        typer.Option(
            help="classes: draw classes equally often; none; auto: as in the data set's protocol.",
            rich_help_panel=OPTIMISATION,
        ),
    ] = "auto",
    freeze_batchnorm: Annotated[
        bool | None,
        typer.Option(
            "--freeze-batchnorm",
            metavar="",
            help="Keep the statistics of batch normalisation fixed.",
            show_default=False,
            rich_help_panel=OPTIMISATION,
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(help="auto, float32, bfloat16 or float16.", show_default="auto", rich_help_panel=OPTIMISATION),
    ] = None,
    refresh_rows: Annotated[
        int | None,
        typer.Option(
            help="Training rows behind CRM's bias at evaluations.", show_default="5000", rich_help_panel=SELECTION
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of weights, batches and splits.", show_default="0", rich_help_panel=OPTIMISATION),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.", rich_help_panel=MACHINE)] = "auto",
    workers: Workers = None,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", metavar="", help="Start again in a folder that holds a run.", rich_help_panel=MACHINE
        ),
    ] = False,
    tensorboard: Annotated[
        bool,
        typer.Option(
            "--tensorboard",
            metavar="",
            help="Log to TensorBoard too, in the folder of the run.",
            rich_help_panel=MACHINE,
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Fine-tune a backbone and a head on the train rows, and keep the checkpoint that is best on the val rows.

    The same command again goes on where a run was stopped, to the same final weights. Under torchrun, processes share
    every batch: torchrun --nproc-per-node 2 -m compshift train …
    """
    given = {
        name: value
        for name, value in locals().items()
        if name not in ("balance", "config", "output", "set_", "device", "workers", "overwrite", "tensorboard", "json")
        and value not in (None, "")
    }
    from compshift.cli.inputs import require_torch
    from compshift.cli.interruption import resumable

    require_torch()
    if balance not in BALANCES:
        raise unknown_name("balance", balance, BALANCES)
    if balance != "auto":
        given["balanced_classes"] = balance == "classes"
    from compshift.cli.train_config import TrainConfig

    chosen = TrainConfig.read(config, given, set_ or [], output)
    with resumable():
        result = chosen.run(device=device, workers=workers, overwrite=overwrite, tensorboard=tensorboard, quiet=json)
    chosen.show(result, as_json=json)
