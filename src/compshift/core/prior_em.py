r"""The likelihood of a prior over groups, given what each input says of them.

Which groups unlabelled inputs cannot tell apart.

How far a prior is known that was estimated from unlabelled inputs.

The prior over groups that unlabelled inputs came from (Saerens, Latinne, Decaestecker, 2002).

With log ratios l(x, z) = log q(z|x) − log q(z), in which any term of x alone cancels, the prior is the maximiser of

.. math:: F(\pi) = \sum_x \omega_x \log \sum_z \pi_z e^{l(x, z)} + (a - 1) \sum_z \log \pi_z

over the simplex. F is concave. Each EM step replaces π by mean responsibilities, which never lowers F:

.. math:: \pi_z \leftarrow \frac{\sum_x \omega_x r(x, z) + a - 1}{\sum_x \omega_x + g (a - 1)}, \qquad
    r(x, z) = \frac{\pi_z e^{l(x, z)}}{\sum_{z'} \pi_{z'} e^{l(x, z')}}
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from compshift.core.arrays import BoolArray, FloatArray, IntArray, log_softmax, logsumexp, row_blocks


class Mixture(NamedTuple):
    """Likelihood ratios, each row divided by its largest, so that exponentials neither overflow nor vanish together."""

    ratio: FloatArray  # (n, g) from 0 to 1
    log_scale: FloatArray  # (n,)
    weight: FloatArray  # (n,)
    pseudo: float  # a − 1

    @classmethod
    def of(cls, log_ratio: FloatArray, sample_weight: FloatArray, concentration: float) -> Mixture:
        """Of log ratios (n, g), with a finite one in every row."""
        log_scale = log_ratio.max(axis=1)
        return cls(np.exp(log_ratio - log_scale[:, None]), log_scale, sample_weight, concentration - 1)

    @property
    def total(self) -> float:
        """Rows and pseudo-rows."""
        return float(self.weight.sum() + self.ratio.shape[1] * self.pseudo)

    def log_likelihood(self, log_prior: FloatArray) -> float:
        """Σ ω log Σ π exp(l)."""
        return float(self.weight @ (np.log(self.ratio @ np.exp(log_prior)) + self.log_scale))

    def objective(self, log_prior: FloatArray) -> float:
        """The objective F."""
        penalty = self.pseudo * float(log_prior.sum()) if self.pseudo > 0 else 0.0
        return self.log_likelihood(log_prior) + penalty

    def log_growth(self, log_prior: FloatArray) -> FloatArray:
        """Logarithm of what an EM step multiplies each probability by, (g,): the slope of F by that of Σ π, per row.

        Its largest entry d bounds what F may gain: F is concave, so it gains at most total · (e^d − 1).
        """
        share = self.weight / (self.ratio @ np.exp(log_prior))  # (n,)
        slope = share @ self.ratio  # (g,)
        if self.pseudo > 0:
            slope = slope + self.pseudo * np.exp(-log_prior)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(slope) - math.log(self.total))

    def em_step(self, log_prior: FloatArray) -> FloatArray:
        """The next prior, (g,)."""
        return normalised(log_prior + self.log_growth(log_prior))


def normalised(log_prior: FloatArray) -> FloatArray:
    """With probabilities that sum to 1."""
    return np.asarray(log_prior - logsumexp(log_prior, axis=0))


PAIR_CELLS = 1 << 27
"""About so many differences of log ratios are looked at in search of groups that cannot be told apart."""

FEWEST_PAIR_ROWS = 50
"""At least so many rows are looked at for it, however many groups there are."""


def told_apart(log_ratio: FloatArray, sample_weight: FloatArray, log_prior: FloatArray) -> FloatArray:
    r"""Share of the information on the split of two groups that inputs keep, (g, g): 0 if they look the same, 1 if not.

    .. math:: \frac{\sum_x t_x \tanh^2 \tfrac12 (l(x, z) - l(x, z'))}{\sum_x t_x}, \qquad
        t_x = \omega_x (r(x, z) + r(x, z'))

    It is the observed information on the split of a half and half mixture by that of known groups, over the rows that
    either group is responsible for. With many groups, evenly spaced rows stand for all.
    """
    n_rows, n_groups = log_ratio.shape
    step = max(1, n_rows // max(FEWEST_PAIR_ROWS, PAIR_CELLS // n_groups**2))
    ratio, weight = log_ratio[::step], sample_weight[::step]
    responsibility = weight[:, None] * np.exp(log_softmax(ratio + log_prior))  # (n, g)
    result = np.ones((n_groups, n_groups))
    for group in range(n_groups - 1):
        others = slice(group + 1, n_groups)
        with np.errstate(invalid="ignore"):
            difference = ratio[:, others] - ratio[:, group, None]
        both = np.nan_to_num(np.tanh(difference / 2) ** 2, nan=0.0)  # −inf less −inf: rows of neither
        rows = responsibility[:, others] + responsibility[:, group, None]
        total = rows.sum(axis=0)
        share = np.where(total > 0, (rows * both).sum(axis=0) / np.where(total > 0, total, 1.0), 1.0)
        result[group, others] = result[others, group] = share
    return result


def confused_pairs(apart: FloatArray, share: float) -> IntArray:
    """Pairs of groups (q, 2) that keep less than ``share`` of the information, the worst first."""
    left, right = np.nonzero(np.triu(apart < share, k=1))
    order = np.argsort(apart[left, right], kind="stable")
    return np.stack([left[order], right[order]], axis=1)


FEWEST_PRESENT = 0.01
"""A group that is given fewer rows than this at the likelihood's maximum counts as absent: the maximum has it at 0."""


def intervals(mixture: Mixture, prior: FloatArray, squared: float) -> tuple[FloatArray, FloatArray]:
    r"""Ends of an interval of each probability, z standard errors to each side, (g,) each; ``squared`` is z².

    The variance of each exceeds π (1 − π) / N, that of N rows whose groups are known, by c/N. An interval π̂ ± z √v
    would leave [0, 1], and at 0 rest on a slope. So the ends are those of Wilson's score interval with that excess:

    .. math:: N (\hat\pi - \pi)^2 = z^2 (\pi (1 - \pi) + c)

    which is Wilson's own interval where groups are told apart with certainty, be there rows of them or not.
    """
    excess = _likelihood_excess(mixture, prior, squared)
    likely = np.where(_present(mixture, prior), prior, 0.0)
    ratio = squared / mixture.total  # z²/N
    centre = (likely + ratio / 2) / (1 + ratio)
    half = np.sqrt(ratio * (likely * (1 - likely) + excess) + (ratio / 2) ** 2 + ratio**2 * excess) / (1 + ratio)
    return np.clip(centre - half, 0.0, 1.0), np.clip(centre + half, 0.0, 1.0)


def effective_rows(mixture: Mixture, prior: FloatArray) -> FloatArray:
    """N π (1 − π) / (π (1 − π) + c): rows with known groups that would tell as much, (g,)."""
    if mixture.pseudo > 0:
        information = _information(mixture, prior)
        information[np.diag_indices(len(prior))] += mixture.pseudo / prior**2
        binomial = prior * (1 - prior)
        excess = np.maximum(mixture.total * _variance(*_axes(information, prior, mixture.total)) - binomial, 0.0)
    else:  # an absent group has no binomial variance at 0: it is taken with half a row of each group added
        excess = _likelihood_excess(mixture, prior, 1.0)
        smooth = (mixture.total * prior + 0.5) / (mixture.total + len(prior) / 2)
        binomial = smooth * (1 - smooth)
    known = np.where(excess > 0, binomial / np.where(excess > 0, binomial + excess, 1.0), 1.0)
    return np.asarray(mixture.total * known)


def _present(mixture: Mixture, prior: FloatArray) -> BoolArray:
    """Which groups the likelihood's maximum does not have at 0, (g,)."""
    return np.asarray(prior >= FEWEST_PRESENT * min(1 / mixture.total, float(prior.max())))


def _likelihood_excess(mixture: Mixture, prior: FloatArray, squared: float) -> FloatArray:
    r"""The excess c of each group at the likelihood's maximum, (g,): 0 if its rows are known, large if nothing tells.

    Groups that are present vary among themselves, and c is N v − π (1 − π) with v from the inverse information. An
    absent group can but grow, and the likelihood then falls by a slope, on which the information is silent, and by a
    curvature. It has fallen by z²/2 at the share p with

    .. math:: 2 (N - \sum_x \omega_x s_z) \, p + k p^2 = z^2

    in which k is the information along the move that costs least, p for the group and p d for those present, Σ d = −1.
    Where the group would be known, p is z²/2N, half of Wilson's end at 0, which is z²/2N + √(z⁴/4N² + z² c/N). So c is
    such that this root is p: it is k's own N/k without slope, and 0 with the whole one. What an absent group may take
    from the present ones adds d² c to theirs.
    """
    total, present = mixture.total, _present(mixture, prior)
    information, excess = _information(mixture, prior), np.empty(len(prior))
    inner, cross = information[np.ix_(present, present)], information[np.ix_(present, ~present)]
    share = prior[present]
    values, axes = _axes(inner, share, total)
    excess[present] = np.maximum(total * _variance(values, axes) - share * (1 - share), 0.0)
    if present.all():
        return excess
    move = np.repeat(-share[:, None] / share.sum(), cross.shape[1], axis=1)  # (v, u)
    inverse = np.where(values > 0, 1 / np.where(values > 0, values, 1.0), 0.0)
    move -= axes.T @ (inverse[:, None] * (axes @ (cross + inner @ move)))
    curvature = np.diag(information)[~present] + (move * (2 * cross + inner @ move)).sum(axis=0)  # (u,)
    slope = np.maximum(total - (mixture.weight / (mixture.ratio @ prior)) @ mixture.ratio[:, ~present], 0.0)
    farthest = squared / np.maximum(slope + np.sqrt(slope**2 + squared * np.maximum(curvature, 0.0)), squared)
    excess[~present] = np.maximum(total * farthest**2 / squared - squared / (4 * total), 0.0)
    excess[present] += (move**2 * excess[~present]).max(axis=1)
    return excess


def _information(mixture: Mixture, prior: FloatArray) -> FloatArray:
    r"""Observed information of the rows, (g, g).

    .. math:: J = \sum_x \omega_x s s^\top, \qquad s_z = e^{l(x, z)} / \sum_{z'} \pi_{z'} e^{l(x, z')}
    """
    information = np.zeros((len(prior), len(prior)))
    for rows in row_blocks(len(mixture.ratio), len(prior), cells=1 << 20):
        share = mixture.ratio[rows] / (mixture.ratio[rows] @ prior)[:, None]
        information += (share * mixture.weight[rows, None]).T @ share
    return information


def _axes(information: FloatArray, prior: FloatArray, total: float) -> tuple[FloatArray, FloatArray]:
    """Directions of changes that sum to 0 and are independent of each other, (g − 1, g), and the information on each.

    In units of √π the information of known groups is N times the identity, so that rare groups keep their digits. An
    information of next to none is given as 0.
    """
    unit = np.sqrt(prior)
    normal = unit / np.linalg.norm(unit)  # Σ of changes is 0: in these units, they are orthogonal to √π
    basis = np.linalg.svd(normal[None, :])[2][1:]  # (g − 1, g)
    values, vectors = np.linalg.eigh(basis @ (information * np.outer(unit, unit)) @ basis.T)
    axes = (vectors.T @ basis) * unit
    return np.where(values > 1e-12 * total, values, 0.0), axes


def _variance(values: FloatArray, axes: FloatArray) -> FloatArray:
    """Variance of each probability, (g,); infinite where nothing tells how to divide it."""
    known = values > 0
    variance = (axes[known] ** 2 / values[known, None]).sum(axis=0)
    unit = np.sqrt((axes**2).sum(axis=0))
    moved = (np.abs(axes[~known]) > 1e-6 * unit).any(axis=0)
    return np.where(moved, np.inf, variance)


FARTHEST = 10.0
"""A leap changes no log probability by more than this."""

INTERVAL_TOL = 1e-3
"""Nats to which the likelihood is maximised for the intervals: they are off by a twentieth of a standard error."""


class PriorEstimate(NamedTuple):
    """The most probable prior, how far it is known, and how it was found."""

    log_prior: FloatArray  # (g,)
    lower: FloatArray  # (g,) ends of the interval of each probability
    upper: FloatArray  # (g,)
    effective_rows: FloatArray  # (g,) rows with known groups that would tell as much, pseudo-rows included
    told_apart: FloatArray  # (g, g) share of the information about a split between two groups, 1 on the diagonal
    log_likelihood: float  # Σ ω log Σ π exp(l), relative to that of the ratios' own scale
    objective: float  # the same with the Dirichlet prior's Σ (a − 1) log π
    gap: float  # bound on what the objective may still gain, in nats
    n_iter: int
    converged: bool


def estimate_log_prior(
    log_ratio: FloatArray,
    sample_weight: FloatArray,
    *,
    concentration: float = 2.0,
    confidence: float = 0.9,
    tol: float = 1e-6,
    max_iter: int = 10_000,
) -> PriorEstimate:
    """The prior π (g,) that maximises F, by EM; ``log_ratio`` (n, g) is l(x, z), ``sample_weight`` (n,) is ω > 0.

    A ``concentration`` a of 1 is maximum likelihood; above it, a − 1 pseudo-rows of each group pull to the uniform
    prior. Two EM steps and a leap along their direction (SQUAREM; Varadhan, Roland, 2008) make an iteration; a leap
    that would lower F is not taken. It has converged if F is known to be within ``tol`` of its maximum; since F is in
    nats, π then is within √(2 tol) standard errors of the maximiser.

    Intervals are those of the likelihood alone, at its own maximum: pseudo-rows would keep them away from 0, where the
    share of an absent group is. They are widened to hold the estimate, if need be. That of an absent group is as wide
    as rows which are surely of other groups allow: Wilson's, if all of them are.
    """
    mixture = Mixture.of(log_ratio, sample_weight, concentration)
    n_groups = log_ratio.shape[1]
    log_prior, gap, n_iter = _maximise(mixture, np.full(n_groups, -math.log(n_groups)), tol, max_iter)
    likelihood = mixture._replace(pseudo=0.0)
    most_likely = log_prior if mixture.pseudo == 0 else _maximise(likelihood, log_prior, INTERVAL_TOL, max_iter)[0]
    squared = NormalDist().inv_cdf(0.5 + confidence / 2) ** 2
    lower, upper = intervals(likelihood, np.exp(most_likely), squared)
    prior = np.exp(log_prior)
    return PriorEstimate(
        log_prior=log_prior,
        lower=np.minimum(lower, prior),
        upper=np.maximum(upper, prior),
        effective_rows=effective_rows(mixture, prior),
        told_apart=told_apart(log_ratio, sample_weight, log_prior),
        log_likelihood=mixture.log_likelihood(log_prior),
        objective=mixture.objective(log_prior),
        gap=gap,
        n_iter=n_iter,
        converged=gap <= tol,
    )


def _maximise(mixture: Mixture, log_prior: FloatArray, tol: float, max_iter: int) -> tuple[FloatArray, float, int]:
    """The maximiser of F from a prior without zeros, what F may still gain there, and the iterations it took."""
    n_iter, gap = 0, _gap(mixture, log_prior)
    while gap > tol and n_iter < max_iter:
        log_prior = _leap(mixture, log_prior)
        n_iter, gap = n_iter + 1, _gap(mixture, log_prior)
    return log_prior, gap, n_iter


def _gap(mixture: Mixture, log_prior: FloatArray) -> float:
    """What F may still gain, at most."""
    return mixture.total * math.expm1(max(float(mixture.log_growth(log_prior).max()), 0.0))


def _leap(mixture: Mixture, start: FloatArray) -> FloatArray:
    """Two EM steps, or a point beyond them if F is no lower there."""
    first = mixture.em_step(start)
    second = mixture.em_step(first)
    alive = second > -np.inf
    step = first[alive] - start[alive]
    bend = second[alive] - first[alive] - step
    size = float(np.linalg.norm(bend))
    if size == 0:
        return second
    length = max(float(np.linalg.norm(step)) / size, 1.0)  # 1 gives the second EM step
    beyond = second.copy()
    leap = start[alive] + 2 * length * step + length**2 * bend
    beyond[alive] = np.clip(leap, second[alive] - FARTHEST, second[alive] + FARTHEST)
    beyond = mixture.em_step(normalised(beyond))
    return beyond if mixture.objective(beyond) >= mixture.objective(second) else second
