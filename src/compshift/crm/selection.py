"""Choice of settings by their scores on held-out combinations.

Each fold holds out some of the seen groups; every setting is fitted to the remaining groups and scored on the held-out
groups. The fold also holds out a part of the samples of every remaining group, to measure the accuracy of the setting
on seen groups.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed

from compshift._errors import InputError
from compshift.core.arrays import BoolArray, FloatArray, IntArray
from compshift.core.candidates import Candidates
from compshift.crm.classifier import CRMClassifier
from compshift.crm.fit import FitParams, Setting, StandardisedRows, step_one, step_two
from compshift.crm.inputs import LabelledSamples
from compshift.crm.model import CRMModel
from compshift.crm.solver import Parameters

FOLD_TOL = 3e-3
"""Tolerance of the fits to folds; a smaller value hardly changes accuracies."""

OFFSETS = np.linspace(-3.0, 3.0, 13)
"""Values of the unseen offset, in nats, at which accuracies on held-out and on seen groups are compared."""

ROW_PARTS = 5
"""Number of parts into which the samples of each group are divided; a fold holds out one part of each remaining
group."""

CLEAR_ERRORS = 2.0
"""Number of standard errors above which a difference between two settings counts as significant."""

OFFSET_SHARE = 0.25
"""Factor by which the equalising offset is multiplied. Folds have fewer groups than the final fit, so held-out groups
look worse than unseen groups will be. On three real data sets (docs/unseen.md), a quarter of the equalising offset
improves the worst group on all three, whereas the full offset does so on only one."""

WORST_QUANTILE = 0.1
"""Quantile of the accuracies on held-out groups that ``scoring="worst"`` maximises."""

Scorer = Callable[..., float]
"""Scorer as in scikit-learn: ``scorer(estimator, X, y)``, where higher is better."""


class SearchSpace(NamedTuple):
    """Settings to choose from. The first anchor, cross_fit and bias are kept unless another is clearly better."""

    alphas: tuple[float, ...]
    anchors: tuple[str, ...] = ("zero",)
    cross_fits: tuple[int, ...] = (0,)
    biases: tuple[str, ...] = ("extrapolated",)
    offset: float | None = 0.0  # unseen offset; None to choose it

    @property
    def first(self) -> Setting:
        """Setting made of the first entry of each tuple."""
        offset = 0.0 if self.offset is None else self.offset
        return Setting(FitParams(self.alphas[0], self.anchors[0], self.cross_fits[0]), self.biases[0], offset)

    @property
    def paths(self) -> list[list[FitParams]]:
        """Parameters of all fits, as one list of increasing alpha per pair of anchor and cross_fit."""
        return [
            [FitParams(alpha, anchor, folds) for alpha in sorted(self.alphas)]
            for anchor in self.anchors
            for folds in self.cross_fits
        ]


class CombinationScores(NamedTuple):
    """Accuracy of each setting on each seen group; NaN if the group, or samples of it, could not be held out."""

    settings: tuple[Setting, ...]
    unseen: FloatArray  # (s, k) accuracy on each group when it is held out
    seen: FloatArray  # (s, k) accuracy on held-out samples while their group stays in training, mean over folds
    fold: IntArray  # (k,) fold that holds out each group; −1 if none does
    offset_accuracies: FloatArray  # (s, offsets, 2) means of unseen and seen at each of OFFSETS, under prior "hull"
    by_scorer: FloatArray | None = None  # (s, folds) score by a scorer on the held-out groups of each fold

    def joined(self, other: CombinationScores) -> CombinationScores:
        """Return these scores followed by the scores of further settings on the same folds."""
        unseen, seen, offset_accuracies = (
            np.concatenate(pair)
            for pair in (
                (self.unseen, other.unseen),
                (self.seen, other.seen),
                (self.offset_accuracies, other.offset_accuracies),
            )
        )
        by_scorer = None
        if self.by_scorer is not None and other.by_scorer is not None:
            by_scorer = np.concatenate([self.by_scorer, other.by_scorer])
        return CombinationScores(self.settings + other.settings, unseen, seen, self.fold, offset_accuracies, by_scorer)

    @property
    def test_scores(self) -> FloatArray:
        """Accuracy on each held-out group (s, h), or score by the scorer on each fold (s, folds), of each setting."""
        return self.unseen[:, self.fold >= 0] if self.by_scorer is None else self.by_scorer


class Choice(NamedTuple):
    """The chosen setting, and the scores of all settings."""

    setting: Setting
    scores: CombinationScores
    setting_score: FloatArray  # (s,) score by which alpha is chosen, see ``setting_scores``


def choose(
    data: LabelledSamples,
    space: SearchSpace,
    fold: IntArray,
    prior: Any,
    scoring: str | Scorer,
    *,
    max_iter: int,
    seed: int,
    n_jobs: int | None,
) -> Choice:
    """Choose the best alpha for each kind of setting, then a kind: the first, unless others are clearly better.

    A kind is a combination of anchor, cross_fit and bias. The first anchor and cross_fit are tried with every alpha;
    the others only with alphas around the best of these. ``fold`` (k,) is the fold of each seen group, −1 for groups
    that are never held out.
    """

    def score(path: Sequence[FitParams]) -> CombinationScores:
        scorer = None if isinstance(scoring, str) else scoring
        return combination_scores(
            data, fold, path, space.biases, prior, max_iter=max_iter, seed=seed, n_jobs=n_jobs, scorer=scorer
        )

    plain, *others = space.paths
    first = scores = score(plain)
    for path in others:
        scores = scores.joined(_search_alphas(score, path, first, scoring))
    setting_score = setting_scores(scores, scoring)
    best: dict[tuple[Any, ...], int] = {}
    for index, (params, bias, _) in enumerate(scores.settings):
        kind = (params.anchor, params.cross_fit, bias)
        if kind not in best or setting_score[index] > setting_score[best[kind]]:
            best[kind] = index
    standard, *alternatives = best.values()
    chosen = standard
    for other in alternatives:
        if _clearly_better(scores, other, standard) and setting_score[other] > setting_score[chosen]:
            chosen = other
    offset = (
        OFFSET_SHARE * equalising_offset(scores.offset_accuracies[chosen]) if space.offset is None else space.offset
    )
    return Choice(scores.settings[chosen]._replace(offset=offset), scores, setting_score)


def setting_scores(scores: CombinationScores, scoring: str | Scorer = "accuracy") -> FloatArray:
    """Return one score per setting, (s,): the mean of its test scores, or their ``WORST_QUANTILE`` for ``"worst"``."""
    found = scores.test_scores
    if isinstance(scoring, str) and scoring == "worst":
        return np.asarray(np.quantile(found, WORST_QUANTILE, axis=1))
    return np.asarray(found.mean(axis=1))


def balanced_scores(scores: CombinationScores) -> FloatArray:
    """Return the lower of two mean accuracies of each setting, (s,): on held-out groups and on samples of seen groups.

    If one of the two is NaN for all groups, the other one is returned.
    """
    parts = [part for part in (scores.unseen, scores.seen) if not np.isnan(part).all()]
    return np.asarray(np.min([np.nanmean(part, axis=1) for part in parts], axis=0))


def _search_alphas(
    score: Callable[[Sequence[FitParams]], CombinationScores],
    path: list[FitParams],
    first: CombinationScores,
    scoring: str | Scorer,
) -> CombinationScores:
    """Score the settings of ``path``, another pair of anchor and cross_fit, around the best alpha of the first pair.

    The range of alphas is extended while the best alpha lies at its end. The search stops at once if, for every bias,
    accuracy on held-out groups is clearly lower than with the first pair.
    """
    alphas = [params.alpha for params in path]
    plain = [number for number, setting in enumerate(first.settings) if setting.bias == first.settings[0].bias]
    setting_score = setting_scores(first, scoring)
    standard = first.settings[max(plain, key=lambda number: setting_score[number])].params.alpha
    low = alphas.index(standard)
    high = low + 1
    scores = score(path[low:high])
    before = {
        setting.bias: row
        for setting, row in zip(first.settings, first.unseen, strict=True)
        if setting.params.alpha == standard
    }
    if all(_far_behind(row, before[setting.bias]) for setting, row in zip(scores.settings, scores.unseen, strict=True)):
        return scores
    lowest, highest = max(low - 1, 0), min(high + 1, len(path))
    while (lowest, highest) != (low, high):
        scores = scores.joined(score(path[lowest:low] + path[high:highest]))
        low, high = lowest, highest
        best = alphas.index(scores.settings[int(np.argmax(setting_scores(scores, scoring)))].params.alpha)
        lowest = max(low - 1, 0) if best == low else low
        highest = min(high + 1, len(path)) if best == high - 1 else high
    return scores


def _far_behind(one: FloatArray, other: FloatArray) -> bool:
    """Return whether accuracies ``one`` (k,) on groups are clearly lower than ``other`` (k,)."""
    mean, error = _mean_and_error(one - other)
    return mean < -CLEAR_ERRORS * error


def _clearly_better(scores: CombinationScores, one: int, other: int) -> bool:
    """Return whether setting ``one`` is clearly better on held-out or on seen groups, and not worse on either.

    A bias that favours unseen groups is better on them and worse on seen groups: it acts like another prior and is not
    a better model.
    """
    gains = []
    for accuracy in (scores.unseen, scores.seen):
        mean, error = _mean_and_error(accuracy[one] - accuracy[other])
        if mean < 0:
            return False
        gains.append(mean > CLEAR_ERRORS * error)
    return any(gains)


def _mean_and_error(difference: FloatArray) -> tuple[float, float]:
    """Return the mean and standard error of the entries that are not NaN; the error of fewer than two is infinite."""
    known: BoolArray = ~np.isnan(difference)
    n = int(known.sum())
    if n < 2:
        return float(difference[known].sum()), math.inf
    return float(difference[known].mean()), float(difference[known].std(ddof=1) / math.sqrt(n))


def equalising_offset(offset_accuracies: FloatArray) -> float:
    """Return the offset of unseen groups, smallest in absolute value, that equalises held-out and seen accuracy.

    ``offset_accuracies`` (offsets, 2) are the two mean accuracies at each of OFFSETS. The result is 0 if an accuracy is
    NaN, and the first or last of OFFSETS if no offset within the range is sufficient.
    """
    ahead = offset_accuracies[:, 0] - offset_accuracies[:, 1]  # increases with the offset
    middle = len(OFFSETS) // 2
    if np.isnan(ahead).any() or ahead[middle] == 0:
        return 0.0
    sign = 1.0 if ahead[middle] < 0 else -1.0
    behind, sizes = (-ahead[middle:], OFFSETS[middle:]) if sign > 0 else (ahead[middle::-1], -OFFSETS[middle::-1])
    if behind.min() > 0:
        return sign * float(sizes[-1])
    end = int(np.argmax(behind <= 0))
    return sign * float(np.interp(0.0, behind[[end, end - 1]], sizes[[end, end - 1]]))


def combination_scores(
    data: LabelledSamples,
    fold: IntArray,
    path: Sequence[FitParams],
    biases: Sequence[str],
    prior: Any,
    *,
    max_iter: int,
    seed: int,
    n_jobs: int | None = None,
    scorer: Scorer | None = None,
) -> CombinationScores:
    """Fit the elements of ``path``, which differ only in alpha, on every fold, and score them with each of ``biases``.

    ``fold`` (k,) is the fold that holds out each seen group, −1 for none.
    """
    descending = sorted(path, key=lambda params: -params.alpha)
    part = row_parts(data.position, seed)
    if isinstance(prior, str) and prior == "train":  # "train" gives held-out groups probability 0
        prior = "hull"
    n_folds = max(int(fold.max()) + 1, 1)  # if no group can be held out, samples still can
    found = Parallel(n_jobs=n_jobs)(
        delayed(_score_fold)(
            Fold(data, fold == number, part == number % ROW_PARTS, prior), descending, biases, max_iter, scorer
        )
        for number in range(n_folds)
    )
    settings = tuple(Setting(params, bias) for params in path for bias in biases)
    fitted = [Setting(params, bias) for params in descending for bias in biases]
    order = [fitted.index(setting) for setting in settings]
    accuracies = np.stack([scores for scores, _, _ in found])[:, order]  # (folds, s, 2, k)
    offset_accuracies = np.stack([scores for _, scores, _ in found])[:, order]  # (folds, s, offsets, 2, k)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # means of all-NaN slices, for example groups of one sample
        by_group = np.nanmean(accuracies, axis=0)  # (s, 2, k)
        by_offset = np.nanmean(np.nanmean(offset_accuracies, axis=0), axis=-1)
    by_scorer = None if scorer is None else np.array([scores for _, _, scores in found])[:, order].T  # (s, folds)
    return CombinationScores(settings, by_group[:, 0], by_group[:, 1], fold, by_offset, by_scorer)


def row_parts(position: IntArray, seed: int) -> IntArray:
    """Return the number of the part that each sample belongs to, (n,), from 0 to ``ROW_PARTS`` − 1.

    The samples of every group are divided among ``ROW_PARTS`` parts, except for one random sample per group, which is
    in no part (−1), so that it is always available for training.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(position))
    order = order[np.argsort(position[order], kind="stable")]
    starts = np.flatnonzero(np.r_[True, np.diff(position[order]) > 0])
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
    part = np.empty(len(position), dtype=np.int64)
    part[order] = np.where(rank == 0, -1, (rank + position[order]) % ROW_PARTS)
    return part


