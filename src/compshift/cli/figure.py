"""``compshift figure``: draw the paper's figures."""

from pathlib import Path
from typing import Annotated

import typer

from compshift._errors import unknown_name
from compshift.cli.options import Json, reject_unused

FIGURES = {
    "architecture": "the classifier from input to probabilities",
    "three-groups": "three groups determine the fourth",
    "gaussian2d": "where CRM and ERM predict each of four Gaussians",
    "marginals": "the same as gaussian2d for one attribute at a time",
    "hull": "groups that the seen ones determine",
    "hull-steps": "a hull that grows group by group",
    "hull-growth": "random groups until all are determined",
    "growth": "accuracy with fewer and fewer groups in training",
}
"""Names of the figures, and what they show."""

MAX_ROWS_PER_GROUP = 1000
"""Largest value of --rows-per-group: with it, the largest case has 2.5 million rows of 100 features."""


def figure(
    name: Annotated[
        str,
        typer.Argument(
            help="Figure: " + "; ".join(f"{name} ({shows})" for name, shows in FIGURES.items()) + ".",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Figure file to write: .png, .svg or .pdf.", show_default=False)
    ],
    samples: Annotated[
        int | None, typer.Option(help="Number of training rows (gaussian2d, marginals).", min=3, show_default="3000")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help="Trials per setting (hull-growth).", min=1, show_default="100")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", metavar="", help="Run only a few settings with one seed (growth).")
    ] = False,
    rows_per_group: Annotated[
        int | None,
        typer.Option(
            help="Training rows of each group (growth); the authors' code has 100.",
            min=1,
            max=MAX_ROWS_PER_GROUP,
            show_default="8000 rows in total",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Seed of the data (gaussian2d, marginals) or of the trials (hull-growth).", min=0, show_default="0"
        ),
    ] = None,
    no_caption: Annotated[
        bool, typer.Option("--no-caption", metavar="", help="Draw the figure without the caption below it.")
    ] = False,
    json: Json = False,
) -> None:
    """Draw a figure of the paper, print its numbers, and write them to a CSV file next to the figure."""
    if name not in FIGURES:
        raise unknown_name("figure", name, tuple(FIGURES))
    from compshift.studies.figure_file import check_figure_path

    gaussian = name in ("gaussian2d", "marginals")
    reject_unused({} if gaussian else {"--samples": samples}, "for the figures gaussian2d and marginals")
    reject_unused({} if name == "hull-growth" else {"--trials": trials}, "for the figure hull-growth")
    reject_unused(
        {} if name == "growth" else {"--quick": quick, "--rows-per-group": rows_per_group}, "for the figure growth"
    )
    reject_unused(
        {} if gaussian or name == "hull-growth" else {"--seed": seed is not None},
        "for the figures gaussian2d, marginals and hull-growth",
    )
    check_figure_path(output)
    caption = not no_caption
    if name == "architecture":
        _architecture(output, caption=caption, as_json=json)
    elif name == "three-groups":
        _three_groups(output, caption=caption, as_json=json)
    elif gaussian:
        _gaussian2d(name, output, samples or 3000, seed or 0, caption=caption, as_json=json)
    elif name == "hull":
        _hull(output, caption=caption, as_json=json)
    elif name == "hull-steps":
        _hull_steps(output, caption=caption, as_json=json)
    elif name == "growth":
        _growth(output, rows_per_group, quick=quick, caption=caption, as_json=json)
    else:
        _hull_growth(output, trials or 100, seed or 0, caption=caption, as_json=json)
    typer.echo(f"figure written to {output}", err=json)


def _architecture(output: Path, *, caption: bool, as_json: bool) -> None:
    from compshift.report.studies import print_architecture
    from compshift.studies.architecture import draw_architecture

    draw_architecture(output, caption=caption)
    print_architecture(as_json=as_json)


def _three_groups(output: Path, *, caption: bool, as_json: bool) -> None:
    from compshift.report.studies import print_three_groups
    from compshift.studies.figure_file import write_numbers
    from compshift.studies.three_groups import draw_three_groups, three_groups

    groups = three_groups()
    write_numbers(groups, output.with_suffix(".csv"))
    draw_three_groups(groups, output, caption=caption)
    print_three_groups(groups, as_json=as_json)


def _gaussian2d(name: str, output: Path, samples: int, seed: int, *, caption: bool, as_json: bool) -> None:
    from compshift.report.studies import print_gaussian2d
    from compshift.studies.figure_file import write_numbers
    from compshift.studies.gaussian2d import draw_gaussian2d, draw_marginals, run_gaussian2d

    study = run_gaussian2d(n_train=samples, random_state=seed)
    tasks = study.tasks if name == "gaussian2d" else study.marginal_tasks
    write_numbers(study.numbers(tasks), output.with_suffix(".csv"))
    (draw_gaussian2d if name == "gaussian2d" else draw_marginals)(study, output, caption=caption)
    print_gaussian2d(study, tasks, as_json=as_json)


def _hull(output: Path, *, caption: bool, as_json: bool) -> None:
    from compshift.report.studies import print_hull_example
    from compshift.studies.figure_file import write_numbers
    from compshift.studies.hull import draw_hull_example, hull_example

    cells = hull_example()
    write_numbers(cells, output.with_suffix(".csv"))
    draw_hull_example(cells, output, caption=caption)
    print_hull_example(cells, as_json=as_json)


def _hull_steps(output: Path, *, caption: bool, as_json: bool) -> None:
    from compshift.report.studies import print_hull_steps
    from compshift.studies.figure_file import write_numbers
    from compshift.studies.hull import draw_hull_steps, hull_steps

    cells = hull_steps()
    write_numbers(cells, output.with_suffix(".csv"))
    draw_hull_steps(cells, output, caption=caption)
    print_hull_steps(cells, as_json=as_json)


def _hull_growth(output: Path, trials: int, seed: int, *, caption: bool, as_json: bool) -> None:
    from compshift.report.studies import print_hull_growth
    from compshift.studies.figure_file import write_numbers
    from compshift.studies.hull import draw_hull_growth, run_hull_growth

    rows = run_hull_growth(trials, seed)
    write_numbers([row.to_dict() for row in rows], output.with_suffix(".csv"))
    draw_hull_growth(rows, output, caption=caption)
    print_hull_growth(rows, as_json=as_json)


def _growth(output: Path, rows_per_group: int | None, *, quick: bool, caption: bool, as_json: bool) -> None:
    from compshift.report.studies import print_growth
    from compshift.report.terminal import progress_bar
    from compshift.studies.figure_file import write_numbers
    from compshift.studies.growth import draw_growth, plan_cases, run_growth

    cases = plan_cases(quick=quick, rows_per_group=rows_per_group)
    with progress_bar("growth", len(cases)) as advance:
        outcomes = run_growth(cases, output.with_suffix(".jsonl"), lambda _: advance(1))
    write_numbers([outcome.to_dict() for outcome in outcomes], output.with_suffix(".csv"))
    draw_growth(outcomes, output, caption=caption)
    print_growth(outcomes, as_json=as_json)
