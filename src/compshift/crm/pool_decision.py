"""Decide on held-out combinations whether a fit uses a pool of unlabelled samples.

Unlabelled samples can mislead a fit: the pool may lack the unseen groups, or hold samples of another kind altogether.
Three checks precede their use.

- *Are its samples of the same kind?* Some of them at least should be from seen groups, and lie as close to training
  samples as these lie to each other. And groups that a fold holds out are further from the fold's training samples than
  other groups are; the samples of the pool must not be clearly further away.
- *Do unseen groups occur in the pool?* Their estimated total share must exceed the share that the same estimate finds
  where it is certainly 0: among held-out samples of seen groups.
- *Does the pool help?* Each fold holds out some seen groups, which then are unseen groups with known labels. EM with
  the pool must raise the accuracy on them by more than one standard error, and must not lower the mean accuracy over
  all groups.

Folds have fewer groups than the final fit, and after a few rounds differences between rounds are mostly noise. Folds
therefore do not choose the number of rounds: the pool is used if it helps after the best round, and the final EM then
runs to its end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.neighbors import NearestNeighbors
from sklearn.utils.parallel import delayed

from compshift._progress import in_parallel
from compshift.core.arrays import FloatArray, IntArray
from compshift.core.candidates import Candidates
from compshift.core.energy import GroupTable, linear_energies, log_evidence
from compshift.core.prior_em import estimate_log_prior
from compshift.core.sparse import Features, SparseRows
from compshift.crm.fit import Setting, StandardisedRows, StepOne, step_one, step_two
from compshift.crm.held_out import FOLD_TOL, ROW_PARTS, Fold, row_parts
from compshift.crm.inputs import LabelledSamples
from compshift.crm.model import PoolDecision
from compshift.crm.selection import known_means, mean_and_error
from compshift.crm.unlabelled import MAX_ROUNDS, fit_with_pool, group_bias, pool_frequency, pool_groups, pool_model

CLEAR_GAIN = 1.0
"""Number of standard errors by which accuracy on held-out groups must rise."""

SHARE_CONFIDENCE = 0.9
"""Coverage of the interval of the unseen groups' share in the pool."""

NEIGHBOURS = 5
"""Number of nearest training samples to which the distance of a sample is averaged."""

CLEAR_EXCESS = 2.0
"""Number of standard errors by which the samples of a pool may be further away than those of held-out groups."""

MIN_NEAR_SHARE = 0.05
"""Share of the pool that must be as close to training samples as half of the training samples are to each other."""

MIN_DISTANCE = 1e-3
"""Smallest distance that counts, per square root of the number of features: a copy of a training sample has none."""

MAX_DISTANCE_ROWS = 4000
"""Largest number of training samples, and of samples whose distance to them is measured."""


class PoolTrial(NamedTuple):
    """Results of one fold."""

    accuracy: FloatArray  # (rounds + 1, 2, k) on held-out groups, and on held-out samples of other groups
    false_share: float  # estimated share of unseen groups among held-out samples of seen groups
    excess_distance: tuple[float, float]  # ``excess_distance`` of the pool; NaN if the fold holds out no group


