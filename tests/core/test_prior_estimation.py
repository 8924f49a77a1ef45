import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tests.references as reference
from compshift.core.prior_estimation import Mixture, confused_pairs, estimate_log_prior, told_apart
from compshift.core.wilson import wilson_interval


def slow_em(log_ratio, weight, concentration, n_iter):
    """EM from the uniform prior, by loops; the prior and the objective at every step."""
    n_groups = len(log_ratio[0])
    prior, objectives = [1 / n_groups] * n_groups, []
    for _ in range(n_iter):
        counts, objective = [concentration - 1] * n_groups, 0.0
        for row, omega in zip(log_ratio, weight, strict=True):
            logs = [math.log(p) + value for p, value in zip(prior, row, strict=True)]
            total = reference.log_sum_exp(logs)
            objective += omega * total
            for group in range(n_groups):
                counts[group] += omega * math.exp(logs[group] - total)
        objectives.append(objective + (concentration - 1) * sum(math.log(p) for p in prior))
        prior = [count / math.fsum(counts) for count in counts]
    return prior, objectives


def gaussians(prior, n, seed, spread=2.0):
    """Rows of one-dimensional Gaussians at 0, spread, 2 spread, …: log p(x|z), and the groups."""
    rng = np.random.default_rng(seed)
    means = spread * np.arange(len(prior))
    group = rng.choice(len(prior), size=n, p=prior)
    x = means[group] + rng.normal(size=n)
    return -0.5 * (x[:, None] - means) ** 2, group


def problem(seed, n=40, g=4):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, g)) * 2, rng.uniform(0.5, 2, size=n)


class TestTheMaximum:
    @pytest.mark.parametrize("concentration", [1.0, 1.5, 4.0])
    def test_it_is_where_a_slow_loop_ends(self, concentration):
        log_ratio, weight = problem(0)
        prior, _ = slow_em(log_ratio, weight, concentration, 600)
        found = estimate_log_prior(log_ratio, weight, concentration=concentration, tol=1e-10)
        assert found.converged
        np.testing.assert_allclose(np.exp(found.log_prior), prior, atol=1e-5)

    @pytest.mark.parametrize("concentration", [1.0, 2.0])
    def test_a_step_is_that_of_the_loop_and_raises_the_objective(self, concentration):
        log_ratio, weight = problem(1)
        prior, expected = slow_em(log_ratio, weight, concentration, 6)
        mixture = Mixture.of(log_ratio, weight, concentration)
        log_prior, objectives = np.full(4, -math.log(4)), []
        for _ in range(6):
            objectives.append(mixture.objective(log_prior))
            log_prior = mixture.em_step(log_prior)
        np.testing.assert_allclose(objectives, expected, rtol=1e-12)
        np.testing.assert_allclose(np.exp(log_prior), prior, rtol=1e-10)
        assert (np.diff(objectives) > 0).all()

    @given(seed=st.integers(0, 10_000), concentration=st.sampled_from([1.0, 1.01, 2.0]))
    def test_iterations_never_lower_it_and_the_gap_bounds_what_is_left(self, seed, concentration):
        log_ratio, weight = problem(seed)
        parts = [
            estimate_log_prior(log_ratio, weight, concentration=concentration, max_iter=n) for n in (1, 2, 4, 8, 500)
        ]
        values = [part.objective for part in parts]
        assert (np.diff(values) >= -1e-9).all()
        for part in parts:
            assert values[-1] - part.objective <= part.gap + 1e-9
            np.testing.assert_allclose(np.exp(part.log_prior).sum(), 1)
            assert (part.lower <= np.exp(part.log_prior) + 1e-12).all()
            assert (part.upper >= np.exp(part.log_prior) - 1e-12).all()

    def test_what_depends_on_the_row_alone_cancels(self):
        log_ratio, weight = problem(2)
        found = estimate_log_prior(log_ratio, weight)
        shift = np.random.default_rng(0).normal(size=(len(weight), 1)) * 1e4
        moved = estimate_log_prior(log_ratio + shift, weight)
        np.testing.assert_allclose(moved.log_prior, found.log_prior, atol=1e-8)

    def test_a_weight_of_two_is_the_row_twice(self):
        log_ratio, _ = problem(3)
        weight = np.where(np.arange(40) < 10, 2.0, 1.0)
        found = estimate_log_prior(log_ratio, weight)
        twice = estimate_log_prior(np.concatenate([log_ratio, log_ratio[:10]]), np.ones(50))
        for name in ("log_prior", "lower", "upper", "effective_rows", "told_apart", "objective"):
            np.testing.assert_allclose(getattr(found, name), getattr(twice, name), rtol=1e-7)

    def test_a_high_concentration_is_the_uniform_prior_and_1_follows_the_data(self):
        log_ratio, _ = gaussians([0.97, 0.03, 0.0], 400, seed=0, spread=3.0)
        far = estimate_log_prior(log_ratio, np.ones(400), concentration=1e6)
        np.testing.assert_allclose(np.exp(far.log_prior), 1 / 3, atol=1e-3)
        near = estimate_log_prior(log_ratio, np.ones(400), concentration=1.0)
        assert np.exp(near.log_prior[2]) < 1e-4
        assert near.converged
        assert near.upper[2] > 0.003  # the interval does not shrink to a point at 0

    def test_huge_ratios_and_impossible_groups(self):
        log_ratio = np.array([[1e4, -1e4, -np.inf], [-1e4, 1e4, -np.inf], [1e4, -np.inf, -1e4]])
        found = estimate_log_prior(log_ratio, np.ones(3), concentration=1.0)
        np.testing.assert_allclose(np.exp(found.log_prior), [2 / 3, 1 / 3, 0], atol=1e-6)
        found = estimate_log_prior(log_ratio, np.ones(3), concentration=2.0)
        np.testing.assert_allclose(np.exp(found.log_prior), [3 / 6, 2 / 6, 1 / 6], atol=1e-6)


