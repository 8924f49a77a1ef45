"""``compshift bench`` runs the paper's protocol, on a laptop or a cluster; ``compshift tables`` prints its results."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compshift._errors import InputError, unknown_name
from compshift._files import check_apart, check_target, replacing
from compshift.cli.options import (
    DATA,
    MACHINE,
    Json,
    ProtocolName,
    ProtocolSet,
    Shares,
    Weights,
    assignments,
    names,
    read_shares,
    reject_unused,
)

if TYPE_CHECKING:
    from compshift.bench.sources import DataSource

SCOPE = "Scope"
"""Help heading for the options that say which methods and scenarios to run."""

RUNS = "Runs"
"""Help heading for the options that say how each method is run."""

TABLE_FORMATS = ("markdown", "latex", "csv")
"""Values of --format."""

TABLE_NAMES = ("all", "main", "scenarios", "ablations", "standard", "statistics", "hyperparameters")
"""Values of --table; the last two are not results, so "all" leaves them out."""


def bench(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="NAME|FEATURES...", help="Names of data sets, or feature files.", show_default=False),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the results.", show_default=False)],
    methods: Annotated[
        str,
        typer.Option(
            help="paper (the paper's eight methods), all, or method names separated by commas.", rich_help_panel=SCOPE
        ),
    ] = "paper",
    drop: Annotated[
        list[str] | None,
        typer.Option(
            help="Groups to drop: each (one group at a time), none, random:SHARE (a random share of the groups), or a "
            "group as VALUE,VALUE,... (join several groups with ; and put a value that contains a comma, or has spaces "
            "around it, in double quotes); standard drops none and keeps groups in validation that training lacks. "
            "Repeat the option for several scenarios.",
            show_default="each; none for nico++",
            rich_help_panel=SCOPE,
        ),
    ] = None,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            metavar="",
            help="Allow --drop each on nico++, whose published result is a single scenario.",
            rich_help_panel=SCOPE,
        ),
    ] = False,
    protocol: ProtocolName = None,
    protocol_set: ProtocolSet = None,
    features: Annotated[
        bool,
        typer.Option("--features", metavar="", help="Fit linear heads on frozen features.", rich_help_panel=SCOPE),
    ] = False,
    draws: Annotated[
        int | None, typer.Option(help="Number of hyper-parameter draws.", show_default="5", rich_help_panel=RUNS)
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="Number of seeds to run the chosen draw with.", show_default="3", rich_help_panel=RUNS),
    ] = None,
    select: Annotated[
        str | None,
        typer.Option(
            help="How a draw is chosen: by balanced, worst or average accuracy on validation rows. With combinations "
            "(features only), held-out combinations of the training rows choose CRM's ridge, and balanced accuracy "
            "the draws of the other methods.",
            show_default="balanced",
            rich_help_panel=RUNS,
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Seed for the draws, for random scenarios and for --shares.", rich_help_panel=RUNS)
    ] = 0,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Number of steps in a training run.",
            show_default="the protocol's; 600 on features, 1000 from scratch",
            rich_help_panel=RUNS,
        ),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="Backbone to fine-tune or, with --features, to compute the features of a downloaded data set.",
            show_default="the protocol's; small-cnn for bundled images",
            rich_help_panel=RUNS,
        ),
    ] = None,
    weights: Weights = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            metavar="",
            help="Also drop rows of other groups that contain the same sample as a dropped row.",
            rich_help_panel=RUNS,
        ),
    ] = False,
    unlabelled: Annotated[
        str | None,
        typer.Option(
            metavar="test|SHARE",
            help="On frozen features, also run CRM with unlabelled test rows: test (all of them, which are scored "
            "too), or a share between 0 and 1 that is set apart at random, so that every method is scored on the "
            "remaining rows.",
            show_default=False,
            rich_help_panel=SCOPE,
        ),
    ] = None,
    plugin: Annotated[
        list[Path] | None,
        typer.Option(
            help="Python file that defines further methods. Repeatable.", show_default=False, rich_help_panel=SCOPE
        ),
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(help="Folder of the downloaded data sets.", show_default=False, rich_help_panel=MACHINE),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Number of jobs to run in parallel.",
            show_default="number of cores; 1 for fine-tuning",
            min=1,
            rich_help_panel=MACHINE,
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            help="Threads per job.", show_default="1; cores / jobs for fine-tuning", min=1, rich_help_panel=MACHINE
        ),
    ] = None,
    backend: Annotated[
        str, typer.Option(help="Backend that runs the jobs: loky, dask or ray.", rich_help_panel=MACHINE)
    ] = "loky",
    scheduler: Annotated[
        str | None,
        typer.Option(
            help="Address of a Dask scheduler.", show_default="start a local cluster", rich_help_panel=MACHINE
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help="Address of a Ray cluster.", show_default="start a local cluster", rich_help_panel=MACHINE),
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(
            help="Devices to fine-tune on, one job each: all, or numbers of CUDA devices such as 0,1 (loky and ray).",
            show_default="one device, chosen automatically",
            rich_help_panel=MACHINE,
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(help="Seconds to wait for a scheduler or cluster to answer.", min=0.1, rich_help_panel=MACHINE),
    ] = 10.0,
    target: Annotated[
        str | None,
        typer.Option(
            help="Attribute to predict in a feature file.",
            show_default="the file's first attribute",
            rich_help_panel=DATA,
        ),
    ] = None,
    attributes: Annotated[
        str | None,
        typer.Option(
            help="Further attributes of a feature file, separated by commas.",
            show_default="all except the target",
            rich_help_panel=DATA,
        ),
    ] = None,
    shares: Shares = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", metavar="", help="Print the number of jobs, the estimated time and the protocol, then stop."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Run methods on data sets with some groups dropped from training, and print tables of their accuracy.

    Hyper-parameters are drawn at random, validation accuracy chooses one draw (see --select), and that draw is run with
    every seed. Run the same command again to continue a run that was stopped. Finished jobs are never repeated, and
    several processes can work on one output folder.

    If a job fails, its log is written to failures/ in the output folder, the other jobs still run, and the exit code is
    1. Run the same command again to retry failed jobs.
    """
    from compshift.bench.executors import BACKENDS, bench_devices, start_executor
    from compshift.bench.plan import make_plan
    from compshift.bench.protocol import PROTOCOLS
    from compshift.bench.results import stored_results
    from compshift.bench.runner import Runner
    from compshift.bench.sources import SharedData, file_source, is_named, named_source
    from compshift.bench.store import Store, write_view
    from compshift.bench.timing import UntimedError
    from compshift.cli.inputs import path_of, require_torch, warn_of_scales
    from compshift.cli.interruption import resumable
    from compshift.report.run_progress import bench_listener, print_outcome, print_plan

    if backend not in BACKENDS:
        raise unknown_name("backend", backend, BACKENDS)
    check_apart(output, *map(path_of, sources), *(plugin or ()), root)
    if all(map(is_named, sources)):
        reject_unused({"--target": target, "--attributes": attributes, "--shares": shares}, "for feature files")
    wanted = None if attributes is None else tuple(names(attributes, "--attributes")) if attributes else ()
    split = None if shares is None else read_shares(shares)
    data = [
        named_source(source, root, features=features)
        if is_named(source)
        else file_source(source, target, wanted, split, seed)
        for source in sources
    ]
    if features and weights is not None and backbone != "torchvision/resnet50":
        raise InputError("--weights is for the backbone torchvision/resnet50: leave it out, or choose that backbone")
    if backbone is not None and all(source.features and not source.needs_features for source in data):
        raise InputError("--backbone has no effect because every data set already has features: leave it out")
    if features:
        data = [_with_features(source, output / "features", backbone, weights, dry_run=dry_run) for source in data]
    plugins = []
    if plugin:
        require_torch()
        from compshift.methods.registry import Plugin

        plugins = [Plugin.read(path) for path in plugin]
    plan = make_plan(
        data,
        names(methods, "--methods"),
        drop or None,
        protocol=protocol or PROTOCOLS[0],
        changes=assignments(protocol_set, "--protocol-set"),
        yes=yes,
        draws=draws,
        seeds=seeds,
        select=select,
        plan_seed=seed,
        steps=steps,
        backbone=None if features else backbone,
        weights=None if features else weights,
        strict=strict,
        plugins=plugins,
        unlabelled=unlabelled,
    )
    for source in data:
        X = source.measurements()
        if X is not None:
            warn_of_scales(X, [f"{source.label} f{column}" for column in range(X.shape[1])], "")
    own = bench_devices(devices, backend)
    if own and not plan.is_tuning:
        raise InputError("--devices is for fine-tuning, but every data set has fixed features: leave it out")
    jobs, threads = plan.workers(jobs or len(own) or None, threads, remote=scheduler is not None or address is not None)
    known = Store.open(output) if (output / "bench.json").is_file() else None
    if dry_run:
        finished = sum(plan.finished_jobs(known))
        try:
            seconds = plan.estimate_seconds(known, own[0] if own else "auto")
        except UntimedError as error:
            typer.echo(f"the time cannot be estimated: {error}", err=True)
            seconds = None
        print_plan(plan.units, seconds, jobs, finished, as_json=json)
        return
    plan.check_networks(known)
    store = plan.store(output)
    with (
        resumable(),
        start_executor(
            backend, jobs, threads=threads, devices=own, scheduler=scheduler, address=address, patience=timeout
        ) as executor,
        bench_listener(plan.units, quiet=json) as listener,
        SharedData() if backend == "loky" else nullcontext() as shared,
    ):
        runner = Runner(
            plan.units, store, executor, threads=threads, plugins=plan.plugins, listener=listener, shared=shared
        )
        outcome = runner.run()
    write_view(store)
    print_outcome(outcome, output, stored_results(store), as_json=json)
    if outcome.failures:
        raise typer.Exit(1)


