"""Expected accuracy on unseen groups, estimated by holding out seen groups.

Each seen group inside the affine hull of the other seen groups is held out (alone, if there are at most ``MAX_FOLDS``
groups) and predicted by a fit to the remaining groups. A ridge regression then explains the accuracy on held-out groups
by the *opinion* of the fit, which is the accuracy that the fit itself expects on the group, and by the group's
attribute values. The regression predicts the accuracy on unseen groups; its leave-one-out errors give the interval.

With fewer than ``MIN_REGRESSION_GROUPS`` held-out groups there is no regression. Accuracy is then assumed to fall
linearly with the leverage (variance) of the extrapolation, along the line through the means of seen and of held-out
groups. This corrects for the folds having fewer groups than the final fit, which matters most if there are few groups.

If no group of a class can be held out, for example because it has a single seen group, nothing shows how well the class
extrapolates: other classes say little about it, and its own samples show only how accurate it is in groups that were
seen. On real data, such classes had accuracies from .03 to .99 on groups where .6 was expected, even if the class had
many samples. So the interval starts at 0, and the expected accuracy is at most the accuracy on held-out samples of the
class. That accuracy is low if the ridge is strong enough for larger classes but too strong for a small one.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student
from sklearn.utils.parallel import delayed

from compshift._progress import in_parallel
from compshift.core.accuracy import importance_accuracy
from compshift.core.affine import extrapolation_leverage
from compshift.core.arrays import BoolArray, FloatArray, IntArray
from compshift.core.energy import log_evidence
from compshift.core.folds import combination_folds
from compshift.core.groups import GroupSpace
from compshift.core.hull import AffineHull
from compshift.crm.fit import Setting, StandardisedRows, StepOne, step_one, step_two
from compshift.crm.held_out import ROW_PARTS, Fold, row_parts
from compshift.crm.inputs import LabelledSamples
from compshift.crm.model import CRMModel

MAX_FOLDS = 30
"""Target number of folds; with at most this many seen groups, each is held out alone. Each fold costs one fit."""

EXPECTED_TOL = 1e-3
"""Tolerance of the fits that leave out a fold. They are warm-started from the fit to all groups; with a larger
tolerance they would stop so early that they still depend on the held-out groups."""

MIN_REGRESSION_GROUPS = 8
"""Smallest number of held-out groups for which the regression is fitted."""

OPINION_VARIANCE = 2.0
"""Prior variance of the regression coefficient of the standardised opinion, in units of the noise variance."""

VALUE_VARIANCE = 0.1
"""Prior variance of the regression coefficient of an attribute value, in units of the noise variance."""

MAX_UNSEEN_GROUPS = 2000
"""Largest number of unseen groups for which accuracies are predicted; with more, all results are NaN."""


class HeldOut(NamedTuple):
    """Results for each seen group; NaN for groups that cannot be held out."""

    accuracy: FloatArray  # (k,) accuracy when held out
    opinion: FloatArray  # (k,) accuracy on the group that the fit without it expects
    leverage: FloatArray  # (k,) leverage of the extrapolation to the group from the remaining groups
    seen: FloatArray  # (k,) accuracy on held-out samples while their group stays in training


class Prediction(NamedTuple):
    """Expected accuracy on groups and the ends of its interval, (q,) each."""

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
    """Return the expected accuracy on every candidate and the ends of its interval, (g, 3).

    A row is NaN unless the candidate is unseen and inside the affine hull.
    """
    candidates = data.candidates
    unseen = np.flatnonzero((candidates.in_seen < 0) & candidates.inside_hull)
    result = np.full((len(candidates.groups), 3), np.nan)
    if not unseen.size or unseen.size > MAX_UNSEEN_GROUPS:
        return result
    groups = candidates.groups[unseen]
    held_out = hold_out(data, setting, fitted, prior, max_iter=max_iter, seed=seed, n_jobs=n_jobs)
    if np.isnan(held_out.accuracy).all():
        return result
    log_prior = candidates.log_prior(prior)
    log_score = log_prior + setting.offset * (candidates.in_seen < 0) - model.bias_of(setting.bias)
    opinion = _opinion(rows, fitted, model, log_score, groups, data.n_targets)
    leverage = extrapolation_leverage(candidates.hull, groups)
    found = predict_accuracy(candidates.hull, groups, held_out, opinion, leverage, confidence, data.n_targets)
    result[unseen] = np.stack(found, axis=1)
    return result


def with_gain(expected: FloatArray, gain: float, error: float, confidence: float) -> FloatArray:
    """Add a gain, measured on held-out groups with a standard error, to expected accuracies (g, 3).

    The interval of the gain widens that of the accuracy. If the gain was not measured, the result is NaN.
    """
    centre, lower, upper = expected.T
    extra = float(norm.ppf(0.5 + confidence / 2)) * error
    ends = (centre, centre - np.hypot(centre - lower, extra), centre + np.hypot(upper - centre, extra))
    return np.clip(np.stack(ends, axis=1) + gain, 0.0, 1.0)


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
    """Hold out and score every seen group that lies inside the affine hull of the others."""
    space, groups = data.candidates.space, data.candidates.seen_groups
    fold = combination_folds(space, groups, min(len(groups), MAX_FOLDS), np.random.default_rng(seed))
    part = row_parts(data.position, seed)
    calls = [
        delayed(_hold_out)(data, fold == number, part == number % ROW_PARTS, setting, fitted, prior, max_iter)
        for number in range(int(fold.max()) + 1)
    ]
    found = in_parallel("expected accuracy of unseen groups", calls, n_jobs)
    nothing = np.full(len(groups), np.nan)
    accuracy, opinion, leverage = nothing.copy(), nothing.copy(), nothing.copy()
    for number, (scores, fold_opinion) in enumerate(found):
        held = fold == number
        accuracy[held] = scores[0, held]
        opinion[held] = fold_opinion
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
    """Score one fold: return accuracies (2, k) on held-out and on kept groups, and the opinion on held-out groups."""
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
    """Return the accuracy that a fit itself expects on each of the groups (q, m), (q,)."""
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
    n_targets: int = 1,
) -> Prediction:
    """Predict the accuracy on the groups (q, m) from the opinion of the fit and the leverage, (q,) each.

    The first ``n_targets`` attributes are classes.
    """
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
    limit, unbounded = _class_limits(hull, groups, held_out, n_targets)
    lower = np.where(unbounded, 0.0, np.clip(centre - spread, 0.0, 1.0))
    return Prediction(np.minimum(centre, limit), lower, np.clip(centre + spread, 0.0, 1.0))


def _class_limits(
    hull: AffineHull, groups: IntArray, held_out: HeldOut, n_targets: int
) -> tuple[FloatArray, BoolArray]:
    """Return an upper limit on the accuracy to expect on each group, (q,), and whether the group is affected, (q,).

    Affected are the groups of a class of which no group was held out. Their limit is the mean accuracy on held-out
    samples of the seen groups of the class; for other groups it is 1.
    """
    known = ~np.isnan(held_out.accuracy)
    limit, unbounded = np.ones(len(groups)), np.zeros(len(groups), dtype=np.bool_)
    for column in range(n_targets):
        seen = hull.observed[:, column]
        for value in np.setdiff1d(groups[:, column], seen[known]):
            own = held_out.seen[(seen == value) & ~np.isnan(held_out.seen)]
            of_class = groups[:, column] == value
            unbounded |= of_class
            limit[of_class] = np.minimum(limit[of_class], own.mean() if own.size else 1.0)
    return limit, unbounded


def _by_leverage(
    hull: AffineHull, held_out: HeldOut, known: BoolArray, leverage: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the accuracy by linear interpolation in the leverage, and its standard error, (q,) each.

    The line passes through the means of seen and of held-out groups. The loss of accuracy and its variance between
    groups are both assumed to grow with the leverage.
    """
    accuracy = held_out.accuracy[known]
    n, mean = len(accuracy), float(accuracy.mean())
    seen = held_out.seen[~np.isnan(held_out.seen)]
    level = float(seen.mean()) if seen.size else mean
    origin = float(extrapolation_leverage(hull, hull.observed).mean())
    distance = float(held_out.leverage[known].mean()) - origin
    # relative leverage: 0 at the mean of seen groups, 1 at the mean of held-out groups
    share = (leverage - origin) / distance if distance > 0 else np.ones(len(leverage))
    centre = level + share * (mean - level) if mean < level else np.full(len(leverage), mean)
    if n < 2:
        return centre, np.full(len(leverage), 0.5)
    spread, seen_spread = float(accuracy.var(ddof=1)), float(seen.var(ddof=1)) if seen.size > 1 else 0.0
    variance = min(seen_spread, spread) + np.maximum(share, 0.0) * max(spread - seen_spread, 0.0)
    return centre, np.sqrt(variance * (1 + 1 / n))


