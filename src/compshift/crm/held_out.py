"""Scores of settings on held-out groups, and on held-out samples of the other groups.

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
from sklearn.utils.parallel import delayed

from compshift._errors import InputError
from compshift._progress import in_parallel
from compshift.core.arrays import BoolArray, FloatArray, IntArray
from compshift.core.candidates import Candidates
from compshift.core.folds import ranks_in_group
from compshift.crm.classifier import CRMClassifier
from compshift.crm.fit import FitParams, Setting, StandardisedRows, step_one, step_two
from compshift.crm.inputs import LabelledSamples
from compshift.crm.model import CRMModel
from compshift.crm.solver import CurvaturePairs, Parameters

FOLD_TOL = 3e-3
"""Tolerance of the fits to folds; a smaller value hardly changes accuracies."""

OFFSETS = np.linspace(-3.0, 3.0, 13)
"""Values of the unseen offset, in nats, at which accuracies on held-out and on seen groups are compared."""

ROW_PARTS = 5
"""Number of parts into which the samples of each group are divided; a fold holds out one part of each remaining
group."""

Scorer = Callable[..., float]
"""Scorer as in scikit-learn: ``scorer(estimator, X, y)``, where higher is better."""


class CombinationScores(NamedTuple):
    """Accuracy of each setting on each seen group; NaN if the group, or samples of it, could not be held out."""

    settings: tuple[Setting, ...]
    unseen: FloatArray  # (s, k) accuracy on each group when it is held out
    seen: FloatArray  # (s, k) accuracy on held-out samples while their group stays in training, mean over folds
    fold: IntArray  # (k,) fold that holds out each group; −1 if none does
    by_scorer: FloatArray | None = None  # (s, folds) score by a scorer on the held-out groups of each fold
    lone: BoolArray | None = None  # (k,) whether no group of the same class can be held out

    def joined(self, other: CombinationScores) -> CombinationScores:
        """Return these scores followed by the scores of further settings on the same folds."""
        unseen, seen = (np.concatenate(pair) for pair in ((self.unseen, other.unseen), (self.seen, other.seen)))
        by_scorer = None
        if self.by_scorer is not None and other.by_scorer is not None:
            by_scorer = np.concatenate([self.by_scorer, other.by_scorer])
        return CombinationScores(self.settings + other.settings, unseen, seen, self.fold, by_scorer, self.lone)

    @property
    def test_scores(self) -> FloatArray:
        """Scores of each setting: accuracy on each held-out group (s, h), or score by the scorer on each fold.

        If no group of a class can be held out, the accuracy on held-out samples of its groups is used instead, so that
        the class is not ignored.
        """
        if self.by_scorer is not None:
            return self.by_scorer
        known = self.fold >= 0
        if not known.any():
            known = np.ones(len(self.fold), dtype=np.bool_)
        elif self.lone is not None:
            known = known | self.lone
        accuracy = np.where(self.fold >= 0, self.unseen, self.seen)[:, known]
        return accuracy[:, ~np.isnan(accuracy).any(axis=0)]

    @property
    def alphas(self) -> FloatArray:
        """Alpha of each setting, (s,)."""
        return np.array([setting.params.alpha for setting in self.settings])

    @property
    def kinds(self) -> dict[tuple[Any, ...], IntArray]:
        """Positions of the settings of each kind, which differ only in alpha."""
        kinds = [(setting.params._replace(alpha=0.0), setting.bias) for setting in self.settings]
        return {kind: np.flatnonzero([kind == other for other in kinds]) for kind in dict.fromkeys(kinds)}

    def by_alpha(self) -> CombinationScores:
        """Return the scores with the settings in the order of alpha."""
        order = np.argsort(self.alphas, kind="stable")
        by_scorer = None if self.by_scorer is None else self.by_scorer[order]
        return CombinationScores(
            tuple(self.settings[index] for index in order),
            self.unseen[order],
            self.seen[order],
            self.fold,
            by_scorer,
            self.lone,
        )


def combination_scores(
    folds: Folds,
    path: Sequence[FitParams],
    biases: Sequence[str],
    *,
    max_iter: int,
    n_jobs: int | None = None,
    scorer: Scorer | None = None,
) -> CombinationScores:
    """Fit the elements of ``path``, which differ only in alpha, on every fold, and score them with each of ``biases``.

    The folds keep the fits: they are the warm starts of further fits, and offsets are chosen by them.
    """
    descending = sorted(path, key=lambda params: -params.alpha)
    calls = [delayed(_score_fold)(fold, descending, biases, max_iter, scorer) for fold in folds.parts]
    found = in_parallel("settings on held-out groups", calls, n_jobs)
    for fold, (_, _, fits, pairs) in zip(folds.parts, found, strict=True):
        fold.fits, fold.pairs = fits, pairs
    settings = tuple(Setting(params, bias) for params in path for bias in biases)
    fitted = [Setting(params, bias) for params in descending for bias in biases]
    order = [fitted.index(setting) for setting in settings]
    by_group = _mean_over_folds([scores for scores, *_ in found])[order]  # (s, 2, k)
    by_scorer = None if scorer is None else np.array([scores for _, scores, *_ in found])[:, order].T  # (s, folds)
    return CombinationScores(settings, by_group[:, 0], by_group[:, 1], folds.number, by_scorer, folds.lone)


def _mean_over_folds(accuracies: Sequence[FloatArray]) -> FloatArray:
    """Return the mean of the accuracies of each fold, (..., k), over those that are not NaN."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # means of all-NaN slices, for example groups of one sample
        return np.asarray(np.nanmean(np.stack(accuracies), axis=0))


