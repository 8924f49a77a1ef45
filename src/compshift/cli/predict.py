"""Commands that use a fitted model: ``compshift predict``, ``evaluate``, ``monitor`` and ``export`` (ONNX)."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compshift._errors import InputError
from compshift.cli.options import (
    DATA,
    Json,
    Known,
    Methods,
    Model,
    ModelRows,
    MovedBackbone,
    Prior,
    Root,
    SkipBroken,
    Weights,
    names,
    reject_unused,
)

if TYPE_CHECKING:
    from compshift.data.dataset import GroupedDataset
    from compshift.estimators.comparison import Comparison
    from compshift.training.load import LoadedModel

PIPE = "-"
"""Stands for standard input or standard output, as CSV."""

ALARM = 3
"""Exit code of ``monitor`` if it finds something new."""

NOT_TESTED = 4
"""Exit code of ``monitor`` if the model lacks what its tests need."""


def predict(
    model: Model,
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="Feature file, table with the columns of the training table, name of a data set, or - for a CSV table "
            "from standard input.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="Table to write: .csv or .parquet, or - for CSV to standard output.",
            show_default=False,
        ),
    ],
    groups: Annotated[bool, typer.Option("--groups", metavar="", help="Add the probability of every group.")] = False,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            metavar="",
            help="Add the most probable group, how reliable it is, and what it owes to each attribute and feature.",
        ),
    ] = False,
    sets: Annotated[
        float | None,
        typer.Option(
            metavar="COVERAGE",
            help="Add the classes that cannot be excluded at this coverage, such as 0.9. Needs a model fitted with "
            "--alpha auto, --cross-fit, or --energies boosted or auto.",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMNS",
            help="Columns of INPUT to copy to the predictions, such as an id, separated by commas.",
            show_default=False,
        ),
    ] = None,
    known: Known = None,
    prior: Prior = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Rows of a feature file or data set to predict: train, val, test or all.",
            show_default="all",
            rich_help_panel=DATA,
        ),
    ] = None,
    root: Root = None,
    skip_broken: SkipBroken = False,
    backbone: MovedBackbone = None,
    weights: Weights = None,
) -> None:
    """Predict the target of every row, and write a table with one row per input row, in the same order.

    With --skip-broken, the predictions of images that cannot be read are empty. With --known, an empty cell is an
    unknown value.
    """
    from compshift.cli.inputs import TableOptions
    from compshift.cli.model_inputs import kept_names, known_names, load_model, unlabelled_rows
    from compshift.report.predictions import (
        check_table_path,
        known_in_use,
        prediction_frame,
        with_columns,
        write_csv,
        write_frame,
    )

    piped = str(output) == PIPE
    if not piped:
        check_table_path(output, None if source == PIPE else source, model, prior, root)
    loaded = load_model(model, prior)
    options = TableOptions(root=root, split=split, skip_broken=skip_broken, backbone=backbone, weights=weights)
    told = known_names(loaded, known)
    kept = kept_names(loaded, keep)
    with _input_file(source) as file:
        rows = unlabelled_rows(loaded, file, options, told, kept)
    frame = prediction_frame(loaded.clf, rows.X, groups=groups, explain=explain, sets=sets, attributes=rows.known)
    if len(rows.position) < rows.n_rows:
        frame = frame.convert_dtypes().set_index(rows.position).reindex(range(rows.n_rows))
    if rows.images is not None:
        frame.insert(0, *rows.images)
    if rows.kept is not None:
        frame = with_columns(rows.kept, frame)
    if piped:
        write_csv(frame, sys.stdout)
    else:
        write_frame(frame, output)
    place = "standard output" if piped else output
    typer.echo(f"{len(frame)} predictions written to {place}" + (f" ({known_in_use(told)})" if told else ""), err=piped)


@contextmanager
def _input_file(source: str) -> Iterator[str]:
    """Yield the path of an input; for standard input, that of a temporary file, which errors do not name."""
    if source != PIPE:
        yield source
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input.csv"
        content = b"" if sys.stdin is None else sys.stdin.buffer.read()
        if not content.strip():
            raise InputError("standard input is empty: pass a CSV table with a header")
        path.write_bytes(content)
        try:
            yield str(path)
        except InputError as error:
            message = str(error).replace(repr(str(path)), "standard input").replace(repr(path.name), "standard input")
            raise InputError(message) from None


def evaluate(
    model: Model,
    source: ModelRows,
    known: Known = None,
    prior: Prior = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Rows to score: train, val, test or all.",
            show_default="test if the data have that split, else all",
            rich_help_panel=DATA,
        ),
    ] = None,
    root: Root = None,
    skip_broken: SkipBroken = False,
    backbone: MovedBackbone = None,
    weights: Weights = None,
    training: Annotated[
        str | None,
        typer.Option(
            "--compare",
            metavar="TRAINING",
            help="Rows that the model was fitted to: fit other methods to them and score them on the same rows, as "
            "`compshift compare` does.",
            show_default=False,
        ),
    ] = None,
    methods: Methods = None,
    json: Json = False,
) -> None:
    """Print the average, balanced and worst-group accuracy, and every group's accuracy with a confidence interval.

    For a model that was fitted with unlabelled rows, print the accuracy without them, too. With --compare, other
    methods are fitted to the rows in TRAINING (only its train rows if it has splits), on the features of the model.
    """
    from compshift.cli.inputs import TableOptions
    from compshift.cli.model_inputs import known_names, labelled_rows, load_model
    from compshift.metrics.evaluation import evaluate as evaluate_model
    from compshift.report.predictions import print_evaluation

    loaded = load_model(model, prior)
    options = TableOptions(root=root, split=split, skip_broken=skip_broken, backbone=backbone, weights=weights)
    told = known_names(loaded, known)
    data, scored_split = labelled_rows(loaded, source, options)
    comparison = None
    if training is None:
        reject_unused({"--methods": methods}, "for --compare")
    else:
        train, split = labelled_rows(loaded, training, replace(options, split=None), default="train")
        overlaps = scored_split == split or "all" in (scored_split, split)
        if overlaps and Path(training).resolve() == Path(source).resolve():
            raise InputError(
                f"--compare would score methods on rows that they are fitted to, because {source!r} is also the table "
                "that is scored: pass a table with train and test splits, or two tables"
            )
        comparison = _compared_with(loaded, train, data, methods, told)
    print_evaluation(evaluate_model(loaded.clf, data, told), scored_split, comparison, as_json=json)


def _compared_with(
    loaded: LoadedModel, train: GroupedDataset, test: GroupedDataset, methods: str | None, told: list[str]
) -> Comparison:
    """Compare methods that are fitted to ``train`` and scored on ``test``, on the same features as the model."""
    from compshift.cli.compare import compared
    from compshift.core.sparse import SparseRows
    from compshift.features.recipe import Recipe

    targets = list(loaded.clf.targets_.names)
    nuisances = [name for name in loaded.clf.space_.names if name not in targets]
    if not nuisances:
        raise InputError("--compare is for models with attributes beside the target, which define groups: leave it out")
    if isinstance(train.X, SparseRows):
        raise InputError("--compare needs dense features, but the model takes the words of texts: leave it out")
    recipe = None if loaded.inputs is None or "kind" not in loaded.inputs else Recipe.from_dict(loaded.inputs)
    categorical = [] if recipe is None or recipe.table is None else recipe.table.categorical
    chosen = None if methods is None else names(methods, "--methods")
    return compared([train, test], targets, nuisances, categorical, methods=chosen, known=set(told) == set(nuisances))


def monitor(
    model: Model,
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="Unlabelled rows of use: feature file, table with the columns of the training table, name of a data "
            "set, or - for a CSV table from standard input.",
            show_default=False,
        ),
    ],
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "--output",
            "-o",
            help="File to write: .html for a page, .json for the result. Repeatable.",
            show_default=False,
        ),
    ] = None,
    level: Annotated[float, typer.Option(help="Probability of an alarm about rows in which nothing is new.")] = 0.05,
    confidence: Annotated[float, typer.Option(help="Confidence level of the intervals of frequencies.")] = 0.9,
    split: Annotated[
        str | None,
        typer.Option(
            help="Rows of a feature file or data set: train, val, test or all.",
            show_default="all",
            rich_help_panel=DATA,
        ),
    ] = None,
    root: Root = None,
    skip_broken: SkipBroken = False,
    backbone: MovedBackbone = None,
    weights: Weights = None,
    json: Json = False,
) -> None:
    """Tell from unlabelled rows of use which combinations occur that training lacked, and how frequent all groups are.

    The exit code is 0 if nothing is new, 3 if there are combinations that training lacked or more rows than chance
    explains that fit no group, and 4 if the model lacks the out-of-fold energies that the tests need: fit it with
    --alpha auto, --cross-fit, or --energies boosted or auto. Changed frequencies alone do not change the exit code.
    """
    from compshift.cli.inputs import TableOptions
    from compshift.cli.model_inputs import load_model, unlabelled_rows
    from compshift.estimators.monitor import monitor as monitor_rows
    from compshift.report.monitor_page import check_report_paths, print_monitor, write_report

    check_report_paths(output or [], None if source == PIPE else source, model, root)
    loaded = load_model(model, None)
    options = TableOptions(root=root, split=split, skip_broken=skip_broken, backbone=backbone, weights=weights)
    with _input_file(source) as file:
        rows = unlabelled_rows(loaded, file, options)
    found = monitor_rows(loaded.clf, rows.X, level=level, confidence=confidence)
    found = found._among(rows.position, rows.n_rows)
    name = "standard input" if source == PIPE else Path(source).name
    for path in output or []:
        write_report(found, path, model.name, name)
    print_monitor(found, as_json=json)
    for path in output or []:
        typer.echo(f"report written to {path}", err=json)
    if found.alarm or not found.tested:
        raise typer.Exit(ALARM if found.alarm else NOT_TESTED)


def export(
    model: Model,
    output: Annotated[Path, typer.Option("--output", "-o", help="ONNX file to write.", show_default=False)],
    prior: Prior = None,
    groups: Annotated[bool, typer.Option("--groups", metavar="", help="Add the probability of every group.")] = False,
    fixed_prior: Annotated[
        bool, typer.Option("--fixed-prior", metavar="", help="Fix the prior: the ONNX model has no input to change it.")
    ] = False,
    float64: Annotated[
        bool, typer.Option("--float64", metavar="", help="Use 64 bits for features and probabilities instead of 32.")
    ] = False,
    json: Json = False,
) -> None:
    """Write a model as one ONNX file, which runs without compshift.

    For a folder of `compshift train`, only the head is written: its input is the features of the backbone.
    """
    from compshift.export.onnx import check_onnx_path, export_onnx

    check_onnx_path(output, model, prior)
    from compshift.cli.model_inputs import load_model

    loaded = load_model(model, prior)
    written = export_onnx(
        loaded.clf if loaded.network is None else loaded.network,
        output,
        group_probabilities=groups,
        fixed_prior=fixed_prior,
        dtype="float64" if float64 else "float32",
    )
    from compshift.report.terminal import print_onnx_file

    print_onnx_file(written, as_json=json)
