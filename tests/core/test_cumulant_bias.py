"""The bias by two moments of the energies."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compshift import GroupSpace
from compshift.core.bias import EnergyMoments, ExtrapolatedBias, cumulant_bias, energy_moments, no_lower_than_samples

SPACE = GroupSpace.from_cardinalities([2, 3])
ALL = SPACE.codes(np.arange(6))


def covariance(rng, size):
    root = rng.normal(size=(size, size))
    return root @ root.T / size + np.eye(size)


@given(st.integers(0, 1000))
def test_it_is_exact_for_gaussians_of_one_covariance(seed):
    rng = np.random.default_rng(seed)
    spread, value_means = covariance(rng, 4), rng.normal(size=(5, 4))
    coef = -np.linalg.solve(spread, value_means.T).T  # energies of log p(x|z) = w·x − B(z) + log h(x)
    means = SPACE.one_hot(ALL) @ value_means
    bias = 0.5 * np.einsum("gi,gi->g", means, np.linalg.solve(spread, means.T).T)
    seen = np.array([0, 1, 3, 5])
    moments = EnergyMoments(means[seen] @ coef.T, coef @ spread @ coef.T)
    np.testing.assert_allclose(cumulant_bias(SPACE, ALL, ALL[seen], bias[seen], moments), bias, atol=1e-8)


def test_against_a_loop():
    """With biases and moments that fit no model: every seen group has its say."""
    rng = np.random.default_rng(1)
    seen = ALL[[4, 1, 2]]
    bias, moments = rng.normal(size=3), EnergyMoments(rng.normal(size=(3, 5)), covariance(rng, 5))
    found = cumulant_bias(SPACE, ALL, seen, bias, moments)
    for z in range(6):
        if z in (4, 1, 2):
            assert found[z] == bias[[4, 1, 2].index(z)]
            continue
        top = bottom = 0.0
        for s in range(3):
            change = SPACE.one_hot(ALL[[z]])[0] - SPACE.one_hot(seen[[s]])[0]
            variance = change @ moments.covariance @ change
            top += (bias[s] - change @ moments.mean[s] + variance / 2) / variance**3
            bottom += 1 / variance**3
        assert found[z] == pytest.approx(top / bottom, rel=1e-10)


def test_groups_that_do_not_differ():
    """A variance of 0 to a seen group means that group's bias, without a division by 0."""
    moments = EnergyMoments(np.zeros((1, 5)), np.zeros((5, 5)))
    found = cumulant_bias(SPACE, ALL, ALL[:1], np.array([0.7]), moments)
    np.testing.assert_allclose(found, 0.7)


def test_it_is_the_log_of_a_mean():
    """B(z) − B(s) = log E[exp(−(E_z − E_s))] over group s, here by a large sample of linear energies."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(400_000, 2)) @ np.array([[0.6, 0.1], [0.0, 0.5]]) + [0.3, -0.2]
    energies = x @ rng.normal(size=(5, 2)).T * 0.7
    moments = energy_moments(energies, np.zeros(len(x), dtype=np.int64), np.full(len(x), 1 / len(x)), 1)
    found = cumulant_bias(SPACE, ALL, ALL[:1], np.array([1.0]), moments)
    for z in range(1, 6):
        change = energies @ (SPACE.one_hot(ALL[[z]])[0] - SPACE.one_hot(ALL[[0]])[0])
        assert found[z] - 1 == pytest.approx(math.log(np.exp(-change).mean()), abs=0.02)


def test_moments_are_weighted():
    rng = np.random.default_rng(3)
    energies, position = rng.normal(size=(40, 5)), rng.integers(0, 3, size=40)
    weight = rng.integers(1, 4, size=40)
    once = energy_moments(energies, position, weight / weight.sum(), 3)
    rows = np.repeat(np.arange(40), weight)
    often = energy_moments(energies[rows], position[rows], np.full(len(rows), 1 / len(rows)), 3)
    np.testing.assert_allclose(once.mean, often.mean)
    np.testing.assert_allclose(once.covariance, often.covariance)
    np.testing.assert_allclose(once.mean[1], np.average(energies[position == 1], axis=0, weights=weight[position == 1]))


def test_too_many_pairs_are_not_looked_at():
    """Seen groups keep their bias; nothing is known of the others."""
    space = GroupSpace.from_cardinalities([10_000, 6_000])
    groups, seen = space.codes(np.arange(60_000)), space.codes(np.arange(500, 1_500))
    bias = np.random.default_rng(4).normal(size=1_000)
    found = cumulant_bias(space, groups, seen, bias, EnergyMoments(np.zeros((0, 0)), np.zeros((0, 0))))
    np.testing.assert_array_equal(found[500:1_500], bias)
    assert np.isnan(found[:500]).all()
    assert np.isnan(found[1_500:]).all()


class TestBoundBySamples:
    def test_against_a_loop(self):
        rng = np.random.default_rng(5)
        bias, by_samples, size = rng.normal(size=50), rng.normal(size=50), rng.uniform(1, 400, size=50)
        found = no_lower_than_samples(bias, ExtrapolatedBias(by_samples, size))
        for z in range(50):
            assert found[z] == max(bias[z], by_samples[z] - 3 / math.sqrt(size[z]))

    @pytest.mark.parametrize("spread", [0.3, 1.0, 3.0, 6.0])
    def test_the_truth_is_rarely_raised(self, spread):
        """Log-normal weights, whose expectation is known: whether their mean rests on many samples or on one."""
        weights = spread * np.random.default_rng(6).normal(size=(2000, 60))
        mean, square = np.exp(weights).mean(axis=1), np.exp(2 * weights).mean(axis=1)
        truth = np.full(2000, spread**2 / 2)
        found = no_lower_than_samples(truth, ExtrapolatedBias(np.log(mean), 60 * mean**2 / square))
        assert (found > truth).mean() < 0.01

    def test_what_is_not_known_stays_so(self):
        found = no_lower_than_samples(np.array([np.nan]), ExtrapolatedBias(np.zeros(1), np.ones(1)))
        assert np.isnan(found).all()
