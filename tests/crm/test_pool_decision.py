"""The decision whether a pool of unlabelled samples is used."""

import numpy as np
import pytest

from compshift import CRMClassifierCV, GroupSpace, InputError
from compshift.core.energy import linear_energies
from compshift.crm.coded import coded_samples
from compshift.crm.expected import with_gain
from compshift.crm.fit import FitParams, StandardisedRows, step_one
from compshift.crm.pool_decision import MIN_DISTANCE, excess_distance, near_share, unseen_share, verdict

SPACE = GroupSpace.from_cardinalities([4, 4], names=["y", "a"])
UNSEEN = [0, 5, 10]
SEEN = [group for group in range(16) if group not in UNSEEN]
_FIXED = np.random.default_rng(99)
ADDITIVE = SPACE.one_hot(SPACE.codes(np.arange(16))) @ (0.5 * _FIXED.normal(size=(8, 10)))
MEANS = ADDITIVE + 0.4 * _FIXED.normal(size=ADDITIVE.shape)  # attributes interact, so that a pool can help


def samples(groups, n, seed, means=MEANS):
    rng = np.random.default_rng(seed)
    index = np.asarray(groups)[rng.integers(len(groups), size=n)]
    return means[index] + rng.normal(size=(n, 10)), SPACE.codes(index)


def fit(pool, **options):
    X, codes = samples(SEEN, 650, 0)
    clf = CRMClassifierCV(alphas=[0.03], prior="hull", anchor="zero", bias="extrapolated", **options)
    return clf.fit(X, codes[:, 0], attributes=codes[:, 1], space=SPACE, unlabelled=pool)


@pytest.fixture(scope="module")
def matched():
    return fit(samples(range(16), 800, 1)[0])


class TestDecision:
    def test_a_pool_with_the_unseen_groups_is_used_and_helps(self, matched):
        decision = matched.unlabelled_decision_
        assert decision.used
        assert decision.gain > decision.gain_error
        assert decision.reason.startswith("the pool is used: accuracy on 13 held-out groups changes by +")
        assert decision.unseen_share[1] > decision.false_share
        assert decision.excess_distance < 0
        assert len(decision.held_out) == len(decision.seen) == 11
        X_new, new = samples(UNSEEN, 3000, 2)
        assert matched.score(X_new, new[:, 0]) > matched.without_unlabelled().score(X_new, new[:, 0])

    def test_held_out_scores_are_those_of_the_rounds(self, matched):
        decision = matched.unlabelled_decision_
        best = 1 + int(
            np.argmax(np.round((3 * np.array(decision.held_out) + 13 * np.array(decision.seen)) / 16, 9)[1:])
        )
        assert decision.gain == pytest.approx(decision.held_out[best] - decision.held_out[0])

    def test_a_pool_of_seen_groups_is_not_used(self):
        clf = fit(samples(SEEN, 800, 1)[0])
        decision = clf.unlabelled_decision_
        assert not decision.used
        assert "unseen groups may not occur in it" in decision.reason
        assert clf.n_rounds_ == 0
        assert len(clf.unlabelled_prior_) == 16

    @pytest.mark.parametrize("kind", ["noise", "one point", "far away"])
    def test_a_pool_of_other_samples_is_not_used(self, kind):
        X, rng = samples(SEEN, 650, 0)[0], np.random.default_rng(3)
        pool = {
            "noise": X.mean(axis=0) + X.std(axis=0) * rng.normal(size=(800, 10)),
            "one point": np.tile(X[:1], (800, 1)),
            "far away": X.mean(axis=0) + 100 + rng.normal(size=(800, 10)),
        }[kind]
        assert not fit(pool).unlabelled_decision_.used

    @pytest.mark.parametrize(
        ("distance", "shifted", "because"),
        [
            (4.0, slice(None), "only 0.0% of them are as close to training samples as half"),
            (1e150, slice(None), "only 0.0% of them are as close to training samples as half"),
            (4.0, slice(300, None), "their distance to the nearest training samples is"),
        ],
    )
    def test_a_pool_far_away_is_not_used(self, distance, shifted, because):
        """Shifted along a direction in which training hardly varies, so the energies see nothing odd."""
        X, codes = samples(SEEN, 650, 0)
        pool, _ = samples(range(16), 800, 1)
        flat = 0.1 * np.random.default_rng(2).normal(size=(len(X) + len(pool), 1))
        X, pool = np.hstack([X, flat[: len(X)]]), np.hstack([pool, flat[len(X) :]])
        pool[shifted, -1] += distance
        clf = CRMClassifierCV(alphas=[0.03], prior="hull", anchor="zero", bias="extrapolated")
        decision = clf.fit(X, codes[:, 0], attributes=codes[:, 1], space=SPACE, unlabelled=pool).unlabelled_decision_
        assert not decision.used
        assert decision.reason.startswith(
            f"the pool is not used: its samples may be of another kind, because {because}"
        )

    def test_without_unseen_groups_there_is_nothing_to_learn(self):
        X, codes = samples(range(16), 600, 0)
        clf = CRMClassifierCV(alphas=[0.03]).fit(X, codes[:, 0], attributes=codes[:, 1], unlabelled=X)
        assert clf.unlabelled_decision_.reason == "the pool is not used: training has every group inside the hull"

    def test_it_is_asked_for_by_name_where_no_group_can_be_held_out(self):
        rng = np.random.default_rng(0)
        codes = np.repeat([[0, 1], [1, 0], [1, 1]], 60, axis=0)
        X = rng.normal(size=(180, 4)) + 2 * codes @ rng.normal(size=(2, 4))
        for use, expected in (("auto", False), ("always", True)):
            clf = CRMClassifierCV(use_unlabelled=use).fit(X, codes[:, 0], attributes=codes[:, 1], unlabelled=X)
            assert clf.unlabelled_decision_.used is expected
            assert (clf.n_rounds_ > 0) is expected
        with pytest.raises(InputError, match="use_unlabelled"):
            CRMClassifierCV(use_unlabelled="never").fit(X, codes[:, 0], attributes=codes[:, 1])

    def test_held_out_groups_are_possible_under_the_training_prior(self, matched):
        X, codes = samples(SEEN, 650, 0)
        clf = CRMClassifierCV(alphas=[0.03], prior="train", anchor="zero", bias="extrapolated")
        clf.fit(X, codes[:, 0], attributes=codes[:, 1], space=SPACE, unlabelled=samples(range(16), 800, 1)[0])
        assert clf.unlabelled_decision_ == matched.unlabelled_decision_

    def test_processes_give_the_same_decision(self, matched):
        again = fit(samples(range(16), 800, 1)[0], n_jobs=2)
        assert again.unlabelled_decision_ == matched.unlabelled_decision_


