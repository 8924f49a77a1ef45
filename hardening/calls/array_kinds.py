"""Kinds of bad and odd input in place of arrays: features, labels, weights, codes and priors."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from scipy import sparse

from hardening.calls.kinds import LONG, UNICODE, Kinds, all_of


def _read_only(array: Any) -> Any:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def _with(array: Any, where: Any, value: Any, dtype: Any = None) -> Any:
    copy = array.astype(dtype or array.dtype)
    copy[where] = value
    return copy


def matrix(X: Any) -> Kinds:
    """Features (n, p)."""
    n, p = X.shape
    apart = np.empty((2 * n, 3 * p))
    apart[::2, ::3] = X
    names = [f"f{j}" for j in range(p)]
    nullable = pd.DataFrame(X, columns=names).astype("Float64")
    masked = np.ma.masked_array(X, mask=np.eye(n, p, dtype=bool))
    same = {
        "Fortran order": np.asfortranarray(X),
        "not contiguous": apart[::2, ::3],
        "negative strides": X[::-1, ::-1].copy()[::-1, ::-1],
        "read-only": _read_only(X),
        "lists": X.tolist(),
        "tuples": tuple(map(tuple, X)),
        "object dtype": X.astype(object),
        "other byte order": X.astype(">f8"),
        "array without a mask": np.ma.masked_array(X),
        "long double": X.astype(np.longdouble),
    }
    odd = {
        "frame": pd.DataFrame(X, columns=names),
        "nullable frame": nullable,
        "nullable frame with NA": nullable.mask(np.eye(n, p, dtype=bool)),
        "frame with repeated names": pd.DataFrame(X, columns=["a"] * p),
        "frame with long names": pd.DataFrame(X, columns=[f"{LONG}{j}" for j in range(p)]),
        "frame with mixed names": pd.DataFrame(X, columns=[*range(p - 1), "a"]),
        "frame with unicode names": pd.DataFrame(X, columns=UNICODE[:p]),
        "frame with a text column": pd.DataFrame(X, columns=names).assign(f0="a"),
        "categories": pd.DataFrame(X, columns=names).astype("category"),
        "series": pd.Series(X[:, 0]),
        "no rows": X[:0],
        "no columns": X[:, :0],
        "nothing": [],
        "one row": X[:1],
        "one row too few": X[:-1],
        "one column too few": X[:, :-1],
        "one column too many": np.hstack([X, X[:, :1]]),
        "one dimension": X[:, 0],
        "three dimensions": X[None],
        "a number": 3.0,
        "None": None,
        "text": "abc",
        "bytes": b"abc",
        "dict": {"a": [1, 2]},
        "set": {1, 2},
        "generator": (row for row in X),
        "object": object(),
        "ragged lists": [[1.0, 2.0], [3.0]],
        "texts": [["a"] * p] * n,
        "numerals": X.astype(str).tolist(),
        "mixed types": _with(X, (0, 0), "a", object),
        "None inside": _with(X, (0, 0), None, object),
        "lists inside": [[[1], 2], [3, [4]]],
        "NaN": _with(X, (1, 0), math.nan),
        "inf": _with(X, (1, 0), math.inf),
        "-inf": _with(X, (1, 0), -math.inf),
        "NaN everywhere": np.full_like(X, math.nan),
        "1e308": _with(X, (0, 0), 1e308),
        "1e308 everywhere": np.full_like(X, 1e308),
        "signs at 1e308": np.where(X > 0, 1e308, -1e308),
        "scale 1e200": X * 1e200,
        "scale 1e-200": X * 1e-200,
        "denormals": X * 5e-320,
        "one denormal": _with(np.zeros_like(X), (0, 0), 5e-324),
        "zeros": np.zeros_like(X),
        "constant columns": np.ones_like(X),
        "one constant column": _with(X, (slice(None), 0), 7.0),
        "repeated columns": np.repeat(X[:, :1], p, axis=1),
        "float16": X.astype(np.float16),
        "int8": X.astype(np.int8),
        "bool": X > 0,
        "uint64": (np.abs(X) * 1e18).astype(np.uint64),
        "complex": X.astype(complex),
        "dates": X.astype("datetime64[s]"),
        "durations": X.astype("timedelta64[s]"),
        "structured": np.zeros(n, dtype=[("a", float), ("b", int)]),
        "sparse": sparse.csr_matrix(X),
        "sparse array": sparse.coo_array(X),
        "numpy matrix": np.asmatrix(X),
        "masked": masked,
        "tensor with a gradient": torch.tensor(X, requires_grad=True),
        "Arrow table": pa.table({f"f{j}": X[:, j] for j in range(p)}),
        "many columns": np.tile(X, (1, 50)),
    }
    return {**all_of(same, same=True), **all_of(odd)}


def labels(y: Any) -> Kinds:
    """One label per row (n,), texts."""
    n = len(y)
    known, codes = np.unique(y, return_inverse=True)
    same = {
        "list": y.tolist(),
        "tuple": tuple(y.tolist()),
        "object dtype": y.astype(object),
        "read-only": _read_only(y),
        "not contiguous": np.repeat(y, 2)[::2],
    }
    odd = {
        "series": pd.Series(y),
        "series with other rows": pd.Series(y, index=np.arange(n)[::-1]),
        "categories": pd.Categorical(y),
        "categories with one unused": pd.Series(pd.Categorical(y, [*known, "unused"])),
        "no rows": y[:0],
        "nothing": [],
        "one row too few": y[:-1],
        "one class": np.full(n, "a"),
        "all different": np.array([f"v{i}" for i in range(n)]),
        "None": None,
        "a number": 3,
        "text": "abc",
        "bytes": b"abc",
        "dict": {"a": 1},
        "set": {"a", "b"},
        "generator": (value for value in y),
        "object": object(),
        "None inside": _with(y, 0, None, object),
        "NaN inside": _with(codes, 0, math.nan, float),
        "NA inside": pd.Series(y).mask(np.arange(n) == 0),
        "inf inside": _with(codes, 0, math.inf, float),
        "all missing": np.full(n, None, object),
        "mixed types": _with(y, 0, 3, object),
        "equal across types": np.array([(1, 1.0, True, "1")[i % 4] for i in range(n)], object),
        "unicode": np.array([UNICODE[i % 6] for i in range(n)], object),
        "odd characters": np.array([UNICODE[6 + i % 6] for i in range(n)], object),
        "long names": np.array([LONG + str(i % 2) for i in range(n)], object),
        "floats": codes + 0.5,
        "whole floats": codes.astype(float),
        "bool": codes > 0,
        "negative": -codes - 1,
        "large": codes + 2**62,
        "uint64": codes.astype(np.uint64) + np.uint64(2**63),
        "beyond integers": np.array([10**30 + int(c) for c in codes], object),
        "dates": codes.astype("datetime64[D]"),
        "bytes inside": y.astype(bytes),
        "tuples inside": _objects([(1, int(c)) for c in codes]),
        "lists inside": _objects([[int(c)] for c in codes]),
        "complex": codes.astype(complex),
        "a column": y[:, None],
        "two columns": np.stack([y, y[::-1]], axis=1),
        "a column of one value": np.stack([y, np.full(n, "a")], axis=1),
        "three dimensions": y[:, None, None],
        "no columns": y[:, None][:, :0],
        "sparse": sparse.csr_matrix(codes[:, None]),
        "frame": pd.DataFrame({"u": y, "v": y[::-1]}),
        "frame with repeated names": pd.DataFrame(np.stack([y, y[::-1]], axis=1), columns=["a", "a"]),
        "frame with names of numbers": pd.DataFrame(np.stack([y, y[::-1]], axis=1)),
        "ragged lists": [["a"], ["a", "b"]],
        "NUL at the end": np.array([["a", "a\0"][i % 2] for i in range(n)], object),
        "categories with NUL": pd.Categorical([["a", "b\0"][i % 2] for i in range(n)]),
        "beyond 64 bits": np.array([[2**63, 2**63 + 1, -1][i % 3] for i in range(n)], object),
        "beyond the digits of floats": np.array([[2**53, 2**53 + 1, 0.5][i % 3] for i in range(n)], object),
        "large beside NaN": np.array([[1e300, 2e300, math.nan][i % 3] for i in range(n)]),
        "masked": np.ma.masked_array(y, mask=np.arange(n) == 0),
        "Arrow array": pa.array(y.tolist()),
        "Arrow table": pa.table({"bird": y.tolist()}),
        "Arrow views": pa.table({"bird": pa.array(y.tolist(), pa.string_view())}),
        "tensor with a gradient": torch.tensor(codes * 1.0, requires_grad=True),
    }
    return {**all_of(same, same=True), **all_of(odd)}


def _objects(values: list[Any]) -> Any:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def weights(n: int) -> Kinds:
    """Weights of rows, where ones are the good value."""
    ones = np.ones(n)
    same = {"None": None, "list": ones.tolist(), "integers": ones.astype(int), "read-only": _read_only(ones)}
    odd = {
        "zeros": np.zeros(n),
        "zero for one row": _with(ones, 0, 0.0),
        "zero for most rows": _with(np.zeros(n), slice(0, 4), 1.0),
        "negative": _with(ones, 0, -1.0),
        "NaN": _with(ones, 0, math.nan),
        "inf": _with(ones, 0, math.inf),
        "1e308": np.full(n, 1e308),
        "denormal": np.full(n, 5e-324),
        "one denormal": _with(ones, 0, 5e-324),
        "1 to 1e-300": _with(ones, slice(n // 2, None), 1e-300),
        "texts": ["a"] * n,
        "text": "abc",
        "one too few": ones[:-1],
        "no rows": [],
        "a column": ones[:, None],
        "two columns": np.ones((n, 2)),
        "a number": 2.0,
        "bool": ones > 0,
        "complex": ones.astype(complex),
        "dates": ones.astype("datetime64[s]"),
        "durations": ones.astype("timedelta64[s]"),
        "masked": np.ma.masked_array(ones, mask=np.arange(n) == 0),
        "tensor with a gradient": torch.ones(n, requires_grad=True),
        "None inside": _with(ones, 0, None, object),
        "dict": {"a": 1},
        "object": object(),
        "sparse": sparse.csr_matrix(ones),
        "series with other rows": pd.Series(ones, index=np.arange(n)[::-1]),
    }
    return {**all_of(same, same=True), **all_of(odd)}


def codes(good: Any) -> Kinds:
    """Codes of groups (q, m)."""
    q, m = good.shape
    same = {
        "lists": good.tolist(),
        "int8": good.astype(np.int8),
        "uint64": good.astype(np.uint64),
        "Fortran order": np.asfortranarray(good),
        "read-only": _read_only(good),
    }
    odd = {
        "frame": pd.DataFrame(good),
        "none": good[:0],
        "nothing": [],
        "one code": good[0],
        "repeated": np.vstack([good, good]),
        "negative": _with(good, (0, 0), -1),
        "too large": _with(good, (0, m - 1), 99),
        "2**62": _with(good, (0, 0), 2**62),
        "2**63": _with(good.astype(np.uint64), (0, 0), 2**63),
        "beyond integers": _with(good, (0, 0), 10**30, object),
        "floats": good.astype(float),
        "halves": good + 0.5,
        "NaN": _with(good, (0, 0), math.nan, float),
        "bool": good > 0,
        "object dtype": good.astype(object),
        "complex": good.astype(complex),
        "texts": good.astype(str),
        "one column too few": good[:, :-1],
        "one column too many": np.hstack([good, good[:, :1]]),
        "three dimensions": good[None],
        "a number": 1,
        "text": "abc",
        "None": None,
        "dict": {"a": 1},
        "set": {1},
        "generator": (row for row in good),
        "object": object(),
        "ragged lists": [[0, 1], [0]],
        "sparse": sparse.csr_matrix(good),
        "many": np.tile(good, (-(-100_000 // q), 1)),
    }
    return {**all_of(same, same=True), **all_of(odd)}


def priors(n_groups: int, some_group: Any, unknown_group: Any) -> Kinds:
    """Priors over all groups, where "uniform" is the good value."""
    even = np.full(n_groups, 1 / n_groups)
    same = {"array": even, "list": even.tolist(), "series": pd.Series(even), "float32": even.astype(np.float32)}
    odd = {
        "unknown name": "unifrom",
        "no name": "",
        "a known group": {some_group: 1.0},
        "an unknown group": {unknown_group: 1.0},
        "no groups": {},
        "a key that is no group": {3: 1.0},
        "a key of the wrong length": {("a",): 1.0},
        "texts as values": {some_group: "a"},
        "NaN as value": {some_group: math.nan},
        "None": None,
        "a number": 0.5,
        "one too few": even[:-1],
        "nothing": [],
        "zeros": np.zeros(n_groups),
        "sum of 2": 2 * even,
        "negative": _with(even, 0, -1.0),
        "NaN": _with(even, 0, math.nan),
        "inf": _with(even, 0, math.inf),
        "one group": np.eye(n_groups)[0],
        "one impossible group": _with(even, 0, 0.0) / (1 - 1 / n_groups),
        "denormal": _with(even, 0, 5e-324),
        "two dimensions": even[None],
        "texts": ["a"] * n_groups,
        "complex": even.astype(complex),
        "set": {1},
        "callable": len,
        "object": object(),
        "other names of levels": pd.Series({some_group: 1.0}).rename_axis([f"v{i}" for i in range(len(some_group))]),
        "a group twice": pd.Series([0.5, 0.5], index=pd.MultiIndex.from_tuples([some_group] * 2)),
        "a tensor with a gradient": torch.tensor(even, requires_grad=True),
        "other index": pd.Series(even, index=[f"v{i}" for i in range(n_groups)]),
    }
    return {**all_of(same, same=True), **all_of(odd)}
