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
    ProtocolName,
    ProtocolSet,
    Root,
    Shares,
    SplitColumn,
    TextColumns,
    Workers,
    assignments,
)

METHOD = "Method"
"""Help heading for the options of the method and the backbone."""

OPTIMISATION = "Optimisation"
"""Help heading for the options of the optimiser and the batches."""

SELECTION = "Selection"
"""Help heading for the options of evaluations during training."""

BALANCES = ("auto", "classes", "none")
"""Values of --balance."""


def train(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="DATASET|TABLE|FEATURES", help="Name of a data set, a table, or a feature file.", show_default=False
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder to write the run to (required).", show_default=False)
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file with options; options on the command line override it.", show_default=False),
    ] = None,
    protocol: ProtocolName = None,
    protocol_set: ProtocolSet = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="Training method: erm, groupdro, lc, sla, irm, vrex, mixup, crm, rwg, subg, dfr or crm-resolved.",
            show_default="crm",
            rich_help_panel=METHOD,
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Hyper-parameter of the method, see `compshift methods`. Repeatable.",
            show_default=False,
            rich_help_panel=METHOD,
        ),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="Network to train: small-cnn, efficientnet-lite0, torchvision/resnet50, minilm, linear or mlp (for "
            "features), a folder, or a Hugging Face model.",
            show_default="depends on the kind of samples",
            rich_help_panel=METHOD,
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Checkpoint file of the backbone torchvision/resnet50, as torchvision publishes it.",
            show_default="resnet50-0676ba61.pth in torch's cache",
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
            help="Maximum number of tokens per text.",
            show_default="set by the data set or the model",
            rich_help_panel=METHOD,
        ),
    ] = None,
    dropout: Annotated[
        float | None,
        typer.Option(
            help="Probability with which each feature of a text is set to zero in training; BERT's own classifiers "
            "use 0.1 and --pooling pooler.",
            show_default="0",
            rich_help_panel=METHOD,
        ),
    ] = None,
    unlabelled: Annotated[
        str | None,
        typer.Option(
            metavar="POOL",
            help="Table with the same sample columns, or feature file, of unlabelled samples like those on which "
            "the model will be used. crm-resolved solves its head on them too, if this helps on held-out groups.",
            show_default=False,
            rich_help_panel=DATA,
        ),
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VALUE,VALUE",
            help="Group to drop from train and val: one value per attribute; put a value that contains a comma in "
            "double quotes. Repeatable.",
            show_default=False,
            rich_help_panel=DATA,
        ),
    ] = None,
    root: Root = None,
    path: PathColumn = None,
    text: TextColumns = None,
    columns: FeatureColumns = None,
    target: Annotated[
        str | None,
        typer.Option(help="Attribute to predict in a table or feature file.", show_default=False, rich_help_panel=DATA),
    ] = None,
    attributes: Attributes = "",
    split_column: SplitColumn = None,
    shares: Shares = None,
    steps: Annotated[
        int | None, typer.Option(help="Number of optimiser steps.", show_default="1000", rich_help_panel=OPTIMISATION)
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Samples per step, summed over all processes.", show_default="64", rich_help_panel=OPTIMISATION
        ),
    ] = None,
    optimiser: Annotated[
        str | None,
        typer.Option(
            help="Optimiser: auto, sgd or adamw.", show_default="sgd; adamw for texts", rich_help_panel=OPTIMISATION
        ),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option("--lr", help="Learning rate.", show_default="set by the backbone", rich_help_panel=OPTIMISATION),
    ] = None,
    weight_decay: Annotated[
        float | None,
        typer.Option(
            help="Weight decay; applies to weight matrices only.", show_default="1e-4", rich_help_panel=OPTIMISATION
        ),
    ] = None,
    momentum: Annotated[
        float | None, typer.Option(help="Momentum of sgd.", show_default="0.9", rich_help_panel=OPTIMISATION)
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            help="Learning-rate schedule: constant, or linear (warm-up, then decay).",
            show_default="constant; linear for adamw",
            rich_help_panel=OPTIMISATION,
        ),
    ] = None,
    warmup: Annotated[
        int | None,
        typer.Option(
            help="Number of steps over which the learning rate rises.",
            show_default="a tenth of --steps if the schedule is linear, else 0",
            rich_help_panel=OPTIMISATION,
        ),
    ] = None,
    clip: Annotated[
        float | None,
        typer.Option(
            help="Gradient norm above which gradients are clipped.",
            show_default="no clipping",
            rich_help_panel=OPTIMISATION,
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Stop once no gradient entry exceeds this; meaningful only with full batches.",
            show_default="do not stop early",
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
            help="Validation accuracy that selects the checkpoint: balanced, worst or average.",
            show_default="balanced",
            rich_help_panel=SELECTION,
        ),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            help="Stop after this many evaluations without improvement.",
            show_default="do not stop early",
            rich_help_panel=SELECTION,
        ),
    ] = None,
    balance: Annotated[
        str,
        typer.Option(
            help="Class balance of batches: classes (draw all classes equally often), none, or auto (set by the data "
            "set).",
            rich_help_panel=OPTIMISATION,
        ),
    ] = "auto",
    freeze_batchnorm: Annotated[
        bool | None,
        typer.Option(
            "--freeze-batchnorm",
            metavar="",
            help="Keep the running statistics of batch normalisation fixed.",
            show_default=False,
            rich_help_panel=OPTIMISATION,
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="Precision: auto, float32, bfloat16 or float16.", show_default="auto", rich_help_panel=OPTIMISATION
        ),
    ] = None,
    refresh_rows: Annotated[
        int | None,
        typer.Option(
            help="Number of training rows from which CRM's bias is computed at each evaluation.",
            show_default="5000",
            rich_help_panel=SELECTION,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Seed of initial weights, batches and the random split.",
            show_default="0",
            rich_help_panel=OPTIMISATION,
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="Device: auto, cpu or cuda.", rich_help_panel=MACHINE)] = "auto",
    workers: Workers = None,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", metavar="", help="Replace a run in the output folder.", rich_help_panel=MACHINE),
    ] = False,
    tracker: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Also log to an experiment tracker: tensorboard, wandb, mlflow, aim, comet_ml, clearml, dvclive, … "
            "Repeatable.",
            show_default=False,
            rich_help_panel=MACHINE,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Fine-tune a backbone and a head on the train rows, and keep the checkpoint that is best on the val rows.

    Run the same command again to continue a run that was stopped; the final weights are the same as without the stop.
    Under torchrun, each batch is divided among the processes: torchrun --nproc-per-node 2 -m compshift train …
    """
    given = {
        name: value
        for name, value in locals().items()
        if name not in ("balance", "config", "output", "set_", "device", "workers", "overwrite", "tracker", "json")
        and value not in (None, "")
    }
    if protocol_set:
        given["protocol_set"] = assignments(protocol_set, "--protocol-set")
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
        result = chosen.run(device=device, workers=workers, overwrite=overwrite, trackers=tracker or [], quiet=json)
    chosen.show(result, as_json=json)
