"""Energies for tables of numbers and categories: boosted trees or linear functions, with biases from held-out samples.

Trees fit their training samples closely, so the energies of these samples say little about others. Each fold therefore
holds out some groups that lie inside the affine hull of the others, and a part of the samples of every other group. The
accuracy on held-out groups and samples decides the setting: the number of rounds of boosting, and the ridge of linear
energies. If both kinds of energies are used, each is multiplied by a factor, and they are added. The factors, a
temperature, B and B* are fitted to the energies of the held-out samples.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from compshift._progress import steps
from compshift.core.accuracy import importance_accuracy
from compshift.core.affine import extrapolation_leverage
from compshift.core.arrays import BoolArray, FloatArray, IntArray
from compshift.core.candidates import Candidates
from compshift.core.energy import GroupTable, linear_energies, log_evidence
from compshift.core.folds import combination_folds, row_folds
from compshift.core.posterior import marginal_log_posterior
from compshift.crm.blocks import ArrayRows
from compshift.crm.boosted_energies import BoostingParams, TreeRows, grow, value_basis
from compshift.crm.expected import MAX_UNSEEN_GROUPS, HeldOut, predict_accuracy
from compshift.crm.fit import CROSS_FIT_TOL, FitParams, StandardisedRows, StepOne, step_two
from compshift.crm.inputs import LabelledSamples
from compshift.crm.linear_columns import LinearColumns, TreesAndColumns
from compshift.crm.model import CRMModel, OutOfFold
from compshift.crm.problem import Standard, TemperatureProblem, standardise
from compshift.crm.ridge import default_alphas, typical_alpha
from compshift.crm.solver import Parameters, solve
from compshift.crm.trees import Trees, leaf_sums

logger = logging.getLogger(__name__)

ENERGIES = ("boosted", "linear", "auto")
"""Kinds of energies; "auto" is a weighted sum of the other two."""

FIRST_CHECKPOINT = 10
"""Smallest number of rounds that is tried, unless ``max_iter`` is smaller."""

CHECKPOINT_RATIO = 1.5
"""Ratio of successive numbers of rounds that are tried."""

FINAL_TOL = 1e-6
"""Tolerance of the final fits; those within folds use ``CROSS_FIT_TOL``."""

MAX_STEPS = 1000
"""Maximum number of iterations of the fits of linear energies, temperatures and biases."""


class EnergySetting(NamedTuple):
    """Kind of energies, and the parameter of their fit: the number of rounds or the ridge."""

    energies: str  # "boosted", "linear" or "both"
    n_iter: int = 0  # rounds of boosting
    alpha: float = np.nan  # ridge of linear energies

    def __str__(self) -> str:
        rounds, linear = f"{self.n_iter} rounds of boosting", f"linear, alpha {self.alpha:g}"
        return {"boosted": rounds, "linear": linear, "both": f"{rounds}, plus {linear}"}[self.energies]


class FittedEnergies(NamedTuple):
    """Energies fitted to all training samples: linear functions of standardised features, which ``basis`` computes."""

    basis: Trees | LinearColumns | TreesAndColumns
    weight: FloatArray  # (D, q)
    standard: Standard  # of the q features
    energies: FloatArray  # (n, D) of the training samples
    n_iter: int


class TableFit(NamedTuple):
    """A fitted model, and how its setting was chosen."""

    model: CRMModel
    settings: tuple[EnergySetting, ...]  # (s,) the settings that were tried
    unseen: FloatArray  # (s, k) accuracy on each seen group when it is held out; NaN if it cannot be
    seen: FloatArray  # (s, k) accuracy on held-out samples of each group while it stays in training
    best: int  # index of the setting that is used


class EnergyFits(Protocol):
    """Fits of one kind of energies to the same samples, with several settings."""

    settings: tuple[EnergySetting, ...]

    def held_out(self, held: BoolArray) -> FloatArray:
        """Return the energies (s, h, D) of the samples ``held`` (n,) by fits to the others, one for each setting."""
        ...

    def fit(self, setting: EnergySetting) -> FittedEnergies:
        """Fit to all samples."""
        ...


class BoostedFits:
    """Fits of boosted trees, with several numbers of rounds."""

    def __init__(self, rows: TreeRows, params: BoostingParams, rounds: IntArray) -> None:
        self.rows, self.params = rows, params
        self.settings = tuple(EnergySetting("boosted", n_iter=int(number)) for number in rounds)
        self.basis = value_basis(rows.seen.space)

    def held_out(self, held: BoolArray) -> FloatArray:
        """Return the energies (s, h, D) of the samples ``held`` (n,) by trees that have not seen them."""
        booster, scale = grow(self.rows.subset(~held)[0], self.params, self.settings[-1].n_iter)
        X, before = self.rows.X[held], 0
        scores = np.zeros((len(self.settings), len(X), self.basis.shape[1]))
        for number, (_, rounds, _) in enumerate(self.settings if booster is not None else ()):
            scores[number:] += leaf_sums(booster, X, scale, before, rounds)
            before = rounds
        return scores @ self.basis.T

    def fit(self, setting: EnergySetting) -> FittedEnergies:
        """Fit to all samples."""
        booster, scale = grow(self.rows, self.params, setting.n_iter)
        if booster is None:
            trees = Trees.without_splits(len(scale), self.basis.shape[1], setting.n_iter)
        else:
            trees = Trees.of(booster, scale)
        standard = Standard(np.zeros(self.basis.shape[1]), 1.0)
        return FittedEnergies(trees, self.basis, standard, trees.scores(self.rows.X) @ self.basis.T, trees.n_rounds)


class LinearFits:
    """Fits of linear energies, with several ridges."""

    def __init__(self, rows: TreeRows) -> None:
        self.columns = LinearColumns.of(rows.X, rows.categorical)
        features, standard = standardise(self.columns.scores(rows.X), rows.weight)
        self.rows = StandardisedRows(features, standard, rows.position, rows.weight, rows.seen)
        alphas = default_alphas(typical_alpha(features.shape[1], rows.weight))[::-2]  # the strongest first
        self.settings = tuple(EnergySetting("linear", alpha=alpha) for alpha in alphas)

    def held_out(self, held: BoolArray) -> FloatArray:
        """Return the energies (s, h, D) of the samples ``held`` (n,) by fits to the others."""
        others, _ = self.rows.subset(np.flatnonzero(~held))
        start: Parameters | None = None
        energies = []
        for setting in self.settings:
            problem = others.problem(FitParams(setting.alpha))
            found = solve(problem, tol=CROSS_FIT_TOL, max_iter=MAX_STEPS, start=start or problem.anchor)
            start = found.start
            energies.append(linear_energies(self.rows.features[held], found.weight))
        return np.stack(energies)

    def fit(self, setting: EnergySetting) -> FittedEnergies:
        """Fit to all samples."""
        problem = self.rows.problem(FitParams(setting.alpha))
        found = solve(problem, tol=FINAL_TOL, max_iter=MAX_STEPS, start=problem.anchor)
        energies = linear_energies(self.rows.features, found.weight)
        return FittedEnergies(self.columns, found.weight, self.rows.standard, energies, found.n_iter)


class _Trial(NamedTuple):
    """One fold: energies of its held-out samples with each setting, and what was held out."""

    energies: FloatArray  # (s, h, D)
    rows: IntArray  # (h,) indices of the held-out samples
    in_group: BoolArray  # (h,) whether the whole group of the sample is held out
    kept: IntArray  # indices of the seen groups that stay in training


def fit_table(
    data: LabelledSamples,
    categorical: tuple[int, ...],
    energies: str,
    params: BoostingParams,
    *,
    max_rounds: int,
    early_stopping: bool,
    n_folds: int,
    prior: Any,
    confidence: float,
) -> TableFit:
    """Fit energies, choose their setting if there are several, and compute the bias of every candidate."""
    candidates = data.candidates
    seen = GroupTable.of(candidates.space, candidates.seen_groups)
    rows = TreeRows(data.X, data.position, data.sample_weight / data.sample_weight.sum(), seen, categorical)
    fits: list[EnergyFits] = []
    if energies != "linear":
        fits.append(BoostedFits(rows, params, _checkpoints(max_rounds) if early_stopping else np.array([max_rounds])))
    if energies != "boosted":
        fits.append(LinearFits(rows))
    settings = tuple(setting for family in fits for setting in family.settings)
    random = np.random.default_rng(params.seed)
    part = row_folds(rows.position, n_folds, random)
    group_fold = combination_folds(candidates.space, candidates.seen_groups, n_folds, random)
    if len(settings) == 1:  # nothing is chosen
        group_fold = np.full_like(group_fold, -1)
    trials = []
    with steps("folds", n_folds) as advance:
        for fold in range(n_folds):
            logger.info("fold %d of %d", fold + 1, n_folds)
            trial = _try_fold(rows, fits, (group_fold == fold)[rows.position], part == fold)
            if trial is not None:
                trials.append(trial)
            advance()
    held_out = _hold_out(data, trials, len(settings), prior)
    score, first, chosen = mean_accuracies(held_out, candidates), 0, []
    for family in fits:
        chosen.append(first + int(np.argmax(score[first : first + len(family.settings)])))  # ties: the earlier setting
        first += len(family.settings)
    best, parts = chosen[0], [family.fit(settings[index]) for family, index in zip(fits, chosen, strict=True)]
    if len(parts) > 1:
        best, (boosted, linear) = len(settings), (settings[index] for index in chosen)
        settings = (*settings, EnergySetting("both", boosted.n_iter, linear.alpha))
        held_out += _hold_out(data, [_mixed(data, trial, chosen) for trial in trials], 1, prior)
    logger.info("%s", settings[best])
    model = _calibrated_model(parts, rows, trials, chosen, candidates)
    model = _with_expected(model, rows.frequency, held_out[best], prior, confidence, data.n_targets)
    unseen, within = (np.stack(values) for values in zip(*((one.accuracy, one.seen) for one in held_out), strict=True))
    return TableFit(model, settings, unseen, within, best)


def _checkpoints(max_rounds: int) -> IntArray:
    """Return the numbers of rounds that are tried."""
    steps = int(np.log(max(max_rounds / FIRST_CHECKPOINT, 1)) / np.log(CHECKPOINT_RATIO))
    tried = FIRST_CHECKPOINT * CHECKPOINT_RATIO ** np.arange(steps + 1)
    return np.unique(np.minimum(np.append(tried.round().astype(np.int64), max_rounds), max_rounds))


def _try_fold(rows: TreeRows, fits: list[EnergyFits], in_group: BoolArray, in_part: BoolArray) -> _Trial | None:
    """Fit to a fold; return the energies of its held-out samples, or None if no sample can be held out.

    ``in_group`` (n,) marks the samples of held-out groups, ``in_part`` (n,) the part of the samples that is held out
    from every group.
    """
    held = in_group | in_part
    if not held.any() or held.all():
        return None
    energies = np.concatenate([family.held_out(held) for family in fits])
    return _Trial(energies, np.flatnonzero(held), in_group[held], np.unique(rows.position[~held]))


def _calibrated_model(
    parts: list[FittedEnergies], rows: TreeRows, trials: list[_Trial], chosen: list[int], candidates: Candidates
) -> CRMModel:
    """Return the model of fitted energies of one or two kinds, with biases from energies of held-out samples.

    ``chosen`` are the indices of their settings. Energies by fits to other samples of the same group are preferred to
    energies by fits without the group; for a group that no fold held out, energies of training samples are used.
    """
    energies = np.stack([part.energies for part in parts], axis=1)  # (n, r, D), replaced below
    kept = np.zeros(len(rows.position), dtype=np.bool_)
    for in_group in (False, True):
        lacking = np.bincount(rows.position[kept], minlength=len(rows.seen.row)) == 0  # (k,) no sample yet
        for trial in trials:
            used = (trial.in_group == in_group) & lacking[rows.position[trial.rows]]
            energies[trial.rows[used]] = np.moveaxis(trial.energies[chosen][:, used], 0, 1)
            kept[trial.rows[used]] = True
    lacking = np.bincount(rows.position[kept], minlength=len(rows.seen.row)) == 0
    kept |= lacking[rows.position]
    samples = rows.subset(kept)[0]
    factors = mixture(energies[kept], samples, rows.frequency, FINAL_TOL)
    whole = _sum(parts, factors)
    mixed = np.einsum("r,nrd->nd", factors, energies[kept])
    weights = whole.weight, whole.standard
    model = calibrated(mixed, samples, rows.frequency, candidates, FINAL_TOL, weights)
    return replace(model, basis=whole.basis, n_iter=whole.n_iter)


def _sum(parts: list[FittedEnergies], factors: FloatArray) -> FittedEnergies:
    """Return the sum of fitted energies times their factors (r,); kinds whose factor is 0 are left out."""
    if len(parts) == 1 or not factors.all():
        part, factor = parts[int(np.argmax(factors))], float(factors.max())
        return part._replace(weight=factor * part.weight, energies=factor * part.energies)
    boosted, linear = parts
    assert isinstance(boosted.basis, Trees)
    assert isinstance(linear.basis, LinearColumns)
    return FittedEnergies(
        TreesAndColumns(boosted.basis, linear.basis),
        np.concatenate([f * part.weight / part.standard.scale for f, part in zip(factors, parts, strict=True)], axis=1),
        Standard(np.concatenate([part.standard.mean for part in parts]), 1.0),
        np.einsum("r,rnd->nd", factors, np.stack([part.energies for part in parts])),
        boosted.n_iter,
    )


def mixture(energies: FloatArray, rows: TreeRows, frequency: FloatArray, tol: float) -> FloatArray:
    """Return the factors (r,) of r kinds of energies (n, r, D) whose weighted sum has the smallest risk of step 1.

    A kind whose factor would be negative gets 0. A single kind gets 1: ``calibrated`` fits a temperature.
    """
    n_kinds = energies.shape[1]
    if n_kinds == 1:
        return np.ones(1)
    used, factors = np.arange(n_kinds), np.zeros(n_kinds)
    while used.size:
        samples = ArrayRows(energies[:, used].reshape(len(energies), -1), rows.position, _reweighted(rows, frequency))
        problem = TemperatureProblem(samples, rows.seen, frequency, len(used))
        start = Parameters(np.full(problem.shape, 1 / len(used)), np.zeros(len(frequency)))
        factors[:] = 0.0
        factors[used] = solve(problem, tol=tol, max_iter=MAX_STEPS, start=start).weight[:, 0]
        if (factors >= 0).all():
            break
        used = np.flatnonzero(factors > 0)
    return np.maximum(factors, 0.0)


def _mixed(data: LabelledSamples, trial: _Trial, chosen: list[int]) -> _Trial:
    """Return a fold with a single setting, the sum of the ``chosen`` energies times factors fitted within the fold."""
    energies = trial.energies[chosen]  # (r, h, D)
    own, _, rows = _own_rows(data, trial)
    factors = np.ones(len(chosen))
    if own.any():
        factors = mixture(np.moveaxis(energies[:, own], 0, 1), rows, rows.frequency, CROSS_FIT_TOL)
    return trial._replace(energies=np.einsum("r,rhd->hd", factors, energies)[None])


def _own_rows(data: LabelledSamples, trial: _Trial) -> tuple[BoolArray, IntArray, TreeRows]:
    """Return the held-out samples of groups that stay in training: a mask (h,), their groups (k',), and the samples."""
    position = data.position[trial.rows]
    own = ~trial.in_group & np.isin(position, trial.kept)
    present, place = np.unique(position[own], return_inverse=True)
    weight = data.sample_weight[trial.rows][own]
    seen = GroupTable.of(data.candidates.space, data.candidates.seen_groups[present])
    return own, present, TreeRows(np.empty((len(weight), 0)), place.reshape(-1), weight / weight.sum(), seen, ())


def _hold_out(data: LabelledSamples, trials: list[_Trial], n_settings: int, prior: Any) -> list[HeldOut]:
    """Return the accuracies, opinions and leverages of the seen groups in the folds, for each setting."""
    candidates = data.candidates
    groups, k = candidates.seen_groups, len(candidates.seen_groups)
    prior = "hull" if isinstance(prior, str) and prior == "train" else prior  # "train" excludes held-out groups
    right, total = np.zeros((n_settings, 2, k)), np.zeros((2, k))
    opinion, leverage = np.full((n_settings, k), np.nan), np.full(k, np.nan)
    for trial in trials:
        position, weight = data.position[trial.rows], data.sample_weight[trial.rows]
        if not (~trial.in_group & np.isin(position, trial.kept)).any():
            continue
        own, present, rows = _own_rows(data, trial)
        group_weight = np.bincount(rows.position, weight[own]).astype(np.float64)
        inner = Candidates.of(candidates.space, groups[present], group_weight, candidates.groups)
        log_prior = inner.log_prior(prior)
        held = np.unique(position[trial.in_group])
        if held.size:
            leverage[held] = extrapolation_leverage(inner.hull, groups[held])
        for number, energies in enumerate(trial.energies):
            model = calibrated(energies[own], rows, rows.frequency, inner, CROSS_FIT_TOL)
            sums = model.log_sums(energies, log_prior - model.bias, range(data.n_targets))
            predicted = np.stack([np.argmax(part, axis=1) for part in sums], axis=1)
            if held.size:
                log_score = log_prior - model.bias
                opinion[number, held] = _opinion(
                    model, rows.seen, rows.frequency, log_score, groups[held], data.n_targets
                )
            hit = weight * (predicted == groups[position, : data.n_targets]).all(axis=1)
            for kind, mask in enumerate((trial.in_group, ~trial.in_group)):
                right[number, kind] += np.bincount(position[mask], hit[mask], minlength=k)
        for kind, mask in enumerate((trial.in_group, ~trial.in_group)):
            total[kind] += np.bincount(position[mask], weight[mask], minlength=k)
    accuracy = np.divide(right, total, out=np.full(right.shape, np.nan), where=total > 0)
    return [HeldOut(unseen, of, leverage, seen) for (unseen, seen), of in zip(accuracy, opinion, strict=True)]


def _opinion(
    model: CRMModel, seen: GroupTable, frequency: FloatArray, log_score: FloatArray, groups: IntArray, n_targets: int
) -> FloatArray:
    """Return the accuracy that a calibrated model itself expects on each of the groups (q, m), (q,)."""
    known = model.out_of_fold
    assert known is not None
    evidence = log_evidence(known.energies, seen, np.log(frequency) - known.bias)
    marginals = [
        marginal_log_posterior(known.energies, model.candidates.table, log_score, target) for target in range(n_targets)
    ]
    return importance_accuracy(seen.space, groups, known.energies, evidence, known.weight, marginals)


def _with_expected(
    model: CRMModel, frequency: FloatArray, held_out: HeldOut, prior: Any, confidence: float, n_targets: int
) -> CRMModel:
    """Return the model with the expected accuracy on each unseen group inside the hull (``expected``)."""
    candidates = model.candidates
    unseen = np.flatnonzero((candidates.in_seen < 0) & candidates.inside_hull)
    if not 0 < unseen.size <= MAX_UNSEEN_GROUPS or np.isnan(held_out.accuracy).all():
        return model
    groups = candidates.groups[unseen]
    seen = GroupTable.of(candidates.space, candidates.seen_groups)
    opinion = _opinion(model, seen, frequency, candidates.log_prior(prior) - model.bias, groups, n_targets)
    leverage = extrapolation_leverage(candidates.hull, groups)
    found = predict_accuracy(candidates.hull, groups, held_out, opinion, leverage, confidence, n_targets)
    expected = np.full((len(candidates.groups), 3), np.nan)
    expected[unseen] = np.stack(found, axis=1)
    return replace(model, expected=expected)


def mean_accuracies(held_out: list[HeldOut], candidates: Candidates) -> FloatArray:
    """Return the mean accuracy over the groups inside the hull with each setting, (s,).

    Groups that were held out stand for the unseen groups; groups without an accuracy do not count.
    """
    parts = [np.stack([one.accuracy for one in held_out]), np.stack([one.seen for one in held_out])]
    unseen, seen = (values[:, ~np.isnan(values).any(axis=0)] for values in parts)
    share = float(np.mean(candidates.in_seen[candidates.inside_hull] < 0)) if unseen.shape[1] else 0.0
    means = [values.mean(axis=1) if values.shape[1] else np.zeros(len(values)) for values in (unseen, seen)]
    return np.asarray(share * means[0] + (1 - share) * means[1])


def _reweighted(rows: TreeRows, frequency: FloatArray) -> FloatArray:
    """Return the weights of samples (n,), changed so that the seen groups have ``frequency`` (k,); they sum to 1."""
    weight = rows.weight * (frequency / rows.frequency)[rows.position]
    return np.asarray(weight / weight.sum())


def calibrated(
    energies: FloatArray,
    rows: TreeRows,
    frequency: FloatArray,
    candidates: Candidates,
    tol: float,
    weights: tuple[FloatArray, Standard] | None = None,
) -> CRMModel:
    """Fit a temperature and the biases to the energies (n, D) of samples that the fit of the energies has not seen.

    The samples of each seen group are weighted so that the groups have ``frequency`` (k,). ``weights`` are the weights
    (D, q) of the energies and the standard of their features; without them, the energies are the model's features.
    """
    weight = _reweighted(rows, frequency)
    problem = TemperatureProblem(ArrayRows(energies, rows.position, weight), rows.seen, frequency)
    start = Parameters(np.ones((1, 1)), np.zeros(len(frequency)))
    found = solve(problem, tol=tol, max_iter=MAX_STEPS, start=start)
    temperature = max(float(found.weight[0, 0]), 0.0)
    energies = temperature * energies
    samples = ArrayRows(energies, rows.position, weight)
    matrix, standard = weights or (np.eye(energies.shape[1]), Standard(np.zeros(energies.shape[1]), 1.0))
    solution = found._replace(weight=matrix)
    fitted = StepOne(solution, temperature, found.bias, frequency, rows.seen, standard, samples)
    model = step_two(candidates, fitted, tails=weights is not None)
    return replace(model, out_of_fold=OutOfFold.of(energies, rows.position, weight, 1.0, found.bias))
