"""How well the ridge is chosen where one group is dropped: part ``choice`` of unseen_groups.py.

Files with splits (waterbirds, celeba) are split again and again, each group keeping its number of rows in every split,
and each of the groups (of the commonest ten, if there are more) is dropped in turn. Features are standardised on the
training rows. The worst group's test accuracy is averaged over the dropped groups, then over re-splits. Rules are
compared with the best fixed ridge, which is chosen in hindsight on the mean over all re-splits.
"""

import math
import os
import warnings
from pathlib import Path

import numpy as np
from joblib import Parallel, delayed
from sklearn.preprocessing import StandardScaler

from compshift import AffineHull, CRMClassifier, CRMClassifierCV, GroupSpace, LogitAdjustedClassifier
from compshift.data.feature_files import load_features

ALPHAS = [10.0**exponent for exponent in np.arange(-3.5, 0.6, 0.5)]
FEWEST = 8  # test rows of a group that counts
TOL = 1e-3
RULES = ("CRMClassifierCV", "validation rows", "ESS > 50", "k < 0.7")


class Scenario:
    """Training, validation and test rows of one re-split, without one group in training and validation."""

    def __init__(self, path: Path, columns: list[int], seed: int, dropped: int) -> None:
        data = load_features(path)
        codes, rng = data.codes[:, columns], np.random.default_rng(seed)
        space = GroupSpace.from_cardinalities([data.space.cardinalities[column] for column in columns])
        groups, position = space.distinct(codes)
        split = np.empty(len(codes), dtype=np.int64)
        for group in range(len(groups)):
            rows = np.flatnonzero(position == group)
            split[rows] = rng.permutation(np.asarray(data.split)[rows])
        train_rows = np.bincount(position[split == 0], minlength=len(groups))
        lost = np.argsort(-train_rows, kind="stable")[dropped]
        parts = [(split == part) & ((position != lost) | (part == 2)) for part in range(3)]
        features = np.asarray(data.X, dtype=np.float64)
        scale = StandardScaler().fit(features[parts[0]]).transform
        self.space = GroupSpace(("y", *space.names[1:]), space.values)
        (self.X, self.codes), (self.X_val, self.val), (self.X_test, self.test) = (
            (scale(features[part]), codes[part]) for part in parts
        )
        hull = AffineHull(space, self.codes)
        scored, at = space.distinct(self.test)
        enough = (np.bincount(at) >= FEWEST) & hull.contains(scored)
        self.groups = [at == group for group in np.flatnonzero(enough)]

    def fit(self, estimator):
        """Fit to the training rows."""
        further = {"space": self.space} if isinstance(estimator, CRMClassifier) else {}
        return estimator.fit(self.X, self.codes[:, 0], attributes=self.codes[:, 1:], **further)

    def worst(self, clf) -> float:
        """Worst test accuracy of a group."""
        right = clf.predict(self.X_test) == self.test[:, 0]
        return min(float(right[rows].mean()) for rows in self.groups)

    def balanced(self, clf) -> float:
        """Mean validation accuracy of the groups."""
        right = clf.predict(self.X_val) == self.val[:, 0]
        at = np.unique(self.val, axis=0, return_inverse=True)[1].reshape(-1)
        return float(np.mean(np.bincount(at, weights=right) / np.bincount(at)))


def measure(path: Path, columns: list[int], seed: int, dropped: int) -> dict:
    """Worst group by each rule and at each ridge, of CRM, LC and sLA."""
    warnings.simplefilter("ignore")
    scenario = Scenario(path, columns, seed, dropped)
    found: dict[str, float] = {}
    makers = {
        "CRM": lambda alpha: CRMClassifier(alpha, prior="hull", tol=TOL),
        "LC": lambda alpha: LogitAdjustedClassifier("lc", alpha=alpha, tol=TOL),
        "sLA": lambda alpha: LogitAdjustedClassifier("sla", alpha=alpha, tol=TOL),
    }
    for method, make in makers.items():
        fits = [scenario.fit(make(alpha)) for alpha in ALPHAS]
        worst = [scenario.worst(clf) for clf in fits]
        found |= {f"{method} {alpha:.2g}": value for alpha, value in zip(ALPHAS, worst, strict=True)}
        found[f"{method}, validation rows"] = worst[int(np.argmax([scenario.balanced(clf) for clf in fits]))]
        if method == "CRM":
            asked = [~clf.seen_ & (clf.log_prior_ > -np.inf) for clf in fits]
            sizes = [np.median(clf.effective_sample_size_[mask]) for clf, mask in zip(fits, asked, strict=True)]
            tails = [np.median(clf.pareto_k_[mask]) for clf, mask in zip(fits, asked, strict=True)]
            found["CRM, ESS > 50"] = worst[first(np.array(sizes) > 50)]
            found["CRM, k < 0.7"] = worst[first(np.array(tails) < 0.7)]
    found["CRM, CRMClassifierCV"] = scenario.worst(scenario.fit(CRMClassifierCV(prior="hull")))
    return found


def first(good: np.ndarray) -> int:
    """Position of the weakest ridge that qualifies, or of the strongest."""
    return int(np.argmax(good)) if good.any() else len(good) - 1


def compare(path: Path, first_seed: int, n_splits: int) -> dict[str, tuple[list[list[str]], dict]]:
    """Rows of a table, and all numbers, for the first two attributes and, if there are more, for all of them."""
    data = load_features(path)
    every = list(range(len(data.space.cardinalities)))
    results = {}
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of the workers
    for columns in [every[:2], *([every] if len(every) > 2 else [])]:
        n_dropped = 4 if len(columns) == 2 else 10
        seeds = range(first_seed, first_seed + (n_splits if len(columns) == 2 else max(n_splits // 4, 2)))
        found = Parallel(n_jobs=2)(
            delayed(measure)(path, columns, seed, dropped) for seed in seeds for dropped in range(n_dropped)
        )
        by_split = {
            name: np.array([one[name] for one in found]).reshape(len(seeds), n_dropped).mean(axis=1)
            for name in found[0]
        }
        title = f"{path.stem}, {len(columns)} attributes, {len(seeds)} re-splits × {n_dropped} dropped groups"
        results[title] = rows_of(by_split), {name: values.tolist() for name, values in by_split.items()}
    return results


def rows_of(by_split: dict[str, np.ndarray]) -> list[list[str]]:
    """Rows of the table: mean with standard error, and less the best fixed ridge of CRM, paired."""
    rows, best_crm = [], None
    for method in ("CRM", "LC", "sLA"):
        fixed = {name: values for name, values in by_split.items() if name.startswith(f"{method} ")}
        best = max(fixed, key=lambda name: fixed[name].mean())
        best_crm = fixed[best] if best_crm is None else best_crm
        rules = [f"{method}, {rule}" for rule in RULES if f"{method}, {rule}" in by_split]
        for name in [*rules, best]:
            label = f"{method}, best fixed ridge in hindsight ({best.split()[1]})" if name == best else name
            rows.append([label, mean(by_split[name]), mean(by_split[name] - best_crm)])
    return rows


def mean(values: np.ndarray) -> str:
    """Mean and standard error, in percent."""
    return f"{100 * values.mean():.1f} ± {100 * values.std(ddof=1) / math.sqrt(len(values)):.1f}"
