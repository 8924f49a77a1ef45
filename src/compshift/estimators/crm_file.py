"""A fitted CRMClassifier as the header and arrays of a model file, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from compshift._checks import check_codes, check_finite
from compshift._errors import InputError
from compshift.core.arrays import FloatArray
from compshift.core.candidates import Candidates
from compshift.core.columns import plain_value
from compshift.core.groups import GroupSpace
from compshift.core.hull import AffineHull
from compshift.estimators.crm_model import CRMModel

GROUP_ARRAYS = ("seen_groups", "seen_weight", "groups")
MODEL_ARRAYS = ("coef", "feature_mean", "bias", "learned_bias", "effective_sample_size")
LATER_ARRAYS = ("cumulant_bias", "pareto_k")
"""Of length g. Models that were saved before these existed are read with NaN in their place."""
FINITE_ARRAYS = ("seen_weight", "coef", "feature_mean", "bias", "learned_bias")
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


def from_file(header: dict[str, Any], arrays: dict[str, Any]) -> Saved:
    """The classifier's parts, once they have been found to be what they should be and to fit one another."""
    try:
        _check_kinds(arrays)
        space = GroupSpace(tuple(header["names"]), tuple(tuple(values) for values in header["values"]))
        model = CRMModel(
            candidates=Candidates(AffineHull(space, arrays["seen_groups"]), arrays["seen_weight"], arrays["groups"]),
            **{name: arrays[name] for name in MODEL_ARRAYS},
            **{name: arrays.get(name, np.full(len(arrays["groups"]), np.nan)) for name in LATER_ARRAYS},
            **{name: header[name] for name in NUMBERS},
            temperature=header.get("temperature", 1.0),
            expected=arrays.get("expected"),
        )
        _check_header(header)
        saved = Saved(
            LATER_PARAMETERS
            | {name: header["parameters"][name] for name in PARAMETERS}
            | {name: value for name, value in header["parameters"].items() if name in LATER_PARAMETERS},
            model,
            arrays["log_prior"],
            arrays["parameter_log_prior"],
            int(header["n_targets"]),
            bool(header["one_dimensional"]),
            header["feature_names"],
            header.get("inputs"),
        )
        _check_shapes(saved)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise InputError(f"its contents are not those of a CRMClassifier ({error})") from None
    if saved.parameters["support"] is None:
        saved.parameters["support"] = model.candidates.groups
    if saved.parameters["prior"] is None:
        values = space.decode(model.candidates.groups).tolist()
        weights = np.exp(saved.parameter_log_prior).tolist()
        saved.parameters["prior"] = {tuple(key): weight for key, weight in zip(values, weights, strict=True) if weight}
    return saved


def _check_kinds(arrays: Mapping[str, Any]) -> None:
    """Refuse codes that are not whole, and numbers that are not finite where they must be."""
    for name, array in arrays.items():
        codes = name in ("seen_groups", "groups")
        if array.dtype.kind != ("i" if codes else "f") or (codes and array.ndim != 2):
            raise InputError(f"{name} has type {array.dtype} and {array.ndim} dimensions")
    for name in FINITE_ARRAYS:
        check_finite(arrays[name], name)
    for name in ("log_prior", "parameter_log_prior"):
        array = arrays[name]
        if np.isnan(array).any() or abs(float(np.exp(np.minimum(array, 1)).sum()) - 1) > 1e-6:
            raise InputError(f"{name} is not that of a prior")
    if (arrays["seen_weight"] < 0).any():
        raise InputError("seen_weight has negative entries")


def _check_header(header: Mapping[str, Any]) -> None:
    """Refuse numbers, names and notes of other types than they are saved with."""
    for name in (*NUMBERS, "temperature"):
        if not isinstance(header.get(name, 1.0), int | float):
            raise InputError(f"{name} is {header[name]!r}")
    names, inputs = header["feature_names"], header.get("inputs")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise InputError("feature_names is no list of names")
    if inputs is not None and not isinstance(inputs, dict):
        raise InputError(f"inputs is {inputs!r}")
    for name in ("prior", "support"):
        if not isinstance(header["parameters"][name], str | None):
            raise InputError(f"{name} is {header['parameters'][name]!r}")


def _check_shapes(saved: Saved) -> None:
    """Refuse arrays that do not fit one another."""
    model, candidates = saved.model, saved.model.candidates
    check_codes(candidates.groups, candidates.space.cardinalities, "groups")
    g, p = len(candidates.groups), len(model.feature_mean)
    expected = {"coef": (candidates.space.width, p)} | dict.fromkeys((*MODEL_ARRAYS[2:], *LATER_ARRAYS), (g,))
    if model.expected is not None:
        expected["expected"] = (g, 3)
    for name, shape in expected.items():
        found = getattr(model, name).shape
        if found != shape:
            raise InputError(f"{name} has shape {found} instead of {shape}")
    priors_fit = saved.log_prior.shape == saved.parameter_log_prior.shape == (g,)
    if not priors_fit or candidates.seen_weight.shape != (len(candidates.seen_groups),):
        raise InputError("the prior or the weights do not fit the groups")
    if saved.feature_names is not None and len(saved.feature_names) != p:
        raise InputError(f"there are {len(saved.feature_names)} feature_names for {p} features")
    if len(candidates.space.distinct(candidates.groups)[0]) < g:
        raise InputError("groups lists a group twice")
    if not 1 <= saved.n_targets <= len(candidates.space.names):
        raise InputError(f"there are {saved.n_targets} targets among {len(candidates.space.names)} attributes")
