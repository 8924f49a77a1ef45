"""CRMClassifierCV: the choice of settings on held-out combinations, and the expected accuracy of unseen groups."""

import copy

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import compshift
from compshift import AffineHull, CombinationKFold, CRMClassifier, CRMClassifierCV, GroupSpace, InputError
from compshift.crm.held_out import row_parts

SPACE = GroupSpace.from_cardinalities([4, 4])


def make_data(n=900, p=30, missing=(0, 5, 10), signal=1.3, seed=0, space=SPACE):
    """Additive means in a few of many dimensions; the groups with the ``missing`` flat indices have no samples."""
    rng = np.random.default_rng(seed)
    codes = space.codes(rng.choice(np.setdiff1d(np.arange(space.n_groups), missing), size=n))
    means = signal * np.random.default_rng(99).normal(size=(space.width, p)) / np.sqrt(2)
    return space.one_hot(codes) @ means + rng.normal(size=(n, p)) * 2, codes


def fresh(groups, n=4000, **options):
    """Return only the samples of some groups."""
    others = np.setdiff1d(np.arange(SPACE.n_groups), groups)
    return make_data(n=n, missing=others, seed=1, **options)


PLAIN = {"bias": "extrapolated", "anchor": "zero"}
"""Settings of a plain CRMClassifier, so that only alpha is chosen."""


@pytest.fixture(scope="module")
def fitted():
    X, codes = make_data()
    return CRMClassifierCV(**PLAIN).fit(X, codes[:, 0], attributes=codes[:, 1]), X, codes


