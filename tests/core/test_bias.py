"""Step 2 against loops: the bias B*, its approximation by cumulants, and the tail of its weights."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import genpareto

import tests.references as reference
from compshift import GroupSpace
from compshift.core.bias import (
    EnergyMoments,
    ExtrapolatedBias,
    _generalised_pareto_shape,
    block_sums,
    cumulant_bias,
    empty_sums,
    energy_moments,
    extrapolated_bias,
    merge_sums,
    no_lower_than_samples,
    pareto_k,
    tail_indices,
)
from compshift.core.energy import GroupTable, group_energies, log_evidence
from tests.references import convert, every_group, same_kind


def test_extrapolated_bias_and_sample_size(problem, library):
    space = problem["space"]
    seen, everything = GroupTable.of(space, problem["seen"]), GroupTable.of(space, every_group(space))
    energies, log_score, weight = convert(library, problem["energies"], problem["log_score"], problem["weight"])
    evidence = log_evidence(energies, seen, log_score)
    bias, size = extrapolated_bias(everything, block_sums(everything, energies, evidence, weight))
    expected = [
        reference.extrapolated_bias(
            problem["energies"], space.cardinalities, problem["seen"], problem["log_score"], z, problem["weight"]
        )
        for z in every_group(space)
    ]
    np.testing.assert_allclose(same_kind(bias, library), [pair[0] for pair in expected], atol=1e-9)
    np.testing.assert_allclose(same_kind(size, library), [pair[1] for pair in expected], rtol=1e-9)


def test_bias_of_blocks_is_bias_of_all(problem, library):
    space = problem["space"]
    seen, everything = GroupTable.of(space, problem["seen"]), GroupTable.of(space, every_group(space))
    energies, log_score = convert(library, problem["energies"], problem["log_score"])
    evidence = log_evidence(energies, seen, log_score)
    whole = extrapolated_bias(everything, block_sums(everything, energies, evidence))
    for step in (1, 7):
        sums = empty_sums(everything, energies)
        for start in range(0, len(energies), step):
            rows = slice(start, start + step)
            sums = merge_sums(sums, block_sums(everything, energies[rows], evidence[rows]))
        parts = extrapolated_bias(everything, sums)
        np.testing.assert_allclose(np.asarray(parts.bias), np.asarray(whole.bias), atol=1e-12)
        np.testing.assert_allclose(
            np.asarray(parts.effective_sample_size), np.asarray(whole.effective_sample_size), rtol=1e-11
        )


SPACE = GroupSpace.from_cardinalities([2, 3])
ALL = SPACE.codes(np.arange(6))


def covariance(rng, size):
    root = rng.normal(size=(size, size))
    return root @ root.T / size + np.eye(size)


@given(st.integers(0, 1000))
def test_cumulants_are_exact_for_gaussians_of_one_covariance(seed):
    rng = np.random.default_rng(seed)
    spread, value_means = covariance(rng, 4), rng.normal(size=(5, 4))
    coef = -np.linalg.solve(spread, value_means.T).T  # energies of log p(x|z) = w·x − B(z) + log h(x)
    means = SPACE.one_hot(ALL) @ value_means
    bias = 0.5 * np.einsum("gi,gi->g", means, np.linalg.solve(spread, means.T).T)
    seen = np.array([0, 1, 3, 5])
    moments = EnergyMoments(means[seen] @ coef.T, coef @ spread @ coef.T)
    np.testing.assert_allclose(cumulant_bias(SPACE, ALL, ALL[seen], bias[seen], moments), bias, atol=1e-8)


def test_cumulant_bias_equals_a_loop():
    """Biases and moments fit no model, so that every seen group contributes a different value."""
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


def test_cumulants_of_groups_that_do_not_differ():
    """If Var[Δ] is 0 between a group and a seen group, both have the same bias, without a division by 0."""
    moments = EnergyMoments(np.zeros((1, 5)), np.zeros((5, 5)))
    found = cumulant_bias(SPACE, ALL, ALL[:1], np.array([0.7]), moments)
    np.testing.assert_allclose(found, 0.7)


def test_cumulants_approximate_the_log_of_a_mean():
    """B(z) − B(s) = log E[exp(−(E_z − E_s))] over group s, here by a large sample of linear energies."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(400_000, 2)) @ np.array([[0.6, 0.1], [0.0, 0.5]]) + [0.3, -0.2]
    energies = x @ rng.normal(size=(5, 2)).T * 0.7
    moments = energy_moments(energies, np.zeros(len(x), dtype=np.int64), np.full(len(x), 1 / len(x)), 1)
    found = cumulant_bias(SPACE, ALL, ALL[:1], np.array([1.0]), moments)
    for z in range(1, 6):
        change = energies @ (SPACE.one_hot(ALL[[z]])[0] - SPACE.one_hot(ALL[[0]])[0])
        assert found[z] - 1 == pytest.approx(math.log(np.exp(-change).mean()), abs=0.02)


def test_energy_moments_are_weighted():
    rng = np.random.default_rng(3)
    energies, position = rng.normal(size=(40, 5)), rng.integers(0, 3, size=40)
    weight = rng.integers(1, 4, size=40)
    once = energy_moments(energies, position, weight / weight.sum(), 3)
    rows = np.repeat(np.arange(40), weight)
    often = energy_moments(energies[rows], position[rows], np.full(len(rows), 1 / len(rows)), 3)
    np.testing.assert_allclose(once.mean, often.mean)
    np.testing.assert_allclose(once.covariance, often.covariance)
    np.testing.assert_allclose(once.mean[1], np.average(energies[position == 1], axis=0, weights=weight[position == 1]))


