"""Every estimator, fitted to data with a fault: probabilities, and what was reported."""

import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import compshift as cs
from hardening.numerics.faults import Fault

RIDGE = 0.01


class Answer(NamedTuple):
    """What came of a fit."""

    clf: Any
    probabilities: Any  # (q, c)
    groups: Any  # (q, g) or None
    warned: list[str]


Maker = Callable[[float], Any]

MAKERS: dict[str, Maker] = {
    **{
        f"CRM, {bias} bias": lambda ridge, bias=bias: cs.CRMClassifier(ridge, bias=bias)  # type: ignore[misc]
        for bias in ("extrapolated", "cumulant", "shrunk", "learned", "auto")
    },
    "CRM, gaussian anchor": lambda ridge: cs.CRMClassifier(ridge, anchor="gaussian"),
    "CRM, auto anchor": lambda ridge: cs.CRMClassifier(ridge, anchor="auto"),
    "CRM, cross-fitted": lambda ridge: cs.CRMClassifier(ridge, cross_fit=3),
    "CRM, tiny ridge": lambda ridge: cs.CRMClassifier(1e-10 * ridge, max_iter=50),
    "CRM, offset chosen": lambda ridge: cs.CRMClassifier(ridge, unseen_offset="auto"),
    "CRM CV": lambda ridge: cs.CRMClassifierCV([0.1 * ridge, ridge]),
    **{
        f"logit adjustment, {name}": lambda ridge, name=name: cs.LogitAdjustedClassifier(name, alpha=ridge)  # type: ignore[misc]
        for name in ("none", "lc", "sla")
    },
    "affine extrapolation": lambda _: cs.AffineExtrapolation(
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=300)), cv=2, random_state=0
    ),
    "Gaussian, shared": lambda _: cs.AdditiveGaussian("shared"),
    "Gaussian, per value": lambda _: cs.AdditiveGaussian("per-value"),
}


def fit(name: str, fault: Fault, features: Any = None, ridge: float = 1.0) -> Answer:
    """Fit, predict, and keep what was warned of."""
    X = fault.X if features is None else features
    clf = MAKERS[name](RIDGE * ridge)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        clf.fit(X, fault.y, attributes=fault.place, sample_weight=None if features is not None else fault.weight)
        probabilities = clf.predict_proba(X[:40])
        groups = np.exp(clf.group_log_proba(X[:40])) if hasattr(clf, "group_log_proba") else None
    return Answer(clf, probabilities, groups, [f"{found.category.__name__}: {found.message}" for found in caught])


def further(fault: Fault) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What is done with data beside fitting a classifier, by name; all of it gives numbers that must be finite."""
    yield "diagnose", lambda: _diagnosis(fault)
    yield "infer_attributes", lambda: _inferred(fault)
    yield "estimate_prior", lambda: _estimated_prior(fault)
    yield "a store", lambda: _from_store(fault)
    yield "AdditiveEnergyHead", lambda: _head(fault)


def _quiet(call: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call()


def _crm(fault: Fault) -> Any:
    return _quiet(
        lambda: cs.CRMClassifier(RIDGE).fit(fault.X, fault.y, attributes=fault.place, sample_weight=fault.weight)
    )


def _diagnosis(fault: Fault) -> Any:
    found = _quiet(lambda: cs.diagnose(cs.CRMClassifier(RIDGE), fault.X, fault.y, fault.place, cv=2))
    return np.array([[1.0]]) if str(found) and "nan" not in str(found).lower() else np.array([[np.nan]])


def _inferred(fault: Fault) -> Any:
    labels = _quiet(lambda: cs.infer_attributes(fault.X, fault.y))
    if len(labels) != len(fault.X):
        raise AssertionError(f"{len(labels)} labels for {len(fault.X)} rows")
    return np.array([[1.0]])


def _estimated_prior(fault: Fault) -> Any:
    return np.exp(_quiet(lambda: _crm(fault).estimate_prior(fault.X)).log_prior)[None]


def _from_store(fault: Fault) -> Any:
    """Probabilities of a fit to Parquet."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "features.parquet"
        frame = pd.DataFrame({"bird": fault.y, "place": fault.place, "features": list(np.asarray(fault.X, np.float64))})
        frame.to_parquet(path)
        clf = cs.CRMClassifier(RIDGE)
        _quiet(lambda: clf.fit(cs.data.FeatureStore(path), "bird", attributes=["place"]))
    return clf.predict_proba(np.asarray(fault.queries, np.float64))


def _head(fault: Fault) -> Any:
    """A step on standardised features of 32 bits, and the probabilities after it."""
    import torch

    X = np.asarray(fault.X, np.float64)
    with np.errstate(all="ignore"):
        scaled = X / (np.abs(X).max() or 1.0)
    features = torch.as_tensor(scaled, dtype=torch.float32)
    place = (fault.place == "sea") + 2 * (fault.place == "town")
    codes = torch.as_tensor(np.stack([fault.y == "gull", place], axis=1).astype(np.int64))
    head = cs.nn.AdditiveEnergyHead(X.shape[1], [2, 3])
    head.set_train_groups(codes)
    head.loss(features, codes).backward()
    head.extrapolate([features])
    return head.log_prob(features).exp().detach().numpy()