class TestChoice:
    def test_the_chosen_alpha_scores_best_and_is_fitted_to_all_samples(self, fitted):
        clf, X, codes = fitted
        results = clf.cv_results_
        assert clf.alpha_ == results["param_alpha"][np.argmax(results["mean_test_score"])]
        assert clf.n_splits_ == 5
        plain = CRMClassifier(clf.alpha_).fit(X, codes[:, 0], attributes=codes[:, 1])
        np.testing.assert_allclose(clf.coef_, plain.coef_, atol=1e-9)
        assert clf.unseen_offset_ != 0
        plain.set_params(unseen_offset=clf.unseen_offset_)
        np.testing.assert_allclose(clf.predict_proba(X), plain.predict_proba(X), atol=1e-9)

    def test_auto_settings_are_those_that_a_plain_classifier_can_be_given(self):
        X, codes = make_data(n=500)
        clf = CRMClassifierCV([3e-2], cross_fit="auto").fit(X, codes[:, 0], attributes=codes[:, 1])
        assert clf.selected_bias_ in ("extrapolated", "cumulant", "shrunk")
        settings = {"anchor": clf.anchor_, "cross_fit": clf.cross_fit_ or False, "unseen_offset": clf.unseen_offset_}
        plain = CRMClassifier(clf.alpha_, bias=clf.selected_bias_, **settings)
        plain.fit(X, codes[:, 0], attributes=codes[:, 1])
        np.testing.assert_allclose(clf.predict_proba(X), plain.predict_proba(X), atol=1e-8)

    def test_scores_equal_those_of_separate_fits_without_warm_starts(self, fitted):
        clf, X, codes = fitted
        which = len(clf.cv_results_["params"]) - 2
        alpha = clf.cv_results_["param_alpha"][which]
        groups, position = SPACE.distinct(codes)
        seed = int(np.random.RandomState(0).randint(2**31))
        part = row_parts(position, seed)
        folds = CombinationKFold(5, random_state=seed).split(X, codes[:, 0], codes[:, 1])
        for number, (train, test) in enumerate(folds):
            rows = np.array([row for row in train if part[row] != number])
            single = CRMClassifier(alpha, prior="hull", tol=1e-7)
            single.fit(X[rows], codes[rows, 0], attributes=codes[rows, 1])
            right = single.predict(X[test]) == codes[test, 0]
            for group in np.unique(position[test]):
                own = right[position[test] == group].mean()
                assert clf.cv_results_["group_accuracy"][which, group] == pytest.approx(own, abs=0.03)
        assert not np.isnan(clf.cv_results_["group_accuracy"]).any()
        assert len(groups) == 13

    def test_a_moderate_alpha_is_chosen_where_the_extremes_are_bad(self):
        X, codes = make_data()
        clf = CRMClassifierCV([1e-6, 3e-2, 1e4]).fit(X, codes[:, 0], attributes=codes[:, 1])
        assert clf.alpha_ == 3e-2

    def test_a_second_fit_in_two_processes_gives_the_same(self, fitted):
        clf, X, codes = fitted
        again = clone(clf).set_params(n_jobs=2).fit(X, codes[:, 0], attributes=codes[:, 1])
        for name, values in clf.cv_results_.items():
            np.testing.assert_array_equal(values, again.cv_results_[name])
        np.testing.assert_array_equal(clf.coef_, again.coef_)
        pd.testing.assert_frame_equal(clf.expected_group_accuracy_, again.expected_group_accuracy_)

    def test_the_gaussian_anchor_is_chosen_where_it_is_better(self):
        """Few groups of true Gaussians that are far apart."""
        space = GroupSpace.from_cardinalities([8, 8])
        rng = np.random.default_rng(2)
        seen = next(
            part
            for part in (rng.choice(64, 18, replace=False) for _ in range(1000))
            if AffineHull(space, space.codes(part)).is_complete
        )
        X, codes = make_data(n=1500, p=60, missing=np.setdiff1d(np.arange(64), seen), space=space)
        clf = CRMClassifierCV([1e-2, 1e-1]).fit(X, codes[:, 0], attributes=codes[:, 1])
        assert clf.anchor_ == "gaussian"
        assert clf.selected_bias_ != "extrapolated"
        plain = clone(clf).set_params(anchor="zero", bias="extrapolated").fit(X, codes[:, 0], attributes=codes[:, 1])
        X_new, new = make_data(n=6000, p=60, missing=(), seed=3, space=space)
        assert clf.score(X_new, new[:, 0]) > plain.score(X_new, new[:, 0]) + 0.02

    def test_given_settings_are_kept(self):
        X, codes = make_data(n=500)
        clf = CRMClassifierCV([1e-2, 1e-1], anchor="gaussian", bias="cumulant", cross_fit=3)
        clf.fit(X, codes[:, 0], attributes=codes[:, 1])
        assert (clf.anchor_, clf.selected_bias_, clf.cross_fit_) == ("gaussian", "cumulant", 3)
        assert set(clf.cv_results_["param_bias"]) == {"cumulant"}
        assert clf.set_params(unseen_offset=0.25).fit(X, codes[:, 0], attributes=codes[:, 1]).unseen_offset_ == 0.25

    def test_held_out_groups_are_possible_under_the_training_prior(self):
        X, codes = make_data(n=500)
        clf = CRMClassifierCV([1e-2, 1e-1], prior="train").fit(X, codes[:, 0], attributes=codes[:, 1])
        assert clf.cv_results_["unseen_accuracy"].min() > 0.3
        assert (np.exp(clf.log_prior_)[~clf.seen_] == 0).all()

    def test_several_targets_and_weights_can_be_fitted(self):
        X, codes = make_data(n=500)
        clf = CRMClassifierCV([1e-2, 1e-1], bias="extrapolated", anchor="zero")
        weight = np.where(np.arange(500) < 250, 2.0, 1.0)
        clf.fit(X, codes, sample_weight=weight)
        assert clf.predict(X).shape == (500, 2)
        assert clf.expected_group_accuracy_.shape == (3, 5)


