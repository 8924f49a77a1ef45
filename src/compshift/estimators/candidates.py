"""Candidate groups, those that a fitted model can predict, and priors over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from compshift._checks import MAX_TABLE_GROUPS, check_codes, check_probabilities
from compshift._errors import InputError, unknown_name
from compshift.core.arrays import BoolArray, FloatArray, IntArray
from compshift.core.energy import GroupTable
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
    listed: IntArray = check_codes(support, space.cardinalities, "support")
    if not len(listed):
        raise InputError("support lists no group: pass at least one, or 'all' or 'hull'")
    if len(space.distinct(listed)[0]) < len(listed):
        raise InputError("support lists a group twice: pass each group once")
    return listed


@dataclass(frozen=True, eq=False)
class Candidates:
    """The groups that a model can predict, and what training had of them."""

    hull: AffineHull  # of the seen groups
    seen_weight: FloatArray  # (k,) training rows of each seen group, or the sum of their weights
    groups: IntArray  # (g, m)

    @classmethod
    def of(cls, space: GroupSpace, seen_groups: IntArray, seen_weight: FloatArray, support: Any) -> Candidates:
        """The candidates that ``support`` asks for."""
        hull = AffineHull(space, seen_groups)
        return cls(hull, seen_weight, candidate_groups(support, space, hull))

    @property
    def space(self) -> GroupSpace:
        """Attributes and their values."""
        return self.hull.space

    @property
    def seen_groups(self) -> IntArray:
        """Codes (k, m) of the seen groups, in order of their codes."""
        return self.hull.observed

    @cached_property
    def inside_hull(self) -> BoolArray:
        """Which candidates the seen groups determine, (g,)."""
        return self.hull.contains(self.groups)

    @cached_property
    def in_seen(self) -> IntArray:
        """Position of each candidate among the seen groups, −1 if it is not there, (g,)."""
        return self.space.locate(self.groups, self.seen_groups)

    @cached_property
    def weight(self) -> FloatArray:
        """Training rows of each candidate, 0 if it is not seen, (g,)."""
        return np.where(self.in_seen >= 0, self.seen_weight[self.in_seen], 0.0)

    @cached_property
    def table(self) -> GroupTable:
        """The candidates as a table."""
        return GroupTable.of(self.space, self.groups)

    def log_prior(self, prior: Any) -> FloatArray:
        """Log prior (g,), from a name, an array over all groups or a mapping."""
        if isinstance(prior, str):
            if prior == "uniform":
                return uniform_log_prior(np.ones(len(self.groups), dtype=np.bool_))
            if prior == "hull":
                return uniform_log_prior(self.inside_hull)
            if prior == "train":
                if not self.weight.any():
                    raise InputError("prior='train' has nothing to stand on: support lists no group that training has")
                return log_probabilities(self.weight / self.weight.sum())
            raise unknown_name("prior", prior, PRIORS)
        if isinstance(prior, Mapping):
            return _from_mapping(prior, self.space, self.groups)
        return _from_array(prior, self.space, self.groups)


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
