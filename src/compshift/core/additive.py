"""Additive functions of groups, extrapolated exactly (paper, "Extrapolation of Discrete Additive Functions")."""

import numbers
from typing import Any

import numpy as np

from compshift._checks import check_codes, check_finite, check_numbers
from compshift._errors import InputError, an, listing
from compshift.core.groups import GroupSpace, check_space
from compshift.core.hull import AffineHull

ADDITIVE_TOLERANCE = 1e-9
"""Relative disagreement of the given values up to which they pass for additive."""


def extrapolate_additive(observed_codes: Any, values: Any, query_codes: Any, space: GroupSpace) -> Any:
    r"""Values of an additive function on groups inside the affine hull of those where it is known.

    .. math:: f(z') = \sum_j \alpha_j f(z^{(j)}) \quad \text{where} \quad \sigma(z') = \sum_j \alpha_j \sigma(z^{(j)})

    ``values`` (k,) belong to ``observed_codes`` (k, m). Numbers give float64; an object array of integers or fractions
    gives exact fractions. Groups outside the hull are refused by name, and so are values that no additive function has.

    >>> space = GroupSpace.from_cardinalities([2, 2])
    >>> extrapolate_additive([[0, 0], [0, 1], [1, 0]], [1.0, 3.0, 11.0], [[1, 1]], space)
    array([13.])
    """
    check_space(space)
    observed = check_codes(observed_codes, space.cardinalities, "observed_codes")
    query = check_codes(query_codes, space.cardinalities, "query_codes")
    exact = getattr(getattr(values, "dtype", None), "kind", "") == "O"
    known = values if exact else check_numbers(values, "values", "pass one number for each group")
    if known.shape != (len(observed),):
        raise InputError(f"values has shape {known.shape}: pass one number for each of the {len(observed)} groups")
    if exact:
        _check_exact(known)
    else:
        check_finite(known, "values")
    hull = AffineHull(space, observed)
    outside = query[~hull.contains(query)]
    if len(outside):
        raise InputError(
            f"{len(outside)} of the {len(query)} groups are outside the affine hull of the known ones, so that their "
            f"values are not determined: {listing(space.label(code) for code in outside)}"
        )
    groups, position = space.distinct(observed)
    first = np.full(len(groups), -1, dtype=np.int64)
    first[position[::-1]] = np.arange(len(observed))[::-1]  # where each group is given first
    function = hull._span.interpolate(known[first[hull._basis]])  # (D,)
    found = function[observed + space.offsets].sum(axis=1)
    difference = np.abs(found - known)
    scale = max(1, np.abs(known).max(initial=0))
    if (difference > (0 if exact else ADDITIVE_TOLERANCE * scale)).any():
        worst = int(np.argmax(difference))
        raise InputError(
            f"no additive function has these values: at {space.label(observed[worst])} the others give "
            f"{float(found[worst]):g}, not {float(known[worst]):g}"
        )
    return function[query + space.offsets].sum(axis=1)


def _check_exact(values: Any) -> None:
    """Refuse objects other than integers and fractions."""
    odd = [value for value in values if not isinstance(value, numbers.Rational)]
    if odd:
        raise InputError(
            f"values holds {odd[0]!r}, {an(type(odd[0]).__name__)}: exact values are integers and fractions; "
            "pass others as an array of floats"
        )
