"""``compshift train``: fine-tune a backbone and a head, in one process or under torchrun."""

from pathlib import Path
from typing import Annotated

import typer

from compshift.cli.options import Attributes, Json, PathColumn, Root, SplitColumn, TextColumns, Workers


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
            help="erm, groupdro, lc, sla, irm, vrex, mixup, crm, rwg, subg, dfr or crm-resolved.", show_default="crm"
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A hyper-parameter of the method.", show_default=False),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="small-cnn, efficientnet-lite0, minilm, linear or mlp (for features), a folder, or a Hugging Face "
            "model.",
            show_default="by the kind of samples",
        ),
    ] = None,
    pooling: Annotated[
        str | None,
        typer.Option(help="How a Hugging Face model is pooled: auto, pooler, cls or mean.", show_default="auto"),
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Most tokens of a text.", show_default="as the data set or model says")
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VALUE,VALUE",
            help="A group to leave out of train and val, one value per attribute; may be repeated.",
            show_default=False,
        ),
    ] = None,
    root: Root = None,
    path: PathColumn = None,
    text: TextColumns = None,
    features: Annotated[
        str | None,
        typer.Option(metavar="COLUMNS", help="Columns of numbers, separated by commas.", show_default=False),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="The attribute of a table that is predicted.", show_default=False)
    ] = None,
    attributes: Attributes = "",
    split_column: SplitColumn = None,
    shares: Annotated[
        str | None,
        typer.Option(help="Split a table at random within groups, as in 0.7,0.1,0.2 for train, val, test."),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps.", show_default="1000")] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Samples in a step, over all processes.", show_default="64")
    ] = None,
    optimiser: Annotated[
        str | None, typer.Option(help="auto, sgd or adamw.", show_default="sgd; adamw for texts")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", "--lr", help="Learning rate.", show_default="by the backbone")
    ] = None,
    weight_decay: Annotated[
        float | None, typer.Option(help="Weight decay, of weight matrices only.", show_default="1e-4")
    ] = None,
    momentum: Annotated[float | None, typer.Option(help="Momentum of sgd.", show_default="0.9")] = None,
    schedule: Annotated[
        str | None,
        typer.Option(help="constant, or linear (warm-up and decay).", show_default="constant; linear for adamw"),
    ] = None,
    warmup: Annotated[
        int | None, typer.Option(help="Steps over which the rate rises.", show_default="a tenth, if linear")
    ] = None,
    clip: Annotated[float | None, typer.Option(help="Largest gradient norm.", show_default="any")] = None,
    eval_every: Annotated[
        int | None, typer.Option(help="Steps between evaluations and checkpoints.", show_default="100")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="Validation accuracy that selects: balanced, worst or average.", show_default="balanced"),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(help="Evaluations without a better one before training stops.", show_default="never"),
    ] = None,
    balanced_classes: Annotated[
        bool | None,
        typer.Option(
            "--balanced-classes/--no-balanced-classes",
            help="Draw classes equally often.",
            show_default="as the data set's protocol",
        ),
    ] = None,
    freeze_batchnorm: Annotated[
        bool | None,
        typer.Option("--freeze-batchnorm", metavar="", help="Keep batch statistics as they are.", show_default=False),
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="auto, float32, bfloat16 or float16.", show_default="auto")
    ] = None,
    refresh_rows: Annotated[
        int | None, typer.Option(help="Training rows behind CRM's bias at evaluations.", show_default="5000")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, batches and splits.", show_default="0")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    workers: Workers = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", metavar="", help="Start again in a folder that holds a run.")
    ] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", metavar="", help="Log to TensorBoard too, in the folder of the run.")
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
        if name not in ("config", "output", "set_", "device", "workers", "overwrite", "tensorboard", "json")
        and value not in (None, "")
    }
    from compshift.cli.own_table import require_torch, resumable

    require_torch()
    from compshift.cli.train_config import TrainConfig

    chosen = TrainConfig.read(config, given, set_ or [], output)
    with resumable():
        result = chosen.run(device=device, workers=workers, overwrite=overwrite, tensorboard=tensorboard, quiet=json)
    chosen.show(result, as_json=json)
