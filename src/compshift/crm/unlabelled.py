r"""EM over step 1: energies and biases from labelled samples and a pool of unlabelled samples.

Both kinds of sample follow one model, p(x|z) = h(x) exp(−⟨σ(z), E(x)⟩ − B(z)), for any h. Labelled samples have the
frequencies of training; the pool is a mixture :math:`\sum_z q(z)\, p(x|z)` over the groups inside the affine hull, with
frequencies q of its own and a Dirichlet prior on them. h is profiled out, as a distribution over the labelled samples
and the pool together.

E-step, for each sample of the pool:

.. math:: r_x(z) \propto q(z) \exp(-\langle \sigma(z), E(x) \rangle - B(z))

M-step: q from the mean responsibilities, and step 1 on all samples, where a sample of the pool counts for each group by
its responsibility and the prior is the mean responsibility :math:`m(z) = (n_z + \sum_x r_x(z)) / (n + N)`. It needs
only the expected codes :math:`\sum_z r_x(z) \sigma(z)` (N, D) and m, which are sums over a ``GroupTable``, so no array
of samples × groups exists. At its optimum B* = B for every group with m(z) > 0, as in a plain fit for the seen groups;
B* of the other groups is extrapolated.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np

from compshift._errors import InputError, an
from compshift._progress import steps
from compshift.core.arrays import FloatArray, IntArray, row_blocks
from compshift.core.bias import energy_moments, extrapolated_bias, rows_worth_merging
from compshift.core.candidates import Candidates, uniform_log_prior
from compshift.core.energy import GroupTable, group_expectations, linear_energies
from compshift.core.sparse import Features, SparseRows, stacked
from compshift.crm.blocks import ArrayRows, over_blocks
from compshift.crm.features import feature_matrix
from compshift.crm.fit import (
    CROSS_FIT_TOL,
    FitParams,
    StandardisedRows,
    StepOne,
    StepTwoSums,
    step_one,
    step_two,
    step_two_sums,
    with_out_of_fold,
)
from compshift.crm.inputs import LabelledSamples, is_streamed
from compshift.crm.model import CRMModel, PoolDecision, PoolUse
from compshift.crm.problem import ExpectedProblem
from compshift.crm.solver import Parameters, Solution, solve

logger = logging.getLogger(__name__)

MAX_ROUNDS = 10
"""Maximum number of EM rounds; later rounds change little (benchmarks/unseen_groups.py, part ``unlabelled``)."""

UNIFORM_SHARE = 0.03
"""Share of pseudo-samples, spread evenly over the groups, in the Dirichlet prior of the pool's frequencies. Much larger
shares lose accuracy on pools in which few groups occur, much smaller shares gain less on others."""

MIN_POOL_ROWS = 1.0
"""Expected number of samples, labelled or not, below which the bias of a group is extrapolated instead of fitted."""

ROUND_TOL = 3e-3
"""Tolerance of the fits of all rounds but the last; the next round continues from them."""

STOP_CHANGE = 1e-3
"""Largest change of a frequency of the pool in one round at which EM stops."""

FINAL_TOL = 3e-4
"""Smallest tolerance of the fit of the last round. Its frequencies are exact only to about ``STOP_CHANGE``, so a more
precise fit at these frequencies would cost time and mean nothing."""

FREQUENCY_STEPS = 200
"""Maximum number of steps of ``pool_frequency``."""

FREQUENCY_TOL = 1e-4
"""Largest change of a frequency in one step at which ``pool_frequency`` stops."""

MAX_FREQUENCY_CELLS = 1 << 22
"""Largest number of probabilities (samples × groups) for the intervals of the pool's frequencies."""

MIN_FREQUENCY_ROWS = 2000
"""Smallest number of samples for the intervals. If ``MAX_FREQUENCY_CELLS`` allows fewer, because there are so many
groups, the intervals are left out."""

Decide = Callable[[StandardisedRows, StepOne], PoolDecision]
"""Function that decides from a plain fit whether the pool is used."""


