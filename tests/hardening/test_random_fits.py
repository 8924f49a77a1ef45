"""Estimators with all parameters drawn at random, on data drawn at random: probabilities or one clear sentence."""

import inspect
import random
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier

import compshift as cs
from tests.hardening.test_calls import strict_numbers
from tests.hardening.verdicts import SHARE, Tally, generator, no_probabilities, share

TOLERANCE = 2e-3  # between probabilities that should be the same; fits stop at a small gradient
CRM = {
    "prior": ("uniform", "hull", "train", "array", "mapping"), "unseen_offset": (0.0, 1.0, -3.0),
    "support": ("all", "all", "hull", "observed", "codes"), "anchor": ("zero", "gaussian"),
    "feature_transform": ("none", "none", "signed_root", "unit_length"),
    "bias": ("extrapolated", "cumulant", "shrunk", "learned"), "cross_fit": (False, False, True, 2),
    "tol": (1e-6, 1e-3, 1e-9), "max_iter": (1, 30, 1000), "verbose": (False,),
}  # fmt: skip
OPTIONS: dict[str, dict[str, tuple[Any, ...]]] = {
    "CRMClassifier": {"alpha": (1e-2, 1e-6, 1.0, 100.0), **CRM},
    "CRMClassifierCV": {
        "alphas": ((0.1,), (0.01, 1.0)), "cv": (None, 2, cs.CombinationKFold(2)), "confidence": (0.9, 0.5), **CRM,
        "scoring": ("accuracy", "worst", "balanced_accuracy"), "n_jobs": (None, 1), "random_state": (0, 7),
        "bias": ("auto", *CRM["bias"]), "anchor": ("auto", "zero", "gaussian"), "cross_fit": ("auto", False, 2),
        "feature_transform": ("auto", *CRM["feature_transform"]), "use_unlabelled": ("auto", "always"),
        "unseen_offset": ("auto", 0.0),
    },
    "CRMBoostingClassifier": {
        "energies": ("boosted", "linear", "auto"), "max_iter": (1, 5, 12), "early_stopping": (True, False),
        "learning_rate": (0.1, 1.0, 1e-3), "n_folds": (2, 3),
        "max_leaf_nodes": (2, 15), "min_samples_leaf": (1, 20), "l2_regularization": (0.0, 1.0), "n_jobs": (1,),
        "categorical_features": ("from_dtype",), "prior": CRM["prior"], "bias": CRM["bias"], "support": CRM["support"],
        "unseen_offset": CRM["unseen_offset"], "random_state": (0, 7), "verbose": (False,), "confidence": (0.9, 0.5),
    },
    "LogitAdjustedClassifier": {
        "adjustment": ("none", "lc", "sla"), "alpha": (1e-2, 1e-6, 1.0), "epsilon": (1e-8, 1.0, 1e-300),
        "tau": (1.0, 0.0, 5.0), "smoothing": (1.0, 1e-3, 100.0), "tol": CRM["tol"], "max_iter": CRM["max_iter"],
        "verbose": (False,),
    },
    "AffineExtrapolation": {
        "estimator": (GaussianNB(), LogisticRegression(max_iter=50), KNeighborsClassifier(2)), "cv": (2, 3),
        "weights": ("minimum-norm", "minimum-variance", "sparse"), "calibration": ("additive", "temperature", None),
        "alpha": (1e-3, 1.0), "floor": ("auto", 1e-4, 0.02), "prior": CRM["prior"], "n_jobs": (None,),
        "support": ("hull", "hull", "all", "codes"), "random_state": (0, None),
        "ensemble": (False, False, True),
    },
    "AdditiveGaussian": {
        "covariance": ("shared", "per-value"), "shrinkage": ("auto", 0.0, 0.3, 1.0), "penalty": ("auto", 0.1, 10.0),
        "prior": CRM["prior"], "support": ("all", "hull", "codes"), "tol": CRM["tol"], "max_iter": (1, 30, 500),
    },
}  # fmt: skip
DRAWS = {
    "CRMClassifier": 160,
    "CRMClassifierCV": 24,
    "CRMBoostingClassifier": 40,
    "LogitAdjustedClassifier": 120,
    "AffineExtrapolation": 80,
}
SCALES = (1.0, 1.0, 1.0, 1.0, 1e-8, 1e8, 1e-150, 1e150)
VALUES: dict[str, tuple[Any, ...]] = {
    "text": ("a", "b", "c"), "long text": ("é" * 300, "b, c", ""), "integers": (-1, 7, 2**40),
    "floats": (0.0, -1.0, 4.0), "categories": ("x", "y", "z"), "booleans": (False, True),
}  # fmt: skip


class Rows(NamedTuple):
    """Arguments of ``fit``."""

    X: Any
    y: Any
    attributes: Any
    sample_weight: Any
    space: Any = None
    sizes: tuple[int, ...] = ()  # numbers of values; not an argument


