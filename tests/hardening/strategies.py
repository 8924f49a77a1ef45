"""Odd values of every kind of parameter: named changes of a good value, all of which are tried, and random ones."""

import decimal
import fractions
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse

LONG = "x" * 100_000
UNICODE = ("Ωμέγα", "鸟", "طائر", "🦆", "e\u0301", "a\nb", "a, b", "", "\x00", "‮rtl", "<script>", "'; --")


class Odd(NamedTuple):
    """A value to try; one that ``same`` marks must give the result of the good value."""

    label: str
    value: Any
    same: bool = False


def odd(*values: Any, **named: Any) -> list[Odd]:
    """Label values by their representation, or by name."""
    unnamed = [Odd(f"{type(value).__name__} {value!r:.40}", value) for value in values]
    return unnamed + [Odd(name.replace("_", " "), value) for name, value in named.items()]


OBJECTS = odd(None, "abc", b"abc", 3, {"a": [1, 2]}, {1, 2}, object(), [[1.0, 2.0], [3.0]], [[[1], 2], [3, [4]]], [])
TEXTS = odd("", "nothing of the kind", "zero", b"zero", ["zero"], np.array(["zero"] * 2), LONG, "a\nb\x00", "nowhere")
SCALARS = [*TEXTS, *odd(None, 3, True, np.True_, math.nan, {}, ["place", "place"], pd.NA, object())]
NUMBERS = [
    *odd(0, -1, math.nan, math.inf, -math.inf, 1e308, 5e-324, 10**400, "a", "1", None, True, 1j, [0.1], {}, object()),
    *odd(np.array([0.1, 0.2]), np.array([0.1]), np.array(0.1), np.float16(0.1), fractions.Fraction(1, 10), pd.NA),
    *odd(decimal.Decimal("0.1"), decimal.Decimal("sNaN")),
]
COUNTS = odd(0, -1, -(10**400), 1.5, 2.0, math.nan, "a", None, True, [3], np.int8(3), np.array(3), pd.NA, object())
SIZES = [*COUNTS, *odd(2**40, 10**15, 10**400, [10**9] * 2, [2] * 2000)]
SEEDS = odd(-1, 1.5, 10**400, "a", math.nan, None, [1, 2], object(), np.random.default_rng(0), np.random.RandomState(0))
PATHS = [
    *odd("no/such/file.npz", "/tmp", "", "a\x00b.npz", LONG, "a/" * 5000, None, 3, b"a.npz", ["a.npz"], "a\udcff.npz"),
    *odd("/dev/null", object()),
]
SPLITS = [
    *SCALARS,
    *odd({"train": 0.9, "test": 0.9}, {"train": 1.5, "test": -0.5}, {"train": math.nan, "test": 0.5}, {"train": "a"}),
    *odd({"tarin": 1.0}, {"train": 1.0}, {"test": 1.0}, {"train": 0.5, "val": 0.2, "test": 0.3}),
]
DROPS = [*SCALARS, *odd("random:2", "random:nan", "random:", "random:-1", "random:0", "random:1")]


def same(**named: Any) -> list[Odd]:
    """Values that must give the result of the good value."""
    return [Odd(name.replace("_", " "), value, same=True) for name, value in named.items()]


def replaced(array: Any, where: Any, value: Any, dtype: Any = None) -> Any:
    """Return a copy with some entries replaced."""
    copy = array.astype(dtype or array.dtype)
    copy[where] = value
    return copy


def objects(values: Any) -> Any:
    """Return a one-dimensional array of objects."""
    array = np.empty(len(values), object)
    for position, value in enumerate(values):
        array[position] = value
    return array


def layouts(array: Any) -> list[Odd]:
    """The same array in other memory layouts and plain containers."""
    locked = array.copy()
    locked.flags.writeable = False
    apart = np.repeat(array, 2, axis=0)[::2]
    backward = array[::-1].copy()[::-1]
    listed = array.tolist()
    return same(
        read_only=locked, strided=apart, negative_strides=backward, lists=listed, Fortran=np.asfortranarray(array),
        tuples=tuple(map(tuple, listed)) if array.ndim > 1 else tuple(listed), object_dtype=array.astype(object),
    )  # fmt: skip


