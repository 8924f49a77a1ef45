import numpy as np
import pytest

from compshift import GroupSpace, InputError
from compshift.data import GroupedDataset
from compshift.data.dataset import as_known, in_space


@pytest.mark.parametrize(
    ("value", "known", "expected"),
    [
        (1, ("1", "2", "3b"), "1"),
        (1.0, ("1", "2", "3b"), "1"),
        ("1.0", (1, 2, 3), 1),
        ("1", (1, 2, 3), 1),
        ("0.50", (0.5, 1.5), 0.5),
        (1, (1.0, 2.5), 1),
        (True, ("TRUE", "FALSE", "maybe"), "TRUE"),
        ("true", (False, True), True),
        (1, ("1", "1.0"), "1"),
        (1.0, ("1", "1.0"), "1.0"),
        ("1.00", ("1", "1.0"), "1.00"),  # either could be meant
        ("01", ("1", "2"), "01"),
        (1, ("01", "2"), 1),
        ("01", (1, 2), "01"),
        (True, ("true", "TRUE"), True),
        ("10", ("1", "2"), "10"),
        ("x", (1, 2), "x"),
    ],
)
def test_what_is_written_alike(value, known, expected):
    found = as_known(value, known)
    assert (found, isinstance(found, str)) == (expected, isinstance(expected, str))


def test_rows_in_the_space_of_a_model():
    own = GroupSpace(("extra", "site", "y"), (("a",), (1, 2), ("u", "v")))
    data = GroupedDataset(np.zeros((3, 1)), own, [[0, 1, 1], [0, 1, 0], [0, 1, 1]], targets=("y",))
    space = GroupSpace(("y", "site"), (("u", "v"), ("1", "2", "3b")))
    assert in_space(data, space).codes.tolist() == [[1, 1], [0, 1], [1, 1]]
    with pytest.raises(InputError, match=r"'site' has the unknown value 2 \(row 0\): known values are '1', '3b'"):
        in_space(data, GroupSpace(("y", "site"), (("u", "v"), ("1", "3b"))))
