"""AffineExtrapolation: the equation it implements, unseen groups, and its parameters."""

import math
import warnings
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

import tests.references as reference
from compshift import GroupSpace, InputError
from compshift.core.affine import log_floored
from compshift.estimators.affine_extrapolation import AffineExtrapolation
from compshift.estimators.group_probabilities import group_probabilities


class KnownGaussians(ClassifierMixin, BaseEstimator):
    """Predicts the true posterior of Gaussians with these means (k, p) and equal frequencies; it learns nothing.

    A ``sharpness`` above 1 makes it overconfident.
    """

    def __init__(self, means, sharpness=1.0):
        self.means = means
        self.sharpness = sharpness

    def fit(self, X, y):
        assert len(X) == len(y)
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, X):
        logits = -0.5 * self.sharpness * ((X[:, None, :] - np.asarray(self.means)) ** 2).sum(axis=2)
        logits = logits[:, self.classes_]
        proba = np.exp(logits - logits.max(axis=1, keepdims=True))
        return proba / proba.sum(axis=1, keepdims=True)


class Secretive(ClassifierMixin, BaseEstimator):
    """Raises if it has to predict rows that it was fitted to."""

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        self.known_ = {row.tobytes() for row in X}
        return self

    def predict_proba(self, X):
        if any(row.tobytes() in self.known_ for row in X):
            raise AssertionError("a row was predicted by a fit that had it")
        return np.full((len(X), len(self.classes_)), 1 / len(self.classes_))


def additive(cardinalities=(2, 3), missing=(0,), rows=150, p=4, spread=1.5, seed=0):
    """Return rows of additive Gaussians: of the groups that are not missing, of all groups; then the means of both."""
    rng = np.random.default_rng(seed)
    space = GroupSpace.from_cardinalities(cardinalities)
    groups = space.codes(np.arange(space.n_groups))
    means = space.one_hot(groups) @ rng.normal(scale=spread, size=(space.width, p))  # (g, p)
    kept = np.setdiff1d(np.arange(len(groups)), missing)

    def sample(which):
        index = np.repeat(which, rows)
        return rng.normal(size=(len(index), p)) + means[index], groups[index]

    return *sample(kept), *sample(np.arange(len(groups))), means, means[kept]


def fit(clf, X, codes, **further):
    return clf.fit(X, codes[:, 0], attributes=codes[:, 1:], **further)


def true_posterior(X, means):
    logits = -0.5 * ((X[:, None, :] - means) ** 2).sum(axis=2)
    return np.exp(logits - np.logaddexp.reduce(logits, axis=1)[:, None])


@parametrize_with_checks(
    [AffineExtrapolation(GaussianNB(), cv=2, calibration="temperature")],
    expected_failed_checks=lambda _: {
        "check_sample_weight_equivalence_on_dense_data": "a row twice is in two folds, a row of weight 2 in one"
    },
)
def test_common_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*estimator's probabilities|.*have a single row")
        check(estimator)