class Fold:
    """One fold: its training samples, and its held-out samples.

    Held out are all samples of ``held_groups``, and those samples of the other groups that are ``in_part``.
    """

    def __init__(self, data: LabelledSamples, held_groups: BoolArray, in_part: BoolArray, prior: Any) -> None:
        held = held_groups[data.position]
        train = ~held & ~in_part
        self.groups, self.n_targets, self.prior = data.candidates.seen_groups, data.n_targets, prior
        kept, position = np.unique(data.position[train], return_inverse=True)
        position, weight = position.reshape(-1), data.sample_weight[train]
        kept_weight = np.bincount(position, weights=weight).astype(np.float64)
        self.candidates = Candidates.of(data.candidates.space, self.groups[kept], kept_weight, data.candidates.groups)
        self.rows = StandardisedRows.of(data.X[train], position, weight, self.candidates)
        self.log_prior = self.candidates.log_prior(prior)
        self.unseen_candidates = self.candidates.in_seen < 0  # (g,) without training samples
        self.X, self.weight = data.X[~train], data.sample_weight[~train]
        self.position, self.unseen = data.position[~train], held[~train]

    def accuracy(self, model: CRMModel, bias: str, offset: float = 0.0) -> FloatArray:
        """Return accuracies (2, k) on held-out groups and on held-out samples of other groups; NaN without samples."""
        log_score = self.log_prior + offset * self.unseen_candidates - model.bias_of(bias)
        return self._accuracy(model.log_sums(self.X, log_score, range(self.n_targets)))

    def offset_accuracies(self, model: CRMModel, bias: str) -> FloatArray:
        """Return ``accuracy`` (offsets, 2, k) at each offset of unseen groups in OFFSETS, for the prior ``"hull"``."""
        log_score = self.candidates.log_prior("hull") - model.bias_of(bias)
        of_seen, of_unseen = (
            model.log_sums(self.X, np.where(mask, log_score, -np.inf), range(self.n_targets))
            for mask in (~self.unseen_candidates, self.unseen_candidates)
        )
        sums = []
        for one, other in zip(of_seen, of_unseen, strict=True):
            largest = np.maximum(one.max(axis=1), other.max(axis=1))[:, None]
            sums.append((np.exp(one - largest), np.exp(other - largest)))
        return np.stack([self._accuracy([one + factor * other for one, other in sums]) for factor in np.exp(OFFSETS)])

    def score(self, model: CRMModel, bias: str, scorer: Scorer) -> float:
        """Return the score by a scikit-learn scorer on the held-out groups."""
        clf = CRMClassifier._from_model(model, prior=self.prior, n_targets=self.n_targets).set_params(bias=bias)
        y = clf.targets_.decode(self.groups[self.position[self.unseen], : self.n_targets])
        weight = self.weight[self.unseen]
        weighted = {} if (weight == weight[0]).all() else {"sample_weight": weight}
        try:
            found = scorer(clf, self.X[self.unseen], y[:, 0] if self.n_targets == 1 else y, **weighted)
        except (ValueError, TypeError) as error:
            raise InputError(
                f"scoring failed on a fold of held-out groups ({error}): pass a scorer that accepts (estimator, X, y), "
                "works if only some classes are present, and accepts sample_weight if samples are weighted"
            ) from error
        if np.ndim(found) or not isinstance(found, int | float | np.number) or not np.isfinite(found):
            raise InputError(
                f"scoring returned {found!r} on a fold of held-out groups: pass a scorer that returns a finite number"
            )
        return float(found)

    def _accuracy(self, scores: list[FloatArray]) -> FloatArray:
        """Return the accuracy (2, k) of predicting, for each target, the class with the highest score (n, d)."""
        predicted = np.stack([np.argmax(part, axis=1) for part in scores], axis=1)
        right = (predicted == self.groups[self.position, : self.n_targets]).all(axis=1)
        return np.stack(
            [
                _group_accuracy(right[mask], self.weight[mask], self.position[mask], len(self.groups))
                for mask in (self.unseen, ~self.unseen)
            ]
        )


