"""``compshift figure``: the paper's figures."""

from pathlib import Path
from typing import Annotated

import typer

from compshift._errors import unknown_name
from compshift.cli.options import Json

FIGURES = ("gaussian2d",)


def figure(
    name: Annotated[str, typer.Argument(help=f"Which figure: {', '.join(FIGURES)}.", show_default=False)],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Picture to write: .png, .svg or .pdf.", show_default=False)
    ],
    samples: Annotated[int, typer.Option(help="Training rows.", min=3)] = 3000,
    seed: Annotated[int, typer.Option(help="Seed of the data.", min=0)] = 0,
    json: Json = False,
) -> None:
    """Draw a figure of the paper, and print its numbers."""
    if name not in FIGURES:
        raise unknown_name("figure", name, FIGURES)
    from compshift.bench.gaussian2d import run_gaussian2d
    from compshift.report.figure_file import check_figure_path
    from compshift.report.gaussian2d import draw_gaussian2d
    from compshift.report.terminal import print_gaussian2d

    check_figure_path(output)
    study = run_gaussian2d(n_train=samples, random_state=seed)
    print_gaussian2d(study, as_json=json)
    draw_gaussian2d(study, output)
    typer.echo(f"figure written to {output}", err=json)
