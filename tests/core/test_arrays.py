"""Sums of exponentials against loops."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from compshift.core.arrays import ColumnSets, log_softmax, logmatmulexp, logsumexp
from tests.references import log_sum_exp


def loop_product(log_a, log_b):
    return np.array(
        [[log_sum_exp([*(log_a[i, j] + log_b[j, r] for j in range(len(log_b)))]) for r in range(log_b.shape[1])]
         for i in range(len(log_a))]
    )  # fmt: skip


@pytest.mark.parametrize("spread", [1.0, 30.0, 1000.0, 1e4])
def test_product_equals_loops(spread):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(7, 11)) * spread, rng.normal(size=(11, 5)) * spread
    np.testing.assert_allclose(logmatmulexp(a, b), loop_product(a, b), rtol=1e-14, atol=1e-11)


@pytest.mark.parametrize("gap", [600.0, 700.0, 708.0, 720.0, 745.0, 760.0, 2000.0])
def test_gaps_where_exp_is_denormal(gap):
    # Row and column maxima stand at different j: the scaled sum is exp(−gap).
    a = np.array([[0.0, -gap]])
    b = np.array([[-gap], [0.0]])
    np.testing.assert_allclose(logmatmulexp(a, b), [[-gap + math.log(2)]], rtol=0, atol=1e-12)


def test_minus_infinity_is_a_legal_entry():
    a = np.array([[-np.inf, 0.0], [-np.inf, -np.inf]])
    b = np.array([[0.0, 0.0], [-np.inf, 1.0]])
    np.testing.assert_array_equal(logmatmulexp(a, b), [[-np.inf, 1.0], [-np.inf, -np.inf]])


def test_nan_is_not_hidden():
    assert np.isnan(logmatmulexp(np.array([[np.nan, 0.0]]), np.zeros((2, 1)))).all()


def test_float32_falls_back_before_digits_are_lost():
    a = np.array([[0.0, -90.0]], dtype=np.float32)
    b = np.array([[-90.0], [0.0]], dtype=np.float32)
    result = logmatmulexp(a, b)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, [[-90 + math.log(2)]], rtol=1e-6)


finite = st.floats(-2000, 2000)


@given(arrays(np.float64, (3, 4), elements=finite), arrays(np.float64, (4, 2), elements=finite), st.floats(-1e4, 1e4))
def test_a_shift_of_the_factors_shifts_the_product(a, b, shift):
    np.testing.assert_allclose(logmatmulexp(a + shift, b), logmatmulexp(a, b) + shift, rtol=1e-12, atol=1e-9)


@given(arrays(np.float64, (3, 5), elements=finite | st.just(-np.inf)))
def test_logsumexp_equals_loops(values):
    expected = [log_sum_exp(row) for row in values.tolist()]
    np.testing.assert_allclose(logsumexp(values, axis=1), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 1e4, 1e12, 1e16, 1e300])
def test_probabilities_sum_to_one_whatever_the_logits_have_in_common(scale):
    rng = np.random.default_rng(3)
    logits = scale + np.array([[0.0, 1.0, 2.0], [0.0, 0.0, -math.inf]]) * np.spacing(scale) + scale * rng.normal()
    found = log_softmax(logits)
    np.testing.assert_allclose(np.exp(found).sum(axis=1), 1.0, rtol=1e-14)
    np.testing.assert_array_equal(found[:, 0] - found[:, 1], logits[:, 0] - logits[:, 1])


def loop_sums(values, member, size):
    return [
        [
            max(own) + math.log(sum(math.exp(v - max(own)) for v in own)) if own and max(own) > -math.inf else -math.inf
            for own in ([float(v) for v, m in zip(row, member, strict=True) if m == s] for s in range(size))
        ]
        for row in values
    ]


@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 5))
def test_sums_over_sets_of_columns_equal_loops(seed, n_columns, size):
    rng = np.random.default_rng(seed)
    values = rng.normal(scale=rng.choice([1, 1e4]), size=(3, n_columns))
    values[rng.random(values.shape) < 0.2] = -np.inf
    member = rng.integers(size, size=n_columns)
    before = values.copy()
    np.testing.assert_allclose(
        ColumnSets.of(member, size).logsumexp(values), loop_sums(values, member, size), rtol=1e-12
    )
    np.testing.assert_array_equal(values, before)