def draw_labels(codes: Any, rng: random.Random, letter: str, *, gaps: bool = False) -> Any:
    """Columns of labels of several kinds, as a frame or an array."""
    columns = {}
    for number, column in enumerate(codes.T):
        kind = rng.choice([kind for kind in VALUES if len(VALUES[kind]) > column.max()])
        found = pd.Series([VALUES[kind][code] for code in column], dtype=object if gaps else None)
        if gaps:
            found[np.array([rng.random() < 0.2 for _ in column])] = rng.choice((None, np.nan))
        columns[f"{letter}{number}"] = pd.Categorical(found, ["w", "z", "y", "x"]) if kind == "categories" else found
    frame = pd.DataFrame(columns)
    if frame.shape[1] == 1 and rng.random() < 0.7:
        column = frame[f"{letter}0"]
        return rng.choice((column, column.to_numpy(), column.tolist()))
    return rng.choice((frame, frame.to_numpy(dtype=object)))


def draw_rows(name: str, rng: random.Random, *, plain: bool = False) -> Rows:
    """Samples of some of the groups of one to four attributes, the first one or two of them targets."""
    numbers = np.random.default_rng(rng.randrange(2**32))
    sizes = [rng.choice((2, 3, 3)) for _ in range(2 if plain else rng.choice((1, 2, 2, 2, 3, 4)))]
    targets = 1 if plain or name.startswith("Logit") else rng.choice((1, 1, 1, min(2, len(sizes))))
    groups = np.stack(np.unravel_index(np.arange(np.prod(sizes)), sizes), axis=1)
    kept = groups[numbers.permutation(len(groups))[: max(2, round(len(groups) * rng.choice((0.6, 0.8, 1.0))))]]
    each = 12 if plain else rng.choice((1, 2, 12, 12, 12))
    codes = numbers.permutation(np.repeat(kept, each, axis=0))
    p = rng.choice((1, 3, 5)) if plain else rng.choice((1, 3, 5, 8 if name == "AdditiveGaussian" else 60))
    X = numbers.normal(size=(len(codes), p)) + codes @ numbers.normal(size=(len(sizes), p))
    weight = numbers.integers(1, 4, size=len(codes)) if rng.random() < 0.5 else None
    if plain:
        return Rows(X, codes[:, 0], codes[:, 1:], weight)
    if rng.random() < 0.3:
        X[:, :: rng.choice((1, 2))] = rng.choice((0.0, 3.5))  # constant features
    scale = rng.choice(SCALES)
    X = X * scale
    kinds: tuple[Callable[[Any], Any], ...] = (
        np.asarray, np.asfortranarray, lambda a: a[::-1][::-1], lambda a: a.astype("f4"),
        lambda a: pd.DataFrame(a, columns=[f"f{i}" for i in range(p)]), lambda a: np.clip(a * 9, -99, 99).astype("i2"),
    )  # fmt: skip
    X = rng.choice(kinds if 1e-9 < scale < 1e9 else kinds[:3])(X)
    if weight is not None:
        weight = weight * rng.choice((1, 0.5, 1e-200, 1e200)) * (numbers.random(len(codes)) > rng.choice((0, 0, 0.3)))
    y, attributes, space = draw_labels(codes[:, :targets], rng, "y"), None, None
    if targets < len(sizes):
        gaps = rng.random() < (0.3 if name.startswith("CRM") else 0.03)  # the others reject missing attributes
        attributes = draw_labels(codes[:, targets:], rng, "a", gaps=gaps)
    if rng.random() < 0.2:  # codes as labels, with a value that does not occur
        y, attributes = codes[:, :targets], codes[:, targets:] if targets < len(sizes) else None
        space = cs.GroupSpace.from_cardinalities([size + rng.choice((0, 1)) for size in sizes])
    counts = [len(set(column)) for column in codes.T] if space is None else space.cardinalities
    return Rows(X, y, attributes, weight, space, tuple(counts))


def draw_options(name: str, rng: random.Random, rows: Rows) -> dict[str, Any]:
    """A value for every parameter; priors and supports are made for the groups of the rows."""
    options = {parameter: rng.choice(values) for parameter, values in OPTIONS[name].items()}
    if options.get("prior") == "array":
        options["prior"] = np.full(rows.sizes, 1 / np.prod(rows.sizes))
    elif options.get("prior") == "mapping":
        labels = pd.concat([pd.DataFrame(part) for part in (rows.y, rows.attributes) if part is not None], axis=1)
        options["prior"] = {tuple(labels.iloc[0]): 1.0}
    if options.get("support") == "codes":
        codes = np.stack(np.unravel_index(np.arange(np.prod(rows.sizes)), rows.sizes), axis=1)
        options["support"] = codes[: rng.choice((3, None, None))]
    return options


def fit(name: str, options: dict[str, Any], rows: Rows) -> Any:
    """Fit an estimator; only arguments that it has are passed."""
    unknown = {"sizes", *(["space"] if name.startswith("Logit") else [])}
    given = {key: value for key, value in rows._asdict().items() if value is not None and key not in unknown}
    return getattr(cs, name)(**options).fit(**given)