def decide_on_pool(
    data: LabelledSamples,
    pool: Features,
    setting: Setting,
    fold: IntArray,
    prior: Any,
    rows: StandardisedRows,
    fitted: StepOne,
    *,
    max_iter: int,
    seed: int,
    n_jobs: int | None = None,
) -> PoolDecision:
    """Decide whether EM uses the pool (N, p).

    ``fitted`` is the plain fit to ``rows``, the samples of ``data``. ``fold`` (k,) is the fold of each seen group, −1
    for groups that are never held out.
    """
    groups = pool_groups(data.candidates)
    unseen = data.candidates.space.locate(groups, data.candidates.seen_groups) < 0
    if not unseen.any():
        return PoolDecision(False, "the pool is not used: training has every group inside the hull")
    share = unseen_share(linear_energies(rows.standard.of(pool), fitted.solution.weight), data.candidates, fitted)
    if not (fold >= 0).any():
        reason = (
            "the pool is not used: no group can be held out to see whether it helps; use_unlabelled='always' uses it"
        )
        return PoolDecision(False, reason, share)
    near = near_share(rows.standard.of(pool), rows.features)
    if near < MIN_NEAR_SHARE:
        reason = (
            f"the pool is not used: its samples may be of another kind, because only {near:.1%} of them are as close "
            "to training samples as half of the training samples are to each other"
        )
        return PoolDecision(False, reason, share)
    if isinstance(prior, str) and prior == "train":  # "train" gives held-out groups probability 0
        prior = "hull"
    part = row_parts(data.position, seed)
    calls = [
        delayed(_try_fold)(
            Fold(data, fold == number, part == number % ROW_PARTS, prior), data.candidates, pool, setting, max_iter
        )
        for number in range(int(fold.max()) + 1)
    ]
    trials: list[PoolTrial] = in_parallel("unlabelled samples on held-out groups", calls, n_jobs)
    false_share = float(np.mean([trial.false_share for trial in trials]))
    excess, error = (
        float(np.nanmean(column)) for column in zip(*(trial.excess_distance for trial in trials), strict=True)
    )
    if not excess <= CLEAR_EXCESS * error:
        reason = (
            "the pool is not used: its samples may be of another kind, because their distance to the nearest training "
            f"samples is {np.exp(min(excess, 99.0)):.3g} times that of held-out groups"
        )
        return PoolDecision(False, reason, share, false_share, excess)
    if share[1] <= false_share:
        reason = (
            f"the pool is not used: unseen groups may not occur in it (estimated share {share[0]:.1%}, at least "
            f"{share[1]:.1%}; {false_share:.1%} is found where there are none)"
        )
        return PoolDecision(False, reason, share, false_share, excess)
    n_unseen = int(unseen.sum())
    return verdict(_by_round(trials), n_unseen, len(groups) - n_unseen)._replace(
        unseen_share=share, false_share=false_share, excess_distance=excess
    )


def verdict(accuracy: FloatArray, n_unseen: int, n_seen: int) -> PoolDecision:
    """Decide whether the pool helps.

    ``accuracy`` (rounds + 1, 2, k) is the accuracy on each seen group before EM and after each round: when the group is
    held out, and on held-out samples when it stays in training. ``n_unseen`` and ``n_seen`` are the numbers of groups
    inside the hull that training lacks and has; they weight the two accuracies in the mean over all groups.
    """
    held_out, seen = (known_means(accuracy[:, kind]) for kind in range(2))  # (rounds + 1,)
    balanced = n_unseen * held_out + n_seen * np.nan_to_num(seen)
    best = 1 + int(np.argmax(balanced[1:]))
    gain, error = mean_and_error(accuracy[best, 0] - accuracy[0, 0])
    n = int(np.count_nonzero(~np.isnan(accuracy[0, 0])))
    helps = gain > CLEAR_GAIN * error and balanced[best] > balanced[0]
    measured = f"accuracy on {n} held-out groups changes by {100 * gain:+.1f} ± {100 * error:.1f} points"
    if helps:
        reason = f"the pool is used: {measured}"
    elif gain > CLEAR_GAIN * error:
        lost = 100 * (seen[best] - seen[0])
        reason = f"the pool is not used: {measured}, but on the other groups by {lost:+.1f}, so the mean over all falls"
    elif n < 2:
        reason = "the pool is not used: one held-out group is too little to see whether it helps"
    else:
        reason = f"the pool is not used: {measured}, which is no clear gain"
    by_round = tuple(held_out.tolist()), tuple(seen.tolist())
    return PoolDecision(bool(helps), reason, held_out=by_round[0], seen=by_round[1], gain=gain, gain_error=error)


def unseen_share(energies: FloatArray, candidates: Candidates, fitted: StepOne) -> tuple[float, float, float]:
    """Return the estimated total share of unseen groups among samples with energies (N, D), and its interval.

    For the interval, the samples are a mixture of two parts, all seen and all unseen groups, each with the estimated
    frequencies of its groups.
    """
    groups = pool_groups(candidates)
    unseen = candidates.space.locate(groups, candidates.seen_groups) < 0
    table = GroupTable.of(candidates.space, groups)
    bias = group_bias(fitted, table)
    frequency = pool_frequency(energies, table, bias, np.full(len(groups), 1 / len(groups)))
    log_parts = [
        log_evidence(energies, GroupTable.of(candidates.space, groups[mask]), np.log(frequency[mask]) - bias[mask])
        - np.log(frequency[mask].sum())
        for mask in (~unseen, unseen)
    ]
    found = estimate_log_prior(
        np.stack(log_parts, axis=1), np.ones(len(energies)), concentration=1.0, confidence=SHARE_CONFIDENCE
    )
    return float(np.exp(found.log_prior[1])), float(found.lower[1]), float(found.upper[1])


