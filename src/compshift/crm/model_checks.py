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

PLAIN = "plain_"
"""Prefix of the array names of the fit to the labelled samples alone, for a model that used unlabelled samples."""

MAX_SAMPLE_SIZE = 1e18
"""Largest effective sample size accepted from a file."""


def check_header(header: Mapping[str, Any], space: GroupSpace, n_features: int) -> None:
    """Check the type and range of the header entries, except ``names``, ``values`` and most parameters."""
    _require(isinstance(header["one_dimensional"], bool), "one_dimensional", header["one_dimensional"])
    _require(type(header["n_targets"]) is int and header["n_targets"] >= 1, "n_targets", header["n_targets"])
    _check_fit_numbers(header)
    if header.get("pool") is not None:
        _check_pool(header["pool"])
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


def _check_fit_numbers(numbers: Mapping[str, Any], prefix: str = "") -> None:
    """Check the header entries that describe a fit; ``prefix`` is put before their names in messages."""
    converged, n_iter, temperature = numbers["converged"], numbers["n_iter"], numbers.get("temperature", 1.0)
    _require(isinstance(converged, bool), f"{prefix}converged", converged)
    _require(type(n_iter) is int and n_iter >= 0, f"{prefix}n_iter", n_iter)
    for name in ("bias_gap", "gradient"):
        _require(_is_number(numbers[name]) and numbers[name] >= 0, f"{prefix}{name}", numbers[name])
    _require(_is_number(temperature) and temperature > 0, f"{prefix}temperature", temperature)


def _check_pool(pool: Any) -> None:
    """Check the header entry about a pool of unlabelled samples; a number that is not finite is stored as None."""
    _require(isinstance(pool, dict), "pool", pool)
    for name, least in (("n_samples", 1), ("n_rounds", 0)):
        _require(type(pool[name]) is int and pool[name] >= least, f"pool {name}", pool[name])
    decision, plain = pool["decision"], pool["plain"]
    _require(isinstance(decision, dict), "pool decision", decision)
    used, reason = decision["used"], decision["reason"]
    _require(isinstance(used, bool), "pool used", used)
    _require(isinstance(reason, str) and reason.isprintable(), "pool reason", reason)
    _require(_is_known_share(decision["false_share"]), "pool false_share", decision["false_share"])
    for name in ("unseen_share", "held_out", "seen"):
        value = decision[name]
        _require(isinstance(value, list) and all(map(_is_known_share, value)), f"pool {name}", value)
    _require(len(decision["unseen_share"]) == 3, "pool unseen_share", decision["unseen_share"])
    if len(decision["held_out"]) != len(decision["seen"]):
        raise InputError(
            f"pool held_out has {len(decision['held_out'])} entries but pool seen has {len(decision['seen'])}"
        )
    excess = decision.get("excess_distance")  # older files do not have it
    _require(excess is None or _is_number(excess), "pool excess_distance", excess)
    gain, error = decision["gain"], decision["gain_error"]
    _require(gain is None or (_is_number(gain) and -1 <= gain <= 1), "pool gain", gain)
    _require(error is None or (_is_number(error) and error >= 0), "pool gain_error", error)
    _require(isinstance(plain, dict) if used else plain is None, "pool plain", plain)
    if plain is not None:
        _check_fit_numbers(plain, "pool plain ")


def _is_known_share(value: Any) -> bool:
    """Return whether a header entry is a number between 0 and 1, or None."""
    return value is None or (_is_number(value) and 0 <= value <= 1)


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
_SHARES = ArrayRange(0, 1 + 1e-9, nan=True)  # sums of probabilities may exceed 1 by rounding
_LOG_PRIOR = ArrayRange(-np.finfo(np.float64).max, 1e-6, minus_infinity=True)
FIT_RANGES = {
    "coef": _FEATURES,
    "feature_mean": _FEATURES,
    "bias": _BIASES,
    "learned_bias": _BIASES,
    "cumulant_bias": _BIASES._replace(nan=True),
    "effective_sample_size": ArrayRange(0, MAX_SAMPLE_SIZE),
    "pareto_k": _BIASES._replace(nan=True, minus_infinity=True),
    "expected": ArrayRange(0, 1, nan=True),
    "fold_energies": _BIASES,
    "fold_weight": ArrayRange(0, MAX_SAMPLE_SIZE),
    "fold_temperature": ArrayRange(0, MAX_BIAS),
    "fold_bias": _BIASES,
}
"""Allowed range of the entries of each array of a fit."""

ARRAY_RANGES = FIT_RANGES | {
    "seen_weight": ArrayRange(0, np.finfo(np.float64).max),
    "log_prior": _LOG_PRIOR,
    "parameter_log_prior": _LOG_PRIOR,
    "pool_frequency": _SHARES,
    "pool_effective_rows": ArrayRange(0, MAX_SAMPLE_SIZE, nan=True),
}
"""Allowed range of the entries of each array whose name has no prefix."""


def checked_arrays(arrays: Mapping[str, Any], space: GroupSpace) -> dict[str, Any]:
    """Check the type, shape and range of every array, and return the arrays in 64-bit precision."""
    checked = {name: _checked_codes(arrays[name], space, name) for name in ("seen_groups", "groups")}
    k, g, p = len(checked["seen_groups"]), len(checked["groups"]), arrays["coef"].shape[-1]
    shapes = {"seen_weight": (k,), "pool_frequency": (g, 3)}
    for prefix, ranges in (("", ARRAY_RANGES), (PLAIN, FIT_RANGES)):
        shapes |= {f"{prefix}feature_mean": (p,), f"{prefix}coef": (space.width, p), f"{prefix}expected": (g, 3)}
        position = f"{prefix}fold_position"
        if position in arrays:
            checked[position] = check_codes(arrays[position][:, None], (k,), position)[:, 0]
            r = len(checked[position])
            if not r:
                raise InputError(f"{position} is empty: out-of-fold energies need at least one sample")
            shapes |= {f"{prefix}fold_energies": (r, space.width), f"{prefix}fold_weight": (r,)}
            shapes |= {f"{prefix}fold_temperature": (1,), f"{prefix}fold_bias": (k,)}
        for name, allowed in ranges.items():
            name = f"{prefix}{name}"
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
