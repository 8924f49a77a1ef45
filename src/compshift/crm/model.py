"""A fitted CRM model: linear energies, biases of the candidate groups, and the log-probabilities they give."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from compshift._checks import check_no_overflow
from compshift._errors import ExtrapolationWarning, InputError
from compshift.core.arrays import (
    BLOCK_CELLS,
    DEVICE_BLOCK_CELLS,
    FloatArray,
    IntArray,
    empty_like,
    is_other_library,
    like,
    namespace,
    row_blocks,
)
from compshift.core.bias import ENOUGH_SAMPLES
from compshift.core.candidates import Candidates
from compshift.core.energy import linear_energies
from compshift.core.folds import ranks_in_group
from compshift.core.posterior import group_log_posterior, marginal_log_posterior, marginal_log_sums
from compshift.core.sparse import Features
from compshift.crm.blocks import over_blocks
from compshift.crm.linear_columns import LinearColumns, TreesAndColumns
from compshift.crm.problem import transformed
from compshift.crm.trees import Trees

BIASES = ("extrapolated", "learned", "cumulant", "shrunk")
"""Kinds of bias: B*; the learned bias, which is 0 for unseen groups; the cumulant bias, from two moments of the
energies; and B* shrunk towards the cumulant bias for groups with a low effective sample size."""

MAX_TAIL_INDEX = 1.0
"""Pareto k̂ above which a fit warns: the importance weights then do not even have a mean."""

MAX_FOLD_ROWS = 20_000
"""Largest number of samples whose out-of-fold energies a model keeps."""


class OutOfFold(NamedTuple):
    """Energies of training samples by fits to other samples, and the calibration that gives importance weights.

    The importance weights of the samples use the energies times ``temperature``, and ``bias`` for the seen groups. Both
    are fitted to the out-of-fold energies, which differ too little between groups if the ridge is strong, and too much
    if it is weak.
    """

    energies: FloatArray  # (r, D) on the scale of the model's energies
    position: IntArray  # (r,) index of each sample's seen group
    weight: FloatArray  # (r,) sample weights, above 0
    temperature: float
    bias: FloatArray  # (k,) bias of the seen groups for the energies times ``temperature``

    @classmethod
    def of(
        cls, energies: FloatArray, position: IntArray, weight: FloatArray, temperature: float, bias: FloatArray
    ) -> OutOfFold:
        """Keep at most ``MAX_FOLD_ROWS`` samples: random ones of the largest groups are left out.

        The remaining samples of these groups get larger weights, so that the total weight of each group stays the same.
        """
        if len(position) > MAX_FOLD_ROWS:
            total = np.bincount(position, weight)  # (k,)
            ranks = ranks_in_group(position, np.random.default_rng(0))
            kept = np.sort(np.argsort(ranks, kind="stable")[:MAX_FOLD_ROWS])
            energies, position, weight = energies[kept], position[kept], weight[kept]
            weight = weight * total[position] / np.bincount(position, weight)[position]
        return cls(energies, position, weight, temperature, bias)


class PoolDecision(NamedTuple):
    """Whether a pool of unlabelled samples is used, and why (``pool_decision``)."""

    used: bool
    reason: str  # one sentence
    unseen_share: tuple[float, float, float] = (np.nan, np.nan, np.nan)  # estimated share of unseen groups; interval
    false_share: float = np.nan  # the same estimate for samples that include no unseen group
    excess_distance: float = np.nan  # mean log distance to the nearest training samples, less that of held-out groups
    held_out: tuple[float, ...] = ()  # mean accuracy on held-out groups after each round, from round 0
    seen: tuple[float, ...] = ()  # mean accuracy on held-out samples of the other groups after each round
    gain: float = np.nan  # rise of the accuracy on held-out groups by the round with the best mean over all groups
    gain_error: float = np.nan  # its standard error

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, eq=False)
class PoolUse:
    """Record of how a fit used a pool of unlabelled samples."""

    n_samples: int
    n_rounds: int  # rounds of EM; 0 if the pool was not used
    decision: PoolDecision
    frequency: FloatArray | None = None  # (g, 4) estimated frequency in the pool, interval, and effective samples
    plain: CRMModel | None = None  # the fit to the labelled samples alone; None if the pool was not used


@dataclass(frozen=True, eq=False)
class CRMModel:
    """Linear energies and the biases of the candidate groups: everything about the fit that a model file stores."""

    candidates: Candidates
    coef: FloatArray  # (D, p)
    feature_mean: FloatArray  # (p,)
    bias: FloatArray  # (g,) B*
    learned_bias: FloatArray  # (g,) B, 0 on unseen groups
    cumulant_bias: FloatArray  # (g,) bias from two moments of the energies; NaN if not computed
    effective_sample_size: FloatArray  # (g,)
    pareto_k: FloatArray  # (g,) tail index of the importance weights in B*; NaN if not computed
    temperature: float  # factor by which cross-fitting multiplied the energies; included in coef
    bias_gap: float  # max |B* − B| over the seen groups
    gradient: float  # largest scaled gradient entry at the end of step 1
    n_iter: int
    converged: bool
    expected: FloatArray | None = None  # (g, 3) expected accuracy and its interval; NaN where it was not estimated
    out_of_fold: OutOfFold | None = None  # for prediction sets; None if they were not computed
    pool: PoolUse | None = None  # None if there were no unlabelled samples
    feature_transform: str = "none"  # of new samples, one of ``problem.TRANSFORMS``
    basis: Trees | LinearColumns | TreesAndColumns | None = None  # computes features of energies from mixed columns

    def with_transform(self, transform: str) -> CRMModel:
        """Return a copy of this model, which was fitted to transformed features, that transforms new samples itself."""
        pool = self.pool
        if pool is not None and pool.plain is not None:
            pool = replace(pool, plain=pool.plain.with_transform(transform))
        return replace(self, pool=pool, feature_transform=transform)

    def bias_of(self, kind: str) -> FloatArray:
        """Return the bias of every candidate, (g,), of the given kind, one of ``BIASES``."""
        if kind == "extrapolated":
            return self.bias
        if kind == "learned":
            return self.learned_bias
        if np.isnan(self.cumulant_bias).any():
            raise InputError(f"bias={kind!r} was not computed for this model: use 'extrapolated' or 'learned'")
        if kind == "cumulant":
            return self.cumulant_bias
        trust = self.effective_sample_size / (self.effective_sample_size + ENOUGH_SAMPLES)
        return trust * self.bias + (1 - trust) * self.cumulant_bias

    def energies(self, X: Features) -> FloatArray:
        """Return the energies (n, D) of samples (n, p) that are not yet transformed, in the library of the samples."""
        features = self.energy_features(X)
        features = features - (like(self.feature_mean, features) if is_other_library(features) else self.feature_mean)
        with np.errstate(over="ignore", invalid="ignore"):  # reported by the check
            energies: FloatArray = check_no_overflow(linear_energies(features, self.coef), "energies")
        return energies

    def energy_features(self, X: FloatArray) -> FloatArray:
        """Return the features (n, q) of which energies are linear functions: transformed, or computed by the basis."""
        return transformed(X, self.feature_transform) if self.basis is None else self.basis.scores(X)

    def marginals(self, X: Features, log_score: FloatArray, attributes: range) -> list[FloatArray]:
        """Return log q(z_i|x) for each of the attributes, (n, d_i) each."""
        return self._attribute_blocks(X, [log_score], attributes, marginal_log_posterior)[0]

    def log_sums(self, X: Features, log_score: FloatArray, attributes: range) -> list[FloatArray]:
        r"""Return the ``marginals`` before they are normalised, (n, d_i) each, up to a term that depends on x alone.

        .. math:: \log \sum_{z: z_i = v} \exp(s(z) - \langle \sigma(z), E(x) \rangle)

        Groups whose ``log_score`` s(z) is −inf are left out. ``logaddexp`` of the results for two disjoint sets of
        groups is the result for their union.
        """
        return self.log_sums_of_scores(X, [log_score], attributes)[0]

    def log_sums_of_scores(
        self, X: Features, log_scores: Sequence[FloatArray], attributes: range
    ) -> list[list[FloatArray]]:
        """Return the ``log_sums`` for each of several scores of groups, from the same energies."""
        return self._attribute_blocks(X, log_scores, attributes, marginal_log_sums)

    def _attribute_blocks(
        self, X: Features, log_scores: Sequence[FloatArray], attributes: range, function: Callable[..., FloatArray]
    ) -> list[list[FloatArray]]:
        """Apply ``function`` to each score and attribute, block by block, and return its results, (n, d_i) each."""
        table, sizes = self.candidates.table, self.candidates.space.cardinalities
        results = [[empty_like(X, (len(X), sizes[attribute])) for attribute in attributes] for _ in log_scores]

        def fill(rows: slice, energies: FloatArray) -> None:
            for log_score, of_score in zip(log_scores, results, strict=True):
                for attribute, result in zip(attributes, of_score, strict=True):
                    result[rows] = function(energies, table, log_score, attribute)

        self._fill_blocks(X, table.width, fill)
        return results

    def log_posterior(self, X: Features, log_score: FloatArray, position: IntArray | None = None) -> FloatArray:
        """Return log q(z|x) of every candidate (n, g), or of the candidates at ``position`` (n, q).

        A position of −1 marks a group that is not a candidate and gives −inf.
        """
        result: FloatArray = empty_like(X, (len(X), len(self.candidates.groups) if position is None else len(position)))

        def fill(rows: slice, energies: FloatArray) -> None:
            result[rows] = group_log_posterior(energies, self.candidates.table, log_score, position)

        self._fill_blocks(X, result.shape[1] + self.candidates.table.width, fill)
        return result

    def best_group(self, X: Features, log_score: FloatArray) -> tuple[IntArray, FloatArray]:
        """Return the position of the most probable candidate of each sample and its log q(z|x), (n,) each."""
        log_proba = empty_like(X, (len(X),))
        best = namespace(log_proba).zeros_like(log_proba, dtype=namespace(log_proba).int64)

        def fill(rows: slice, energies: FloatArray) -> None:
            xp, posterior = namespace(energies), group_log_posterior(energies, self.candidates.table, log_score)
            best[rows] = xp.argmax(posterior, axis=1)
            log_proba[rows] = xp.max(posterior, axis=1)

        self._fill_blocks(X, len(self.candidates.groups), fill)
        return best, log_proba

    def _fill_blocks(self, X: Features, width: int, fill: Callable[[slice, FloatArray], None]) -> None:
        """Call ``fill`` with blocks of samples and their energies.

        ``width`` is the number of array elements that ``fill`` needs per sample.
        """
        if is_other_library(X):
            for block in row_blocks(len(X), width, DEVICE_BLOCK_CELLS):
                fill(block, self.energies(X[block]))
            return

        def fill_rows(rows: slice) -> None:
            for part in row_blocks(rows.stop - rows.start, width, 2 * BLOCK_CELLS):
                block = slice(rows.start + part.start, rows.start + part.stop)
                fill(block, self.energies(X[block]))

        list(over_blocks(fill_rows, len(X)))


def same_prior(log_prior: FloatArray, other: FloatArray) -> bool:
    """Return whether two priors are equal up to rounding."""
    return bool(np.allclose(np.exp(log_prior), np.exp(other), atol=1e-9))


def warn_unless_converged(model: CRMModel, tol: float, max_iter: int) -> None:
    """Warn if a fit did not converge. Call only from ``fit`` itself: ``stacklevel`` assumes that depth."""
    if not model.converged:
        warnings.warn(
            f"the fit stopped after {model.n_iter} iterations at a gradient of {model.gradient:.1e} (tol {tol:g}), "
            f"where biases of seen groups are inexact by up to {model.bias_gap:.1e}: "
            + (
                f"raise max_iter (now {max_iter}), raise alpha, or loosen tol"
                if model.n_iter >= max_iter
                else "rounding errors prevent further progress; raise alpha or loosen tol"
            ),
            ConvergenceWarning,
            stacklevel=3,
        )


def warn_of_unreliable_biases(model: CRMModel, alpha: float | None, bias: str, log_prior: FloatArray) -> None:
    """Warn if predictions use B* and, for an unseen group that the prior gives weight to, B* depends on few samples.

    ``alpha`` is None for estimators without it. Call only from ``fit`` itself: ``stacklevel`` assumes that depth.
    """
    candidates = model.candidates
    asked = (candidates.in_seen < 0) & candidates.inside_hull & (log_prior > -np.inf)
    poor = asked & (model.pareto_k > MAX_TAIL_INDEX)
    if poor.any() and bias == "extrapolated":
        worst = int(np.argmax(np.where(poor, model.pareto_k, -np.inf)))
        label, n = candidates.space.label(candidates.groups[worst]), int(poor.sum())
        which = f"bias of the unseen group {label} rests"
        if n > 1:
            which = f"biases of {n} unseen groups, for example {label}, rest"
        warnings.warn(
            f"the {which} on few samples (Pareto k̂ {model.pareto_k[worst]:.1f}), so predictions of "
            f"{'it' if n == 1 else 'them'} are unreliable: "
            + ("" if alpha is None else f"choose a larger alpha (now {alpha:.2g}), or ")
            + f"collect samples of the group{'s' * (n > 1)}",
            ExtrapolationWarning,
            stacklevel=3,
        )
