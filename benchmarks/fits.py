"""Time of fits and predictions against scikit-learn's logistic regression, and a million groups."""

import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator

import numpy as np
from measure import Row, seconds
from sklearn.linear_model import LogisticRegression

from compshift import CRMClassifier, GroupSpace

ALPHA, TOL = 1e-2, 1e-4
ATTRIBUTES, SEEN, ROWS, FEATURES = 20, 2000, 20_000, 64


def rows() -> Iterator[Row]:
    """The rows of this part."""
    yield from _fit()
    yield from _predict()
    yield from _many_groups()


def _data(n: int, p: int, cardinalities: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Additive means in unit noise, in units in which scikit-learn's penalty and ours are the same."""
    rng = np.random.default_rng(0)
    space = GroupSpace.from_cardinalities(cardinalities)
    codes = space.codes(rng.integers(space.n_groups, size=n))
    X = space.one_hot(codes) @ rng.normal(size=(space.width, p)) * 0.35 + rng.normal(size=(n, p))
    X -= X.mean(axis=0)
    return X / np.sqrt((X**2).mean()), codes


def _fit() -> Iterator[Row]:
    X, codes = _data(20_000, 256, [30, 6])
    ours = seconds(lambda: CRMClassifier(ALPHA, tol=TOL).fit(X, codes[:, 0], attributes=codes[:, 1]), 3)
    for name, y, target in (("y", codes[:, 0], 0.7), ("the 180 groups", codes[:, 0] * 6 + codes[:, 1], 0.2)):
        plain = LogisticRegression(C=1 / (ALPHA * len(X)), tol=TOL, max_iter=1000)
        ratio = ours / seconds(lambda plain=plain, y=y: plain.fit(X, y), 1)
        what = "CRMClassifier.fit, n = 20000, p = 256, 30 × 6 groups"
        yield Row(what, f"LogisticRegression on {name}", f"{ratio:.2f}×", f"{target}×", ratio <= target)


def _predict() -> Iterator[Row]:
    X, codes = _data(100_000, 256, [60, 6])
    some = slice(0, 5000)
    clf = CRMClassifier(0.1, tol=1e-2).fit(X[some], codes[some, 0], attributes=codes[some, 1])
    plain = LogisticRegression(C=1e-2, tol=1e-2).fit(X[some], codes[some, 0])
    ratio = seconds(lambda: clf.predict_proba(X)) / seconds(lambda: plain.predict_proba(X))
    yield Row(
        "predict_proba, 100000 rows, p = 256, 60 × 6 groups",
        "LogisticRegression on y",
        f"{ratio:.2f}×",
        "2×",
        ratio <= 2,
    )


def _many_groups() -> Iterator[Row]:
    """In a process of its own, so that its memory is its own."""
    result = subprocess.run([sys.executable, __file__], check=True, capture_output=True, text=True)
    took, gigabytes, iterations = map(float, result.stdout.split())
    what = f"m = {ATTRIBUTES} binary attributes, {SEEN} of {2**ATTRIBUTES} groups seen, n = {ROWS}, p = {FEATURES}"
    figure = f"{took:.0f} s, {gigabytes:.1f} GB ({iterations:.0f} iterations)"
    yield Row(f"{what}: fit, B*, 10000 predictions", "the clock", figure, "60 s, 2 GB", took < 60 and gigabytes < 2)


def main() -> None:
    """Print seconds, gigabytes and iterations of the case with a million groups."""
    rng = np.random.default_rng(0)
    space = GroupSpace.from_cardinalities([2] * ATTRIBUTES)
    groups = space.codes(rng.choice(space.n_groups, SEEN, replace=False))
    codes = groups[np.concatenate([np.arange(SEEN), rng.integers(SEEN, size=ROWS - SEEN)])]
    X = space.one_hot(codes) @ rng.normal(size=(space.width, FEATURES)) * 0.5 + rng.normal(size=(ROWS, FEATURES))
    warnings.simplefilter("ignore")
    start = time.perf_counter()
    clf = CRMClassifier(ALPHA, tol=TOL).fit(X, codes[:, 0], attributes=codes[:, 1:])
    clf.predict(X[:10_000])
    took = time.perf_counter() - start
    print(took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, clf.n_iter_)


if __name__ == "__main__":
    main()
