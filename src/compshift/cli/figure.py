"""``compshift figure``: draw the paper's figures."""

from pathlib import Path
from typing import Annotated

import typer

from compshift._errors import unknown_name
from compshift.cli.options import Json

FIGURES = ("gaussian2d", "hull", "hull-growth", "growth")
"""Names of the figures."""


def figure(
    name: Annotated[str, typer.Argument(help=f"Name of the figure: {', '.join(FIGURES)}.", show_default=False)],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Figure file to write: .png, .svg or .pdf.", show_default=False)
    ],
    samples: Annotated[int, typer.Option(help="Number of training rows (gaussian2d only).", min=3)] = 3000,
    trials: Annotated[int, typer.Option(help="Trials per setting (hull-growth only).", min=1)] = 100,
    quick: Annotated[
        bool, typer.Option("--quick", metavar="", help="Run only a few settings with one seed (growth only).")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the data (gaussian2d) or of the trials (hull-growth).", min=0)] = 0,
    json: Json = False,
) -> None:
    """Draw a figure of the paper, print its numbers, and write them to a CSV file next to the figure."""
    if name not in FIGURES:
        raise unknown_name("figure", name, FIGURES)
    from compshift.studies.figure_file import check_figure_path

    check_figure_path(output)
    if name == "gaussian2d":
        _gaussian2d(output, samples, seed, as_json=json)
    elif name == "hull":
        _hull(output, as_json=json)
    elif name == "growth":
        _growth(output, quick=quick, as_json=json)
    else:
        _hull_growth(output, trials, seed, as_json=json)
    typer.echo(f"figure written to {output}", err=json)


def _gaussian2d(output: Path, samples: int, seed: int, *, as_json: bool) -> None:
    from compshift.report.terminal import print_gaussian2d
    from compshift.studies.figure_file import write_numbers
    from compshift.studies.gaussian2d import draw_gaussian2d, run_gaussian2d

    study = run_gaussian2d(n_train=samples, random_state=seed)
    write_numbers(study.numbers(), output.with_suffix(".csv"))
    draw_gaussian2d(study, output)
    print_gaussian2d(study, as_json=as_json)


def _hull(output: Path, *, as_json: bool) -> None:
    from compshift.report.terminal import print_hull_example
    from compshift.studies.figure_file import write_numbers
    from compshift.studies.hull import draw_hull_example, hull_example

    cells = hull_example()
    write_numbers(cells, output.with_suffix(".csv"))
    draw_hull_example(cells, output)
    print_hull_example(cells, as_json=as_json)


def _hull_growth(output: Path, trials: int, seed: int, *, as_json: bool) -> None:
    from compshift.report.terminal import print_hull_growth
    from compshift.studies.figure_file import write_numbers
    from compshift.studies.hull import draw_hull_growth, run_hull_growth

    rows = run_hull_growth(trials, seed)
    write_numbers([row.to_dict() for row in rows], output.with_suffix(".csv"))
    draw_hull_growth(rows, output)
    print_hull_growth(rows, as_json=as_json)


def _growth(output: Path, *, quick: bool, as_json: bool) -> None:
    from compshift.report.terminal import print_growth, progress_bar
    from compshift.studies.figure_file import write_numbers
    from compshift.studies.growth import draw_growth, plan_cases, run_growth

    cases = plan_cases(quick=quick)
    with progress_bar("growth", len(cases)) as advance:
        outcomes = run_growth(cases, output.with_suffix(".jsonl"), lambda _: advance(1))
    write_numbers([outcome.to_dict() for outcome in outcomes], output.with_suffix(".csv"))
    draw_growth(outcomes, output)
    print_growth(outcomes, as_json=as_json)
