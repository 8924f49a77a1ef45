"""``compshift audit``: missing combinations, those that can be extrapolated, and what to collect."""

from pathlib import Path
from typing import Annotated

import typer

from compshift.cli.options import Json, names


def audit(
    table: Annotated[
        Path, typer.Argument(help="Table: .csv, .tsv, .parquet, .npz or a folder of shards.", show_default=False)
    ],
    attributes: Annotated[
        str, typer.Option(help="Columns whose combinations are the groups, separated by commas.", show_default=False)
    ],
    count: Annotated[
        str | None, typer.Option(help="Column with the number of samples that each row stands for.")
    ] = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", metavar="", help="Write each extrapolable group as an affine combination of seen ones."
        ),
    ] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Draw the grid: .png, .svg or .pdf.")] = None,
    max_values: Annotated[
        int | None,
        typer.Option(
            help="Largest number of values of an attribute; if set, continuous ones are accepted too.",
            min=1,
            show_default="1000",
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(help="Count the rows of one split only: train, val or test.", show_default="every row"),
    ] = None,
    json: Json = False,
) -> None:
    """Tell which groups are missing, which of them can be extrapolated, and what to collect."""
    from compshift.data.audit import audit_groups, read_group_counts
    from compshift.report.audit import print_audit

    if output is not None:
        from compshift.studies.figure_file import check_figure_path

        check_figure_path(output, table)
    found = audit_groups(
        read_group_counts(table, names(attributes, "--attributes"), count=count, max_values=max_values, split=split)
    )
    if output is not None:
        from compshift.report.audit import draw_hull

        draw_hull(found, output)
    print_audit(found, explain=explain, as_json=json)
    if output is not None:
        typer.echo(f"figure written to {output}", err=json)
