import numpy as np
import pytest

from compshift import GroupSpace, InputError
from compshift.data import GroupedDataset
from compshift.data.dataset import ImageArrays, ImageFiles, Texts, Tokens, as_known, in_space


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
        ("1.00", ("1", "1.0"), "1.00"),  # both known values match
        ("01", ("1", "2"), "01"),
        (1, ("01", "2"), 1),
        ("01", (1, 2), "01"),
        (True, ("true", "TRUE"), True),
        ("10", ("1", "2"), "10"),
        ("x", (1, 2), "x"),
    ],
)
def test_values_are_matched_by_their_text(value, known, expected):
    found = as_known(value, known)
    assert (found, isinstance(found, str)) == (expected, isinstance(expected, str))


def test_rows_are_encoded_in_the_space_of_a_model():
    own = GroupSpace(("extra", "site", "y"), (("a",), (1, 2), ("u", "v")))
    data = GroupedDataset(np.zeros((3, 1)), own, [[0, 1, 1], [0, 1, 0], [0, 1, 1]], targets=("y",))
    space = GroupSpace(("y", "site"), (("u", "v"), ("1", "2", "3b")))
    assert in_space(data, space).codes.tolist() == [[1, 1], [0, 1], [1, 1]]
    with pytest.raises(InputError, match=r"'site' has the unknown value 2 \(row 0\): known values are '1', '3b'"):
        in_space(data, GroupSpace(("y", "site"), (("u", "v"), ("1", "3b"))))


def test_samples_are_indexed_like_arrays(tmp_path):
    rows = np.array([2, 0])
    names = np.array(["a.jpg", "b.jpg", "c.jpg"])
    assert ImageFiles(tmp_path, names)[rows].path(0) == tmp_path / "c.jpg"
    pixels = np.arange(3 * 4, dtype=np.uint8).reshape(3, 2, 2, 1).repeat(3, axis=3)
    np.testing.assert_array_equal(ImageArrays(pixels)[rows].pixels, pixels[rows])
    texts = Texts(names, names[::-1])[np.array([True, False, True])]
    assert (texts.first.tolist(), texts.second.tolist()) == (["a.jpg", "c.jpg"], ["c.jpg", "a.jpg"])
    ids = np.arange(6).reshape(3, 2)
    tokens = Tokens(ids, np.ones_like(ids), np.zeros_like(ids), "v")[1:]
    assert tokens.ids.tolist() == [[2, 3], [4, 5]]
    assert len(tokens) == 2


def test_bad_samples_raise(tmp_path):
    with pytest.raises(InputError, match="pass uint8 RGB images"):
        ImageArrays(np.zeros((2, 4, 4), np.uint8))
    with pytest.raises(InputError, match="the path of row 1 is missing: every row needs one"):
        ImageFiles(tmp_path, ["a.jpg", None])
    with pytest.raises(InputError, match="the second text has 1 rows but the first text has 2"):
        Texts(["a", "b"], ["c"])
    with pytest.raises(InputError, match="pass three matrices of the same shape"):
        Tokens(np.zeros((2, 3)), np.zeros((2, 3)), np.zeros((2, 2)), "v")


def test_unknown_names_and_wrong_shapes_raise():
    space = GroupSpace(("bird",), (("landbird", "waterbird"),))
    data = GroupedDataset(np.zeros((12, 3)), space, np.arange(12)[:, None] % 2, split=np.arange(12) % 3)
    with pytest.raises(InputError, match="attribute 'size' is not known"):
        data.columns(["size"])
    with pytest.raises(InputError, match="split 'dev' is not known"):
        data.part("dev")
    with pytest.raises(InputError, match="there are no val rows: use one of 'train'"):
        data.part("train").part("val")
    with pytest.raises(InputError, match=r"samples is an ndarray of shape \(3,\): pass a matrix"):
        GroupedDataset(np.zeros(3), data.space, data.codes[:3])
