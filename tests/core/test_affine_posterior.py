import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tests.references as reference
from compshift.core.affine import (
    affine_log_posterior,
    inverse_temperature,
    log_floored,
    log_loss,
    log_partition,
    log_softmax,
)


def random_case(seed, n=40, k=4, g=7):
    rng = np.random.default_rng(seed)
    log_proba = log_softmax(3 * rng.normal(size=(n, k)))
    weights = rng.normal(size=(g, k))
    weights[:, -1] += 1 - weights.sum(axis=1)
    return log_proba, weights, rng.uniform(0.5, 2, size=n), rng


@settings(max_examples=15)
@given(st.integers(0, 1000))
def test_partition_and_posterior_equal_a_slow_loop(seed):
    log_proba, weights, omega, rng = random_case(seed)
    log_prior = np.log(rng.dirichlet(np.ones(len(weights))))
    found = log_partition(log_proba, weights, omega)
    posterior = affine_log_posterior(log_proba, weights, log_prior - found.value)
    for group, alpha in enumerate(weights):
        scores = [sum(a * p for a, p in zip(alpha, row, strict=True)) for row in log_proba]
        terms = [w * math.exp(s) for w, s in zip(omega, scores, strict=True)]
        assert found.value[group] == pytest.approx(math.log(sum(terms) / sum(omega)))
        size = sum(terms) ** 2 / sum(term**2 for term in terms)
        assert found.effective_sample_size[group] == pytest.approx(size)
    for row, result in zip(log_proba, posterior, strict=True):
        logits = [
            log_prior[group] + sum(a * p for a, p in zip(alpha, row, strict=True)) - found.value[group]
            for group, alpha in enumerate(weights)
        ]
        np.testing.assert_allclose(result, [value - reference.log_sum_exp(logits) for value in logits], atol=1e-10)


def test_far_off_scores_lose_nothing():
    log_proba, weights, omega, _ = random_case(0)
    shift = 1e4 * np.ones(len(weights))
    plain = log_partition(log_proba, weights, omega)
    moved = log_partition(log_proba + 1e4, weights, omega)  # the weights sum to 1
    np.testing.assert_allclose(moved.value - shift, plain.value, atol=1e-8)
    np.testing.assert_allclose(moved.effective_sample_size, plain.effective_sample_size, rtol=1e-6)


def test_many_rows_are_summed_in_blocks():
    log_proba, weights, omega, _ = random_case(1, n=50_000)
    whole = log_partition(log_proba, weights, omega)
    terms = np.exp(log_proba @ weights.T) * omega[:, None]
    np.testing.assert_allclose(whole.value, np.log(terms.sum(axis=0) / omega.sum()), rtol=1e-9)


@settings(max_examples=15)
@given(st.integers(0, 1000))
def test_the_temperature_is_the_minimum_and_undoes_a_scaling(seed):
    rng = np.random.default_rng(seed)
    log_proba = log_softmax(2 * rng.normal(size=(300, 4)))
    position = np.array([rng.choice(4, p=np.exp(row)) for row in log_proba])
    weight = rng.uniform(0.5, 2, size=300)
    beta = inverse_temperature(log_proba, position, weight)
    lowest = log_loss(beta * log_proba, position, weight)
    assert all(log_loss(factor * beta * log_proba, position, weight) > lowest for factor in (0.9, 0.99, 1.01, 1.1))
    assert inverse_temperature(2.5 * log_proba, position, weight) == pytest.approx(beta / 2.5, rel=1e-8)
    own = [row[group] - reference.log_sum_exp(list(row)) for row, group in zip(log_proba, position, strict=True)]
    assert log_loss(log_proba, position, weight) == pytest.approx(-np.average(own, weights=weight))


def test_the_temperature_has_bounds():
    log_proba = np.log([[0.9, 0.1], [0.1, 0.9]])
    assert inverse_temperature(log_proba, np.array([0, 1]), np.ones(2)) == 1e3
    assert inverse_temperature(log_proba, np.array([1, 0]), np.ones(2)) == 1e-3


def test_the_floor_is_a_floor():
    log_proba, low = log_floored(np.array([[0.0, 1e-3, 0.999]]), 1e-2)
    np.testing.assert_allclose(np.exp(log_proba), [[1e-2, 1e-2, 0.999]])
    np.testing.assert_array_equal(low, [[True, True, False]])
