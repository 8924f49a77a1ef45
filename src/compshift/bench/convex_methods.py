"""Methods whose risk on fixed features is convex: they are solved to the optimum, and need no PyTorch.

Sampling is that of the methods themselves (``compshift.methods.sampling``); logit offsets and energies are those of the
estimators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, NamedTuple

import numpy as np

from compshift.core.arrays import FloatArray, IntArray
from compshift.core.groups import GroupSpace
from compshift.crm.cv import fit_codes
from compshift.estimators.logit_adjusted import LogitAdjustedClassifier
from compshift.methods.sampling import Sampling

CONVEX_METHODS = ("erm", "lc", "sla", "crm", "rwg", "subg")
"""Methods that are solved on features."""

DETERMINISTIC = ("erm", "lc", "sla", "crm", "rwg")
"""Convex methods without randomness: further seeds would repeat the first."""

SAME_ON_FEATURES = {"crm-resolved": "crm", "dfr": "rwg"}
"""Methods that equal another one on fixed features: they differ in what they do to a network."""

LOGIT_ADJUSTMENTS = {"lc": "lc", "sla": "sla"}
"""Value of ``LogitAdjustedClassifier``'s ``adjustment``; "none" for the other methods."""

SAMPLINGS: Mapping[str, Callable[[FloatArray], Sampling]] = {"rwg": Sampling.balanced, "subg": Sampling.subsampled}
"""Methods that sample groups; the others use every row once."""

MAX_EXTRAPOLATED = 1000
"""Largest number of unseen groups whose effective sample size a record keeps."""

Predict = Callable[[Any], IntArray]
"""Features (n, p) → classes (n,)."""


class ConvexFit(NamedTuple):
    """A solved method."""

    predictors: Callable[[FloatArray], dict[str, Predict]]  # group frequencies -> predictors; the first is reported
    detail: dict[str, Any]  # convergence of the fit


def n_seeds(mode: str, method: str, seeds: int) -> int:
    """Return the number of seeds that are run: one where nothing is random."""
    return 1 if mode == "features" and method in DETERMINISTIC else seeds


def solve_method(
    method: str, X: FloatArray, codes: IntArray, space: GroupSpace, *, alpha: float, tol: float, seed: int
) -> ConvexFit:
    """Fit a method to features (n, p) of the groups ``codes`` (n, m), the class first."""
    if method == "crm":
        return _solve_crm(X, codes, space, alpha, tol)
    weight = None
    if method in SAMPLINGS:
        _, group = space.distinct(codes)  # (n,)
        sampling = SAMPLINGS[method](np.bincount(group).astype(np.float64))
        rows = sampling.rows(group, np.random.default_rng(seed))
        X, codes, group = X[rows], codes[rows], group[rows]
        weight = None if sampling.weight is None else sampling.weight[group]
    attributes = codes[:, 1:] if codes.shape[1] > 1 else None
    clf = LogitAdjustedClassifier(LOGIT_ADJUSTMENTS.get(method, "none"), alpha=alpha, tol=tol)
    clf.fit(X, codes[:, 0], attributes=attributes, sample_weight=weight)
    detail = {"iterations": clf.n_iter_, "converged": clf.converged_}
    return ConvexFit(lambda _: {"default": clf.predict}, detail)


def _solve_crm(X: FloatArray, codes: IntArray, space: GroupSpace, alpha: float, tol: float) -> ConvexFit:
    """Fit CRM; its predictors are the extrapolated and the learned bias, each under two priors."""
    clf = fit_codes(X, codes, space, alpha, tol=tol, prior="uniform")

    def predictors(frequency: FloatArray) -> dict[str, Predict]:
        priors: dict[str, Any] = {"uniform": "uniform", "empirical": frequency}
        return {
            f"{bias}-{name}": copy(clf).set_params(bias=bias).set_prior(prior).predict
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
    return ConvexFit(predictors, detail)


def extrapolated_groups(clf: Any) -> list[list[Any]]:
    """Return code, effective sample size and Pareto k̂ (None if unknown) of the first unseen groups inside the hull."""
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
