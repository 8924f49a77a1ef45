"""Weighted conformal p-values against a loop, their invariances, and their validity under a known shift."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compshift.core.conformal import Ranks, effective_sample_size
from tests import references


def problem(seed, spread=1.0):
    """Return known scores with ties (r, c), log weights (r,), some −inf, new scores (n, c) and log weights (n,)."""
    rng = np.random.default_rng(seed)
    known, new = rng.integers(0, 6, size=(20, 3)).astype(float), rng.integers(-1, 8, size=(9, 3)).astype(float)
    log_weight = spread * rng.normal(size=20)
    log_weight[rng.random(20) < 0.2] = -np.inf
    return known, log_weight, new, spread * rng.normal(size=9)


@pytest.mark.parametrize("spread", [0.0, 1.0, 1e4])
def test_p_values_equal_the_loop(spread):
    known, log_weight, new, new_log_weight = problem(0, spread)
    ranks = Ranks.of(known, new)
    for column in range(3):
        expected = [
            references.weighted_p_value(known[:, column].tolist(), log_weight.tolist(), score, own)
            for score, own in zip(new[:, column], new_log_weight, strict=True)
        ]
        np.testing.assert_allclose(ranks.p_values(column, log_weight, new_log_weight), expected, rtol=1e-12)


@given(seed=st.integers(0, 1000), shift=st.floats(-1e4, 1e4))
def test_a_factor_of_all_weights_changes_nothing(seed, shift):
    known, log_weight, new, new_log_weight = problem(seed)
    ranks = Ranks.of(known, new)
    before = ranks.p_values(0, log_weight, new_log_weight)
    after = ranks.p_values(0, log_weight + shift, new_log_weight + shift)
    np.testing.assert_allclose(after, before, rtol=1e-9)
    assert ((before > 0) & (before <= 1)).all()


@given(seed=st.integers(0, 1000), own=st.floats(-50, 50))
def test_a_higher_score_has_a_lower_p_value_and_a_larger_own_weight_a_higher_one(seed, own):
    known, log_weight, new, _ = problem(seed)
    p_values = Ranks.of(known, new).p_values(0, log_weight, own)
    assert (np.diff(p_values[np.argsort(new[:, 0])]) <= 1e-12).all()
    assert (Ranks.of(known, new).p_values(0, log_weight, own + 1) >= p_values - 1e-12).all()


def test_equal_weights_give_the_ordinary_p_value():
    known = np.arange(9.0)[:, None]
    p_values = Ranks.of(known, np.array([[8.5], [7.5], [-1.0]])).p_values(0, np.zeros(9), 0.0)
    np.testing.assert_allclose(p_values, [0.1, 0.2, 1.0])


def test_a_sample_unlike_all_known_ones_has_a_p_value_of_one():
    p_values = Ranks.of(np.arange(9.0)[:, None], np.full((2, 1), 8.5)).p_values(0, np.zeros(9), np.array([1e4, -1e4]))
    np.testing.assert_allclose(p_values, [1.0, 0.0])


def test_p_values_are_valid_under_a_known_shift():
    """Known samples are normal around 0, new ones around 1; the weights are exp(x − 1/2)."""
    rng, weighted, unweighted = np.random.default_rng(0), [], []
    for _ in range(400):
        known, new = rng.normal(size=(200, 1)), 1 + rng.normal(size=(20, 1))
        ranks = Ranks.of(known, new)
        weighted.append((ranks.p_values(0, known[:, 0] - 0.5, new[:, 0] - 0.5) <= 0.1).mean())
        unweighted.append((ranks.p_values(0, np.zeros(200), 0.0) <= 0.1).mean())
    assert 0.07 < np.mean(weighted) <= 0.1
    assert np.mean(unweighted) > 0.3


def test_effective_sample_size():
    assert effective_sample_size(np.full(7, -1e4)) == 7
    assert effective_sample_size(np.log([3.0, 1.0])) == pytest.approx(1.6)
    assert effective_sample_size(np.array([0.0, -np.inf, 0.0])) == 2
    assert effective_sample_size(np.full(3, -np.inf)) == 0
