"""``compshift features``: compute features of images or texts and write them as Parquet shards."""

from pathlib import Path
from typing import Annotated

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
    Json,
    Overwrite,
    PathColumn,
    Root,
    SkipBroken,
    SplitColumn,
    Target,
    TextColumns,
    Weights,
    Workers,
)


def features(
    source: Annotated[
        str, typer.Argument(metavar="DATASET|TABLE", help="Name of a data set, or a table.", show_default=False)
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of shards to write.", show_default=False)],
    root: Root = None,
    backbone: Backbone = None,
    weights: Weights = None,
    path: PathColumn = None,
    text: TextColumns = None,
    target: Target = "",
    attributes: Attributes = "",
    split_column: SplitColumn = None,
    pooling: Annotated[
        str,
        typer.Option(help="Pooling of a Hugging Face model: auto, pooler, cls or mean.", rich_help_panel=DATA),
    ] = "auto",
    max_length: Annotated[
        int | None,
        typer.Option(
            help="Maximum number of tokens per text.",
            min=1,
            show_default="set by the data set or the model",
            rich_help_panel=DATA,
        ),
    ] = None,
    batch_size: BatchSize = 32,
    workers: Workers = None,
    device: Device = "auto",
    dtype: Annotated[
        str,
        typer.Option(
            help="Precision: float32, bfloat16 or auto (bfloat16 on CUDA devices that support it, else float32).",
            rich_help_panel=MACHINE,
        ),
    ] = "auto",
    shard_rows: Annotated[
        int,
        typer.Option(
            help="Rows per shard. If the command is killed, at most one shard must be computed again.",
            min=1,
            rich_help_panel=MACHINE,
        ),
    ] = 1024,
    skip_broken: SkipBroken = False,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Compute features of every row and write Parquet shards. Run the same command again to continue after a stop."""
    from compshift.cli.inputs import TableOptions, load_source, path_of, require_torch
    from compshift.cli.interruption import resumable
    from compshift.data.benchmarks import MODULES, benchmark
    from compshift.data.dataset import DEFAULT_BACKBONES, has_pairs

    if source in MODULES and benchmark(source).kind == "features":
        raise InputError(f"{source} already consists of features: write them with `compshift datasets export {source}`")
    if source not in MODULES and Path(source).exists() and path is None and text is None:
        raise InputError("a table needs --path or --text: name its column of image paths or of texts")
    check_apart(output, path_of(source), root, backbone)
    table = TableOptions(
        target=target, attributes=attributes, path=path, text=text, root=root, split_column=split_column
    )
    loaded = load_source(source, table)
    data = loaded.data
    require_torch()
    from compshift.features.embedder import Embedder
    from compshift.features.extract import extract_features
    from compshift.nn.backbones import load_backbone
    from compshift.report.terminal import print_extraction, progress_bar

    network = load_backbone(
        backbone or DEFAULT_BACKBONES[data.kind],
        data.kind,
        geometry=loaded.geometry,
        max_length=max_length,
        default_length=loaded.max_length,
        pooling=pooling,
        pairs="auto" if has_pairs(data.samples) else None,
        weights=weights,
    )
    embedder = Embedder(network, device=device, dtype=dtype, batch_size=batch_size, num_workers=workers)
    with resumable(), progress_bar("features", len(data), unit="rows") as advance:
        done = extract_features(
            data,
            embedder,
            output,
            shard_rows=shard_rows,
            skip_broken=skip_broken,
            overwrite=overwrite,
            progress=advance,
        )
    print_extraction(done, network.name, as_json=json)
