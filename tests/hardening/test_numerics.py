"""Data and energies at the edge of floating point: finite, right where the answer is known, and reported."""

import warnings
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import compshift as cs
from compshift.core.arrays import log_softmax, logmatmulexp, logsumexp
from tests.hardening.verdicts import Check, Tally, no_probabilities, share

RIDGE = 0.01
TOLERANCE = 2e-3  # between probabilities that should be the same; fits stop at a gradient of 1e-6
CRM, BIASES = cs.CRMClassifier, ("extrapolated", "cumulant", "shrunk", "learned")
MAKERS: dict[str, Callable[[float], Any]] = {
    **{f"CRM, {bias} bias": lambda ridge, bias=bias: CRM(ridge, bias=bias) for bias in BIASES},
    "CRM, gaussian anchor": lambda ridge: CRM(ridge, anchor="gaussian"),
    "CRM, cross-fitted": lambda ridge: CRM(ridge, cross_fit=3),
    "CRM, tiny ridge": lambda ridge: CRM(1e-10 * ridge, max_iter=50),
    "CRM, CV": lambda ridge: cs.CRMClassifierCV([0.1 * ridge, ridge], cross_fit="auto"),
    **{f"logit {a}": lambda ridge, a=a: cs.LogitAdjustedClassifier(a, alpha=ridge) for a in ("none", "lc", "sla")},
    "affine": lambda _: cs.AffineExtrapolation(
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=300)), cv=2, random_state=0
    ),
    **{f"Gaussian, {kind}": lambda _, kind=kind: cs.AdditiveGaussian(kind) for kind in ("shared", "per-value")},
}
QUICK = {name for name in MAKERS if name.startswith("logit") or name.endswith("bias")} | {"affine"}
UNSCALABLE = {*(f"features times 2^{power}" for power in (996, -996)), "constant 1e300", "outlier of 1e+300"}
CHOOSERS = ("affine", "Gaussian", "CV", "gaussian")  # whose penalty is chosen, or no ridge
UNLIKE = {"duplicated features": CHOOSERS, "constant features too": CHOOSERS}
UNLIKE |= dict.fromkeys(("weights of 1e+300", "weights of 1e-300"), ("sla", "Gaussian"))  # they take weights as counts
CODES = np.array([[0, 0], [0, 1], [1, 1], [0, 2], [1, 2]])[np.arange(120) % 5]
POWERS = (66, -66, 498, -498, 996, -996)  # 1e±20, 1e±150, 1e±300


class Case(NamedTuple):
    """A training set with a numerical fault, and what is known about the answer."""

    X: Any
    y: Any
    place: Any
    weight: Any = None
    known: str = ""  # same: as for ``like``; accurate: training rows are right; indifferent: all rows alike
    like: Any = None
    ridge: float = 1.0  # factor of the ridge for the same answer


def features_of(codes: Any, distance: float = 1.0, width: int = 4) -> Any:
    """Features that bird and place both move."""
    moves = np.pad([[2, 1, 0], [0, 1, 2]], ((0, 0), (0, width - 3)))
    return np.random.default_rng(0).normal(size=(len(codes), width)) + distance * (codes @ moves)


def make_cases() -> dict[str, Case]:
    """Every numerical fault by its name."""
    codes, X, rng, turn = CODES, features_of(CODES), np.random.default_rng(1), np.arange(120)
    few = np.r_[codes[codes[:, 0] * codes[:, 1] < 2], [[1, 2]]]  # the last group has one sample
    cells = np.arange(X.size).reshape(X.shape)

    def case(features: Any, codes: Any = codes, **more: Any) -> Case:
        y, place = np.array(["duck", "gull"])[codes[:, 0]], np.array(["lake", "sea", "town"])[codes[:, 1]]
        return Case(features, y, place, **more)

    def cast(kind: str) -> Case:
        found = (np.round(X * 20).clip(0) if kind[0] in "ub" else np.round(X * 20)).astype(kind)
        return case(found, known="same", like=found.astype(float))

    rare, lonely = codes[:, 0] == 1, (codes == [1, 2]).all(axis=1)
    weights = {"imbalance of 10^6": np.where(rare, 1e-6, 1.0), "imbalance of 10^300": np.where(rare, 1e-300, 1.0)}
    weights |= {"weight vanishes": np.where(turn == 7, 5e-324, 1.0), "group vanishes": np.where(lonely, 5e-324, 1.0)}
    weights |= {"600 orders of weights": 10.0 ** rng.uniform(-300, 300, size=120)}
    return {
        "none": case(X),
        **{f"features times 2^{p}": case(np.ldexp(X, p), known="same", like=X) for p in POWERS},
        "huge offset": case(X + 1e8, known="same", like=X + 1e8 - 1e8),
        "mixed scales": case(X * [1e-20, 1, 1e20, 1]),
        "denormal features": case(X * 5e-320),
        "duplicated features": case(np.c_[X, X], known="same", like=X, ridge=2.0),
        "constant features too": case(np.c_[X, np.full((120, 4), 7.0)], known="same", like=X, ridge=2.0),
        "only constants": case(np.full_like(X, 3.5), known="indifferent"),
        "constant 1e300": case(np.full_like(X, 1e300), known="indifferent"),
        "one feature": case(X[:, :1]),
        "separable": case(features_of(codes, 50), known="accurate"),
        "equal rows, other labels": case(np.repeat(X[:12], 10, axis=0)),
        **{f"{width} features": case(features_of(codes[:60], 3, width), codes[:60]) for width in (200, 5000)},
        "group of one sample": case(features_of(few), few),
        **{name: case(X, weight=weight) for name, weight in weights.items()},
        **{f"weights of {w}": case(X, weight=np.full(120, w), known="same", like=X) for w in (1e300, 1e-300)},
        **{f"{kind} features": cast(kind) for kind in ("float16", "float32", "int8", "uint64", "bool")},
        **{f"outlier of {value:g}": case(np.where(cells == 9, value, X)) for value in (1e12, 1e300)},
    }


