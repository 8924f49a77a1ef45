"""Write a model's predictions to a table file, and print its accuracy by group."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from compshift._errors import InputError
from compshift._files import PARQUET, check_target, ending, replacing
from compshift.report.terminal import MAX_ROWS, plain_table, print_lines

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console
    from rich.table import Table

    from compshift.core.groups import GroupSpace
    from compshift.crm.explanation import Explanation
    from compshift.estimators.comparison import Comparison
    from compshift.metrics.evaluation import Evaluation

NON_TERMINAL_WIDTH = 1000
"""Line width, in characters, used when output is not a terminal; wide enough to show every column."""


RENAMED = {"inside_hull": "inside hull", "effective_sample_size": "effective sample size", "log_odds": "log-odds"}
"""Names of columns of an explanation in files of predictions, where they differ."""

WITHOUT = "without pool"
"""Heading of the column with the accuracy of the model fitted to the labelled rows alone."""


def prediction_frame(
    clf: Any, X: Any, *, groups: bool, explain: bool, sets: float | None = None, attributes: Any = None
) -> pd.DataFrame:
    """Return a table with one row per sample: the predicted value of each target, and the probability of every value.

    Probability columns are named ``P(bird=waterbird)``. With ``groups``, every candidate group has a probability column
    too, named ``P(bird=waterbird, place=land)``. With ``explain``, columns named ``group …`` hold the most probable
    group and the other columns of ``Explanation.to_frame``, and ``group main features`` the features that contribute
    most, if energies are linear. With ``sets``, a coverage, columns named ``bird set`` hold the classes that cannot be
    excluded, joined by "|". ``attributes`` holds the values of attributes that are known in use.
    """
    import pandas as pd

    if (groups or explain) and not hasattr(clf, "group_log_proba"):
        raise InputError(
            "groups and explain need a model that gives groups a probability, but this one predicts classes only: "
            "leave both out, or use a CRM model"
        )
    if sets is not None and not hasattr(clf, "predict_set"):
        raise InputError("sets need a model of `compshift fit`, but this one is a trained network: leave sets out")
    targets = clf.targets_
    known = {} if attributes is None else {"attributes": attributes}
    predicted, proba = clf.predict(X, **known), clf.predict_proba(X, **known)
    if predicted.ndim == 1:
        predicted, proba = predicted[:, None], [proba]
    columns: dict[str, Any] = {name: predicted[:, column] for column, name in enumerate(targets.names)}
    for name, values, part in zip(targets.names, targets.values, proba, strict=True):
        columns |= {f"P({name}={value})": part[:, column] for column, value in enumerate(values)}
    if groups:
        joint = np.exp(clf.group_log_proba(X, **known))  # (n, g)
        columns |= {_group_column(clf.space_, code): joint[:, column] for column, code in enumerate(clf.groups_)}
    if sets is not None:
        found = clf.predict_set(X, sets, **known)
        for name, part in zip(targets.names, found if isinstance(found, list) else [found], strict=True):
            columns[f"{name} set"] = ["|".join(map(str, classes)) for classes in part]
    frame = pd.DataFrame(columns).infer_objects()
    if explain:
        reasons = clf.explain(X, **known)
        table = reasons.to_frame()
        added = [RENAMED.get(name, name) for name in table.columns[len(clf.space_.names) :]]
        names = [f"{name} (attribute)" if name in added else name for name in clf.space_.names]
        table.columns = [f"group {name}" for name in (*names, *added)]
        features = _with_names_of_table(reasons, clf).main_features()
        if features is not None:
            table["group main features"] = features
        frame = pd.concat([frame, table], axis=1)
    return frame


def _with_names_of_table(reasons: Explanation, clf: Any) -> Explanation:
    """Return an explanation that names the features which a model file computes from the columns of a table."""
    from compshift.features.recipe import Recipe

    inputs = clf.inputs_ or {}
    if inputs.get("kind") != "table":
        return reasons
    table = Recipe.from_dict(inputs).table
    assert table is not None
    return replace(reasons, feature_names=table.feature_names)


def _group_column(space: GroupSpace, code: Any) -> str:
    """Return the name of a group's probability column, for example ``P(bird=waterbird, place=land)``."""
    pairs = zip(space.names, space.values, code, strict=True)
    return "P(" + ", ".join(f"{name}={values[position]}" for name, values, position in pairs) + ")"


def check_table_path(path: Path, *sources: str | Path | None) -> None:
    """Raise an InputError if a table cannot be written to ``path`` or would overwrite one of the ``sources``."""
    if ending(path) not in (".csv", *PARQUET):
        raise InputError(
            f"{path.name!r} has the ending {path.suffix!r}, but tables are written as .csv or .parquet: rename it"
        )
    check_target(path, *sources)


