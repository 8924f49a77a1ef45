r"""Additive energies by gradient-boosted trees, and biases from energies of samples that the trees have not seen.

Step 1 minimises the same risk as for linear energies, by LightGBM. With
:math:`p(z|x) \propto \hat p(z) \exp(-\langle \sigma(z), E(x) \rangle - B(z))` over the seen groups, the gradient of a
sample's risk with respect to its energies is :math:`\sigma(z) - \mathbb{E}_{p(\cdot|x)} \sigma`, and the diagonal of
the Hessian is :math:`p(v|x)(1 - p(v|x))` for each attribute value v. Both are sums over a ``GroupTable``, so no array
of samples × groups exists. Each round also moves B towards the value at which the mean of p(z|x) is the frequency of z.

An attribute with two values needs one output, the difference of its energies; the others need one per value.

Trees fit their training samples closely, so the energies of these samples say little about others. Each fold therefore
holds out some groups, as far as the others still span them, and a part of the samples of every other group. Held-out
groups and samples choose the number of rounds; a temperature, B and B* are fitted to the energies of the held-out
samples.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from compshift.core.accuracy import importance_accuracy
from compshift.core.affine import extrapolation_leverage
from compshift.core.arrays import BoolArray, FloatArray, IntArray, row_blocks
from compshift.core.candidates import Candidates
from compshift.core.energy import GroupTable, group_expectations, log_evidence
from compshift.core.folds import combination_folds, row_folds
from compshift.core.groups import GroupSpace
from compshift.core.posterior import marginal_log_posterior
from compshift.crm.blocks import ArrayRows, over_blocks
from compshift.crm.expected import MAX_UNSEEN_GROUPS, HeldOut, predict_accuracy
from compshift.crm.fit import StepOne, step_two
from compshift.crm.inputs import LabelledSamples
from compshift.crm.model import CRMModel, OutOfFold
from compshift.crm.problem import Standard, TemperatureProblem
from compshift.crm.solver import Parameters, Solution, solve
from compshift.crm.trees import Trees, import_lightgbm

logger = logging.getLogger(__name__)

FIRST_CHECKPOINT = 10
"""Smallest number of rounds that is tried."""

CHECKPOINT_RATIO = 1.5
"""Ratio of successive numbers of rounds that are tried."""

CALIBRATION_TOL = 1e-4
"""Tolerance of the fits of temperature and biases within folds; the final one uses ``FINAL_TOL``."""

FINAL_TOL = 1e-6

MAX_STEPS = 1000
"""Maximum number of iterations of these fits."""

MAX_EXPONENT = 1000
"""Largest absolute exponent of the powers of two that scale columns."""

HESSIAN_FLOOR = 1e-6
"""Smallest diagonal entry of a sample's Hessian, relative to its weight."""


class BoostingParams(NamedTuple):
    """Parameters of the trees."""

    learning_rate: float = 0.1
    max_leaf_nodes: int = 15
    min_samples_leaf: int = 20
    l2_regularization: float = 1.0
    seed: int = 0
    n_threads: int = 0  # 0: all cores


class TreeRows(NamedTuple):
    """Training samples for trees."""

    X: FloatArray  # (n, p), NaN where a value is missing
    position: IntArray  # (n,) index of each sample's seen group
    weight: FloatArray  # (n,) above 0
    seen: GroupTable
    categorical: tuple[int, ...]  # columns of X that hold codes of categories

    @property
    def frequency(self) -> FloatArray:
        """Frequency of the seen groups, (k,)."""
        total = np.bincount(self.position, self.weight, minlength=len(self.seen.row))
        return np.asarray(total / total.sum(), dtype=np.float64)

    def subset(self, rows: BoolArray) -> tuple[TreeRows, IntArray]:
        """Return some of the samples, with only the groups that occur in them, and the indices of these groups."""
        present, position = np.unique(self.position[rows], return_inverse=True)
        seen = GroupTable.of(self.seen.space, self.seen.codes[present])
        return TreeRows(self.X[rows], position.reshape(-1), self.weight[rows], seen, self.categorical), present


class BoostedFit(NamedTuple):
    """A fitted model of boosted energies, and how its number of rounds was chosen."""

    model: CRMModel  # its features are the scores of ``model.trees``
    checkpoints: IntArray  # (c,) numbers of rounds that were tried
    unseen: FloatArray  # (c, k) accuracy on each seen group when it is held out; NaN if it cannot be
    seen: FloatArray  # (c, k) accuracy on held-out samples of each group while it stays in training
    best: int  # index of the number of rounds that is used


