"""Probabilities of the seen groups by any classifier: out of fold, floored, checked and weighted."""

import warnings

import numpy as np
import pytest
from joblib import parallel_config
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier

from compshift import GroupSpace, InputError
from compshift.core.folds import row_folds
from compshift.estimators.affine_extrapolation import AffineExtrapolation
from tests.estimators.test_affine_extrapolation import KnownGaussians, Secretive, additive, fit


class Weighed(KnownGaussians):
    """KnownGaussians whose ``fit`` accepts weights and ignores them."""

    def fit(self, X, y, sample_weight=None):
        assert sample_weight is None or len(sample_weight) == len(y)
        return super().fit(X, y)


class TestCrossFitting:
    def test_no_row_is_predicted_by_a_fit_that_had_it(self):
        X, codes, X_new, *_ = additive(rows=12)
        clf = fit(AffineExtrapolation(Secretive(), cv=3, calibration="temperature"), X, codes)
        assert clf.predict(X_new).shape == (len(X_new),)
        with pytest.raises(InputError, match=r"\(Secretive\) failed in its predict_proba .*a fit that had it"):
            clf.predict(X)

    def test_memorised_rows_do_not_count_as_confidence(self):
        X, codes, *_ = additive(rows=40)
        X = np.random.default_rng(1).normal(size=X.shape)  # features independent of the groups
        clf = AffineExtrapolation(KNeighborsClassifier(1), calibration="temperature", floor=1e-3, random_state=0)
        with pytest.warns(UserWarning, match="80% of the estimator's probabilities are below floor=0.001"):
            fit(clf, X, codes)
        assert clf.temperature_ > 20
        assert clf.floored_ == pytest.approx(0.8)

    def test_every_group_is_spread_over_the_folds(self):
        position = np.repeat(np.arange(5), [2, 3, 7, 50, 11])
        folds = row_folds(position, 5, np.random.RandomState(0))
        for group, size in enumerate(np.bincount(position)):
            counts = np.bincount(folds[position == group], minlength=5)
            assert counts.max() - counts.min() <= 1
            assert np.count_nonzero(counts) >= min(size, 5)

    def test_perfectly_separated_groups_warn(self):
        """Without unseen groups among the candidates there is no warning."""
        X, codes, *_ = additive(rows=30)
        X = 50 * GroupSpace.from_cardinalities(codes.max(axis=0) + 1).one_hot(codes) + X[:, :1]
        clf = AffineExtrapolation(LogisticRegression(C=1e-3), random_state=0)
        with pytest.warns(UserWarning, match="distinguishes the seen groups without a single error"):
            fit(clf, X, codes)
        assert not clf.seen_.all()
        fit(clf.set_params(support=np.unique(codes, axis=0)), X, codes)

    @pytest.mark.parametrize("calibration", ["temperature", "additive"])
    def test_a_group_of_one_row_warns(self, calibration):
        X, codes, X_new, *_ = additive(rows=30)
        rows = np.r_[29 : len(X)]  # one row of the first seen group
        clf = AffineExtrapolation(LogisticRegression(), calibration=calibration, floor=1e-4, random_state=0)
        with pytest.warns(UserWarning, match="1 of the seen groups have a single row"):
            fit(clf, X[rows], codes[rows])
        assert np.isfinite(clf.log_partition_).all()
        assert clf.floored_ > 0
        np.testing.assert_allclose(clf.predict_proba(X_new).sum(axis=1), 1)

    def test_two_groups_one_of_them_with_a_single_row(self):
        X = np.array([[0.0], [0.1], [0.2], [5.0]])
        with pytest.warns(UserWarning, match="single row"):
            clf = AffineExtrapolation(LogisticRegression(), cv=2, calibration=None).fit(X, [0, 0, 0, 1])
        assert clf.predict(X).shape == (4,)

    def test_random_state_decides_the_folds(self):
        X, codes, X_new, *_ = additive(rows=40)
        with parallel_config(backend="threading"):
            first, again, other, parallel = (
                fit(AffineExtrapolation(GaussianNB(), random_state=seed, n_jobs=jobs), X, codes).group_log_proba(X_new)
                for seed, jobs in ((0, None), (0, None), (1, None), (0, 2))
            )
        np.testing.assert_array_equal(first, again)
        np.testing.assert_array_equal(first, parallel)
        assert np.abs(first - other).max() > 0


