"""Scorers and splitters of CRMClassifierCV, against fits and scores computed by hand."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.metrics import f1_score, make_scorer
from sklearn.model_selection import GroupKFold, KFold, LeaveOneGroupOut

from compshift import CombinationKFold, CRMClassifier, CRMClassifierCV, InputError
from compshift.crm.held_out import row_parts
from compshift.crm.inputs import seed_of
from tests.crm.test_cv import PLAIN, SPACE, make_data

ALPHAS = [1e-2, 1e-1]


def fold_scores(X, codes, splits, alpha, score, weight=None):
    """Return ``score(clf, test)`` of a separate fit without each fold and one part of the other samples."""
    part = row_parts(SPACE.distinct(codes)[1], seed_of(0))
    found = []
    for number, (train, test) in enumerate(splits):
        rows = np.array([row for row in train if part[row] != number % 5])
        clf = CRMClassifier(alpha, tol=1e-7)
        own = None if weight is None else weight[rows]
        clf.fit(X[rows], codes[rows, 0], attributes=codes[rows, 1], sample_weight=own)
        found.append(score(clf, test))
    return found


def combination_splits(X, codes):
    """Return the splits that an integer ``cv`` makes."""
    return list(CombinationKFold(5, random_state=seed_of(0)).split(X, codes[:, 0], codes[:, 1]))


class TestScoring:
    def test_a_scorer_by_name_equals_separate_fits(self):
        X, codes = make_data(n=600)
        clf = CRMClassifierCV(ALPHAS, scoring="f1_weighted", **PLAIN).fit(X, codes[:, 0], attributes=codes[:, 1])

        def score(single, test):
            return f1_score(codes[test, 0], single.predict(X[test]), average="weighted")

        for which, alpha in enumerate(ALPHAS):
            scores = fold_scores(X, codes, combination_splits(X, codes), alpha, score)
            assert clf.cv_results_["mean_test_score"][which] == pytest.approx(np.mean(scores), abs=0.02)
            assert clf.cv_results_["std_test_score"][which] == pytest.approx(np.std(scores), abs=0.02)
        assert clf.alpha_ == ALPHAS[int(np.argmax(clf.cv_results_["mean_test_score"]))]

    def test_a_callable_is_given_a_classifier_and_the_held_out_samples(self):
        X, codes = make_data(n=400)
        calls = []

        def scorer(estimator, X_test, y_test):
            calls.append((estimator, X_test, y_test))
            return float(estimator.score(X_test, y_test))

        clf = CRMClassifierCV(ALPHAS, scoring=scorer, **PLAIN).fit(X, codes[:, 0], attributes=codes[:, 1])
        assert len(calls) == 10
        assert all(isinstance(estimator, CRMClassifier) for estimator, _, _ in calls)
        for (_, X_test, y_test), (_, test) in zip(calls[::2], combination_splits(X, codes), strict=True):
            np.testing.assert_array_equal(X_test, X[test])
            np.testing.assert_array_equal(y_test, codes[test, 0])
        of_strong = np.array([float(estimator.score(X_test, y)) for estimator, X_test, y in calls[::2]])
        assert clf.cv_results_["mean_test_score"][1] == pytest.approx(of_strong.mean())

    def test_a_scorer_decides_instead_of_accuracy(self):
        X, codes = make_data(n=400)
        for sign in (1, -1):
            scorer = make_scorer(lambda y_true, y_pred, sign=sign: sign * np.mean(y_true == y_pred))
            clf = CRMClassifierCV([1e-1, 10.0], scoring=scorer, **PLAIN).fit(X, codes[:, 0], attributes=codes[:, 1])
            best = int(np.argmax(sign * clf.cv_results_["unseen_accuracy"]))
            assert clf.alpha_ == [1e-1, 10.0][best]

    def test_weights_are_passed_to_scorers(self):
        X, codes = make_data(n=600)
        weight = np.random.default_rng(0).uniform(0.2, 3, size=600)
        clf = CRMClassifierCV([1e-1], scoring="f1_weighted", **PLAIN)
        clf.fit(X, codes[:, 0], attributes=codes[:, 1], sample_weight=weight)

        def score(single, test):
            return f1_score(codes[test, 0], single.predict(X[test]), average="weighted", sample_weight=weight[test])

        scores = fold_scores(X, codes, combination_splits(X, codes), 0.1, score, weight)
        assert clf.cv_results_["mean_test_score"][0] == pytest.approx(np.mean(scores), abs=0.02)

    def test_equal_weights_are_not_passed(self):
        X, codes = make_data(n=400)

        def scorer(estimator, X_test, y_test):
            return estimator.score(X_test, y_test)

        clf = CRMClassifierCV([1e-1], scoring=scorer, **PLAIN)
        clf.fit(X, codes[:, 0], attributes=codes[:, 1], sample_weight=np.full(400, 2.0))
        with pytest.raises(
            InputError, match=r"scoring failed on a fold .*accepts sample_weight if samples are weighted"
        ):
            clf.fit(X, codes[:, 0], attributes=codes[:, 1], sample_weight=np.linspace(1, 2, 400))

    def test_several_targets_are_given_as_columns(self):
        X, codes = make_data(n=500)
        shapes = []

        def scorer(estimator, X_test, y_test):
            shapes.append(y_test.shape[1])
            return float((estimator.predict(X_test) == y_test).all(axis=1).mean())

        clf = CRMClassifierCV([1e-1], scoring=scorer, **PLAIN).fit(X, codes)
        assert shapes == [2] * 5
        plain = clone(clf).set_params(scoring="accuracy").fit(X, codes)
        assert clf.cv_results_["mean_test_score"] == pytest.approx(plain.cv_results_["mean_test_score"], abs=0.05)

    def test_scorers_see_the_prior_of_the_classifier(self):
        X, codes = make_data(n=400)
        prior = np.full((4, 4), 0.01)
        prior[:, 1] = (1 - 0.12) / 4

        clf = CRMClassifierCV([1e-1], scoring=lambda clf, *_: float(np.exp(clf.log_prior_).max()), prior=prior, **PLAIN)
        clf.fit(X, codes[:, 0], attributes=codes[:, 1])
        assert clf.cv_results_["mean_test_score"] == pytest.approx(0.22)

    @pytest.mark.parametrize("result", [np.nan, np.inf, "good", None, np.ones(2)])
    def test_a_score_that_is_not_a_finite_number_raises(self, result):
        X, codes = make_data(n=300, p=5)
        clf = CRMClassifierCV([1e-1], scoring=lambda *_: result, **PLAIN)
        with pytest.raises(
            InputError, match=r"scoring returned .* on a fold of held-out groups: pass a scorer that returns a finite"
        ):
            clf.fit(X, codes[:, 0], attributes=codes[:, 1])


class TestSplits:
    def test_a_combination_k_fold_is_used_as_given(self):
        X, codes = make_data(n=400)
        splitter = CombinationKFold(3, random_state=7)
        clf = CRMClassifierCV([1e-1], cv=splitter, **PLAIN).fit(X, codes[:, 0], attributes=codes[:, 1])
        assert clf.n_splits_ == 3
        listed = clone(clf).set_params(cv=list(splitter.split(X, codes[:, 0], codes[:, 1])))
        listed.fit(X, codes[:, 0], attributes=codes[:, 1])
        np.testing.assert_array_equal(listed.cv_results_["group_accuracy"], clf.cv_results_["group_accuracy"])

    def test_a_number_of_folds_makes_a_seeded_combination_k_fold(self):
        X, codes = make_data(n=400)
        number, splitter = (
            CRMClassifierCV([1e-1], cv=cv, **PLAIN).fit(X, codes[:, 0], attributes=codes[:, 1])
            for cv in (4, CombinationKFold(4, random_state=seed_of(0)))
        )
        assert number.n_splits_ == 4
        np.testing.assert_array_equal(number.cv_results_["group_accuracy"], splitter.cv_results_["group_accuracy"])

    def test_leave_one_group_out_holds_out_every_combination(self):
        X, codes = make_data(n=400)
        clf = CRMClassifierCV([1e-1], cv=LeaveOneGroupOut(), **PLAIN).fit(X, codes[:, 0], attributes=codes[:, 1])
        assert clf.n_splits_ == 13
        groups, position = SPACE.distinct(codes)
        splits = [(np.flatnonzero(position != own), np.flatnonzero(position == own)) for own in range(len(groups))]
        scores = fold_scores(
            X, codes, splits, 0.1, lambda single, test: (single.predict(X[test]) == codes[test, 0]).mean()
        )
        np.testing.assert_allclose(clf.cv_results_["group_accuracy"][0], scores, atol=0.06)

    def test_a_splitter_by_groups_and_an_iterator_are_accepted(self):
        X, codes = make_data(n=400)
        by_groups = CRMClassifierCV([1e-1], cv=GroupKFold(6), **PLAIN).fit(X, codes[:, 0], attributes=codes[:, 1])
        assert by_groups.n_splits_ == 6
        position = SPACE.distinct(codes)[1]
        splits = ((np.flatnonzero(position != group), np.flatnonzero(position == group)) for group in (2, 5))
        few = CRMClassifierCV([1e-1], cv=splits, **PLAIN).fit(X, codes[:, 0], attributes=codes[:, 1])
        assert few.n_splits_ == 2
        assert np.flatnonzero(~np.isnan(few.cv_results_["group_accuracy"][0])).tolist() == [2, 5]
        assert few.cv_results_["unseen_accuracy"] == pytest.approx(few.cv_results_["group_accuracy"][0, [2, 5]].mean())

    @pytest.mark.filterwarnings("ignore:The groups parameter is ignored by KFold")
    def test_splits_that_hold_out_no_whole_group_raise(self):
        X, codes = make_data(n=400)
        with pytest.raises(InputError, match="split 0 of cv holds out no whole group: use CombinationKFold"):
            CRMClassifierCV(cv=KFold(3, shuffle=True, random_state=0)).fit(X, codes[:, 0], attributes=codes[:, 1])

    def test_a_group_that_is_held_out_twice_raises(self):
        X, codes = make_data(n=400)
        position = SPACE.distinct(codes)[1]
        split = (np.flatnonzero(position != 2), np.flatnonzero(position == 2))
        with pytest.raises(InputError, match=r"cv holds out \(0, 3\) in two splits: hold out each combination in one"):
            CRMClassifierCV(cv=[split, split]).fit(X, codes[:, 0], attributes=codes[:, 1])

    def test_listed_splits_count_the_rows_given_even_if_some_are_left_out(self):
        X, codes = make_data(n=400)
        position = SPACE.distinct(codes)[1]
        splits = [(np.flatnonzero(position != own), np.flatnonzero(position == own)) for own in (2, 5)]
        junk = np.arange(50)
        shifted = [(np.concatenate([junk, train + 50]), test + 50) for train, test in splits]
        y, attributes = np.concatenate([codes[:50], codes]).T.astype(float)
        plain = CRMClassifierCV([1e-1], cv=splits, **PLAIN).fit(X, codes[:, 0], attributes=codes[:, 1])
        with_junk = clone(plain).set_params(cv=shifted)
        for given in (
            {"attributes": attributes, "sample_weight": np.r_[np.zeros(50), np.ones(400)]},
            {"attributes": np.where(np.arange(450) < 50, np.nan, attributes)},
        ):
            with_junk.fit(np.concatenate([X[:50], X]), y.astype(int), **given)
            found = with_junk.cv_results_["group_accuracy"]
            np.testing.assert_array_equal(found, plain.cv_results_["group_accuracy"])

    @pytest.mark.parametrize("splits", [[], [np.arange(3)], [(np.arange(3), np.arange(3) + 10**6)], ["ab"]])
    def test_splits_that_cannot_be_read_raise(self, splits):
        X, codes = make_data(n=400)
        with pytest.raises(InputError, match=r"cv (has no splits|yields splits that cannot be used)"):
            CRMClassifierCV(cv=splits).fit(X, codes[:, 0], attributes=codes[:, 1])