def shapes(array: Any) -> list[Odd]:
    """Wrong numbers of rows, columns and dimensions."""
    table = array if array.ndim > 1 else array[:, None]
    return odd(
        no_rows=array[:0], one_row=array[:1], row_missing=array[:-1], rows_twice=np.concatenate([array, array]),
        no_columns=table[:, :0], column_missing=table[:, :-1], column_more=np.hstack([table, table[:, :1]]),
        one_dimension=table[:, 0], column=table[:, :1], three_dimensions=table[None], cube=table[:, None, None],
        generator=(row for row in array),
    )  # fmt: skip


def casts(array: Any) -> Iterator[Odd]:
    """Other types of entries; casts that NumPy does not know are left out."""
    for dtype in ("f2", "i1", "?", "u8", "c16", "M8[s]", "m8[s]", "U", "S", "f8", "i8"):
        with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
            try:
                yield Odd(f"as {np.dtype(dtype).name}", array.astype(dtype))
            except (ValueError, TypeError):
                continue
    yield Odd("structured", np.zeros(len(array), dtype=[("a", float), ("b", int)]))


def containers(values: Any) -> list[Odd]:
    """Sparse, masked, tensor and Arrow forms of numbers (rows first)."""
    table = values if values.ndim > 1 else values[:, None]
    mask = np.zeros(values.shape, bool)
    mask[0] = True
    return odd(
        sparse=sparse.csr_matrix(table), sparse_array=sparse.coo_array(table), numpy_matrix=np.asmatrix(table),
        masked=np.ma.masked_array(values, mask=mask), gradient=torch.tensor(values * 1.0, requires_grad=True),
        Arrow_table=pa.table({f"f{j}": column for j, column in enumerate(table.T)}),
        Arrow_array=pa.array(table[:, 0]),
    )  # fmt: skip


def entries(array: Any, *values: Any) -> list[Odd]:
    """One entry replaced by each value."""
    found = []
    for value in values:
        fits = isinstance(value, float) and array.dtype.kind == "f"
        found.append(Odd(f"entry {value!r:.20}", replaced(array, (0,) * array.ndim, value, None if fits else object)))
    return found


def unreadable(array: Any) -> dict[str, Any]:
    """Tensors in layouts and types that NumPy cannot read; PyTorch itself warns about some."""
    values = torch.tensor(array)
    with warnings.catch_warnings(action="ignore"):
        quantized = torch.quantize_per_tensor(values.float(), 1.0, 0, torch.qint8)
        nested = torch.nested.as_nested_tensor([values])
        return {
            "bfloat16": values.bfloat16(), "sparse tensor": values.to_sparse(), "meta tensor": values.to("meta"),
            "quantized": quantized, "nested": nested, "complex32": values.to(torch.complex32),
        }  # fmt: skip


def matrix(X: Any) -> list[Odd]:
    """Changes of features (n, p)."""
    n, p = X.shape
    frame = pd.DataFrame(X, columns=[f"f{j}" for j in range(p)])
    nullable = frame.astype("Float64")
    names = {"repeated": ["a"] * p, "long": [f"{LONG}{j}" for j in range(p)], "mixed": [*range(p - 1), "a"]}
    names["unicode"] = [UNICODE[j % 6] + str(j) for j in range(p)]
    equal = {"frame": frame, "float32": X.astype("f4"), "big_endian": X.astype(">f8"), "tensor": torch.tensor(X)}
    with np.errstate(all="ignore"):
        scaled = odd(*(X * scale for scale in (0.0, 1e200, 1e-200, 5e-320, 1e308, math.inf)))
    return [
        *layouts(X), *same(**equal, unmasked=np.ma.masked_array(X), long_double=X.astype(np.longdouble)),
        *shapes(X), *casts(X), *containers(X), *OBJECTS, *odd(3.0, [["a"] * p] * n, pd.Series(X[:, 0])),
        *entries(X, math.nan, math.inf, -math.inf, 1e308, "a", None), *(Odd("scaled", v.value) for v in scaled),
        *odd(nullable=nullable, NA=nullable.mask(np.eye(n, p, dtype=bool)), text_column=frame.assign(f0="a")),
        *(Odd(f"frame with {kind} names", pd.DataFrame(X, columns=columns)) for kind, columns in names.items()),
        *odd(categories=frame.astype("category"), numerals=X.astype(str).tolist(), large=np.full_like(X, 1e308)),
        *odd(signs=np.where(X > 0, 1e308, -1e308), denormal=replaced(X * 0, (0, 0), 5e-324), wide=np.tile(X, (1, 50))),
        *odd(constant=np.ones_like(X), one_constant=replaced(X, (slice(None), 0), 7.0), repeated=X[:, [0] * p]),
    ]  # fmt: skip


