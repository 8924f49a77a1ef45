"""The prior estimated from unlabelled inputs, against loops and simulations."""

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tests.references as reference
from compshift.core.accuracy import wilson_interval
from compshift.core.prior_em import Mixture, confused_pairs, estimate_log_prior, separability


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
    """Samples of one-dimensional Gaussians at 0, spread, 2 spread, …: log p(x|z), and the groups."""
    rng = np.random.default_rng(seed)
    means = spread * np.arange(len(prior))
    group = rng.choice(len(prior), size=n, p=prior)
    x = means[group] + rng.normal(size=n)
    return -0.5 * (x[:, None] - means) ** 2, group


def problem(seed, n=40, g=4):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, g)) * 2, rng.uniform(0.5, 2, size=n)


class TestMaximum:
    @pytest.mark.parametrize("concentration", [1.0, 1.5, 4.0])
    def test_maximum_equals_that_of_a_loop(self, concentration):
        log_ratio, weight = problem(0)
        prior, _ = slow_em(log_ratio, weight, concentration, 600)
        found = estimate_log_prior(log_ratio, weight, concentration=concentration, tol=1e-10)
        assert found.converged
        np.testing.assert_allclose(np.exp(found.log_prior), prior, atol=1e-5)

    @pytest.mark.parametrize("concentration", [1.0, 2.0])
    def test_an_em_step_equals_the_loop_and_raises_the_objective(self, concentration):
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
    def test_iterations_never_lower_the_objective_and_the_gap_bounds_the_rest(self, seed, concentration):
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

    def test_a_shift_of_a_sample_cancels(self):
        log_ratio, weight = problem(2)
        found = estimate_log_prior(log_ratio, weight)
        shift = np.random.default_rng(0).normal(size=(len(weight), 1)) * 1e4
        moved = estimate_log_prior(log_ratio + shift, weight)
        np.testing.assert_allclose(moved.log_prior, found.log_prior, atol=1e-8)

    def test_a_weight_of_two_equals_a_repeated_sample(self):
        log_ratio, _ = problem(3)
        weight = np.where(np.arange(40) < 10, 2.0, 1.0)
        found = estimate_log_prior(log_ratio, weight)
        twice = estimate_log_prior(np.concatenate([log_ratio, log_ratio[:10]]), np.ones(50))
        for name in ("log_prior", "lower", "upper", "effective_rows", "separability", "objective"):
            np.testing.assert_allclose(getattr(found, name), getattr(twice, name), rtol=1e-7)

    def test_a_high_concentration_gives_the_uniform_prior_and_1_maximum_likelihood(self):
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


def slow_excess(log_ratio, weight, prior, z2):
    """Excess variance of each group at the maximum of the likelihood, from information by loops with Σ change = 0."""
    n_groups, total = len(prior), sum(weight)
    information, score = np.zeros((n_groups, n_groups)), np.zeros(n_groups)
    for row, omega in zip(log_ratio, weight, strict=True):
        density = math.fsum(p * math.exp(value) for p, value in zip(prior, row, strict=True))
        for i in range(n_groups):
            score[i] += omega * math.exp(row[i]) / density
            for j in range(n_groups):
                information[i, j] += omega * math.exp(row[i] + row[j]) / density**2
    present = [group for group in range(n_groups) if total * prior[group] > 0.01]
    bordered = np.ones((len(present) + 1, len(present) + 1))
    bordered[-1, -1] = 0
    bordered[:-1, :-1] = information[np.ix_(present, present)]
    inverse = np.linalg.inv(bordered)
    excess = np.zeros(n_groups)
    for i, group in enumerate(present):
        excess[group] = total * inverse[i, i] - prior[group] * (1 - prior[group])
    taken = np.zeros(n_groups)
    for group in sorted(set(range(n_groups)) - set(present)):
        side = np.append(information[present, group], 1.0)
        curvature = information[group, group] - side @ inverse @ side
        farthest = max(np.roots([curvature, 2 * (total - score[group]), -z2]))
        excess[group] = max(total * farthest**2 / z2 - z2 / (4 * total), 0.0)
        taken[present] = np.maximum(taken[present], excess[group] * (inverse @ side)[:-1] ** 2)
    return excess + taken, len(present)


