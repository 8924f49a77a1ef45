"""A fitted CRMClassifier as the header and arrays of a model file, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from compshift._errors import InputError
from compshift.core.arrays import FloatArray
from compshift.core.candidates import Candidates
from compshift.core.columns import plain_value
from compshift.core.hull import AffineHull
from compshift.estimators.crm_file_checks import check_header, checked_arrays, checked_space, is_names
from compshift.estimators.crm_model import CRMModel

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
