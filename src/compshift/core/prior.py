"""Log priors over candidate groups: uniform, by frequency, or given as an array, a Series or a mapping."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from compshift._checks import check_numbers, check_probabilities
from compshift._errors import InputError, listing
from compshift.core.arrays import BoolArray, FloatArray, IntArray
from compshift.core.groups import GroupSpace


def log_probabilities(values: Any, name: str = "prior") -> FloatArray:
    """Logarithm of probabilities that sum to 1; an entry of 0 becomes −inf."""
    probabilities = check_probabilities(values, name)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(probabilities), dtype=np.float64)


def uniform_log_prior(chosen: BoolArray) -> FloatArray:
    """Equal probability for each chosen group (g,), none for the others."""
    count = int(np.count_nonzero(chosen))
    if count == 0:
        raise InputError("the prior has no group to stand on: none of the candidate groups is inside the hull")
    return np.where(chosen, -np.log(count), -np.inf)


def given_log_prior(prior: Any, space: GroupSpace, groups: IntArray) -> FloatArray:
    """Log prior (g,) of ``groups`` from a mapping or Series over values, or an array over all groups of the space."""
    if hasattr(prior, "columns"):
        raise InputError("prior is a table: pass a Series or mapping from groups to probabilities, or an array")
    if hasattr(prior, "to_dict") and hasattr(prior, "index"):  # a Series, by its labels
        prior = _in_order(prior, space)
        return _from_pairs(prior.index.tolist(), prior.tolist(), space, groups)
    if isinstance(prior, Mapping):
        return _from_pairs(list(prior), list(prior.values()), space, groups)
    return _from_array(prior, space, groups)


def _in_order(prior: Any, space: GroupSpace) -> Any:
    """A Series whose levels are in the order of the attributes: by their names or, without names, as they are."""
    names = [None if name is None else str(name) for name in prior.index.names]
    if len(names) < 2:
        return prior
    if sorted(map(str, names)) == sorted(space.names):
        return prior.rename_axis(names).reorder_levels(list(space.names))
    if any(name not in (None, attribute) for name, attribute in zip(names, space.names, strict=False)):
        raise InputError(
            f"prior has levels of the names {listing(names)}, but the attributes are {listing(space.names)}: rename "
            "them, or pass the levels without names, in the order of the attributes"
        )
    return prior


def _from_pairs(keys: list[Any], given: list[Any], space: GroupSpace, groups: IntArray) -> FloatArray:
    """Probabilities by tuples of values; with one attribute the value alone will do."""
    codes = space.encode_keys(keys, "prior")
    distinct, number = space.distinct(codes)
    repeated = np.flatnonzero(np.bincount(number) > 1)
    if repeated.size:
        raise InputError(f"prior lists {space.label(distinct[repeated[0]])} more than once: add up its entries")
    values = check_probabilities(_numbers(given), "prior")
    position = space.locate(codes, groups)
    _refuse_outside(values[position < 0], codes[position < 0], space)
    probabilities = np.zeros(len(groups))
    probabilities[position[position >= 0]] = values[position >= 0]
    return log_probabilities(probabilities)


def _from_array(prior: Any, space: GroupSpace, groups: IntArray) -> FloatArray:
    """Probabilities of all groups, shaped like the attributes or flat."""
    values = _numbers(prior)
    if values.shape not in (space.cardinalities, (space.n_groups,)):
        raise InputError(
            f"prior has shape {values.shape}: pass one probability per group, of shape {space.cardinalities} or "
            f"({space.n_groups},), or one of the names 'uniform', 'hull' and 'train'"
        )
    values = check_probabilities(values, "prior").reshape(-1)
    index = space.index(groups)
    left_out = np.ones(space.n_groups, dtype=np.bool_)
    left_out[index] = False
    outside = np.flatnonzero(left_out & (values > 0))
    _refuse_outside(values[outside], space.codes(outside), space)
    return log_probabilities(values[index])


def _numbers(prior: Any) -> FloatArray:
    expected = "pass 'uniform', 'hull', 'train', an array of probabilities or a mapping to them"
    return np.asarray(check_numbers(prior, "prior", expected))


def _refuse_outside(values: FloatArray, codes: IntArray, space: GroupSpace) -> None:
    """Refuse prior mass on a group that is not a candidate."""
    for value, code in zip(values, codes, strict=True):
        if value > 0:
            raise InputError(
                f"prior gives {value:.3g} to {space.label(code)}, which is not among the candidate groups: "
                "set it to 0, or fit with a support that includes it"
            )