def slow_interval(estimate, excess, total, z2):
    """Ends of the values π with N (π̂ − π)² ≤ z² (π (1 − π) + c), by the roots of the quadratic."""
    roots = np.roots([total + z2, -(2 * total * estimate + z2), total * estimate**2 - z2 * excess])
    return max(min(roots), 0.0), min(max(roots), 1.0)


class TestIntervals:
    @pytest.mark.parametrize("concentration", [1.0, 2.0])
    def test_intervals_of_known_groups_are_wilsons(self, concentration):
        group = np.repeat([0, 1, 2], [5, 20, 75])
        log_ratio = np.where(group[:, None] == np.arange(3), 0.0, -1e3)
        found = estimate_log_prior(log_ratio, np.ones(100), concentration=concentration, confidence=0.8)
        lower, upper = wilson_interval([5, 20, 75], [100] * 3, 0.8)
        np.testing.assert_allclose(found.lower, lower, rtol=1e-6)
        np.testing.assert_allclose(found.upper, upper, rtol=1e-6)
        np.testing.assert_allclose(found.effective_rows, 100 + 3 * (concentration - 1), rtol=1e-6)
        np.testing.assert_allclose(found.separability, 1)

    @pytest.mark.parametrize("concentration", [1.0, 1.5, 2.0])
    @pytest.mark.parametrize("log_odds", [12.0, 1e3, np.inf])
    def test_intervals_are_wilsons_if_a_group_is_absent(self, concentration, log_odds):
        group = np.repeat([0, 1], [180, 120])
        log_ratio = np.where(group[:, None] == np.arange(4), 0.0, -log_odds)
        found = estimate_log_prior(log_ratio, np.ones(300), concentration=concentration)
        lower, upper = wilson_interval([180, 120, 0, 0], [300] * 4, 0.9)
        np.testing.assert_allclose(found.lower, lower, rtol=1e-4, atol=1e-9)
        np.testing.assert_allclose(found.upper, upper, rtol=1e-4)
        np.testing.assert_allclose(found.effective_rows, 300 + 4 * (concentration - 1), rtol=1e-3)

    @pytest.mark.parametrize("separation", [8.0, 100.0])
    def test_intervals_of_distant_gaussians_with_two_absent_groups(self, separation):
        log_ratio, group = gaussians([0.5, 0.0, 0.5, 0.0], 300, seed=0, spread=separation)
        found = estimate_log_prior(log_ratio, np.ones(300))
        lower, upper = wilson_interval(np.bincount(group, minlength=4), [300] * 4, 0.9)
        np.testing.assert_allclose(found.lower, lower, atol=0.004)
        np.testing.assert_allclose(found.upper, upper, atol=0.004)

    @pytest.mark.parametrize("weight_of_a_row", [1e-8, 1e-3, 1e6])
    def test_intervals_with_a_group_of_one_sample_of_small_weight(self, weight_of_a_row):
        group = np.repeat([0, 1, 2], [180, 119, 1])
        log_ratio = np.where(group[:, None] == np.arange(3), 0.0, -np.inf)
        weight = weight_of_a_row * np.where(group == 2, 1e-3, 1.0)
        found = estimate_log_prior(log_ratio, weight, concentration=1.0)
        count = np.bincount(group, weights=weight)
        lower, upper = wilson_interval(count, [count.sum()] * 3, 0.9)
        np.testing.assert_allclose(found.lower, lower, rtol=1e-5, atol=1e-8)
        np.testing.assert_allclose(found.upper, upper, rtol=1e-3)  # a sample of weight 0.001 counts as absent

    @pytest.mark.parametrize(
        ("prior", "spread", "n_present"),
        [([0.7, 0.3, 0.0, 0.0], 1.5, 2), ([0.4, 0.3, 0.3], 1.0, 3), ([1.0, 0.0], 3.0, 1)],
    )
    def test_intervals_equal_a_loop(self, prior, spread, n_present):
        log_ratio, _ = gaussians(prior, 80, seed=3, spread=spread)
        weight = np.random.default_rng(1).uniform(0.5, 2, size=80)
        found = estimate_log_prior(log_ratio, weight, concentration=1.0, confidence=0.8, tol=1e-9)
        likely = np.exp(found.log_prior)
        z2 = NormalDist().inv_cdf(0.9) ** 2
        excess, present = slow_excess(log_ratio, weight, likely, z2)
        assert present == n_present
        for group, share in enumerate(likely):
            lower, upper = slow_interval(share, excess[group], weight.sum(), z2)
            assert found.lower[group] == pytest.approx(lower, rel=1e-5, abs=1e-6)
            assert found.upper[group] == pytest.approx(upper, rel=1e-5)

    def test_effective_rows_give_the_variance_over_repeated_draws(self):
        prior = [0.6, 0.3, 0.1]
        parts = [estimate_log_prior(gaussians(prior, 500, seed)[0], np.ones(500)) for seed in range(150)]
        spread = np.std([np.exp(part.log_prior) for part in parts], axis=0)
        variance = np.mean(
            [np.exp(part.log_prior) * -np.expm1(part.log_prior) / part.effective_rows for part in parts], 0
        )
        np.testing.assert_allclose(np.sqrt(variance), spread, rtol=0.15)

    @pytest.mark.parametrize("prior", [[0.7, 0.2, 0.1], [0.9, 0.1, 0.0], [1 / 3, 1 / 3, 1 / 3]])
    def test_intervals_contain_the_truth_at_their_confidence(self, prior):
        held = []
        for seed in range(150):
            found = estimate_log_prior(gaussians(prior, 300, seed)[0], np.ones(300), confidence=0.9)
            held.append((found.lower <= prior) & (prior <= found.upper))
        inner = np.array(prior) > 0
        assert (np.mean(held, axis=0)[~inner] > 0.83).all()  # an absent group's share, 0, is in its interval
        assert (np.mean(held, axis=0)[inner] > 0.83).all()  # 0.9 minus three standard errors
        assert (np.mean(held, axis=0)[inner] < 0.98).all()

    @pytest.mark.parametrize("spread", [2.0, 6.0])
    def test_intervals_contain_rare_groups_and_stay_narrow(self, spread):
        prior = np.array([0.98, 0.01, 0.01, 0.0])
        parts = [estimate_log_prior(gaussians(prior, 300, seed, spread)[0], np.ones(300)) for seed in range(60)]
        held = np.mean([(part.lower <= prior) & (prior <= part.upper) for part in parts], axis=0)
        assert (held > 0.78).all()  # 0.9 minus three standard errors
        width = np.mean([part.upper - part.lower for part in parts], axis=0)
        assert (width < {2.0: 0.07, 6.0: 0.03}[spread]).all()

    def test_groups_that_overlap_and_happen_to_have_no_rows_are_not_ruled_out(self):
        prior, means = np.repeat([0.2, 0.0], 5), 0.5 * np.eye(10)
        held = []
        for seed in range(12):
            rng = np.random.default_rng(seed)
            x = rng.normal(size=(100, 10)) + means[rng.choice(10, size=100, p=prior)]
            found = estimate_log_prior(-0.5 * ((x[:, None] - means) ** 2).sum(axis=2), np.ones(100))
            held.append((found.lower <= prior) & (prior <= found.upper))
        assert np.mean(held, axis=0)[:5].mean() > 0.83

    def test_two_groups_that_look_the_same(self):
        log_ratio, _ = gaussians([0.5, 0.5], 300, seed=0, spread=4.0)
        same = np.column_stack([log_ratio, log_ratio[:, 1]])
        found = estimate_log_prior(same, np.ones(300))
        np.testing.assert_array_equal(confused_pairs(found.separability, 0.1), [[1, 2]])
        np.testing.assert_allclose(found.log_prior[1], found.log_prior[2], atol=1e-3)
        assert (found.upper - found.lower)[0] < 0.12
        assert ((found.upper - found.lower)[1:] > 0.3).all()
        likelihood_alone = estimate_log_prior(same, np.ones(300), concentration=1.0)
        np.testing.assert_array_equal(likelihood_alone.lower[1:], 0)
        np.testing.assert_array_equal(likelihood_alone.upper[1:], 1)
        assert (likelihood_alone.upper - likelihood_alone.lower)[0] < 0.12

    def test_separability_equals_a_loop(self):
        log_ratio, weight = problem(5, n=30, g=3)
        log_prior = np.log([0.5, 0.3, 0.2])
        found = separability(log_ratio, weight, log_prior)
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
