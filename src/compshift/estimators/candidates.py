"""Candidate groups, those that a fitted model can predict, and priors over them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from compshift._checks import MAX_TABLE_GROUPS, InputError, check_codes, check_probabilities, unknown_name
from compshift.core.arrays import BoolArray, FloatArray, IntArray
from compshift.core.groups import GroupSpace
from compshift.core.hull import AffineHull
from compshift.core.prior import log_probabilities, uniform_log_prior

SUPPORTS = ("all", "hull")
PRIORS = ("uniform", "hull", "train")


def candidate_groups(support: Any, space: GroupSpace, hull: AffineHull) -> IntArray:
    """Codes (g, m) of the candidates that ``support`` asks for."""
    if isinstance(support, str):
        if support not in SUPPORTS:
            raise unknown_name("support", support, SUPPORTS)
        if space.n_groups > MAX_TABLE_GROUPS:
            raise InputError(
                f"the attributes have {space.n_groups:.3g} combinations, too many to hold at once: "
                "pass support=codes with the groups to predict"
            )
        groups = space.codes(np.arange(space.n_groups))
        return groups if support == "all" else groups[hull.contains(groups)]
    groups = check_codes(support, space.cardinalities, "support")
    if not len(groups):
        raise InputError("support lists no group: pass at least one, or 'all' or 'hull'")
    if len(space.distinct(groups)[0]) < len(groups):
        raise InputError("support lists a group twice: pass each group once")
    return groups


def candidate_log_prior(
    prior: Any, space: GroupSpace, groups: IntArray, inside: BoolArray, group_weight: FloatArray
) -> FloatArray:
    """Log prior (g,) over the candidates, from a name, an array over all groups or a mapping."""
    if isinstance(prior, str):
        if prior == "uniform":
            return uniform_log_prior(np.ones(len(groups), dtype=np.bool_))
        if prior == "hull":
            return uniform_log_prior(inside)
        if prior == "train":
            if not group_weight.any():
                raise InputError("prior='train' has nothing to stand on: support lists no group that training has")
            return log_probabilities(group_weight / group_weight.sum())
        raise unknown_name("prior", prior, PRIORS)
    if isinstance(prior, Mapping):
        return _from_mapping(prior, space, groups)
    return _from_array(prior, space, groups)


def _from_mapping(prior: Mapping[Any, Any], space: GroupSpace, groups: IntArray) -> FloatArray:
    """Probabilities by tuples of values; with one attribute the value alone will do."""
    if not prior:
        raise InputError("prior is an empty mapping: pass the probability of at least one group")
    keys = [key if isinstance(key, tuple) else (key,) for key in prior]
    for key in keys:
        if len(key) != len(space.names):
            raise InputError(
                f"prior has the key {key!r}: each key must be one value of each of the {len(space.names)} attributes "
                f"{space.names}"
            )
    codes = space.encode({name: [key[position] for key in keys] for position, name in enumerate(space.names)})
    values = check_probabilities(np.array(list(prior.values()), dtype=np.float64), "prior")
    position = space.locate(codes, groups)
    _refuse_outside(values[position < 0], codes[position < 0], space)
    probabilities = np.zeros(len(groups))
    probabilities[position[position >= 0]] = values[position >= 0]
    return log_probabilities(probabilities)


def _from_array(prior: Any, space: GroupSpace, groups: IntArray) -> FloatArray:
    """Probabilities of all groups, shaped like the attributes or flat."""
    try:
        values = np.asarray(prior, dtype=np.float64)
    except (TypeError, ValueError):
        raise unknown_name("prior", prior, PRIORS) from None
    if values.shape not in (space.cardinalities, (space.n_groups,)):
        raise InputError(
            f"prior has shape {values.shape}: pass one probability per group, of shape {space.cardinalities} or "
            f"({space.n_groups},), or one of the names {PRIORS}"
        )
    values = check_probabilities(values, "prior").reshape(-1)
    index = space.index(groups)
    left_out = np.ones(space.n_groups, dtype=np.bool_)
    left_out[index] = False
    outside = np.flatnonzero(left_out & (values > 0))
    _refuse_outside(values[outside], space.codes(outside), space)
    return log_probabilities(values[index])


def _refuse_outside(values: FloatArray, codes: IntArray, space: GroupSpace) -> None:
    """Refuse prior mass on a group that is not a candidate."""
    for value, code in zip(values, codes, strict=True):
        if value > 0:
            raise InputError(
                f"prior gives {value:.3g} to {space.label(code)}, which is not among the candidate groups: "
                "set it to 0, or fit with a support that includes it"
            )
