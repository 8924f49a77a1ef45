"""Shifted and scaled sparse rows, against the dense arrays that they stand for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from compshift.core.energy import linear_energies
from compshift.core.sparse import SparseRows, is_sparse, stacked
from compshift.crm.problem import signed_root, unit_length


def pair(n=7, p=5, *, seed=0, shifted=True):
    """Return sparse rows and the dense array that they stand for."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p)) * (rng.random((n, p)) < 0.4)
    rows = SparseRows.of(sparse.csr_array(X))
    if not shifted:
        return rows, X
    shift = rng.normal(size=p)
    return (rows - shift) / 2.5 + 3 * shift, (X - shift) / 2.5 + 3 * shift


@given(st.integers(1, 8), st.integers(1, 6), st.integers(0, 9), st.booleans())
def test_products_are_those_of_the_dense_array(n, p, seed, shifted):
    rows, X = pair(n, p, seed=seed, shifted=shifted)
    rng = np.random.default_rng(seed)
    weight, left = rng.normal(size=(3, p)), rng.normal(size=(2, n))
    np.testing.assert_allclose(rows @ weight.T, X @ weight.T, atol=1e-12)
    np.testing.assert_allclose(left @ rows, left @ X, atol=1e-12)
    np.testing.assert_allclose(left[0] @ rows, left[0] @ X, atol=1e-12)
    np.testing.assert_allclose(linear_energies(rows, weight), linear_energies(X, weight), atol=1e-12)
    np.testing.assert_allclose(rows.row_squares(), np.square(X).sum(axis=1), atol=1e-12)
    np.testing.assert_allclose(rows.extremes(), (X.min(axis=0), X.max(axis=0)), atol=1e-12)


@pytest.mark.parametrize(
    "chosen",
    [slice(2, 5), slice(3, 3), slice(None), slice(5, 99), slice(None, None, 2), [4, 0], np.arange(7) % 3 == 0],
    ids=str,
)
def test_rows_are_selected(chosen):
    rows, X = pair()
    part = rows[chosen]
    assert (len(part), part.shape) == (len(X[chosen]), X[chosen].shape)
    np.testing.assert_allclose(part @ np.eye(5), X[chosen], atol=1e-12)


def test_a_slice_shares_memory():
    rows, _ = pair(shifted=False)
    assert np.shares_memory(rows[2:6].matrix.data, rows.matrix.data)


def test_transforms_are_those_of_the_dense_array():
    rows, X = pair(shifted=False)
    X[3] = 0
    rows = SparseRows.of(sparse.csr_array(X))
    for of_sparse, of_dense in ((rows.signed_root(), signed_root(X)), (rows.unit_length(), unit_length(X))):
        np.testing.assert_allclose(of_sparse @ np.eye(5), of_dense, atol=1e-12)


def test_rows_are_stacked():
    rows, X = pair()
    np.testing.assert_allclose(stacked(rows[:3], rows[5:]) @ np.eye(5), stacked(X[:3], X[5:]), atol=1e-12)


def test_single_precision():
    rows, X = pair()
    single = rows.astype(np.float32)
    assert linear_energies(single, np.eye(5)).dtype == (np.ones((1, 7), np.float32) @ single).dtype == np.float32
    np.testing.assert_allclose(single @ np.eye(5, dtype=np.float32), X, atol=1e-6)


def test_entries_stored_twice_are_added_in_a_copy():
    matrix = sparse.csr_array(([1.0, 2.0], [1, 1], [0, 2]), shape=(1, 3))
    assert SparseRows.of(matrix).matrix.data.tolist() == [3.0]
    assert matrix.data.tolist() == [1.0, 2.0]


def test_nothing_makes_a_dense_array_of_them():
    rows, _ = pair()
    with pytest.raises(TypeError, match="SparseRows is not an array"):
        np.asarray(rows)
    assert not is_sparse(rows)
    assert is_sparse(sparse.coo_matrix(np.eye(2)))
    assert not is_sparse(np.eye(2))
