"""Run every benchmark, print one table, and write it as JSON to out/bench.json."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import digits
import gaussian2d
import hull
import kernel
import startup
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import features

MODULES = {
    "startup": startup,
    "hull": hull,
    "gaussian2d": gaussian2d,
    "kernel": kernel,
    "features": features,
    "digits": digits,
}


def main() -> None:
    """Run the benchmarks that are named on the command line, or all of them."""
    chosen = sys.argv[1:] or list(MODULES)
    table = Table("what", "against", "figure", "target", "met", box=SIMPLE)
    found = []
    for name in chosen:
        for row in MODULES[name].rows():
            table.add_row(row.what, row.against, row.figure, row.target, "yes" if row.met else "NO")
            found.append(asdict(row))
    Console(width=None if sys.stdout.isatty() else 150).print(table)
    path = Path("out/bench.json")
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False, default=bool))


if __name__ == "__main__":
    main()
