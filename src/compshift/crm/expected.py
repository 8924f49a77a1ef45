"""Expected accuracy of groups that were never seen, learnt by holding out seen groups.

Each seen group that the others determine is held out (alone, if there are at most ``MAX_FOLDS`` groups) and predicted
by a fit to the others. A ridge regression then explains the accuracy of the held-out groups by the accuracy that the
fit itself expected of them and by their attribute values; it predicts the accuracy of unseen groups. Its leave-one-out
errors give the interval.

With fewer than ``MIN_REGRESSION_GROUPS`` held-out groups there is no regression. Accuracy is then assumed to fall
linearly with the leverage (variance) of the extrapolation, from that of seen groups to that of held-out ones. This
corrects for the folds having fewer groups than the final fit, which matters most when groups are few.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed
from scipy.stats import t as student

from compshift.core.accuracy import importance_accuracy
from compshift.core.affine import extrapolation_leverage
from compshift.core.arrays import BoolArray, FloatArray, IntArray
from compshift.core.energy import log_evidence
from compshift.core.folds import combination_folds
from compshift.core.groups import GroupSpace
from compshift.core.hull import AffineHull
from compshift.crm.fit import Setting, StandardisedRows, StepOne, step_one, step_two
from compshift.crm.inputs import LabelledSamples
from compshift.crm.model import CRMModel
from compshift.crm.selection import ROW_PARTS, Fold, row_parts

MAX_FOLDS = 30
"""Largest number of folds. Each costs a fit."""

EXPECTED_TOL = 1e-3
"""Tolerance of these fits. They start from the fit to all groups; with a looser tolerance they would still reflect the
held-out group."""

MIN_REGRESSION_GROUPS = 8
"""Smallest number of held-out groups for which the regression is fitted."""

OPINION_VARIANCE, VALUE_VARIANCE = 2.0, 0.1
"""Prior variances of the regression coefficients, in units of the noise variance: of the slope on the model's own
expectation (standardised), and of the effect of an attribute value."""

MAX_UNSEEN_GROUPS = 2000
"""Largest number of unseen groups for which accuracy is predicted."""


class HeldOut(NamedTuple):
    """Results for each seen group; NaN for groups that cannot be held out."""

    accuracy: FloatArray  # (k,) accuracy when held out
    opinion: FloatArray  # (k,) accuracy that the fit without the group expected of it
    leverage: FloatArray  # (k,) leverage of its extrapolation from the remaining groups
    seen: FloatArray  # (k,) accuracy on held-out rows while the group itself stays in training


class Prediction(NamedTuple):
    """Expected accuracy of groups and its interval, (q,) each."""

    accuracy: FloatArray
    lower: FloatArray
    upper: FloatArray


def expected_accuracy(
    data: LabelledSamples,
    setting: Setting,
    rows: StandardisedRows,
    fitted: StepOne,
    model: CRMModel,
    prior: Any,
    confidence: float,
    *,
    max_iter: int,
    seed: int,
    n_jobs: int | None,
) -> FloatArray:
    """Return the expected accuracy of every candidate and both ends of its interval, (g, 3).

    A row is NaN unless the candidate is unseen and inside the hull.
    """
    candidates = data.candidates
    missing = np.flatnonzero((candidates.in_seen < 0) & candidates.inside_hull)
    result = np.full((len(candidates.groups), 3), np.nan)
    if not missing.size or missing.size > MAX_UNSEEN_GROUPS:
        return result
    groups = candidates.groups[missing]
    held_out = hold_out(data, setting, fitted, prior, max_iter=max_iter, seed=seed, n_jobs=n_jobs)
    if np.isnan(held_out.accuracy).all():
        return result
    log_prior = candidates.log_prior(prior)
    log_score = log_prior + setting.offset * (candidates.in_seen < 0) - model.bias_of(setting.bias)
    opinion = _opinion(rows, fitted, model, log_score, groups, data.n_targets)
    leverage = extrapolation_leverage(candidates.hull, groups)
    found = predict_accuracy(candidates.hull, groups, held_out, opinion, leverage, confidence)
    result[missing] = np.stack(found, axis=1)
    return result


def hold_out(
    data: LabelledSamples,
    setting: Setting,
    fitted: StepOne,
    prior: Any,
    *,
    max_iter: int,
    seed: int,
    n_jobs: int | None,
) -> HeldOut:
    """Hold out and score every seen group that the others determine."""
    space, groups = data.candidates.space, data.candidates.seen_groups
    fold = combination_folds(space, groups, min(len(groups), MAX_FOLDS), np.random.default_rng(seed))
    part = row_parts(data.position, seed)
    found = Parallel(n_jobs=n_jobs)(
        delayed(_hold_out)(data, fold == number, part == number % ROW_PARTS, setting, fitted, prior, max_iter)
        for number in range(int(fold.max()) + 1)
    )
    nothing = np.full(len(groups), np.nan)
    accuracy, opinion, leverage = nothing.copy(), nothing.copy(), nothing.copy()
    for number, (scores, own_opinion) in enumerate(found):
        held = fold == number
        accuracy[held] = scores[0, held]
        opinion[held] = own_opinion
        leverage[held] = extrapolation_leverage(AffineHull(space, groups[~held]), groups[held])
    known = np.array([scores[1] for scores, _ in found]).reshape(-1, len(groups))  # (folds, k)
    counts = (~np.isnan(known)).sum(axis=0)
    seen = np.divide(np.nansum(known, axis=0), counts, out=nothing.copy(), where=counts > 0)
    return HeldOut(accuracy, opinion, leverage, seen)


def _hold_out(
    data: LabelledSamples,
    held_groups: BoolArray,
    in_part: BoolArray,
    setting: Setting,
    fitted: StepOne,
    prior: Any,
    max_iter: int,
) -> tuple[FloatArray, FloatArray]:
    """Score one fold: accuracies (2, k) of held-out and kept groups, and the fit's opinion of the held-out ones."""
    fold = Fold(data, held_groups, in_part, prior)
    kept = data.candidates.space.locate(fold.candidates.seen_groups, data.candidates.seen_groups)
    start = fitted.solution.start._replace(bias=fitted.solution.bias[kept])
    found = step_one(fold.rows, setting.params, tol=EXPECTED_TOL, max_iter=max_iter, start=start)
    model = step_two(fold.candidates, found, tails=False)
    log_score = fold.log_prior + setting.offset * fold.unseen_candidates - model.bias_of(setting.bias)
    opinion = _opinion(fold.rows, found, model, log_score, fold.groups[held_groups], data.n_targets)
    return fold.accuracy(model, setting.bias, setting.offset), opinion


