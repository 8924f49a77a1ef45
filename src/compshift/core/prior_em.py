r"""Estimation of the prior over groups from unlabelled samples by EM (Saerens, Latinne, Decaestecker, 2002).

Let l(x, z) = log q(z|x) − log q(z) be log ratios; a term that depends on x alone cancels. The estimate π maximises

.. math:: F(\pi) = \sum_x \omega_x \log \sum_z \pi_z e^{l(x, z)} + (a - 1) \sum_z \log \pi_z

over the simplex. F is concave. Each EM step replaces π by the mean responsibilities, which never decreases F:

.. math:: \pi_z \leftarrow \frac{\sum_x \omega_x r(x, z) + a - 1}{\sum_x \omega_x + g (a - 1)}, \qquad
    r(x, z) = \frac{\pi_z e^{l(x, z)}}{\sum_{z'} \pi_{z'} e^{l(x, z')}}
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from compshift.core.arrays import BoolArray, FloatArray, IntArray, log_softmax, logsumexp, row_blocks

PAIR_CELLS = 1 << 25
"""Target number of log-ratio differences in ``separability``; if there would be more, it skips samples."""

MIN_PAIR_ROWS = 50
"""Minimum number of samples that ``separability`` uses; with fewer samples it uses all."""

MIN_PRESENT_ROWS = 0.01
"""Expected number of samples below which a group counts as absent, with a maximum-likelihood probability of 0."""

MAX_LOG_STEP = 10.0
"""Maximum change of a log probability by one SQUAREM extrapolation, relative to the second EM step."""

INTERVAL_TOL = 1e-3
"""Tolerance in nats of the maximum-likelihood fit for the intervals; they move by about 1/20 of a standard error."""


class Mixture(NamedTuple):
    """Likelihood of a prior over groups, from likelihood ratios; each row is scaled to a maximum of 1."""

    ratio: FloatArray  # (n, g) exp(l − log_scale), from 0 to 1
    log_scale: FloatArray  # (n,) maximum of l over the groups
    weight: FloatArray  # (n,) sample weights ω
    pseudo: float  # a − 1, the number of pseudo-samples per group

    @classmethod
    def of(cls, log_ratio: FloatArray, sample_weight: FloatArray, concentration: float) -> Mixture:
        """Return the mixture for log ratios (n, g); every row needs a finite entry."""
        log_scale = log_ratio.max(axis=1)
        return cls(np.exp(log_ratio - log_scale[:, None]), log_scale, sample_weight, concentration - 1)

    @property
    def total(self) -> float:
        """Total weight of samples and pseudo-samples."""
        return float(self.weight.sum() + self.ratio.shape[1] * self.pseudo)

    def log_likelihood(self, log_prior: FloatArray) -> float:
        """Return the log-likelihood Σ ω log Σ π exp(l)."""
        return float(self.weight @ (np.log(self.ratio @ np.exp(log_prior)) + self.log_scale))

    def objective(self, log_prior: FloatArray) -> float:
        """Return the objective F."""
        penalty = self.pseudo * float(log_prior.sum()) if self.pseudo > 0 else 0.0
        return self.log_likelihood(log_prior) + penalty

    def log_growth(self, log_prior: FloatArray) -> FloatArray:
        """Return the log of the factor by which an EM step multiplies each probability, (g,).

        The factor is the derivative of F divided by the total weight. If d is the largest of the logs, F can increase
        by at most total · (e^d − 1), because F is concave.
        """
        share = self.weight / (self.ratio @ np.exp(log_prior))  # (n,)
        slope = share @ self.ratio  # (g,)
        if self.pseudo > 0:
            slope = slope + self.pseudo * np.exp(-log_prior)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(slope) - math.log(self.total))

    def em_step(self, log_prior: FloatArray) -> FloatArray:
        """Return the log prior (g,) after one EM step."""
        return normalised(log_prior + self.log_growth(log_prior))


def normalised(log_prior: FloatArray) -> FloatArray:
    """Return the log prior shifted so that its probabilities sum to 1."""
    return np.asarray(log_prior - logsumexp(log_prior, axis=0))


def separability(log_ratio: FloatArray, sample_weight: FloatArray, log_prior: FloatArray) -> FloatArray:
    r"""Return how well samples distinguish each pair of groups, (g, g): 0 if not at all, 1 if without any confusion.

    .. math:: \frac{\sum_x t_x \tanh^2 \tfrac12 (l(x, z) - l(x, z'))}{\sum_x t_x}, \qquad
        t_x = \omega_x (r(x, z) + r(x, z'))

    This is the observed information about the share of each group in an even mixture of the two, divided by the
    information of labelled samples; t weights the samples by the responsibilities of the two groups. With many groups,
    only evenly spaced samples are used.
    """
    n_rows, n_groups = log_ratio.shape
    step = max(1, n_rows // max(MIN_PAIR_ROWS, PAIR_CELLS // n_groups**2))
    ratio, weight = log_ratio[::step], sample_weight[::step]
    responsibility = weight[:, None] * np.exp(log_softmax(ratio + log_prior))  # (n, g)
    result = np.ones((n_groups, n_groups))
    for group in range(n_groups - 1):
        others = slice(group + 1, n_groups)
        with np.errstate(invalid="ignore"):
            difference = ratio[:, others] - ratio[:, group, None]
        both = np.nan_to_num(np.tanh(difference / 2) ** 2, nan=0.0)  # −inf minus −inf: impossible in both groups
        rows = responsibility[:, others] + responsibility[:, group, None]
        total = rows.sum(axis=0)
        share = np.where(total > 0, (rows * both).sum(axis=0) / np.where(total > 0, total, 1.0), 1.0)
        result[group, others] = result[others, group] = share
    return result


def confused_pairs(separability: FloatArray, threshold: float) -> IntArray:
    """Return the pairs of groups (q, 2) whose separability is below ``threshold``, lowest first."""
    left, right = np.nonzero(np.triu(separability < threshold, k=1))
    order = np.argsort(separability[left, right], kind="stable")
    return np.stack([left[order], right[order]], axis=1)


def intervals(mixture: Mixture, prior: FloatArray, squared: float) -> tuple[FloatArray, FloatArray]:
    r"""Return the lower and upper ends, (g,) each, of an interval for each probability.

    The variance v of a probability is the variance for N labelled samples, π (1 − π) / N, plus an excess c/N. With z a
    normal quantile, an interval π̂ ± z √v could leave [0, 1] and would be wrong at 0. The ends are instead the solutions
    π of Wilson's equation with the excess, where z² is ``squared``:

    .. math:: N (\hat\pi - \pi)^2 = z^2 (\pi (1 - \pi) + c)

    For groups that are never confused c is 0, and this is Wilson's score interval, even for a group without samples.
    """
    excess = np.minimum(_likelihood_excess(mixture, prior, squared), np.finfo(np.float64).max / 4)  # 0 · ∞ is NaN
    likely = np.where(_present(mixture, prior), prior, 0.0)
    return _wilson_ends(likely, excess, squared / mixture.total)


def _wilson_ends(share: FloatArray, excess: FloatArray, ratio: float) -> tuple[FloatArray, FloatArray]:
    """Return both solutions of the equation of ``intervals``, (g,) each; ``ratio`` is z²/N."""
    centre = (share + ratio / 2) / (1 + ratio)
    half = np.sqrt(ratio * (share * (1 - share) + excess) + (ratio / 2) ** 2 + ratio**2 * excess) / (1 + ratio)
    return np.clip(centre - half, 0.0, 1.0), np.clip(centre + half, 0.0, 1.0)


def wilson_interval(
    share: FloatArray, variance: FloatArray, n_rows: int, confidence: float
) -> tuple[FloatArray, FloatArray]:
    """Return the ends, (g,) each, of intervals of estimated shares with these variances, but at least binomial ones."""
    squared = NormalDist().inv_cdf(0.5 + confidence / 2) ** 2
    return _wilson_ends(share, np.maximum(n_rows * variance - share * (1 - share), 0.0), squared / n_rows)


def effective_rows(mixture: Mixture, prior: FloatArray) -> FloatArray:
    """Return the number of labelled samples with the same information about each probability, (g,).

    It is N π (1 − π) / (π (1 − π) + c), with N and the excess c as in ``intervals``.
    """
    if mixture.pseudo > 0:
        information = _information(mixture, prior)
        information[np.diag_indices(len(prior))] += mixture.pseudo / prior**2
        binomial = prior * (1 - prior)
        excess = np.maximum(mixture.total * _variance(*_axes(information, prior, mixture.total)) - binomial, 0.0)
    else:  # the binomial variance is 0 for an absent group: add half a sample to each group
        excess = _likelihood_excess(mixture, prior, 1.0)
        smooth = (mixture.total * prior + 0.5) / (mixture.total + len(prior) / 2)
        binomial = smooth * (1 - smooth)
    known = np.where(excess > 0, binomial / np.where(excess > 0, binomial + excess, 1.0), 1.0)
    return np.asarray(mixture.total * known)


def _present(mixture: Mixture, prior: FloatArray) -> BoolArray:
    """Return whether each group has a maximum-likelihood probability above 0, (g,)."""
    return np.asarray(prior >= MIN_PRESENT_ROWS * min(1 / mixture.total, float(prior.max())))


def _likelihood_excess(mixture: Mixture, prior: FloatArray, squared: float) -> FloatArray:
    r"""Return the excess c of each group at the maximum of the likelihood, (g,); 0 if it is never confused with others.

    For a group with a probability above 0, c is N v − π (1 − π), with the variance v from the inverse information. The
    probability of an absent group is 0 and can only increase. The log-likelihood then decreases with a slope (not part
    of the information) and a curvature. It has decreased by z²/2 at the probability p with

    .. math:: 2 (N - \sum_x \omega_x s_z) \, p + k p^2 = z^2

    where s_z is as in ``_information`` and k is the information along the direction of least decrease: the group gains
    p and each present group changes by p d, with Σ d = −1. For a group that is never confused, p is z²/2N. Wilson's
    upper end at 0 is z²/2N + √(z⁴/4N² + z² c/N); the excess c is chosen so that the square root equals p. Probability
    that an absent group may take from the present groups adds d² c to their excess.
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
    r"""Return the observed information of the samples, (g, g).

    .. math:: J = \sum_x \omega_x s s^\top, \qquad s_z = e^{l(x, z)} / \sum_{z'} \pi_{z'} e^{l(x, z')}
    """
    information = np.zeros((len(prior), len(prior)))
    for rows in row_blocks(len(mixture.ratio), len(prior), cells=1 << 20):
        share = mixture.ratio[rows] / (mixture.ratio[rows] @ prior)[:, None]
        information += (share * mixture.weight[rows, None]).T @ share
    return information


def _axes(information: FloatArray, prior: FloatArray, total: float) -> tuple[FloatArray, FloatArray]:
    """Return the information (g − 1,) along uncorrelated directions, and these directions (g − 1, g), which sum to 0.

    In units of √π the information of labelled samples is N times the identity, so rare groups lose no digits.
    Information below 1e-12 of the total weight is returned as 0.
    """
    unit = np.sqrt(prior)
    normal = unit / np.linalg.norm(unit)  # changes of π sum to 0, so in these units they are orthogonal to √π
    basis = np.linalg.svd(normal[None, :])[2][1:]  # (g − 1, g)
    values, vectors = np.linalg.eigh(basis @ (information * np.outer(unit, unit)) @ basis.T)
    axes = (vectors.T @ basis) * unit
    return np.where(values > 1e-12 * total, values, 0.0), axes


def _variance(values: FloatArray, axes: FloatArray) -> FloatArray:
    """Return the variance of each probability, (g,); infinite if it changes along a direction without information."""
    known = values > 0
    variance = (axes[known] ** 2 / values[known, None]).sum(axis=0)
    unit = np.sqrt((axes**2).sum(axis=0))
    moved = (np.abs(axes[~known]) > 1e-6 * unit).any(axis=0)
    return np.where(moved, np.inf, variance)


class PriorEstimate(NamedTuple):
    """The estimated prior, its uncertainty, and the convergence of EM."""

    log_prior: FloatArray  # (g,)
    lower: FloatArray  # (g,) lower end of the interval of each probability
    upper: FloatArray  # (g,) upper end of the interval of each probability
    effective_rows: FloatArray  # (g,) number of labelled samples with the same information, including pseudo-samples
    separability: FloatArray  # (g, g) from 0 (indistinguishable) to 1 (never confused); 1 on the diagonal
    log_likelihood: float  # Σ ω log Σ π exp(l)
    objective: float  # F: the log-likelihood plus the Dirichlet prior's Σ (a − 1) log π
    gap: float  # upper bound on the remaining increase of the objective, in nats
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
    """Return the prior π (g,) that maximises F, by EM.

    ``log_ratio`` (n, g) is l(x, z), ``sample_weight`` (n,) is ω > 0.

    A ``concentration`` a of 1 gives maximum likelihood; a larger a adds a − 1 pseudo-samples per group, which pull π
    towards the uniform prior. An iteration consists of two EM steps and an extrapolation (SQUAREM; Varadhan, Roland,
    2008), which is skipped if it would decrease F. EM has converged if F is within ``tol`` nats of its maximum; π is
    then within √(2 tol) standard errors of the maximiser.

    Intervals are computed from the likelihood alone, at its maximum, because pseudo-samples would keep them away from
    0, the probability of an absent group. If necessary, they are widened to contain the estimate. The interval of a
    group that is never confused with others is Wilson's.
    """
    mixture = Mixture.of(log_ratio, sample_weight, concentration)
    n_groups = log_ratio.shape[1]
    log_prior, gap, n_iter = maximise(mixture, np.full(n_groups, -math.log(n_groups)), tol, max_iter)
    likelihood = mixture._replace(pseudo=0.0)
    most_likely = log_prior if mixture.pseudo == 0 else maximise(likelihood, log_prior, INTERVAL_TOL, max_iter)[0]
    squared = NormalDist().inv_cdf(0.5 + confidence / 2) ** 2
    lower, upper = intervals(likelihood, np.exp(most_likely), squared)
    prior = np.exp(log_prior)
    return PriorEstimate(
        log_prior=log_prior,
        lower=np.minimum(lower, prior),
        upper=np.maximum(upper, prior),
        effective_rows=effective_rows(mixture, prior),
        separability=separability(log_ratio, sample_weight, log_prior),
        log_likelihood=mixture.log_likelihood(log_prior),
        objective=mixture.objective(log_prior),
        gap=gap,
        n_iter=n_iter,
        converged=gap <= tol,
    )


def maximise(mixture: Mixture, log_prior: FloatArray, tol: float, max_iter: int) -> tuple[FloatArray, float, int]:
    """Return the maximiser of F, the remaining gap and the number of iterations; start at a prior without zeros."""
    n_iter, gap = 0, _gap(mixture, log_prior)
    while gap > tol and n_iter < max_iter:
        log_prior = _squarem_step(mixture, log_prior)
        n_iter, gap = n_iter + 1, _gap(mixture, log_prior)
    return log_prior, gap, n_iter


def _gap(mixture: Mixture, log_prior: FloatArray) -> float:
    """Return an upper bound on the difference between the maximum of F and F at this prior."""
    return mixture.total * math.expm1(max(float(mixture.log_growth(log_prior).max()), 0.0))


def _squarem_step(mixture: Mixture, start: FloatArray) -> FloatArray:
    """Return the log prior after two EM steps, or an extrapolation of them if its F is at least as high."""
    first = mixture.em_step(start)
    second = mixture.em_step(first)
    alive = second > -np.inf
    step = first[alive] - start[alive]
    bend = second[alive] - first[alive] - step
    size = float(np.linalg.norm(bend))
    if size == 0:
        return second
    length = max(float(np.linalg.norm(step)) / size, 1.0)  # 1 gives the second EM step
    candidate = second.copy()
    extrapolated = start[alive] + 2 * length * step + length**2 * bend
    candidate[alive] = np.clip(extrapolated, second[alive] - MAX_LOG_STEP, second[alive] + MAX_LOG_STEP)
    candidate = mixture.em_step(normalised(candidate))
    return candidate if mixture.objective(candidate) >= mixture.objective(second) else second
