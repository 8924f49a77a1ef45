from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compshift import AffineHull, InputError, extrapolate_additive
from tests.core.test_hull import random_support


@given(st.integers(0, 10_000), st.integers(2, 4))
def test_additive_functions_are_found_inside_the_hull(seed, m):
    rng = np.random.default_rng(seed)
    space, seen = random_support(rng, m)
    function = rng.normal(size=space.width) * 100
    inside = AffineHull(space, seen).contains(everything := space.codes(np.arange(space.n_groups)))
    values = space.one_hot(seen) @ function
    found = extrapolate_additive(seen, values, everything[inside], space)
    np.testing.assert_allclose(found, space.one_hot(everything[inside]) @ function, rtol=1e-9, atol=1e-9)


def test_fractions_stay_exact():
    rng = np.random.default_rng(0)
    space, seen = random_support(rng, 3)
    function = np.array([Fraction(int(value), 7) for value in rng.integers(-50, 50, size=space.width)], dtype=object)
    values = space.one_hot(seen).astype(int).astype(object) @ function
    inside = AffineHull(space, seen).missing(inside=True)
    found = extrapolate_additive(seen, values, inside, space)
    assert found.tolist() == (space.one_hot(inside).astype(int).astype(object) @ function).tolist()


def test_outside_groups_are_named():
    space, seen = random_support(np.random.default_rng(0), 2)
    outside = AffineHull(space, seen[:1]).missing(inside=False)
    with pytest.raises(InputError, match=r"groups are outside the affine hull .* '\("):
        extrapolate_additive(seen[:1], [1.0], outside, space)


def test_values_that_are_not_additive():
    from compshift import GroupSpace

    space = GroupSpace.from_cardinalities([2, 2])
    every = space.codes(np.arange(4))
    with pytest.raises(InputError, match=r"no additive function .* at \(1, 1\) the others give 2, not 5"):
        extrapolate_additive(every, [0.0, 1.0, 1.0, 5.0], every, space)
    with pytest.raises(InputError, match=r"values has shape \(1,\)"):
        extrapolate_additive(every, [0.0], every, space)
