"""What a graph of CRM is made from, whether it was fitted or trained: plain arrays, in 64 bits."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.validation import check_is_fitted

from compshift.core.arrays import FloatArray
from compshift.core.candidates import Candidates
from compshift.core.groups import GroupSpace
from compshift.estimators.fitted_crm import FittedCRM


class Layer(NamedTuple):
    """Outputs ``weights @ x + intercept``."""

    weights: FloatArray  # (q, p)
    intercept: FloatArray  # (q,)


@dataclass(frozen=True, eq=False)
class OnnxSource:
    """Energies as networks with ReLU between their layers, and what the groups add to them."""

    candidates: Candidates
    n_targets: int
    feature_mean: FloatArray  # (p,)
    networks: tuple[tuple[Layer, ...], ...]  # their outputs, side by side, are the energies (n, D)
    log_prior: FloatArray  # (g,)
    log_weight: FloatArray  # (g,) all else that a group's score has beside the prior: −B(z), and the offset if unseen
    feature_names: tuple[str, ...] | None = None

    @property
    def space(self) -> GroupSpace:
        """Targets first, then attributes."""
        return self.candidates.space


def classifier_source(clf: FittedCRM, prior: Any = None) -> OnnxSource:
    """A fitted classifier, under the prior in force or another."""
    check_is_fitted(clf)
    without_prior = copy.copy(clf)
    without_prior.log_prior_ = np.zeros(len(clf.groups_))
    candidates = clf._model.candidates
    names = getattr(clf, "feature_names_in_", None)
    return OnnxSource(
        candidates=candidates,
        n_targets=len(clf.targets_.names),
        feature_mean=clf.feature_mean_,
        networks=((Layer(centred(clf.coef_, clf.space_.cardinalities), np.zeros(len(clf.coef_))),),),
        log_prior=clf.log_prior_ if prior is None else candidates.log_prior(prior),
        log_weight=without_prior._log_score(),
        feature_names=None if names is None else tuple(str(name) for name in names),
    )


def centred(weights: FloatArray, cardinalities: tuple[int, ...]) -> FloatArray:
    """Weights (D, q) less the mean over each attribute's values, which cancels in every probability.

    Far from the data it would take the others' digits with it.
    """
    blocks = np.split(weights, np.cumsum(cardinalities)[:-1])
    return np.concatenate([block - block.mean(axis=0) for block in blocks])