def value_basis(space: GroupSpace) -> FloatArray:
    """Return the matrix (D, w) that turns outputs into energies: one output per value, or one for two values."""
    blocks = [np.array([[-0.5], [0.5]]) if size == 2 else np.eye(size) for size in space.cardinalities]
    basis = np.zeros((space.width, sum(block.shape[1] for block in blocks)))
    row = column = 0
    for block in blocks:
        basis[row : row + block.shape[0], column : column + block.shape[1]] = block
        row, column = row + block.shape[0], column + block.shape[1]
    return basis


class _Objective:
    """Gradient and diagonal Hessian of the step-1 risk for LightGBM; keeps the biases of the seen groups."""

    def __init__(self, rows: TreeRows, basis: FloatArray) -> None:
        self.rows, self.basis, self.square = rows, basis, basis**2
        self.weight = rows.weight / rows.weight.mean()
        self.frequency = rows.frequency
        self.code = rows.seen.space._one_hot(rows.seen.codes)  # (k, D)
        self.bias = np.zeros(len(self.frequency))

    def __call__(self, scores: FloatArray, _: Any) -> tuple[FloatArray, FloatArray]:
        """Return gradient and Hessian with respect to the outputs, (n, w) each or (n,) if w is 1; move the biases."""
        scores = scores.reshape(len(self.weight), -1)
        log_score = np.log(self.frequency) - self.bias
        gradient, hessian = np.empty(scores.shape), np.empty(scores.shape)

        def fill(rows: slice) -> FloatArray:
            total = np.zeros(len(log_score))
            for part in row_blocks(rows.stop - rows.start, self.rows.seen.width + len(self.basis)):
                block = slice(rows.start + part.start, rows.start + part.stop)
                weight = self.weight[block]
                energies = scores[block] @ self.basis.T  # (b, D)
                _, expected, mass = group_expectations(energies, weight, self.rows.seen, log_score)
                own = weight[:, None] * self.code[self.rows.position[block]]
                gradient[block] = (own - expected) @ self.basis
                variance = expected @ self.square - (expected @ self.basis) ** 2 / weight[:, None]
                hessian[block] = np.maximum(variance, HESSIAN_FLOOR * weight[:, None])
                total += mass
            return total

        total = sum(over_blocks(fill, len(scores)), np.zeros(len(log_score)))
        self.bias += np.log(np.maximum(total / len(scores), np.finfo(np.float64).tiny)) - np.log(self.frequency)
        return (gradient[:, 0], hessian[:, 0]) if scores.shape[1] == 1 else (gradient, hessian)


def boost(rows: TreeRows, params: BoostingParams, n_rounds: int) -> Trees:
    """Minimise the step-1 risk by ``n_rounds`` rounds of trees.

    LightGBM takes numbers below 1e-35 for zero, so columns are brought to a largest absolute value near 1 by a power of
    two.
    """
    lightgbm = import_lightgbm()
    objective = _Objective(rows, value_basis(rows.seen.space))
    if not _varies(rows.X).any():
        return Trees.without_splits(rows.X.shape[1], objective.basis.shape[1], n_rounds)
    scale = _scales(rows.X, rows.categorical)
    settings = {
        "objective": objective,
        "num_class": objective.basis.shape[1],
        "learning_rate": params.learning_rate,
        "num_leaves": params.max_leaf_nodes,
        "min_data_in_leaf": params.min_samples_leaf,
        "lambda_l2": params.l2_regularization,
        "min_sum_hessian_in_leaf": 1e-3,
        "seed": params.seed,
        "num_threads": params.n_threads,
        "deterministic": True,
        "force_col_wise": True,
        "feature_pre_filter": False,
        "verbosity": -1,
    }
    data = lightgbm.Dataset(rows.X * scale, categorical_feature=list(rows.categorical), params={"verbosity": -1})
    return Trees.of(lightgbm.train(settings, data, n_rounds), scale)


def _varies(X: FloatArray) -> BoolArray:
    """Return whether each column (n, p) has two different values, where a missing value is one, (p,)."""
    missing = np.isnan(X)
    first = np.where(missing, -np.inf, X).max(axis=0)
    last = np.where(missing, np.inf, X).min(axis=0)
    return np.asarray((first > last) | (missing.any(axis=0) & ~missing.all(axis=0)))


