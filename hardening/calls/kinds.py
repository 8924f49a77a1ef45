"""Kinds of bad and odd input in place of one number, name, seed, path or space."""

import decimal
import fractions
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd


class Odd(NamedTuple):
    """A value to try. One that says the ``same`` as the good value must give the same result."""

    value: Any
    same: bool = False


Kinds = Mapping[str, Odd]

LONG = "x" * 100_000
UNICODE = ("Ωμέγα", "鸟", "طائر", "🦆", "e\u0301", "a\nb", "a, b", "", "\x00", "‮rtl", "<script>", "'; --")


def all_of(values: Mapping[str, Any], *, same: bool = False) -> dict[str, Odd]:
    return {name: Odd(value, same) for name, value in values.items()}


def without_same(kinds: Kinds) -> Kinds:
    """The kinds, none of which need give the result of the good value."""
    return {name: Odd(odd.value) for name, odd in kinds.items()}


NUMBERS: Kinds = all_of(
    {
        "0": 0,
        "-1": -1,
        "NaN": math.nan,
        "inf": math.inf,
        "-inf": -math.inf,
        "1e308": 1e308,
        "5e-324": 5e-324,
        "10**400": 10**400,
        "text": "a",
        "numeral": "1",
        "None": None,
        "True": True,
        "complex": 1j,
        "list": [0.1],
        "array": np.array([0.1, 0.2]),
        "array of one": np.array([0.1]),
        "0-d array": np.array(0.1),
        "float16": np.float16(0.1),
        "Fraction": fractions.Fraction(1, 10),
        "Decimal": decimal.Decimal("0.1"),
        "Decimal NaN": decimal.Decimal("sNaN"),
        "NA": pd.NA,
        "dict": {},
        "object": object(),
    }
)
COUNTS: Kinds = all_of(
    {
        "0": 0,
        "-1": -1,
        "-10**400": -(10**400),
        "1.5": 1.5,
        "2.0": 2.0,
        "NaN": math.nan,
        "text": "a",
        "None": None,
        "True": True,
        "list": [3],
        "int8": np.int8(3),
        "0-d array": np.array(3),
        "NA": pd.NA,
        "object": object(),
    }
)
SIZES: Kinds = {
    **COUNTS,
    **all_of({"2**40": 2**40, "10**15": 10**15, "10**400": 10**400, "two of 10**9": [10**9] * 2}),
}
CHOICES: Kinds = all_of(
    {
        "unknown": "nothing of the kind",
        "empty": "",
        "None": None,
        "a number": 3,
        "True": True,
        "NumPy's True": np.True_,
        "NaN": math.nan,
        "bytes": b"zero",
        "list": ["zero"],
        "dict": {},
        "array": np.array(["zero", "zero"]),
        "very long": LONG,
        "odd characters": "a\nb\x00",
        "NA": pd.NA,
        "object": object(),
    }
)
SEEDS: Kinds = all_of(
    {
        "-1": -1,
        "1.5": 1.5,
        "2**40": 2**40,
        "10**400": 10**400,
        "text": "a",
        "NaN": math.nan,
        "None": None,
        "list": [1, 2],
        "generator": np.random.default_rng(0),
        "RandomState": np.random.RandomState(0),
        "object": object(),
    }
)
PATHS: Kinds = all_of(
    {
        "no such file": "no/such/file.npz",
        "folder": "/tmp",
        "empty": "",
        "NUL": "a\x00b.npz",
        "very long": LONG,
        "many parts": "a/" * 5000,
        "None": None,
        "a number": 3,
        "bytes": b"a.npz",
        "list": ["a.npz"],
        "surrogates": "a\udcff.npz",
        "object": object(),
        "device": "/dev/null",
    }
)
SPACES: Kinds = all_of({"text": "abc", "a number": 3, "list": [2, 2], "dict": {}, "object": object()})