def labels(y: Any) -> list[Odd]:
    """Changes of labels (n,), which are texts."""
    n = len(y)
    known, codes = np.unique(y, return_inverse=True)
    pair = np.stack([y, y[::-1]], axis=1)
    cycles = {  # values in turn
        "unicode": UNICODE[:6], "odd characters": UNICODE[6:], "equal across types": (1, 1.0, True, "1"),
        "long names": (f"{LONG}0", f"{LONG}1"), "beyond integers": (10**30, 10**30 + 1), "NUL": ("a", "a\0"),
        "beyond 64 bits": (2**63, 2**63 + 1, -1), "beyond floats": (2**53, 2**53 + 1, 0.5),
        "large beside NaN": (1e300, 2e300, math.nan), "one class": ("a",), "missing": (None,), "lists": ([0], [1]),
        "tuples": ((1, 0), (1, 1)),
    }  # fmt: skip
    return [
        *layouts(y), *same(series=pd.Series(y), categorical=pd.Categorical(y)), *shapes(y), *casts(y), *casts(codes),
        *containers(codes), *OBJECTS, *entries(y, None, 3), *entries(codes * 1.0, math.nan, math.inf),
        *(Odd(kind, objects([cycle[i % len(cycle)] for i in range(n)])) for kind, cycle in cycles.items()),
        *odd(other_rows=pd.Series(y, index=np.arange(n)[::-1]), NA=pd.Series(y).mask(np.arange(n) == 0)),
        *odd(unused=pd.Series(pd.Categorical(y, [*known, "unused"])), halves=codes + 0.5, negative=-codes - 1),
        *odd(large=codes + 2**62, uint64=codes.astype("u8") + np.uint64(2**63), different=np.arange(n).astype(str)),
        *odd(pair=pair, constant_pair=np.stack([y, np.full(n, "a")], axis=1), frame=pd.DataFrame({"u": y, "v": y})),
        *odd(repeated_names=pd.DataFrame(pair, columns=["a", "a"]), numbered_names=pd.DataFrame(pair)),
        *odd(masked=np.ma.masked_array(y, mask=np.arange(n) == 0)),
        *odd(NUL_category=pd.Categorical([("a", "b\0")[int(c > 0)] for c in codes])),
        *odd(Arrow=pa.array(y.tolist()), views=pa.table({"bird": pa.array(y.tolist(), pa.string_view())})),
    ]  # fmt: skip


