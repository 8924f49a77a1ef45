"""Fits to samples whose groups are given as codes; the class is the first attribute."""

from __future__ import annotations

import warnings

import numpy as np

from compshift.core.arrays import FloatArray, IntArray
from compshift.core.candidates import Candidates
from compshift.core.folds import combination_folds
from compshift.core.groups import GroupSpace
from compshift.crm.classifier import CRMClassifier
from compshift.crm.fit import FitParams, Setting, StandardisedRows, step_one
from compshift.crm.inputs import LabelledSamples
from compshift.crm.model import PoolDecision
from compshift.crm.pool_decision import decide_on_pool
from compshift.crm.selection import SearchSpace, choose

FIT_CODES_TOL = 1e-4
"""Tolerance of ``fit_codes``; a smaller value does not change accuracies."""

POOL_FOLDS = 5
"""Number of folds of ``choose_pool``; ``CRMClassifierCV`` has the same default."""


def choose_alpha(
    X: FloatArray,
    codes: IntArray,
    space: GroupSpace,
    rng: np.random.Generator,
    sample_weight: FloatArray | None = None,
) -> float:
    """Return the alpha that ``CRMClassifierCV`` would choose for samples with codes (n, m), under the prior "hull"."""
    data = coded_samples(X, codes, space, sample_weight)
    fold = combination_folds(space, data.candidates.seen_groups, 10, rng)
    seed = int(rng.integers(2**31))
    return choose(data, SearchSpace(()), fold, "hull", "accuracy", max_iter=1000, seed=seed).setting.params.alpha


def choose_pool(
    X: FloatArray,
    codes: IntArray,
    space: GroupSpace,
    alpha: float,
    unlabelled: FloatArray,
    sample_weight: FloatArray | None = None,
    prior: str = "hull",
) -> PoolDecision:
    """Decide as ``CRMClassifierCV`` does whether samples with codes (n, m) are fitted with unlabelled samples (N, p).

    The folds are always the same, so the decision follows from the samples alone.
    """
    data = coded_samples(X, codes, space, sample_weight)
    fold = combination_folds(space, data.candidates.seen_groups, POOL_FOLDS, np.random.default_rng(0))
    setting = Setting(FitParams(alpha), "extrapolated")
    rows = StandardisedRows.of(data.X, data.position, data.sample_weight, data.candidates)
    fitted = step_one(rows, setting.params, tol=FIT_CODES_TOL, max_iter=1000)
    return decide_on_pool(data, unlabelled, setting, fold, prior, rows, fitted, max_iter=1000, seed=0)


def coded_samples(
    X: FloatArray, codes: IntArray, space: GroupSpace, sample_weight: FloatArray | None = None
) -> LabelledSamples:
    """Pack features, codes (n, m) and weights as the input of a fit; the first attribute is the class."""
    groups, position = space.distinct(codes)
    weight = np.ones(len(X)) if sample_weight is None else sample_weight
    candidates = Candidates.of(space, groups, np.bincount(position, weights=weight).astype(np.float64), "all")
    return LabelledSamples(X, position, weight, candidates, n_targets=1, one_dimensional=True)


def fit_codes(
    X: FloatArray,
    codes: IntArray,
    space: GroupSpace,
    alpha: float,
    sample_weight: FloatArray | None = None,
    tol: float = FIT_CODES_TOL,
    prior: str = "hull",
    unlabelled: FloatArray | None = None,
) -> CRMClassifier:
    """Fit a classifier of the first attribute to samples with codes (n, m), and suppress all warnings.

    Unlabelled samples (N, p) are used if they are given; ``choose_pool`` says whether they should be.
    """
    plain = GroupSpace.from_cardinalities(space.cardinalities)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # if few groups remain, an attribute may have a single value
        return CRMClassifier(alpha=alpha, prior=prior, tol=tol).fit(
            X,
            codes[:, 0],
            attributes=codes[:, 1:] if codes.shape[1] > 1 else None,
            sample_weight=sample_weight,
            space=GroupSpace(("y", *plain.names[1:]), plain.values),
            unlabelled=unlabelled,
        )