class TestFloor:
    def test_auto_chooses_the_floor_by_likelihood(self):
        X, codes, *_ = additive(rows=60)
        with pytest.warns(UserWarning, match=r"below floor=0\.01 and were raised"):
            neighbours = fit(AffineExtrapolation(KNeighborsClassifier(10), random_state=0), X, codes)
        smooth = fit(AffineExtrapolation(LogisticRegression(), random_state=0), X, codes)
        assert neighbours.floor_ == 1e-2
        assert smooth.floor_ < 1e-2
        assert smooth.floored_ < neighbours.floored_

    def test_the_floor_keeps_log_probabilities_finite(self):
        X, codes, X_new, *_ = additive(rows=60)
        for floor in (1e-8, 1e-2):
            clf = AffineExtrapolation(KNeighborsClassifier(3), floor=floor, calibration=None, random_state=0)
            with pytest.warns(UserWarning, match="raised to it"):
                fit(clf, X, codes)
            assert clf.floor_ == floor
            assert clf.floored_ > 0.5
            assert np.isfinite(clf.group_log_proba(X_new)).all()
            seen = clf.seen_
            assert (clf.effective_sample_size_[seen] > 10).all()


class Spoilt(GaussianNB):
    """GaussianNB that applies functions to its classes or its probabilities."""

    def __init__(self, classes=None, proba=None):
        super().__init__()
        self.classes, self.proba = classes, proba

    def fit(self, X, y):
        super().fit(X, y)
        if self.classes:
            self.classes_ = self.classes(self.classes_)
        return self

    def predict_proba(self, X):
        proba = super().predict_proba(X)
        return self.proba(proba) if self.proba else proba


class TestEstimatorOutput:
    @pytest.mark.parametrize(
        "classes",
        [lambda own: own.astype(str), lambda own: own + 1, lambda own: own - 1, lambda own: own * 0, lambda own: [own]],
    )
    def test_classes_must_be_the_groups_it_was_fitted_to(self, classes):
        X, codes, *_ = additive(rows=10)
        message = (
            r"estimator \(Spoilt\) has classes_ of .*, but it was fitted to groups numbered from 0 to 4: classes_ "
            "must hold the numbers that were passed to its fit as y"
        )
        with pytest.raises(InputError, match=message):
            fit(AffineExtrapolation(Spoilt(classes)), X, codes)

    @pytest.mark.parametrize(
        ("proba", "message"),
        [
            (lambda own: own - 0.5, r"gives a negative probability at row \d+: correct its predict_proba, or choose"),
            (lambda own: own * 0, "gives probabilities that do not sum to 1 at row 0"),
            (lambda own: own + 1e300, "gives probabilities that do not sum to 1 at row 0"),
            (lambda own: own + 1e308, "gives probabilities that do not sum to 1 at row 0"),
            (lambda own: own * np.nan, "gives a probability that is NaN or infinite at row 0: rescale the features"),
            (lambda own: own[:, 0], r"gives probabilities of shape \(\d+,\) for"),
            (lambda own: np.full(own.shape, "a"), r"the predict_proba of estimator \(Spoilt\) holds"),
        ],
    )
    def test_invalid_probabilities_are_rejected(self, proba, message):
        X, codes, *_ = additive(rows=10)
        with pytest.raises(InputError, match=message):
            fit(AffineExtrapolation(Spoilt(proba=proba)), X, codes)

    def test_rounding_errors_are_accepted(self):
        X, codes, X_new, *_ = additive(rows=40)
        clf = fit(
            AffineExtrapolation(Spoilt(proba=lambda own: own.astype(np.float32) - 1e-9), random_state=0), X, codes
        )
        assert np.isfinite(clf.group_log_proba(X_new)).all()