def _with_features(
    source: DataSource, folder: Path, backbone: str | None, weights: Path | None, *, dry_run: bool
) -> DataSource:
    """Compute the features of a source's images or texts in ``folder``, and return a source that reads them.

    Sources that need no features are returned unchanged, and so is every source with ``dry_run``.
    """
    if not source.needs_features:
        return source
    if dry_run:
        typer.echo(f"{source.label}: the estimate excludes the time to compute its features", err=True)
        return source
    from compshift.cli.inputs import require_torch
    from compshift.cli.interruption import resumable
    from compshift.report.terminal import progress_bar

    require_torch()
    n_rows = len(source.labels())
    with resumable(), progress_bar(f"features of {source.label}", n_rows, unit="rows") as advance:
        return source.with_features(folder, backbone, advance, weights)


def tables(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="Output folder of `compshift bench`.", show_default=False),
    ] = None,
    format_: Annotated[
        str, typer.Option("--format", help="Format of the tables: markdown, latex or csv.")
    ] = "markdown",
    table: Annotated[
        str,
        typer.Option(
            help="Table to print: main, scenarios, ablations, standard, or all of these; statistics (sizes of the data "
            "sets); hyperparameters (the ranges they are drawn from)."
        ),
    ] = "all",
    paper: Annotated[
        bool,
        typer.Option("--paper", metavar="", help="Add the paper's numbers; without DIR, print only the paper's."),
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write.", show_default="standard output")
    ] = None,
) -> None:
    """Print the tables of a benchmark: all methods, each scenario, ablations, and training with no group dropped."""
    if format_ not in TABLE_FORMATS:
        raise unknown_name("format", format_, TABLE_FORMATS)
    if table not in TABLE_NAMES:
        raise unknown_name("table", table, TABLE_NAMES)
    if folder is None and not paper:
        raise InputError("there are no results to print: pass the folder of a benchmark, or --paper for the paper's")
    from compshift.bench.results import Results, paper_results, stored_results
    from compshift.bench.store import Store
    from compshift.report.grid import to_latex, to_markdown
    from compshift.report.tables import make_tables, to_csv

    if output is not None:
        check_target(output, folder)
    if table in ("statistics", "hyperparameters"):
        _write(_setup_text(folder, table, format_, paper=paper), output)
        return
    printed = paper_results() if paper else None
    results = stored_results(Store.open(folder)) if folder is not None else Results()
    if format_ == "csv":
        text = to_csv(results, printed, None if table == "all" else table)
    else:
        found = make_tables(printed) if folder is None and printed else make_tables(results, printed)
        grids = [grid for grid in found if table in ("all", grid.name)]
        if not grids:
            raise InputError(_no_tables(results.datasets, paper=paper))
        text = "\n".join((to_markdown if format_ == "markdown" else to_latex)(grid) for grid in grids)
    _write(text, output)


