"""Sums over columns that belong together."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from compshift.core.arrays import ColumnSets


def loop(values, member, size):
    return [
        [
            max(own) + math.log(sum(math.exp(v - max(own)) for v in own)) if own and max(own) > -math.inf else -math.inf
            for own in ([float(v) for v, m in zip(row, member, strict=True) if m == s] for s in range(size))
        ]
        for row in values
    ]


@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 5))
def test_against_loops(seed, n_columns, size):
    rng = np.random.default_rng(seed)
    values = rng.normal(scale=rng.choice([1, 1e4]), size=(3, n_columns))
    values[rng.random(values.shape) < 0.2] = -np.inf
    member = rng.integers(size, size=n_columns)
    before = values.copy()
    np.testing.assert_allclose(ColumnSets.of(member, size).logsumexp(values), loop(values, member, size), rtol=1e-12)
    np.testing.assert_array_equal(values, before)