Watch = Callable[[int, StepOne], None]
"""Function that is called after each round with the number of the round and the fit."""


def read_pool(estimator: Any, unlabelled: Any, *, streamed: bool = False, incomplete: bool = False) -> Features:
    """Check unlabelled samples (N, p), which need the columns of ``X``, and return them as float64.

    ``streamed`` says whether the labelled samples are streamed, ``incomplete`` whether some lack attributes.
    """
    obstacle = "X is streamed" if streamed else "attributes are missing in some rows" if incomplete else None
    if obstacle is None and estimator.cross_fit:
        obstacle = f"cross_fit is {estimator.cross_fit!r}"
    if obstacle is not None:
        raise InputError(f"unlabelled cannot be used if {obstacle}: leave out unlabelled, or change the other argument")
    if is_streamed(unlabelled) or isinstance(unlabelled, str | PathLike):
        raise InputError(
            f"unlabelled is {an(type(unlabelled).__name__)}: pass an array or DataFrame with the columns of X"
        )
    if getattr(unlabelled, "ndim", 2) != 2:
        raise InputError(
            f"unlabelled has {unlabelled.ndim} dimension{'s' * (unlabelled.ndim != 1)}: pass features of samples, one "
            "row each, with the columns of X; no labels are needed"
        )
    try:
        return feature_matrix(estimator, unlabelled, fitted=True)
    except InputError as error:
        text = str(error)
        message = f"unlabelled {text[2:]}" if text.startswith("X ") else f"unlabelled cannot be used: {text}"
        raise InputError(message, lines="\n" in message) from None


def fit_unlabelled(
    data: LabelledSamples,
    pool: Features,
    params: FitParams,
    decide: Decide | None = None,
    *,
    tol: float,
    max_iter: int,
) -> CRMModel:
    """Fit labelled samples and, unless ``decide`` says otherwise, the pool (N, p); the model records what was done."""
    rows = StandardisedRows.of(data.X, data.position, data.sample_weight, data.candidates)
    fitted = step_one(rows, params, tol=tol, max_iter=max_iter)
    plain = step_two(data.candidates, fitted)
    decision = PoolDecision(True, "the pool is used, as asked") if decide is None else decide(rows, fitted)
    if not decision.used:
        return replace(plain, pool=PoolUse(len(pool), 0, decision))
    found, n_rounds = fit_with_pool(rows, data.candidates, fitted, pool, params, tol=tol, max_iter=max_iter)
    use = PoolUse(len(pool), n_rounds, decision, plain=plain)
    return replace(pool_model(rows, data.candidates, found), pool=use)


def pool_out_of_fold(
    model: CRMModel, data: LabelledSamples, pool: Features, params: FitParams, *, max_iter: int
) -> CRMModel:
    """Return the model of ``data`` and the pool with out-of-fold energies of the labelled samples.

    In every fold, the energies come from EM with the other labelled samples and the whole pool.
    """
    assert model.pool is not None
    n_rounds = model.pool.n_rounds

    def fit_fold(rows: StandardisedRows, start: Parameters) -> FloatArray:
        fitted = step_one(rows, params, tol=CROSS_FIT_TOL, max_iter=max_iter, start=start)
        found, _ = fit_with_pool(
            rows, data.candidates, fitted, pool, params, tol=FINAL_TOL, max_iter=max_iter, n_rounds=n_rounds
        )
        return found.solution.weight

    return with_out_of_fold(model, data, params, fit_fold, max_iter=max_iter)