def _setup_text(folder: Path | None, table: str, format_: str, *, paper: bool) -> str:
    """Return the sizes of the data sets or the ranges of the hyper-parameters as text."""
    from compshift.bench.selection import chosen_records
    from compshift.bench.store import Store
    from compshift.report.grid import to_latex, to_markdown
    from compshift.report.setup_tables import setup_table

    found = setup_table(table, None if folder is None else chosen_records(Store.open(folder)), paper=paper)
    if format_ == "csv":
        return found.to_csv()
    return (to_markdown if format_ == "markdown" else to_latex)(found.to_grid())


def _write(text: str, output: Path | None) -> None:
    """Write text to a file or, if there is none, to standard output."""
    if output is None:
        typer.echo(text, nl=False)
        return
    with replacing(output) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="replace")


def _no_tables(datasets: list[str], *, paper: bool) -> str:
    """Return why there is no table to print."""
    if not datasets:
        return "there are no results yet: run `compshift bench` until it finishes"
    if paper:
        return (
            f"the paper has no results to compare with {', '.join(datasets)}: its tables cover named data sets with "
            "each group dropped in turn; leave out --paper, or run `compshift bench NAME --drop each`"
        )
    return (
        "there are no results for this table: leave out --table, or run `compshift bench` with the scenarios it needs"
    )
