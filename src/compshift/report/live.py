"""A benchmark on the terminal: a live table while it runs, a line for every failure, and what came of it.

A training run on the terminal: a live line, a line per evaluation, and what came of it.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compshift._errors import InputError
from compshift.bench.jobs import Job, Unit
from compshift.bench.protocol import printed
from compshift.bench.records import Record
from compshift.bench.results import Results
from compshift.bench.runner import BenchListener, Outcome
from compshift.report.tables import main_numbers, short_tables
from compshift.training.folder import RunFolder
from compshift.training.progress import Listener, ValidationStep

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

REFRESH = 4
"""Times a second that the table is drawn."""


class _LiveTable(BenchListener):
    """Jobs by data set and method: planned, finished, diverged, failed, and how long they take."""

    def __init__(self, units: Sequence[Unit], console: Console) -> None:
        self.console = console
        self.planned_jobs: Counter[tuple[str, str]] = Counter()
        for unit in units:
            self.planned_jobs[unit.data.source.label, unit.method.name] += unit.n_jobs
        self.counts: dict[str, Counter[tuple[str, str]]] = {
            name: Counter() for name in ("finished", "known", "diverged", "failed")
        }
        self.seconds: Counter[tuple[str, str]] = Counter()
        self.started = time.monotonic()

    def finished(self, job: Job, record: Record, *, new: bool) -> None:
        """Count it, and say what failed at once."""
        row = (job.data.source.label, job.method.name)
        status = record["status"]
        self.counts["failed" if status == "failed" else "finished"][row] += 1
        self.counts["known"][row] += not new
        self.counts["diverged"][row] += status == "diverged"
        self.seconds[row] += record["seconds"]
        if status == "failed":
            config = record["config"]
            where = f"{config['method']} on {config['data']} {config['scenario']}, draw {config['draw']}"
            self.console.print(f"failed: {where}: {record['error']}", markup=False, highlight=False, soft_wrap=True)

    def __rich__(self) -> RenderableType:
        """The table as it is now."""
        from rich.console import Group
        from rich.markup import escape
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        from compshift.report.terminal import plain_table

        table = plain_table("")
        for heading in ("data set", "method"):
            table.add_column(heading)
        for heading in ("finished", "diverged", "failed", "s/job"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row, total in self.planned_jobs.items():
            done, failed = self.counts["finished"][row], self.counts["failed"][row]
            diverged = self.counts["diverged"][row]
            mean = self.seconds[row] / (done + failed) if done + failed else 0.0
            table.add_row(
                escape(row[0]),
                escape(printed(row[1])),
                f"{done} of {total}",
                str(diverged or ""),
                str(failed or ""),
                f"{mean:.1f}" if mean else "",
            )
        done, total = sum(self.counts["finished"].values()), sum(self.planned_jobs.values())
        return Group(
            table, ProgressBar(total=max(total, 1), completed=done, width=60), Text(self._time_left(done, total))
        )

    def _time_left(self, done: int, total: int) -> str:
        """By the rate of the jobs that were run now; those that were there took no time."""
        elapsed = time.monotonic() - self.started
        new = done - sum(self.counts["known"].values())
        text = f"{done} of {total} jobs, {duration(elapsed)} gone"
        return text + (f", about {duration(elapsed / new * (total - done))} left" if new and done < total else "")


@contextmanager
def bench_listener(units: Sequence[Unit], *, quiet: bool) -> Iterator[BenchListener]:
    """A live table on standard error, where that is a terminal; elsewhere only failures are said."""
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    table = _LiveTable(units, console)
    if quiet or not console.is_terminal:
        yield table
        return
    with Live(table, console=console, refresh_per_second=REFRESH, transient=True):
        yield table


def duration(seconds: float) -> str:
    """A length of time for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _counted(count: int, name: str) -> str:
    return f"{count} {name}{'s' * (count != 1)}"


