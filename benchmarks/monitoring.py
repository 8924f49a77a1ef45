"""How often ``monitor`` finds new combinations in rows of use, and how often it does where there are none.

    python benchmarks/monitoring.py --features DIR [--draws 20] [--first 200] [--rows 1000]

Draws as in ``unseen_protocol``: 30 % of the groups are dropped from training. Rows of use are test rows of seen groups,
none of them twice, and of two of the dropped groups inside the hull, which make up 2, 5 or 10 % of the rows together.
Skewed: the frequencies of the seen groups are from a Dirichlet(½), as far as the test rows of a group suffice. Noise
and another data set: 5 % of the rows are Gaussian noise with the variances of the features, or rows of the other set.
"""

import argparse
import warnings
from pathlib import Path

import numpy as np
from unseen_protocol import Draw, feature_sets, real_draw

from compshift import CRMClassifierCV, GroupSpace, monitor

SHARES = (0.02, 0.05, 0.1)
FOREIGN = 0.05
KINDS = ("as in training", "skewed", *(f"{share:.0%} of two new groups" for share in SHARES), "noise", "another set")
COLUMNS = ("new groups", "each new one named", "another named", "outliers", "intervals: seen", "intervals: new")


def rows_of_use(draw: Draw, kind: str, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Positions of test rows, and the codes of the new groups among them."""
    groups = draw.hull.observed
    position = draw.space.locate(draw.codes_test, groups)
    by_group = [rng.permutation(np.flatnonzero(position == group)) for group in range(len(groups))]
    if kind == "skewed":
        wanted = rng.multinomial(n, rng.dirichlet(np.full(len(groups), 0.5)))
        return np.concatenate([rows[:size] for rows, size in zip(by_group, wanted, strict=True)]), groups[:0]
    own, new, new_rows = np.concatenate(by_group), groups[:0], []
    if kind.endswith("new groups"):
        each = round(SHARES[KINDS.index(kind) - 2] * n / 2)
        unseen, located = draw.space.distinct(draw.codes_test)
        count = np.bincount(located)
        possible = np.flatnonzero(draw.hull.contains(unseen) & (draw.space.locate(unseen, groups) < 0))
        possible = possible[np.argsort(-count[possible], kind="stable")]
        enough = possible[: max(2, int((count[possible] >= max(SHARES) * n / 2).sum()))]
        chosen = rng.choice(enough, min(2, len(enough)), replace=False)
        new = unseen[chosen]
        new_rows = [rng.permutation(np.flatnonzero(located == group))[:each] for group in chosen]
    n_own = n - sum(map(len, new_rows))
    return np.concatenate([rng.permutation(own)[:n_own], *new_rows]), new


def measure(draw: Draw, other: Draw, n: int) -> dict[str, list[float]]:
    """What ``monitor`` says of every kind of rows: a number for each of COLUMNS."""
    space = GroupSpace(("y", *draw.space.names[1:]), draw.space.values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        clf = CRMClassifierCV(prior="hull").fit(draw.X, draw.codes[:, 0], attributes=draw.codes[:, 1:], space=space)
    found = {}
    for kind in KINDS:
        rng = np.random.default_rng([draw.seed, KINDS.index(kind), 11])
        rows, new = rows_of_use(draw, kind, n, rng)
        X = draw.X_test[rows]
        foreign = rng.permutation(len(X))[: round(FOREIGN * len(X))] if kind in KINDS[-2:] else np.zeros(0, dtype=int)
        if kind == "noise":
            X[foreign] = rng.normal(size=(len(foreign), X.shape[1])) * draw.X.std(axis=0)
        elif len(foreign):
            X[foreign] = other.X_test[rng.permutation(len(other.X_test))[: len(foreign)], : X.shape[1]]
        report = monitor(clf, X)
        is_new = draw.space.locate(report.groups, new) >= 0 if len(new) else np.zeros(len(report.groups), dtype=bool)
        position = draw.space.locate(draw.codes_test[rows], report.groups)
        share = np.bincount(position[position >= 0], minlength=len(report.groups)) / len(X)
        holds = (report.lower <= share + 1e-9) & (share <= report.upper + 1e-9)
        found[kind] = [
            report.has_new_groups,
            report.new[is_new].mean() if len(new) else np.nan,
            report.new[~is_new].any(),
            report.has_outliers,
            holds[report.seen].mean() if not len(foreign) else np.nan,
            holds[is_new].mean() if len(new) else np.nan,
        ]
    return found


def main() -> None:
    """Print one table per feature file of two attributes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--first", type=int, default=200)
    parser.add_argument("--rows", type=int, default=1000)
    options = parser.parse_args()
    paths = [path for path in feature_sets(options.features) if path.name.startswith(("amazon4", "pacs"))]
    if len(paths) != 2:
        parser.error(f"{options.features} holds {len(paths)} of the two files amazon4*.npz and pacs*.npz")
    results: list[list[dict[str, list[float]]]] = [[], []]
    for seed in range(options.first, options.first + options.draws):
        draws = [real_draw(path, seed) for path in paths]
        for own, draw, other in zip(results, draws, reversed(draws), strict=True):
            own.append(measure(draw, other, options.rows))
    for path, own in zip(paths, results, strict=True):
        print(f"\n{path.stem}: {options.draws} draws from {options.first}, {options.rows} rows of use, in percent")
        print("\n| rows of use | " + " | ".join(COLUMNS) + " |\n" + "|---" * (len(COLUMNS) + 1) + "|")
        for kind in KINDS:
            values = np.array([one[kind] for one in own], dtype=float)
            means = [np.nan if np.isnan(column).all() else 100 * np.nanmean(column) for column in values.T]
            print(f"| {kind} | " + " | ".join("" if np.isnan(mean) else f"{mean:.0f}" for mean in means) + " |")


if __name__ == "__main__":
    main()