def fit_with_pool(
    rows: StandardisedRows,
    candidates: Candidates,
    fitted: StepOne,
    pool: Features,
    params: FitParams,
    *,
    tol: float,
    max_iter: int,
    n_rounds: int = MAX_ROUNDS,
    watch: Watch | None = None,
) -> tuple[StepOne, int]:
    """Run EM from a fit to the labelled samples, ``fitted``, with the unlabelled samples ``pool`` (N, p).

    Return the fit after the last round, whose groups are those with expected samples, and the number of rounds. A
    sample of the pool counts as much as an average labelled sample. The fit of the last round has the tolerance
    ``tol``, if that is not below ``FINAL_TOL``.
    """
    n, space = len(rows.features), candidates.space
    groups = pool_groups(candidates)
    table = GroupTable.of(space, groups)
    samples = _with_pool(rows, pool)
    features, code = samples.features, samples.position  # (n + N, p), (n + N, D)
    labelled = np.zeros(len(groups))
    labelled[space.locate(rows.seen.codes, groups)] = rows.frequency * n / len(features)
    frequency = np.full(len(groups), 1 / len(groups))
    bias = group_bias(fitted, table)
    anchor = rows.problem(params).anchor
    energies = linear_energies(features[n:], fitted.solution.weight)  # (N, D)
    final_tol, done, last = max(tol, FINAL_TOL), 0, n_rounds == 0
    with steps("rounds with unlabelled samples", n_rounds) as advance:
        while not last:
            before, frequency = frequency, pool_frequency(energies, table, bias, frequency)
            change = float(np.abs(frequency - before).max())
            done += 1
            last = change <= STOP_CHANGE or done == n_rounds
            log_score = np.log(frequency) - bias
            share = (len(pool) / len(features)) * _responsibility(energies, table, log_score)[1]
            active = np.flatnonzero((labelled + share) * len(features) >= MIN_POOL_ROWS)
            fitted_table = GroupTable.of(space, groups[active])
            code[n:], share = _responsibility(energies, fitted_table, log_score[active])
            expected = labelled[active] + (len(pool) / len(features)) * share
            problem = ExpectedProblem(
                samples,
                fitted_table,
                expected / expected.sum(),
                params.alpha,
                anchor=anchor,
                spread=rows.standard.spread,
            )
            solution = solve(
                problem,
                tol=final_tol if last else max(tol, ROUND_TOL),
                max_iter=max_iter,
                start=Parameters(fitted.solution.weight, bias[active]),
            )
            fitted = _as_step_one(problem, solution, rows, fitted)
            energies, bias = fitted.energies[n:], group_bias(fitted, table)
            logger.info("round %d: frequencies of the pool changed by up to %.1e", done, change)
            if watch is not None:
                watch(done, fitted)
            advance()
    return fitted, done


def _with_pool(rows: StandardisedRows, pool: Features) -> ArrayRows:
    """Return labelled samples followed by the pool (N, p), with standardised features and weights that sum to 1.

    Their positions are expected one-hot codes (n + N, D); those of the pool are left for the E-step to fill in.
    """
    n, n_all = len(rows.features), len(rows.features) + len(pool)
    code = np.zeros((n_all, rows.seen.space.width))
    code[:n] = rows.seen.space._one_hot(rows.seen.codes)[rows.position]
    if isinstance(rows.features, SparseRows):
        features = stacked(rows.features, rows.standard.of(pool))
    else:
        features = np.empty((n_all, pool.shape[1]))

        def fill_labelled(part: slice) -> None:
            features[part] = rows.features[part]

        def fill_pool(part: slice) -> None:
            features[n + part.start : n + part.stop] = rows.standard.of(pool[part])

        for fill, count in ((fill_labelled, n), (fill_pool, len(pool))):
            for _ in over_blocks(fill, count):
                pass
    return ArrayRows(features, code, np.concatenate([rows.weight * n, np.ones(len(pool))]) / n_all)


def record_pool(clf: Any, model: CRMModel, pool: Features) -> CRMModel:
    """Return the model of a fitted classifier with the estimated frequencies of the groups in its pool.

    They are estimated from at most ``MAX_FREQUENCY_CELLS`` / groups samples; with very many groups they are left out.
    """
    assert model.pool is not None
    n_groups = int(np.count_nonzero(clf.inside_hull_))
    n_rows = MAX_FREQUENCY_CELLS // max(n_groups, 1)
    if not n_groups or n_rows < MIN_FREQUENCY_ROWS:
        return model
    if len(pool) > n_rows:
        pool = pool[np.sort(np.random.default_rng(0).choice(len(pool), n_rows, replace=False))]
    other = copy(clf)
    other.log_prior_ = uniform_log_prior(clf.inside_hull_)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of groups that are hard to tell apart: the intervals show it
        found = other.estimate_prior(pool)
    columns = (np.exp(found.log_prior), found.lower, found.upper, found.effective_rows)
    return replace(model, pool=replace(model.pool, frequency=np.stack(columns, axis=1)))


