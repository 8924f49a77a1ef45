"""What the file of a CRMClassifier may hold: the type, the shape and the range of everything that is read from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from compshift._checks import MAX_FEATURE, check_codes
from compshift._errors import InputError, shown
from compshift.core.groups import GroupSpace

MAX_BIAS = 1e12
"""Of larger ones log-probabilities lose the digits that matter."""

MAX_ROWS = 1e18


class Range(NamedTuple):
    """Numbers from ``least`` to ``most``, and NaN or −inf where these mean something."""

    least: float
    most: float
    unknown: bool = False  # NaN
    bottomless: bool = False  # −inf

    def __str__(self) -> str:
        return f"a number between {self.least:g} and {self.most:g}"

    def holds(self, array: Any) -> Any:
        """Which entries are inside."""
        inside = (array >= self.least) & (array <= self.most)
        return inside | (np.isnan(array) & self.unknown) | ((array == -np.inf) & self.bottomless)


RANGES = {
    "seen_weight": Range(0, np.finfo(np.float64).max),
    "coef": Range(-MAX_FEATURE, MAX_FEATURE),
    "feature_mean": Range(-MAX_FEATURE, MAX_FEATURE),
    "bias": Range(-MAX_BIAS, MAX_BIAS),
    "learned_bias": Range(-MAX_BIAS, MAX_BIAS),
    "cumulant_bias": Range(-MAX_BIAS, MAX_BIAS, unknown=True),
    "effective_sample_size": Range(0, MAX_ROWS),
    "pareto_k": Range(-MAX_BIAS, MAX_BIAS, unknown=True, bottomless=True),
    "expected": Range(0, 1, unknown=True),
    "log_prior": Range(-np.finfo(np.float64).max, 1e-6, bottomless=True),
    "parameter_log_prior": Range(-np.finfo(np.float64).max, 1e-6, bottomless=True),
}
GROUPS = ("seen_groups", "groups")


def checked_space(header: Mapping[str, Any]) -> GroupSpace:
    """Attributes and values, as the header lists them."""
    names, values = header["names"], header["values"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"names is {shown(names)}, no list of names")
    if not isinstance(values, list) or not all(isinstance(part, list) for part in values):
        raise InputError(f"values is {shown(values)}, no list of lists")
    return GroupSpace(tuple(names), tuple(tuple(part) for part in values))


def checked_arrays(arrays: Mapping[str, Any], space: GroupSpace) -> dict[str, Any]:
    """The arrays of a model in 64 bits, once each is what it should be and fits the others."""
    found = {name: _codes(arrays[name], space, name) for name in GROUPS}
    k, g, p = len(found["seen_groups"]), len(found["groups"]), arrays["coef"].shape[-1]
    shapes = {"seen_weight": (k,), "feature_mean": (p,), "coef": (space.width, p), "expected": (g, 3)}
    for name, allowed in RANGES.items():
        if name in arrays:
            found[name] = _numbers(arrays[name], shapes.get(name, (g,)), allowed, name)
    if not p:
        raise InputError("coef has no features")
    with np.errstate(over="ignore"):
        total = float(found["seen_weight"].sum())
    if not 0 < total < math.inf:
        raise InputError(f"seen_weight sums to {total:g}")
    for name in ("log_prior", "parameter_log_prior"):
        if abs(float(np.exp(found[name]).sum()) - 1) > 1e-6:
            raise InputError(f"{name} is not that of a prior")
    return found


def _codes(array: Any, space: GroupSpace, name: str) -> Any:
    """Codes of groups, each once and in order, as all that counts them expects."""
    if array.dtype.kind != "i" or array.ndim != 2 or not len(array):
        raise InputError(f"{name} has type {array.dtype} and shape {array.shape}, and is no list of groups")
    codes = check_codes(array, space.cardinalities, name)
    distinct = space.distinct(codes)[0]
    if len(distinct) < len(codes):
        raise InputError(f"{name} lists a group twice")
    if (distinct != codes).any():
        raise InputError(f"{name} lists groups out of order")
    return codes


def _numbers(array: Any, shape: tuple[int, ...], allowed: Range, name: str) -> Any:
    """Numbers of the shape and in the range that are expected."""
    if array.dtype.kind != "f":
        raise InputError(f"{name} has type {array.dtype}, not that of numbers")
    if array.shape != shape:
        raise InputError(f"{name} has shape {array.shape} instead of {shape}")
    array = array.astype(np.float64)
    outside = array[~allowed.holds(array)]
    if outside.size:
        raise InputError(f"{name} has {outside[0]:g} where {allowed} is expected ({outside.size} such)")
    return array


def check_header(header: Mapping[str, Any], space: GroupSpace, n_features: int) -> None:
    """Refuse entries of other types than they are saved with, and numbers out of range."""
    for name in ("one_dimensional", "converged"):
        _require(isinstance(header[name], bool), name, header[name])
    for name, least in (("n_targets", 1), ("n_iter", 0)):
        _require(type(header[name]) is int and header[name] >= least, name, header[name])
    for name in ("bias_gap", "gradient"):
        _require(_is_number(header[name]) and header[name] >= 0, name, header[name])
    temperature = header.get("temperature", 1.0)
    _require(_is_number(temperature) and temperature > 0, "temperature", temperature)
    if header["n_targets"] > len(space.names):
        raise InputError(f"there are {header['n_targets']} targets among {len(space.names)} attributes")
    if header["one_dimensional"] and header["n_targets"] > 1:
        raise InputError(f"predictions of {header['n_targets']} targets are said to have one dimension")
    names, inputs = header["feature_names"], header.get("inputs")
    if names is not None:
        _require(is_names(names), "feature_names", names)
        if len(names) != n_features:
            raise InputError(f"there are {len(names)} feature_names for {n_features} features")
    _require(isinstance(inputs, dict | None), "inputs", inputs)
    parameters = header["parameters"]
    for name in ("prior", "support"):
        _require(isinstance(parameters[name], str | None), name, parameters[name])
    _require(isinstance(parameters["verbose"], int), "verbose", parameters["verbose"])


def is_names(value: Any) -> TypeGuard[list[str]]:
    """Whether it is a list of names, each another."""
    return isinstance(value, list) and all(isinstance(name, str) for name in value) and len(set(value)) == len(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _require(fine: bool, name: str, value: Any) -> None:
    if not fine:
        raise InputError(f"{name} is {shown(value)}")