def _score_fold(
    fold: Fold, path: Sequence[FitParams], biases: Sequence[str], max_iter: int, scorer: Scorer | None
) -> tuple[FloatArray, FloatArray, list[float]]:
    """Fit each element of the path to a fold, and score it with each bias.

    Return the accuracies (s, 2, k), the accuracies at each offset (s, offsets, 2, k), and the scores by the scorer
    (s,), which are empty without a scorer.
    """
    scores, offset_accuracies, by_scorer = [], [], []
    ends: list[tuple[FitParams, Parameters]] = []
    for params in path:
        fitted = step_one(fold.rows, params, tol=FOLD_TOL, max_iter=max_iter, start=_extrapolated_start(ends, params))
        ends.append((params, fitted.solution.start))
        model = step_two(fold.candidates, fitted, tails=False)
        scores += [fold.accuracy(model, bias) for bias in biases]
        offset_accuracies += [fold.offset_accuracies(model, bias) for bias in biases]
        by_scorer += [] if scorer is None else [fold.score(model, bias, scorer) for bias in biases]
    return np.stack(scores), np.stack(offset_accuracies), by_scorer


def _extrapolated_start(ends: Sequence[tuple[FitParams, Parameters]], params: FitParams) -> Parameters | None:
    """Return a warm start extrapolated linearly in log alpha from the last two fits of a path; None before any fit.

    A fit to all samples is never used as a warm start: it depends on the held-out groups, and a search that stops early
    would still depend on them.
    """
    if not ends:
        return None
    (last, last_fit), (before, fit_before) = ends[-1], ends[max(len(ends) - 2, 0)]
    if min(params.alpha, last.alpha) == 0 or before.alpha == last.alpha:
        return last_fit
    step = math.log(params.alpha / last.alpha) / math.log(last.alpha / before.alpha)
    return Parameters(*(one + step * (one - other) for one, other in zip(last_fit, fit_before, strict=True)))


def _group_accuracy(right: BoolArray, weight: FloatArray, group: IntArray, n_groups: int) -> FloatArray:
    """Return the weighted share of correct samples in each group, (k,); NaN for a group without samples."""
    total = np.bincount(group, weights=weight, minlength=n_groups)
    share = np.bincount(group, weights=weight * right, minlength=n_groups)
    return np.asarray(np.divide(share, total, out=np.full(n_groups, np.nan), where=total > 0))
