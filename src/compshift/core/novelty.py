r"""Tests on unlabelled samples: do groups occur that the labelled samples lack, and samples that fit no group?

*New groups.* Let r(x, u) be the responsibility of the unseen group u for a sample x, under a prior in which every
unseen group has some probability. Samples of seen groups have such responsibilities too: energies of unseen groups are
extrapolated, and groups overlap. How much they have is measured, on labelled samples with out-of-fold energies. With π
the frequencies of the seen groups among the N new samples, and ρ_s(u) the mean responsibility in the seen group s, the
excess

.. math:: \Delta_u = \frac1N \sum_x r(x, u) - \sum_s \pi_s \rho_s(u)

is 0 on average if only seen groups occur, whether or not the energies are right. Its variance has a part from the new
samples and one from the labelled samples of every group; both use a variance pooled over the two samples, because the
labelled samples of a small group may by chance contain none of the rare large responsibilities. Responsibilities are
skewed, so the p-value is that of a gamma distribution with this variance and the pooled third moment.

*Which ones.* Samples of a new group have responsibilities for other unseen groups, too. The group with the smallest
p-value therefore joins the known groups before the others are tested, represented by importance-weighted labelled
samples.

*Samples that fit no group* are far from the mean energies of every group, those of unseen groups being additive, on the
scale of the covariance within groups.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import gammaincc, ndtr

from compshift.core.arrays import FloatArray, IntArray, log_softmax, row_blocks
from compshift.core.conformal import Ranks
from compshift.core.groups import GroupSpace
from compshift.core.prior_em import Mixture, maximise, wilson_interval

LEAST_SHARE = 0.02
"""Least probability of every unseen group in the prior of the responsibilities, relative to that of all seen groups."""

SHARE_TOL = 0.01
"""Tolerance in nats of estimated frequencies."""

MAX_SHARE_STEPS = 1000
"""Largest number of iterations for estimated frequencies."""

LEAST_FREQUENCY = 1e-3
"""Least probability of a group in the prior of the responsibilities from which intervals are computed."""

FLAT = 1e-3
"""Singular values below this multiple of the largest count as 0 when frequencies are derived from responsibilities."""

FEW_ROWS = 30.0
"""Number of samples of a component at which its variance, if it is below that of all, becomes the mean of the two. The
samples of a small group may by chance contain none of the rare large values."""

LEAST_SKEWNESS = 1e-3
"""Skewness below which a distribution counts as normal."""

TOTAL_WEIGHT = 0.5
"""Part of the significance level that is spent on the total responsibility of the unseen groups. If the total is
significant, this part is passed on to the tests of the single groups."""


class Components(NamedTuple):
    """Known groups, each represented by labelled samples: the seen ones by their own, others by weighted samples."""

    position: IntArray  # (r,) seen group of each labelled sample
    weight: FloatArray  # (r,) weights that sum to 1 within every seen group
    further: FloatArray  # (r, f) weights of the samples for further groups; each column sums to 1

    @classmethod
    def of(cls, position: IntArray, sample_weight: FloatArray) -> Components:
        """Return the seen groups as components; every group needs a sample."""
        total = np.bincount(position, sample_weight)
        return cls(position, sample_weight / total[position], np.empty((len(position), 0)))

    def joined(self, *log_weights: FloatArray) -> Components:
        """Return the components with further ones, for which the samples have the given log weights, (r,) each."""
        weights = [np.exp(log_weight - log_weight.max()) for log_weight in log_weights]
        return self._replace(further=np.column_stack([self.further, *(weight / weight.sum() for weight in weights)]))

    @property
    def size(self) -> FloatArray:
        """Effective number of labelled samples of every component, (s,)."""
        return 1 / np.concatenate([np.bincount(self.position, self.weight**2), (self.further**2).sum(axis=0)])

    def means(self, values: FloatArray) -> FloatArray:
        """Return the mean of values (r, q) in every component, (s, q)."""
        own = [np.bincount(self.position, self.weight * column) for column in values.T]
        return np.concatenate([np.stack(own, axis=1), self.further.T @ values])

    def mixed(self, share: FloatArray) -> FloatArray:
        """Return the weight (r,) of every labelled sample in a mixture of the components with shares (s,)."""
        n_seen = len(share) - self.further.shape[1]
        return np.asarray(share[self.position] * self.weight + self.further @ share[n_seen:])


def estimated_shares(log_ratio: FloatArray, concentration: float = 2.0) -> FloatArray:
    """Return the most likely frequencies (s,) of groups with log density ratios (n, s), with a Dirichlet prior."""
    mixture = Mixture.of(log_ratio, np.ones(len(log_ratio)), concentration)
    start = np.full(log_ratio.shape[1], -np.log(log_ratio.shape[1]))
    return np.exp(maximise(mixture, start, SHARE_TOL, MAX_SHARE_STEPS)[0])


def responsibilities(log_ratio: FloatArray, prior: FloatArray) -> FloatArray:
    """Return the posterior of groups with log density ratios (n, s) under a prior (s,), (n, s)."""
    return np.asarray(np.exp(log_softmax(log_ratio + np.log(prior))))


def excess_p_values(labelled: FloatArray, new: FloatArray, components: Components, share: FloatArray) -> FloatArray:
    """Return p-values (q,) of the hypotheses that new samples are a mixture of the components with shares (s,).

    They are small if the mean of ``new`` (n, q), which is not negative, exceeds that expected from ``labelled`` (r, q).
    """
    n, tiny = len(new), 1e-30
    unit = np.maximum(labelled.max(axis=0), new.max(axis=0))
    unit = np.where(unit > 0, unit, 1.0)
    labelled, new = labelled / unit, new / unit
    mean, square = components.means(labelled), components.means(labelled**2)  # (s, q)
    expected, size = share @ mean, components.size[:, None]
    spread = np.maximum(share @ square - expected**2, tiny)  # variance of one sample of the mixture, (q,)
    own = np.maximum(square - mean**2, 0.0)
    own = np.maximum(own, (size * own + FEW_ROWS * spread) / (size + FEW_ROWS))
    rows = spread / np.maximum(share**2 @ (own / size), tiny)  # samples of the mixture with this information
    excess = new.mean(axis=0) - expected
    weight = components.mixed(share)
    second = (n * new.var(axis=0) + rows * spread) / (n + rows)
    third = (n * _third_moment(new, np.full(n, 1 / n)) + rows * _third_moment(labelled, weight)) / (n + rows)
    variance = np.maximum(second * (1 / n + 1 / rows), tiny)
    skewness = np.maximum(third * (1 / n**2 - 1 / rows**2), 0.0) / variance**1.5
    return _upper_tail(excess / np.sqrt(variance), skewness)


def _third_moment(values: FloatArray, weight: FloatArray) -> FloatArray:
    """Return the third central moments of values (n, q) with weights (n,) that sum to 1, (q,)."""
    return np.asarray(weight @ (values - weight @ values) ** 3)


def _upper_tail(deviation: FloatArray, skewness: FloatArray) -> FloatArray:
    """Return the probability above a number of standard deviations, (q,), for a gamma distribution with the skewness.

    The distribution is shifted to the mean 0 (Pearson's type III); with little skewness it is normal.
    """
    skewed = skewness > LEAST_SKEWNESS
    shape = 4 / np.where(skewed, skewness, 1.0) ** 2
    gamma = gammaincc(shape, np.maximum(shape + deviation * np.sqrt(shape), 0.0))
    return np.asarray(np.where(skewed, gamma, ndtr(-deviation)))


class NoveltyTest(NamedTuple):
    """Result of ``find_unseen_groups``; p-values are adjusted, so that each can be compared with the level."""

    total_p_value: float  # that none of the unseen groups occurs
    p_value: FloatArray  # (u,) that the group does not occur
    found: IntArray  # (f,) positions of the groups that occur, most significant first
    components: Components  # the seen groups, then those that were found
    share: FloatArray  # (k + f,) estimated frequencies of the components


def find_unseen_groups(
    labelled: FloatArray, new: FloatArray, known: Components, log_weight: FloatArray, level: float
) -> NoveltyTest:
    """Test for each of u unseen groups whether it occurs among new samples.

    ``labelled`` (r, k + u) and ``new`` (n, k + u) are log density ratios of the seen and then the unseen groups, and
    ``log_weight`` (r, u) are log importance weights that turn the labelled samples into samples of the unseen groups.
    The probability that any hypothesis is rejected although only seen groups occur is at most ``level``: a part of it
    is spent on the total, and the rest by Holm's procedure on the groups (Bretz, Maurer, Brannath, Posch, 2009).
    """
    k, u = labelled.shape[1] - log_weight.shape[1], log_weight.shape[1]
    share = estimated_shares(new[:, :k])
    if not u:
        return NoveltyTest(1.0, np.ones(0), np.zeros(0, dtype=np.int64), known, share)
    prior = estimated_shares(new)
    prior[k:] = np.maximum(prior[k:], LEAST_SHARE)
    of_labelled, of_new = (responsibilities(ratio, prior / prior.sum())[:, k:] for ratio in (labelled, new))
    total = float(
        excess_p_values(of_labelled.sum(axis=1)[:, None], of_new.sum(axis=1)[:, None], known, share)[0] / TOTAL_WEIGHT
    )
    p_value, found, largest = np.ones(u), list[int](), 0.0
    left = np.arange(u)
    while len(left):
        p = excess_p_values(of_labelled[:, left], of_new[:, left], known, share)
        order = np.argsort(p, kind="stable")
        rank = len(left) - np.arange(len(left))
        held = p[order] * rank  # Holm's procedure for the remaining groups
        adjusted = np.minimum(held / (1 - TOTAL_WEIGHT), np.maximum(held, total))
        adjusted = np.minimum(np.maximum.accumulate(np.maximum(adjusted, largest)), 1.0)
        p_value[left[order]] = adjusted
        if adjusted[0] > level:
            break
        best, largest = int(left[order[0]]), float(adjusted[0])
        found.append(best)
        left = np.setdiff1d(left, best)
        known = known.joined(log_weight[:, best])
        share = estimated_shares(np.column_stack([new[:, :k], new[:, [k + place for place in found]]]))
    return NoveltyTest(min(total, 1.0), p_value, np.array(found, dtype=np.int64), known, share)


def frequency_errors(labelled: FloatArray, new: FloatArray, components: Components, share: FloatArray) -> FloatArray:
    r"""Return standard errors of estimated frequencies (s,), from the sampling of new and of labelled samples.

    ``labelled`` (r, s) and ``new`` (n, s) are log density ratios of the components. Mean responsibilities t of new
    samples are a mixture of those M of the components, :math:`t = M^\top \pi`; errors of t and M become errors of π by
    the inverse of M. So groups that are often confused have large errors.
    """
    prior = np.maximum(share, LEAST_FREQUENCY)
    prior /= prior.sum()
    of_labelled, of_new = (responsibilities(ratio, prior) for ratio in (labelled, new))
    scale = 1 / np.sqrt(prior)
    inverse = np.linalg.pinv((components.means(of_labelled) * scale).T, rcond=FLAT) * scale  # (s, s)
    of_labelled, of_new = of_labelled @ inverse.T, of_new @ inverse.T
    mean = components.means(of_labelled)
    own = np.maximum(components.means(of_labelled**2) - mean**2, 0.0)  # (s, s)
    return np.asarray(np.sqrt(of_new.var(axis=0) / len(new) + (share**2 / components.size) @ own))


def frequency_intervals(
    labelled: FloatArray, new: FloatArray, components: Components, confidence: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the most likely frequencies (s,) of the components among new samples, and their intervals.

    ``labelled`` (r, s) and ``new`` (n, s) are log density ratios of the components.
    """
    share = estimated_shares(new, 1.0)
    error = frequency_errors(labelled, new, components, share)
    return share, *wilson_interval(share, error**2, len(new), confidence)


FARTHEST = 1e100
"""Largest coordinate of a sample, whose square does not overflow."""


class GroupCentres(NamedTuple):
    """Centres of groups in the space of energies, whitened within groups."""

    space: GroupSpace
    axes: FloatArray  # (D, q)
    centres: FloatArray  # (c, q)

    @classmethod
    def of(
        cls, energies: FloatArray, known: Components, space: GroupSpace, seen: IntArray, other: IntArray
    ) -> GroupCentres:
        """Return the mean energies of the ``seen`` groups (k, m), and additive means of ``other`` groups (u, m)."""
        contrast = _contrasts(energies, space)
        mean = known.means(contrast)[: len(seen)]
        deviation = contrast - mean[known.position]
        values, vectors = np.linalg.eigh((deviation * known.weight[:, None]).T @ deviation / len(seen))
        kept = values > 1e-9 * max(float(values.max()), np.finfo(np.float64).tiny)
        axes = vectors[:, kept] / np.sqrt(values[kept])
        additive = np.linalg.lstsq(space.one_hot(seen), mean, rcond=None)[0]
        return cls(space, axes, np.concatenate([mean, space.one_hot(other) @ additive]) @ axes)

    def distances(self, energies: FloatArray) -> FloatArray:
        """Return the squared distance of every sample with energies (n, D) to the nearest centre, (n,)."""
        result = np.empty(len(energies))
        for rows in row_blocks(len(energies), len(self.centres) + sum(self.axes.shape)):
            place = np.clip(_contrasts(energies[rows], self.space) @ self.axes, -FARTHEST, FARTHEST)
            squares = (place**2).sum(axis=1)[:, None] - 2 * place @ self.centres.T + (self.centres**2).sum(axis=1)
            result[rows] = squares.min(axis=1)
        return np.maximum(result, 0.0)


def _contrasts(energies: FloatArray, space: GroupSpace) -> FloatArray:
    """Return energies (n, D) less their mean over the values of each attribute, which no probability depends on."""
    parts = np.split(energies, space.offsets[1:], axis=1)
    return np.concatenate([part - part.mean(axis=1, keepdims=True) for part in parts], axis=1)


def outlier_tests(
    labelled: FloatArray, new: FloatArray, components: Components, share: FloatArray, outlying: float
) -> tuple[FloatArray, float]:
    """Return the conformal p-value of each new distance (n,), and that of the share of p-values up to ``outlying``.

    ``labelled`` (r,) are the distances of labelled samples, weighted as the mixture of the components.
    """
    weight = components.mixed(share)
    kept = weight > 0
    log_weight = np.log(weight[kept])
    p_values = Ranks.of(labelled[kept, None], new[:, None]).p_values(0, log_weight, np.log(weight[kept].mean()))
    is_far = p_values <= outlying
    order = np.argsort(-labelled)
    was_far = np.zeros(len(labelled))
    was_far[order[np.cumsum(weight[order]) <= outlying * weight.sum()]] = 1.0
    return p_values, float(excess_p_values(was_far[:, None], is_far[:, None].astype(np.float64), components, share)[0])
