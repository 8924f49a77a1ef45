"""How far a prior is known that was estimated from unlabelled inputs."""

from __future__ import annotations

import numpy as np

from compshift.core.arrays import BoolArray, FloatArray, row_blocks
from compshift.core.mixture import Mixture

FEWEST_PRESENT = 0.01
"""A group that is given fewer rows than this at the likelihood's maximum counts as absent: the maximum has it at 0."""


def intervals(mixture: Mixture, prior: FloatArray, squared: float) -> tuple[FloatArray, FloatArray]:
    r"""Ends of an interval of each probability, z standard errors to each side, (g,) each; ``squared`` is z².

    The variance of each exceeds π (1 − π) / N, that of N rows whose groups are known, by c/N. An interval π̂ ± z √v
    would leave [0, 1], and at 0 rest on a slope. So the ends are those of Wilson's score interval with that excess:

    .. math:: N (\hat\pi - \pi)^2 = z^2 (\pi (1 - \pi) + c)

    which is Wilson's own interval where groups are told apart with certainty, be there rows of them or not.
    """
    excess = np.minimum(_likelihood_excess(mixture, prior, squared), np.finfo(np.float64).max / 4)  # 0 · ∞ is NaN
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
