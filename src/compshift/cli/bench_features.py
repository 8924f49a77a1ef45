"""Features of a download for a benchmark: computed once, and kept beside its results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from compshift.bench.source import DataSource


def embedded(source: DataSource, folder: Path, backbone: str | None, *, compute: bool) -> DataSource:
    """The source with features for its images or texts; what has features already stays as it is."""
    known = source.known
    if known is None or known.embedded or known.kind == "features":
        return source
    if not compute:
        typer.echo(f"{source.label}: its features are computed first, which is not in the estimate", err=True)
        return source
    from compshift.cli.interruption import resumable
    from compshift.cli.own_table import DEFAULT_BACKBONES, require_torch

    require_torch()
    from compshift.features.embedder import Embedder
    from compshift.features.extract import extract_features
    from compshift.nn.backbones import load_backbone
    from compshift.report.terminal import progress_bar

    data = known.load(source.root)
    network = load_backbone(
        backbone or DEFAULT_BACKBONES[data.kind], data.kind, geometry=known.geometry, default_length=known.max_length
    )
    target = folder / source.label
    target.parent.mkdir(parents=True, exist_ok=True)
    with resumable(), progress_bar(f"features of {source.label}", len(data), unit="rows") as advance:
        extract_features(data, Embedder(network), target, progress=advance)
    return replace(source, path=str(target.resolve()))
