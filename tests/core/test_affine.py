"""Affine weights, additive functions, posteriors by affine weights, and leverage."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tests.references as reference
from compshift import AffineHull, GroupSpace, InputError, extrapolate_additive
from compshift.core.affine import (
    affine_log_posterior,
    affine_weights,
    extrapolation_leverage,
    inverse_temperature,
    log_floored,
    log_loss,
    log_partition,
    value_weights,
)
from compshift.core.arrays import log_softmax
from tests.core.test_folds import seen_groups
from tests.core.test_hull import random_support


def random_hull(seed):
    """A random hull, the groups inside it, and a number of samples for each seen group."""
    rng = np.random.default_rng(seed)
    space = GroupSpace.from_cardinalities(rng.integers(2, 5, size=rng.integers(1, 4)).tolist())
    groups = space.codes(np.arange(space.n_groups))
    hull = AffineHull(space, groups[rng.random(len(groups)) < 0.6])
    assume(len(hull.observed))
    inside = groups[hull.contains(groups)]
    return hull, inside, rng.integers(1, 1000, size=len(hull.observed)).astype(float)


@pytest.mark.parametrize("kind", ["minimum-norm", "minimum-variance", "sparse"])
@given(seed=st.integers(0, 10_000))
def test_weights_give_the_group_and_sum_to_one(kind, seed):
    hull, groups, rows = random_hull(seed)
    weights = affine_weights(hull, groups, kind, rows)
    seen = hull.space.one_hot(hull.observed)
    np.testing.assert_allclose(weights @ seen, hull.space.one_hot(groups), atol=1e-12)
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-12)
    own = hull.space.locate(groups, hull.observed)
    np.testing.assert_array_equal(weights[own >= 0], np.eye(len(seen))[own[own >= 0]])


@pytest.mark.parametrize("kind", ["minimum-norm", "minimum-variance"])
@given(seed=st.integers(0, 10_000))
def test_minimum_weights_are_the_minimum(kind, seed):
    hull, groups, rows = random_hull(seed)
    unseen = groups[hull.space.locate(groups, hull.observed) < 0]
    assume(len(unseen))
    weights = affine_weights(hull, unseen, kind, rows)
    size = rows if kind == "minimum-variance" else np.ones_like(rows)
    seen = hull.space.one_hot(hull.observed)
    left, singular, _ = np.linalg.svd(seen)
    free = left[:, np.count_nonzero(singular > 1e-9) :].T  # changes of the weights that leave the combination unchanged
    # At the minimum the gradient 2α/n is orthogonal to these changes, and every such change raises the objective.
    np.testing.assert_allclose((weights / size) @ free.T, 0, atol=1e-9)
    for direction in free:
        assert (((weights + 0.1 * direction) ** 2 / size).sum(axis=1) > (weights**2 / size).sum(axis=1)).all()


def test_sparse_weights_are_a_shortest_path():
    space = GroupSpace.from_cardinalities([2, 3])
    hull = AffineHull(space, [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1]])
    few = affine_weights(hull, np.array([[1, 2]]), "sparse", np.ones(5))
    many = affine_weights(hull, np.array([[1, 2]]), "minimum-norm", np.ones(5))
    assert np.count_nonzero(few) == 3
    np.testing.assert_allclose(many, [[-0.5, -0.5, 1, 0.5, 0.5]], atol=1e-12)


def test_rows_decide_the_minimum_variance():
    hull = AffineHull(GroupSpace.from_cardinalities([2, 3]), [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1]])
    weights = affine_weights(hull, np.array([[1, 2]]), "minimum-variance", np.array([1e6, 1, 1e6, 1e6, 1]))
    np.testing.assert_allclose(weights, [[-1, 0, 1, 1, 0]], atol=1e-4)


@given(seed=st.integers(0, 10_000))
def test_value_weights_fit_additive_functions_by_least_squares(seed):
    hull, _, _ = random_hull(seed)
    rng = np.random.default_rng(seed)
    seen = hull.space.one_hot(hull.observed)
    reading = value_weights(hull)
    additive = seen @ rng.normal(size=hull.space.width)
    np.testing.assert_allclose(seen @ (reading @ additive), additive, atol=1e-10)
    numbers = rng.normal(size=len(seen))
    fitted = seen @ np.linalg.lstsq(seen, numbers, rcond=None)[0]
    np.testing.assert_allclose(seen @ (reading @ numbers), fitted, atol=1e-10)


def test_an_unknown_kind_of_weights_is_an_error():
    hull = AffineHull(GroupSpace.from_cardinalities([2]), [[0]])
    with pytest.raises(InputError, match="weights 'least' is not known: use one of 'minimum-norm'"):
        affine_weights(hull, hull.observed, "least", np.ones(1))


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
    with pytest.raises(InputError, match=r"groups of query_codes are outside the affine hull .* '\("):
        extrapolate_additive(seen[:1], [1.0], outside, space)


def test_values_that_are_not_additive():
    from compshift import GroupSpace

    space = GroupSpace.from_cardinalities([2, 2])
    every = space.codes(np.arange(4))
    message = r"no additive function .* at \(1, 1\) the values of the other groups give 2, not 5"
    with pytest.raises(InputError, match=message):
        extrapolate_additive(every, [0.0, 1.0, 1.0, 5.0], every, space)
    with pytest.raises(InputError, match=r"values has shape \(1,\)"):
        extrapolate_additive(every, [0.0], every, space)


def random_case(seed, n=40, k=4, g=7):
    rng = np.random.default_rng(seed)
    log_proba = log_softmax(3 * rng.normal(size=(n, k)))
    weights = rng.normal(size=(g, k))
    weights[:, -1] += 1 - weights.sum(axis=1)
    return log_proba, weights, rng.uniform(0.5, 2, size=n), rng


@settings(max_examples=15)
@given(st.integers(0, 1000))
def test_partition_and_posterior_equal_a_slow_loop(seed):
    log_proba, weights, omega, rng = random_case(seed)
    log_prior = np.log(rng.dirichlet(np.ones(len(weights))))
    found = log_partition(log_proba, weights, omega)
    posterior = affine_log_posterior(log_proba, weights, log_prior - found.value)
    for group, alpha in enumerate(weights):
        scores = [sum(a * p for a, p in zip(alpha, row, strict=True)) for row in log_proba]
        terms = [w * math.exp(s) for w, s in zip(omega, scores, strict=True)]
        assert found.value[group] == pytest.approx(math.log(sum(terms) / sum(omega)))
        size = sum(terms) ** 2 / sum(term**2 for term in terms)
        assert found.effective_sample_size[group] == pytest.approx(size)
    for row, result in zip(log_proba, posterior, strict=True):
        logits = [
            log_prior[group] + sum(a * p for a, p in zip(alpha, row, strict=True)) - found.value[group]
            for group, alpha in enumerate(weights)
        ]
        np.testing.assert_allclose(result, [value - reference.log_sum_exp(logits) for value in logits], atol=1e-10)


def test_log_partition_of_large_scores_keeps_its_digits():
    log_proba, weights, omega, _ = random_case(0)
    shift = 1e4 * np.ones(len(weights))
    plain = log_partition(log_proba, weights, omega)
    moved = log_partition(log_proba + 1e4, weights, omega)  # the weights sum to 1
    np.testing.assert_allclose(moved.value - shift, plain.value, atol=1e-8)
    np.testing.assert_allclose(moved.effective_sample_size, plain.effective_sample_size, rtol=1e-6)


def test_many_rows_are_summed_in_blocks():
    log_proba, weights, omega, _ = random_case(1, n=50_000)
    whole = log_partition(log_proba, weights, omega)
    terms = np.exp(log_proba @ weights.T) * omega[:, None]
    np.testing.assert_allclose(whole.value, np.log(terms.sum(axis=0) / omega.sum()), rtol=1e-9)


@settings(max_examples=15)
@given(st.integers(0, 1000))
def test_the_temperature_is_the_minimum_and_undoes_a_scaling(seed):
    rng = np.random.default_rng(seed)
    log_proba = log_softmax(2 * rng.normal(size=(300, 4)))
    position = np.array([rng.choice(4, p=np.exp(row)) for row in log_proba])
    weight = rng.uniform(0.5, 2, size=300)
    beta = inverse_temperature(log_proba, position, weight)
    lowest = log_loss(beta * log_proba, position, weight)
    assert all(log_loss(factor * beta * log_proba, position, weight) > lowest for factor in (0.9, 0.99, 1.01, 1.1))
    assert inverse_temperature(2.5 * log_proba, position, weight) == pytest.approx(beta / 2.5, rel=1e-8)
    own = [row[group] - reference.log_sum_exp(list(row)) for row, group in zip(log_proba, position, strict=True)]
    assert log_loss(log_proba, position, weight) == pytest.approx(-np.average(own, weights=weight))


def test_the_temperature_has_bounds():
    log_proba = np.log([[0.9, 0.1], [0.1, 0.9]])
    assert inverse_temperature(log_proba, np.array([0, 1]), np.ones(2)) == 1e3
    assert inverse_temperature(log_proba, np.array([1, 0]), np.ones(2)) == 1e-3


def test_probabilities_below_the_floor_are_raised_and_reported():
    log_proba, low = log_floored(np.array([[0.0, 1e-3, 0.999]]), 1e-2)
    np.testing.assert_allclose(np.exp(log_proba), [[1e-2, 1e-2, 0.999]])
    np.testing.assert_array_equal(low, [[True, True, False]])


@given(seen_groups())
def test_leverage_is_the_variance_of_the_extrapolation(problem):
    """The variance comes from the covariance of a least-squares fit to unit-variance noise."""
    space, groups = problem
    hull = AffineHull(space, groups)
    codes = space.codes(np.arange(space.n_groups))
    found = extrapolation_leverage(hull, codes)
    design = space.one_hot(groups)
    covariance = np.linalg.pinv(design.T @ design)
    for code, leverage in zip(codes, found, strict=True):
        if hull.contains(code[None])[0]:
            one = space.one_hot(code[None])[0]
            assert leverage == pytest.approx(one @ covariance @ one, abs=1e-8)
        else:
            assert leverage == np.inf
    assert (found[space.index(groups)] <= 1 + 1e-9).all()


def test_leverage_by_hand():
    """A path of three groups has variance 3; a second parallel path for a part of it lowers the variance to 2."""
    space = GroupSpace.from_cardinalities([2, 2])
    assert extrapolation_leverage(AffineHull(space, [[0, 0], [0, 1], [1, 0]]), np.array([[1, 1]]))[0] == pytest.approx(
        3
    )
    wide = GroupSpace.from_cardinalities([2, 3])
    ring = AffineHull(wide, [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1]])
    # (1, 2): row 1 is known by two groups and column 2 by one, so var = 1 + 1/2 + 1/2
    assert extrapolation_leverage(ring, np.array([[1, 2]]))[0] == pytest.approx(2)
