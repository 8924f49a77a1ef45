"""``compshift report``: write one self-contained HTML page about a benchmark, a model or a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compshift._errors import InputError
from compshift.cli.options import MovedBackbone, Prior, Root, SkipBroken, Weights, names, reject_unused

if TYPE_CHECKING:
    from compshift.cli.inputs import TableOptions
    from compshift.report.page import Page

TABLES = "Tables"
"""Help heading for the options of a report about a table."""


def report(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="DIR|MODEL|TABLE",
            help="Output folder of `compshift bench`, model of `compshift fit` or `compshift train`, or a table.",
            show_default=False,
        ),
    ],
    rows: Annotated[
        str | None,
        typer.Argument(metavar="[INPUT]", help="Labelled rows on which to evaluate a model.", show_default=False),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="HTML file to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Title of the page.", show_default="name of the source")] = None,
    attributes: Annotated[
        str | None,
        typer.Option(
            help="Columns whose combinations are the groups, separated by commas.",
            show_default=False,
            rich_help_panel=TABLES,
        ),
    ] = None,
    count: Annotated[
        str | None,
        typer.Option(
            help="Column with the number of samples that each row represents.",
            show_default=False,
            rich_help_panel=TABLES,
        ),
    ] = None,
    max_values: Annotated[
        int | None,
        typer.Option(
            help="Largest number of values that an attribute may have; setting it also allows continuous attributes.",
            min=1,
            show_default="1000",
            rich_help_panel=TABLES,
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Rows of a table to count, or rows of INPUT to score: train, val, test or all.",
            show_default="for a table all; for a model test if INPUT has that split, else all",
        ),
    ] = None,
    diagnose: Annotated[
        bool | None,
        typer.Option(
            "--diagnose/--no-diagnose",
            help="Test whether the energies are additive over the attributes.",
            show_default="test if it takes only seconds",
            rich_help_panel="Models",
        ),
    ] = None,
    prior: Prior = None,
    root: Root = None,
    skip_broken: SkipBroken = False,
    backbone: MovedBackbone = None,
    weights: Weights = None,
) -> None:
    """Write an HTML page: which groups are missing or extrapolated, how accurate they are, and how reliable that is.

    The page works offline. Click groups in its grid to plan data collection: the page shows which further groups could
    be extrapolated if the marked ones were collected.
    """
    from dataclasses import replace

    from compshift._files import check_target, replacing
    from compshift.report.page import check_report_packages, render_page

    check_report_packages()
    if output.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--output is {str(output)!r}: pass a file name that ends in .html")
    check_target(output, source, rows, prior)
    kind = _kind(source)
    described = f"but {str(source)!r} is a {kind}"
    for_tables = {"--attributes": attributes, "--count": count, "--max-values": max_values}
    for_input = {
        "--diagnose": diagnose,
        "--root": root,
        "--skip-broken": skip_broken,
        "--backbone": backbone,
        "--weights": weights,
    }
    if kind != "table":
        reject_unused(for_tables, f"for tables, {described}")
    if kind != "model":
        reject_unused({"INPUT": rows, "--prior": prior, **for_input}, f"for models, {described}")
    elif rows is None:
        reject_unused({"--split": split, **for_input}, "for the rows of INPUT, but INPUT is missing")
    if kind == "benchmark":
        page = _benchmark_page(source, split)
    elif kind == "model":
        from compshift.cli.inputs import TableOptions

        options = TableOptions(root=root, split=split, skip_broken=skip_broken, backbone=backbone, weights=weights)
        page = _model_page(source, rows, prior, options, diagnose=diagnose)
    else:
        page = _table_page(source, attributes, count, max_values, split)
    if title is not None:
        page = replace(page, title=title)
    content = render_page(page).encode("utf-8", "replace")  # a file name may contain bytes that are not UTF-8
    with replacing(output) as temporary:
        temporary.write_bytes(content)
    for warning in page.warnings:
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(f"report written to {output} ({format_bytes(len(content))})")


def format_bytes(count: int) -> str:
    """Format a number of bytes as kB or MB."""
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{max(1, round(count / 1e3))} kB"


def _kind(source: Path) -> str:
    """Return the kind of a source: "benchmark", "model" or "table"."""
    if not source.exists():
        raise InputError(f"there is no file or folder {str(source)!r}: pass a benchmark's folder, a model or a table")
    if source.is_dir():
        if (source / "bench.json").is_file():
            return "benchmark"
        if (source / "run.json").is_file():
            return "model"
        if any(source.glob("*.parquet")):
            return "table"
        raise InputError(
            f"{str(source)!r} holds no results: pass an output folder of `compshift bench` or `compshift train`, or a "
            "folder of Parquet shards"
        )
    return "model" if source.suffix.lower() == ".safetensors" else "table"


def _benchmark_page(source: Path, split: str | None) -> Page:
    """Return the page about a benchmark."""
    from compshift.report.bench_page import bench_page

    if split is not None:
        raise InputError("--split is for models and tables; a benchmark always reports the test rows: leave it out")
    return bench_page(source)


def _model_page(
    source: Path, rows: str | None, prior: str | None, options: TableOptions, *, diagnose: bool | None
) -> Page:
    """Return the page about a model, with an evaluation on the labelled ``rows`` unless they are None."""
    from compshift.cli.model_inputs import labelled_rows, load_model
    from compshift.report.model_page import model_page

    loaded = load_model(source, prior)
    if rows is None:
        return model_page(loaded.clf, source.name, prior=prior)
    data, scored_split = labelled_rows(loaded, rows, options)
    return model_page(loaded.clf, source.name, data, scored_split, rows, diagnose, prior)


def _table_page(
    source: Path, attributes: str | None, count: str | None, max_values: int | None, split: str | None
) -> Page:
    """Return the page about the groups of a table."""
    from compshift.data.audit import audit_groups, read_group_counts
    from compshift.report.model_page import table_page

    if attributes is None:
        raise InputError(
            "a report about a table needs --attributes: name the columns whose combinations are the groups"
        )
    wanted = names(attributes, "--attributes")
    counts = read_group_counts(source, wanted, count=count, max_values=max_values, split=split)
    return table_page(audit_groups(counts), source.name)
