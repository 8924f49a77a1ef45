"""The typical ridge, and the choice among several by held-out groups."""

import math

import numpy as np
import pytest

from compshift.crm.ridge import default_alphas, further_alphas, ridge_criterion, typical_alpha

ALPHAS = np.array([1e-3, 1e-2, 1e-1, 1.0])


@pytest.mark.parametrize(
    ("n_features", "weight", "expected"),
    [
        (30, np.ones(300), 0.05),
        (30, np.full(300, 1e300), 0.05),
        (30, np.full(300, 1e-300), 0.05),
        (30, np.r_[np.ones(300), np.full(50, 1e-9)], 0.05),  # rows without weight do not count
        (2, np.ones(10_000), 1e-4),
        (1280, np.ones(400), 0.3),  # the limit
        (33, np.ones(700), 0.024),  # two digits
    ],
)
def test_the_typical_alpha_follows_from_features_per_sample(n_features, weight, expected):
    assert typical_alpha(n_features, weight) == expected


def test_default_alphas_lie_around_the_typical_one():
    found = default_alphas(0.04)
    assert found[3] == 0.04
    np.testing.assert_allclose(np.diff(np.log10(found)), 0.5, atol=0.02)


@pytest.mark.parametrize(
    ("best", "expected"),
    [(1e-3, (1e-4, 3.2e-4)), (1e-2, ()), (1e-1, ()), (1.0, (3.2, 10.0))],
)
def test_alphas_are_added_beyond_the_end_at_which_the_best_lies(best, expected):
    assert further_alphas(tuple(ALPHAS), best, 0.04) == expected


def test_alphas_are_added_up_to_a_limit():
    alphas = [*default_alphas(0.04)]
    while further := further_alphas(alphas, max(alphas), 0.04):
        alphas += further
    assert max(alphas) == pytest.approx(4000, rel=0.1)


def slow_criterion(accuracy, alphas, typical):
    """The formula of the module's docstring, with loops."""
    means = [sum(row) / len(row) for row in accuracy]
    best = means.index(max(means))
    result = []
    for row, mean, alpha in zip(accuracy, means, alphas, strict=True):
        differences = [one - other for one, other in zip(accuracy[best], row, strict=True)]
        n, average = len(differences), means[best] - mean
        spread = (sum((value - average) ** 2 for value in differences) + 0.2**2) / (n + 1)
        result.append(average**2 / (spread / n) + math.log10(alpha / typical) ** 2)
    return result


def test_the_criterion_equals_a_slow_reference():
    accuracy = np.random.default_rng(0).uniform(size=(4, 7))
    found = ridge_criterion(accuracy, accuracy.mean(axis=1), ALPHAS, 0.04)
    np.testing.assert_allclose(found, slow_criterion(accuracy.tolist(), ALPHAS, 0.04))


def test_without_held_out_groups_the_nearest_to_the_typical_one_is_best():
    found = ridge_criterion(np.empty((4, 0)), np.full(4, np.nan), ALPHAS, 0.004)
    assert ALPHAS[found.argmin()] == 1e-2
    np.testing.assert_allclose(found, np.square([math.log10(alpha / 0.004) for alpha in ALPHAS]))


@pytest.mark.parametrize(("n_groups", "expected"), [(1, 1e-1), (3, 1e-1), (100, 1e-3)])
def test_the_more_groups_are_held_out_the_more_they_decide(n_groups, expected):
    rng = np.random.default_rng(0)
    accuracy = np.array([0.75, 0.7, 0.65, 0.6])[:, None] + rng.normal(scale=0.1, size=(4, n_groups))
    accuracy += np.array([0.75, 0.7, 0.65, 0.6])[:, None] - accuracy.mean(axis=1, keepdims=True)
    assert ALPHAS[ridge_criterion(accuracy, accuracy.mean(axis=1), ALPHAS, 0.1).argmin()] == expected
