"""``compshift tables``: the paper's tables from a benchmark's results."""

from pathlib import Path
from typing import Annotated

import typer

from compshift._errors import InputError, unknown_name

FORMATS = ("markdown", "latex", "csv")
TABLES = ("all", "main", "scenarios", "ablations", "standard")


def tables(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="Folder that `compshift bench` wrote.", show_default=False),
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="markdown, latex or csv.")] = "markdown",
    table: Annotated[str, typer.Option(help="Table to print: all, main, scenarios, ablations or standard.")] = "all",
    paper: Annotated[
        bool,
        typer.Option("--paper", metavar="", help="Add the paper's numbers; without DIR, print those alone."),
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write.", show_default="standard output")
    ] = None,
) -> None:
    """Print the tables of a benchmark: methods, every scenario, ablations, and the case of no group dropped."""
    if format_ not in FORMATS:
        raise unknown_name("format", format_, FORMATS)
    if table not in TABLES:
        raise unknown_name("table", table, TABLES)
    if folder is None and not paper:
        raise InputError("there is nothing to show: pass the folder of a benchmark, or --paper for the paper's numbers")
    from compshift._files import check_target, replacing
    from compshift.bench.results import Results, paper_results, stored_results
    from compshift.bench.store import Store
    from compshift.report.grid import to_latex, to_markdown
    from compshift.report.tables import make_tables, to_csv

    if output is not None:
        check_target(output, folder)
    printed = paper_results() if paper else None
    results = stored_results(Store.open(folder)) if folder is not None else Results()
    if format_ == "csv":
        text = to_csv(results, printed, None if table == "all" else table)
    else:
        found = make_tables(printed) if folder is None and printed else make_tables(results, printed)
        grids = [grid for grid in found if table in ("all", grid.name)]
        if not grids:
            raise InputError(_nothing(results.datasets, paper=paper))
        text = "\n".join((to_markdown if format_ == "markdown" else to_latex)(grid) for grid in grids)
    if output is None:
        typer.echo(text, nl=False)
        return
    with replacing(output) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="replace")


def _nothing(datasets: list[str], *, paper: bool) -> str:
    """Return why there is no table to print."""
    if not datasets:
        return "there are no results yet: run `compshift bench` to its end first"
    if paper:
        return (
            f"the paper has nothing to set beside these results of {', '.join(datasets)}: it has named data sets, with "
            "each group dropped in turn; leave out --paper, or run `compshift bench NAME --drop each`"
        )
    return "there are no results for that table: leave out --table, or run the scenarios that it needs"