def make_odd_sets() -> dict[str, Case]:
    """Features, classes and attributes that are odd only together."""
    X, (y, place), rng = features_of(CODES), CODES.T.astype(str), np.random.default_rng(1)
    many = rng.integers(320, size=(2, 1000))  # 10^5 candidate groups
    return {
        **{f"{n} samples": Case(X[:n], y[:n], place[:n]) for n in (1, 2, 5)},
        "one class": Case(X, y[:1].repeat(120), place), "attribute equal to the class": Case(X, y, y),
        "one group": Case(X, y[:1].repeat(120), place[:1].repeat(120)),
        "one sample many times": Case(X[:1].repeat(120, axis=0), y, place),
        "10^5 groups": Case(rng.normal(size=(1000, 3)), *many),
        "twelve attributes": Case(X, y, rng.integers(2, size=(120, 12))),
        "equal attributes": Case(X, y, np.stack([place, place], axis=1)),
        "index in another order": Case(pd.DataFrame(X), y, pd.Series(place)[::-1]),
    }  # fmt: skip


CASES = make_cases()
SETS = {**CASES, **make_odd_sets()}


def fit(name: str, case: Case, like: bool = False) -> tuple[Any, Any, list[str]]:
    """Return a fitted classifier, its probabilities, and what it warned of."""
    X, weight = (case.like, None) if like else (case.X, case.weight)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        clf = MAKERS[name](RIDGE / case.ridge if like else RIDGE)
        clf.fit(X, case.y, attributes=case.place, sample_weight=weight)
        found = [clf.predict_proba(X[:40])]
        if hasattr(clf, "group_log_proba"):
            found.append(np.exp(clf.group_log_proba(X[:40])))
    return clf, found, [f"{one.category.__name__}: {one.message}" for one in caught]


@pytest.mark.parametrize("label", share(SETS))
def test_fits(label: str, tally: Tally) -> None:
    case = SETS[label]
    slow = set(MAKERS) - QUICK if max(case.X.shape) >= 1000 else set()
    slow |= {"affine"} if label in (*UNSCALABLE, "10^5 groups") else set()
    for name in [name for name in MAKERS if name not in slow]:
        tally.attempt(f"{label}, {name}", lambda name=name: fit(name, case), lambda a, n=name: problem(label, n, *a))


def problem(label: str, name: str, clf: Any, found: Any, warned: list[str]) -> str | None:
    """Complain about probabilities, about a wrong answer where it is known, and about what was not reported."""
    case, probabilities = SETS[label], found[0]
    for part in found:
        if complaint := no_probabilities(part):
            return complaint
    if case.known == "indifferent" and np.ptp(probabilities, axis=0).max() > 1e-9:
        return "equal rows are predicted differently"
    if case.known == "accurate" and (clf.predict(case.X[:40]) == case.y[:40]).mean() < 0.97:
        return "separable rows are predicted wrongly"
    if case.known == "same" and not any(word in name for word in UNLIKE.get(label, ())):
        gap = float(np.abs(probabilities - fit(name, case, like=True)[1][0]).max())
        if gap > TOLERANCE:
            return f"probabilities are off by {gap:.2g}"
    if getattr(clf, "converged_", True) is False and not any("Convergence" in text for text in warned):
        return "not converged, and no warning"
    internal = [text for text in warned if text.startswith("RuntimeWarning")]
    return f"internal warning: {internal[0][:150]}" if internal else None


