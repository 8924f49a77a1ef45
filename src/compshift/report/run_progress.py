"""Terminal output of training runs and benchmarks: the plan, the progress while they run, and the results.

Progress goes to standard error, as a live display if it is a terminal and as plain lines otherwise. Results go to
standard output, as tables or as JSON.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compshift.bench.jobs import Job, Unit
from compshift.bench.paper import printed
from compshift.bench.protocol import COMBINATIONS, EXTENT, Protocol
from compshift.bench.records import Record
from compshift.bench.results import Results
from compshift.bench.runner import BenchListener, Outcome
from compshift.bench.selection import describe_selection
from compshift.report.grid import to_rich
from compshift.report.tables import main_numbers, short_tables
from compshift.report.terminal import counted, duration, plain_table, print_lines
from compshift.training.progress import Listener, ValidationStep

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

LOSS_DECAY = 0.95
"""Decay of the moving average of the training loss that is shown next to the progress bar."""

EXPLANATIONS = {"bias_gap": " (largest |B* - B| over seen groups; 0 at the optimum of the training loss)"}
"""Explanations printed after numbers that methods report, by the number's name."""


def print_plan(units: Sequence[Unit], seconds: float | None, slots: int, stored: int, *, as_json: bool) -> None:
    """Print the jobs of a benchmark, their protocols and an estimate of their duration.

    ``seconds`` is the duration of all jobs one after the other, None if it is not known; ``slots`` jobs run at a time.
    """
    total = sum(unit.n_jobs for unit in units)
    labels = list(dict.fromkeys(unit.data.source.label for unit in units))
    protocols = {unit.data.source.label: unit.data.protocol for unit in units}
    about = {label: protocol.settings() for label, protocol in protocols.items()}
    for unit in units:  # the plan's own numbers, which may differ from the protocol's
        draws = max(other.draws for other in units if other.data is unit.data)
        planned = {"draws": str(draws), "seeds": str(unit.seeds), "scenarios": unit.data.scenarios}
        about[unit.data.source.label] |= planned
    if as_json:
        duration_ = None if seconds is None else round(seconds / slots, 1)
        content = {"jobs": total, "stored": stored, "seconds": duration_, "data": labels}
        print(json.dumps({**content, "protocols": about}))
        return
    for label in labels:
        part = [unit for unit in units if unit.data.source.label == label]
        scenarios, methods = {unit.scenario for unit in part}, {unit.method.name for unit in part}
        count = sum(unit.n_jobs for unit in part)
        sizes = f"{counted(len(scenarios), 'scenario')} × {counted(len(methods), 'method')}"
        repeats = f"{counted(max(unit.draws for unit in part), 'draw')}, {counted(part[0].seeds, 'seed')}"
        print(f"{label}: {sizes}, {repeats}, {counted(count, 'job')} ({part[0].data.protocol.mode})")
        print_protocol(about[label], protocols[label])
        if protocols[label].select == COMBINATIONS:
            print(f"{label}: {describe_selection(protocols[label].to_dict())}")
    already = f", {stored} of them already in the folder" if stored else ""
    print(f"{counted(total, 'job')} in all{already}")
    if seconds is not None:
        print(f"about {duration(seconds / slots)} with {counted(slots, 'job')} at a time (an estimate)")


def print_protocol(settings: Mapping[str, str], protocol: Protocol) -> None:
    """Print the settings of a plan; * marks those that are not the named protocol's."""
    from rich.console import Console

    changed = {*protocol.changed, *(name for name in EXTENT if settings[name] != str(getattr(protocol, name)))}
    table = plain_table(f"protocol {protocol.name}, version {protocol.version}")
    table.add_column("setting")
    table.add_column("value", overflow="fold")
    for name, value in settings.items():
        if name not in ("name", "version"):
            table.add_row(name + "*" * (name.removeprefix("range of ") in changed), value)
    Console().print(table)


@contextmanager
def bench_listener(units: Sequence[Unit], *, quiet: bool) -> Iterator[BenchListener]:
    """Show a live table of jobs if standard error is a terminal; otherwise, or with ``quiet``, print only failures."""
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    table = _JobTable(units, console)
    if quiet or not console.is_terminal:
        yield table
        return
    with Live(table, console=console, refresh_per_second=4, transient=True):
        yield table


