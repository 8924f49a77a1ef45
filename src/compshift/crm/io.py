"""Fitted models on disk: safetensors for the arrays, JSON for everything else. Reading one never runs code.

The JSON stands in the file's metadata under ``compshift``. A checksum over the JSON and the arrays tells a damaged or
edited file from a whole one.

What the file of a CRMClassifier may hold: the type, the shape and the range of everything that is read from it.

A fitted CRMClassifier as the header and arrays of a model file, and back.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from os import PathLike
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from compshift import __version__
from compshift._checks import MAX_FEATURE, check_codes
from compshift._errors import InputError, shown
from compshift._files import check_path, parse_json, replacing
from compshift.core.arrays import FloatArray
from compshift.core.candidates import Candidates
from compshift.core.columns import plain_value
from compshift.core.groups import GroupSpace
from compshift.core.hull import AffineHull
from compshift.crm.model import CRMModel
from compshift.data.shards import PARQUET
from compshift.data.text_tables import TEXT

FORMAT_VERSION = 1
KEY = "compshift"


class ModelFile(NamedTuple):
    """What a model file holds."""

    kind: str
    header: dict[str, Any]
    arrays: dict[str, np.ndarray[Any, Any]]


def write(path: str | PathLike[str], kind: str, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Write a model file whole or not at all."""
    from safetensors.numpy import save

    tensors = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    content = {"format_version": FORMAT_VERSION, "kind": kind, "compshift_version": __version__, **header}
    text = _json_text(content)
    with replacing(path) as temporary:
        temporary.write_bytes(save(tensors, metadata={KEY: text, "sha256": _checksum(text, tensors)}))


def _json_text(content: Mapping[str, Any]) -> str:
    """The header as JSON, once it is known that it can be written and read again."""
    try:
        text = json.dumps(content, allow_nan=False, sort_keys=True, ensure_ascii=False)
        text.encode("utf-8")
        parse_json(text)
    except UnicodeEncodeError as error:
        odd = error.object[max(0, error.start - 20) : error.start + 1]
        raise InputError(f"the model cannot be written: {odd!r} ends in half a character; leave it out") from None
    except RecursionError:
        raise InputError("the model cannot be written as JSON: its inputs are nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise InputError(f"the model cannot be written as JSON ({error}): use text, numbers or booleans") from None
    return text


def read(path: str | PathLike[str]) -> ModelFile:
    """Read a model file and check that it is whole and of a version this release knows."""
    from safetensors import safe_open

    path = check_path(path)
    if not path.is_file():
        raise InputError(
            f"there is no model file {str(path)!r}: pass the path that a model was saved to, or the folder of a run"
        )
    try:
        with safe_open(path, framework="numpy") as stream:
            metadata = stream.metadata() or {}
            arrays = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118 - not a mapping
    except Exception as error:  # damaged files make readers fail in every way there is
        if path.suffix in TEXT or path.suffix in PARQUET or path.suffix == ".npz":
            kind = "feature file" if path.suffix == ".npz" else "table"
            raise InputError(
                f"{str(path)!r} is a {kind}, and no model: pass a file that a model was saved to; where both are asked "
                "for, the model goes first"
            ) from None
        raise InputError(
            f"{str(path)!r} cannot be read as a model: it is damaged or another kind of file ({error})"
        ) from None
    text = metadata.get(KEY)
    if text is None:
        raise InputError(
            f"{str(path)!r} is a safetensors file but not a compshift model: pass one that compshift saved"
        )
    if metadata.get("sha256") != _checksum(text, arrays):
        raise InputError(f"{str(path)!r} was changed after it was saved (its checksum differs): save the model again")
    try:
        header = parse_json(text)
    except ValueError as error:
        raise InputError(f"{str(path)!r} cannot be read as a model: its header is no JSON ({error})") from None
    if not isinstance(header, dict):
        raise InputError(f"{str(path)!r} cannot be read as a model: its header is no JSON object")
    version = header.get("format_version")
    if type(version) is not int or version > FORMAT_VERSION:
        raise InputError(
            f"{str(path)!r} has model format {version}, written by compshift {header.get('compshift_version')}; this "
            f"release reads up to {FORMAT_VERSION}: upgrade compshift"
        )
    return ModelFile(str(header.get("kind")), header, arrays)


def _checksum(text: str, arrays: Mapping[str, Any]) -> str:
    """SHA-256 of the JSON text and of every array's name, type, shape and bytes."""
    digest = hashlib.sha256(text.encode(errors="surrogatepass"))
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode(errors="surrogatepass"))
        digest.update(array.tobytes())
    return digest.hexdigest()


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


