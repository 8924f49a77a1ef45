"""Try to break compshift: bad input, hostile files, faults of the machine and of numbers; print one table of counts.

    python -m hardening.run [PART…]

Each part runs in a process of its own, two at a time. The exit code is 1 if anything happened that must never happen.
What did is listed under the table, and all of it is in out/hardening.json.
"""

import contextlib
import json
import os
import sys
import tempfile
import time
import traceback
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hardening.tally import Failure, Tally

PARTS = ("commands", "calls", "files", "numerics", "random_input", "faults")
AT_ONCE = 2
ALONE = ("faults",)
"""Parts that use all cores themselves."""
NEVER = {
    "internal error": "internal errors",
    "lost result": "lost results",
    "execution": "executions",
    "read outside": "reads outside the root",
    "memory": "overruns of memory",
    "wrong result": "wrong results",
    "unclear sentence": "unclear sentences",
}
UNITS = {"inputs": "inputs tried", "files": "files fuzzed", "faults": "faults injected"}
MOST_SHOWN = 40


def main() -> None:
    """Run the parts that are named on the command line, or all of them."""
    chosen = sys.argv[1:] or list(PARTS)
    unknown = [name for name in chosen if name not in PARTS]
    if unknown:
        print(f"there is no part {unknown[0]!r}: the parts are {', '.join(PARTS)}", file=sys.stderr)
        sys.exit(2)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # parts share the cores
    alone = [name for name in chosen if name in ALONE]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        parts = list(threads.map(_in_own_process, [name for name in chosen if name not in ALONE]))
    tallies = [tally for part in [*parts, *map(_in_own_process, alone)] for tally in part]
    path = Path("out/hardening.json")
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps([asdict(tally) for tally in tallies], indent=1))
    _print(tallies)
    sys.exit(any(tally.failures for tally in tallies))


def _in_own_process(name: str) -> list[Tally]:
    """The counts of a part; one that ends early is a failure of its own."""
    start = time.perf_counter()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            tallies = pool.submit(_run, name).result()
        except BrokenExecutor:
            tallies = [_ended_early(name, "the process died")]
        except Exception as error:
            tallies = [_ended_early(name, "".join(traceback.format_exception(error)))]
    print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
    return tallies


def _ended_early(name: str, reason: str) -> Tally:
    return Tally(name, "inputs", failures=[Failure("internal error", f"{name} ended early: {reason}")])


def _run(name: str) -> list[Tally]:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # nothing is left where it was started
        return list(import_module(f"hardening.{name}.part").run())


def _print(tallies: list[Tally]) -> None:
    """The table, the sums, and what must never have happened."""
    console = Console(width=120, highlight=False)
    table = Table(box=SIMPLE)
    table.add_column("part")
    for column in ("tried", "right result", "one clear sentence", "failures"):
        table.add_column(column, justify="right")
    for tally in tallies:
        table.add_row(
            escape(tally.part),
            f"{tally.tried} {tally.unit}",
            *map(str, (tally.answered, tally.refused, len(tally.failures))),
        )
    console.print(table)
    sums = [f"{label} {sum(t.tried for t in tallies if t.unit == unit)}" for unit, label in UNITS.items()]
    console.print(", ".join(sums))
    console.print(
        ", ".join(f"{plural} {sum(tally.kinds()[kind] for tally in tallies)}" for kind, plural in NEVER.items())
    )
    failures = [failure for tally in tallies for failure in tally.failures]
    for failure in failures[:MOST_SHOWN]:
        console.print(f"  {failure.kind}: {escape(failure.what)}", soft_wrap=True)
    if len(failures) > MOST_SHOWN:
        console.print(f"  and {len(failures) - MOST_SHOWN} more in out/hardening.json")


if __name__ == "__main__":
    main()
