"""Two hundred jobs of ``compshift bench`` on features, two at a time, against the jobs' own times.

The whole command counts: start of Python and of the workers, planning, loading the data, writing, and the tables. What
a job takes is what its record says, measured while another one runs beside it. The first job of a worker loads the
data; for that job the median of its method counts, so that loading is counted as what the grid adds.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from measure import Row

WORKERS = 2
METHODS = ("erm", "lc", "sla", "crm")
COMMAND = f"bench digits-backgrounds --features --methods {','.join(METHODS)} --drop each --draws 1 --seeds 1"
JOBS = 200
"""Fifty scenarios, each with one group dropped, by four methods."""

TARGET = 1.1


def rows() -> Iterator[Row]:
    """Wall time of the command over the sum of the jobs' times for each worker."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "grid"
        command = [sys.executable, "-m", "compshift", *COMMAND.split(), "--jobs", str(WORKERS), "-o", str(folder)]
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        wall = time.perf_counter() - start
        records = [(path.stat().st_mtime, json.loads(path.read_text())) for path in (folder / "jobs").glob("*.json")]
    assert len(records) == JOBS
    own, loading = _own_seconds([record for _, record in sorted(records, key=lambda pair: pair[0])])
    ratio = wall / (own / WORKERS)
    recorded = wall / ((own + loading) / WORKERS)
    yield Row(
        f"a features-mode grid of {JOBS} jobs on digits-backgrounds, {WORKERS} workers: {wall:.0f} s",
        f"the jobs' own times / {WORKERS} ({own / WORKERS:.0f} s, {own / JOBS:.2f} s a job)",
        f"{ratio:.2f}× ({recorded:.2f}× if loading, {loading / WORKERS:.1f} s in each worker, is the first job's own)",
        f"{TARGET}×",
        ratio <= TARGET,
        ""
        if ratio <= TARGET
        else f"{ratio / TARGET - 1:.0%} over it: imports, planning and loading take as long however short the jobs are",
    )


def _own_seconds(records: list[dict]) -> tuple[float, float]:
    """Sum of the jobs' times without loading, and what the first job of each worker took beyond a job of its kind."""
    by_method = defaultdict(list)
    for record in records:
        by_method[record["config"]["method"]].append(record["seconds"])
    usual = {method: statistics.median(times) for method, times in by_method.items()}
    loading = sum(record["seconds"] - usual[record["config"]["method"]] for record in records[:WORKERS])
    return sum(record["seconds"] for record in records) - loading, loading
