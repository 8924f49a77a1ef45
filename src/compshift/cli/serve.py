"""``compshift serve``: answer predictions of a model over HTTP."""

from __future__ import annotations

import importlib.util
from typing import Annotated

import typer

from compshift._errors import InputError
from compshift.cli.interruption import Interrupted
from compshift.cli.options import MACHINE, Model, MovedBackbone, Prior, Weights

LIMITS = "Limits"
"""Help heading for the options that limit requests."""

PACKAGES = ("fastapi", "prometheus_client", "uvicorn")
"""Packages of the extra ``serve``."""


def serve(
    model: Model,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is every address.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 is any free port.", min=0, max=65535)] = 8000,
    prior: Prior = None,
    workers: Annotated[
        int,
        typer.Option(help="Threads that compute predictions.", min=1, max=256, rich_help_panel=MACHINE),
    ] = 2,
    max_rows: Annotated[int, typer.Option(help="Rows per request.", min=1, rich_help_panel=LIMITS)] = 1000,
    max_bytes: Annotated[int, typer.Option(help="Bytes per request.", min=1, rich_help_panel=LIMITS)] = 8 << 20,
    timeout: Annotated[
        float, typer.Option(help="Seconds for a request and its answer.", min=0.01, max=86400, rich_help_panel=LIMITS)
    ] = 30.0,
    max_concurrency: Annotated[
        int, typer.Option(help="Requests in progress; further ones are turned away.", min=1, rich_help_panel=LIMITS)
    ] = 128,
    backbone: MovedBackbone = None,
    weights: Weights = None,
) -> None:
    """Answer predictions of a model over HTTP: POST /predict, /predict_set and /explain with rows as JSON.

    The page /docs has an example for the model, /openapi.json describes the service, /health says that it answers, and
    /metrics has requests, latencies, errors and the drift of the group frequencies for Prometheus. There is no
    encryption and no login: to be reached by others, put the service behind a server that has both.
    """
    from compshift.cli.inputs import TableOptions
    from compshift.cli.model_inputs import check_backbone_options, load_model

    absent = next((name for name in PACKAGES if importlib.util.find_spec(name) is None), None)
    if absent is not None:
        raise InputError(f"serving needs the package {absent}: pip install 'compshift[serve]'")
    from compshift.serve.app import Limits, create_app, open_socket, run
    from compshift.serve.model import ServedModel

    limits = Limits(max_rows, max_bytes, timeout, max_concurrency, workers)
    loaded = load_model(model, prior)
    check_backbone_options(loaded, TableOptions(backbone=backbone, weights=weights))
    served = ServedModel(loaded, backbone, weights)
    app = create_app(served, limits)
    with open_socket(host, port) as listening:
        name = f"[{host}]" if ":" in host else host
        typer.echo(f"serving {str(model)!r} at http://{name}:{listening.getsockname()[1]}/docs (Ctrl-C stops)")
        try:
            run(app, listening, timeout)
        except Interrupted:  # uvicorn raises the signal again after a graceful stop
            typer.echo("stopped", err=True)
