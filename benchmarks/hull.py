"""Membership, plans and audits at the sizes that people ask for."""

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from measure import Row, seconds

from compshift import AffineHull, GroupSpace


def rows() -> Iterator[Row]:
    """A 50 × 50 grid, twelve attributes of six values, and a table of a million rows."""
    rng = np.random.default_rng(0)
    grid = GroupSpace.from_cardinalities([50, 50])
    seen, every = grid.codes(rng.choice(2500, size=200, replace=False)), grid.codes(np.arange(2500))
    taken = seconds(lambda: AffineHull(grid, seen).contains(every))
    yield Row(
        "hull of 200 of 50 × 50 groups, all 2500 asked", "the clock", f"{1000 * taken:.0f} ms", "50 ms", taken < 0.05
    )

    wide = GroupSpace.from_cardinalities([6] * 12)
    for count in (500, 40):
        groups, queries = rng.integers(0, 6, size=(count, 12)), rng.integers(0, 6, size=(100_000, 12))

        def ask(groups: np.ndarray = groups, queries: np.ndarray = queries) -> None:
            hull = AffineHull(wide, groups)
            hull.contains(queries)
            hull.plan()

        taken = seconds(ask)
        what = f"6^12 groups, {count} seen: 100 000 asked, and the plan"
        yield Row(what, "the clock", f"{taken:.2f} s", "2 s", taken < 2)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    yield Row("the same: memory of the process", "", f"{peak:.0f} MB", "500 MB", peak < 500)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "million.parquet"
        values = {"a": rng.choice(list("abcdefgh"), 1_000_000), "b": rng.integers(0, 12, 1_000_000)}
        pd.DataFrame({**values, "c": rng.choice(["x", "y", "z"], 1_000_000)}).to_parquet(path)
        start = time.perf_counter()
        command = [sys.executable, "-m", "compshift", "audit", str(path), "--attributes", "a,b,c"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        taken = time.perf_counter() - start
    yield Row("audit of 1 000 000 rows, from a cold start", "the clock", f"{taken:.1f} s", "5 s", taken < 5)
