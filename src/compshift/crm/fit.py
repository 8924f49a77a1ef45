"""The two steps of Compositional Risk Minimization on fixed features (paper, Algorithm 1).

Step 1 fits linear energies and one bias per seen group by minimising a convex risk with ``solver.solve``. Step 2
computes the bias of every candidate group from the energies of the training samples. Both steps are sums over blocks of
samples (``blocks``), so the same functions work for arrays in memory, feature stores, Dask collections, several
processes and the batches of a network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from compshift._checks import check_count, check_finite_number
from compshift._errors import InputError
from compshift.core.arrays import FloatArray, IntArray, namespace, row_blocks, to_numpy
from compshift.core.bias import (
    BiasSums,
    EnergyMoments,
    ExtrapolatedBias,
    cumulant_bias,
    empty_sums,
    extrapolated_bias,
    merge_sums,
    no_lower_than_samples,
    rows_worth_merging,
    sums_over,
    tail_indices,
)
from compshift.core.candidates import Candidates
from compshift.core.energy import GroupTable, linear_energies, log_evidence
from compshift.core.folds import row_folds
from compshift.core.sparse import Features
from compshift.crm.blocks import ArrayRows, Block, SummableRows, Sums, in_threads, one_thread_for_numpy
from compshift.crm.gaussian import gaussian_energies
from compshift.crm.inputs import LabelledSamples
from compshift.crm.model import CRMModel, OutOfFold
from compshift.crm.problem import Standard, StepOneProblem, TemperatureProblem, standard_of, standardise
from compshift.crm.solver import CurvaturePairs, Parameters, Solution, solve

ANCHORS = ("zero", "gaussian")
"""Weights that the ridge can pull towards: zero, or those of additive Gaussians with one shared covariance."""

CROSS_FIT_FOLDS = 5
"""Number of folds of cross-fitting if ``cross_fit`` is True or ``"auto"``."""

CROSS_FIT_TOL = 1e-4
"""Smallest tolerance used for the fits that give out-of-fold energies; a smaller one would hardly change them."""

OUT_OF_FOLD_TOL = 3e-4
"""Tolerance of out-of-fold energies that predictions do not use; fits with it end in single precision."""

MAX_OFFSET = 1e6
"""Largest absolute ``unseen_offset``, in nats: a larger value would round off digits of log-probabilities."""

MAX_TAIL_WEIGHTS = 20_000_000
"""Largest number of importance weights (samples × groups) for which tail indices are computed."""

TAIL_BLOCK_CELLS = 1 << 20
"""Target number of importance weights per block when tail indices are computed in threads."""


class FitParams(NamedTuple):
    """Parameters of a fit of energies and biases."""

    alpha: float
    anchor: str = "zero"  # one of ANCHORS
    cross_fit: int = 0  # number of folds for out-of-fold energies; 0 for no cross-fitting
    feature_transform: str = "none"  # one of ``problem.TRANSFORMS``; fits expect features that are transformed already


class Setting(NamedTuple):
    """Parameters of a fit, and of the predictions made from it."""

    params: FitParams
    bias: str  # kind of bias, one of ``model.BIASES``
    offset: float = 0.0  # nats added to the log-probability of unseen groups


def check_cross_fit(cross_fit: Any) -> int:
    """Check ``cross_fit`` and return the number of folds, 0 for no cross-fitting."""
    if isinstance(cross_fit, bool | np.bool_):
        return CROSS_FIT_FOLDS if cross_fit else 0
    if isinstance(cross_fit, str):
        raise InputError(f"cross_fit is {cross_fit!r}: pass True, False or a number of folds")
    folds = check_count(cross_fit, "cross_fit")
    if folds < 2:
        raise InputError(f"cross_fit is {folds}: pass True, False, or a number of folds ≥ 2")
    return folds


def check_offset(offset: Any, *, auto: bool = False) -> float:
    """Check that ``unseen_offset`` lies within ±``MAX_OFFSET``. With ``auto`` the error message also offers 'auto'."""
    expected = f"pass a number between ±{MAX_OFFSET:g} (0 for no offset)" + (", or 'auto'" if auto else "")
    number = check_finite_number(offset, "unseen_offset", expected)
    if abs(number) > MAX_OFFSET:
        raise InputError(f"unseen_offset is {offset!r}: {expected}")
    return number


@dataclass(frozen=True, eq=False)
class StandardisedRows:
    """Training samples in memory, with standardised features."""

    features: Features  # (n, p)
    standard: Standard  # centre and scale of the original features
    position: IntArray  # (n,) index of each sample's seen group
    weight: FloatArray  # (n,) summing to 1
    seen: GroupTable

    @classmethod
    def of(cls, X: Features, position: IntArray, sample_weight: FloatArray, candidates: Candidates) -> StandardisedRows:
        """Standardise samples (n, p). ``position`` (n,) are indices of seen groups; every weight is above 0."""
        features, standard = standardise(X, sample_weight)
        seen = GroupTable.of(candidates.space, candidates.seen_groups)
        return cls(features, standard, position, sample_weight / sample_weight.sum(), seen)

    @property
    def frequency(self) -> FloatArray:
        """Training frequency p̂ of the seen groups, (k,)."""
        return np.bincount(self.position, weights=self.weight, minlength=len(self.seen.row)).astype(np.float64)

    def problem(self, params: FitParams) -> StepOneProblem:
        """Return the optimisation problem of step 1 on all samples."""
        anchor = self._gaussian_anchor if params.anchor == "gaussian" else None
        spread = self.standard.spread
        return StepOneProblem(self._rows, self.seen, self.frequency, params.alpha, anchor=anchor, spread=spread)

    @cached_property
    def _rows(self) -> ArrayRows:
        """The samples as blocks; all problems share their copy in single precision."""
        return ArrayRows(self.features, self.position, self.weight)

    @cached_property
    def _gaussian_anchor(self) -> Parameters:
        """Energies of additive Gaussians, and their biases."""
        return gaussian_energies(self.features, self.position, self.weight, self.seen)

    def subset(self, rows: IntArray) -> tuple[StandardisedRows, IntArray]:
        """Return some of the samples, with only the groups that occur in them, and the indices of these groups."""
        present, position = np.unique(self.position[rows], return_inverse=True)
        seen = GroupTable.of(self.seen.space, self.seen.codes[present])
        weight = self.weight[rows] / self.weight[rows].sum()
        return StandardisedRows(self.features[rows], self.standard, position.reshape(-1), weight, seen), present


class LinearEnergies(NamedTuple):
    """Energies as a linear function of the original features, which are standardised and multiplied by weights."""

    standard: Standard
    weight: FloatArray  # (D, p)

    def of(self, features: Any) -> FloatArray:
        """Return the energies (b, D) of samples (b, p)."""
        energies: FloatArray = linear_energies(self.standard.of(features), self.weight)
        return energies


class StepOne(NamedTuple):
    """Fitted energies, and the samples over which step 2 averages them.

    With cross-fitting the energies of a sample come from a fit to other samples, and the biases are fitted to these
    energies.
    """

    solution: Solution  # weights of the standardised features
    temperature: float  # factor by which cross-fitting multiplies the energies; 1 without it
    bias: FloatArray  # (k,) learned bias of the seen groups
    frequency: FloatArray  # (k,) p̂ of the seen groups
    seen: GroupTable
    standard: Standard
    rows: SummableRows  # samples, with energies as features unless ``linear`` is given
    linear: LinearEnergies | None = None  # computes the energies from the features of ``rows``

    @property
    def energies(self) -> FloatArray:
        """Energies (n, D) of samples in memory."""
        assert isinstance(self.rows, ArrayRows)
        return self.rows.features  # type: ignore[no-any-return]


def fit_crm(data: LabelledSamples, params: FitParams, *, tol: float, max_iter: int) -> CRMModel:
    """Fit samples in memory: step 1 on the seen groups, then step 2 for every candidate."""
    rows = StandardisedRows.of(data.X, data.position, data.sample_weight, data.candidates)
    fitted = step_one(rows, params, tol=tol, max_iter=max_iter)
    model = step_two(data.candidates, fitted)
    if not params.cross_fit:
        return model
    out_of_fold = OutOfFold.of(fitted.energies, rows.position, rows.weight, 1.0, fitted.bias)
    return replace(model, out_of_fold=out_of_fold)


def with_out_of_fold(
    model: CRMModel, data: LabelledSamples, params: FitParams, fit_fold: FitFold | None = None, *, max_iter: int
) -> CRMModel:
    """Return the model of ``data`` with out-of-fold energies, unless it has them already or attributes are missing.

    The energies of a fold come from ``fit_fold``, by default from step 1.
    """
    if model.out_of_fold is not None or data.incomplete is not None:
        return model
    rows = StandardisedRows.of(data.X, data.position, data.sample_weight, data.candidates)
    start = warm_start(model, rows.standard)
    if fit_fold is None:
        fit_fold = partial(_solve_fold, params=params, tol=OUT_OF_FOLD_TOL, max_iter=max_iter)
    energies, temperature, bias = _cross_fitted(
        rows, CROSS_FIT_FOLDS, start, fit_fold, tol=CROSS_FIT_TOL, max_iter=max_iter
    )
    return replace(model, out_of_fold=OutOfFold.of(energies, rows.position, rows.weight, temperature, bias))


def warm_start(model: CRMModel, standard: Standard) -> Parameters:
    """Return the weights and biases of a model, to start another fit to samples with the same standardisation."""
    candidates = model.candidates
    in_candidates = candidates.space.locate(candidates.seen_groups, candidates.groups)  # (k,)
    bias = np.where(in_candidates >= 0, model.learned_bias[in_candidates], 0.0)
    return Parameters(model.coef * standard.scale / model.temperature, bias)


def fit_streamed(
    rows: SummableRows, candidates: Candidates, params: FitParams, *, tol: float, max_iter: int
) -> CRMModel:
    """Fit streamed samples. Each evaluation of the risk is one pass over them, and step 2 is another pass."""
    if params.anchor != "zero" or params.cross_fit:
        raise InputError(
            "streamed samples can be fitted only with anchor='zero' and cross_fit=False, because other values need all "
            "samples in memory: change these parameters, or pass X as an array"
        )
    if params.feature_transform != "none":
        raise InputError(
            f"streamed samples cannot be transformed, but feature_transform is {params.feature_transform!r}: pass "
            "'none' and store transformed features, or pass X as an array"
        )
    standard = standard_of(rows)
    seen = GroupTable.of(candidates.space, candidates.seen_groups)
    total = float(candidates.seen_weight.sum())
    frequency = candidates.seen_weight / total
    problem = StepOneProblem(
        rows, seen, frequency, params.alpha, standard=standard, total_weight=total, spread=standard.spread
    )
    solution = solve(problem, tol=tol, max_iter=max_iter)
    linear = LinearEnergies(standard, solution.weight)
    fitted = StepOne(solution, 1.0, solution.bias, frequency, seen, standard, rows, linear)
    return step_two(candidates, fitted, tails=False)


def step_one(
    rows: StandardisedRows,
    params: FitParams,
    *,
    tol: float,
    max_iter: int,
    start: Parameters | None = None,
    pairs: CurvaturePairs | None = None,
) -> StepOne:
    """Fit energies and biases to the seen groups; the search starts from ``start`` or else from the anchor.

    Fits to the same samples at several ridges can share their curvature ``pairs``.
    """
    problem = rows.problem(params)
    start = problem.anchor if start is None else start
    solution = solve(problem, tol=tol, max_iter=max_iter, start=start, pairs=pairs)
    if params.cross_fit:
        fit_fold = partial(_solve_fold, params=params, tol=max(tol, CROSS_FIT_TOL), max_iter=max_iter)
        energies, temperature, bias = _cross_fitted(
            rows, params.cross_fit, solution.start, fit_fold, tol=tol, max_iter=max_iter
        )
        energies = temperature * energies
    else:
        temperature, bias = 1.0, solution.bias
        energies = to_numpy(linear_energies(rows.features, solution.weight))
    samples = ArrayRows(energies, rows.position, rows.weight)
    return StepOne(solution, temperature, bias, problem.frequency, rows.seen, rows.standard, samples)


FitFold = Callable[[StandardisedRows, Parameters], FloatArray]
"""Function that returns the weights (D, p) of linear energies fitted to some samples, searched from a start."""


def _solve_fold(
    rows: StandardisedRows, start: Parameters, *, params: FitParams, tol: float, max_iter: int
) -> FloatArray:
    """Return the weights (D, p) of step 1."""
    return solve(rows.problem(params), tol=tol, max_iter=max_iter, start=start).weight


def _cross_fitted(
    rows: StandardisedRows, n_folds: int, start: Parameters, fit_fold: FitFold, *, tol: float, max_iter: int
) -> tuple[FloatArray, float, FloatArray]:
    """Return energies (n, D) of each sample by a fit to the other folds, and the temperature and biases fitted to them.

    Every group is divided among the folds.
    """
    fold = row_folds(rows.position, n_folds, np.random.default_rng(0))
    energies = np.empty((rows.seen.space.width, len(fold))).T
    for number in range(n_folds):
        held_out = fold == number
        if not held_out.any():
            continue
        others, present = rows.subset(np.flatnonzero(~held_out))
        weight = fit_fold(others, Parameters(start.weight, start.bias[present]))
        energies[held_out] = linear_energies(rows.features[held_out], weight)
    samples = ArrayRows(energies, rows.position, rows.weight)
    problem = TemperatureProblem(samples, rows.seen, rows.frequency)
    scaled = solve(problem, tol=tol, max_iter=max_iter, start=Parameters(np.ones((1, 1)), start.bias))
    return energies, max(float(scaled.weight[0, 0]), 0.0), scaled.bias


class StepTwoSums(NamedTuple):
    """Sums over samples from which step 2 computes the biases of groups and the moments of the energies."""

    bias: tuple[BiasSums, ...]  # one per group table
    energy: Any  # (D,) Σ ω E
    moments: Sums | None  # Σ ω E by seen group (k, D), and Σ ω E Eᵀ (D, D)
    evidence: tuple[Any, ...]  # c(x) of each block, (b,) each; empty unless requested

    @classmethod
    def empty(cls, table: GroupTable, reference: Any) -> StepTwoSums:
        """Return sums over no samples. ``reference`` is a zero array (D,) of the library and dtype of energies."""
        return cls((empty_sums(table, reference),), reference, None, ())

    @staticmethod
    def merge(one: StepTwoSums, other: StepTwoSums) -> StepTwoSums:
        """Merge the sums of two sets of samples."""
        bias = tuple(merge_sums(left, right) for left, right in zip(one.bias, other.bias, strict=True))
        moments = None if one.moments is None or other.moments is None else Sums.add(one.moments, other.moments)
        return StepTwoSums(bias, one.energy + other.energy, moments, one.evidence + other.evidence)


def step_two_sums(
    block: Block,
    linear: LinearEnergies | None,
    seen: GroupTable,
    log_score: Any,
    tables: tuple[GroupTable, ...],
    n_seen: int = 0,
    keep_evidence: bool = False,
) -> StepTwoSums:
    """Return the contribution of a block to B* (paper, label "qz" in docs/maths.md) of the groups of each table.

    ``log_score`` (k,) is log p̂(z) − B(z) of the seen groups. ``n_seen`` is their number k to sum the moments of the
    energies within the seen groups too, or 0 to leave them out.
    """
    energies = block.features if linear is None else linear.of(block.features)  # (b, D)
    parts = [
        log_evidence(energies[rows], seen, log_score)
        for rows in row_blocks(len(energies), seen.width + energies.shape[1])
    ]
    evidence = parts[0] if len(parts) == 1 else namespace(energies).concat(parts)  # (b,)
    bias = tuple(sums_over(table, energies, evidence, block.weight) for table in tables)
    weighted = energies if block.weight is None else energies * block.weight[:, None]  # (b, D)
    moments = None
    if n_seen:
        by_group = np.stack([np.bincount(block.position, weights=column, minlength=n_seen) for column in weighted.T])
        moments = Sums((by_group.T, weighted.T @ energies))
    return StepTwoSums(bias, weighted.sum(axis=0), moments, (evidence,) if keep_evidence else ())


def step_two(
    candidates: Candidates, fitted: StepOne, *, moments: EnergyMoments | None = None, tails: bool = True
) -> CRMModel:
    """Compute every kind of bias of every candidate group.

    ``moments`` are the moments of the energies within the seen groups; pass them if the groups of some samples are
    unknown. ``tails`` requests the Pareto tail indices, which need all energies in memory.
    """
    seen, rows, n_seen = fitted.seen, fitted.rows, len(fitted.frequency)
    tails = tails and isinstance(rows, ArrayRows) and len(rows.features) * len(candidates.groups) <= MAX_TAIL_WEIGHTS
    in_candidates = candidates.space.locate(seen.codes, candidates.groups)  # (k,)
    tables = (candidates.table,) if (in_candidates >= 0).all() else (candidates.table, seen)
    if isinstance(rows, ArrayRows):
        rows = replace(rows, block_rows=rows_worth_merging(candidates.table))
    sums = rows.total(
        step_two_sums,
        StepTwoSums.merge,
        fitted.linear,
        seen,
        np.log(fitted.frequency) - fitted.bias,
        tables,
        n_seen if moments is None else 0,
        tails,
    )
    found: ExtrapolatedBias = extrapolated_bias(tables[0], sums.bias[0])
    seen_bias = found.bias[in_candidates] if len(tables) == 1 else extrapolated_bias(seen, sums.bias[1]).bias  # (k,)
    if moments is None:
        assert sums.moments is not None
        by_group, products = sums.moments.arrays
        moments = _energy_moments(by_group, products, fitted.frequency * sums.bias[0].total_weight)
    labelled = candidates.space.locate(candidates.seen_groups, seen.codes)  # all of ``seen``, unless a pool adds groups
    learned_bias = fitted.bias[labelled]
    by_moments = cumulant_bias(candidates.space, candidates.groups, candidates.seen_groups, learned_bias, moments)
    return CRMModel(
        candidates=candidates,
        coef=fitted.temperature * fitted.solution.weight / fitted.standard.scale,
        feature_mean=fitted.standard.mean,
        bias=found.bias,
        learned_bias=np.where(candidates.in_seen >= 0, learned_bias[candidates.in_seen], 0.0),
        cumulant_bias=no_lower_than_samples(by_moments, found),
        effective_sample_size=found.effective_sample_size,
        pareto_k=_tail_indices(candidates, rows, np.concatenate(sums.evidence))
        if tails and isinstance(rows, ArrayRows)
        else np.full(len(candidates.groups), np.nan),
        temperature=fitted.temperature,
        bias_gap=float(np.abs(seen_bias - fitted.bias).max()),
        gradient=fitted.solution.gradient,
        n_iter=fitted.solution.n_iter,
        converged=fitted.solution.converged,
    )


def _energy_moments(by_group: FloatArray, products: FloatArray, group_weight: FloatArray) -> EnergyMoments:
    """Return the mean energies of each seen group (k, D) and the pooled within-group covariance (D, D).

    ``by_group`` (k, D) and ``products`` (D, D) are weighted sums, ``group_weight`` (k,) is the weight of each group.
    """
    mean = by_group / group_weight[:, None]
    between = (mean * group_weight[:, None]).T @ mean
    return EnergyMoments(mean, (products - between) / group_weight.sum())


def _tail_indices(candidates: Candidates, rows: ArrayRows, evidence: FloatArray) -> FloatArray:
    """Return the Pareto k̂ of the importance weights of each candidate, (g,)."""

    def of_groups(part: slice) -> FloatArray:
        return tail_indices(candidates.space, candidates.groups[part], rows.features, evidence, rows.weight)

    with one_thread_for_numpy() as n_threads:
        blocks = row_blocks(len(candidates.groups), len(rows.features), TAIL_BLOCK_CELLS)
        return np.concatenate(list(in_threads(of_groups, blocks, (), n_threads)))