def print_plan(units: Sequence[Unit], seconds: float, slots: int, stored: int, *, as_json: bool) -> None:
    """What would be run, and about how long it would take."""
    total = sum(unit.n_jobs for unit in units)
    labels = list(dict.fromkeys(unit.data.source.label for unit in units))
    if as_json:
        print(json.dumps({"jobs": total, "stored": stored, "seconds": round(seconds / slots, 1), "data": labels}))
        return
    for label in labels:
        own = [unit for unit in units if unit.data.source.label == label]
        scenarios, methods = {unit.scenario for unit in own}, {unit.method.name for unit in own}
        count = sum(unit.n_jobs for unit in own)
        sizes = f"{_counted(len(scenarios), 'scenario')} × {_counted(len(methods), 'method')}"
        repeats = f"{_counted(own[0].draws, 'draw')}, {_counted(own[0].seeds, 'seed')}"
        print(f"{label}: {sizes}, {repeats}, {_counted(count, 'job')} ({own[0].data.protocol.mode})")
    there = f", {stored} of them in the folder already" if stored else ""
    print(f"{_counted(total, 'job')} in all{there}")
    print(f"about {duration(seconds / slots)} with {slots} side by side (an estimate)")


def print_outcome(outcome: Outcome, folder: Path, results: Results, *, as_json: bool) -> None:
    """The main tables, what failed, and where everything is."""
    if as_json:
        content = {
            "folder": str(folder),
            "new": outcome.new,
            "known": outcome.known,
            "failed": len(outcome.failures),
            "all_diverged": len(outcome.all_diverged),
            "results": main_numbers(results),
            "notes": results.notes,
        }
        print(json.dumps(content))
        return
    from rich.console import Console

    from compshift.report.grid import to_rich

    console = Console()
    for grid in short_tables(results):
        console.print(to_rich(grid), "")
        for note in grid.notes:
            console.print(note, highlight=False, markup=False, style="dim")
        console.print()
    print(f"{_counted(outcome.new, 'new job')}, {outcome.known} known; the tables are of everything in {folder}")
    for unit in outcome.all_diverged:
        print(f"every draw of {unit.method.name} on {unit.data.source.label} {unit.scenario} diverged")
    if outcome.failures:
        sys.stdout.flush()
        print(
            f"{len(outcome.failures)} jobs failed; their logs are in {folder / 'failures'}, and the same command tries "
            "them again",
            file=sys.stderr,
        )
    print(f"every scenario, and other formats: compshift tables {folder}")


MEANINGS = {"bias_gap": " (largest |B* - B| over seen groups; 0 at the optimum of the training loss)"}


class _Several(Listener):
    """Passes everything on."""

    def __init__(self, listeners: list[Listener]) -> None:
        self.listeners = listeners

    def started(self, step: int, steps: int) -> None:
        for listener in self.listeners:
            listener.started(step, steps)

    def stepped(self, step: int, loss: float) -> None:
        for listener in self.listeners:
            listener.stepped(step, loss)

    def evaluated(self, evaluation: ValidationStep) -> None:
        for listener in self.listeners:
            listener.evaluated(evaluation)


class _Lines(Listener):
    """One line per evaluation."""

    def started(self, step: int, steps: int) -> None:
        if step:
            print(f"going on after step {step} of {steps}", file=sys.stderr)

    def evaluated(self, evaluation: ValidationStep) -> None:
        print(evaluation_line(evaluation), file=sys.stderr, flush=True)


class _Live(Listener):
    """A bar with loss, validation and the time that is left; evaluations scroll by above it."""

    def __init__(self, progress: Any) -> None:
        self.progress = progress
        self.task: Any = None
        self.loss = 0.0
        self.validation = ""

    def started(self, step: int, steps: int) -> None:
        self.task = self.progress.add_task("training", total=steps, completed=step, note="")

    def stepped(self, step: int, loss: float) -> None:
        self.loss = loss if step == 1 else 0.95 * (self.loss or loss) + 0.05 * loss
        self.progress.update(self.task, completed=step, note=f"loss {self.loss:.3f}{self.validation}")

    def evaluated(self, evaluation: ValidationStep) -> None:
        if evaluation.report is not None:
            report = evaluation.report
            self.validation = f", balanced {report.balanced:.3f}, worst {report.worst:.3f}"
        self.progress.console.print(evaluation_line(evaluation), highlight=False, markup=False)


