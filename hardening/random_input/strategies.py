"""Random input, valid and invalid: tables, matrices, labels, parameters."""

from typing import Any

import numpy as np
import pandas as pd
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

FLOATS = st.one_of(
    st.floats(-10, 10),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, -0.0, 1e-320, 1e-300, 1e20, 1e154, 1e300, -1e300]),
)
TEXT = st.one_of(st.text(max_size=5), st.sampled_from(["a", "b", "c", "a, b", "\x00", "x" * 300]))
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.integers(), FLOATS, TEXT, st.binary(max_size=3), st.just(pd.NA)
)
ODD = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=4),
    st.dictionaries(TEXT, SCALARS, max_size=2),
    st.just(object()),
    st.just(np.eye(2)),
)


VALUES: list[list[Any]] = [["a", "b"], ["a", "b", "c"], [0, 1], [0, 1, 2], [True, False], ["a", "b", "c", "d"]]
ODD_VALUES: list[list[Any]] = [
    [0.0, 1.0, 0.5],
    ["a"],
    ["a", None],
    ["a", 1],
    [1, float("nan")],
    [2**70, 1],
    [b"a", b"b"],
    [(1, 2), (3,)],
]


@st.composite
def matrices(draw: st.DrawFn, n: int, *, odd: bool = False) -> Any:
    """Features of n rows; odd ones may be anything."""
    if odd and draw(st.booleans()):
        return draw(ODD)
    rows = draw(st.integers(0, n + 1)) if odd else n
    p = draw(st.sampled_from([0, 1, 2, 40] if odd else [1, 2, 3, 5]))
    elements = FLOATS if odd else st.floats(-3, 3)
    found = draw(hnp.arrays(np.float64, (rows, p), elements=elements, fill=st.nothing()))
    kind = draw(st.sampled_from(["f8", "f8", "f4", "f2", "i4", "u1", "?", "O", "frame", "lists"]))
    with np.errstate(all="ignore"):
        if kind == "frame":
            return pd.DataFrame(found, columns=[f"f{j}" for j in range(p)])
        return found.tolist() if kind == "lists" else found.astype(kind)


@st.composite
def labels(draw: st.DrawFn, n: int, *, odd: bool = False) -> Any:
    """Labels of n rows; odd ones may be anything."""
    if odd and draw(st.booleans()):
        return draw(ODD)
    rows = draw(st.integers(0, n + 1)) if odd else n
    values = draw(st.sampled_from(ODD_VALUES if odd else VALUES))
    found = [values[draw(st.integers(0, len(values) - 1))] for _ in range(rows)]
    form = draw(st.sampled_from(["list", "array", "series", "object", "column", "categorical"]))
    if form in ("list", "column"):
        return found if form == "list" else [[value] for value in found]
    if form == "series":
        return pd.Series(found, dtype=object, name=draw(st.sampled_from([None, "y", "a", 3])))
    if form == "categorical":
        try:
            return pd.Categorical(found)
        except (TypeError, ValueError):
            return found
    array = np.empty(rows, dtype=object)
    array[:] = found
    return array if form == "object" else np.array([str(value) for value in found])


def parameter(*good: Any) -> tuple[st.SearchStrategy[Any], st.SearchStrategy[Any]]:
    """Good values of a parameter, and odd ones."""
    return st.sampled_from(good), ODD