@pytest.mark.parametrize("label", share(CASES))
def test_other_uses(label: str, tally: Tally) -> None:
    case = CASES[label]
    X = np.asarray(case.X, np.float64)

    def store() -> Any:
        pd.DataFrame({"bird": case.y, "place": case.place, "features": list(X)}).to_parquet("f.parquet")
        clf = CRM(RIDGE).fit(cs.data.FeatureStore("f.parquet"), "bird", attributes=["place"])
        return clf.predict_proba(X[:40])

    def head() -> Any:
        features = torch.as_tensor(X / (np.abs(X).max() or 1.0), dtype=torch.float32)
        codes = np.stack([case.y == "gull", (case.place == "sea") + 2 * (case.place == "town")], axis=1)
        return trained_head(cs.nn.AdditiveEnergyHead(X.shape[1], [2, 3]), features, codes)

    def prior() -> Any:
        clf = CRM(RIDGE).fit(case.X, case.y, attributes=case.place, sample_weight=case.weight)
        return np.exp(clf.estimate_prior(case.X).log_prior)

    for name, call in {"estimate_prior": prior, "store": store, "head": head}.items():
        tally.attempt(f"{label}, {name}", call, no_probabilities)
    inferred = lambda labels: None if len(labels) == len(X) else "not one label each"  # noqa: E731
    tally.attempt(f"{label}, infer_attributes", lambda: cs.infer_attributes(case.X, case.y), inferred)
    if X.shape[1] <= 1000:
        diagnose = lambda: cs.diagnose(CRM(RIDGE), case.X, case.y, case.place, cv=2)  # noqa: E731
        tally.attempt(f"{label}, diagnose", diagnose, lambda text: "NaN" if "nan" in str(text).lower() else None)


def trained_head(head: Any, features: Any, codes: Any) -> Any:
    """Return the probabilities of a head after a backward pass and an extrapolation."""
    codes = torch.as_tensor(codes.astype(np.int64))
    head.set_train_groups(codes)
    head.loss(features, codes).backward()
    assert np.isfinite(np.asarray(head.extrapolate([features]).bias)).all()
    return head.log_prob(features).exp().detach().numpy()


def exact_sum(values: Any) -> Any:
    """Return log Σ exp of each row; differences to the largest are taken in exact fractions."""
    found = []
    for row in values:
        finite = [Fraction(value) for value in row if np.isfinite(value)]
        top = max(finite, default=None)
        total = sum(np.exp(np.longdouble(max(float(value - top), -1e4))) for value in finite)
        found.append(-np.inf if top is None else float(top) + float(np.log(total)))
    return np.array(found)


def near(expected: Any) -> Check:
    """Return a check against exact values."""
    return lambda found: None if np.allclose(found, expected, rtol=1e-12, atol=1e-9) else f"{found} is not {expected}"


@pytest.mark.parametrize("size", [1.0, 1e4, 1e8, 1e300])
def test_extreme_energies(size: float, tally: Tally) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=shape) * size for shape in ((5, 7), (7, 3)))
    hole = a.copy()
    hole[2], hole[:, 1] = -np.inf, -np.inf
    for values in (a, hole):
        product = np.stack([exact_sum(values + column) for column in b.T], axis=1)
        tally.attempt(f"logmatmulexp at {size:g}", lambda v=values: logmatmulexp(v, b), near(product))
        tally.attempt(f"logsumexp at {size:g}", lambda v=values: logsumexp(v, 1), near(exact_sum(values)))
    tally.attempt(f"log_softmax at {size:g}", lambda: log_softmax(a), near(a - exact_sum(a)[:, None]))
    codes, space = np.array([[0, 0], [0, 1], [1, 1]]), cs.GroupSpace.from_cardinalities([2, 2])
    values = np.array([1.0, 1.0, 3.0]) * size
    additive = lambda: cs.extrapolate_additive(codes, values, [[1, 0]], space)  # noqa: E731
    tally.attempt(f"extrapolate_additive at {size:g}", additive, near([3 * size]))
    for sign in (0, 1, -1) if size < 1e300 else ():
        energies = rng.normal(size=(30, 4)) * size
        features = torch.as_tensor(energies if sign == 0 else sign * np.abs(energies))
        head = cs.nn.AdditiveEnergyHead(4, [2, 2]).double()
        with torch.no_grad():
            for parameter in head.parameters():
                parameter.zero_()
            blocks = [parameter for parameter in head.parameters() if parameter.shape == (2, 4)]
            for block, rows in zip(blocks, torch.eye(4).double().split(2), strict=True):
                block.copy_(rows)  # the energies are the features themselves
        call = partial(trained_head, head, features, codes[np.arange(30) % 3])
        tally.attempt(f"a head of energies {size:g}, sign {sign}", call, no_probabilities)