def _scales(X: FloatArray, categorical: tuple[int, ...]) -> FloatArray:
    """Return a power of two for each column (n, p) that brings its largest absolute value near 1; 1 for categories."""
    largest = np.nanmax(np.abs(X), axis=0, initial=0.0)
    exponent = np.where(largest > 0, np.frexp(np.where(largest > 0, largest, 1.0))[1], 0)
    exponent[list(categorical)] = 0
    return np.asarray(np.ldexp(1.0, -np.clip(exponent, -MAX_EXPONENT, MAX_EXPONENT)))


class _Trial(NamedTuple):
    """One fold: outputs of its held-out samples after each number of rounds, and what was held out."""

    scores: FloatArray  # (c, h, w)
    rows: IntArray  # (h,) indices of the held-out samples
    in_group: BoolArray  # (h,) whether the whole group of the sample is held out
    kept: IntArray  # indices of the seen groups that stay in training


def fit_boosted(
    data: LabelledSamples,
    categorical: tuple[int, ...],
    params: BoostingParams,
    *,
    n_rounds: int | None,
    max_rounds: int,
    n_folds: int,
    prior: Any,
    confidence: float,
) -> BoostedFit:
    """Fit boosted energies; choose the number of rounds unless it is given. Compute the bias of every candidate."""
    candidates = data.candidates
    seen = GroupTable.of(candidates.space, candidates.seen_groups)
    rows = TreeRows(data.X, data.position, data.sample_weight / data.sample_weight.sum(), seen, categorical)
    random = np.random.default_rng(params.seed)
    part = row_folds(rows.position, n_folds, random)
    group_fold = combination_folds(candidates.space, candidates.seen_groups, n_folds, random)
    if n_rounds is not None:
        group_fold = np.full_like(group_fold, -1)
    checkpoints = _checkpoints(max_rounds) if n_rounds is None else np.array([n_rounds])
    found = (_try_fold(rows, params, checkpoints, group_fold == fold, part == fold) for fold in range(n_folds))
    trials = [trial for trial in found if trial is not None]
    held_out = _hold_out(data, trials, len(checkpoints), prior)
    unseen, within = (np.stack(parts) for parts in zip(*((one.accuracy, one.seen) for one in held_out), strict=True))
    best = 0 if n_rounds is not None else best_checkpoint(unseen, within, candidates)
    logger.info("%d rounds are used", checkpoints[best])
    trees = boost(rows, params, int(checkpoints[best]))
    scores, kept = _held_out_scores(rows, trees, trials, best)
    model = calibrated(scores[kept], rows.subset(kept)[0], rows.frequency, candidates, FINAL_TOL)
    model = _with_expected(model, rows.frequency, held_out[best], prior, confidence, data.n_targets)
    model = replace(model, trees=trees, n_iter=trees.n_rounds)
    return BoostedFit(model, checkpoints, unseen, within, best)


def _held_out_scores(rows: TreeRows, trees: Trees, trials: list[_Trial], best: int) -> tuple[FloatArray, BoolArray]:
    """Return outputs (n, w) of samples by trees that have not seen them, and which samples have such outputs, (n,).

    Trees that have seen other samples of the group are preferred; a small group may have to do without.
    """
    scores = trees.scores(rows.X)
    kept = np.zeros(len(rows.position), dtype=np.bool_)
    for in_group in (False, True):
        lacking = np.bincount(rows.position[kept], minlength=len(rows.seen.row)) == 0  # (k,) no sample yet
        for trial in trials:
            chosen = (trial.in_group == in_group) & lacking[rows.position[trial.rows]]
            scores[trial.rows[chosen]] = trial.scores[best][chosen]
            kept[trial.rows[chosen]] = True
    lacking = np.bincount(rows.position[kept], minlength=len(rows.seen.row)) == 0
    return scores, kept | lacking[rows.position]


def _checkpoints(max_rounds: int) -> IntArray:
    """Return the numbers of rounds that are tried."""
    steps = int(np.log(max(max_rounds / FIRST_CHECKPOINT, 1)) / np.log(CHECKPOINT_RATIO))
    tried = FIRST_CHECKPOINT * CHECKPOINT_RATIO ** np.arange(steps + 1)
    return np.unique(np.minimum(np.append(tried.round().astype(np.int64), max_rounds), max_rounds))


