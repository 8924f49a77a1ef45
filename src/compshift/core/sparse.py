r"""Sparse features that are centred and scaled without a dense copy: the correction of a product has rank one.

.. math:: (f X - 1 c^\top) W = f\, X W - 1 (c^\top W), \qquad A (f X - 1 c^\top) = f\, A X - (A 1)\, c^\top
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from compshift.core.arrays import FloatArray

Features: TypeAlias = Any
"""Features (n, p) of samples: a NumPy array or ``SparseRows``."""


def is_sparse(values: Any) -> bool:
    """Return whether values are a sparse matrix or array of SciPy, without importing SciPy."""
    return hasattr(values, "tocsr") and hasattr(values, "nnz")


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Samples whose features are a sparse matrix times a factor, less an offset that is the same for every sample.

    It supports what fits and predictions do with an array of features: select rows, shift and scale, and multiply by
    dense arrays from either side. Products are dense.
    """

    matrix: Any  # csr_array (n, p)
    factor: float = 1.0
    offset: FloatArray | None = None  # (p,); None for 0

    ndim = 2
    __array_ufunc__ = None  # NumPy leaves products with an array on the left to __rmatmul__

    @classmethod
    def of(cls, matrix: Any) -> SparseRows:
        """Wrap a sparse matrix of SciPy. Entries stored twice are added, in a copy."""
        from scipy.sparse import csr_array

        rows = csr_array(matrix)
        if not rows.has_canonical_format:
            rows = rows.copy()
            rows.sum_duplicates()
        return cls(rows)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of samples and features."""
        n, p = self.matrix.shape
        return int(n), int(p)

    @property
    def size(self) -> int:
        """Number of stored entries."""
        return int(self.matrix.nnz)

    @property
    def dtype(self) -> Any:
        """Type of the entries."""
        return self.matrix.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> SparseRows:
        """Return some of the samples; those of a slice share the memory of this object."""
        if not isinstance(rows, slice) or rows.step not in (None, 1):
            return replace(self, matrix=self.matrix[rows])
        start, stop, _ = rows.indices(len(self))
        ends = self.matrix.indptr[start : max(start, stop) + 1]
        entries = slice(ends[0], ends[-1])
        parts = (self.matrix.data[entries], self.matrix.indices[entries], ends - ends[0])
        return replace(self, matrix=type(self.matrix)(parts, shape=(len(ends) - 1, self.shape[1]), copy=False))

    def astype(self, dtype: Any, *, copy: bool = True) -> SparseRows:
        """Return the samples with entries of another type."""
        offset = None if self.offset is None else self.offset.astype(dtype, copy=copy)
        return replace(self, matrix=self.matrix.astype(dtype, copy=copy), offset=offset)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        """Refuse to become an array: NumPy would make one of objects, or a dense copy of everything."""
        raise TypeError("SparseRows is not an array")

    def __add__(self, shift: FloatArray) -> SparseRows:
        return self - (-shift)

    def __sub__(self, shift: FloatArray) -> SparseRows:
        return replace(self, offset=shift if self.offset is None else self.offset + shift)

    def __mul__(self, factor: float) -> SparseRows:
        return replace(self, factor=self.factor * factor, offset=None if self.offset is None else self.offset * factor)

    def __truediv__(self, divisor: float) -> SparseRows:
        return self * (1 / divisor)

    def __matmul__(self, weight: FloatArray) -> FloatArray:
        """Return the product (n, …) with an array (p, …)."""
        product = self.matrix @ weight
        product *= self.factor
        if self.offset is not None:
            product -= self.offset @ weight
        return np.asarray(product)

    def __rmatmul__(self, left: FloatArray) -> FloatArray:
        """Return the product (…, p) of an array (…, n) with the samples."""
        product = left @ self.matrix
        product *= self.factor
        if self.offset is not None:
            product -= left.sum(axis=-1)[..., None] * self.offset
        return np.asarray(product)

    def extremes(self) -> tuple[FloatArray, FloatArray]:
        """Return the smallest and the largest value of each feature, (p,) each."""
        low, high = (
            self.factor * np.asarray(part.toarray()).ravel()
            for part in (self.matrix.min(axis=0), self.matrix.max(axis=0))
        )
        return (low, high) if self.offset is None else (low - self.offset, high - self.offset)

    def row_squares(self) -> FloatArray:
        r"""Return the squared length of each sample, (n,).

        .. math:: \sum_j (f x_j - c_j)^2 = \sum_{j: x_j \ne 0} f x_j (f x_j - 2 c_j) + \lVert c \rVert^2
        """
        scaled = self.factor * self.matrix.data
        if self.offset is None:
            return self._with(scaled * scaled).matrix.sum(axis=1)  # type: ignore[no-any-return]
        products = scaled * (scaled - 2 * self.offset[self.matrix.indices])
        return np.asarray(self._with(products).matrix.sum(axis=1) + self.offset @ self.offset)

    def signed_root(self) -> SparseRows:
        """Return the signed square roots of the entries; the samples must not be shifted or scaled."""
        return self._with(np.sign(self.matrix.data) * np.sqrt(np.abs(self.matrix.data)))

    def unit_length(self) -> SparseRows:
        """Return samples divided by their length, rows of zeros unchanged; they must not be shifted or scaled."""
        largest = np.abs(self.matrix).max(axis=1).toarray().ravel()  # (n,)
        counts = np.diff(self.matrix.indptr)
        scaled = self._with(self.matrix.data / np.repeat(np.where(largest > 0, largest, 1.0), counts))
        length = np.sqrt(scaled.row_squares())
        return self._with(scaled.matrix.data / np.repeat(np.where(length > 0, length, 1.0), counts))

    def _with(self, data: FloatArray) -> SparseRows:
        """Return unshifted samples with other values of the stored entries."""
        parts = (data, self.matrix.indices, self.matrix.indptr)
        return SparseRows(type(self.matrix)(parts, shape=self.shape, copy=False))


def stored_entries(features: Features) -> FloatArray:
    """Return the entries of features that are stored: an array as it is, or the nonzero entries of a sparse matrix."""
    return features.matrix.data if isinstance(features, SparseRows) else features  # type: ignore[no-any-return]


def stacked(one: Features, other: Features) -> Features:
    """Return the samples of ``one`` followed by those of ``other``, which are shifted and scaled alike."""
    if not isinstance(one, SparseRows):
        return np.concatenate([one, other])
    from scipy.sparse import vstack

    return replace(one, matrix=vstack([one.matrix, other.matrix], format="csr"))