class TestVerdict:
    """Rounds 0 to 2; four groups were held out, and eight seen groups stand beside four unseen ones."""

    def judge(self, held_out, seen=(0.8, 0.8, 0.8)):
        accuracy = np.full((3, 2, 6), np.nan)
        accuracy[:, 0, :4] = held_out
        accuracy[:, 1, 2:] = np.array(seen)[:, None]
        return verdict(accuracy, 4, 8)

    def test_a_gain_of_more_than_its_standard_error_is_enough(self):
        gains = np.array([0.01, 0.02, 0.03, 0.04])
        decision = self.judge(0.5 + np.outer([0, 1, 0.5], gains))
        assert decision.used
        assert decision.gain == pytest.approx(0.025)
        assert decision.gain_error == pytest.approx(np.std(gains, ddof=1) / 2)
        assert decision.held_out == pytest.approx((0.5, 0.525, 0.5125))

    def test_a_gain_within_its_standard_error_is_not(self):
        decision = self.judge(0.5 + np.outer([0, 1, 0], [0.3, -0.1, -0.1, 0.0]))
        assert not decision.used
        assert "+2.5 ± 9.5 points, which is no clear gain" in decision.reason

    def test_seen_groups_may_not_lose_more_than_unseen_groups_gain(self):
        held_out = 0.5 + np.outer([0, 1, 1], [0.04, 0.04, 0.05, 0.05])
        assert self.judge(held_out, seen=(0.8, 0.79, 0.79)).used
        decision = self.judge(held_out, seen=(0.8, 0.77, 0.77))
        assert not decision.used
        assert "+4.5 ± 0.3 points, but on the other groups by -3.0" in decision.reason

    def test_one_held_out_group_is_too_few(self):
        accuracy = np.full((3, 2, 2), np.nan)
        accuracy[:, 0, 0] = [0.1, 0.9, 0.9]
        assert "one held-out group is too little" in verdict(accuracy, 1, 2).reason


