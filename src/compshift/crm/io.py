"""Model files of CRMClassifier: write them, read them, and check their JSON header and arrays.

A model file is a safetensors file. Its metadata holds the *header*, a JSON object with everything except the arrays,
under the key ``compshift``, and a SHA-256 checksum of the header and the arrays under ``sha256``. Reading a file never
runs code.

Checks happen in this order. ``read`` checks the file as a whole: safetensors format, checksum, JSON syntax and format
version. ``unpack`` checks the contents: ``_checked_space`` the attributes and their values, ``_checked_arrays`` the
type, shape and range of every array, ``_check_header`` the other header entries. ``CRMClassifier._check_parameters``
then checks the parameters, and ``features/recipe.py`` checks ``inputs`` when the command line uses it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from compshift import __version__
from compshift._checks import MAX_FEATURE, check_codes, check_count, check_positive
from compshift._errors import InputError, shown
from compshift._files import check_path, parse_json, replacing
from compshift.core.arrays import FloatArray
from compshift.core.candidates import Candidates
from compshift.core.columns import plain_value
from compshift.core.groups import GroupSpace
from compshift.core.hull import AffineHull
from compshift.crm.model import CRMModel, OutOfFold, same_prior
from compshift.data.shards import PARQUET
from compshift.data.text_tables import TEXT

MODEL_FORMAT_VERSION = 2
"""Newest version of the file format: files of models that transform features. All others have version 1."""

HEADER_KEY = "compshift"
"""Metadata key of the JSON header."""

CHECKSUM_KEY = "sha256"
"""Metadata key of the checksum."""

MODEL_ARRAYS = ("coef", "feature_mean", "bias", "learned_bias", "effective_sample_size")
ADDED_ARRAYS = ("cumulant_bias", "pareto_k")
"""Arrays of length g that older model files do not contain; they are replaced by NaN."""

FOLD_ARRAYS = ("fold_energies", "fold_position", "fold_weight", "fold_temperature", "fold_bias")
"""Fields of ``OutOfFold``, in order. A file has all of them or none."""

MODEL_NUMBERS = ("bias_gap", "gradient", "n_iter", "converged")
PARAMETERS = ("alpha", "prior", "bias", "support", "tol", "max_iter", "verbose")
ADDED_PARAMETERS = {"anchor": "zero", "cross_fit": False, "unseen_offset": 0.0, "feature_transform": "none"}
"""Parameters that older model files do not contain, and the values that reproduce those models."""

MAX_BIAS = 1e12
"""Largest absolute bias accepted from a file: a larger bias would round off the significant digits of
log-probabilities."""

MAX_SAMPLE_SIZE = 1e18
"""Largest effective sample size accepted from a file."""


class ModelFile(NamedTuple):
    """Contents of a model file."""

    kind: str
    header: dict[str, Any]
    arrays: dict[str, np.ndarray[Any, Any]]


class ClassifierState(NamedTuple):
    """Everything that is needed to restore a fitted classifier."""

    parameters: dict[str, Any]
    model: CRMModel
    log_prior: FloatArray  # (g,) current prior
    parameter_log_prior: FloatArray  # (g,) log prior given by the constructor parameter ``prior``
    n_targets: int
    one_dimensional: bool
    feature_names: list[str] | None
    inputs: Mapping[str, Any] | None  # description of how the columns of a table become features


def classifier_state(clf: Any, inputs: Mapping[str, Any] | None) -> ClassifierState:
    """Return the state of a fitted classifier, as a ``CRMClassifier`` with the chosen settings."""
    names, model = getattr(clf, "feature_names_in_", None), clf._model
    parameter_log_prior = model.candidates.log_prior(clf.prior)
    if not same_prior(parameter_log_prior, clf._fit_log_prior):  # expected accuracies are valid only for it
        model = replace(model, expected=None)
    bias, offset = clf._bias_and_offset()
    return ClassifierState(
        parameters={
            "alpha": clf.alpha_,
            "prior": clf.prior,
            "bias": bias,
            "anchor": clf.anchor_,
            "cross_fit": clf.cross_fit_ or False,
            "unseen_offset": offset,
            "feature_transform": clf.feature_transform_,
            "support": clf.support,
            "tol": check_positive(clf.tol, "tol"),
            "max_iter": check_count(clf.max_iter, "max_iter"),
            "verbose": bool(clf.verbose),
        },
        model=model,
        log_prior=clf.log_prior_,
        parameter_log_prior=parameter_log_prior,
        n_targets=len(clf.targets_.names),
        one_dimensional=clf._one_dimensional,
        feature_names=None if names is None else [str(name) for name in names],
        inputs=clf.inputs_ if inputs is None else inputs,
    )


def pack(state: ClassifierState) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header and the arrays that store a classifier.

    If ``prior`` or ``support`` is not a string, its header entry is None and ``unpack`` restores it from the arrays.
    """
    model, candidates = state.model, state.model.candidates
    header = {
        "format_version": 1 if model.feature_transform == "none" else MODEL_FORMAT_VERSION,
        "names": list(candidates.space.names),
        "values": [list(values) for values in candidates.space.values],
        "n_targets": state.n_targets,
        "one_dimensional": state.one_dimensional,
        "feature_names": state.feature_names,
        "inputs": None if state.inputs is None else dict(state.inputs),
        "parameters": {
            name: None if name in ("prior", "support") and not isinstance(value, str) else plain_value(value)
            for name, value in state.parameters.items()
            if name in PARAMETERS or name in ADDED_PARAMETERS
        },
        **{name: getattr(model, name) for name in (*MODEL_NUMBERS, "temperature")},
    }
    arrays = {name: getattr(candidates, name) for name in ("seen_groups", "seen_weight", "groups")}
    arrays |= {name: getattr(model, name) for name in (*MODEL_ARRAYS, *ADDED_ARRAYS)}
    if model.expected is not None:
        arrays["expected"] = model.expected
    if model.out_of_fold is not None:
        values = [np.atleast_1d(np.asarray(value)) for value in model.out_of_fold]
        arrays |= dict(zip(FOLD_ARRAYS, values, strict=True))
    arrays |= {"log_prior": state.log_prior, "parameter_log_prior": state.parameter_log_prior}
    return header, arrays


