"""``compshift methods``: what ``train`` can do, and the hyper-parameters that ``--set`` takes."""

import json as json_format
from typing import Any

import typer

from compshift.cli.options import Json


def methods(json: Json = False) -> None:
    """List the training methods with their hyper-parameters and defaults."""
    from compshift.cli.own_table import require_torch

    require_torch()
    from rich.console import Console

    from compshift.methods.registry import METHODS, load_installed
    from compshift.report.terminal import plain_table

    load_installed()
    found: dict[str, dict[str, Any]] = {
        name: {"summary": kind.summary, "hyperparameters": kind().hyperparameters()} for name, kind in METHODS.items()
    }
    if json:
        typer.echo(json_format.dumps(found))
        return
    table = plain_table("methods of compshift train")
    for heading in ("method", "what it does", "--set"):
        table.add_column(heading, overflow="fold")
    for name, about in found.items():
        values = " ".join(f"{key}={value}" for key, value in about["hyperparameters"].items())
        table.add_row(name, about["summary"], values)
    Console().print(table)
