"""Run every benchmark, each in a process of its own, print one table, and write it as JSON to out/bench.json.

    python benchmarks/run.py [NAME…]

A benchmark that fails has its reason in the table; the others run all the same, and the exit code is 1.
"""

import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import asdict
from importlib import import_module
from multiprocessing import get_context, set_start_method
from pathlib import Path
from subprocess import CalledProcessError

from measure import Row
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

MODULES = (
    "startup",
    "hull",
    "kernel",
    "fits",
    "growth",
    "training_loop",
    "job_grid",
    "report_page",
    "boosting",
    "many_rows",
    "sparse_text",
    "unlabelled",
    "onnx_latency",
    "gaussian2d",
    "features",
    "digits",
)


def main() -> None:
    """Run the benchmarks that are named on the command line, or all of them."""
    chosen = sys.argv[1:] or list(MODULES)
    unknown = [name for name in chosen if name not in MODULES]
    if unknown:
        print(f"there is no benchmark {unknown[0]!r}: the benchmarks are {', '.join(MODULES)}", file=sys.stderr)
        sys.exit(2)
    found: list[Row] = []
    all_well = True
    for number, name in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {name}", file=sys.stderr)
        start = time.perf_counter()
        rows, failure = _in_own_process(name)
        found += rows if failure is None else [*rows, failure]
        all_well &= failure is None
        print(f"    {'done' if failure is None else 'failed'} in {time.perf_counter() - start:.0f} s", file=sys.stderr)
    _print(found)
    path = Path("out/bench.json")
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps([asdict(row) for row in found], indent=1, ensure_ascii=False, default=bool))
    sys.exit(0 if all_well else 1)


def _in_own_process(name: str) -> tuple[list[Row], Row | None]:
    """The rows of a benchmark, whose memory and threads are its own, and a row that says why there are no more."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(rows_of, name).result()
        except BrokenExecutor as error:  # the process died
            return [], _failure(name, error)


def rows_of(name: str) -> tuple[list[Row], Row | None]:
    """The rows of a benchmark up to where it fails, if it does."""
    found: list[Row] = []
    set_start_method(None, force=True)  # a spawned process would spawn in its turn, which is not what users have
    try:
        found.extend(import_module(name).rows())
    except Exception as error:
        return found, _failure(name, error)
    return found, None


def _failure(name: str, error: Exception) -> Row:
    reason = " ".join(str(error).split())
    if isinstance(error, CalledProcessError) and error.stderr:
        reason += f" ({str(error.stderr).strip().splitlines()[-1]})"
    return Row(f"{name}: all of it, or the rest", "", f"failed: {type(error).__name__}", "to run", False, reason)


def _print(found: Sequence[Row]) -> None:
    """The table, and below it a line for each target that is missed."""
    table = Table("what", "against", "figure", "target", "met", box=SIMPLE)
    for row in found:
        cells = (row.what, row.against, row.figure, row.target)
        table.add_row(*map(escape, cells), "yes" if row.met else "NO")
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(table)
    for row in found:
        if not row.met:
            line = f"NO  {row.what}: {row.figure}, target {row.target}{': ' if row.why else ''}{row.why}"
            console.print(line, highlight=False, markup=False)


if __name__ == "__main__":
    main()
