"""Tests for new groups: p-values against a loop, their validity, known tails, standard errors and distances."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm, pearson3

from compshift import GroupSpace
from compshift.core import novelty
from compshift.core.novelty import Components, GroupCentres, excess_p_values, find_unseen_groups, frequency_errors


def problem(seed=0, r=60, n=25, q=2):
    rng = np.random.default_rng(seed)
    position, weight = np.arange(r) % 3, rng.random(r) + 0.5
    components = Components.of(position, weight).joined(rng.normal(size=r))
    return rng.random((r, q)) ** 4, rng.random((n, q)) ** 3, components, np.array([0.4, 0.3, 0.2, 0.1])


def looped_p_value(labelled, new, weights, share):
    """Return the p-value of one column by loops over samples; ``weights`` has the samples' weights by component."""
    n = len(new)
    means, variances, sizes = [], [], []
    for part in weights:
        means.append(sum(w * x for w, x in zip(part, labelled, strict=True)))
        variances.append(sum(w * (x - means[-1]) ** 2 for w, x in zip(part, labelled, strict=True)))
        sizes.append(1 / sum(w * w for w in part))
    expected = sum(s * m for s, m in zip(share, means, strict=True))
    spread = sum(s * (v + (m - expected) ** 2) for s, v, m in zip(share, variances, means, strict=True))
    third = sum(
        s * sum(w * (x - expected) ** 3 for w, x in zip(part, labelled, strict=True))
        for s, part in zip(share, weights, strict=True)
    )
    few = novelty.FEW_ROWS
    careful = [max(v, (k * v + few * spread) / (k + few)) for v, k in zip(variances, sizes, strict=True)]
    rows = spread / sum(s * s * v / k for s, v, k in zip(share, careful, sizes, strict=True))
    mean = sum(new) / n
    second_new, third_new = (sum((x - mean) ** power for x in new) / n for power in (2, 3))
    variance = (n * second_new + rows * spread) / (n + rows) * (1 / n + 1 / rows)
    cumulant = (n * third_new + rows * third) / (n + rows) * (1 / n**2 - 1 / rows**2)
    skewness = max(cumulant, 0) / variance**1.5
    deviation = (mean - expected) / math.sqrt(variance)
    return pearson3.sf(deviation, skewness) if skewness > 1e-3 else norm.sf(deviation)


@pytest.mark.parametrize("seed", range(3))
def test_p_values_equal_the_loop(seed):
    labelled, new, components, share = problem(seed)
    position = components.position
    weights = [np.where(position == group, components.weight, 0.0) for group in range(3)] + [components.further[:, 0]]
    expected = [looped_p_value(labelled[:, j], new[:, j], weights, share) for j in range(2)]
    np.testing.assert_allclose(excess_p_values(labelled, new, components, share), expected, rtol=1e-9)


@given(st.floats(1e-100, 1e3), st.integers(0, 50))
def test_p_values_do_not_depend_on_the_unit(unit, seed):
    labelled, new, components, share = problem(seed)
    found = excess_p_values(unit * labelled, unit * new, components, share)
    np.testing.assert_allclose(found, excess_p_values(labelled, new, components, share), rtol=1e-6)


def test_the_tail_is_that_of_the_exponential_and_of_the_normal_distribution():
    found = novelty._upper_tail(np.array([1.0, -2.0, 2.0, -1.0]), np.array([2.0, 2.0, 0.0, 1e-9]))
    np.testing.assert_allclose(found, [math.exp(-2), 1.0, norm.sf(2.0), norm.sf(-1.0)])


@pytest.mark.parametrize("n", [40, 400])
def test_p_values_are_valid_for_rare_large_values(n):
    rng = np.random.default_rng(n)
    position = np.repeat(np.arange(4), 50)
    components, share = Components.of(position, np.ones(200)), np.array([0.7, 0.1, 0.1, 0.1])

    def responsibilities(size):
        return rng.beta(0.02, 1.0, size=size)

    found = [
        excess_p_values(responsibilities((200, 50)), responsibilities((n, 50)), components, share) for _ in range(40)
    ]
    for level in (0.05, 0.01):
        assert np.mean(np.stack(found) <= level) < 1.5 * level