def with_columns(columns: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """Return predictions with columns of the input before them; raise an InputError if a name occurs in both."""
    import pandas as pd

    twice = [name for name in columns.columns if name in frame.columns]
    if twice:
        raise InputError(f"the predictions have a column {twice[0]!r} as well: rename the column in the input")
    return pd.concat([columns, frame], axis=1)


def write_csv(frame: pd.DataFrame, stream: TextIO) -> None:
    """Write a table as CSV in UTF-8, whatever the encoding of the stream."""
    text = frame.to_csv(index=False, lineterminator="\n")
    stream.flush()
    if hasattr(stream, "buffer"):
        stream.buffer.write(text.encode())
    else:  # a stream in memory
        stream.write(text)
    stream.flush()


def write_frame(frame: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV or Parquet, depending on the ending of ``path``."""
    check_table_path(path)
    with replacing(path) as temporary:
        if ending(path) == ".csv":
            frame.to_csv(temporary, index=False)
        else:
            frame.to_parquet(temporary, index=False)


def print_evaluation(evaluation: Evaluation, part: str, comparison: Comparison | None = None, *, as_json: bool) -> None:
    """Print the accuracy of every group with its role in training and the evidence for its bias, then the averages.

    ``comparison`` with other methods on the same rows is printed last.
    """
    report = evaluation.report
    if as_json:
        content = {"rows": int(report.count.sum()), "split": part, **evaluation.to_dict()}
        if comparison is not None:
            content["comparison"] = comparison.to_dict()
        print(json.dumps(content, allow_nan=False))
        return
    from rich.console import Console

    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = NON_TERMINAL_WIDTH
    table, left_out = _fitting_table(evaluation, part, console)
    console.print(table)
    worst = ", ".join(map(str, report.worst_group))
    lines = [
        *([f"not shown at this width: {', '.join(left_out)}; use a wider terminal or --json"] if left_out else []),
        f"average accuracy {report.average:.3f}, balanced {report.balanced:.3f}",
        f"worst group {report.worst:.3f}, ({worst})",
        known_in_use(evaluation.known),
    ]
    plain = evaluation.without_unlabelled
    if plain is not None:
        lines.append(
            f"without the unlabelled rows of the fit: average accuracy {plain.average:.3f}, balanced "
            f"{plain.balanced:.3f}, worst group {plain.worst:.3f}, ({', '.join(map(str, plain.worst_group))})"
        )
    if report.compositional_risk == math.inf:
        lines.append("compositional risk infinite: a group with rows has probability 0 under the current prior")
    elif report.compositional_risk is not None:
        lines.append(f"compositional risk {report.compositional_risk:.3f} nats")
    if report.n_empty:
        lines.append(
            f"{report.n_empty} of {report.space.n_groups} groups have no rows and are left out of these figures"
        )
    print_lines(console, *lines)
    if comparison is not None:
        print(f"\nmethods fitted to the rows of --compare, scored on the same rows, in percent\n{comparison}")


def known_in_use(known: Sequence[str]) -> str:
    """Return words that name the attributes whose values the model was given when it predicted."""
    return f"attributes known in use: {', '.join(known)}" if known else "attributes unknown in use"


def _fitting_table(evaluation: Evaluation, part: str, console: Console) -> tuple[Table, list[str]]:
    """Return the accuracy table, and the headings of the columns that had to be left out for the console's width.

    Narrow consoles first get smaller gaps between the columns; then ESS, expected accuracy, the accuracy without
    unlabelled rows and the intervals are left out, in this order.
    """
    from rich.measure import Measurement

    optional = [f"{evaluation.report.confidence:.0%} interval"]
    optional += [WITHOUT] if evaluation.without_unlabelled is not None else []
    optional += ["expected"] if not np.isnan(evaluation.expected).all() else []
    optional += ["ESS"] if not np.isnan(evaluation.effective_sample_size).all() else []
    unlimited = console.options.update(max_width=NON_TERMINAL_WIDTH)
    for count in range(len(optional), -1, -1):
        for gap in (1, 0):
            table = _evaluation_table(evaluation, part, optional[:count])
            table.padding = (0, gap)
            if Measurement.get(console, unlimited, table).maximum <= console.width:
                return table, optional[count:]
    return table, optional


def _evaluation_table(evaluation: Evaluation, part: str, optional: Sequence[str]) -> Table:
    """Return the accuracy table; ``optional`` lists the headings of the optional columns to include."""
    from rich.markup import escape

    report, plain = evaluation.report, evaluation.without_unlabelled
    table = plain_table(f"accuracy by group ({part} rows)")
    for name, known in zip(report.space.names, report.space.values, strict=True):
        longest = max(len(str(text)) for text in (name, *known))
        table.add_column(escape(name), overflow="fold", min_width=min(longest, 8))
    for name in ("rows", "accuracy", *optional):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("in training", no_wrap=True)
    values = report.space.decode(report.groups)
    for row in range(min(len(report.groups), MAX_ROWS)):
        tested = report.count[row] > 0
        size, expected = evaluation.effective_sample_size[row], evaluation.expected[row, 0]
        cells = {
            "expected": "" if np.isnan(expected) else f"{expected:.3f}",
            "ESS": "" if np.isnan(size) else f"{size:.0f}",
            WITHOUT: f"{plain.accuracy[row]:.3f}" if plain is not None and tested else "",
        }
        interval = f"{report.lower[row]:.3f}–{report.upper[row]:.3f}" if tested else ""
        table.add_row(
            *(escape(str(value)) for value in values[row]),
            str(report.count[row]),
            f"{report.accuracy[row]:.3f}" if tested else "empty",
            *(cells.get(name, interval) for name in optional),
            evaluation.states[row],
        )
    if len(report.groups) > MAX_ROWS:
        table.caption = f"the first {MAX_ROWS} of {len(report.groups)} groups; --json lists all of them"
    return table