class TestTheEquation:
    @pytest.mark.parametrize("weights", ["minimum-norm", "minimum-variance", "sparse"])
    def test_log_posterior_equals_a_slow_loop(self, weights):
        X, codes, X_new, _, _, seen_means = additive(rows=20)
        clf = AffineExtrapolation(KnownGaussians(seen_means), weights=weights, calibration=None, floor=1e-300)
        clf = fit(clf.set_params(prior="train"), X, codes).set_prior("uniform")
        expert = KnownGaussians(seen_means).fit(X[:5], np.arange(5))
        X_new = X_new[::10]
        found = clf.group_log_proba(X_new)

        def score(row, alpha):
            proba = expert.predict_proba(row[None])[0]
            return sum(a * math.log(p) for a, p in zip(alpha, proba, strict=True))

        partition = [
            reference.log_sum_exp([score(row, alpha) for row in X]) - math.log(len(X)) for alpha in clf.affine_weights_
        ]
        np.testing.assert_allclose(clf.log_partition_, partition, atol=1e-8)
        for row, result in zip(X_new, found, strict=True):
            logits = [
                math.log(1 / 6) + score(row, alpha) - constant
                for alpha, constant in zip(clf.affine_weights_, partition, strict=True)
            ]
            expected = [value - reference.log_sum_exp(logits) for value in logits]
            np.testing.assert_allclose(result, expected, atol=1e-8)

    @pytest.mark.parametrize(("cardinalities", "missing"), [((2, 3), (0,)), ((2, 2, 2), (0, 5))])
    @pytest.mark.parametrize("calibration", [None, "temperature", "additive"])
    def test_true_posteriors_of_seen_groups_give_those_of_unseen_ones(self, cardinalities, missing, calibration):
        X, codes, X_new, codes_new, means, seen_means = additive(cardinalities, missing, rows=1000, spread=0.8)
        clf = AffineExtrapolation(KnownGaussians(seen_means), calibration=calibration, random_state=0)
        fit(clf, X, codes)
        truth = true_posterior(X_new, means)
        dropped = np.isin(clf.space_.index(codes_new), missing)

        def distances():
            variation = 0.5 * np.abs(np.exp(clf.group_log_proba(X_new)) - truth).sum(axis=1)
            return variation.mean(), variation[dropped].mean()

        assert max(distances()) < 0.06
        clf.set_prior("train")  # close to the base estimator alone
        assert min(distances()) > 0.15
        np.testing.assert_array_equal(~clf.seen_, np.isin(np.arange(len(means)), missing))
        assert clf.inside_hull_.all()

    @pytest.mark.parametrize("calibration", [None, "temperature", "additive"])
    def test_calibration_corrects_an_overconfident_estimator(self, calibration):
        X, codes, X_new, _, means, seen_means = additive(rows=1000, spread=0.8)
        clf = AffineExtrapolation(KnownGaussians(seen_means, 3.0), calibration=calibration, floor=1e-12, random_state=0)
        fit(clf, X, codes)
        distance = 0.5 * np.abs(np.exp(clf.group_log_proba(X_new)) - true_posterior(X_new, means)).sum(axis=1).mean()
        assert distance > 0.2 if calibration is None else distance < 0.06
        assert clf.temperature_ == (pytest.approx(3, rel=0.1) if calibration == "temperature" else None)

    def test_the_choice_of_weights_does_not_matter_after_additive_calibration(self):
        X, codes, X_new, *_ = additive((2, 3), (0, 4), rows=60)
        answers = [
            fit(AffineExtrapolation(GaussianNB(), weights=weights, random_state=0), X, codes).predict_log_proba(X_new)
            for weights in ("minimum-norm", "minimum-variance", "sparse")
        ]
        np.testing.assert_allclose(answers[1], answers[0], atol=1e-8)
        np.testing.assert_allclose(answers[2], answers[0], atol=1e-8)

    @pytest.mark.parametrize("calibration", [None, "temperature", "additive"])
    def test_seen_groups_alone_keep_their_calibrated_posterior(self, calibration):
        X, codes, X_new, *_ = additive()
        clf = fit(AffineExtrapolation(LogisticRegression(), calibration=calibration, random_state=0), X, codes)
        proba = group_probabilities(clf.estimators_, X_new, 5)
        calibrated = clf._calibration(log_floored(proba, clf.floor_)[0])
        share = np.where(clf.seen_, np.exp(clf.log_partition_), 0)
        clf.set_prior(share / share.sum())
        np.testing.assert_allclose(clf.group_log_proba(X_new, clf.groups_[clf.seen_]), calibrated, atol=1e-8)
        if calibration is None:
            np.testing.assert_allclose(np.exp(calibrated), proba, atol=1e-5)
        elif (
            calibration == "additive"
        ):  # its mean posterior equals the group frequencies, so the train prior restores it
            clf.set_prior("train")
            np.testing.assert_allclose(clf.group_log_proba(X_new, clf.groups_[clf.seen_]), calibrated, atol=1e-3)


