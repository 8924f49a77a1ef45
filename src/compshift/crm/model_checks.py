"""Checks of the contents of model files: the JSON header, and the type, shape and range of every array."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from compshift._checks import MAX_FEATURE, check_codes
from compshift._errors import InputError, shown
from compshift.core.groups import GroupSpace

MAX_BIAS = 1e12
"""Largest absolute bias accepted from a file: a larger bias would round off the significant digits of
log-probabilities."""

MAX_SAMPLE_SIZE = 1e18
"""Largest effective sample size accepted from a file."""


def check_header(header: Mapping[str, Any], space: GroupSpace, n_features: int) -> None:
    """Check the type and range of the header entries, except ``names``, ``values`` and most parameters."""
    for name in ("one_dimensional", "converged"):
        _require(isinstance(header[name], bool), name, header[name])
    for name, least in (("n_targets", 1), ("n_iter", 0)):
        _require(type(header[name]) is int and header[name] >= least, name, header[name])
    for name in ("bias_gap", "gradient"):
        _require(_is_number(header[name]) and header[name] >= 0, name, header[name])
    temperature = header.get("temperature", 1.0)
    _require(_is_number(temperature) and temperature > 0, "temperature", temperature)
    if header["n_targets"] > len(space.names):
        raise InputError(f"n_targets is {header['n_targets']} but there are only {len(space.names)} attributes")
    if header["one_dimensional"] and header["n_targets"] > 1:
        raise InputError(f"one_dimensional is true but n_targets is {header['n_targets']}: expected false")
    names, inputs = header["feature_names"], header.get("inputs")
    if names is not None:
        _require(is_distinct_names(names), "feature_names", names)
        if len(names) != n_features:
            raise InputError(f"feature_names has {len(names)} entries but there are {n_features} features")
    _require(isinstance(inputs, dict | None), "inputs", inputs)
    parameters = header["parameters"]
    for name in ("prior", "support"):
        _require(isinstance(parameters[name], str | None), name, parameters[name])
    _require(isinstance(parameters["verbose"], int), "verbose", parameters["verbose"])


def is_distinct_names(value: Any) -> TypeGuard[list[str]]:
    """Return whether a header entry is a list of distinct names."""
    return isinstance(value, list) and all(isinstance(name, str) for name in value) and len(set(value)) == len(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _require(valid: bool, name: str, value: Any) -> None:
    """Raise an error that names a header entry and shows its value unless it is valid."""
    if not valid:
        raise InputError(f"{name} has the invalid value {shown(value)}")


def checked_space(header: Mapping[str, Any]) -> GroupSpace:
    """Check the header entries ``names`` and ``values``, and return the group space they describe."""
    names, values = header["names"], header["values"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"names is {shown(names)} but must be a list of names")
    if not isinstance(values, list) or not all(isinstance(part, list) for part in values):
        raise InputError(f"values is {shown(values)} but must be a list of lists of values")
    return GroupSpace(tuple(names), tuple(tuple(part) for part in values))


class ArrayRange(NamedTuple):
    """Allowed range of an array's entries, and whether NaN and −inf are allowed too."""

    least: float
    most: float
    nan: bool = False
    minus_infinity: bool = False

    def __str__(self) -> str:
        return f"numbers between {self.least:g} and {self.most:g} only"

    def contains(self, array: Any) -> Any:
        """Return whether each entry of the array is allowed."""
        inside = (array >= self.least) & (array <= self.most)
        return inside | (np.isnan(array) & self.nan) | ((array == -np.inf) & self.minus_infinity)


