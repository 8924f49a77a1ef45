"""Unlabelled inputs: what they gain on real features, and what they cost.

The gain is the part ``unlabelled`` of unseen_groups.py. Half of the test rows are the pool, the other half is scored.

    python benchmarks/unlabelled.py              time and memory of a fit with a pool, beside one to labelled rows
"""

import json
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from measure import Row, peak_megabytes
from unseen_protocol import Draw, erm

from compshift import CRMClassifier, CRMClassifierCV, GroupSpace

LABELLED, POOL, FEATURES, SPACE = 50_000, 100_000, 256, GroupSpace.from_cardinalities([30, 6])
KINDS = ("as the test rows", "skewed groups", "seen groups only", "noise", "another data set")


class Halves:
    """A draw whose test rows are divided into a pool of one of ``KINDS`` and scored rows."""

    def __init__(self, draw: Draw, kind: str, other: Draw) -> None:
        rng = np.random.default_rng([draw.seed, 7])
        order = rng.permutation(len(draw.X_test))
        pool, scored = order[: len(order) // 2], order[len(order) // 2 :]
        self.draw = replace(draw, X_test=draw.X_test[scored], codes_test=draw.codes_test[scored])
        codes = draw.codes_test[pool]
        inside = draw.hull.contains(codes)
        pool, codes = pool[inside], codes[inside]
        if kind == "skewed groups":  # Dirichlet(½)
            groups, position = draw.space.distinct(codes)
            share = rng.dirichlet(np.full(len(groups), 0.5))[position] / np.bincount(position)[position]
            pool = pool[rng.choice(len(pool), size=len(pool), p=share / share.sum())]
        elif kind == "seen groups only":
            pool = pool[draw.space.locate(codes, draw.hull.observed) >= 0]
        self.pool = draw.X_test[pool]
        if kind == "noise":
            self.pool = rng.normal(size=self.pool.shape) * draw.X.std(axis=0)
        elif kind == "another data set":
            width = min(other.X_test.shape[1], self.pool.shape[1])
            self.pool = np.zeros_like(self.pool)
            rows = other.X_test[rng.choice(len(other.X_test), len(self.pool))]
            self.pool[:, :width] = rows[:, :width]


def measure(draw: Draw, other: Draw) -> dict[str, dict]:
    """Accuracies of ERM, oracle, and CRMClassifierCV without and with each kind of pool; whether the pool was used.

    An accuracy is a triple: the worst group, the mean over unseen groups, and the mean over all scored groups. For a
    pool that was used there is also the coverage of sets of coverage .9 of unseen groups, and their mean size.
    """
    warnings.simplefilter("ignore")
    found: dict[str, dict] = {}
    for kind in KINDS:
        halves = Halves(draw, kind, other)
        scored = halves.draw

        def score(clf, scored=scored) -> tuple[float, float, float]:
            accuracy = scored.accuracy(clf.predict(scored.X_test))
            return float(accuracy.min()), float(accuracy[scored.unseen].mean()), float(accuracy.mean())

        def sets(clf, scored=scored) -> tuple[float, float]:
            contains = clf.predict_set(scored.X_test).contains
            covered = scored.by_group(contains[np.arange(len(contains)), scored.codes_test[:, 0]])
            size = scored.by_group(contains.sum(axis=1))
            return float(covered[scored.unseen].mean()), float(size[scored.unseen].mean())

        space = GroupSpace(("y", *draw.space.names[1:]), draw.space.values)
        clf = CRMClassifierCV(prior="hull").fit(
            draw.X, draw.codes[:, 0], attributes=draw.codes[:, 1:], space=space, unlabelled=halves.pool
        )
        found[kind] = {
            "ERM": score(erm(draw.X, draw.codes[:, 0])),
            "oracle": score(erm(draw.X_all, draw.codes_all[:, 0])),
            "plain": score(clf.without_unlabelled()),
            "pool": score(clf),
            "used": clf.unlabelled_decision_.used,
            "sets": [sets(clf.without_unlabelled()), sets(clf)] if clf.unlabelled_decision_.used else None,
        }
    return found


def table_rows(found: list[dict[str, dict]], mean) -> list[list[str]]:
    """Rows of a table: for each kind of pool, accuracies without and with it, the gap closed, and the difference."""
    rows = []
    for kind in KINDS:
        by_method = {name: np.array([one[kind][name] for one in found]) for name in ("ERM", "oracle", "plain", "pool")}
        low, high = by_method["ERM"].mean(axis=0), by_method["oracle"].mean(axis=0)
        used = sum(one[kind]["used"] for one in found)
        for name, label in (("plain", f"{kind}: without"), ("pool", f"with (used in {used} of {len(found)})")):
            values = by_method[name]
            share = (values.mean(axis=0) - low) / (high - low)
            cells = [f"{values[:, column].mean():.3f} ({share[column]:.0%})" for column in range(2)]
            paired = values - by_method["plain"]
            less = [mean(paired[:, column]) for column in range(3)] if name == "pool" else [""] * 3
            sets = [one[kind]["sets"][name == "pool"] for one in found if one[kind]["used"]]
            cells += [f"{values[:, 2].mean():.3f}", *less]
            cells.append("{:.3f}, {:.2f}".format(*np.mean(sets, axis=0)) if sets else "")
            rows.append([label, *cells])
    return rows


COLUMNS = ["pool", "worst group", "unseen groups", "all groups", "worst: more", "unseen: more", "all: more", "sets"]


def samples(n: int, groups: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Additive Gaussians."""
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(0)
    means = SPACE.one_hot(SPACE.codes(np.arange(SPACE.n_groups))) @ (0.35 * fixed.normal(size=(SPACE.width, FEATURES)))
    index = groups[rng.integers(len(groups), size=n)]
    return means[index] + rng.normal(size=(n, FEATURES)), SPACE.codes(index)


def fit(which: str) -> tuple[float, float, int]:
    """Seconds and peak megabytes of one fit, "pool" or "labelled", and its iterations."""
    every = np.arange(SPACE.n_groups)
    seen = np.delete(every, every[::7])
    if which == "pool":
        X, codes = samples(LABELLED, seen, 1)
        further = {"unlabelled": samples(POOL, every, 2)[0]}
    else:
        (X, codes), further = samples(LABELLED + POOL, seen, 1), {}
    start = time.perf_counter()
    clf = CRMClassifier(prior="hull").fit(X, codes[:, 0], attributes=codes[:, 1], **further)
    return time.perf_counter() - start, peak_megabytes(), clf.n_iter_


def rows() -> Iterator[Row]:
    """Time and memory of a fit with a pool."""
    found = {}
    for which in ("labelled", "pool"):
        done = subprocess.run([sys.executable, __file__, which], check=True, stdout=subprocess.PIPE, text=True)
        found[which] = json.loads(done.stdout)
    what = f"fit to {LABELLED} labelled and {POOL} unlabelled rows, {FEATURES} features, 30 × 6 groups"
    against = f"fit to {LABELLED + POOL} labelled rows"
    (plain_time, plain_peak, plain_steps), (time_, peak, steps) = found["labelled"], found["pool"]
    figure = f"{time_ / plain_time:.2f} ({time_:.0f} s and {plain_time:.0f} s; {steps} and {plain_steps} iterations)"
    yield Row(f"{what}: time", against, figure, "at most 2", time_ <= 2 * plain_time)
    figure = f"{peak / plain_peak:.2f} ({peak:.0f} MB and {plain_peak:.0f} MB)"
    yield Row(f"{what}: peak memory", against, figure, "at most 1.3", peak <= 1.3 * plain_peak)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(fit(sys.argv[1])))
    else:
        for row in rows():
            print(f"{row.what}, against {row.against}: {row.figure}; target {row.target}")