def weights(ones: Any) -> list[Odd]:
    """Changes of weights of samples (n,), where all ones are good."""
    n = len(ones)
    return [
        *layouts(ones), *same(integers=ones.astype(int), tensor=torch.tensor(ones), series=pd.Series(ones)),
        *shapes(ones), *casts(ones), *containers(ones), *OBJECTS, *odd(2.0, ["a"] * n),
        *entries(ones, 0.0, -1.0, math.nan, math.inf, 5e-324, None), *odd(*(ones * w for w in (0.0, 1e308, 5e-324))),
        *odd(few=replaced(ones * 0, slice(0, 4), 1.0), half=replaced(ones, slice(n // 2, None), 1e-300)),
        *odd(other_rows=pd.Series(ones, index=np.arange(n)[::-1]), columns=np.ones((n, 2)), **unreadable(ones)),
    ]  # fmt: skip


def codes(good: Any) -> list[Odd]:
    """Changes of codes of groups (q, m), or of one code (m,)."""
    table = np.atleast_2d(good)
    changes = shapes(table) + odd(good[0] if good.ndim > 1 else good[None], _tiled=np.tile(table, (50_000, 1)))
    return [
        *layouts(good), *same(int8=good.astype("i1"), uint64=good.astype("u8"), tensor=torch.tensor(good)), *changes,
        *casts(good), *containers(table), *OBJECTS, *entries(good, -1, 99, 2**62, 2**63, 10**30, 0.5, math.nan, "a"),
        *odd(1, [[0, 1], [0]], halves=good + 0.5, frame=pd.DataFrame(table), **unreadable(table)),
    ]  # fmt: skip


def priors(n_groups: int, known: Any, unknown: Any) -> list[Odd]:
    """Priors over the groups, where a uniform one is good."""
    even = np.full(n_groups, 1 / n_groups)
    twice = pd.Series([0.5, 0.5], index=pd.MultiIndex.from_tuples([known] * 2))
    renamed = pd.Series({known: 1.0}).rename_axis([f"v{i}" for i in range(len(known))])
    return [
        *same(array=even, list=even.tolist(), series=pd.Series(even), float32=even.astype("f4")), *OBJECTS,
        *odd("unifrom", 0.5, {known: 1.0}, {unknown: 1.0}, {}, {3: 1.0}, {("a",): 1.0}, {known: "a"}, len),
        *odd({known: math.nan}, twice, renamed, pd.Series(even, index=[f"v{i}" for i in range(n_groups)])),
        *shapes(even), *casts(even), *odd(0 * even, 2 * even, np.eye(n_groups)[0], even[None], ["a"] * n_groups),
        *entries(even, -1.0, math.nan, math.inf, 5e-324), *odd(hole=replaced(even, 0, 0.0) / (1 - 1 / n_groups)),
        *odd(gradient=torch.tensor(even, requires_grad=True), **unreadable(even)),
    ]  # fmt: skip


def tensors(X: Any) -> list[Odd]:
    """Changes of features of a network (n, p), float64."""
    array = X.numpy()
    return [
        *same(strided=X.T.contiguous().T), *odd(**unreadable(array)), *OBJECTS,
        *odd(no_rows=X[:0], column_missing=X[:, :-1], one_dimension=X[:, 0], three_dimensions=X[None], whole=X.long()),
        *odd(float32=X.float(), float16=X.half(), complex=X.to(torch.complex128), array=array, lists=X.tolist()),
    ]  # fmt: skip


def frames(frame: pd.DataFrame) -> list[Odd]:
    """Changes of a table with the columns bird, place, f0 and f1."""
    return [
        *same(mapping=dict(frame)), *OBJECTS, *PATHS, *odd(np.eye(3), frame["bird"], [[1, 2], [3, 4]]),
        *odd(no_rows=frame[:0], one_row=frame[:1], no_columns=frame[[]], repeated=pd.concat([frame, frame], axis=1)),
        *odd(lengths={"bird": ["a", "b"], "place": ["c"], "f0": [1.0], "f1": [1.0]}, missing=frame.assign(bird=None)),
        *odd(NaN=frame.assign(f0=math.nan), numbers=frame.assign(bird=frame["f0"]), texts=frame.assign(f0="a")),
        *odd(dates=frame.assign(place=pd.Timestamp(0))),
    ]  # fmt: skip


def unequal(values: list[Odd]) -> list[Odd]:
    """The values, none of which has to give the good value's result."""
    return [Odd(value.label, value.value) for value in values]


def batches(values: list[Odd]) -> list[Odd]:
    """Lists of one batch."""
    return [*SCALARS, *(Odd(f"batch: {value.label}", [value.value]) for value in values), *odd([()], [(1, 2, 3)])]


FLOATS = st.floats(-10, 10) | st.floats() | st.sampled_from([0.0, -0.0, 1e-320, 1e-300, 1e20, 1e154, 1e300, -1e300])
TEXT = st.text(max_size=5) | st.sampled_from(["a", "b", "c", "a, b", "\x00", "x" * 300])
ATOMS = st.none() | st.booleans() | st.integers(-3, 3) | st.integers() | FLOATS | TEXT | st.binary(max_size=3)
ARRAYS = hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
ANYTHING = ATOMS | st.just(pd.NA) | st.lists(ATOMS, max_size=4) | st.dictionaries(TEXT, ATOMS, max_size=2) | ARRAYS


@st.composite
def mixtures(draw: st.DrawFn, good: Any) -> Any:
    """Several changes of one array at a time: entries, type, shape and container."""
    array = np.array(good)
    changes: tuple[Callable[[Any], list[Odd]], ...] = (
        lambda a: entries(a, draw(ATOMS)), lambda a: list(casts(a)), shapes, layouts,
        lambda a: odd(a.tolist(), pd.Series(a) if a.ndim == 1 else pd.DataFrame(a)),
    )  # fmt: skip
    for change in changes:
        if isinstance(array, np.ndarray) and array.ndim in (1, 2) and array.size and draw(st.booleans()):
            array = draw(st.sampled_from(change(array))).value
    return array


def random_values(good: Any) -> st.SearchStrategy[Any]:
    """Anything, and mixtures of changes where the good value is an array."""
    return mixtures(good) | ANYTHING if isinstance(good, np.ndarray) and good.ndim in (1, 2) else ANYTHING