GROUP_ARRAYS = ("seen_groups", "seen_weight", "groups")
MODEL_ARRAYS = ("coef", "feature_mean", "bias", "learned_bias", "effective_sample_size")
LATER_ARRAYS = ("cumulant_bias", "pareto_k")
"""Of length g. Models that were saved before these existed are read with NaN in their place."""
NUMBERS = ("bias_gap", "gradient", "n_iter", "converged")
PARAMETERS = ("alpha", "prior", "bias", "support", "tol", "max_iter", "verbose")
LATER_PARAMETERS = {"anchor": "zero", "cross_fit": False, "unseen_offset": 0.0}
"""With what stands for them in models that were saved before they existed."""


class Saved(NamedTuple):
    """What a classifier needs to be itself again."""

    parameters: dict[str, Any]
    model: CRMModel
    log_prior: FloatArray  # (g,) in force
    parameter_log_prior: FloatArray  # (g,) that the constructor asked for
    n_targets: int
    one_dimensional: bool
    feature_names: list[str] | None
    inputs: Mapping[str, Any] | None  # how the columns of a table become features


def to_file(saved: Saved) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and arrays. A prior or support that is not a name is told by its arrays."""
    model, candidates = saved.model, saved.model.candidates
    header = {
        "names": list(candidates.space.names),
        "values": [list(values) for values in candidates.space.values],
        "n_targets": saved.n_targets,
        "one_dimensional": saved.one_dimensional,
        "feature_names": saved.feature_names,
        "inputs": None if saved.inputs is None else dict(saved.inputs),
        "parameters": {
            name: None if name in ("prior", "support") and not isinstance(value, str) else plain_value(value)
            for name, value in saved.parameters.items()
            if name in PARAMETERS or name in LATER_PARAMETERS
        },
        **{name: getattr(model, name) for name in (*NUMBERS, "temperature")},
    }
    arrays = {name: getattr(candidates, name) for name in GROUP_ARRAYS}
    arrays |= {name: getattr(model, name) for name in (*MODEL_ARRAYS, *LATER_ARRAYS)}
    if model.expected is not None:
        arrays["expected"] = model.expected
    arrays |= {"log_prior": saved.log_prior, "parameter_log_prior": saved.parameter_log_prior}
    return header, arrays


def from_file(header: Mapping[str, Any], arrays: Mapping[str, Any]) -> Saved:
    """The classifier's parts, once they have been found to be what they should be and to fit one another."""
    try:
        space = checked_space(header)
        found = checked_arrays(arrays, space)
        check_header(header, space, len(found["feature_mean"]))
        model = CRMModel(
            candidates=Candidates(AffineHull(space, found["seen_groups"]), found["seen_weight"], found["groups"]),
            **{name: found[name] for name in MODEL_ARRAYS},
            **{name: found.get(name, np.full(len(found["groups"]), np.nan)) for name in LATER_ARRAYS},
            **{name: header[name] for name in NUMBERS},
            temperature=header.get("temperature", 1.0),
            expected=found.get("expected"),
        )
        saved = Saved(
            LATER_PARAMETERS
            | {name: header["parameters"][name] for name in PARAMETERS}
            | {name: value for name, value in header["parameters"].items() if name in LATER_PARAMETERS},
            model,
            found["log_prior"],
            found["parameter_log_prior"],
            header["n_targets"],
            header["one_dimensional"],
            _feature_names(header, len(found["feature_mean"])),
            header.get("inputs"),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise InputError(f"its contents are not those of a CRMClassifier ({error}): save the model again") from None
    if saved.parameters["support"] is None:
        saved.parameters["support"] = model.candidates.groups
    if saved.parameters["prior"] is None:
        values = space.decode(model.candidates.groups).tolist()
        weights = np.exp(saved.parameter_log_prior).tolist()
        saved.parameters["prior"] = {tuple(key): weight for key, weight in zip(values, weights, strict=True) if weight}
    return saved


def _feature_names(header: Mapping[str, Any], n_features: int) -> list[str] | None:
    """Names of the features: those that the fit had, or the columns of the table that it was given."""
    names: list[str] | None = header["feature_names"]
    inputs = header.get("inputs") or {}
    if names is None and inputs.get("kind") == "features":
        columns = inputs.get("columns")
        listed = list(columns) if isinstance(columns, tuple) else columns
        names = listed if is_names(listed) and len(listed) == n_features else None
    return names
