import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from compshift.distributed import ALONE, Collective


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