class TestUnseenGroups:
    def test_a_dropped_group_is_predicted(self):
        X, codes, X_new, codes_new, means, _ = additive(rows=300)
        dropped = (codes_new == 0).all(axis=1)
        clf = fit(AffineExtrapolation(LogisticRegression(), random_state=0), X, codes)
        ideal = np.mean(true_posterior(X_new[dropped], means).argmax(axis=1) == 0)
        assert np.mean((clf.predict_group(X_new[dropped]) == 0).all(axis=1)) > ideal - 0.1
        assert 0 not in LogisticRegression().fit(X, codes @ [3, 1]).predict(X_new)

    @pytest.mark.parametrize(
        "base",
        [
            KNeighborsClassifier(40),
            HistGradientBoostingClassifier(max_iter=30, max_leaf_nodes=4),
            make_pipeline(StandardScaler(), LogisticRegression()),
        ],
    )
    def test_extrapolation_beats_the_estimator_alone(self, base):
        effect = np.array([[1.0, 2, 0, 1, 0], [2, 1, 1, 0, 0]])  # effect of the class, effect of the attribute
        rng = np.random.default_rng(0)
        z = np.repeat([[0, 0], [0, 1], [1, 1]], 300, axis=0)
        X = rng.normal(size=(900, 5)) + z @ effect
        X_new = rng.normal(size=(500, 5)) + effect[0]  # the dropped (1, 0)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*estimator's probabilities.*")
            clf = fit(AffineExtrapolation(base, random_state=0), X, z)
        plain = clone(base).fit(X, z[:, 0])
        assert clf.score(X_new, np.ones(500, dtype=int)) > np.mean(plain.predict(X_new)) + 0.15

    def test_three_attributes_and_two_targets(self):
        X, codes, X_new, codes_new, means, _ = additive((2, 2, 3), (0, 7), rows=80, spread=2.0)
        clf = AffineExtrapolation(GaussianNB(), random_state=0)
        clf.fit(X, codes[:, :2], attributes=codes[:, 2])
        assert clf.predict(X_new).shape == (len(X_new), 2)
        ideal = clf.groups_[true_posterior(X_new, means).argmax(axis=1)] == codes_new
        assert clf.score(X_new, codes_new[:, :2]) > ideal[:, :2].all(axis=1).mean() - 0.1
        joint = np.exp(clf.group_log_proba(X_new))
        for target, proba in enumerate(clf.predict_proba(X_new)):
            expected = np.stack([joint[:, clf.groups_[:, target] == v].sum(axis=1) for v in (0, 1)], axis=1)
            np.testing.assert_allclose(proba, expected, atol=1e-12)
        assert [part.tolist() for part in clf.classes_] == [[0, 1], [0, 1]]

    def test_values_keep_their_names(self):
        X, codes, *_ = additive(rows=30)
        y = np.array(["land", "water"])[codes[:, 0]]
        frame = pd.DataFrame(X, columns=list("abcd"))
        place = pd.Series(codes[:, 1], name="place")
        clf = AffineExtrapolation(GaussianNB(), random_state=0).fit(frame, y, attributes=place)
        assert set(clf.predict(frame)) <= {"land", "water"}
        assert clf.space_.names == ("y", "place")
        clf.set_prior({("land", 0): 1.0})
        assert (clf.predict_group(frame) == np.array(["land", 0], dtype=object)).all()

    def test_groups_that_are_not_candidates_have_probability_zero(self):
        X, codes, *_ = additive(rows=30)
        clf = fit(AffineExtrapolation(GaussianNB(), support=[[0, 0], [1, 2], [0, 1]], random_state=0), X, codes)
        np.testing.assert_array_equal(clf.groups_, [[0, 0], [0, 1], [1, 2]])
        found = clf.group_log_proba(X, [[1, 2], [1, 1], [0, 0]])
        assert (found[:, 1] == -np.inf).all()
        np.testing.assert_array_equal(found[:, [2, 0]], clf.group_log_proba(X)[:, [0, 2]])


