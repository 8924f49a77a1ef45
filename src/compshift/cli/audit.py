"""``compshift audit``: list missing groups, say which can be extrapolated, and suggest groups to collect."""

from pathlib import Path
from typing import Annotated

import typer

from compshift.cli.options import Json, names


def audit(
    table: Annotated[
        Path,
        typer.Argument(
            help="Table: .csv, .tsv, .xlsx, .jsonl, .parquet, .npz or a folder of shards.", show_default=False
        ),
    ],
    attributes: Annotated[
        str, typer.Option(help="Columns whose combinations are the groups, separated by commas.", show_default=False)
    ],
    count: Annotated[
        str | None, typer.Option(help="Column with the number of samples that each row represents.")
    ] = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", metavar="", help="Write each extrapolable group as an affine combination of seen groups."
        ),
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Figure of the groups to write: .png, .svg or .pdf.")
    ] = None,
    max_values: Annotated[
        int | None,
        typer.Option(
            help="Largest number of values that an attribute may have; setting it also allows continuous attributes.",
            min=1,
            show_default="1000",
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(help="Count only the rows of one split: train, val or test.", show_default="every row"),
    ] = None,
    json: Json = False,
) -> None:
    """List missing groups, say which can be extrapolated, and suggest groups to collect."""
    from compshift.data.audit import audit_groups, read_group_counts
    from compshift.report.audit import print_audit

    if output is not None:
        from compshift.studies.figure_file import check_figure_path

        check_figure_path(output, table)
    result = audit_groups(
        read_group_counts(table, names(attributes, "--attributes"), count=count, max_values=max_values, split=split)
    )
    if output is not None:
        from compshift.report.audit import draw_hull

        draw_hull(result, output)
    print_audit(result, explain=explain, as_json=json)
    if output is not None:
        typer.echo(f"figure written to {output}", err=json)