def test_cumulants_are_not_computed_for_too_many_pairs():
    """Seen groups keep their bias; the others are NaN."""
    space = GroupSpace.from_cardinalities([10_000, 6_000])
    groups, seen = space.codes(np.arange(60_000)), space.codes(np.arange(500, 1_500))
    bias = np.random.default_rng(4).normal(size=1_000)
    found = cumulant_bias(space, groups, seen, bias, EnergyMoments(np.zeros((0, 0)), np.zeros((0, 0))))
    np.testing.assert_array_equal(found[500:1_500], bias)
    assert np.isnan(found[:500]).all()
    assert np.isnan(found[1_500:]).all()


class TestBoundBySamples:
    def test_it_equals_a_loop(self):
        rng = np.random.default_rng(5)
        bias, by_samples, size = rng.normal(size=50), rng.normal(size=50), rng.uniform(1, 400, size=50)
        found = no_lower_than_samples(bias, ExtrapolatedBias(by_samples, size))
        for z in range(50):
            assert found[z] == max(bias[z], by_samples[z] - 3 / math.sqrt(size[z]))

    @pytest.mark.parametrize("spread", [0.3, 1.0, 3.0, 6.0])
    def test_the_true_bias_is_rarely_raised(self, spread):
        """Log-normal weights have a known expectation; their spread decides how many samples the mean depends on."""
        weights = spread * np.random.default_rng(6).normal(size=(2000, 60))
        mean, square = np.exp(weights).mean(axis=1), np.exp(2 * weights).mean(axis=1)
        truth = np.full(2000, spread**2 / 2)
        found = no_lower_than_samples(truth, ExtrapolatedBias(np.log(mean), 60 * mean**2 / square))
        assert (found > truth).mean() < 0.01

    def test_nan_stays_nan(self):
        found = no_lower_than_samples(np.array([np.nan]), ExtrapolatedBias(np.zeros(1), np.ones(1)))
        assert np.isnan(found).all()


@pytest.mark.parametrize("shape", [-0.3, 0.0, 0.3, 0.7, 1.0])
def test_pareto_k_recovers_the_shape(shape):
    sample = genpareto.rvs(shape, size=(5000, 40), random_state=0)
    found = pareto_k(np.log(sample))
    assert found.mean() == pytest.approx(shape, abs=0.06)


def test_pareto_k_depends_on_the_tail_and_not_on_the_scale():
    rng = np.random.default_rng(0)
    logs = rng.normal(size=(2000, 5)) * 2
    np.testing.assert_allclose(pareto_k(logs + 300), pareto_k(logs), rtol=1e-6)
    body = logs < np.quantile(logs, 0.5, axis=0)
    np.testing.assert_allclose(pareto_k(np.where(body, logs - 5, logs)), pareto_k(logs))
    np.testing.assert_allclose(pareto_k(rng.permuted(logs, axis=0)), pareto_k(logs))


def test_the_quasi_bayesian_pareto_fit_equals_a_loop():
    """Zhang and Stephens' estimate, written out for one sample."""
    excess = np.sort(genpareto.rvs(0.4, size=60, random_state=1))
    n, quartile = 60, excess[int(60 / 4 + 0.5) - 1]
    m = 30 + int(np.sqrt(n))
    thetas, profiles = [], []
    for j in range(1, m + 1):
        theta = 1 / excess[-1] + (1 - np.sqrt(m / (j - 0.5))) / (3 * quartile)
        k = np.mean(np.log(1 - theta * excess))
        thetas.append(theta)
        profiles.append(n * (np.log(-theta / k) - k - 1))
    weights = [1 / sum(np.exp(other - own) for other in profiles) for own in profiles]
    theta = sum(weight * value for weight, value in zip(weights, thetas, strict=True))
    expected = (n * np.mean(np.log(1 - theta * excess)) + 5) / (n + 10)
    assert _generalised_pareto_shape(excess[:, None])[0] == pytest.approx(expected, rel=1e-10)


def test_pareto_k_of_weights_without_a_tail():
    assert pareto_k(np.zeros((500, 2))).tolist() == [-np.inf, -np.inf]
    assert np.isnan(pareto_k(np.zeros((20, 2)))).all()  # too few weights for a tail


def test_pareto_k_counts_equal_weights_once():
    rng = np.random.default_rng(3)
    logs = rng.normal(size=(400, 3)) * [0.5, 1.0, 2.0]
    often = np.repeat(logs, 20, axis=0) + rng.uniform(-1e-14, 1e-14, size=(8000, 3))
    np.testing.assert_allclose(pareto_k(often), pareto_k(logs), atol=1e-6)
    mixed = np.column_stack([np.repeat(logs[:, 0], 20), rng.normal(size=8000)])
    np.testing.assert_allclose(pareto_k(mixed), [pareto_k(logs)[0], pareto_k(mixed[:, 1:])[0]])
    two_values = np.log(np.r_[np.ones(950), np.full(50, 2.0)])[:, None]
    assert np.isnan(pareto_k(two_values)).all()  # two distinct weights are too few for a tail


def test_tail_indices_by_group():
    rng = np.random.default_rng(2)
    space = GroupSpace.from_cardinalities([2, 3])
    groups = space.codes(np.arange(6))
    energies, evidence, weight = rng.normal(size=(300, 5)), rng.normal(size=300), rng.uniform(0.5, 2, size=300)
    expected = pareto_k(np.log(weight)[:, None] - evidence[:, None] - group_energies(energies, space, groups))
    np.testing.assert_allclose(tail_indices(space, groups, energies, evidence, weight), expected)


def test_pareto_k_of_a_tail_that_underflows_is_large():
    """The log weights spread over thousands of nats, as on separable data."""
    assert (pareto_k(np.random.default_rng(0).normal(size=(200, 3)) * 1e4) > 1).all()
