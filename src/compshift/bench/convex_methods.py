"""Methods whose risk on fixed features is convex: they are solved, not trained, and need no PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, NamedTuple

import numpy as np

from compshift.core.arrays import FloatArray, IntArray
from compshift.core.groups import GroupSpace
from compshift.crm.classifier import CRMClassifier
from compshift.crm.cv import fit_codes
from compshift.estimators.logit_adjusted import LogitAdjustedClassifier

SOLVED = ("erm", "lc", "sla", "crm", "rwg", "subg")
"""Methods that are solved on features."""

DETERMINISTIC = ("erm", "lc", "sla", "crm", "rwg")
"""Those in which nothing is random: further seeds would repeat the first."""

SAME_ON_FEATURES = {"crm-resolved": "crm", "dfr": "rwg"}
"""Methods that differ from others by what they do to a network's features."""

ADJUSTMENTS = {"lc": "lc", "sla": "sla"}
"""Of ``LogitAdjustedClassifier``; none for the others."""

MAX_EXTRAPOLATED = 1000
"""Of more unseen groups a record keeps the first."""

Predict = Callable[[Any], IntArray]
"""Features (n, p) → classes (n,)."""


class Solved(NamedTuple):
    """A fit: predictors by name, the first of which is reported, and how the fit went."""

    predictors: Callable[[FloatArray], dict[str, Predict]]  # given the frequencies of the groups in question
    detail: dict[str, Any]


def solve_method(
    method: str, X: FloatArray, codes: IntArray, space: GroupSpace, *, alpha: float, tol: float, seed: int
) -> Solved:
    """Fit a method to the rows (n, p) of groups ``codes`` (n, m), the class first."""
    if method == "crm":
        return _solve_crm(X, codes, space, alpha, tol)
    weight = None
    if method in ("rwg", "subg"):
        _, group = space.distinct(codes)
        count = np.bincount(group)
        weight = 1 / count[group]
        if method == "subg":
            order = np.random.default_rng(seed).permutation(len(codes))
            rows = np.sort(np.concatenate([order[group[order] == g][: count.min()] for g in range(len(count))]))
            X, codes, weight = X[rows], codes[rows], None
    attributes = codes[:, 1:] if codes.shape[1] > 1 else None
    clf = LogitAdjustedClassifier(ADJUSTMENTS.get(method, "none"), alpha=alpha, tol=tol)
    clf.fit(X, codes[:, 0], attributes=attributes, sample_weight=weight)
    detail = {"iterations": clf.n_iter_, "converged": clf.converged_}
    return Solved(lambda _: {"default": clf.predict}, detail)


def _solve_crm(X: FloatArray, codes: IntArray, space: GroupSpace, alpha: float, tol: float) -> Solved:
    clf = fit_codes(X, codes, space, alpha, tol=tol, prior="uniform")

    def predictors(frequency: FloatArray) -> dict[str, Predict]:
        """Extrapolated or learned bias, under the uniform prior or that of the rows in question."""
        priors: dict[str, Any] = {"uniform": "uniform", "empirical": frequency}
        return {
            f"{bias}-{name}": _variant(clf, bias, prior)
            for bias in ("extrapolated", "learned")
            for name, prior in priors.items()
        }

    detail = {
        "iterations": clf.n_iter_,
        "converged": clf.converged_,
        "bias_gap": clf.bias_gap_,
        "outside_hull": int((~clf.inside_hull_).sum()),
        "extrapolated": extrapolated_groups(clf),
    }
    return Solved(predictors, detail)


def extrapolated_groups(clf: Any) -> list[list[Any]]:
    """Code, effective sample size and Pareto k̂ (None if unknown) of unseen groups inside the hull, the first ones."""
    chosen = np.flatnonzero(clf.inside_hull_ & ~clf.seen_)[:MAX_EXTRAPOLATED]
    tail = getattr(clf, "pareto_k_", np.full(len(clf.groups_), np.nan))
    return [
        [
            clf.groups_[group].tolist(),
            float(clf.effective_sample_size_[group]),
            float(tail[group]) if np.isfinite(tail[group]) else None,
        ]
        for group in chosen
    ]


def _variant(clf: CRMClassifier, bias: str, prior: Any) -> Predict:
    return copy(clf).set_params(bias=bias).set_prior(prior).predict  # type: ignore[no-any-return]