class TestParameters:
    def test_bad_input_raises_a_clear_message(self):
        X, codes, *_ = additive(rows=10)
        for parameters, sentence in (
            ({"estimator": LinearSVC()}, "LinearSVC without predict_proba: pass a classifier that gives prob"),
            ({"estimator": GaussianNB}, "estimator is the class GaussianNB: pass an instance"),
            ({"estimator": None}, "estimator is None: pass an instance"),
            ({"weights": "minimal"}, "weights 'minimal' is not known: use one of 'minimum-norm'"),
            ({"calibration": "platt"}, "calibration 'platt' is not known: use one of 'additive', 'temperature'"),
            ({"support": "everything"}, "support 'everything' is not known"),
            ({"cv": 1}, "cv is 1: pass 2 folds or more"),
            ({"cv": 2.5}, "cv is 2.5: pass an integer"),
            ({"floor": 0}, "floor is 0: pass a finite number above 0"),
            ({"floor": 0.3}, "floor is 0.3, but must be below 1/5 with 5 seen groups"),
            ({"floor": "low"}, "floor is 'low': pass a number above 0, or 'auto'"),
            ({"alpha": -1}, "alpha is -1"),
            ({"prior": "flat"}, "prior 'flat' is not known"),
        ):
            with pytest.raises(InputError, match=sentence):
                fit(AffineExtrapolation(GaussianNB()).set_params(**parameters), X, codes)
        with pytest.raises(InputError, match="y is None: pass a class for each row"):
            AffineExtrapolation(GaussianNB()).fit(X, None)
        with pytest.raises(NotFittedError):
            AffineExtrapolation(GaussianNB()).set_prior("train")

    def test_candidates_outside_the_hull_are_rejected(self):
        X, codes, *_ = additive((2, 2), (0, 3), rows=20)
        clf = fit(AffineExtrapolation(GaussianNB(), random_state=0), X, codes)
        np.testing.assert_array_equal(clf.groups_, [[0, 1], [1, 0]])
        for support in ("all", [[0, 0], [0, 1]]):
            with pytest.raises(InputError, match=r"lie outside the affine hull of the seen ones, \(0, 0\) for example"):
                fit(AffineExtrapolation(GaussianNB(), support=support), X, codes)

    def test_support_all_equals_a_complete_hull(self):
        X, codes, X_new, *_ = additive(rows=20)
        hull, whole = (
            fit(AffineExtrapolation(GaussianNB(), support=support, random_state=0), X, codes)
            for support in ("hull", "all")
        )
        np.testing.assert_array_equal(hull.predict_proba(X_new), whole.predict_proba(X_new))

    def test_an_estimator_with_nan_probabilities_is_named(self):
        class Broken(Secretive):
            def predict_proba(self, X):
                return np.full((len(X), len(self.classes_)), np.nan)

        X, codes, *_ = additive(rows=10)
        with pytest.raises(InputError, match=r"estimator \(Broken\) gives a probability that is NaN"):
            fit(AffineExtrapolation(Broken()), X, codes)

    def test_an_estimator_with_the_wrong_columns_is_named(self):
        class Narrow(Secretive):
            def predict_proba(self, X):
                return np.ones((len(X), 1))

        X, codes, *_ = additive(rows=10)
        sentence = r"estimator \(Narrow\) gives probabilities of shape \(10, 1\) for 10 rows and 5 groups"
        with pytest.raises(InputError, match=sentence):
            fit(AffineExtrapolation(Narrow()), X, codes)

    def test_an_estimator_can_select_columns_by_name(self):
        X, codes, X_new, *_ = additive(rows=30)
        names = ["height", "width", "depth", "age"]
        chosen = ColumnTransformer([("some", StandardScaler(), ["width", "age"])])
        base = make_pipeline(chosen, GaussianNB())
        clf = AffineExtrapolation(base, random_state=0).fit(
            pd.DataFrame(X, columns=names), codes[:, 0], attributes=codes[:, 1:]
        )
        plain = fit(
            AffineExtrapolation(make_pipeline(StandardScaler(), GaussianNB()), random_state=0), X[:, [1, 3]], codes
        )
        np.testing.assert_allclose(
            clf.predict_proba(pd.DataFrame(X_new, columns=names)), plain.predict_proba(X_new[:, [1, 3]])
        )

    def test_parameters_and_clones(self):
        clf = AffineExtrapolation(KNeighborsClassifier(3), cv=4)
        assert clone(clf).get_params()["estimator__n_neighbors"] == 3
        assert clone(clf).cv == 4
        X, codes, *_ = additive(rows=20)
        base = GaussianNB()
        fit(AffineExtrapolation(base), X, codes)
        assert not hasattr(base, "classes_")  # only clones are fitted


class CountedFits(GaussianNB):
    """Counts the rows of every fit."""

    fits: ClassVar[list[int]] = []

    def fit(self, X, y):
        self.fits.append(len(X))
        return super().fit(X, y)


