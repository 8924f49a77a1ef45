"""Model files of CRMClassifier and CRMBoostingClassifier: write them and read them.

A model file is a safetensors file. Its metadata holds the *header*, a JSON object with everything except the arrays,
under the key ``compshift``, and a SHA-256 checksum of the header and the arrays under ``sha256``. Reading a file never
runs code.

Checks happen in this order. ``read`` checks the file as a whole: safetensors format, checksum, JSON syntax and format
version. ``unpack`` checks the contents, by the functions of ``model_checks``. ``CRMClassifier._check_parameters`` then
checks the parameters, and ``features/recipe.py`` checks ``inputs`` when the command line uses it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from compshift import __version__
from compshift._checks import check_count
from compshift._errors import InputError
from compshift._files import PARQUET, check_path, parse_json, replacing
from compshift.core.arrays import FloatArray
from compshift.core.candidates import Candidates
from compshift.core.columns import plain_value
from compshift.core.hull import AffineHull
from compshift.crm.linear_columns import LinearColumns, TreesAndColumns, check_linear_columns
from compshift.crm.model import CRMModel, OutOfFold, PoolDecision, PoolUse, same_prior
from compshift.crm.model_checks import PLAIN, check_header, checked_arrays, checked_space, is_distinct_names
from compshift.crm.trees import Trees, check_trees
from compshift.data.typed_tables import TABLE_ENDINGS

MODEL_FORMAT_VERSION = 2
"""Newest version of the file format, which only models that transform features need; other files have version 1."""

HEADER_KEY = "compshift"
"""Metadata key of the JSON header."""

CHECKSUM_KEY = "sha256"
"""Metadata key of the checksum."""

MODEL_ARRAYS = ("coef", "feature_mean", "bias", "learned_bias", "effective_sample_size")
"""Arrays of a fit that every model file contains."""

ADDED_ARRAYS = ("cumulant_bias", "pareto_k")
"""Arrays of length g that older model files do not contain; they are replaced by NaN."""

FOLD_ARRAYS = ("fold_energies", "fold_position", "fold_weight", "fold_temperature", "fold_bias")
"""Fields of ``OutOfFold``, in order. A file has all of them or none."""

TREES = "tree_"
"""Prefix of the names of the arrays of ``Trees``."""

COLUMN_ARRAYS = "column_"
"""Prefix of the names of the arrays of ``LinearColumns``."""

MODEL_NUMBERS = ("bias_gap", "gradient", "n_iter", "converged")
"""Header entries that describe a fit."""

PARAMETERS = ("alpha", "prior", "bias", "support", "tol", "max_iter", "verbose")
"""Constructor parameters that every file of a ``CRMClassifier`` contains."""

ADDED_PARAMETERS = {"anchor": "zero", "cross_fit": False, "unseen_offset": 0.0, "feature_transform": "none"}
ADDED_TABLE_PARAMETERS = {"energies": "boosted"}
"""Parameters that older model files do not contain, and the values that reproduce those models: of a ``CRMClassifier``
and of a ``CRMBoostingClassifier``."""


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
    """Return the state of a fitted classifier."""
    names, model = getattr(clf, "feature_names_in_", None), clf._model
    parameter_log_prior = model.candidates.log_prior(clf.prior)
    if not same_prior(parameter_log_prior, clf._fit_log_prior):  # expected accuracies are valid only for it
        model = _without_expected(model)
    return ClassifierState(
        parameters=clf._stored_parameters(),
        model=model,
        log_prior=clf.log_prior_,
        parameter_log_prior=parameter_log_prior,
        n_targets=len(clf.targets_.names),
        one_dimensional=clf._one_dimensional,
        feature_names=None if names is None else [str(name) for name in names],
        inputs=clf.inputs_ if inputs is None else inputs,
    )


def _without_expected(model: CRMModel) -> CRMModel:
    """Return a model without expected accuracies, which are also removed from its fit without unlabelled samples."""
    pool = model.pool
    if pool is not None and pool.plain is not None:
        pool = replace(pool, plain=replace(pool.plain, expected=None))
    return replace(model, expected=None, pool=pool)


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
        },
        **_numbers(model),
    }
    arrays = {name: getattr(candidates, name) for name in ("seen_groups", "seen_weight", "groups")}
    arrays |= _arrays(model)
    if model.pool is not None:
        header["pool"] = _pool_header(model.pool)
        if model.pool.frequency is not None:
            arrays["pool_frequency"] = model.pool.frequency[:, :3]
            arrays["pool_effective_rows"] = model.pool.frequency[:, 3]
        if model.pool.plain is not None:
            arrays |= {f"{PLAIN}{name}": array for name, array in _arrays(model.pool.plain).items()}
    arrays |= {"log_prior": state.log_prior, "parameter_log_prior": state.parameter_log_prior}
    for basis in model.basis if isinstance(model.basis, TreesAndColumns) else (model.basis,):
        if isinstance(basis, Trees):
            header["trees"] = {"n_features": basis.n_features, "n_outputs": basis.n_outputs}
            arrays |= {f"{TREES}{name}": array for name, array in basis.arrays.items()}
        elif basis is not None:
            header["columns"] = {"n_features": basis.n_features}
            arrays |= {f"{COLUMN_ARRAYS}{name}": array for name, array in basis.arrays.items()}
    return header, arrays


def _numbers(model: CRMModel) -> dict[str, Any]:
    """Return the header entries that describe a fit."""
    return {name: getattr(model, name) for name in (*MODEL_NUMBERS, "temperature")}


def _arrays(model: CRMModel) -> dict[str, Any]:
    """Return the arrays of a fit, without those of its candidates and of its pool of unlabelled samples."""
    arrays = {name: getattr(model, name) for name in (*MODEL_ARRAYS, *ADDED_ARRAYS)}
    if model.expected is not None:
        arrays["expected"] = model.expected
    if model.out_of_fold is not None:
        values = [np.atleast_1d(np.asarray(value)) for value in model.out_of_fold]
        arrays |= dict(zip(FOLD_ARRAYS, values, strict=True))
    return arrays


def _pool_header(pool: PoolUse) -> dict[str, Any]:
    """Return the header entry about a pool of unlabelled samples; numbers that are not finite become None."""

    def finite(value: Any) -> Any:
        if isinstance(value, tuple):
            return [finite(part) for part in value]
        return None if isinstance(value, float) and not np.isfinite(value) else value

    return {
        "n_samples": pool.n_samples,
        "n_rounds": pool.n_rounds,
        "decision": {name: finite(value) for name, value in pool.decision._asdict().items()},
        "plain": None if pool.plain is None else _numbers(pool.plain),
    }


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
        if path.suffix in TABLE_ENDINGS or path.suffix in PARQUET or path.suffix == ".npz":
            kind = "feature file" if path.suffix == ".npz" else "table"
            raise InputError(
                f"{str(path)!r} is a {kind}, not a model: pass the file of a saved model; if you passed both a model "
                "and data, pass the model first"
            ) from None
        raise InputError(
            f"{str(path)!r} cannot be read as a model: it is damaged or another kind of file ({error}); pass the "
            "file of a saved model"
        ) from None


def unpack(
    header: Mapping[str, Any], arrays: Mapping[str, Any], names: tuple[str, ...] = PARAMETERS
) -> ClassifierState:
    """Check the header and the arrays of a model file, and return the classifier's state.

    ``names`` are the parameters that the file must have. Parameters that an older file lacks get the values in
    ``ADDED_PARAMETERS`` or ``ADDED_TABLE_PARAMETERS``.
    """
    try:
        space = checked_space(header)
        checked = checked_arrays(arrays, space)
        basis = _basis(header, arrays, checked["coef"].shape[1])
        n_features = len(checked["feature_mean"]) if basis is None else basis.n_features
        check_header(header, space, n_features)
        candidates = Candidates(AffineHull(space, checked["seen_groups"]), checked["seen_weight"], checked["groups"])
        transform = header["parameters"].get("feature_transform", "none")
        pool = _pool(candidates, header, checked)
        if pool is not None and pool.plain is not None:
            pool = replace(pool, plain=replace(pool.plain, feature_transform=transform))
        model = replace(_fit(candidates, header, checked), feature_transform=transform, pool=pool, basis=basis)
        stored = header["parameters"]
        added = ADDED_PARAMETERS if basis is None else ADDED_TABLE_PARAMETERS
        parameters = {name: stored[name] for name in names}
        state = ClassifierState(
            added | parameters | {name: stored[name] for name in stored if name in added},
            model,
            checked["log_prior"],
            checked["parameter_log_prior"],
            header["n_targets"],
            header["one_dimensional"],
            _feature_names(header, n_features),
            header.get("inputs"),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise InputError(f"the contents are not those of a fitted model ({error}): save the model again") from None
    if state.parameters["support"] is None:
        state.parameters["support"] = model.candidates.groups
    if state.parameters["prior"] is None:
        values = space.decode(model.candidates.groups).tolist()
        weights = np.exp(state.parameter_log_prior).tolist()
        state.parameters["prior"] = {tuple(key): weight for key, weight in zip(values, weights, strict=True) if weight}
    return state


def _fit(candidates: Candidates, numbers: Mapping[str, Any], checked: Mapping[str, Any], prefix: str = "") -> CRMModel:
    """Return the fit whose arrays have names that start with ``prefix``."""
    return CRMModel(
        candidates=candidates,
        **{name: checked[prefix + name] for name in MODEL_ARRAYS},
        **{name: checked.get(prefix + name, np.full(len(candidates.groups), np.nan)) for name in ADDED_ARRAYS},
        **{name: numbers[name] for name in MODEL_NUMBERS},
        temperature=numbers.get("temperature", 1.0),
        expected=checked.get(f"{prefix}expected"),
        out_of_fold=_out_of_fold(checked, prefix),
    )


def _basis(
    header: Mapping[str, Any], arrays: Mapping[str, Any], n_outputs: int
) -> Trees | LinearColumns | TreesAndColumns | None:
    """Return the checked trees, linear columns or both, which compute the features of the energies; None without any.

    ``n_outputs`` is the number of features that the coefficients of the model belong to.
    """
    trees, columns, found = None, None, 0
    if "trees" in header:
        n_features, n_trees = (check_count(header["trees"][name], name) for name in ("n_features", "n_outputs"))
        trees = Trees(n_features, n_trees, **_plain_arrays(arrays, TREES, Trees.array_types()))
        check_trees(trees)
        found += trees.n_outputs
    if "columns" in header:
        n_features = check_count(header["columns"]["n_features"], "n_features")
        columns = LinearColumns(n_features, **_plain_arrays(arrays, COLUMN_ARRAYS, LinearColumns.array_types()))
        check_linear_columns(columns)
        found += len(columns.column)
    if trees is None and columns is None:
        return None
    if found != n_outputs:
        raise InputError(f"the model has {n_outputs} coefficients per energy for {found} features")
    if trees is None or columns is None:
        return trees or columns
    if trees.n_features != columns.n_features:
        raise InputError(f"the trees take {trees.n_features} columns but the linear energies {columns.n_features}")
    return TreesAndColumns(trees, columns)


def _plain_arrays(arrays: Mapping[str, Any], prefix: str, types: Mapping[str, Any]) -> dict[str, Any]:
    """Check the arrays whose names start with ``prefix``, and return them with the given ``types``."""
    found = {}
    for name, kind in types.items():
        array = arrays[prefix + name]
        if array.ndim != 1 or array.dtype.kind != ("f" if kind is np.float64 else "i"):
            wanted = "floating-point numbers" if kind is np.float64 else "integers"
            raise InputError(
                f"{prefix}{name} has type {array.dtype} and shape {array.shape} but must be a list of {wanted}: save "
                "the model again"
            )
        found[name] = array.astype(kind)
    return found


def _pool(candidates: Candidates, header: Mapping[str, Any], checked: Mapping[str, Any]) -> PoolUse | None:
    """Return the record of how a fit used a pool of unlabelled samples; None if it had no pool."""
    stored = header.get("pool")
    if stored is None:
        return None

    def number(value: Any) -> Any:
        if isinstance(value, list):
            return tuple(number(part) for part in value)
        return np.nan if value is None else value

    decision = PoolDecision(**{name: number(stored["decision"].get(name)) for name in PoolDecision._fields})
    frequency = None
    if "pool_frequency" in checked:
        frequency = np.column_stack([checked["pool_frequency"], checked["pool_effective_rows"]])
    plain = None if stored["plain"] is None else _fit(candidates, stored["plain"], checked, PLAIN)
    return PoolUse(stored["n_samples"], stored["n_rounds"], decision, frequency, plain)


def _out_of_fold(checked: Mapping[str, Any], prefix: str) -> OutOfFold | None:
    """Return the out-of-fold energies of the fit whose array names start with ``prefix``; None if it has none."""
    names = [prefix + name for name in FOLD_ARRAYS]
    if not any(name in checked for name in names):
        return None
    energies, position, weight, temperature, bias = (checked[name] for name in names)
    return OutOfFold(energies, position, weight, float(temperature[0]), bias)


def _feature_names(header: Mapping[str, Any], n_features: int) -> list[str] | None:
    """Return the names of the features, from ``feature_names`` or else from the table columns in ``inputs``, if any."""
    names: list[str] | None = header["feature_names"]
    inputs = header.get("inputs") or {}
    if names is None and inputs.get("kind") == "features":
        columns = inputs.get("columns")
        listed = list(columns) if isinstance(columns, tuple) else columns
        names = listed if is_distinct_names(listed) and len(listed) == n_features else None
    return names
