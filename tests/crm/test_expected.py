"""Expected accuracy of unseen groups: regression, intervals, and the rule for few groups."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.model_selection import LeaveOneOut, cross_val_predict

from compshift import AffineHull, CRMClassifierCV, GroupSpace
from compshift.core.affine import extrapolation_leverage
from compshift.crm.expected import HeldOut, _ridge, predict_accuracy

SPACE = GroupSpace.from_cardinalities([5, 5])
SEEN = SPACE.codes(np.setdiff1d(np.arange(25), [0, 6, 12, 18, 24]))
MISSING = SPACE.codes(np.array([0, 6, 12, 18, 24]))
HULL = AffineHull(SPACE, SEEN)


def held_out(accuracy, opinion, hull=HULL):
    leverage = np.full(len(hull.observed), 2.0)
    return HeldOut(accuracy, opinion, leverage, np.full(len(hull.observed), 0.9))


def test_the_fits_opinion_counts_as_far_as_it_was_right():
    rng = np.random.default_rng(0)
    opinion = rng.uniform(0.3, 0.9, size=20)
    wanted = np.array([0.3, 0.45, 0.6, 0.75, 0.9])
    right = held_out(0.1 + 0.9 * opinion, opinion)
    found = predict_accuracy(HULL, MISSING, right, wanted, np.full(5, 2.0), 0.8)
    np.testing.assert_allclose(found.accuracy, 0.1 + 0.9 * wanted, atol=0.03)
    wrong = held_out(rng.uniform(0.3, 0.9, size=20), opinion)
    unsure = predict_accuracy(HULL, MISSING, wrong, wanted, np.full(5, 2.0), 0.8)
    assert np.ptp(unsure.accuracy) < 0.5 * np.ptp(found.accuracy)
    assert (unsure.upper - unsure.lower > 2 * (found.upper - found.lower)).all()


def test_groups_with_a_hard_value_are_expected_to_be_hard():
    accuracy = np.where(SEEN[:, 1] == 3, 0.4, 0.9)
    found = predict_accuracy(HULL, MISSING, held_out(accuracy, np.full(20, 0.7)), np.full(5, 0.7), np.full(5, 2.0), 0.8)
    assert int(np.argmin(found.accuracy)) == 3
    assert found.accuracy[3] < 0.8 < found.accuracy[0]


def test_intervals_cover_at_their_confidence():
    """Accuracies are the opinion plus normal noise; 80 % intervals cover about 80 % of them."""
    rng, hits = np.random.default_rng(1), []
    for _ in range(200):
        opinion, wanted = rng.uniform(0.4, 0.6, size=20), rng.uniform(0.4, 0.6, size=5)
        accuracy = opinion + 0.05 * rng.normal(size=20)
        found = predict_accuracy(HULL, MISSING, held_out(accuracy, opinion), wanted, np.full(5, 2.0), 0.8)
        actual = wanted + 0.05 * rng.normal(size=5)
        hits += ((found.lower <= actual) & (actual <= found.upper)).tolist()
    assert 0.75 <= np.mean(hits) <= 0.9


def test_leave_one_out_errors_equal_refits():
    """Refit a ridge regression with an intercept without each group in turn."""
    rng = np.random.default_rng(2)
    features, accuracy = rng.normal(size=(20, 4)), rng.uniform(size=20)
    features -= features.mean(axis=0)  # then the intercept is the mean
    centre, error = _ridge(features, accuracy, features[:3])
    ridge = Ridge(alpha=1.0)
    np.testing.assert_allclose(centre, ridge.fit(features, accuracy).predict(features[:3]))
    left_out = cross_val_predict(ridge, features, accuracy, cv=LeaveOneOut())
    assert error == pytest.approx(np.sqrt(np.mean((accuracy - left_out) ** 2)), rel=1e-6)


class TestFewGroups:
    space = GroupSpace.from_cardinalities([2, 4])
    hull = AffineHull(space, [[0, 0], [0, 1], [1, 1], [1, 2], [0, 2], [1, 3]])
    missing = np.array([[0, 3], [1, 0]])

    def predict(self, accuracy, seen, spread=0.0):
        held = np.array([np.nan, *accuracy, np.nan])
        left = np.full(6, np.nan)
        for position in range(1, 5):
            others = np.delete(self.hull.observed, position, axis=0)
            left[position] = extrapolation_leverage(
                AffineHull(self.space, others), self.hull.observed[position : position + 1]
            )[0]
        return predict_accuracy(
            self.hull,
            self.missing,
            HeldOut(held, held, left, seen + spread * np.array([-1, 1, 0, 0, 0, 0])),
            np.full(2, 0.5),
            self.leverage,
            0.8,
        )

    @property
    def leverage(self):
        return extrapolation_leverage(self.hull, self.missing)

    def test_accuracy_falls_with_leverage(self):
        """Held-out groups have a leverage of 3 and score .6; seen groups score .87."""
        found = self.predict([0.6] * 4, seen=0.87)
        own = extrapolation_leverage(self.hull, self.hull.observed).mean()
        expected = 0.87 + (0.6 - 0.87) * (self.leverage - own) / (3 - own)
        np.testing.assert_allclose(found.accuracy, expected)
        assert (found.accuracy > 0.6).all()

    def test_accuracy_never_rises_with_leverage(self):
        np.testing.assert_allclose(self.predict([0.9] * 4, seen=0.8).accuracy, 0.9)

    def test_the_interval_width_interpolates_between_seen_and_held_out_groups(self):
        """The variance of an unseen group lies between those of seen and held-out groups, like its leverage."""
        accuracy = [0.5, 0.6, 0.7, 0.6]
        own = extrapolation_leverage(self.hull, self.hull.observed).mean()
        share = (self.leverage - own) / (3 - own)
        assert (share < 0.6).all()
        for spread, seen_variance in ((0.0, 0.0), (0.05, 0.001), (0.5, np.var(accuracy, ddof=1))):
            found = self.predict(accuracy, 0.6, spread)
            variance = seen_variance + share * (np.var(accuracy, ddof=1) - seen_variance)
            half = 1.6377 * np.sqrt(variance * 1.25)  # Student's t of three degrees
            np.testing.assert_allclose(found.upper - found.accuracy, half, rtol=1e-3)


class TestClassesThatAreNeverHeldOut:
    """Nothing is promised for a class of which no group could be held out."""

    def predict(self, lone_seen, n_targets=1, column=0):
        """Return the predictions for the missing groups if value 2 of an attribute was never held out."""
        lone = SEEN[:, column] == 2
        accuracy = np.where(lone, np.nan, 0.8 + 0.02 * (np.arange(20) % 3))
        held = held_out(accuracy, np.where(lone, np.nan, 0.7))
        held = held._replace(seen=np.where(lone, lone_seen, 0.9))
        return predict_accuracy(HULL, MISSING, held, np.full(5, 0.7), np.full(5, 2.0), 0.9, n_targets)

    def test_their_interval_starts_at_0_and_the_others_do_not_change(self):
        found, known = self.predict(0.85), np.arange(5) != 2
        assert found.lower[2] == 0
        assert (found.lower[known] > 0.75).all()
        assert (found.lower <= found.accuracy).all()
        assert (found.accuracy <= found.upper).all()
        assert found.upper[2] == pytest.approx(found.upper[known].mean(), abs=0.02)

    def test_they_are_not_expected_to_be_better_than_their_own_samples(self):
        assert self.predict(0.95).accuracy[2] == pytest.approx(0.82, abs=0.01)
        assert self.predict(0.1).accuracy[2] == pytest.approx(0.1)
        assert self.predict(np.nan).accuracy[2] == pytest.approx(0.82, abs=0.01)  # no samples were held out

    def test_every_target_is_a_class(self):
        """With two targets, a group whose second value was never held out is as uncertain."""
        assert (self.predict(0.3, 1, column=1).lower > 0.7).all()
        found = self.predict(0.3, 2, column=1)
        assert (found.lower[2], found.accuracy[2]) == (0, pytest.approx(0.3))
        assert (np.delete(found.lower, 2) > 0.7).all()

    def test_few_held_out_groups(self):
        space = GroupSpace.from_cardinalities([3, 2])
        hull = AffineHull(space, [[0, 0], [0, 1], [1, 0], [1, 1], [2, 0]])
        accuracy = np.array([0.7, 0.72, 0.74, 0.7, np.nan])
        held = HeldOut(accuracy, accuracy, np.full(5, 3.0), np.array([0.9, 0.9, 0.9, 0.9, 0.2]))
        found = predict_accuracy(hull, np.array([[2, 1]]), held, np.full(1, 0.7), np.full(1, 2.0), 0.9)
        assert (found.lower[0], found.accuracy[0]) == (0, pytest.approx(0.2))
        assert found.upper[0] > 0.7

    @pytest.mark.parametrize("seed", [2, 10])
    def test_simulated_classes_with_one_small_group(self, seed):
        """Class 0 has six samples of one group; additive Gaussians, 6 × 4 groups."""
        rng = np.random.default_rng(seed)
        groups = GroupSpace.from_cardinalities([6, 4]).codes(np.arange(24))
        means = 3 * (rng.normal(size=(6, 20))[groups[:, 0]] + rng.normal(size=(4, 20))[groups[:, 1]]) / np.sqrt(20)
        counts = np.where(groups[:, 0] > 0, 40, 0)
        counts[[0, 7, 18]] = 6, 0, 0  # (1, 3) and (4, 2) are missing too
        index, test = np.repeat(np.arange(24), counts), np.repeat(np.arange(24), 300)
        X, X_test = (means[rows] + rng.normal(size=(len(rows), 20)) for rows in (index, test))
        clf = CRMClassifierCV(prior="hull", anchor="zero", bias="extrapolated")
        clf.fit(X, groups[index, 0], attributes=groups[index, 1])
        right = clf.predict(X_test) == groups[test, 0]
        frame = clf.expected_group_accuracy_
        missing = np.flatnonzero(counts == 0)
        actual = np.array([right[test == group].mean() for group in missing])
        own = groups[missing, 0] == 0
        assert ((frame.lower <= actual) & (actual <= frame.upper)).all()
        assert (actual[own] < frame.upper[own] - 0.2).all()  # far below what other classes suggest
        assert (frame.lower[~own] > 0.5).all()
