"""``compshift report``: one self-contained page from a benchmark, a model or a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compshift._errors import InputError
from compshift.cli.options import MovedBackbone, Prior, Root, SkipBroken, names

if TYPE_CHECKING:
    from compshift.cli.inputs import TableOptions
    from compshift.report.page import Page

MODELS, TABLES = "Models", "Tables"
"""Further headings of the help."""


def report(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="DIR|MODEL|TABLE",
            help="Folder of `compshift bench`, model of `fit` or `train`, or a table.",
            show_default=False,
        ),
    ],
    rows: Annotated[
        str | None,
        typer.Argument(metavar="[INPUT]", help="Labelled rows to evaluate a model on.", show_default=False),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Page to write: .html.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Title of the page.", show_default="the source's name")] = None,
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
            help="Column with the number of samples that each row stands for.",
            show_default=False,
            rich_help_panel=TABLES,
        ),
    ] = None,
    max_values: Annotated[
        int | None,
        typer.Option(
            help="Largest number of values of an attribute; if set, continuous ones are accepted too.",
            min=1,
            show_default="1000",
            rich_help_panel=TABLES,
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Rows to count or to score: train, val, test or all.",
            show_default="all of a table; test for a model if there is one",
        ),
    ] = None,
    diagnose: Annotated[
        bool | None,
        typer.Option(
            "--diagnose/--no-diagnose",
            help="Test whether the energies are additive.",
            show_default="if it takes seconds",
            rich_help_panel=MODELS,
        ),
    ] = None,
    prior: Prior = None,
    root: Root = None,
    skip_broken: SkipBroken = False,
    backbone: MovedBackbone = None,
) -> None:
    """Write one HTML page: which groups are missing, which are extrapolated, how well, and how sure.

    The page needs no network. In its grid, combinations can be marked as ones to collect, to see which others could
    then be extrapolated.
    """
    from dataclasses import replace

    from compshift._files import check_target, replacing
    from compshift.report.page import check_report_packages, render_page

    check_report_packages()
    if output.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{output.name!r} has the ending {output.suffix!r}: a report is written as .html")
    check_target(output, source, rows, prior)
    kind = _kind(source)
    if kind != "table" and (attributes or count):
        raise InputError(f"--attributes and --count are for tables, and {str(source)!r} is a {kind}: leave them out")
    if kind != "model" and (rows is not None or prior or backbone):
        raise InputError(
            f"INPUT, --prior and --backbone are for models, and {str(source)!r} is a {kind}: leave them out"
        )
    if kind == "benchmark":
        page = _benchmark_page(source, split)
    elif kind == "model":
        from compshift.cli.inputs import TableOptions

        options = TableOptions(root=root, split=split, skip_broken=skip_broken, backbone=backbone)
        page = _model_page(source, rows, prior, options, judge=diagnose)
    else:
        page = _table_page(source, attributes, count, max_values, split)
    if title is not None:
        page = replace(page, title=title)
    content = render_page(page).encode("utf-8", "replace")  # a file's name may hold bytes that are not text
    with replacing(output) as temporary:
        temporary.write_bytes(content)
    for warning in page.warnings:
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(f"report written to {output} ({_size(len(content))})")


def _size(count: int) -> str:
    """Format a number of bytes."""
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{max(1, round(count / 1e3))} kB"


def _kind(source: Path) -> str:
    """Return whether a path holds a benchmark, a model or a table."""
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
            f"{str(source)!r} holds no results: pass the folder that `compshift bench` or `compshift train` wrote, or "
            "one with Parquet shards"
        )
    return "model" if source.suffix.lower() == ".safetensors" else "table"


def _benchmark_page(source: Path, split: str | None) -> Page:
    """Return the page of a benchmark's folder."""
    from compshift.report.bench_page import bench_page

    if split is not None:
        raise InputError("--split is for models and tables: a benchmark reports the test rows")
    return bench_page(source)


def _model_page(
    source: Path, rows: str | None, prior: str | None, options: TableOptions, *, judge: bool | None
) -> Page:
    """Return the page of a model, evaluated on labelled rows if they are given."""
    from compshift.cli.model_inputs import labelled_rows, load_model
    from compshift.report.model_page import model_page

    loaded = load_model(source, prior)
    if rows is None:
        if options.split is not None:
            raise InputError("--split says which rows of INPUT to score: pass INPUT, or leave it out")
        return model_page(loaded.clf, source.name, prior=prior)
    data, part = labelled_rows(loaded, rows, options)
    return model_page(loaded.clf, source.name, data, part, rows, judge, prior)


def _table_page(
    source: Path, attributes: str | None, count: str | None, max_values: int | None, split: str | None
) -> Page:
    """Return the page of a table's groups."""
    from compshift.data.audit import audit_groups, read_group_counts
    from compshift.report.model_page import table_page

    if attributes is None:
        raise InputError("a table needs --attributes: name the columns whose combinations are the groups")
    wanted = names(attributes, "--attributes")
    counts = read_group_counts(source, wanted, count=count, max_values=max_values, split=split)
    return table_page(audit_groups(counts), source.name)
