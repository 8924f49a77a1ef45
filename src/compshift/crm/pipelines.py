"""scikit-learn pipelines that end in a classifier over groups: apply their other steps, or fold scalers into it."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted

from compshift.crm.classifier import CRMClassifier
from compshift.crm.model import CRMModel


def as_classifier_and_features(estimator: Any, X: Any) -> tuple[Any, Any]:
    """Return the last step of a fitted pipeline, and X as the other steps transform it.

    An estimator that is not a pipeline is returned as it is, with X as it is.
    """
    while isinstance(estimator, Pipeline):
        for _, step in _steps(estimator)[:-1]:
            X = step.transform(X)
        estimator = estimator.steps[-1][1]
    return estimator, X


def without_scalers(estimator: Any) -> tuple[Any, list[tuple[str, Any]]]:
    """Return the last step of a pipeline, with the scalers before it folded in, and the (name, step) pairs before them.

    A ``StandardScaler`` is folded into a fitted ``CRMClassifier`` that does not transform features itself. An estimator
    that is not a pipeline is returned as it is, without steps.
    """
    if not isinstance(estimator, Pipeline):
        return estimator, []
    *steps, (_, last) = _steps(estimator)
    clf, within = without_scalers(last)
    steps = [*steps, *within]
    while steps and isinstance(steps[-1][1], StandardScaler) and _is_foldable(clf):
        clf = _folded(clf, steps.pop()[1])
    return clf, steps


def _steps(pipe: Pipeline) -> list[tuple[str, Any]]:
    """Return the names and estimators of a pipeline, without the steps before the last that do nothing."""
    *steps, last = pipe.steps
    return [*((name, step) for name, step in steps if step is not None and step != "passthrough"), last]


def _is_foldable(clf: Any) -> bool:
    """Return whether the energies of a classifier are linear in its features."""
    if not isinstance(clf, CRMClassifier):
        return False
    check_is_fitted(clf)
    return bool(clf.feature_transform_ == "none")


def _folded(clf: CRMClassifier, scaler: StandardScaler) -> CRMClassifier:
    r"""Return a classifier of unscaled features that predicts the same as ``clf`` does for scaled features.

    .. math:: \Big\langle w, \frac{x - m}{s} - \mu \Big\rangle = \Big\langle \frac{w}{s}, x - (m + s \mu) \Big\rangle
    """
    check_is_fitted(scaler)
    scale = np.ones(scaler.n_features_in_) if scaler.scale_ is None else scaler.scale_  # (p,)
    mean = scaler.mean_ if scaler.with_mean else np.zeros(scaler.n_features_in_)  # (p,)

    def fold(model: CRMModel) -> CRMModel:
        pool = model.pool
        if pool is not None and pool.plain is not None:
            pool = replace(pool, plain=fold(pool.plain))
        return replace(model, coef=model.coef / scale, feature_mean=mean + scale * model.feature_mean, pool=pool)

    clf = copy(clf)
    clf._model = fold(clf._model)
    clf.coef_, clf.feature_mean_ = clf._model.coef, clf._model.feature_mean
    clf.__dict__.pop("feature_names_in_", None)
    if hasattr(scaler, "feature_names_in_"):
        clf.feature_names_in_ = scaler.feature_names_in_
    return clf
