import numpy as np
import pytest

from compshift.core.accuracy import calibration, confidence_bins, expected_calibration_error


def slow_error(confidence, right, n_bins):
    """Sorted rows in bins whose counts differ by one at most, by loops."""
    order = sorted(range(len(confidence)), key=lambda row: confidence[row])
    total, start = 0.0, 0
    for number in range(n_bins):
        end = -(-len(order) * (number + 1) // n_bins)
        rows, start = order[start:end], end
        total += abs(sum(float(right[row]) for row in rows) - sum(confidence[row] for row in rows))
    return total / len(order)


@pytest.mark.parametrize(("n", "n_bins"), [(10, 1), (60, 2), (101, 4), (1000, 15)])
def test_it_equals_a_slow_loop(n, n_bins):
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
    """So that the order of the rows, which labels may have, does not matter."""
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


def test_right_probabilities_are_blamed_once_in_twenty():
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
def test_too_sure_and_not_sure_enough(sharpness, sign):
    rng = np.random.default_rng(1)
    logits = rng.uniform(0, 3, size=2000)
    right = rng.random(2000) < 1 / (1 + np.exp(-logits))
    found = calibration(1 / (1 + np.exp(-sharpness * logits)), right, rng)
    assert found.off
    assert sign * found.overconfidence > 4 * found.overconfidence_error
    assert found.accuracy == right.mean()