class TestEnsemble:
    @pytest.fixture(autouse=True)
    def _no_fits(self):
        CountedFits.fits.clear()

    def test_the_estimator_is_fitted_once_per_fold_and_not_to_all_rows(self):
        X, codes, *_ = additive()
        clf = fit(AffineExtrapolation(CountedFits(), ensemble=True, cv=3, random_state=0), X, codes)
        assert len(clf.estimators_) == 3
        assert sum(CountedFits.fits) == 2 * len(X)
        assert max(CountedFits.fits) < len(X)
        with pytest.raises(AttributeError, match="no estimator is fitted to all rows: use estimators_"):
            _ = clf.estimator_
        alone = fit(AffineExtrapolation(CountedFits(), cv=3, random_state=0), X, codes)
        assert CountedFits.fits[-1] == len(X)
        assert alone.estimators_ == [alone.estimator_]
        assert alone.floor_ == clf.floor_
        np.testing.assert_array_equal(alone.log_partition_, clf.log_partition_)  # both of the same out-of-fold rows

    def test_probabilities_of_the_folds_are_averaged(self):
        X, codes, X_new, *_ = additive()
        clf = fit(AffineExtrapolation(GaussianNB(), ensemble=True, random_state=0), X, codes)
        proba = np.mean([estimator.predict_proba(X_new) for estimator in clf.estimators_], axis=0)
        np.testing.assert_allclose(group_probabilities(clf.estimators_, X_new, 5), proba, atol=1e-12)
        clf.estimators_[1:] = []
        one = clf.predict_proba(X_new)
        clf.estimators_ *= 4
        np.testing.assert_allclose(clf.predict_proba(X_new), one, atol=1e-12)

    def test_a_fold_with_a_single_group_predicts_that_group(self):
        X = np.array([[0.0], [0.1], [0.2], [0.3], [5.0]])
        codes = np.array([[0, 0]] * 4 + [[1, 0]])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # too few rows for anything else
            clf = fit(AffineExtrapolation(GaussianNB(), ensemble=True, cv=2, random_state=0), X, codes)
        proba = group_probabilities(clf.estimators_, np.array([[5.0]]), 2)
        np.testing.assert_allclose(proba, [[0.5, 0.5]])

    def test_another_value_than_a_flag_raises(self):
        X, codes, *_ = additive()
        with pytest.raises(InputError, match="ensemble is 'auto': pass True or False"):
            fit(AffineExtrapolation(GaussianNB(), ensemble="auto"), X, codes)


def test_the_documentation_says_which_methods_are_missing():
    text = " ".join(AffineExtrapolation.__doc__.split())
    assert "it has no ``save``, ``explain`` or ``group_frame``" in text
    assert not any(hasattr(AffineExtrapolation, name) for name in ("save", "explain", "group_frame"))


class TestFeaturesArePassedOn:
    def frame(self, n=600, seed=0, missing=(0,)):
        """Return a DataFrame with missing numbers and a categorical column, and the codes of two attributes."""
        rng = np.random.default_rng(seed)
        space = GroupSpace.from_cardinalities([2, 2])
        codes = space.codes(rng.choice(np.setdiff1d(np.arange(4), missing), size=n))
        u = rng.normal(size=n) + 2 * codes[:, 0]
        u[rng.random(n) < 0.1] = np.nan
        colour = np.where(rng.random(n) < 0.8, codes[:, 1], 1 - codes[:, 1])
        return pd.DataFrame({"u": u, "colour": pd.Categorical.from_codes(colour, ["blue", "red"])}), codes

    def test_missing_values_and_categories(self):
        frame, codes = self.frame()
        booster = HistGradientBoostingClassifier(max_iter=5, categorical_features="from_dtype", random_state=0)
        clf = AffineExtrapolation(booster, cv=2, random_state=0)
        clf.fit(frame, codes[:, 0], attributes=codes[:, 1])
        assert clf.feature_names_in_.tolist() == ["u", "colour"]
        assert clf.estimator_.feature_names_in_.tolist() == ["u", "colour"]
        new, truth = self.frame(seed=1, missing=())
        assert clf.score(new, truth[:, 0]) > 0.75
        unseen = (truth == 0).all(axis=1)
        assert clf.score(new[unseen], truth[unseen, 0]) > 0.5
        with pytest.raises(InputError, match="Pass the columns used in fit, in the same order"):
            clf.predict(new[["colour", "u"]])
        place = truth[:, 1]
        known = clf.predict_group(new, attributes=place)
        assert (known[:, 1] == place).all()
        alone = [clf.predict_group(new[place == value], attributes=place[place == value]) for value in (0, 1)]
        assert (known[place == 1] == alone[1]).all()
        assert (known[place == 0] == alone[0]).all()
        weight = (np.arange(len(frame)) % 3 > 0).astype(float)
        clf.fit(frame, codes[:, 0], attributes=codes[:, 1], sample_weight=weight)

    def test_arrays_with_missing_values(self):
        frame, codes = self.frame()
        X = frame[["u", "u"]].to_numpy()
        booster = HistGradientBoostingClassifier(max_iter=3, random_state=0)
        assert AffineExtrapolation(booster, cv=2).fit(X, codes[:, 0], attributes=codes[:, 1]).n_features_in_ == 2
        with pytest.raises(InputError, match=r"estimator \(LogisticRegression\) failed .*NaN"):
            AffineExtrapolation(LogisticRegression(), cv=2).fit(X, codes[:, 0], attributes=codes[:, 1])

    def test_features_that_cannot_be_read_are_named_in_one_line(self):
        frame, codes = self.frame()
        booster = HistGradientBoostingClassifier(max_iter=3, random_state=0)
        clf = AffineExtrapolation(booster, cv=2).fit(frame[["u"]], codes[:, 0], attributes=codes[:, 1])
        mixed = pd.DataFrame({"u": [0.0], 1: [0.0]})
        with pytest.raises(InputError, match="all input features have string names") as found:
            clf.predict(mixed)
        assert len(str(found.value).splitlines()) == 1
        torch = pytest.importorskip("torch")
        with pytest.raises(InputError, match=r"X is a Tensor that NumPy cannot read.*\.detach\(\)\.cpu\(\)\.numpy\(\)"):
            clf.fit(torch.zeros((len(codes), 2), requires_grad=True), codes[:, 0], attributes=codes[:, 1])