def write(path: str | PathLike[str], kind: str, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Write a model file atomically."""
    from safetensors.numpy import save

    tensors = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    content = {"format_version": 1, "kind": kind, "compshift_version": __version__, **header}
    text = _json_text(content)
    with replacing(path) as temporary:
        temporary.write_bytes(save(tensors, metadata={HEADER_KEY: text, CHECKSUM_KEY: _checksum(text, tensors)}))


def _json_text(content: Mapping[str, Any]) -> str:
    """Return the header as JSON text; raise if it cannot be encoded or parsed again."""
    try:
        text = json.dumps(content, allow_nan=False, sort_keys=True, ensure_ascii=False)
        text.encode("utf-8")
        parse_json(text)
    except UnicodeEncodeError as error:
        odd = error.object[max(0, error.start - 20) : error.start + 1]
        raise InputError(
            f"the model cannot be written: {odd!r} ends in an unpaired surrogate, which is not valid text; remove it"
        ) from None
    except RecursionError:
        raise InputError(
            "the model cannot be written as JSON: inputs is nested too deeply; pass a flatter mapping"
        ) from None
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the model cannot be written as JSON ({error}): use only text, numbers and booleans"
        ) from None
    return text


def _checksum(text: str, arrays: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the JSON text and of every array's name, type, shape and bytes."""
    digest = hashlib.sha256(text.encode(errors="surrogatepass"))
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode(errors="surrogatepass"))
        digest.update(array.tobytes())
    return digest.hexdigest()


def read(path: str | PathLike[str]) -> ModelFile:
    """Read a model file, and check its checksum, the JSON syntax of its header, and its format version."""
    path = check_path(path)
    if not path.is_file():
        raise InputError(
            f"there is no model file {str(path)!r}: pass the path of a saved model, or the folder of a run"
        )
    metadata, arrays = _read_safetensors(path)
    text = metadata.get(HEADER_KEY)
    if text is None:
        raise InputError(
            f"{str(path)!r} is a safetensors file but not a compshift model: pass a file written by compshift"
        )
    if metadata.get(CHECKSUM_KEY) != _checksum(text, arrays):
        raise InputError(f"{str(path)!r} was changed after it was saved (its checksum differs): save the model again")
    try:
        header = parse_json(text)
    except ValueError as error:
        raise InputError(
            f"{str(path)!r} cannot be read as a model: its header is not JSON ({error}); save the model again"
        ) from None
    if not isinstance(header, dict):
        raise InputError(
            f"{str(path)!r} cannot be read as a model: its header is not a JSON object; save the model again"
        )
    version = header.get("format_version")
    if type(version) is not int or version > MODEL_FORMAT_VERSION:
        raise InputError(
            f"{str(path)!r} has model format {version}, written by compshift {header.get('compshift_version')}; this "
            f"release reads up to {MODEL_FORMAT_VERSION}: upgrade compshift"
        )
    return ModelFile(str(header.get("kind")), header, arrays)


