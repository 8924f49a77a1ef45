"""How long a user waits before anything happens."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from measure import Row, process, seconds_in_turns

REPEAT = 11
BIRDS = np.array([("landbird", "land"), ("landbird", "water"), ("waterbird", "water")])


def rows() -> Iterator[Row]:
    """Cost of the import, of the command line's help, and of the audit of a few hundred rows."""
    base, light = seconds_in_turns(
        [process("-c", "import numpy, scipy"), process("-c", "import numpy, scipy, compshift")], REPEAT
    )
    extra = light - base
    yield Row("import compshift", "import numpy, scipy", f"{1000 * extra:+.0f} ms", "+300 ms", extra < 0.3)
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "small.csv"
        _write(table)
        command = ("-m", "compshift")
        numpy, help_, audit = seconds_in_turns(
            [
                process("-c", "import numpy"),
                process(*command, "--help"),
                process(*command, "audit", str(table), "--attributes", "bird,place"),
            ],
            REPEAT,
        )
    busy = f"import numpy takes {1000 * numpy:.0f} ms here and now"
    yield Row("compshift --help", "the clock", f"{1000 * help_:.0f} ms", "500 ms", help_ < 0.5, busy)
    yield Row("compshift --help", "import numpy", f"{help_ / numpy:.1f}×", "3×", help_ <= 3 * numpy)
    figure = f"{audit / numpy:.1f}× ({1000 * audit:.0f} ms)"
    yield Row("compshift audit small.csv", "import numpy", figure, "8×", audit <= 8 * numpy)


def _write(table: Path) -> None:
    """Four hundred rows in three of four groups."""
    rows = BIRDS[np.random.default_rng(0).integers(3, size=400)]
    table.write_text("\n".join(",".join(row) for row in [("bird", "place"), *rows]) + "\n")
