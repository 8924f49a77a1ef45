"""Tail indices of importance weights."""

import numpy as np
import pytest
from scipy.stats import genpareto

from compshift import GroupSpace
from compshift.core import bias as pareto
from compshift.core.bias import pareto_k, tail_indices
from compshift.core.energy import group_energies


@pytest.mark.parametrize("shape", [-0.3, 0.0, 0.3, 0.7, 1.0])
def test_it_recovers_the_shape(shape):
    sample = genpareto.rvs(shape, size=(5000, 40), random_state=0)
    found = pareto_k(np.log(sample))
    assert found.mean() == pytest.approx(shape, abs=0.06)


def test_only_the_tail_and_no_scale_matters():
    rng = np.random.default_rng(0)
    logs = rng.normal(size=(2000, 5)) * 2
    np.testing.assert_allclose(pareto_k(logs + 300), pareto_k(logs), rtol=1e-6)
    body = logs < np.quantile(logs, 0.5, axis=0)
    np.testing.assert_allclose(pareto_k(np.where(body, logs - 5, logs)), pareto_k(logs))
    np.testing.assert_allclose(pareto_k(rng.permuted(logs, axis=0)), pareto_k(logs))


def test_the_quasi_bayesian_fit_against_a_loop():
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
    assert pareto._generalised_pareto_shape(excess[:, None])[0] == pytest.approx(expected, rel=1e-10)


def test_weights_without_a_tail():
    assert pareto_k(np.zeros((500, 2))).tolist() == [-np.inf, -np.inf]
    assert np.isnan(pareto_k(np.zeros((20, 2)))).all()  # too few to speak of a tail


def test_equal_weights_count_once():
    rng = np.random.default_rng(3)
    logs = rng.normal(size=(400, 3)) * [0.5, 1.0, 2.0]
    often = np.repeat(logs, 20, axis=0) + rng.uniform(-1e-14, 1e-14, size=(8000, 3))
    np.testing.assert_allclose(pareto_k(often), pareto_k(logs), atol=1e-6)
    mixed = np.column_stack([np.repeat(logs[:, 0], 20), rng.normal(size=8000)])
    np.testing.assert_allclose(pareto_k(mixed), [pareto_k(logs)[0], pareto_k(mixed[:, 1:])[0]])
    two_values = np.log(np.r_[np.ones(950), np.full(50, 2.0)])[:, None]
    assert np.isnan(pareto_k(two_values)).all()  # bounded, and nothing to tell a tail from


def test_indices_by_group():
    rng = np.random.default_rng(2)
    space = GroupSpace.from_cardinalities([2, 3])
    groups = space.codes(np.arange(6))
    energies, evidence, weight = rng.normal(size=(300, 5)), rng.normal(size=300), rng.uniform(0.5, 2, size=300)
    expected = pareto_k(np.log(weight)[:, None] - evidence[:, None] - group_energies(energies, space, groups))
    np.testing.assert_allclose(tail_indices(space, groups, energies, evidence, weight), expected)


def test_a_tail_that_underflows_is_as_heavy_as_can_be_told():
    """Weights over thousands of nats, as separable data give them."""
    assert (pareto_k(np.random.default_rng(0).normal(size=(200, 3)) * 1e4) > 1).all()