def pool_groups(candidates: Candidates) -> IntArray:
    """Return the groups that samples of a pool may have: candidates inside the affine hull, and all seen groups."""
    inside = candidates.groups[candidates.inside_hull]
    return candidates.space.distinct(np.concatenate([inside, candidates.seen_groups]))[0]


def pool_model(rows: StandardisedRows, candidates: Candidates, fitted: StepOne, *, tails: bool = True) -> CRMModel:
    """Compute the bias of every candidate from labelled samples and pool; the first n samples are the labelled ones."""
    n, k = len(rows.features), len(rows.seen.codes)
    moments = energy_moments(fitted.energies[:n], rows.position, rows.weight, k)
    return step_two(candidates, fitted, moments=moments, tails=tails)


def pool_frequency(energies: FloatArray, table: GroupTable, bias: FloatArray, start: FloatArray) -> FloatArray:
    r"""Return the most probable frequencies q of the groups in a pool, (h,), at given energies (N, D) and biases (h,).

    .. math:: q(z) \leftarrow \frac{\tfrac1N \sum_x r_x(z) + \kappa / h}{1 + \kappa}

    with κ = ``UNIFORM_SHARE``, repeated from ``start`` (h,) until it changes little.
    """
    frequency, pseudo = start, UNIFORM_SHARE / len(start)
    for _ in range(FREQUENCY_STEPS):
        found = (_responsibility(energies, table, np.log(frequency) - bias)[1] + pseudo) / (1 + UNIFORM_SHARE)
        change = float(np.abs(found - frequency).max())
        frequency = found
        if change <= FREQUENCY_TOL:
            break
    return frequency


def _responsibility(energies: FloatArray, table: GroupTable, log_score: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the expected one-hot code of each sample (N, D), and the mean responsibility of each group (h,)."""
    code = np.empty_like(energies)

    def of_rows(rows: slice) -> FloatArray:
        total = np.zeros(len(log_score))
        for part in row_blocks(rows.stop - rows.start, table.width + energies.shape[1]):
            block = slice(rows.start + part.start, rows.start + part.stop)
            _, code[block], groups = group_expectations(
                energies[block], np.ones(block.stop - block.start), table, log_score
            )
            total += groups
        return total

    total = sum(over_blocks(of_rows, len(energies)), np.zeros(len(log_score)))
    return code, total / len(energies)


def _as_step_one(problem: ExpectedProblem, solution: Solution, rows: StandardisedRows, before: StepOne) -> StepOne:
    """Return a fit to labelled samples and pool as a ``StepOne``; its iterations are added to those of ``before``."""
    assert isinstance(problem.rows, ArrayRows)
    energies = linear_energies(problem.rows.features, solution.weight)
    unused = np.zeros(len(energies), dtype=np.int64)  # step 2 needs groups only for the moments, which are passed to it
    samples = ArrayRows(energies, unused, problem.rows.weight)
    counted = solution._replace(n_iter=before.solution.n_iter + solution.n_iter)
    return StepOne(counted, 1.0, solution.bias, problem.frequency, problem.seen, rows.standard, samples)


def group_bias(fitted: StepOne, table: GroupTable) -> FloatArray:
    """Return B* of the groups of a table, (h,)."""
    assert isinstance(fitted.rows, ArrayRows)
    sums = replace(fitted.rows, block_rows=rows_worth_merging(table)).total(
        step_two_sums, StepTwoSums.merge, None, fitted.seen, np.log(fitted.frequency) - fitted.bias, (table,)
    )
    bias: FloatArray = extrapolated_bias(table, sums.bias[0]).bias
    return bias