class TestNearShare:
    def test_it_equals_a_loop(self):
        rng = np.random.default_rng(0)
        train, pool = rng.normal(size=(31, 3)), 2 * rng.normal(size=(40, 3))

        def distance(row, others):
            return np.mean(sorted(np.linalg.norm(others - row, axis=1))[:5])

        median = np.median([distance(row, np.delete(train, i, axis=0)) for i, row in enumerate(train)])
        expected = np.mean([distance(row, train) <= median for row in pool])
        assert 0 < expected < 1
        assert near_share(pool, train) == pytest.approx(expected)

    def test_it_is_a_half_of_samples_like_those_of_training(self):
        rng = np.random.default_rng(0)
        train, pool = (rng.normal(size=(n, 2)) for n in (9000, 9000))
        assert near_share(pool, train) == pytest.approx(0.5, abs=0.05)
        assert near_share(pool + 10, train) == 0


class TestExcessDistance:
    def test_it_equals_a_loop(self):
        rng = np.random.default_rng(0)
        train, pool, held_out = (rng.normal(size=(n, 3)) for n in (30, 7, 9))

        def logs(part):
            near = [sorted(np.linalg.norm(train - row, axis=1))[:5] for row in part]
            return [np.log(np.mean(row)) for row in near]

        found, error = excess_distance(pool, held_out, train)
        assert found == pytest.approx(np.mean(logs(pool)) - np.mean(logs(held_out)))
        assert error == pytest.approx(np.sqrt(np.var(logs(pool)) / 7 + np.var(logs(held_out)) / 9))

    def test_copies_of_training_samples_have_the_smallest_distance(self):
        train = np.repeat([[0.0, 0.0], [3.0, 4.0]], 5, axis=0)
        found, _ = excess_distance(train, np.array([[3.0, 0.0]]), train)
        assert found == pytest.approx(np.log(MIN_DISTANCE * np.sqrt(2) / 3))

    def test_many_samples_are_thinned(self):
        rng = np.random.default_rng(0)
        train, pool, held_out = (rng.normal(size=(n, 2)) for n in (9000, 9000, 4100))
        assert excess_distance(pool, held_out, train)[0] == pytest.approx(0, abs=0.1)
        assert excess_distance(3 * pool, held_out, train)[0] > 0.5


def test_the_share_of_unseen_groups_is_estimated():
    X, codes = samples(SEEN, 2000, 0, 2 * ADDITIVE)
    data = coded_samples(X, codes, SPACE)
    rows = StandardisedRows.of(data.X, data.position, data.sample_weight, data.candidates)
    fitted = step_one(rows, FitParams(0.003), tol=1e-5, max_iter=500)
    pool, truth = samples([*SEEN, *UNSEEN, *UNSEEN], 3000, 4, 2 * ADDITIVE)
    true = np.isin(SPACE.index(truth), UNSEEN).mean()
    share, lower, upper = unseen_share(
        linear_energies(rows.standard.of(pool), fitted.solution.weight), data.candidates, fitted
    )
    assert share == pytest.approx(true, abs=0.1)
    assert lower < share < upper
    assert upper - lower < 0.15


class TestExpectedAccuracy:
    def test_the_gain_is_added(self, matched):
        plain, decision = matched.without_unlabelled(), matched.unlabelled_decision_
        before, after = plain.expected_group_accuracy_, matched.expected_group_accuracy_
        np.testing.assert_allclose(after.accuracy, np.minimum(before.accuracy + decision.gain, 1.0))

    def test_intervals_grow_by_the_error_of_the_gain(self):
        found = with_gain(np.array([[0.5, 0.4, 0.6], [np.nan] * 3]), 0.1, 0.05, 0.9)
        np.testing.assert_allclose(
            found[0], [0.6, 0.6 - np.hypot(0.1, 1.6449 * 0.05), 0.6 + np.hypot(0.1, 1.6449 * 0.05)], atol=1e-4
        )
        assert np.isnan(found[1]).all()

    def test_it_is_unknown_if_the_gain_was_not_measured(self):
        clf = fit(samples(range(16), 300, 1)[0], use_unlabelled="always")
        assert clf.expected_group_accuracy_.empty
        assert not clf.without_unlabelled().expected_group_accuracy_.empty