@pytest.mark.filterwarnings("ignore:.*of the estimator's probabilities are below floor")
class TestFallBack:
    def rows(self, n, seed, noise=1.0, missing=(7, 40)):
        """Return rows of 2 × 6 × 5 groups whose means are not additive; 58 groups are seen."""
        space = GroupSpace.from_cardinalities([2, 6, 5])
        rng = np.random.default_rng(seed)
        codes = space.codes(rng.choice(np.setdiff1d(np.arange(60), missing), size=n))
        means = 2 * np.random.default_rng(99).normal(size=(60, 6))
        return noise * rng.normal(size=(n, 6)) + means[space.index(codes)], codes

    @pytest.mark.parametrize(
        ("estimator", "noise", "reason"),
        [
            (RandomForestClassifier(20, max_depth=8, random_state=0), 0.4, "they are far from additive"),
            (GaussianNB(), 1.0, "most probabilities are below floor="),
        ],
    )
    def test_many_groups_that_are_not_additive_are_left_to_the_estimator(self, estimator, noise, reason):
        X, codes = self.rows(1500, 0, noise)
        clf = AffineExtrapolation(estimator, cv=2, random_state=0)
        with pytest.warns(UserWarning, match=f"cannot be extrapolated, because {reason}"):
            clf.fit(X, codes[:, 0], attributes=codes[:, 1:])
        assert not clf.extrapolates_
        new, truth = self.rows(500, 1, noise)
        proba = np.exp(clf.group_log_proba(new))
        assert not proba[:, ~clf.seen_].any()
        np.testing.assert_allclose(proba.sum(axis=1), 1)
        fallen_back = clf.score(new, truth[:, 0])
        clf.extrapolates_ = True
        assert fallen_back > clf.score(new, truth[:, 0]) + 0.05

    def test_a_prior_on_unseen_groups_alone_is_extrapolated(self):
        X, codes = self.rows(1500, 0)
        clf = AffineExtrapolation(GaussianNB(), cv=2, random_state=0)
        with pytest.warns(UserWarning, match="cannot be extrapolated"):
            clf.fit(X, codes[:, 0], attributes=codes[:, 1:])
        group = tuple(clf.space_.decode(clf.groups_[~clf.seen_][:1])[0])
        assert (clf.set_prior({group: 1.0}).predict_group(X[:5]) == group).all()

    def test_the_fallback_corrects_for_the_frequencies_of_training(self):
        X, codes = self.rows(1500, 0)
        clf = AffineExtrapolation(GaussianNB(), cv=2, prior="train", random_state=0)
        with pytest.warns(UserWarning, match="cannot be extrapolated"):
            clf.fit(X, codes[:, 0], attributes=codes[:, 1:])
        proba = log_floored(group_probabilities(clf.estimators_, X[:9], 58), clf.floor_)[0]
        expected = np.exp(proba) / np.exp(proba).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(np.exp(clf.group_log_proba(X[:9]))[:, clf.seen_], expected, atol=1e-12)

    def test_additive_groups_are_still_extrapolated(self):
        rng = np.random.default_rng(0)
        codes = np.repeat([[0, 1], [1, 0], [1, 1]], 100, axis=0)
        X = rng.normal(size=codes.shape) + 12 * codes
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            clf = AffineExtrapolation(KNeighborsClassifier(1), cv=2, random_state=0)
            clf.fit(X, codes[:, 0], attributes=codes[:, 1])
        assert clf.floored_ > 0.5
        assert clf.extrapolates_