def outputs(clf: Any, X: Any) -> list[Any]:
    """Probabilities of all targets and of groups."""
    found = clf.predict_proba(X)
    parts = list(found) if isinstance(found, list) else [found]
    return [*parts, np.exp(clf.group_log_proba(X))] if hasattr(clf, "group_log_proba") else parts


def unsound(clf: Any, X: Any) -> str | None:
    """Complain about probabilities, predictions, and a model that is another one once it was saved."""
    for part in outputs(clf, X):
        if complaint := no_probabilities(part):
            return complaint
    predicted = np.asarray(clf.predict(X), dtype=object)
    known = [set(values) for values in (clf.classes_ if predicted.ndim == 2 else [clf.classes_])]
    columns = predicted.T if predicted.ndim == 2 else [predicted]
    if len(predicted) != len(X) or not all(
        set(column) <= values for column, values in zip(columns, known, strict=True)
    ):
        return "predictions that are not classes"
    if hasattr(clf, "save"):
        with tempfile.TemporaryDirectory() as folder:
            clf.save(Path(folder) / "m.safetensors")
            again = np.asarray(cs.load(Path(folder) / "m.safetensors").predict(X), dtype=object)
        return None if np.array_equal(again, predicted) else "other predictions once it was saved and loaded"
    return None


@pytest.mark.parametrize("name", OPTIONS)
def test_combined_options(name: str, tally: Tally) -> None:
    parameters = set(inspect.signature(getattr(cs, name)).parameters)
    assert parameters == set(OPTIONS[name]), "a parameter is not drawn"
    for number in range(DRAWS.get(name, 160) // SHARE):
        rng = generator(f"{name} {number}")
        rows = draw_rows(name, rng)
        options = draw_options(name, rng, rows)
        with strict_numbers():
            label = " ".join(f"{name} {number}, {options}, X {rows.X.shape}, {type(rows.y).__name__}".split())
            call = lambda options=options, rows=rows: fit(name, options, rows)  # noqa: E731
            tally.attempt(label[:600], call, lambda clf, rows=rows: unsound(clf, rows.X))


def exact(name: str, rng: random.Random) -> dict[str, Any]:
    """Options under which a fit is determined by its data, up to the tolerance of the solver."""
    options = {parameter: rng.choice(values) for parameter, values in OPTIONS[name].items()}
    chosen: dict[str, Any] = {"prior": rng.choice(("uniform", "hull", "train")), "max_iter": 2000, "tol": 1e-8}
    chosen |= {"support": "hull", "cross_fit": False, "alpha": rng.choice((1e-2, 1.0)), "random_state": 0}
    chosen |= {"estimator": GaussianNB(), "bias": rng.choice(("extrapolated", "learned"))}
    return {**options, **{key: value for key, value in chosen.items() if key in options}}


def reordered(rows: Rows, order: Any) -> Rows:
    """The rows in another order, or some of them several times."""
    return Rows(*(None if part is None else part[order] for part in rows[:4]))


CHANGES: dict[str, Callable[[Rows], tuple[Rows, Rows]]] = {
    "scale of X": lambda rows: (rows, rows._replace(X=rows.X * 2.0**40)),
    "order of rows": lambda rows: (rows, reordered(rows, np.arange(len(rows.X))[::-1])),
    "rows twice": lambda rows: (
        rows._replace(sample_weight=rows.y + 1), reordered(rows, np.repeat(np.arange(len(rows.X)), rows.y + 1))
        ._replace(sample_weight=None),
    ),
}  # fmt: skip
FOLDED = (
    "CRMClassifierCV",
    "CRMBoostingClassifier",
    "AffineExtrapolation",
)  # whose folds depend on the order and number of rows


@pytest.mark.parametrize("name", OPTIONS)
def test_invariances(name: str, tally: Tally) -> None:
    cases = [(change, number) for change in CHANGES for number in range(4 if name in FOLDED else 16)]
    for change, number in share(case for case in cases if name not in FOLDED or case[0] == "scale of X"):
        rng = generator(f"{name} {change} {number}")
        rows, options = draw_rows(name, rng, plain=True), exact(name, rng)
        if change == "rows twice" and "anchor" in options:
            options["anchor"] = "zero"  # the shrinkage of the other one counts rows, not weights
        one, other = CHANGES[change](rows)

        def both(options: Any = options, one: Any = one, other: Any = other) -> tuple[Any, Any]:
            with warnings.catch_warnings(action="ignore"):
                return fit(name, options, one), fit(name, options, other)

        def unequal(found: Any, rows: Any = rows, scaled: bool = change == "scale of X") -> str | None:
            if not all(getattr(clf, "converged_", True) for clf in found):
                return None
            pairs = zip(outputs(found[0], rows.X), outputs(found[1], rows.X * (2.0**40 if scaled else 1)), strict=True)
            gap = max(float(np.abs(a - b).max()) for a, b in pairs)
            return None if gap < TOLERANCE else f"probabilities are off by {gap:.2g}"

        tally.attempt(f"{name}, {change} {number}, {options}"[:500], both, unequal)