def _regressors(space: GroupSpace, groups: IntArray, opinion: FloatArray, reference: FloatArray) -> FloatArray:
    """Return the regressors (q, 1 + D), scaled so that a ridge of 1 on each coefficient gives the prior variances.

    ``opinion`` (q,) is standardised by the mean and the standard deviation of ``reference``.
    """
    scale = max(float(reference.std()), 0.05)
    scaled = math.sqrt(OPINION_VARIANCE) * (opinion - reference.mean()) / scale
    return np.concatenate([scaled[:, None], math.sqrt(VALUE_VARIANCE) * space.one_hot(groups)], axis=1)


def _ridge(features: FloatArray, accuracy: FloatArray, wanted: FloatArray) -> tuple[FloatArray, float]:
    """Fit a ridge regression to the accuracies minus their mean.

    Return the predictions (q,) for the regressors ``wanted``, and the root mean square of the leave-one-out errors.
    """
    n, mean = len(accuracy), float(accuracy.mean())
    kernel = features @ features.T
    inverse = np.linalg.inv(kernel + np.eye(n))
    smoother = kernel @ inverse  # acts on accuracies minus their mean
    hat = smoother + (1 - smoother.sum(axis=1, keepdims=True)) / n  # acts on the accuracies themselves
    errors = (accuracy - hat @ accuracy) / (1 - np.diag(hat))
    centre = mean + wanted @ features.T @ (inverse @ (accuracy - mean))
    return np.asarray(centre), float(np.sqrt(np.mean(errors**2)))