class TestResults:
    def test_the_layout_is_that_of_scikit_learn(self, fitted):
        clf, _, _ = fitted
        results = clf.cv_results_
        n_settings = len(results["params"])
        assert list(results["param_alpha"]) == sorted(set(results["param_alpha"]))
        names = ("alpha", "anchor", "cross_fit", "feature_transform", "bias")
        assert results["params"][0].keys() == set(names)
        for name in names:
            assert results[f"param_{name}"].tolist() == [params[name] for params in results["params"]]
        scores, groups = results["mean_test_score"], results["group_accuracy"]
        assert groups.shape == (n_settings, 13)
        np.testing.assert_allclose(scores, groups.mean(axis=1))
        np.testing.assert_allclose(results["unseen_accuracy"], scores)
        np.testing.assert_allclose(results["std_test_score"], groups.std(axis=1))
        assert results["rank_test_score"].tolist() == [1 + (scores > own).sum() for own in scores]
        assert (results["seen_accuracy"] > results["unseen_accuracy"].min()).all()
        assert len(pd.DataFrame({name: list(column) for name, column in results.items()})) == n_settings

    def test_worst_scores_are_a_low_quantile_over_groups(self):
        X, codes = make_data(n=500)
        clf = CRMClassifierCV([1e-2, 1e-1], scoring="worst", **PLAIN).fit(X, codes[:, 0], attributes=codes[:, 1])
        expected = np.quantile(clf.cv_results_["group_accuracy"], 0.1, axis=1)
        np.testing.assert_allclose(clf.cv_results_["mean_test_score"], expected)

    def test_parameters_set_after_the_fit_are_used(self, fitted):
        clf, X, codes = copy.deepcopy(fitted[0]), *fitted[1:]
        plain = CRMClassifier(clf.alpha_).fit(X, codes[:, 0], attributes=codes[:, 1])
        for bias in ("learned", "cumulant", "shrunk", "extrapolated"):
            clf.set_params(bias=bias, unseen_offset=0.5)
            plain.set_params(bias=bias, unseen_offset=0.5)
            np.testing.assert_allclose(clf.predict_proba(X), plain.predict_proba(X), atol=1e-9)
        clf.set_params(bias="auto", unseen_offset="auto")
        np.testing.assert_array_equal(clf.predict_proba(X), fitted[0].predict_proba(X))
        with pytest.raises(InputError, match="bias 'star' is not known"):
            clf.set_params(bias="star").predict(X)

    def test_a_saved_model_has_the_settings_that_were_chosen(self, tmp_path):
        X, codes = make_data(n=500)
        clf = CRMClassifierCV([1e-1], anchor="gaussian").fit(X, codes[:, 0], attributes=codes[:, 1])
        clf.save(tmp_path / "model.safetensors")
        loaded = compshift.load(tmp_path / "model.safetensors")
        assert (loaded.bias, loaded.anchor_, loaded.alpha) == (clf.selected_bias_, "gaussian", 0.1)
        np.testing.assert_array_equal(loaded.cumulant_bias_, clf.cumulant_bias_)
        np.testing.assert_array_equal(loaded.pareto_k_, clf.pareto_k_)
        np.testing.assert_allclose(loaded.predict_proba(X), clf.predict_proba(X))