def _lone_classes(data: LabelledSamples, fold: IntArray) -> BoolArray:
    """Return whether the class of each seen group, or one of its classes, has no group that is held out, (k,)."""
    classes = data.candidates.seen_groups[:, : data.n_targets]
    held = [np.isin(column, column[fold >= 0]) for column in classes.T]
    return np.asarray(~np.all(held, axis=0))


def row_parts(position: IntArray, seed: int) -> IntArray:
    """Return the number of the part that each sample belongs to, (n,), from 0 to ``ROW_PARTS`` − 1.

    The samples of every group are divided among ``ROW_PARTS`` parts, except for one random sample per group, which is
    in no part (−1), so that it is always available for training.
    """
    rank = ranks_in_group(position, np.random.default_rng(seed))
    return np.where(rank == 0, -1, (rank + position) % ROW_PARTS)


class FoldFit(NamedTuple):
    """A fit to the training samples of a fold: a warm start for other fits, and a model."""

    start: Parameters
    model: CRMModel


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
        self.fits: dict[FitParams, FoldFit] = {}
        self.pairs = CurvaturePairs()

    def accuracy(self, model: CRMModel, bias: str, offset: float = 0.0) -> FloatArray:
        """Return accuracies (2, k) on held-out groups and on held-out samples of other groups; NaN without samples."""
        return self.accuracies(model, [bias], offset)[0]

    def accuracies(self, model: CRMModel, biases: Sequence[str], offset: float = 0.0) -> list[FloatArray]:
        """Return the ``accuracy`` with each kind of bias."""
        log_prior = self.log_prior + offset * self.unseen_candidates
        log_scores = [log_prior - model.bias_of(bias) for bias in biases]
        return [self._accuracy(sums) for sums in model.log_sums_of_scores(self.X, log_scores, range(self.n_targets))]

    def offset_accuracies(self, model: CRMModel, bias: str) -> FloatArray:
        """Return ``accuracy`` (offsets, 2, k) at each offset of unseen groups in OFFSETS, for the prior ``"hull"``."""
        log_score = self.candidates.log_prior("hull") - model.bias_of(bias)
        masks = ~self.unseen_candidates, self.unseen_candidates
        parts = [np.where(mask, log_score, -np.inf) for mask in masks]
        of_seen, of_unseen = model.log_sums_of_scores(self.X, parts, range(self.n_targets))
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


class Folds(NamedTuple):
    """All folds of some samples."""

    number: IntArray  # (k,) fold that holds out each seen group, −1 for none
    parts: list[Fold]
    lone: BoolArray  # (k,) whether no group of the same class can be held out

    @classmethod
    def of(cls, data: LabelledSamples, number: IntArray, prior: Any, seed: int) -> Folds:
        """Divide samples into the folds that ``number`` (k,) says; they are scored under ``prior``."""
        if isinstance(prior, str) and prior == "train":  # "train" gives held-out groups probability 0
            prior = "hull"
        part = row_parts(data.position, seed)
        n_folds = max(int(number.max()) + 1, 1)  # if no group can be held out, samples still can
        parts = [Fold(data, number == fold, part == fold % ROW_PARTS, prior) for fold in range(n_folds)]
        return cls(number, parts, _lone_classes(data, number))

    def offset_accuracies(self, setting: Setting) -> FloatArray:
        """Return the mean accuracies on held-out and on seen groups at each of OFFSETS, (offsets, 2), of a setting.

        The prior is ``"hull"``.
        """
        found = [fold.offset_accuracies(fold.fits[setting.params].model, setting.bias) for fold in self.parts]
        return _mean_over_folds([*np.moveaxis(_mean_over_folds(found), -1, 0)])  # over folds, then over groups


def _score_fold(
    fold: Fold, path: Sequence[FitParams], biases: Sequence[str], max_iter: int, scorer: Scorer | None
) -> tuple[FloatArray, list[float], dict[FitParams, FoldFit], CurvaturePairs]:
    """Fit each element of the path to a fold, and score it with each bias.

    Return the accuracies (s, 2, k), the scores by the scorer (s,), which are empty without a scorer, and all fits to
    the fold with their curvature.
    """
    scores, by_scorer, fits, pairs = [], [], dict(fold.fits), fold.pairs
    for params in path:
        start = extrapolated_start(_nearest(fits, params), params)
        fitted = step_one(fold.rows, params, tol=FOLD_TOL, max_iter=max_iter, start=start, pairs=pairs)
        model = step_two(fold.candidates, fitted, tails=False)
        fits[params] = FoldFit(fitted.solution.start, model)
        scores += fold.accuracies(model, biases)
        by_scorer += [] if scorer is None else [fold.score(model, bias, scorer) for bias in biases]
    return np.stack(scores), by_scorer, fits, pairs


def _nearest(fits: dict[FitParams, FoldFit], params: FitParams) -> list[tuple[FitParams, Parameters]]:
    """Return the fits that differ only in alpha, those of the most similar alphas last."""
    alike = [other for other in fits if other._replace(alpha=params.alpha) == params]
    alike.sort(key=lambda other: -abs(math.log(max(other.alpha, 1e-300) / max(params.alpha, 1e-300))))
    return [(other, fits[other].start) for other in alike]


def extrapolated_start(ends: Sequence[tuple[FitParams, Parameters]], params: FitParams) -> Parameters | None:
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