_FEATURES = ArrayRange(-MAX_FEATURE, MAX_FEATURE)
_BIASES = ArrayRange(-MAX_BIAS, MAX_BIAS)
_LOG_PRIOR = ArrayRange(-np.finfo(np.float64).max, 1e-6, minus_infinity=True)
ARRAY_RANGES = {
    "seen_weight": ArrayRange(0, np.finfo(np.float64).max),
    "coef": _FEATURES,
    "feature_mean": _FEATURES,
    "bias": _BIASES,
    "learned_bias": _BIASES,
    "cumulant_bias": _BIASES._replace(nan=True),
    "effective_sample_size": ArrayRange(0, MAX_SAMPLE_SIZE),
    "pareto_k": _BIASES._replace(nan=True, minus_infinity=True),
    "expected": ArrayRange(0, 1, nan=True),
    "log_prior": _LOG_PRIOR,
    "parameter_log_prior": _LOG_PRIOR,
    "fold_energies": _BIASES,
    "fold_weight": ArrayRange(0, MAX_SAMPLE_SIZE),
    "fold_temperature": ArrayRange(0, MAX_BIAS),
    "fold_bias": _BIASES,
}


def checked_arrays(arrays: Mapping[str, Any], space: GroupSpace) -> dict[str, Any]:
    """Check the type, shape and range of every array, and return the arrays in 64-bit precision."""
    checked = {name: _checked_codes(arrays[name], space, name) for name in ("seen_groups", "groups")}
    k, g, p = len(checked["seen_groups"]), len(checked["groups"]), arrays["coef"].shape[-1]
    shapes = {"seen_weight": (k,), "feature_mean": (p,), "coef": (space.width, p), "expected": (g, 3)}
    if "fold_position" in arrays:
        checked["fold_position"] = check_codes(arrays["fold_position"][:, None], (k,), "fold_position")[:, 0]
        r = len(checked["fold_position"])
        if not r:
            raise InputError("fold_position is empty: out-of-fold energies need at least one sample")
        shapes |= {"fold_energies": (r, space.width), "fold_weight": (r,), "fold_temperature": (1,), "fold_bias": (k,)}
    for name, allowed in ARRAY_RANGES.items():
        if name in arrays:
            checked[name] = _checked_numbers(arrays[name], shapes.get(name, (g,)), allowed, name)
    if not p:
        raise InputError("coef has no columns: a model needs at least one feature")
    with np.errstate(over="ignore"):
        total = float(checked["seen_weight"].sum())
    if not 0 < total < math.inf:
        raise InputError(f"seen_weight sums to {total:g} but must have a positive finite sum")
    for name in ("log_prior", "parameter_log_prior"):
        if abs(float(np.exp(checked[name]).sum()) - 1) > 1e-6:
            raise InputError(f"{name} is not a log prior: its probabilities do not sum to 1")
    return checked


def _checked_codes(array: Any, space: GroupSpace, name: str) -> Any:
    """Check that an array contains the codes of distinct groups in sorted order, and return them."""
    if array.dtype.kind != "i" or array.ndim != 2 or not len(array):
        raise InputError(
            f"{name} has type {array.dtype} and shape {array.shape} but must be an integer matrix with a row per group"
        )
    codes = check_codes(array, space.cardinalities, name)
    distinct = space.distinct(codes)[0]
    if len(distinct) < len(codes):
        raise InputError(f"{name} lists a group twice: its rows must be distinct")
    if (distinct != codes).any():
        raise InputError(f"{name} lists groups in the wrong order: it must be sorted")
    return codes


def _checked_numbers(array: Any, shape: tuple[int, ...], allowed: ArrayRange, name: str) -> Any:
    """Check the type, shape and range of an array of floats, and return it in 64-bit precision."""
    if array.dtype.kind != "f":
        raise InputError(f"{name} has type {array.dtype} but must hold floating-point numbers")
    if array.shape != shape:
        raise InputError(f"{name} has shape {array.shape} but must have shape {shape}")
    array = array.astype(np.float64)
    outside = array[~allowed.contains(array)]
    if outside.size:
        raise InputError(f"{name} contains {outside[0]:g} but must contain {allowed} ({outside.size} invalid)")
    return array