class TestExpectedAccuracy:
    def test_it_is_close_to_the_accuracy_on_new_samples(self, fitted):
        clf, _, _ = fitted
        frame = clf.expected_group_accuracy_
        assert frame.columns.tolist() == ["y", "a", "accuracy", "lower", "upper"]
        assert SPACE.index(frame[["y", "a"]].to_numpy()).tolist() == [0, 5, 10]
        assert ((frame.lower <= frame.accuracy) & (frame.accuracy <= frame.upper)).all()
        X, codes = fresh([0, 5, 10])
        right = clf.predict(X) == codes[:, 0]
        actual = np.array([right[SPACE.index(codes) == group].mean() for group in (0, 5, 10)])
        assert frame.accuracy.mean() == pytest.approx(actual.mean(), abs=0.1)

    def test_it_follows_the_offset_of_unseen_groups(self, fitted):
        clf, X, codes = fitted
        X_new, new = fresh([0, 5, 10])
        expected, actual = [], []
        for offset in (-2.0, 2.0):
            other = clone(clf).set_params(alphas=[clf.alpha_], unseen_offset=offset)
            other.fit(X, codes[:, 0], attributes=codes[:, 1])
            expected.append(other.expected_group_accuracy_.accuracy.mean())
            actual.append(other.score(X_new, new[:, 0]))
        assert actual[1] > actual[0] + 0.3
        np.testing.assert_allclose(expected, actual, atol=0.1)

    def test_it_holds_under_the_prior_of_the_fit_only(self, fitted):
        """Under the training prior unseen groups are predicted worse, and their expected accuracy is lower too."""
        clf, X, codes = fitted
        trained = clone(clf).set_params(alphas=[clf.alpha_], prior="train", unseen_offset=0.0)
        trained.fit(X, codes[:, 0], attributes=codes[:, 1])
        X_new, new = fresh([0, 5, 10])
        found = trained.expected_group_accuracy_.accuracy.mean()
        assert found == pytest.approx(trained.score(X_new, new[:, 0]), abs=0.1)
        assert found < clf.expected_group_accuracy_.accuracy.mean() - 0.02
        assert not hasattr(trained.set_prior("hull"), "expected_group_accuracy_")
        assert hasattr(trained.set_prior("train"), "expected_group_accuracy_")

    def test_a_prior_parameter_set_after_the_fit_does_not_change_it(self, fitted, tmp_path):
        clf = copy.deepcopy(fitted[0])
        before = clf.expected_group_accuracy_
        clf.set_params(prior="train")
        pd.testing.assert_frame_equal(clf.expected_group_accuracy_, before)
        assert not hasattr(clf.set_prior("train"), "expected_group_accuracy_")
        clf.save(tmp_path / "model.safetensors")
        assert not hasattr(compshift.load(tmp_path / "model.safetensors"), "expected_group_accuracy_")
        with pytest.raises(NotFittedError):
            _ = CRMClassifierCV().expected_group_accuracy_

    def test_it_is_empty_if_no_group_is_missing(self):
        X, codes = make_data(n=500, missing=())
        clf = CRMClassifierCV([1e-2, 1e-1], bias="extrapolated", anchor="zero")
        assert len(clf.fit(X, codes[:, 0], attributes=codes[:, 1]).expected_group_accuracy_) == 0

    def test_it_is_saved_with_the_model(self, fitted, tmp_path):
        clf, X, _ = fitted
        clf.save(tmp_path / "model.safetensors")
        loaded = compshift.load(tmp_path / "model.safetensors")
        assert isinstance(loaded, CRMClassifier)
        assert (loaded.alpha, loaded.unseen_offset) == (clf.alpha_, clf.unseen_offset_)
        pd.testing.assert_frame_equal(loaded.expected_group_accuracy_, clf.expected_group_accuracy_)
        np.testing.assert_allclose(loaded.predict_proba(X[:5]), clf.predict_proba(X[:5]))

    def test_a_plain_classifier_has_none(self, tmp_path):
        X, codes = make_data(n=200, p=5)
        clf = CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1])
        assert not hasattr(clf, "expected_group_accuracy_")
        clf.save(tmp_path / "model.safetensors")
        assert not hasattr(compshift.load(tmp_path / "model.safetensors"), "expected_group_accuracy_")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alphas": []}, "alphas is .*pass a non-empty list of positive numbers"),
        ({"alphas": 0.1}, "alphas is 0.1"),
        ({"alphas": [0.1, -1]}, "alpha is -1"),
        ({"alphas": [1.0, 0.0]}, "alphas contains 0: without a ridge the weights diverge"),
        ({"alphas": "auto"}, "alphas is 'auto'"),
        ({"cv": 1}, "n_splits is 1"),
        ({"cv": "five"}, "cv is 'five': pass a number of folds"),
        (
            {"scoring": "best"},
            "scoring is 'best': pass 'accuracy', 'worst', the name of a scikit-learn scorer",
        ),
        ({"scoring": 2.0}, "scoring is 2.0"),
        ({"scoring": None}, "scoring is None"),
        ({"cv": 2.5}, "cv is 2.5: pass a number of folds, a splitter such as CombinationKFold, or a list"),
        ({"cv": True}, "cv is True"),
        ({"n_jobs": 0}, "n_jobs is 0: pass a nonzero integer up to 1024, −1 for all cores"),
        ({"n_jobs": 10**9}, "n_jobs is 1000000000"),
        ({"n_jobs": 1.5}, "n_jobs is 1.5"),
        ({"n_jobs": True}, "n_jobs is True"),
        ({"bias": "none"}, "'none'"),
        ({"anchor": "one"}, "'one'"),
        ({"cross_fit": "maybe"}, "cross_fit is 'maybe'"),
        ({"cross_fit": 1}, "cross_fit is 1"),
        ({"confidence": 1.5}, "confidence is 1.5"),
        (
            {"unseen_offset": "much"},
            "unseen_offset is 'much': pass a number between ±1e.06 .0 for no offset., or 'auto'",
        ),
        ({"unseen_offset": np.inf}, "unseen_offset is inf"),
    ],
)
def test_bad_parameters_raise(options, message):
    X, codes = make_data(n=100, p=3)
    with pytest.raises(InputError, match=message):
        CRMClassifierCV(**options).fit(X, codes[:, 0], attributes=codes[:, 1])


