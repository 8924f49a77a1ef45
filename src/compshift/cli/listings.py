"""``compshift datasets`` lists, fetches, checks and exports data sets; ``compshift methods`` lists training methods."""

import json as json_format
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from compshift.cli.options import Json, Root

app = typer.Typer(help="List, fetch, check and export named data sets.", no_args_is_help=True, add_completion=False)

Name = Annotated[
    str, typer.Argument(help="Name of a data set; `compshift datasets list` shows all.", show_default=False)
]


@app.command("list")
def list_datasets(json: Json = False) -> None:
    """List all named data sets, and whether they must be downloaded."""
    from compshift.data.benchmarks import BENCHMARKS, benchmark
    from compshift.report.terminal import print_benchmarks

    print_benchmarks([benchmark(name) for name in BENCHMARKS], as_json=json)


@app.command("get")
def get_dataset(
    name: Name,
    root: Annotated[
        Path, typer.Option(help="Folder to put the data set into; it is created if missing.", show_default=False)
    ],
    table: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE.toml",
            help="Table of addresses to use instead of the published ones.",
            show_default=False,
        ),
    ] = None,
    address: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="Address to use instead of the published one; for several files, one each, in order.",
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds without data after which a connection is given up.")] = 60,
    attempts: Annotated[
        int, typer.Option(help="Failed attempts in a row after which an address is given up.", min=1, max=1000)
    ] = 6,
    json: Json = False,
) -> None:
    """Download a published data set, unless it is there already, and compare it with the published counts.

    Run the same command again to continue an interrupted download. The data set appears when it is complete.
    """
    from compshift._errors import InputError
    from compshift.cli.interruption import resumable
    from compshift.data.addresses import fetch
    from compshift.data.benchmarks import benchmark
    from compshift.data.download import Patience
    from compshift.report.terminal import byte_bar, print_check

    if not 0 < timeout <= 86400:  # NaN included
        raise InputError(f"--timeout is {timeout}: pass a number of seconds above 0 and up to 86400, a day")
    known = benchmark(name)
    with resumable(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fetched = fetch(
            known, root, table=table, addresses=address or (), patience=Patience(timeout, attempts),
            notify=lambda line: print(line, file=sys.stderr), bar=byte_bar,
        )  # fmt: skip
    if not json:
        hosts = ", ".join(fetched.hosts) or "an earlier download"
        came = f"fetched from {hosts}" if fetched.new else "already there: nothing was downloaded"
        typer.echo(f"{name} is complete in {root}, {came}")
    notes = list(dict.fromkeys(str(warning.message) for warning in caught))
    more = {"fetched": fetched.new, "hosts": list(fetched.hosts)}
    print_check(known, fetched.data, notes, [], as_json=json, more=more)


@app.command()
def check(
    name: Name,
    root: Root = None,
    quick: Annotated[
        bool, typer.Option("--quick", metavar="", help="Only read the tables; do not decode the images.")
    ] = False,
    json: Json = False,
) -> None:
    """Count the groups of a downloaded data set, compare them with the published counts, and find broken files."""
    from compshift.data.benchmarks import benchmark
    from compshift.data.images import broken_samples
    from compshift.report.terminal import print_check, progress_bar

    known = benchmark(name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data = known.load(root)
        if not quick:
            known.fitted_geometry(data)  # warns of images of another size
    notes = [str(warning.message) for warning in caught]
    broken = []
    if not quick and data.kind == "images":
        with progress_bar("decoding", len(data)) as advance:
            broken = list(broken_samples(data, advance))
    print_check(known, data, notes, broken, as_json=json)
    if broken:
        raise typer.Exit(1)


@app.command()
def export(
    name: Name,
    output: Annotated[Path, typer.Option("--output", "-o", help="Feature file to write, .npz.", show_default=False)],
) -> None:
    """Write a bundled data set (one that needs no download) as a feature file for `fit`, `evaluate` or other tools."""
    from compshift._errors import InputError
    from compshift.data.benchmarks import benchmark
    from compshift.data.feature_files import write_features

    known = benchmark(name)
    if not known.bundled:
        raise InputError(
            f"{name} is not bundled with compshift: download it, and compute its features with `compshift features "
            f"{name} --root DIR`"
        )
    data = known.features()
    write_features(output, data)
    typer.echo(f"{len(data)} rows of {data.X.shape[1]} features written to {output}")


def methods(
    ranges: Annotated[
        bool,
        typer.Option(
            "--ranges", metavar="", help="Print the ranges from which benchmarks draw hyper-parameters, by protocol."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """List the training methods with their hyper-parameters and defaults, or the ranges of every protocol."""
    from rich.console import Console

    from compshift.report.terminal import plain_table

    if ranges:
        from compshift.bench.protocol import PROTOCOLS, protocol_ranges

        drawn = {name: protocol_ranges(name) for name in PROTOCOLS}
        if json:
            typer.echo(json_format.dumps(drawn))
            return
        table = plain_table("ranges of hyper-parameters")
        for heading in ("hyper-parameter", *PROTOCOLS):
            table.add_column(heading, overflow="fold")
        for key in dict.fromkeys(key for found in drawn.values() for key in found):
            table.add_row(key, *(found.get(key, "") for found in drawn.values()))
        Console().print(table)
        typer.echo(
            "with `bench --select combinations`, crm's alpha is not drawn: held-out combinations of the training rows "
            "choose it"
        )
        return
    from compshift.cli.inputs import require_torch

    require_torch()
    from compshift.methods.registry import METHODS, load_installed

    load_installed()
    about: dict[str, dict[str, Any]] = {
        name: {"summary": kind.summary, "hyperparameters": kind().hyperparameters()} for name, kind in METHODS.items()
    }
    if json:
        typer.echo(json_format.dumps(about))
        return
    table = plain_table("methods of compshift train")
    for heading in ("method", "what it does", "--set"):
        table.add_column(heading, overflow="fold")
    for name, method in about.items():
        values = " ".join(f"{key}={value}" for key, value in method["hyperparameters"].items())
        table.add_row(name, method["summary"], values)
    Console().print(table)
