"""Print the results of commands as text or as JSON, with helpers shared by all terminal output.

The helpers are plain tables, unwrapped lines, the progress bar, durations and counts. ``run_progress`` prints training
runs and benchmarks, ``predictions`` evaluations, ``audit`` audits, and ``studies`` the paper's studies.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from compshift.data.splits import SPLITS

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console
    from rich.table import Table

    from compshift.core.arrays import IntArray
    from compshift.crm.classifier import CRMClassifier
    from compshift.data.benchmarks import Benchmark
    from compshift.data.dataset import GroupedDataset
    from compshift.export.onnx import OnnxFile
    from compshift.features.extract import Extraction

MAX_ROWS = 200
"""Maximum number of groups in a printed table; --json lists all of them."""

MAX_PROBLEMS = 10
"""Maximum number of warnings or of broken samples that are printed; the rest are only counted."""


def plain_table(title: str) -> Table:
    """Return an empty table without a frame, so that more fits into 80 columns."""
    from rich.box import SIMPLE
    from rich.markup import escape
    from rich.table import Table

    return Table(
        box=SIMPLE,
        show_edge=False,
        pad_edge=False,
        title=escape(title),
        title_justify="left",
        caption_justify="left",
    )


def print_lines(console: Console, *lines: str) -> None:
    """Print each text as one line, without markup, colours or wrapping."""
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def progress_bar(title: str, total: int, unit: str = "") -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error if it is a terminal; yield a function that advances the bar by a count."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    rate = [TextColumn("{task.fields[rate]}")] if unit else []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *rate, TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(title, total=total, rate="")

        def advance(count: int) -> None:
            progress.advance(task, count)
            speed = progress.tasks[0].speed
            progress.update(task, rate=f"{speed:.1f} {unit}/s" if speed else "")

        yield advance


@contextmanager
def byte_bar(title: str) -> Iterator[Callable[[int, int | None], None]]:
    """Show a progress bar of bytes like ``progress_bar``; yield a function that takes the bytes done and all bytes."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    title_column = TextColumn("{task.description}", markup=False)
    with Progress(title_column, *columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def duration(seconds: float) -> str:
    """Format a duration as ``45 s``, ``12 min`` or ``3.4 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun in singular or plural: ``1 job``, ``2 jobs``."""
    return f"{count} {noun}{'s' * (count != 1)}"


def print_fit(clf: Any, n_rows: int, path: Path, *, as_json: bool) -> None:
    """Print groups, hull, convergence and sample sizes of a fit; after cross-validation, also settings and accuracy."""
    mixed = hasattr(clf, "energies_")  # energies of columns of mixed kinds
    size = clf.effective_sample_size_
    unseen = clf.inside_hull_ & ~clf.seen_
    result = {
        "model": str(path),
        "rows": n_rows,
        "features": int(clf.n_features_in_),
        "seen_groups": int(clf.seen_.sum()),
        "extrapolated_groups": int(unseen.sum()),
        "groups_outside_hull": int((~clf.inside_hull_).sum()),
        "hull_rank": clf.hull_.rank,
        "hull_full_rank": clf.hull_.full_rank,
        **({"energies": clf.energies_} if mixed else {"alpha": clf.alpha_, "anchor": clf.anchor_}),
        "bias": clf.selected_bias_,
        "unseen_offset": clf.unseen_offset_,
        **({} if mixed else {"feature_transform": clf.feature_transform_}),
        "converged": clf.converged_,
        "iterations": clf.n_iter_,
        "bias_gap": clf.bias_gap_,
        "smallest_extrapolated_effective_sample_size": float(size[unseen].min()) if unseen.any() else None,
    }
    expected = getattr(clf, "expected_group_accuracy_", None)
    if expected is not None:
        result["folds"] = getattr(clf, "n_splits_", None)
        result["expected_accuracy"] = expected.to_dict(orient="records")
    if mixed:
        result |= _held_out_accuracy(clf)
    elif clf.unlabelled_decision_ is not None:
        result["unlabelled"] = unlabelled_content(clf)
    if as_json:
        print(json.dumps(result))
        return
    print(f"{n_rows} rows of {clf.n_features_in_} features, attributes {', '.join(clf.space_.names)}")
    print(
        f"groups: {result['seen_groups']} seen, {result['extrapolated_groups']} extrapolated, "
        f"{result['groups_outside_hull']} outside the hull"
    )
    if mixed:
        print(_energies_line(clf))
    else:
        state = "converged" if clf.converged_ else "NOT converged"
        print(f"fit: {state} after {clf.n_iter_} iterations, max |B* - B| = {clf.bias_gap_:.1e}")
    if unseen.any():
        from compshift.core.bias import ENOUGH_SAMPLES

        position = int(np.flatnonzero(unseen)[np.argmin(size[unseen])])
        measured = expected is not None and len(expected) > 0  # then the expected accuracy says how far to trust
        note = " (uncertain)" if size[position] < ENOUGH_SAMPLES and not measured else ""
        print(
            f"{'biases' if measured else 'trust'}: the smallest effective sample size behind the bias of an "
            f"extrapolated group is {size[position]:.0f}, for {clf.space_.label(clf.groups_[position])}{note}"
        )
    if expected is not None and not mixed:
        how = "" if (clf.anchor_, clf.selected_bias_) == ("zero", "extrapolated") else f", {clf.anchor_} anchor"
        how += "" if clf.selected_bias_ == "extrapolated" else f", {clf.selected_bias_} bias"
        how += "" if clf.feature_transform_ == "none" else f", transform {clf.feature_transform_}"
        offset = round(clf.unseen_offset_, 2) + 0.0  # + 0.0 turns −0.0 into 0.0
        how += f", unseen groups {offset:+.2f} nats" if offset else ""
        if clf.n_splits_:
            print(f"chosen on held-out groups ({clf.n_splits_} folds): alpha {clf.alpha_:g}{how}")
        else:
            print(
                f"no group can be held out: alpha {clf.alpha_:g} is nearest to the typical one for these "
                "numbers of features and rows"
            )
    if expected is not None and len(expected):
        worst = expected.loc[expected["accuracy"].idxmin()]
        name = ", ".join(str(worst[attribute]) for attribute in clf.space_.names)
        print(
            f"trust: expected accuracy on {counted(len(expected), 'unseen group')}: "
            f"{expected['accuracy'].mean():.2f} on average, "
            f"{worst['accuracy']:.2f} ({worst['lower']:.2f} to {worst['upper']:.2f}) on the worst, ({name})"
        )
    for line in unlabelled_lines(clf):
        print(line)
    print(f"model written to {path}")


def _held_out_accuracy(clf: Any) -> dict[str, float | None]:
    """Return the accuracy on held-out groups, and on held-out rows of the others; None if unknown."""
    names = {"held_out_group_accuracy": "mean_test_score", "held_out_row_accuracy": "mean_seen_score"}
    found = {name: float(clf.cv_results_[column][clf.best_index_]) for name, column in names.items()}
    return {name: None if np.isnan(value) else value for name, value in found.items()}


def _energies_line(clf: Any) -> str:
    """Say which energies were chosen, and how accurate they are on held-out groups and rows."""
    on_groups, on_rows = _held_out_accuracy(clf).values()
    groups = "no group can be held out" if on_groups is None else f"accuracy {on_groups:.2f} on held-out groups"
    rows = "" if on_rows is None else f", {on_rows:.2f} on held-out rows of seen groups"
    alpha = clf.cv_results_["alpha"][clf.best_index_]
    rounds = f"{counted(int(clf.n_iter_), 'round')} of boosting"
    linear = f"linear energies with alpha {alpha:g}"
    chosen = {"boosted": rounds, "linear": linear, "both": f"{rounds} and {linear}"}[clf.energies_]
    rows = f"; accuracy{rows[1:]}" if on_groups is None and rows else rows
    return f"fit: {chosen}, chosen by cross-validation; {groups}{rows}"


def unlabelled_lines(clf: CRMClassifier) -> list[str]:
    """Return lines on the unlabelled rows of a fit: whether they were used and why, and the share of unseen groups."""
    use = clf._model.pool
    if use is None:
        return []
    reason = use.decision.reason.replace("use_unlabelled='always'", "--use-unlabelled always")
    rounds = f" ({counted(use.n_rounds, 'round')} of EM)" if use.decision.used else ""
    lines = [f"{counted(use.n_samples, 'unlabelled row')}: {reason}{rounds}"]
    share, lower, upper = use.decision.unseen_share
    if not np.isnan(share):
        lines.append(
            f"estimated share of unseen groups among the unlabelled rows, by the fit without them: {share:.1%} "
            f"({lower:.1%} to {upper:.1%})"
        )
    before, after = expected_without(clf), getattr(clf, "expected_group_accuracy_", None)
    if before is not None and after is not None and len(after):
        lines.append(
            f"expected accuracy on unseen groups: {before['accuracy'].mean():.2f} on average without these rows, "
            f"{after['accuracy'].mean():.2f} with them"
        )
    return lines


def unlabelled_content(clf: CRMClassifier) -> dict[str, Any] | None:
    """Return what a fit did with unlabelled rows as numbers, text and lists that JSON can hold; None without them.

    The entry ``groups`` is None if the frequencies of the groups were not estimated.
    """
    use = clf._model.pool
    if use is None:
        return None

    def known(value: Any) -> Any:
        if isinstance(value, tuple):
            return [known(part) for part in value]
        return None if isinstance(value, float) and not np.isfinite(value) else value

    frame, expected = getattr(clf, "unlabelled_prior_", None), expected_without(clf)
    return {
        "rows": use.n_samples,
        "rounds": use.n_rounds,
        "decision": {name: known(value) for name, value in use.decision._asdict().items()},
        "groups": None if frame is None else frame.to_dict(orient="records"),
        "expected_accuracy_without": None if expected is None else expected.to_dict(orient="records"),
    }


def expected_without(clf: CRMClassifier) -> pd.DataFrame | None:
    """Return the expected accuracy on unseen groups of the fit without unlabelled rows; None if it is not known."""
    decision = getattr(clf, "unlabelled_decision_", None)
    if decision is None or not decision.used:
        return None
    return getattr(clf.without_unlabelled(), "expected_group_accuracy_", None)


def print_extraction(done: Extraction, backbone: str, *, as_json: bool) -> None:
    """Print the rows and shards of an extraction, its duration, and the broken samples that were left out."""
    if as_json:
        content = {
            "folder": str(done.folder),
            "backbone": backbone,
            "rows": done.rows,
            "features": done.features,
            "shards": done.shards,
            "shards_reused": done.reused,
            "broken": list(done.broken),
            "seconds": done.seconds,
            "forward_seconds": done.forward_seconds,
        }
        print(json.dumps(content))
        return
    reused = f" ({done.reused} reused from an earlier run)" if done.reused else ""
    print(f"{done.rows} rows of {done.features} features by {backbone} in {counted(done.shards, 'shard')}{reused}")
    if done.forward_seconds:
        share = 1 - done.forward_seconds / done.seconds
        print(f"extraction took {done.seconds:.1f} s, {share:.0%} of it outside the backbone")
    for sentence in done.broken[:MAX_PROBLEMS]:
        print(f"left out: {sentence}")
    if len(done.broken) > MAX_PROBLEMS:
        print(f"left out: {len(done.broken) - MAX_PROBLEMS} more; --json lists all of them")
    print(f"features written to {done.folder}")


def print_onnx_file(written: OnnxFile, *, as_json: bool) -> None:
    """Print the names and shapes of an exported model's inputs and outputs."""
    if as_json:
        content = {
            "model": str(written.path),
            "bytes": written.size,
            "inputs": {name: list(shape) for name, shape in written.inputs.items()},
            "outputs": {name: list(shape) for name, shape in written.outputs.items()},
        }
        print(json.dumps(content))
        return

    def listed(shapes: Mapping[str, tuple[int | None, ...]]) -> str:  # X (N, 5), prior (6)
        axes = {name: ", ".join("N" if axis is None else str(axis) for axis in shape) for name, shape in shapes.items()}
        return ", ".join(f"{name} ({shape})" for name, shape in axes.items())

    print(f"inputs: {listed(written.inputs)}{'; prior is optional' * ('prior' in written.inputs)}")
    print(f"outputs: {listed(written.outputs)}")
    print(f"model written to {written.path}")


def print_benchmarks(benchmarks: Sequence[Benchmark], *, as_json: bool) -> None:
    """Print every named data set: kind of samples, groups, and whether it is bundled or must be downloaded."""
    if as_json:
        content = [
            {
                "name": known.name,
                "title": known.title,
                "kind": known.kind,
                "groups": known.groups,
                "embedded": known.bundled,
                "download": known.download or None,
            }
            for known in benchmarks
        ]
        print(json.dumps(content, ensure_ascii=False))
        return
    from rich.console import Console

    table = plain_table("data sets")
    for heading in ("name", "samples", "groups", "source"):
        table.add_column(heading, no_wrap=True)
    table.add_column("description", overflow="fold")
    for known in benchmarks:
        source = "bundled" if known.bundled else "download"
        table.add_row(known.name, known.kind, known.groups, source, known.title)
    Console().print(table)


def print_check(
    known: Benchmark,
    data: GroupedDataset,
    notes: Sequence[str],
    broken: Sequence[str],
    *,
    as_json: bool,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Print the number of rows of each group and split, what is missing or differs from the published data, and errors.

    ``notes`` are the warnings of the loader, ``broken`` the errors of samples that cannot be read, and ``more`` has
    further entries of the JSON output.
    """
    groups, counts = _split_counts(data)
    warnings = [*notes, *known.differences(data)]
    untested = [group for group, row in zip(groups, counts, strict=True) if not row[2]]
    if untested and "test" in data.splits:
        listed = ", ".join(data.space.label(code) for code in untested[:4])
        warnings.append(f"{len(untested)} group{'s have' if len(untested) > 1 else ' has'} no test rows: {listed}")
    absent = [name for name in SPLITS if name not in data.splits]
    if absent:
        warnings.append(f"there are no {' and no '.join(absent)} rows")
    if as_json:
        values = data.space.decode(groups).tolist()
        content = {
            "name": known.name,
            **more,
            "found": data.source,
            "kind": data.kind,
            "attributes": dict(zip(data.space.names, map(list, data.space.values), strict=True)),
            "rows": {name: int(counts[:, code].sum()) for code, name in enumerate(SPLITS)},
            "published": dict(known.totals),
            "groups": [
                {"group": value, **dict(zip(SPLITS, row, strict=True))}
                for value, row in zip(values, counts.tolist(), strict=True)
            ],
            "warnings": warnings,
            "broken": list(broken),
        }
        print(json.dumps(content, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.markup import escape

    console = Console()
    print_lines(console, f"{known.name}: {len(data)} rows of {data.kind}, found as {data.source}")
    table = plain_table("rows of each group")
    for name in data.space.names:
        table.add_column(escape(name), overflow="fold")
    for name in SPLITS:
        table.add_column(name, justify="right")
    for value, row in list(zip(data.space.decode(groups), counts, strict=True))[:MAX_ROWS]:
        table.add_row(*(escape(str(entry)) for entry in value), *(str(count) for count in row))
    if len(groups) > MAX_ROWS:
        table.caption = f"the first {MAX_ROWS} of {len(groups)} groups; --json lists all of them"
    table.add_section()
    blank = [""] * (len(data.space.names) - 1)
    table.add_row("all", *blank, *(str(count) for count in counts.sum(axis=0)))
    if known.totals:
        table.add_row("published", *blank, *(str(known.totals.get(name, "")) for name in SPLITS))
    console.print(table)
    for title, sentences in (("warning", warnings), ("broken", list(broken))):
        print_lines(console, *(f"{title}: {sentence}" for sentence in sentences[:MAX_PROBLEMS]))
        if len(sentences) > MAX_PROBLEMS:
            print_lines(console, f"{title}: {len(sentences) - MAX_PROBLEMS} more; --json lists all of them")


def _split_counts(data: GroupedDataset) -> tuple[IntArray, IntArray]:
    """Return the groups that have rows, (g, m), and their number of rows in each split, (g, 3)."""
    groups, position = data.space.distinct(data.codes)
    split = np.zeros(len(data), dtype=np.int64) if data.split is None else data.split
    counts = np.bincount(position * len(SPLITS) + split, minlength=len(groups) * len(SPLITS))
    return groups, counts.reshape(len(groups), len(SPLITS))
