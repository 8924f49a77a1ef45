"""Sampling of batches."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given
from hypothesis import strategies as st

from compshift.methods.sampling import Sampling
from compshift.training.batches import Sampler


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 5))
def test_every_epoch_contains_each_row_once(n, batch_size, seed):
    sampler = Sampler.of(np.zeros(n, dtype=np.int64), Sampling(), batch_size, seed)
    steps = -(-3 * n // batch_size)
    rows = np.concatenate([sampler.batch(step) for step in range(steps)])
    for start in range(0, 3 * n, n):
        assert sorted(rows[start : start + n].tolist()) == list(range(n))
    np.testing.assert_array_equal(sampler.batch(steps - 1), rows[(steps - 1) * batch_size :])  # by the step alone


def test_epochs_and_seeds_have_different_orders():
    sampler = Sampler.of(np.zeros(50, dtype=np.int64), Sampling(), 25, 0)
    assert not np.array_equal(sampler.batch(0), sampler.batch(2))
    assert not np.array_equal(sampler.batch(0), Sampler.of(np.zeros(50, dtype=np.int64), Sampling(), 25, 1).batch(0))


def test_a_full_batch_is_the_same_in_every_step():
    sampler = Sampler.of(np.zeros(50, dtype=np.int64), Sampling(), 50, 0)
    np.testing.assert_array_equal(sampler.batch(0), sampler.batch(7))
    assert sorted(sampler.batch(0).tolist()) == list(range(50))


def test_weighted_draws_follow_the_weights():
    group = np.repeat([0, 1, 2], [80, 15, 5])
    sampler = Sampler.of(group, Sampling(weight=1 / np.bincount(group)), 64, 0)
    drawn = np.bincount(group[np.concatenate([sampler.batch(step) for step in range(200)])])
    np.testing.assert_allclose(drawn / drawn.sum(), 1 / 3, atol=0.02)
    np.testing.assert_allclose(sampler.group_weight(group, 3), 100 / 3)


def test_a_row_of_weight_zero_is_never_drawn():
    group = np.repeat([0, 1], [3, 3])
    sampler = Sampler.of(group, Sampling(weight=np.array([1.0, 0.0])), 64, 0)
    assert max(sampler.batch(step).max() for step in range(50)) == 2


def test_groups_are_subsampled_to_the_limit():
    group = np.repeat([0, 1, 2], [80, 15, 5])
    sampler = Sampler.of(group, Sampling(limit=5), 10, 0)
    assert np.bincount(group[sampler.rows]).tolist() == [5, 5, 5]
    assert len(np.unique(sampler.rows)) == 15
