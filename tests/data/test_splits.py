import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compshift import GroupSpace, InputError
from compshift.data.splits import check_split, split_names, split_rows, stratified_split


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2)), min_size=1, max_size=200),
    st.sampled_from([(0.7, 0.1, 0.2), (0.5, 0.5, 0.0), (0.4, 0.0, 0.6), (1.0, 0.0, 0.0)]),
)
def test_stratified_split_keeps_the_share_of_every_group(rows, shares):
    space = GroupSpace.from_cardinalities([2, 3])
    codes = np.array(rows)
    split = stratified_split(space, codes, dict(zip(("train", "val", "test"), shares, strict=True)), 0)
    for code in np.unique(codes, axis=0):
        mine = split[(codes == code).all(axis=1)]
        assert (mine == 0).any()
        for part, share in enumerate(shares):
            assert abs((mine == part).sum() - share * len(mine)) <= 1


def test_splits_are_codes_or_names():
    assert check_split(["train", "test", "val"], 3).tolist() == [0, 2, 1]
    assert check_split(np.array([0, "1", "test"], dtype=object), 3).tolist() == [0, 1, 2]
    for split, message in (
        ([[0, 1]], "split has 2 dimensions"),
        ([True, False], "split contains True and False"),
        ([0, 3], "the split 3 is not known"),
        ([0], "split has 1 rows but X has 2"),
    ):
        with pytest.raises(InputError, match=message):
            check_split(split, 2)


def test_rows_of_a_split():
    split = np.array([0, 2, 0])
    assert split_names(split) == ("train", "test")
    assert split_rows(split, "train").tolist() == [True, False, True]
    assert split_rows(split, "all") == split_rows(None, "val") == slice(None)
    with pytest.raises(InputError, match="there are no val rows"):
        split_rows(split, "val")