def _read_safetensors(path: Any) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the metadata and the arrays of a safetensors file."""
    from safetensors import safe_open

    try:
        with safe_open(path, framework="numpy") as stream:
            return stream.metadata() or {}, {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
    except Exception as error:  # safetensors raises many kinds of errors on damaged files
        if path.suffix in TEXT or path.suffix in PARQUET or path.suffix == ".npz":
            kind = "feature file" if path.suffix == ".npz" else "table"
            raise InputError(
                f"{str(path)!r} is a {kind}, not a model: pass the file of a saved model; if you passed both a model "
                "and data, pass the model first"
            ) from None
        raise InputError(
            f"{str(path)!r} cannot be read as a model: it is damaged or another kind of file ({error}); pass the "
            "file of a saved model"
        ) from None


def unpack(header: Mapping[str, Any], arrays: Mapping[str, Any]) -> ClassifierState:
    """Check the header and the arrays of a model file, and return the classifier's state."""
    try:
        space = _checked_space(header)
        checked = _checked_arrays(arrays, space)
        n_features = len(checked["feature_mean"])
        _check_header(header, space, n_features)
        model = CRMModel(
            candidates=Candidates(AffineHull(space, checked["seen_groups"]), checked["seen_weight"], checked["groups"]),
            **{name: checked[name] for name in MODEL_ARRAYS},
            **{name: checked.get(name, np.full(len(checked["groups"]), np.nan)) for name in ADDED_ARRAYS},
            **{name: header[name] for name in MODEL_NUMBERS},
            temperature=header.get("temperature", 1.0),
            expected=checked.get("expected"),
            out_of_fold=_out_of_fold(checked),
            feature_transform=header["parameters"].get("feature_transform", "none"),
        )
        stored = header["parameters"]
        parameters = {name: stored[name] for name in PARAMETERS}
        state = ClassifierState(
            ADDED_PARAMETERS | parameters | {name: stored[name] for name in stored if name in ADDED_PARAMETERS},
            model,
            checked["log_prior"],
            checked["parameter_log_prior"],
            header["n_targets"],
            header["one_dimensional"],
            _feature_names(header, n_features),
            header.get("inputs"),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise InputError(f"the contents are not those of a CRMClassifier ({error}): save the model again") from None
    if state.parameters["support"] is None:
        state.parameters["support"] = model.candidates.groups
    if state.parameters["prior"] is None:
        values = space.decode(model.candidates.groups).tolist()
        weights = np.exp(state.parameter_log_prior).tolist()
        state.parameters["prior"] = {tuple(key): weight for key, weight in zip(values, weights, strict=True) if weight}
    return state


def _out_of_fold(checked: Mapping[str, Any]) -> OutOfFold | None:
    """Return the out-of-fold energies of a file; None if it has none."""
    if not any(name in checked for name in FOLD_ARRAYS):
        return None
    energies, position, weight, temperature, bias = (checked[name] for name in FOLD_ARRAYS)
    return OutOfFold(energies, position, weight, float(temperature[0]), bias)


def _feature_names(header: Mapping[str, Any], n_features: int) -> list[str] | None:
    """Return the names of the features, from ``feature_names`` or else from the table columns in ``inputs``, if any."""
    names: list[str] | None = header["feature_names"]
    inputs = header.get("inputs") or {}
    if names is None and inputs.get("kind") == "features":
        columns = inputs.get("columns")
        listed = list(columns) if isinstance(columns, tuple) else columns
        names = listed if _is_distinct_names(listed) and len(listed) == n_features else None
    return names


def _check_header(header: Mapping[str, Any], space: GroupSpace, n_features: int) -> None:
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
        _require(_is_distinct_names(names), "feature_names", names)
        if len(names) != n_features:
            raise InputError(f"feature_names has {len(names)} entries but there are {n_features} features")
    _require(isinstance(inputs, dict | None), "inputs", inputs)
    parameters = header["parameters"]
    for name in ("prior", "support"):
        _require(isinstance(parameters[name], str | None), name, parameters[name])
    _require(isinstance(parameters["verbose"], int), "verbose", parameters["verbose"])


def _is_distinct_names(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(name, str) for name in value) and len(set(value)) == len(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _require(valid: bool, name: str, value: Any) -> None:
    """Raise an error that names a header entry and shows its value unless it is valid."""
    if not valid:
        raise InputError(f"{name} has the invalid value {shown(value)}")


def _checked_space(header: Mapping[str, Any]) -> GroupSpace:
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


def _checked_arrays(arrays: Mapping[str, Any], space: GroupSpace) -> dict[str, Any]:
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
