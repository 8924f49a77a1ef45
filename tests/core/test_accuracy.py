"""Intervals of proportions, calibration, and the accuracy that a model expects."""

import math

import numpy as np
import pytest

import tests.references as reference
from compshift import CRMClassifier, GroupSpace
from compshift.core.accuracy import (
    calibration,
    confidence_bins,
    expected_calibration_error,
    importance_accuracy,
    wilson_interval,
)


def slow_error(confidence, right, n_bins):
    """Compute the ECE by loops, with sorted samples in bins whose sizes differ by at most one."""
    order = sorted(range(len(confidence)), key=lambda row: confidence[row])
    total, start = 0.0, 0
    for number in range(n_bins):
        end = -(-len(order) * (number + 1) // n_bins)
        rows, start = order[start:end], end
        total += abs(sum(float(right[row]) for row in rows) - sum(confidence[row] for row in rows))
    return total / len(order)


@pytest.mark.parametrize(("n", "n_bins"), [(10, 1), (60, 2), (101, 4), (1000, 15)])
def test_calibration_error_equals_a_loop(n, n_bins):
    rng = np.random.default_rng(n)
    confidence, right = rng.uniform(0.5, 1, size=n), rng.random(n) < 0.8
    bins = confidence_bins(confidence)
    counts = np.bincount(bins)
    assert len(counts) == n_bins
    assert counts.max() - counts.min() <= 1
    assert all(confidence[bins == b].max() <= confidence[bins == b + 1].min() for b in range(n_bins - 1))
    found = calibration(confidence, right, np.random.default_rng(0), n_draws=5)
    assert found.error == pytest.approx(slow_error(confidence, right, n_bins))


def test_equal_confidences_share_a_bin():
    """The error then does not depend on the order of the rows, which may follow the labels."""
    right = np.r_[np.ones(800, dtype=bool), np.zeros(200, dtype=bool)]
    found = calibration(np.full(1000, 0.8), right, np.random.default_rng(0))
    assert found.error == pytest.approx(0.0, abs=1e-12)
    assert not found.off
    rng = np.random.default_rng(1)
    confidence = rng.choice([0.6, 0.7, 0.9], size=1000) + rng.uniform(-1e-15, 1e-15, size=1000)
    bins = confidence_bins(confidence)
    assert len(np.unique(bins)) == 3
    order = rng.permutation(1000)
    np.testing.assert_array_equal(confidence_bins(confidence[order]), bins[order])


def test_each_row_of_outcomes_has_its_error():
    confidence, bins = np.array([0.5, 0.75, 1.0]), np.array([0, 0, 1])
    right = np.array([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(expected_calibration_error(confidence, right, bins), [0.75 / 3, 2.25 / 3])


def test_correct_probabilities_are_reported_as_off_one_time_in_twenty():
    rng = np.random.default_rng(0)
    blamed, errors, noises = [], [], []
    for _ in range(200):
        confidence = rng.uniform(0.5, 1, size=300)
        found = calibration(confidence, rng.random(300) < confidence, rng, n_draws=100)
        blamed.append(found.off)
        errors.append(found.error)
        noises.append(found.noise)
    assert 0.01 < np.mean(blamed) < 0.11
    np.testing.assert_allclose(np.mean(errors), np.mean(noises), rtol=0.05)


@pytest.mark.parametrize(("sharpness", "sign"), [(3.0, 1), (0.4, -1)])
def test_overconfident_and_underconfident_probabilities_are_detected(sharpness, sign):
    rng = np.random.default_rng(1)
    logits = rng.uniform(0, 3, size=2000)
    right = rng.random(2000) < 1 / (1 + np.exp(-logits))
    found = calibration(1 / (1 + np.exp(-sharpness * logits)), right, rng)
    assert found.off
    assert sign * found.overconfidence > 4 * found.overconfidence_error
    assert found.accuracy == right.mean()


SPACE = GroupSpace.from_cardinalities([2, 3])
GROUPS = SPACE.codes(np.arange(6))


@pytest.mark.parametrize("n_targets", [1, 2])
def test_expected_accuracy_equals_a_loop(n_targets):
    rng = np.random.default_rng(0)
    energies, evidence, weight = rng.normal(size=(20, 5)), rng.normal(size=20), rng.uniform(0.5, 2, size=20)
    marginals = [np.log(rng.dirichlet(np.ones(size), size=20)) for size in (2, 3)[:n_targets]]
    found = importance_accuracy(SPACE, GROUPS, energies, evidence, weight, marginals)
    for group, value in zip(GROUPS, found, strict=True):
        top = bottom = 0.0
        for x in range(20):
            w = weight[x] * math.exp(-reference.group_energy(energies[x], (2, 3), group) - evidence[x])
            bottom += w
            top += w * math.exp(sum(marginals[target][x, group[target]] for target in range(n_targets)))
        assert value == pytest.approx(top / bottom, rel=1e-10)


def test_a_correct_model_expects_its_true_accuracy():
    """On well-specified Gaussians, the expected accuracy of a dropped group equals its true accuracy."""
    rng = np.random.default_rng(1)
    means = rng.normal(size=(5, 3))
    codes = SPACE.codes(rng.choice([1, 2, 3, 4, 5], size=6000))
    X = SPACE.one_hot(codes) @ means + rng.normal(size=(6000, 3))
    clf = CRMClassifier(1e-4).fit(X, codes[:, 0], attributes=codes[:, 1])
    model = clf._model
    energies = (X - clf.feature_mean_) @ clf.coef_.T
    log_score = np.log(clf.group_weight_[clf.seen_] / 6000) - clf.learned_bias_[clf.seen_]
    evidence = np.array([reference.log_evidence(row, (2, 3), GROUPS[clf.seen_], log_score) for row in energies])
    marginals = model.marginals(X, clf.log_prior_ - clf.bias_, range(1))
    found = importance_accuracy(SPACE, GROUPS[:1], energies, evidence, np.ones(6000), marginals)[0]
    new = means[0] + means[2] + rng.normal(size=(4000, 3))
    assert found == pytest.approx(clf.predict_proba(new)[:, 0].mean(), abs=0.05)


def test_expected_accuracy_does_not_depend_on_shifts():
    rng = np.random.default_rng(2)
    energies, evidence = rng.normal(size=(20, 5)), rng.normal(size=20)
    marginals = [np.log(rng.dirichlet(np.ones(2), size=20))]
    plain = importance_accuracy(SPACE, GROUPS, energies, evidence, np.ones(20), marginals)
    far = importance_accuracy(SPACE, GROUPS, energies + 1e4, evidence - 2e4, np.ones(20), marginals)
    np.testing.assert_allclose(far, plain, rtol=1e-6)


class TestWilson:
    def test_known_values(self):
        # 81 of 263: Newcombe (1998), table I, Wilson without continuity correction.
        lower, upper = wilson_interval(np.array([81, 15, 0, 1]), np.array([263, 148, 20, 29]), 0.95)
        np.testing.assert_allclose(lower, [0.2553, 0.0624, 0.0000, 0.0061], atol=5e-5)
        np.testing.assert_allclose(upper, [0.3662, 0.1605, 0.1611, 0.1718], atol=5e-5)

    def test_no_trials(self):
        lower, upper = wilson_interval(np.array([0]), np.array([0]), 0.95)
        assert np.isnan(lower[0])
        assert np.isnan(upper[0])


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99])
def test_wilson_intervals_contain_the_share_itself(confidence):
    trials = np.arange(1, 3000)
    for right in (np.zeros_like(trials), trials // 2, trials):
        lower, upper = wilson_interval(right, trials, confidence)
        assert (lower <= right / trials).all()
        assert (upper >= right / trials).all()
    assert (wilson_interval(trials, trials, confidence)[1] == 1).all()
    assert (wilson_interval(0 * trials, trials, confidence)[0] == 0).all()