class _JobTable(BenchListener):
    """A live table of the numbers of planned, finished, diverged and failed jobs by data set and method."""

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
        """Count a job; print its error at once if it failed."""
        row = (job.data.source.label, job.method.name)
        status = record["status"]
        self.counts["failed" if status == "failed" else "finished"][row] += 1
        self.counts["known"][row] += not new
        self.counts["diverged"][row] += status == "diverged"
        self.seconds[row] += record["seconds"]
        if status == "failed":
            config = record["config"]
            where = f"{config['method']} on {config['data']} {config['scenario']}, draw {config['draw']}"
            print_lines(self.console, f"failed: {where}: {record['error']}")

    def __rich__(self) -> RenderableType:
        """Return the current table with a progress bar below it."""
        from rich.console import Group
        from rich.markup import escape
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        table = plain_table("")
        for heading in ("data set", "method"):
            table.add_column(heading)
        for heading in ("finished", "diverged", "failed", "s/job"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row, total in self.planned_jobs.items():
            done, failed = self.counts["finished"][row], self.counts["failed"][row]
            mean = self.seconds[row] / (done + failed) if done + failed else 0.0
            table.add_row(
                escape(row[0]),
                escape(printed(row[1])),
                f"{done} of {total}",
                str(self.counts["diverged"][row] or ""),
                str(failed or ""),
                f"{mean:.1f}" if mean else "",
            )
        done, total = sum(self.counts["finished"].values()), sum(self.planned_jobs.values())
        return Group(
            table, ProgressBar(total=max(total, 1), completed=done, width=60), Text(self._time_left(done, total))
        )

    def _time_left(self, done: int, total: int) -> str:
        """Return elapsed and remaining time; the rate counts only new jobs, because stored ones take no time."""
        elapsed = time.monotonic() - self.started
        new = done - sum(self.counts["known"].values())
        text = f"{done} of {total} jobs, {duration(elapsed)} elapsed"
        return text + (f", about {duration(elapsed / new * (total - done))} left" if new and done < total else "")


def print_outcome(outcome: Outcome, folder: Path, results: Results, *, as_json: bool) -> None:
    """Print the main tables of a benchmark, its diverged and failed jobs, and the folder of the results."""
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

    console = Console()
    for grid in short_tables(results):
        console.print(to_rich(grid), "")
        for note in grid.notes:
            console.print(note, highlight=False, markup=False, style="dim")
        console.print()
    print(f"{counted(outcome.new, 'job')} run, {outcome.known} already stored; the tables show all results in {folder}")
    for unit in outcome.all_diverged:
        print(f"every draw of {unit.method.name} on {unit.data.source.label} {unit.scenario} diverged")
    if outcome.failures:
        sys.stdout.flush()
        print(
            f"{counted(len(outcome.failures), 'job')} failed: see the logs in {folder / 'failures'}; the same command "
            "tries them again",
            file=sys.stderr,
        )
    print(f"for every scenario, and for other formats: compshift tables {folder}")


@contextmanager
def run_listener(*, quiet: bool) -> Iterator[Listener]:
    """Yield a listener that shows a training run as a bar if standard error is a terminal, else as lines."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if quiet:
        yield Listener()
    elif not console.is_terminal:
        yield _LineListener()
    else:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=console, transient=True) as progress:
            yield _BarListener(progress)


class _LineListener(Listener):
    """Print one line per evaluation to standard error."""

    def started(self, step: int, steps: int) -> None:
        if step:
            print(f"resuming after step {step} of {steps}", file=sys.stderr)

    def evaluated(self, evaluation: ValidationStep) -> None:
        print(_evaluation_line(evaluation), file=sys.stderr, flush=True)


class _BarListener(Listener):
    """Show a bar with loss, validation accuracy and remaining time; print a line above it for each evaluation."""

    def __init__(self, progress: Any) -> None:
        self.progress = progress
        self.task: Any = None
        self.loss = 0.0
        self.validation = ""

    def started(self, step: int, steps: int) -> None:
        self.task = self.progress.add_task("training", total=steps, completed=step, note="")

    def stepped(self, step: int, loss: float) -> None:
        self.loss = loss if step == 1 else LOSS_DECAY * (self.loss or loss) + (1 - LOSS_DECAY) * loss
        self.progress.update(self.task, completed=step, note=f"loss {self.loss:.3f}{self.validation}")

    def evaluated(self, evaluation: ValidationStep) -> None:
        if evaluation.report is not None:
            report = evaluation.report
            self.validation = f", balanced {report.balanced:.3f}, worst {report.worst:.3f}"
        self.progress.console.print(_evaluation_line(evaluation), highlight=False, markup=False)


def _evaluation_line(evaluation: ValidationStep) -> str:
    """Return a line such as ``step 200  loss 0.512  balanced 0.871  worst 0.523 (8, gradient)  best so far``."""
    parts = [f"step {evaluation.step:<6} loss {evaluation.loss:.4f}"]
    if evaluation.report is not None:
        report = evaluation.report
        parts.append(f"balanced {report.balanced:.3f}")
        parts.append(f"worst {report.worst:.3f} ({', '.join(map(str, report.worst_group))})")
        parts += ["best so far"] if evaluation.is_best else []
    return "  ".join(parts)


def print_run(result: Mapping[str, Any], source: str, *, as_json: bool) -> None:
    """Print the selected step of a training run, the validation accuracy of every predictor, and the next command."""
    if as_json:
        print(json.dumps(result))
        return
    from rich.console import Console

    if not result["new"]:
        print("this run was finished before; nothing was trained")
    if not result["validation"]:
        print(f"no validation rows to select by: the weights of the last step, {result['best_step']}, are kept")
    else:
        print(f"best of {result['steps']} steps: step {result['best_step']}")
        table = plain_table(f"{result['method_name']} on the val rows")
        for name in ("predictor", "average", "balanced", "worst group", ""):
            table.add_column(name, justify="left" if name in ("predictor", "") else "right")
        for name, scores in result["validation"].items():
            numbers = [f"{scores[key]:.3f}" for key in ("average", "balanced", "worst")]
            table.add_row(name, *numbers, f"({', '.join(map(str, scores['worst_group']))})")
        Console().print(table)
        if len(result["validation"]) > 1:
            print("`predict` and `evaluate` use the first predictor; the others are ablations of its bias and prior")
    for name, value in result["method"].items():
        shown = value if isinstance(value, str) else f"{value:.4g}"
        print(f"{name.replace('_', ' ')}: {shown}{EXPLANATIONS.get(name, '')}")
    print(f"model in {result['model']}")
    if result["held_out"]:
        print(f"test it with: compshift evaluate {shlex.join([str(result['model']), source])}")
    else:
        print("no test rows were held out, so its accuracy cannot be measured: split the data with --shares")
