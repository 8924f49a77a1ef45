"""A fit to more rows than memory is given: generated features in Parquet, read in blocks.

    python benchmarks/many_rows.py [--rows 10000000] [--memory 1] [--folder out/many-rows]

Rows of two attributes (20 × 5 values, 30 of the 100 groups seen) and 64 features are written in shards of a million,
then fitted; progress is shown as passes over the rows are made. Peak memory is that of a process of its own.
``rows`` does the same with a million rows, whose blocks may take a fraction of what the features do.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measure import Row, peak_megabytes
from rich.console import Console
from rich.progress import track

from compshift import AffineHull, CRMClassifier, GroupSpace
from compshift.data.feature_store import FeatureStore

SHARD_ROWS, ROW_GROUP_ROWS, FEATURES = 1_000_000, 65_536, 64
N_ROWS, MEMORY = 1_000_000, 1 << 26
"""Of ``rows``: how many, and the bytes for their blocks."""

SPACE = GroupSpace.from_cardinalities([20, 5])


def seen_groups(rng: np.random.Generator) -> np.ndarray:
    """A third of the groups, from which all others follow."""
    while True:
        index = rng.choice(SPACE.n_groups, 30, replace=False)
        if AffineHull(SPACE, SPACE.codes(index)).is_complete:
            return SPACE.codes(np.sort(index))


def sample(groups: np.ndarray, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows with additive means in unit noise."""
    means = np.random.default_rng(1).normal(size=(SPACE.width, FEATURES)).astype(np.float32) * 0.6
    codes = groups[rng.integers(len(groups), size=n)]
    noise = rng.standard_normal((n, FEATURES), dtype=np.float32)
    return noise + means[codes[:, 0]] + means[20 + codes[:, 1]], codes


def write(folder: Path, n_rows: int) -> None:
    """Write the shards."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    groups = seen_groups(np.random.default_rng(0))
    for shard in track(range(-(-n_rows // SHARD_ROWS)), "writing", console=Console(stderr=True)):
        n = min(SHARD_ROWS, n_rows - shard * SHARD_ROWS)
        X, codes = sample(groups, n, np.random.default_rng([2, shard]))
        columns = {"y": codes[:, 0].astype(np.int8), "a": codes[:, 1].astype(np.int8)}
        features = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), FEATURES)
        table = pa.table({**columns, "features": features})
        path = folder / f"part-{shard:05d}.parquet"
        pq.write_table(table, path, row_group_size=ROW_GROUP_ROWS, compression="none", use_dictionary=False)


class Outcome(NamedTuple):
    """What a fit took and gave; memory in megabytes, by the largest resident size."""

    rows: int
    seconds: float
    iterations: int
    before: float  # memory of the process with all libraries loaded
    peak: float
    accuracy_seen: float
    accuracy_unseen: float


def rows() -> Iterator[Row]:
    """Time and memory of a fit to a million rows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "rows"
        write(folder, N_ROWS)
        done = fit_in_own_process(folder, MEMORY, stderr=subprocess.PIPE)
    features, extra = N_ROWS * FEATURES * 4 / 2**20, done.peak - done.before
    yield Row(
        f"fit of {N_ROWS} × {FEATURES} rows in Parquet, {MEMORY >> 20} MB for blocks: extra memory",
        f"{features:.0f} MB of features",
        f"{extra:.0f} MB ({done.seconds:.0f} s, {done.iterations} iterations)",
        f"{features:.0f} MB",
        extra < features,
    )


def fit_in_own_process(folder: Path, memory: int, stderr: int | None = None) -> Outcome:
    """Fit the rows of a folder; progress goes to standard error."""
    command = [sys.executable, __file__, "--folder", str(folder), "--memory", str(memory / 2**30), "--fit"]
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=stderr, text=True)
    return Outcome(*json.loads(result.stdout))


def fit(folder: Path, memory: int) -> Outcome:
    """Fit the rows of a folder."""
    groups = SPACE.codes(np.arange(SPACE.n_groups))
    X, codes = sample(groups, 1000, np.random.default_rng(4))
    CRMClassifier(tol=1).fit(X, codes[:, 0], attributes=codes[:, 1])  # loads what is loaded when it is used
    before = peak_megabytes()
    store = FeatureStore(folder, memory=memory)
    start = time.perf_counter()
    clf = CRMClassifier(tol=1e-4, verbose=True).fit(store, "y", attributes=["a"])
    seconds, peak = time.perf_counter() - start, peak_megabytes()
    X, codes = sample(groups, 50_000, np.random.default_rng(3))
    right = clf.predict(X) == codes[:, 0]
    seen = clf.seen_[SPACE.index(codes)]
    accuracies = float(right[seen].mean()), float(right[~seen].mean())
    return Outcome(store.n_rows, seconds, clf.n_iter_, before, peak, *accuracies)


def main() -> None:
    """Write the rows, unless they are there, and fit them in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--memory", type=float, default=1.0, help="gigabytes for blocks")
    parser.add_argument("--folder", type=Path, default=Path("out/many-rows"))
    parser.add_argument("--fit", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    memory = int(options.memory * 2**30)
    if options.fit:
        print(json.dumps(fit(options.folder, memory)))
        return
    if not options.folder.is_dir() or FeatureStore(options.folder).n_rows != options.rows:
        write(options.folder, options.rows)
    done = fit_in_own_process(options.folder, memory)
    took = f"{done.seconds:.0f} s, {done.iterations} iterations, {done.peak / 1024:.1f} GB at most"
    print(f"{done.rows} rows of {FEATURES} features: {took} ({done.before / 1024:.1f} GB before the fit)")
    print(f"accuracy: seen groups {done.accuracy_seen:.3f}, unseen groups {done.accuracy_unseen:.3f}")


if __name__ == "__main__":
    main()
