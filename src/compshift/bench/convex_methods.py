"""Methods whose risk on fixed features is convex: a solver finds the optimum, without PyTorch.

They fit a ``CRMClassifier`` or a ``LogitAdjustedClassifier``, and balance groups as the trained methods do
(``compshift.methods.sampling``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, NamedTuple

import numpy as np

from compshift.bench.paper import POOL_METHOD
from compshift.bench.protocol import COMBINATIONS
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.groups import GroupSpace
from compshift.crm.coded import choose_alpha, choose_pool, fit_codes
from compshift.estimators.logit_adjusted import LogitAdjustedClassifier
from compshift.methods.sampling import Sampling

CONVEX_METHODS = ("erm", "lc", "sla", "crm", "rwg", "subg")
"""Methods that a convex solver fits to features."""

SAME_ON_FEATURES = {"crm-resolved": "crm", "dfr": "rwg"}
"""Methods that equal another method on fixed features, because they differ only in how a network is trained."""

LOGIT_ADJUSTMENTS = {"lc": "lc", "sla": "sla"}
"""Parameter ``adjustment`` of ``LogitAdjustedClassifier`` by method; other methods use "none"."""

SAMPLINGS: Mapping[str, Callable[[FloatArray], Sampling]] = {"rwg": Sampling.balanced, "subg": Sampling.subsampled}
"""Sampling by method; methods that are not listed use every row once."""

FOLD_SEED = 0
"""Seed of the folds on which CRM's ridge is chosen. It is fixed, so the choice depends on the training rows alone."""

MAX_EXTRAPOLATED = 1000
"""Maximum number of unseen groups whose effective sample sizes are stored in a record."""

Predict = Callable[[Any], IntArray]
"""Function from features (n, p) to predicted classes (n,)."""


class ConvexFit(NamedTuple):
    """A fitted convex method."""

    # from the group frequencies (g,) of the rows to predict, return predictors by name; the first one is reported
    predictors: Callable[[FloatArray], dict[str, Predict]]
    detail: dict[str, Any]  # diagnostics of the fit


def n_seeds(mode: str, method: str, seeds: int, share: float | None = None) -> int:
    """Return the number of seeds to run: ``seeds``, or 1 if the result is the same for every seed.

    ``share`` is the share of the test rows that is set apart as a pool; each seed draws another pool.
    """
    deterministic = method in ("erm", "lc", "sla", "crm", "rwg", POOL_METHOD)
    return 1 if mode == "features" and deterministic and share is None else seeds


def chooses_ridge(method: str, select: str) -> bool:
    """Return whether a method chooses its ridge on held-out combinations of the training rows, instead of drawing it.

    Only CRM does, with or without a pool, because the rule of ``compshift.crm.ridge`` is for CRM's energies.
    """
    return select == COMBINATIONS and method in ("crm", POOL_METHOD)


def solve_method(
    method: str,
    X: FloatArray,
    codes: IntArray,
    space: GroupSpace,
    *,
    alpha: float | None,
    tol: float,
    seed: int,
    pool: FloatArray | None = None,
) -> ConvexFit:
    """Fit a method to features (n, p) and codes (n, m), whose first column is the class.

    If ``alpha`` is None, CRM chooses it by the rule of ``compshift.crm.ridge``, and ``detail["alpha"]`` records
    the choice. Only ``POOL_METHOD`` uses the ``pool`` (N, p) of unlabelled rows.
    """
    if alpha is None:
        rng = np.random.default_rng(FOLD_SEED)
        alpha = choose_alpha(np.asarray(X, dtype=np.float64), codes, space, rng)
        fit = solve_method(method, X, codes, space, alpha=alpha, tol=tol, seed=seed, pool=pool)
        return fit._replace(detail={"alpha": alpha, **fit.detail})
    if method == POOL_METHOD:
        assert pool is not None
        return _solve_crm_with_pool(X, codes, space, alpha, tol, pool)
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


def _solve_crm_with_pool(
    X: FloatArray, codes: IntArray, space: GroupSpace, alpha: float, tol: float, pool: FloatArray
) -> ConvexFit:
    """Fit CRM with the unlabelled ``pool`` (N, p) if that helps on held-out combinations, otherwise without it.

    ``detail["pool"]`` records the decision.
    """
    X, pool = np.asarray(X, dtype=np.float64), np.asarray(pool, dtype=np.float64)
    decision = choose_pool(X, codes, space, alpha, pool, prior="uniform")
    fit = _solve_crm(X, codes, space, alpha, tol, pool if decision.used else None)
    about = {"rows": len(pool), "used": decision.used, "reason": decision.reason}
    return fit._replace(detail={**fit.detail, "pool": about})


def _solve_crm(
    X: FloatArray, codes: IntArray, space: GroupSpace, alpha: float, tol: float, pool: FloatArray | None = None
) -> ConvexFit:
    """Fit CRM, with four predictors: the extrapolated or the learned bias, under a uniform or an empirical prior."""
    clf = fit_codes(X, codes, space, alpha, tol=tol, prior="uniform", unlabelled=pool)

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
    """Return [code, effective sample size, Pareto k̂ (None if unknown)] of each unseen group inside the affine hull.

    At most ``MAX_EXTRAPOLATED`` groups are returned.
    """
    extrapolated = np.flatnonzero(clf.inside_hull_ & ~clf.seen_)[:MAX_EXTRAPOLATED]
    pareto_k = getattr(clf, "pareto_k_", np.full(len(clf.groups_), np.nan))
    return [
        [
            clf.groups_[group].tolist(),
            float(clf.effective_sample_size_[group]),
            float(pareto_k[group]) if np.isfinite(pareto_k[group]) else None,
        ]
        for group in extrapolated
    ]
