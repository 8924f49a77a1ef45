"""A fit to more rows than memory is given: generated features in Parquet, read in blocks.

    python benchmarks/many_rows.py [--rows 10000000] [--memory 1] [--folder out/many-rows]

Rows of two attributes (20 × 5 values, 30 of the 100 groups seen) and 64 features are written in shards of a million,
then fitted; progress is shown as passes over the rows are made. Peak memory is that of a process of its own.
"""

import argparse
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.progress import track

from compshift import AffineHull, CRMClassifier, GroupSpace
from compshift.data.feature_store import FeatureStore

SHARD_ROWS, ROW_GROUP_ROWS, FEATURES = 1_000_000, 65_536, 64
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
    for shard in track(range(-(-n_rows // SHARD_ROWS)), "writing"):
        n = min(SHARD_ROWS, n_rows - shard * SHARD_ROWS)
        X, codes = sample(groups, n, np.random.default_rng([2, shard]))
        columns = {"y": codes[:, 0].astype(np.int8), "a": codes[:, 1].astype(np.int8)}
        features = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), FEATURES)
        table = pa.table({**columns, "features": features})
        path = folder / f"part-{shard:05d}.parquet"
        pq.write_table(table, path, row_group_size=ROW_GROUP_ROWS, compression="none", use_dictionary=False)


def fit(folder: Path, memory: int) -> None:
    """Fit, and print what it took."""
    store = FeatureStore(folder)
    start = time.perf_counter()
    clf = CRMClassifier(tol=1e-4, memory=memory, verbose=True).fit(store, "y", attributes=["a"])
    seconds = time.perf_counter() - start
    X, codes = sample(SPACE.codes(np.arange(100)), 50_000, np.random.default_rng(3))
    right = clf.predict(X) == codes[:, 0]
    seen = clf.seen_[SPACE.index(codes)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    took = f"{seconds:.0f} s, {clf.n_iter_} iterations, {peak:.1f} GB at most"
    print(f"{store.n_rows} rows of {store.n_features} features: {took}")
    print(f"accuracy: seen groups {right[seen].mean():.3f}, unseen groups {right[~seen].mean():.3f}")


def main() -> None:
    """Write the rows, unless they are there, and fit them in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--memory", type=float, default=1.0, help="gigabytes for blocks")
    parser.add_argument("--folder", type=Path, default=Path("out/many-rows"))
    parser.add_argument("--fit", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fit:
        fit(options.folder, int(options.memory * 2**30))
        return
    if not options.folder.is_dir() or FeatureStore(options.folder).n_rows != options.rows:
        write(options.folder, options.rows)
    subprocess.run([sys.executable, __file__, *sys.argv[1:], "--fit"], check=True)


if __name__ == "__main__":
    main()
