"""Features of a download for a benchmark: computed once, and kept beside its results.

``compshift bench``: the paper's protocol, on a laptop or a cluster.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compshift._errors import InputError, unknown_name
from compshift._files import check_apart
from compshift.cli.options import Json, Shares, names

if TYPE_CHECKING:
    from compshift.bench.plan import Unit
    from compshift.bench.sources import DataSource
    from compshift.bench.store import Store


def embedded(source: DataSource, folder: Path, backbone: str | None, *, compute: bool) -> DataSource:
    """The source with features for its images or texts; what has features already stays as it is."""
    known = source.known
    if known is None or known.embedded or known.kind == "features":
        return source
    if not compute:
        typer.echo(f"{source.label}: its features are computed first, which is not in the estimate", err=True)
        return source
    from compshift.cli.inputs import DEFAULT_BACKBONES, require_torch
    from compshift.cli.options import resumable

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


WHAT, HOW, WHERE, TABLE = "What is run", "How it is run", "Where it runs", "Feature files"

FEW_COLUMNS = 50
"""Up to so many features are taken for measurements, whose scales can differ."""


def bench(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="NAME|FEATURES...", help="Data sets by name, or feature files.", show_default=False),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the results.", show_default=False)],
    methods: Annotated[
        str,
        typer.Option(help="paper (its eight), all, or names separated by commas.", rich_help_panel=WHAT),
    ] = "paper",
    drop: Annotated[
        list[str] | None,
        typer.Option(
            help="Scenario: each, none, random:SHARE, or VALUE,VALUE,... of a group (several joined by ;), in double "
            "quotes if a value has a comma. Repeatable.",
            show_default="each",
            rich_help_panel=WHAT,
        ),
    ] = None,
    features: Annotated[
        bool, typer.Option("--features", metavar="", help="Linear heads on frozen features.", rich_help_panel=WHAT)
    ] = False,
    draws: Annotated[int, typer.Option(help="Random draws of hyper-parameters.", rich_help_panel=HOW)] = 5,
    seeds: Annotated[int, typer.Option(help="Seeds of the chosen draw.", rich_help_panel=HOW)] = 3,
    select: Annotated[
        str, typer.Option(help="Validation accuracy that chooses: balanced, worst or average.", rich_help_panel=HOW)
    ] = "balanced",
    seed: Annotated[
        int, typer.Option(help="Seed of the draws, of random scenarios and of --shares.", rich_help_panel=HOW)
    ] = 0,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Steps of a training run.",
            show_default="the paper's; 600 on features, 1000 from scratch",
            rich_help_panel=HOW,
        ),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="Backbone to fine-tune or, with --features, to embed a download with.",
            show_default="efficientnet-lite0, minilm; small-cnn for embedded images",
            rich_help_panel=HOW,
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", metavar="", help="Drop rows of other groups that show the same sample too.", rich_help_panel=HOW
        ),
    ] = False,
    plugin: Annotated[
        list[Path] | None,
        typer.Option(
            help="Python file with methods of your own. Repeatable.", show_default=False, rich_help_panel=WHAT
        ),
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="Folder of the downloads.", show_default=False, rich_help_panel=WHERE)
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Jobs side by side.", show_default="the cores; 1 for fine-tuning", min=1, rich_help_panel=WHERE
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            help="Threads of a job.", show_default="1; cores / jobs for fine-tuning", min=1, rich_help_panel=WHERE
        ),
    ] = None,
    backend: Annotated[str, typer.Option(help="loky, dask or ray.", rich_help_panel=WHERE)] = "loky",
    scheduler: Annotated[
        str | None,
        typer.Option(help="Address of a Dask scheduler.", show_default="a cluster here", rich_help_panel=WHERE),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help="Address of a Ray cluster.", show_default="a cluster here", rich_help_panel=WHERE),
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds that a scheduler has to answer.", min=0.1, rich_help_panel=WHERE)
    ] = 10.0,
    target: Annotated[
        str | None,
        typer.Option(help="What to predict.", show_default="the file's first attribute", rich_help_panel=TABLE),
    ] = None,
    attributes: Annotated[
        str | None,
        typer.Option(help="Further attributes.", show_default="all others of the file", rich_help_panel=TABLE),
    ] = None,
    shares: Shares = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", metavar="", help="Count the jobs, estimate the time, and stop.")
    ] = False,
    json: Json = False,
) -> None:
    """Run methods on data sets from which groups are dropped, and print the table.

    Hyper-parameters are drawn at random, one draw is chosen by validation, and is run at every seed. The same command
    again goes on where it was stopped; finished jobs are never run again, and several runners can share a folder.
    """
    from compshift.bench.campaign import make_campaign
    from compshift.bench.executors import BACKENDS, start_engine
    from compshift.bench.results import stored_results
    from compshift.bench.runner import Runner, stored_seconds, write_view
    from compshift.bench.sources import file_source, is_named, named_source
    from compshift.bench.store import Store
    from compshift.bench.trained_methods import estimate_seconds
    from compshift.cli.inputs import read_shares, refuse, unnamed, warn_of_scales
    from compshift.cli.options import resumable
    from compshift.report.run_progress import bench_listener, print_outcome, print_plan

    if backend not in BACKENDS:
        raise unknown_name("backend", backend, BACKENDS)
    check_apart(output, *map(unnamed, sources), *(plugin or ()), root)
    named = [is_named(source) for source in sources]
    if all(named):
        refuse({"--target": target, "--attributes": attributes, "--shares": shares}, "for feature files")
    found = [
        named_source(source, root, features=features)
        if known
        else file_source(
            source,
            target,
            None if attributes is None else tuple(names(attributes, "--attributes")) if attributes else (),
            None if shares is None else read_shares(shares),
            seed,
        )
        for source, known in zip(sources, named, strict=True)
    ]
    if backbone is not None and all(
        source.features and (not source.known or source.known.embedded) for source in found
    ):
        raise InputError("--backbone given, and every data set has features of its own: leave it out")
    if features:
        found = [embedded(source, output / "features", backbone, compute=not dry_run) for source in found]
    plugins = []
    if plugin:
        from compshift.cli.inputs import require_torch

        require_torch()
        from compshift.methods.registry import Plugin

        plugins = [Plugin.read(path) for path in plugin]
    campaign = make_campaign(
        found,
        names(methods, "--methods"),
        drop or ["each"],
        draws=draws,
        seeds=seeds,
        select=select,
        plan_seed=seed,
        steps=steps,
        backbone=None if features else backbone,
        strict=strict,
        plugins=plugins,
    )
    for source in found:
        data = source.labels()
        measured = source.known is None or source.known.kind == "features"  # not made by a network
        if measured and data.X.shape[1] <= FEW_COLUMNS:
            warn_of_scales(data.X, [f"{source.label} f{column}" for column in range(data.X.shape[1])], "")
    tuning = any(data.protocol.mode == "fine-tuning" for data in campaign.data)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    jobs = jobs or (1 if tuning else cores)
    remote = scheduler is not None or address is not None
    threads = threads or (max(1, cores // jobs) if tuning and not remote else 1)
    if dry_run:
        store = Store.open(output) if (output / "bench.json").is_file() else None
        there = [0 if store is None else _stored(store, unit) for unit in campaign.units]
        seconds = estimate_seconds(campaign.units, there, stored_seconds(store) if store else {})
        print_plan(campaign.units, seconds, jobs, sum(there), as_json=json)
        return
    store = campaign.store(output)
    with (
        resumable(),
        start_engine(backend, jobs, threads=threads, scheduler=scheduler, address=address, patience=timeout) as engine,
        bench_listener(campaign.units, quiet=json) as listener,
    ):
        outcome = Runner(
            campaign.units, store, engine, threads=threads, plugins=campaign.plugins, listener=listener
        ).run()
    write_view(store)
    print_outcome(outcome, output, stored_results(store), as_json=json)
    if outcome.failures:
        raise typer.Exit(1)


def _stored(store: Store, unit: Unit) -> int:
    """How many of a unit's jobs are finished, whichever draw was chosen."""
    keys = {unit.job(draw, seed).key for draw in range(unit.draws) for seed in range(unit.seeds)}
    return min(unit.n_jobs, sum(store.has(key) for key in keys))
