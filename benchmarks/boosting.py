"""Time and memory of boosted energies beside scikit-learn's gradient booster on the class.

    python benchmarks/boosting.py

100 000 rows of 30 features, 5 × 6 groups, of which one in seven is dropped; both with their defaults.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
from measure import Row, peak_megabytes
from sklearn.ensemble import HistGradientBoostingClassifier

from compshift import CRMBoostingClassifier, GroupSpace

ROWS, FEATURES, SPACE = 100_000, 30, GroupSpace.from_cardinalities([5, 6])


def samples() -> tuple[np.ndarray, np.ndarray]:
    """Additive Gaussians of the groups that are not dropped, of which half of the features are folded."""
    rng = np.random.default_rng(0)
    means = SPACE.one_hot(SPACE.codes(np.arange(SPACE.n_groups))) @ (0.6 * rng.normal(size=(SPACE.width, FEATURES)))
    seen = np.delete(np.arange(SPACE.n_groups), np.arange(0, SPACE.n_groups, 7))
    index = seen[rng.integers(len(seen), size=ROWS)]
    X = means[index] + rng.normal(size=(ROWS, FEATURES))
    X[:, ::2] = np.abs(X[:, ::2])
    return X, SPACE.codes(index)


def fit(which: str) -> tuple[float, float, int]:
    """Seconds and peak megabytes of one fit, "boosted" or "booster", and its rounds."""
    X, codes = samples()
    start = time.perf_counter()
    if which == "boosted":
        clf = CRMBoostingClassifier(prior="hull").fit(X, codes[:, 0], attributes=codes[:, 1])
    else:
        clf = HistGradientBoostingClassifier().fit(X, codes[:, 0])
    return time.perf_counter() - start, peak_megabytes(), clf.n_iter_


def rows() -> Iterator[Row]:
    """Time and memory."""
    found = {}
    for which in ("booster", "boosted"):
        done = subprocess.run([sys.executable, __file__, which], check=True, stdout=subprocess.PIPE, text=True)
        found[which] = json.loads(done.stdout)
    (plain, plain_peak, plain_rounds), (time_, peak, rounds) = found["booster"], found["boosted"]
    what = f"fit boosted energies to {ROWS} × {FEATURES}, 5 × 6 groups"
    against = "HistGradientBoostingClassifier on the class"
    figure = f"{time_ / plain:.1f} ({time_:.0f} s and {plain:.0f} s; {rounds} and {plain_rounds} rounds)"
    yield Row(f"{what}: time", against, figure, "at most 8", time_ <= 8 * plain)
    figure = f"{peak / plain_peak:.2f} ({peak:.0f} MB and {plain_peak:.0f} MB)"
    yield Row(f"{what}: peak memory", against, figure, "reported", True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(fit(sys.argv[1])))
    else:
        for row in rows():
            print(f"{row.what}, against {row.against}: {row.figure}; target {row.target}")
