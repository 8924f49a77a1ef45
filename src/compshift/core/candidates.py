"""Candidate groups, those that a fitted model can predict, and priors over them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from compshift._checks import MAX_TABLE_GROUPS, check_codes
from compshift._errors import InputError, check_name, rough, unknown_name
from compshift.core.arrays import BoolArray, FloatArray, IntArray
from compshift.core.energy import GroupTable
from compshift.core.groups import GroupSpace
from compshift.core.hull import AffineHull
from compshift.core.prior import given_log_prior, log_probabilities, uniform_log_prior

SUPPORTS = ("all", "hull", "observed")
PRIORS = ("uniform", "hull", "train")


def candidate_groups(support: Any, space: GroupSpace, hull: AffineHull) -> IntArray:
    """Codes (g, m) of the candidates that ``support`` asks for, in order of their codes."""
    if isinstance(support, str):
        check_name("support", support, SUPPORTS)
        if support == "observed":
            return hull.observed
        if space.n_groups > MAX_TABLE_GROUPS:
            raise InputError(
                f"the attributes have {rough(space.n_groups)} combinations, too many to hold at once: "
                'pass support=("observed", codes) with groups to predict beside the seen ones'
            )
        groups = space.codes(np.arange(space.n_groups))
        return groups if support == "all" else groups[hull.contains(groups)]
    with_observed = isinstance(support, tuple) and len(support) == 2 and isinstance(support[0], str)
    if with_observed and support[0] != "observed":
        raise unknown_name("support", support[0], ("observed",))
    listed: IntArray = check_codes(support[1] if with_observed else support, space.cardinalities, "support")
    if with_observed:
        listed = np.concatenate([hull.observed, listed])
    if not len(listed):
        raise InputError("support lists no group: pass at least one, or 'all' or 'hull'")
    return space.distinct(listed)[0]


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
        """Log prior (g,), from a name, an array over all groups, a mapping or Series, or what has ``as_mapping``."""
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
        given = prior.as_mapping() if hasattr(prior, "as_mapping") else prior
        return given_log_prior(given, self.space, self.groups)