def _opinion(
    rows: StandardisedRows, fitted: StepOne, model: CRMModel, log_score: FloatArray, groups: IntArray, n_targets: int
) -> FloatArray:
    """Return the accuracy that a fit itself expects of each of the groups (q, m)."""
    evidence = log_evidence(fitted.energies, rows.seen, np.log(rows.frequency) - fitted.bias)
    X = rows.features * rows.standard.scale + rows.standard.mean
    marginals = model.marginals(X, log_score, range(n_targets))
    return importance_accuracy(rows.seen.space, groups, fitted.energies, evidence, rows.weight, marginals)


def predict_accuracy(
    hull: AffineHull,
    groups: IntArray,
    held_out: HeldOut,
    opinion: FloatArray,
    leverage: FloatArray,
    confidence: float,
) -> Prediction:
    """Predict the accuracy of the groups (q, m) from the fit's opinion of them and their leverage, (q,) each."""
    known = ~np.isnan(held_out.accuracy)
    accuracy, n = held_out.accuracy[known], int(known.sum())
    error: FloatArray | float
    if n < MIN_REGRESSION_GROUPS:
        centre, error = _by_leverage(hull, held_out, known, leverage)
    else:
        features = _regressors(hull.space, hull.observed[known], held_out.opinion[known], held_out.opinion[known])
        wanted = _regressors(hull.space, groups, opinion, held_out.opinion[known])
        centre, error = _ridge(features, accuracy, wanted)
    spread = float(student.ppf(0.5 + confidence / 2, max(n - 1, 1))) * error
    centre = np.clip(centre, 0.0, 1.0)
    return Prediction(centre, np.clip(centre - spread, 0.0, 1.0), np.clip(centre + spread, 0.0, 1.0))


def _by_leverage(
    hull: AffineHull, held_out: HeldOut, known: BoolArray, leverage: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the accuracy on the line through seen and held-out groups, and its standard error, (q,) each.

    Both the mean loss of accuracy by extrapolation and its variance between groups grow with the leverage.
    """
    accuracy = held_out.accuracy[known]
    n, mean = len(accuracy), float(accuracy.mean())
    seen = held_out.seen[~np.isnan(held_out.seen)]
    level = float(seen.mean()) if seen.size else mean
    origin = float(extrapolation_leverage(hull, hull.observed).mean())
    distance = float(held_out.leverage[known].mean()) - origin
    # position between seen groups (0) and held-out ones (1)
    share = (leverage - origin) / distance if distance > 0 else np.ones(len(leverage))
    centre = level + share * (mean - level) if mean < level else np.full(len(leverage), mean)
    if n < 2:
        return centre, np.full(len(leverage), 0.5)
    spread, seen_spread = float(accuracy.var(ddof=1)), float(seen.var(ddof=1)) if seen.size > 1 else 0.0
    variance = min(seen_spread, spread) + np.maximum(share, 0.0) * max(spread - seen_spread, 0.0)
    return centre, np.sqrt(variance * (1 + 1 / n))


def _regressors(space: GroupSpace, groups: IntArray, opinion: FloatArray, reference: FloatArray) -> FloatArray:
    """Return the regressors (q, 1 + D), scaled so that a ridge of 1 on each coefficient gives the prior variances."""
    scale = max(float(reference.std()), 0.05)
    own = math.sqrt(OPINION_VARIANCE) * (opinion - reference.mean()) / scale
    return np.concatenate([own[:, None], math.sqrt(VALUE_VARIANCE) * space.one_hot(groups)], axis=1)


def _ridge(features: FloatArray, accuracy: FloatArray, wanted: FloatArray) -> tuple[FloatArray, float]:
    """Fit a ridge regression about the mean; return predictions (q,) and the RMS of its leave-one-out errors."""
    n, mean = len(accuracy), float(accuracy.mean())
    kernel = features @ features.T
    inverse = np.linalg.inv(kernel + np.eye(n))
    smoother = kernel @ inverse  # acts on accuracies minus their mean
    hat = smoother + (1 - smoother.sum(axis=1, keepdims=True)) / n  # acts on the accuracies themselves
    errors = (accuracy - hat @ accuracy) / (1 - np.diag(hat))
    centre = mean + wanted @ features.T @ (inverse @ (accuracy - mean))
    return np.asarray(centre), float(np.sqrt(np.mean(errors**2)))