class _TensorBoard(Listener):
    """Scalars for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError:
            raise InputError("--tensorboard needs a package: install compshift[tensorboard]") from None
        self.folder, self.make = folder, SummaryWriter
        self.writer: Any = None

    def started(self, step: int, steps: int) -> None:  # noqa: ARG002
        self.writer = self.make(str(self.folder), purge_step=step + 1)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()

    def evaluated(self, evaluation: ValidationStep) -> None:
        self.writer.add_scalar("train/loss", evaluation.loss, evaluation.step)
        self.writer.add_scalar("train/learning_rate", evaluation.learning_rate, evaluation.step)
        if evaluation.report is not None:
            for name in ("average", "balanced", "worst"):
                self.writer.add_scalar(f"validation/{name}", getattr(evaluation.report, name), evaluation.step)


def evaluation_line(evaluation: ValidationStep) -> str:
    """``step 200  loss 0.512  balanced 0.871  worst 0.523 (8, gradient)  best so far``."""
    parts = [f"step {evaluation.step:<6} loss {evaluation.loss:.4f}"]
    if evaluation.report is not None:
        report = evaluation.report
        parts.append(f"balanced {report.balanced:.3f}")
        parts.append(f"worst {report.worst:.3f} ({', '.join(map(str, report.worst_group))})")
        parts += ["best so far"] if evaluation.is_best else []
    return "  ".join(parts)


@contextmanager
def run_listener(folder: Path, *, terminal: bool, tensorboard: bool) -> Iterator[Listener]:
    """What tells of a run: a bar where there is a terminal, lines elsewhere, and TensorBoard on request."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    listeners: list[Listener] = []
    with ExitStack() as stack:
        if terminal and console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
            )
            listeners.append(_Live(stack.enter_context(Progress(*columns, console=console, transient=True))))
        elif terminal:
            listeners.append(_Lines())
        if tensorboard:
            board = _TensorBoard(RunFolder(folder).tensorboard)
            stack.callback(board.close)
            listeners.append(board)
        yield _Several(listeners)


def print_run(result: Mapping[str, Any], source: str, *, as_json: bool) -> None:
    """Which step was best, and how every predictor does on validation."""
    if as_json:
        print(json.dumps(result))
        return
    from rich.console import Console

    from compshift.report.terminal import plain_table

    if not result["new"]:
        print("this run was finished before; nothing was trained")
    if not result["validation"]:
        print(f"no validation rows to select by: the weights of step {result['best_step']} are kept")
    else:
        print(f"best of {result['steps']} steps: step {result['best_step']}")
        table = plain_table(f"{result['method_name']} on the val rows")
        for name in ("predictor", "average", "balanced", "worst group", ""):
            table.add_column(name, justify="left" if name in ("predictor", "") else "right")
        for name, found in result["validation"].items():
            numbers = [f"{found[key]:.3f}" for key in ("average", "balanced", "worst")]
            table.add_row(name, *numbers, f"({', '.join(map(str, found['worst_group']))})")
        Console().print(table)
        if len(result["validation"]) > 1:
            print(
                "the first is what predict and evaluate use; the others are its ablations: bias and prior over groups"
            )
    for name, value in result["method"].items():
        print(f"{name.replace('_', ' ')}: {value:.4g}{MEANINGS.get(name, '')}")
    print(f"model in {result['model']}")
    if result["held_out"]:
        print(f"test it with: compshift evaluate {shlex.join([str(result['model']), source])}")
    else:
        print("no test rows were held out, so nothing will tell how good it is: split the data (--shares)")
