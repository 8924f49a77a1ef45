import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compshift.core.bias import BiasSums, merge_sums
from compshift.distributed import ALONE, Collective, merge_everywhere


class Rank(Collective):
    def __init__(self, rank, size):
        self.rank, self.size = rank, size


@given(st.integers(0, 50), st.integers(1, 9))
def test_shares_cover_the_rows_in_order_and_evenly(n_rows, size):
    shares = [np.arange(n_rows)[Rank(rank, size).share(n_rows)] for rank in range(size)]
    np.testing.assert_array_equal(np.concatenate(shares), np.arange(n_rows))
    lengths = [len(share) for share in shares]
    assert max(lengths) - min(lengths) <= 1


def test_a_single_process_gets_its_own_values():
    values = np.arange(3.0)
    assert ALONE.sum(values) is values
    assert ALONE.gather(values) == [values]


def test_sums_of_all_processes_are_merged_in_order():
    parts = [BiasSums(np.log([[value]]), np.log([[value**2]]), value) for value in (1.0, 2.0, 5.0)]

    class Three(Rank):
        def gather(self, value):  # noqa: ARG002
            return parts

    merged = merge_everywhere(parts[1], Three(1, 3))
    expected = merge_sums(merge_sums(parts[0], parts[1]), parts[2])
    assert merged.total_weight == expected.total_weight == 8.0
    assert merged.log_first[0, 0] == pytest.approx(np.log(8.0))
