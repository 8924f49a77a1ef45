"""Candidate groups (the groups that a fitted model can predict), priors over them, and logit offsets.

A prior is a name (``PRIORS``), an array over all groups, or a Series or mapping from groups, or from the classes of the
first attribute, to probabilities. The logit offsets correct a classifier during training for unequal numbers of samples
per class and attribute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from compshift._checks import MAX_TABLE_GROUPS, check_codes, check_numbers, check_probabilities
from compshift._errors import InputError, listing, rough, unknown_name
from compshift.core.arrays import BoolArray, FloatArray, IntArray
from compshift.core.energy import GroupTable
from compshift.core.groups import GroupSpace, codes_of_index, distinct_codes, flat_index, locate_codes
from compshift.core.hull import AffineHull

SUPPORTS = ("all", "hull", "observed")
"""Names of sets of candidate groups: all groups, the groups inside the affine hull, or the seen groups."""

PRIORS = ("uniform", "hull", "train")
"""Names of priors: uniform over the candidates, uniform over candidates inside the hull, or training frequencies."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """The groups that a model can predict, the groups that it was trained on, and their training weights."""

    hull: AffineHull  # affine hull of the seen groups
    seen_weight: FloatArray  # (k,) number of training samples of each seen group, or the sum of their weights
    groups: IntArray  # (g, m) codes of the candidates

    @classmethod
    def of(cls, space: GroupSpace, seen_groups: IntArray, seen_weight: FloatArray, support: Any) -> Candidates:
        """Return the candidates for ``support``: one of ``SUPPORTS``, or codes (g, m)."""
        hull = AffineHull(space, seen_groups)
        return cls(hull, seen_weight, candidate_groups(support, space, hull))

    @property
    def space(self) -> GroupSpace:
        """Attributes and their values."""
        return self.hull.space

    @property
    def seen_groups(self) -> IntArray:
        """Codes (k, m) of the seen groups, in ascending order."""
        return self.hull.observed

    @cached_property
    def inside_hull(self) -> BoolArray:
        """Whether each candidate is inside the affine hull of the seen groups, (g,)."""
        return self.hull._contains(self.groups)

    @cached_property
    def in_seen(self) -> IntArray:
        """Position of each candidate among the seen groups, (g,); −1 for an unseen group."""
        return locate_codes(self.groups, self.seen_groups, self.space.cardinalities)

    @cached_property
    def weight(self) -> FloatArray:
        """Training weight of each candidate, (g,); 0 for an unseen group."""
        return np.where(self.in_seen >= 0, self.seen_weight[self.in_seen], 0.0)

    @cached_property
    def table(self) -> GroupTable:
        """The candidates as a group table."""
        return GroupTable.of(self.space, self.groups)

    def log_prior(self, prior: Any) -> FloatArray:
        """Return the log prior (g,) of the candidates.

        ``prior`` is one of ``PRIORS``, an array over all groups, a mapping or Series, or an object with ``as_mapping``.
        A mapping from single values is a prior over the classes, the values of the first attribute: the candidates of
        a class inside the hull, or all of its candidates if none is inside, share its probability equally.
        """
        if isinstance(prior, str):
            if prior == "uniform":
                return uniform_log_prior(np.ones(len(self.groups), dtype=np.bool_))
            if prior == "hull":
                return uniform_log_prior(self.inside_hull)
            if prior == "train":
                if not self.weight.any():
                    raise InputError(
                        "prior='train' cannot be used: support lists no seen group; add one, or use another prior"
                    )
                return log_probabilities(self.weight / self.weight.sum())
            raise unknown_name("prior", prior, PRIORS)
        given = prior.as_mapping() if hasattr(prior, "as_mapping") else prior
        classes = _class_probabilities(given, self.space)
        if classes is not None:
            return self._log_class_prior(classes)
        return given_log_prior(given, self.space, self.groups)

    def _log_class_prior(self, classes: FloatArray) -> FloatArray:
        r"""Return the log prior (g,) from the probabilities of the classes, (c,).

        .. math:: q(z) = \frac{q(y)}{n_y} \text{ for the } n_y \text{ groups of class } y \text{ inside the hull}
        """
        of_class = self.groups[:, 0]
        has_inside = np.bincount(of_class[self.inside_hull], minlength=len(classes)) > 0
        sharing = self.inside_hull | ~has_inside[of_class]  # (g,)
        count = np.bincount(of_class[sharing], minlength=len(classes))
        for value, probability in zip(self.space.values[0], np.where(count > 0, 0.0, classes), strict=True):
            if probability > 0:
                raise InputError(
                    f"prior gives {probability:.3g} to the class {value!r}, but no candidate group has it: set it to "
                    "0, or fit with a support that includes the class"
                )
        return log_probabilities(np.where(sharing, classes[of_class] / np.maximum(count, 1)[of_class], 0.0))


def candidate_groups(support: Any, space: GroupSpace, hull: AffineHull) -> IntArray:
    """Return the codes (g, m), in ascending order, of the candidates for ``support``: one of ``SUPPORTS``, or codes."""
    if isinstance(support, str):
        if support == "observed":
            return hull.observed
        if space.n_groups > MAX_TABLE_GROUPS:
            raise InputError(
                f"the attributes have {rough(space.n_groups)} combinations, too many to hold at once: "
                "use support='observed', or pass the codes of the groups to predict as support"
            )
        groups = codes_of_index(np.arange(space.n_groups), space.cardinalities)
        return groups if support == "all" else groups[hull._contains(groups)]
    listed: IntArray = check_codes(support, space.cardinalities, "support")
    if not len(listed):
        raise InputError("support is empty: pass the codes of at least one group, or 'all', 'hull' or 'observed'")
    return distinct_codes(listed, space.cardinalities)[0]


def log_probabilities(values: Any, name: str = "prior") -> FloatArray:
    """Check that probabilities sum to 1 and return their logarithms; an entry of 0 becomes −inf."""
    probabilities = check_probabilities(values, name)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(probabilities), dtype=np.float64)


def uniform_log_prior(chosen: BoolArray) -> FloatArray:
    """Return the log prior (g,) that is uniform over the chosen groups and −inf on the others."""
    count = int(np.count_nonzero(chosen))
    if count == 0:
        raise InputError(
            "prior='hull' cannot be used: none of the candidate groups is inside the hull; use another prior or support"
        )
    return np.where(chosen, -np.log(count), -np.inf)


def given_log_prior(prior: Any, space: GroupSpace, groups: IntArray) -> FloatArray:
    """Return the log prior (g,) of ``groups`` from a given prior.

    ``prior`` is a mapping or Series from groups (tuples of values) to probabilities, or an array over all groups.
    """
    if hasattr(prior, "columns"):
        raise InputError("prior is a table: pass a Series or mapping from groups to probabilities, or an array")
    if hasattr(prior, "to_dict") and hasattr(prior, "index"):  # a pandas Series
        prior = _with_ordered_levels(prior, space)
        return _from_pairs(prior.index.tolist(), prior.tolist(), space, groups)
    if isinstance(prior, Mapping):
        return _from_pairs(list(prior), list(prior.values()), space, groups)
    return _from_array(prior, space, groups)


def _class_probabilities(prior: Any, space: GroupSpace) -> FloatArray | None:
    """Return the probabilities (c,) of the values of the first attribute if ``prior`` lists these, None otherwise."""
    if isinstance(prior, Mapping):
        pairs = list(prior.items())
    elif hasattr(prior, "to_dict") and hasattr(prior, "index") and not hasattr(prior, "columns"):  # a pandas Series
        pairs = list(zip(prior.index.tolist(), prior.tolist(), strict=True))
    else:
        return None
    single = [not isinstance(key, tuple) for key, _ in pairs]
    if len(space.names) == 1 or not any(single):
        return None
    if not all(single):
        raise InputError("prior mixes classes and groups: pass only classes, or only groups as tuples of values")
    name, known = space.names[0], space.values[0]
    values = np.full(len(known), np.nan)
    given = _numbers([value for _, value in pairs])
    for (key, _), probability in zip(pairs, given, strict=True):
        if key not in known:
            raise InputError(
                f"prior has the key {key!r}, which is not a class of {name!r} ({listing(known)}): pass the classes, or "
                f"groups as tuples of one value of each attribute {space.names}"
            )
        if not np.isnan(values[known.index(key)]):
            raise InputError(f"prior lists the class {key!r} more than once: pass one probability per class")
        values[known.index(key)] = probability
    absent = [value for value, found in zip(known, np.isnan(values), strict=True) if found]
    if absent and not np.isnan(given).any():
        raise InputError(f"prior has no entry for the class {listing(absent)} of {name!r}: list every class")
    return np.asarray(check_probabilities(values, "prior"))


def _with_ordered_levels(prior: Any, space: GroupSpace) -> Any:
    """Return a Series with its index levels, if they are named, in the order of the attributes."""
    names = [None if name is None else str(name) for name in prior.index.names]
    if len(names) < 2:
        return prior
    if sorted(map(str, names)) == sorted(space.names):
        return prior.rename_axis(names).reorder_levels(list(space.names))
    if any(name not in (None, attribute) for name, attribute in zip(names, space.names, strict=False)):
        raise InputError(
            f"prior has index levels named {listing(names)}, but the attributes are {listing(space.names)}: rename the "
            "levels, or remove their names and put them in the order of the attributes"
        )
    return prior


def _from_pairs(keys: list[Any], given: list[Any], space: GroupSpace, groups: IntArray) -> FloatArray:
    """Return the log prior (g,) of ``groups`` from keys (tuples of values) and their probabilities."""
    codes = space._encode_keys(keys, "prior")
    distinct, number = distinct_codes(codes, space.cardinalities)
    repeated = np.flatnonzero(np.bincount(number) > 1)
    if repeated.size:
        raise InputError(
            f"prior lists {space.label(distinct[repeated[0]])} more than once: pass one probability per group"
        )
    values = check_probabilities(_numbers(given), "prior")
    position = locate_codes(codes, groups, space.cardinalities)
    _check_no_mass(values[position < 0], codes[position < 0], space)
    probabilities = np.zeros(len(groups))
    probabilities[position[position >= 0]] = values[position >= 0]
    return log_probabilities(probabilities)


def _from_array(prior: Any, space: GroupSpace, groups: IntArray) -> FloatArray:
    """Return the log prior (g,) of ``groups`` from an array over all groups, shaped like the cardinalities or flat."""
    values = _numbers(prior)
    if values.shape not in (space.cardinalities, (space.n_groups,)):
        raise InputError(
            f"prior has shape {values.shape}: pass one probability per group, of shape {space.cardinalities} or "
            f"({space.n_groups},), or one of the names 'uniform', 'hull' and 'train'; for a prior over the classes "
            "alone, pass a mapping from classes to probabilities"
        )
    values = check_probabilities(values, "prior").reshape(-1)
    index = flat_index(groups, space.cardinalities)
    left_out = np.ones(space.n_groups, dtype=np.bool_)
    left_out[index] = False
    outside = np.flatnonzero(left_out & (values > 0))
    _check_no_mass(values[outside], codes_of_index(outside, space.cardinalities), space)
    return log_probabilities(values[index])


def _numbers(prior: Any) -> FloatArray:
    """Check that a prior holds numbers and return them as an array."""
    expected = "pass 'uniform', 'hull', 'train', an array of probabilities, or a mapping from groups to probabilities"
    return np.asarray(check_numbers(prior, "prior", expected))


def _check_no_mass(values: FloatArray, codes: IntArray, space: GroupSpace) -> None:
    """Check that the prior is 0 on groups (q, m) that are not candidates."""
    for value, code in zip(values, codes, strict=True):
        if value > 0:
            raise InputError(
                f"prior gives {value:.3g} to {space.label(code)}, which is not among the candidate groups: "
                "set it to 0, or fit with a support that includes it"
            )


def correction_offset(counts: FloatArray, epsilon: float) -> FloatArray:
    r"""Return the logit offsets of logit correction (Liu et al., 2022), with known attributes.

    .. math:: \log(\hat p(y, a) + \varepsilon)

    ``counts`` (c, a) are the numbers of training samples of each class and each combination of the other attributes;
    the result has the same shape. The training loss is the cross-entropy of ``logits + offset[:, a]``; predictions use
    the logits alone. ``log p̂(a)`` cancels in the softmax, so with τ = 1 this offset is equivalent to
    ``adjustment_offset``, except for ε and smoothing.
    """
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(counts / counts.sum() + epsilon))


def adjustment_offset(counts: FloatArray, tau: float, smoothing: float, epsilon: float = 0.0) -> FloatArray:
    r"""Return the logit offsets of supervised logit adjustment (Tsirigotis et al., 2024).

    .. math:: \tau \log (\hat p(y \mid a) + \varepsilon)

    ``counts`` (c, a) are as in ``correction_offset``, and the offset is used in the same way. ``smoothing`` is added to
    every count; p̂(y | a) is 0 for an attribute combination a whose counts plus ``smoothing`` are all 0.
    """
    smooth = counts + smoothing
    total = smooth.sum(axis=0)
    with np.errstate(divide="ignore"):
        if epsilon:
            return np.asarray(tau * np.log(smooth / np.where(total > 0, total, 1.0) + epsilon))
        return np.asarray(tau * (np.log(smooth) - np.log(np.where(total > 0, total, 1.0))))
