"""A training run on the terminal: a live line, a line per evaluation, and what came of it."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from compshift._errors import InputError
from compshift.training.progress import Evaluation, Listener
from compshift.training.run_folder import RunFolder

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

    def evaluated(self, evaluation: Evaluation) -> None:
        for listener in self.listeners:
            listener.evaluated(evaluation)


class _Lines(Listener):
    """One line per evaluation."""

    def started(self, step: int, steps: int) -> None:
        if step:
            print(f"going on after step {step} of {steps}", file=sys.stderr)

    def evaluated(self, evaluation: Evaluation) -> None:
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

    def evaluated(self, evaluation: Evaluation) -> None:
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

    def evaluated(self, evaluation: Evaluation) -> None:
        self.writer.add_scalar("train/loss", evaluation.loss, evaluation.step)
        self.writer.add_scalar("train/learning_rate", evaluation.learning_rate, evaluation.step)
        if evaluation.report is not None:
            for name in ("average", "balanced", "worst"):
                self.writer.add_scalar(f"validation/{name}", getattr(evaluation.report, name), evaluation.step)


def evaluation_line(evaluation: Evaluation) -> str:
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