def _try_fold(
    rows: TreeRows, params: BoostingParams, checkpoints: IntArray, held_groups: BoolArray, in_part: BoolArray
) -> _Trial | None:
    """Train on a fold; return the outputs of its held-out samples, or None if no sample can be held out."""
    in_group = held_groups[rows.position]
    held = in_group | in_part
    if not held.any() or held.all():
        return None
    others, kept = rows.subset(~held)
    trees = boost(others, params, int(checkpoints[-1]))
    X, before = rows.X[held], 0
    scores: list[FloatArray] = []
    for rounds in checkpoints:
        more = trees.scores(X, before, int(rounds))
        scores.append(more if not scores else scores[-1] + more)
        before = int(rounds)
    return _Trial(np.stack(scores), np.flatnonzero(held), in_group[held], kept)


def _hold_out(data: LabelledSamples, trials: list[_Trial], n_checkpoints: int, prior: Any) -> list[HeldOut]:
    """Return what the folds found out about each seen group, for each number of rounds."""
    candidates = data.candidates
    groups, k = candidates.seen_groups, len(candidates.seen_groups)
    prior = "hull" if isinstance(prior, str) and prior == "train" else prior  # "train" excludes held-out groups
    right, total = np.zeros((n_checkpoints, 2, k)), np.zeros((2, k))
    opinion, leverage = np.full((n_checkpoints, k), np.nan), np.full(k, np.nan)
    for trial in trials:
        position, weight = data.position[trial.rows], data.sample_weight[trial.rows]
        own = ~trial.in_group & np.isin(position, trial.kept)
        present, place = np.unique(position[own], return_inverse=True)
        if not len(present):
            continue
        group_weight = np.bincount(place.reshape(-1), weight[own]).astype(np.float64)
        inner = Candidates.of(candidates.space, groups[present], group_weight, candidates.groups)
        rows = TreeRows(
            np.empty((int(own.sum()), 0)),
            place.reshape(-1),
            weight[own] / weight[own].sum(),
            GroupTable.of(candidates.space, groups[present]),
            (),
        )
        log_prior = inner.log_prior(prior)
        held = np.unique(position[trial.in_group])
        if held.size:
            leverage[held] = extrapolation_leverage(inner.hull, groups[held])
        for number, scores in enumerate(trial.scores):
            model = calibrated(scores[own], rows, rows.frequency, inner, CALIBRATION_TOL, tails=False)
            sums = model.log_sums(scores, log_prior - model.bias, range(data.n_targets))
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


def best_checkpoint(unseen: FloatArray, seen: FloatArray, candidates: Candidates) -> int:
    """Return the number of the checkpoint with the highest mean accuracy over the groups inside the hull.

    Held-out groups stand for the unseen groups; ties go to fewer rounds.
    """
    n_unseen = int(np.count_nonzero(candidates.inside_hull & (candidates.in_seen < 0)))
    mean_seen = _row_means(seen)
    if not n_unseen or np.isnan(unseen).all():
        return int(np.argmax(mean_seen))
    return int(np.argmax(n_unseen * _row_means(unseen) + len(candidates.seen_groups) * mean_seen))


def _row_means(values: FloatArray) -> FloatArray:
    """Return the mean of each row over the columns without NaN; 0 if there is none."""
    known = values[:, ~np.isnan(values).any(axis=0)]
    return np.asarray(known.mean(axis=1)) if known.shape[1] else np.zeros(len(values))


def calibrated(
    scores: FloatArray, rows: TreeRows, frequency: FloatArray, candidates: Candidates, tol: float, *, tails: bool = True
) -> CRMModel:
    """Fit a temperature and the biases to the outputs (n, w) of samples that the trees have not seen.

    The samples of each seen group are weighted so that the groups have ``frequency`` (k,).
    """
    weight = rows.weight * (frequency / rows.frequency)[rows.position]
    weight = weight / weight.sum()
    basis = value_basis(rows.seen.space)
    energies = scores @ basis.T  # (n, D)
    problem = TemperatureProblem(ArrayRows(energies, rows.position, weight), rows.seen, frequency)
    start = Parameters(np.ones((1, 1)), np.zeros(len(frequency)))
    found = solve(problem, tol=tol, max_iter=MAX_STEPS, start=start)
    temperature = max(float(found.weight[0, 0]), 0.0)
    energies = temperature * energies
    solution: Solution = found._replace(weight=basis)
    standard = Standard(np.zeros(basis.shape[1]), 1.0)
    fitted = StepOne(
        solution, temperature, found.bias, frequency, rows.seen, standard, ArrayRows(energies, rows.position, weight)
    )
    model = step_two(candidates, fitted, tails=tails)
    return replace(model, out_of_fold=OutOfFold.of(energies, rows.position, weight, 1.0, found.bias))