class TestSampleWeight:
    def test_weights_affect_every_step(self):
        X, codes, X_new, *_ = additive(rows=40)
        weight = np.random.default_rng(0).uniform(0.2, 3, size=len(X))
        base = AffineExtrapolation(GaussianNB(), random_state=0)
        weighted = fit(clone(base), X, codes, sample_weight=weight)
        scaled = fit(clone(base), X, codes, sample_weight=7 * weight)
        plain = fit(clone(base), X, codes)
        ones = fit(clone(base), X, codes, sample_weight=np.ones(len(X)))
        np.testing.assert_allclose(weighted.predict_proba(X_new), scaled.predict_proba(X_new), atol=1e-6)
        np.testing.assert_allclose(plain.predict_proba(X_new), ones.predict_proba(X_new), atol=1e-8)
        assert np.abs(weighted.predict_proba(X_new) - plain.predict_proba(X_new)).max() > 1e-3
        assert weighted.group_weight_.sum() == pytest.approx(weight.sum())
        assert not np.allclose(weighted.estimator_.theta_, plain.estimator_.theta_)

    @pytest.mark.parametrize("calibration", ["additive", "temperature", None])
    def test_a_weight_of_two_equals_the_row_twice(self, calibration):
        """The estimator learns nothing, so that weights affect floor, calibration and expectation only."""
        X, codes, X_new, *_, means = additive(rows=40)
        weight = np.random.default_rng(0).integers(1, 6, size=len(X))
        weight[::3] = 20
        clf = AffineExtrapolation(Weighed(means, sharpness=2.0), calibration=calibration, random_state=0)
        weighted = fit(clone(clf), X, codes, sample_weight=weight)
        often = np.repeat(np.arange(len(X)), weight)
        repeated = fit(clone(clf), X[often], codes[often])
        assert weighted.floor_ == repeated.floor_
        np.testing.assert_allclose(weighted.log_partition_, repeated.log_partition_, atol=1e-6)
        np.testing.assert_allclose(weighted.predict_proba(X_new), repeated.predict_proba(X_new), atol=1e-6)
        plain = fit(clone(clf), X, codes)
        assert np.abs(plain.log_partition_ - repeated.log_partition_).max() > 1e-3

    def test_the_floor_is_chosen_by_weighted_likelihood(self):
        """If misclassified rows have a tiny weight, the floor is that of a fit without them."""
        X, codes, *_, means = additive(rows=40, spread=1.0)
        base = Weighed(means, sharpness=30.0)
        groups, position = GroupSpace.from_cardinalities([2, 3]).distinct(codes)
        wrong = base.fit(X, position).predict_proba(X).argmax(axis=1) != position
        floors = []
        for heavy in (1.0, 1e-4):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # most probabilities are floored
                clf = fit(AffineExtrapolation(base), X, codes, sample_weight=np.where(wrong, heavy, 1.0))
                without = fit(AffineExtrapolation(base), X[~wrong], codes[~wrong])
            floors.append(clf.floor_)
        assert len(groups) == 5
        assert floors[0] != floors[1] == without.floor_

    def test_a_weight_of_zero_removes_the_row(self):
        X, codes, X_new, *_ = additive(rows=40)
        keep = np.arange(len(X)) % 3 > 0
        base = AffineExtrapolation(GaussianNB(), random_state=0)
        first = fit(clone(base), X, codes, sample_weight=keep.astype(float))
        second = fit(clone(base), X[keep], codes[keep])
        np.testing.assert_allclose(first.predict_proba(X_new), second.predict_proba(X_new), atol=1e-8)

    def test_an_estimator_without_sample_weight_is_rejected(self):
        X, codes, *_ = additive(rows=10)
        with pytest.raises(InputError, match="sample_weight was passed, but the fit of KNeighborsClassifier does not"):
            fit(AffineExtrapolation(KNeighborsClassifier()), X, codes, sample_weight=np.ones(len(X)))


def test_a_failing_estimator_raises_one_sentence():
    X, codes, *_ = additive(rows=12)
    with pytest.raises(InputError, match=r"estimator \(MultinomialNB\) failed in its fit to the groups.*Negative"):
        fit(AffineExtrapolation(MultinomialNB()), X, codes)
    with pytest.raises(InputError, match=r"\(KNeighborsClassifier\) failed in its predict_proba .*n_neighbors"):
        fit(AffineExtrapolation(KNeighborsClassifier(500)), X, codes)
