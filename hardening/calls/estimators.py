"""Calls on estimators: what they are made with, fitted to, and asked."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

import compshift as cs
from hardening.calls import array_kinds, kinds, made
from hardening.calls.table import Call, rows_add_up

REACHABLE = {name: odd for name, odd in kinds.NUMBERS.items() if name != "5e-324"}
"""Tolerances that do not take the search as far as rounding lets it go."""

PARAMETERS: dict[str, dict[str, kinds.Kinds]] = {
    "CRMClassifier": {
        "alpha": kinds.NUMBERS,
        "bias": kinds.CHOICES,
        "anchor": kinds.CHOICES,
        "cross_fit": {**kinds.CHOICES, **kinds.COUNTS},
        "unseen_offset": {**kinds.CHOICES, **kinds.NUMBERS},
        "tol": REACHABLE,
        "max_iter": kinds.COUNTS,
        "memory": kinds.COUNTS,
    },
    "CRMClassifierCV": {
        "alphas": {**kinds.NUMBERS, **kinds.CHOICES},
        "cv": {**kinds.COUNTS, **kinds.CHOICES},
        "scoring": {**kinds.CHOICES, **kinds.NUMBERS},
        "confidence": kinds.NUMBERS,
        "n_jobs": {**kinds.COUNTS, "10**9": kinds.Odd(10**9)},
        "random_state": kinds.SEEDS,
    },
    "LogitAdjustedClassifier": {
        "adjustment": kinds.CHOICES,
        "alpha": kinds.NUMBERS,
        "epsilon": kinds.NUMBERS,
        "tau": kinds.NUMBERS,
        "smoothing": kinds.NUMBERS,
        "tol": REACHABLE,
        "max_iter": kinds.COUNTS,
    },
    "AdditiveGaussian": {
        "covariance": kinds.CHOICES,
        "shrinkage": {**kinds.CHOICES, **kinds.NUMBERS},
        "penalty": {**kinds.CHOICES, **kinds.NUMBERS},
        "tol": REACHABLE,
        "max_iter": kinds.COUNTS,
    },
    "AffineExtrapolation": {
        "estimator": {**kinds.CHOICES, **kinds.COUNTS},
        "weights": kinds.CHOICES,
        "calibration": kinds.CHOICES,
        "alpha": kinds.NUMBERS,
        "cv": {**kinds.COUNTS, **kinds.CHOICES},
        "floor": {**kinds.CHOICES, **kinds.NUMBERS},
        "n_jobs": {**kinds.COUNTS, "10**9": kinds.Odd(10**9)},
        "random_state": kinds.SEEDS,
    },
}
QUICK: dict[str, dict[str, Any]] = {
    "CRMClassifier": {"max_iter": 100},
    "LogitAdjustedClassifier": {"max_iter": 100},
    "CRMClassifierCV": {
        "alphas": [0.1],
        "cv": cs.CombinationKFold(2),
        "bias": "extrapolated",
        "anchor": "zero",
        "unseen_offset": 0.0,
        "max_iter": 100,
    },
    "AffineExtrapolation": {"estimator": LogisticRegression(), "cv": 2, "random_state": 0},
}
WITH_PRIOR = ("CRMClassifier", "CRMClassifierCV", "AdditiveGaussian", "AffineExtrapolation")


def calls() -> Iterator[Call]:
    """Every public call of every estimator."""
    rows = made.rows()
    space = cs.GroupSpace.from_table(np.stack([rows.bird, rows.place], axis=1), names=["y", "a"])
    fitting = {
        "X": array_kinds.matrix(rows.X),
        "y": array_kinds.labels(rows.bird),
        "attributes": array_kinds.labels(rows.place),
        "sample_weight": array_kinds.weights(len(rows.X)),
    }
    good = {"X": rows.X, "y": rows.bird, "attributes": rows.place, "sample_weight": np.ones(len(rows.X))}
    prior = array_kinds.priors(space.n_groups, ("duck", "lake"), ("duck", "moon"))
    for name, parameters in PARAMETERS.items():
        make = getattr(cs, name)
        fixed = QUICK.get(name, {})
        spaces = {} if name == "LogitAdjustedClassifier" else {"space": kinds.SPACES}
        yield Call(f"{name}.fit", _fitting(make, fixed), good, {**fitting, **spaces})
        odd = dict(parameters)
        if name in WITH_PRIOR:
            odd |= {"prior": prior, "support": {**kinds.without_same(array_kinds.codes(made.SEEN)), **kinds.CHOICES}}
        usual = {key: value for key, value in make(**fixed).get_params(deep=False).items() if key in odd}
        yield Call(name, _making(make, fixed, good), usual, odd)
        sets = made.whole_sets()
        if name in ("CRMClassifierCV", "AffineExtrapolation"):
            del sets["10^5 groups"]  # minutes, of many fits
        whole = {kind: kinds.Odd(rows) for kind, rows in sets.items()}
        yield Call(f"{name}.fit", _fitting(make, fixed), good, {"whole": whole})
        yield from _asked(name, make(**fixed).fit(**good), rows, prior)


def _fitting(make: Callable[..., Any], fixed: dict[str, Any]) -> Callable[..., Any]:
    """A fit whose result is what it predicts for its own rows."""

    def fit(X: Any, y: Any, whole: Any = None, **more: Any) -> Any:
        if whole:
            X, y, more = whole[0], whole[1], {"attributes": whole[2]}
        return rows_add_up(make(**fixed).fit(X, y, **more).predict_proba(X))

    return fit


def _making(make: Callable[..., Any], fixed: dict[str, Any], good: dict[str, Any]) -> Callable[..., Any]:
    """A fit with other parameters."""
    return lambda **given: rows_add_up(make(**{**fixed, **given}).fit(**good).predict_proba(good["X"]))


def _asked(name: str, clf: Any, rows: made.Rows, prior: kinds.Kinds) -> Iterator[Call]:
    """What a fitted estimator can be asked."""
    X = {"X": array_kinds.matrix(rows.X)}
    for method in (
        "predict",
        "predict_proba",
        "predict_log_proba",
        "predict_group",
        "explain",
        "decision_function",
        "outlier_score",
    ):
        if hasattr(clf, method):
            yield Call(f"{name}.{method}", getattr(clf, method), {"X": rows.X}, X)
    weight = array_kinds.weights(len(rows.X))
    yield Call(
        f"{name}.score",
        clf.score,
        {"X": rows.X, "y": rows.bird, "sample_weight": np.ones(len(rows.X))},
        {**X, "y": array_kinds.labels(rows.bird), "sample_weight": weight},
    )
    for method in ("group_log_proba", "log_density"):
        if hasattr(clf, method):
            yield Call(
                f"{name}.{method}",
                getattr(clf, method),
                {"X": rows.X, "codes": made.SEEN},
                {**X, "codes": array_kinds.codes(made.SEEN)},
            )
    if hasattr(clf, "set_prior"):
        yield Call(
            f"{name}.set_prior",
            lambda prior: clf.set_prior(prior).predict_proba(rows.X),
            {"prior": "uniform"},
            {"prior": prior},
        )
        clf.set_prior("uniform")
        yield Call(
            f"{name}.estimate_prior",
            lambda **given: clf.estimate_prior(**given).log_prior,
            {"X": rows.X, "sample_weight": np.ones(len(rows.X)), "concentration": 2.0, "confidence": 0.9},
            {**X, "sample_weight": weight, "concentration": kinds.NUMBERS, "confidence": kinds.NUMBERS},
        )
    if hasattr(clf, "group_frame"):
        yield Call(f"{name}.group_frame", clf.group_frame)
    if hasattr(clf, "save"):
        folder = Path(tempfile.mkdtemp())
        yield Call(f"{name}.save", clf.save, {"path": folder / "model.safetensors"}, {"path": kinds.PATHS})
        yield Call(
            f"{name}.save", clf.save, {"path": folder / "model.safetensors", "inputs": None}, {"inputs": kinds.CHOICES}
        )
    if hasattr(clf, "sample"):
        yield Call(
            f"{name}.sample",
            clf.sample,
            {"n": 3, "codes": made.SEEN[0], "random_state": 0},
            {"n": kinds.COUNTS, "codes": kinds.without_same(array_kinds.codes(made.SEEN)), "random_state": kinds.SEEDS},
        )
    if hasattr(clf, "extrapolated_bias"):
        yield Call(
            f"{name}.extrapolated_bias",
            clf.extrapolated_bias,
            {"coef": np.zeros((6, 4)), "feature_mean": np.zeros(4), "learned_bias": np.zeros(7)},
            {
                "coef": kinds.without_same(array_kinds.matrix(np.zeros((6, 4)))),
                "feature_mean": kinds.without_same(array_kinds.weights(4)),
                "learned_bias": kinds.without_same(array_kinds.weights(7)),
            },
        )
    if name == "CRMClassifier":
        both = {"X": rows.X, "y": rows.bird, "attributes": rows.place}
        odd = {**X, "y": array_kinds.labels(rows.bird), "attributes": array_kinds.labels(rows.place)}
        yield Call(
            "diagnose",
            lambda clf=clf, **given: str(cs.diagnose(clf, **given)),
            {**both, "cv": 3},
            {**odd, "clf": {**kinds.CHOICES}, "cv": kinds.COUNTS, "random_state": kinds.SEEDS},
        )
        yield Call(
            "infer_attributes",
            cs.infer_attributes,
            {"X": rows.X, "y": rows.bird, "rounds": 2},
            {"X": X["X"], "y": odd["y"], "alpha": kinds.NUMBERS, "rounds": kinds.COUNTS, "random_state": kinds.SEEDS},
        )
        yield Call(
            "CombinationKFold.split",
            lambda n_splits=3, random_state=0, **given: [
                part
                for fold in cs.CombinationKFold(n_splits, random_state=random_state).split(**given)
                for part in fold
            ],
            both,
            {**odd, "n_splits": kinds.COUNTS, "random_state": kinds.SEEDS},
        )
        yield Call("load", cs.load, {"path": _saved(clf)}, {"path": kinds.PATHS})
        yield Call(
            "export_onnx",
            cs.export_onnx,
            {"model": clf, "path": Path(tempfile.mkdtemp()) / "m.onnx", "prior": "uniform"},
            {
                "model": kinds.CHOICES,
                "path": kinds.PATHS,
                "prior": prior,
                "dtype": kinds.CHOICES,
                "fixed_prior": kinds.CHOICES,
                "group_probabilities": kinds.CHOICES,
            },
        )


def _saved(clf: Any) -> Path:
    path = Path(tempfile.mkdtemp()) / "model.safetensors"
    clf.save(path)
    return path