def test_all_zeros_are_no_evidence():
    components = Components.of(np.array([0, 0, 1]), np.ones(3))
    assert excess_p_values(np.zeros((3, 1)), np.zeros((5, 1)), components, np.array([0.5, 0.5]))[0] >= 0.5


@pytest.mark.parametrize("new", [0, 2])
def test_the_new_group_is_found_and_the_others_are_not(new):
    """Two seen and three unseen Gaussians on a line; samples of a further one are named by its position."""
    rng = np.random.default_rng(new)
    centres = np.array([0.0, 10.0, -6.0, 4.0, 16.0])
    position, codes = np.arange(400) % 2, np.append(np.arange(380) % 2, np.full(20, 2 + new))

    def ratios(x):
        density = -0.5 * (x[:, None] - centres) ** 2
        return density - np.logaddexp(density[:, :1], density[:, 1:2])

    labelled, used = (ratios(rng.normal(size=len(group)) + centres[group]) for group in (position, codes))
    known = Components.of(position, np.ones(400))
    found = find_unseen_groups(labelled, used, known, labelled[:, 2:], 0.05)
    assert found.found.tolist() == [new]
    assert (found.p_value <= 0.05).tolist() == [group == new for group in range(3)]
    assert found.total_p_value < 1e-3
    np.testing.assert_allclose(found.share, [0.475, 0.475, 0.05], atol=0.01)


def test_errors_are_binomial_where_groups_are_never_confused():
    position = np.arange(30) % 3
    codes = np.repeat([0, 1, 2], [10, 30, 60])
    sure = 200.0 * np.eye(3)
    share = np.array([0.1, 0.3, 0.6])
    found = frequency_errors(sure[position], sure[codes], Components.of(position, np.ones(30)), share)
    np.testing.assert_allclose(found, np.sqrt(share * (1 - share) / 100), rtol=1e-6)


def test_confused_groups_have_larger_errors():
    rng = np.random.default_rng(0)
    position = np.arange(300) % 3
    codes = rng.integers(3, size=500)

    def ratios(group, far):
        centres = np.array([[0.0], [1.0], [far]])
        x = rng.normal(size=(len(group), 1)) + centres[group]
        return -0.5 * (x - centres.T) ** 2

    near, apart = (
        frequency_errors(
            ratios(position, 9.0), ratios(codes, 9.0), Components.of(position, np.ones(300)), np.ones(3) / 3
        )
        for _ in range(2)
    )
    assert near[0] > 2 * near[2]
    assert apart[2] == pytest.approx(math.sqrt(2 / 9 / 500), rel=0.1)


def test_distances_are_from_additive_centres_and_do_not_depend_on_constants():
    rng = np.random.default_rng(1)
    space = GroupSpace.from_cardinalities([2, 3])
    groups = space.codes(np.arange(6))
    seen, other = groups[1:], groups[:1]
    means = space.one_hot(groups) @ rng.normal(size=(space.width, space.width), scale=8.0)
    position = np.repeat(np.arange(5), 80)
    energies = means[1:][position] + rng.normal(size=(400, space.width))
    centres = GroupCentres.of(energies, Components.of(position, np.ones(400)), space, seen, other)
    near = centres.distances(means)
    assert near.max() < 1.0
    far = means[:1] + 100 * rng.normal(size=(1, space.width))
    assert centres.distances(far)[0] > 100
    assert 1e100 < centres.distances(1e200 * far)[0] < np.inf  # pytest would raise the warning of an overflow
    constants = np.repeat([[1e4, -3e3]], 3, axis=0).repeat([2, 3], axis=1)
    np.testing.assert_allclose(centres.distances(means[:3] + constants), near[:3], atol=1e-6)
    own = centres.distances(energies)
    assert 2.0 < own.mean() < 4.0  # chi-square with D − m = 3 degrees of freedom