class TestNothingToHoldOut:
    """Three of 2 × 2 groups: none is inside the hull of the others."""

    def fit(self, copies=1, **options):
        rng = np.random.default_rng(0)
        codes = np.repeat([[0, 1], [1, 0], [1, 1]], 100, axis=0)
        X = rng.normal(size=(300, 30)) + 2 * codes @ rng.normal(size=(2, 30))
        X = np.tile(X, copies)
        return CRMClassifierCV(**options).fit(X, codes[:, 0], attributes=codes[:, 1]), X

    def test_alpha_is_the_typical_one(self):
        clf, _ = self.fit()
        assert clf.alpha_ == 0.05  # 30 / (2 · 300)
        assert (clf.n_splits_, clf.anchor_, clf.selected_bias_, clf.unseen_offset_) == (0, "zero", "extrapolated", 0.0)
        assert clf.expected_group_accuracy_.empty
        results = clf.cv_results_
        assert np.isnan(results["unseen_accuracy"]).all()
        np.testing.assert_allclose(results["mean_test_score"], results["seen_accuracy"])

    def test_the_reliability_of_every_alpha_is_that_of_its_own_fit(self):
        clf, X = self.fit(bias="extrapolated")
        codes = np.repeat([[0, 1], [1, 0], [1, 1]], 100, axis=0)
        for which, alpha in enumerate(clf.cv_results_["param_alpha"]):
            own = CRMClassifier(alpha).fit(X, codes[:, 0], attributes=codes[:, 1])
            size, k = own.effective_sample_size_[~own.seen_].min(), own.pareto_k_[~own.seen_].max()
            assert clf.cv_results_["effective_sample_size"][which] == pytest.approx(size, rel=0.05)
            assert clf.cv_results_["pareto_k"][which] == pytest.approx(k, abs=0.05)

    def test_repeated_features_change_nothing(self):
        (once, X), (twice, X2) = self.fit(), self.fit(copies=2)
        assert twice.alpha_ == 2 * once.alpha_
        np.testing.assert_allclose(twice.predict_proba(X2), once.predict_proba(X), atol=1e-4)

    def test_a_scorer_is_not_called(self):
        clf, _ = self.fit(scoring=lambda *_: pytest.fail("nothing is held out"))
        assert clf.alpha_ == 0.05

    def test_a_given_list_is_searched_for_the_nearest(self):
        assert self.fit(alphas=[1e-3, 0.1, 1.0])[0].alpha_ == 0.1

    def test_scores_are_nan_if_samples_cannot_be_held_out_either(self):
        """With one sample per group every sample is needed for training."""
        codes = np.array([[0, 0], [0, 1], [1, 0]])
        clf = CRMClassifierCV(alphas=[0.1, 1.0]).fit(np.eye(3), codes[:, 0], attributes=codes[:, 1])
        assert np.isnan(clf.cv_results_["mean_test_score"]).all()
        assert np.isnan(clf.cv_results_["std_test_score"]).all()
        assert (clf.cv_results_["rank_test_score"] == 1).all()