def near_share(pool: Features, train: Features) -> float:
    """Return the share of a pool that is as close to training samples (t, p) as half of these are to each other."""
    pool, train = _thinned(pool), _thinned(train)
    nearest = NearestNeighbors(n_neighbors=min(NEIGHBOURS, train.shape[0] - 1), algorithm="brute").fit(train)
    return float((_log_distance(nearest, pool) <= np.median(_log_distance(nearest))).mean())


def excess_distance(pool: Features, held_out: Features, train: Features) -> tuple[float, float]:
    """Return how much further from training samples (t, p) the samples of a pool are than those of held-out groups.

    The result is the difference of the mean logarithms of distances, and its standard error.
    """
    train = _thinned(train)
    nearest = NearestNeighbors(n_neighbors=min(NEIGHBOURS, train.shape[0]), algorithm="brute").fit(train)
    of_pool, of_held_out = (_log_distance(nearest, _thinned(part)) for part in (pool, held_out))
    error = math.sqrt(of_pool.var() / len(of_pool) + of_held_out.var() / len(of_held_out))
    return float(of_pool.mean() - of_held_out.mean()), error


def _thinned(rows: Features) -> Any:
    """Return evenly spaced samples if there are more than ``MAX_DISTANCE_ROWS``; sparse ones without their offset."""
    rows = rows[:: -(-len(rows) // MAX_DISTANCE_ROWS)]
    return rows.factor * rows.matrix if isinstance(rows, SparseRows) else rows


def _log_distance(nearest: NearestNeighbors, rows: Any = None) -> FloatArray:
    """Return the logarithm of the mean distance of each sample to its nearest training samples.

    Without ``rows``, the samples are the training samples, which do not count as neighbours of themselves.
    """
    distance = nearest.kneighbors(rows)[0].mean(axis=1)
    return np.asarray(np.log(np.maximum(distance, MIN_DISTANCE * math.sqrt(nearest.n_features_in_))))


def _try_fold(fold: Fold, candidates: Candidates, pool: Features, setting: Setting, max_iter: int) -> PoolTrial:
    """Fit a fold without and with the pool, and score every round. ``candidates`` are those of all samples."""
    excess = np.nan, np.nan
    if fold.unseen.any():
        standard = fold.rows.standard
        excess = excess_distance(standard.of(pool), standard.of(fold.X[fold.unseen]), fold.rows.features)
    fitted = step_one(fold.rows, setting.params, tol=FOLD_TOL, max_iter=max_iter)
    model = step_two(fold.candidates, fitted, tails=False)
    scores = [fold.accuracy(model, setting.bias, setting.offset)]
    kept = linear_energies(fold.rows.standard.of(fold.X[~fold.unseen]), fitted.solution.weight)
    false_share = _false_share(kept, candidates, fitted) if len(kept) else 0.0

    def score(_: int, found: StepOne) -> None:
        found_model = pool_model(fold.rows, fold.candidates, found, tails=False)
        scores.append(fold.accuracy(found_model, setting.bias, setting.offset))

    fit_with_pool(
        fold.rows, fold.candidates, fitted, pool, setting.params, tol=FOLD_TOL, max_iter=max_iter, watch=score
    )
    scores += [scores[-1]] * (MAX_ROUNDS + 1 - len(scores))  # EM converged
    return PoolTrial(np.stack(scores), false_share, excess)


def _false_share(energies: FloatArray, candidates: Candidates, fitted: StepOne) -> float:
    """Return the estimated total share of unseen groups among samples of seen groups with energies (b, D)."""
    groups = pool_groups(candidates)
    table = GroupTable.of(candidates.space, groups)
    start = np.full(len(groups), 1 / len(groups))
    frequency = pool_frequency(energies, table, group_bias(fitted, table), start)
    return float(frequency[candidates.space.locate(groups, candidates.seen_groups) < 0].sum())


def _by_round(trials: Sequence[PoolTrial]) -> FloatArray:
    """Return the accuracy of each round on each group, mean over the folds that scored it, (rounds + 1, 2, k)."""
    accuracy = np.stack([trial.accuracy for trial in trials])
    known = ~np.isnan(accuracy)
    count = known.sum(axis=0)
    total = np.where(known, accuracy, 0.0).sum(axis=0)
    return np.asarray(np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0))