class TestTheIntervals:
    @pytest.mark.parametrize("concentration", [1.0, 2.0])
    def test_with_known_groups_they_are_wilsons(self, concentration):
        group = np.repeat([0, 1, 2], [5, 20, 75])
        log_ratio = np.where(group[:, None] == np.arange(3), 0.0, -1e3)
        found = estimate_log_prior(log_ratio, np.ones(100), concentration=concentration, confidence=0.8)
        lower, upper = wilson_interval([5, 20, 75], [100] * 3, 0.8)
        np.testing.assert_allclose(found.lower, lower, rtol=1e-6)
        np.testing.assert_allclose(found.upper, upper, rtol=1e-6)
        np.testing.assert_allclose(found.effective_rows, 100 + 3 * (concentration - 1), rtol=1e-6)
        np.testing.assert_allclose(found.told_apart, 1)

    def test_the_variance_is_that_of_repeated_draws(self):
        prior = [0.6, 0.3, 0.1]
        parts = [estimate_log_prior(gaussians(prior, 500, seed)[0], np.ones(500)) for seed in range(150)]
        spread = np.std([np.exp(part.log_prior) for part in parts], axis=0)
        told = np.mean([np.exp(part.log_prior) * -np.expm1(part.log_prior) / part.effective_rows for part in parts], 0)
        np.testing.assert_allclose(np.sqrt(told), spread, rtol=0.15)

    @pytest.mark.parametrize("prior", [[0.7, 0.2, 0.1], [0.9, 0.1, 0.0], [1 / 3, 1 / 3, 1 / 3]])
    def test_they_hold_the_truth_as_often_as_they_say(self, prior):
        held = []
        for seed in range(150):
            found = estimate_log_prior(gaussians(prior, 300, seed)[0], np.ones(300), confidence=0.9)
            held.append((found.lower <= prior) & (prior <= found.upper))
        inner = np.array(prior) > 0
        assert (np.mean(held, axis=0)[~inner] > 0.83).all()  # an absent group's share, 0, is in its interval
        assert (np.mean(held, axis=0)[inner] > 0.83).all()  # 0.9 less three standard errors
        assert (np.mean(held, axis=0)[inner] < 0.98).all()

    def test_two_groups_that_look_the_same(self):
        log_ratio, _ = gaussians([0.5, 0.5], 300, seed=0, spread=4.0)
        same = np.column_stack([log_ratio, log_ratio[:, 1]])
        found = estimate_log_prior(same, np.ones(300))
        np.testing.assert_array_equal(confused_pairs(found.told_apart, 0.1), [[1, 2]])
        np.testing.assert_allclose(found.log_prior[1], found.log_prior[2], atol=1e-3)
        assert (found.upper - found.lower)[0] < 0.12
        assert ((found.upper - found.lower)[1:] > 0.3).all()
        likelihood_alone = estimate_log_prior(same, np.ones(300), concentration=1.0)
        np.testing.assert_array_equal(likelihood_alone.lower[1:], 0)
        np.testing.assert_array_equal(likelihood_alone.upper[1:], 1)
        assert (likelihood_alone.upper - likelihood_alone.lower)[0] < 0.12

    def test_how_far_groups_are_told_apart_equals_a_loop(self):
        log_ratio, weight = problem(5, n=30, g=3)
        log_prior = np.log([0.5, 0.3, 0.2])
        found = told_apart(log_ratio, weight, log_prior)
        for z, other in [(0, 1), (0, 2), (1, 2)]:
            top = bottom = 0.0
            for row, omega in zip(log_ratio, weight, strict=True):
                total = reference.log_sum_exp(list(row + log_prior))
                t = omega * sum(math.exp(row[w] + log_prior[w] - total) for w in (z, other))
                share = 1 / (1 + math.exp(row[other] - row[z]))
                top, bottom = top + t * (2 * share - 1) ** 2, bottom + t
            assert found[z, other] == found[other, z] == pytest.approx(top / bottom)

    def test_one_group_is_certain(self):
        found = estimate_log_prior(np.zeros((5, 1)), np.ones(5))
        assert found.log_prior[0] == 0
        assert found.upper[0] == pytest.approx(1)
