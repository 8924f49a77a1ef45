"""Fits of additive Gaussians: maximum likelihood, shrinkage, units of features and weights of rows."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.covariance import ledoit_wolf_shrinkage
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from compshift import CRMClassifier, GroupSpace, InputError
from compshift.core.energy import GroupTable
from compshift.crm.gaussian import gaussian_energies, standardise_columns
from compshift.estimators.additive_gaussian import AdditiveGaussian
from tests.estimators.made_data import make_data
from tests.estimators.test_additive_gaussian import VARIANTS, Truth, covariance_of, fit, likelihood

UNITS = np.array([1e4, 1.0, 1e-9, 1e8])


class TestMaximumLikelihood:
    def test_shared_is_maximum_likelihood(self):
        X, codes = make_data(n=200, p=2)
        model = fit(X, codes, shrinkage=0)
        best = likelihood(model, X, codes)
        rng = np.random.default_rng(0)
        inside = model.space_.locate(codes, model.groups_)
        for _ in range(20):
            means = model.means_ + model.space_.one_hot(model.groups_) @ (0.03 * rng.normal(size=(5, 2)))
            step = 0.03 * rng.normal(size=(2, 2))
            covariance = model.covariance_ + step + step.T
            logs = multivariate_normal(np.zeros(2), covariance).logpdf(X - means[inside])
            assert logs.mean() < best

    @pytest.mark.parametrize("shrinkage", [0, 0.3])
    def test_one_attribute_is_linear_discriminant_analysis(self, shrinkage):
        """Equal to scikit-learn's on columns of standard deviation 1 within classes, the units that ours shrinks in."""
        X, codes = make_data((3,), n=300, missing=())
        X /= np.sqrt(np.mean([X[codes[:, 0] == value].var(axis=0) for value in codes[:, 0]], axis=0))
        ours = AdditiveGaussian(shrinkage=shrinkage, prior="train").fit(X, codes[:, 0])
        theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage).fit(X, codes[:, 0])
        np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-8)
        np.testing.assert_allclose(ours.means_, theirs.means_, atol=1e-9)
        np.testing.assert_allclose(ours.covariance_, theirs.covariance_, atol=1e-9)

    def test_one_attribute_per_value_is_a_gaussian_for_each_class(self):
        X, codes = make_data((3,), n=300, missing=())
        model = AdditiveGaussian("per-value", shrinkage=0, penalty=1e-9).fit(X, codes[:, 0])
        for value in range(3):
            own = X[codes[:, 0] == value]
            np.testing.assert_allclose(model.means_[value], own.mean(axis=0), atol=1e-4)
            covariance = np.linalg.inv(model.precisions_[value])
            np.testing.assert_allclose(covariance, np.cov(own.T, bias=True), atol=1e-4)

    def test_per_value_is_at_least_as_likely_as_shared(self):
        X, codes = make_data(n=300, p=3)
        shared = likelihood(fit(X, codes, shrinkage=0), X, codes)
        last = shared
        for penalty in (10.0, 0.1, 1e-3):
            model = fit(X, codes, "per-value", shrinkage=0, penalty=penalty)
            assert model.converged_
            assert likelihood(model, X, codes) > last
            last = likelihood(model, X, codes)
        close = fit(X, codes, "per-value", penalty=1e6)
        np.testing.assert_allclose(close.log_density(X), fit(X, codes).log_density(X), atol=1e-4)

    def test_more_features_than_rows_can_be_fitted(self):
        X, codes = make_data(n=60, p=80)
        for variant in VARIANTS:
            model = fit(X, codes, variant)
            assert 0 < model.shrinkage_ <= 1
            assert np.isfinite(model.log_density(X)[:, model.proper_]).all()

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_units_do_not_matter(self, variant):
        X, codes = make_data(n=300, p=3)
        model = fit(X, codes, variant)
        for c, b in ((1e-3, 0.0), (7.0, -1e4), (1e6, 3.0)):
            other = fit(c * X + b, codes, variant)
            np.testing.assert_allclose(other.predict_proba(c * X + b), model.predict_proba(X), atol=1e-6)
            np.testing.assert_allclose(other.log_density(c * X + b), model.log_density(X) - 3 * np.log(c), atol=1e-5)

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_a_weight_is_repetition_and_order_does_not_matter(self, variant):
        X, codes = make_data(n=200, p=3)
        weight = np.random.default_rng(0).integers(0, 3, size=200)
        weighted = fit(X, codes, variant, sample_weight=weight)
        rows = np.random.default_rng(1).permutation(np.repeat(np.arange(200), weight))
        repeated = fit(X[rows], codes[rows], variant)
        assert weighted.shrinkage_ == pytest.approx(repeated.shrinkage_, rel=1e-9)
        np.testing.assert_allclose(weighted.log_density(X), repeated.log_density(X), atol=1e-5)
        np.testing.assert_array_equal(weighted.group_weight_, repeated.group_weight_)

    def test_very_unequal_weights_keep_precision(self):
        """The heavy classes determine the effect of the attribute; the light class only its own offset."""
        X, codes = make_data((3, 3), n=400, missing=(0,))
        light = codes[:, 0] == 1
        one_hot = GroupSpace.from_cardinalities([3, 3]).one_hot(codes)
        effect = np.linalg.lstsq(one_hot[~light], X[~light], rcond=None)[0][3:]
        expected = effect + (X[light] - effect[codes[light, 1]]).mean(axis=0)
        for tiny in (1e-14, 1e-20, 1e-200):
            model = fit(X, codes, shrinkage=0, sample_weight=np.where(light, tiny, 1.0))
            np.testing.assert_allclose(model.means_[3:6], expected, atol=1e-10)


class TestShrinkage:
    def test_shrinkage_is_towards_the_diagonal(self):
        """(1 − s) Σ + s diag(Σ), with Ledoit and Wolf's s of features divided by their standard deviations."""
        X, codes = make_data(n=80, p=4)
        X = X @ np.random.default_rng(0).normal(size=(4, 4)) * [1.0, 30.0, 0.2, 5.0]
        plain, shrunk = fit(X, codes, shrinkage=0), fit(X, codes)
        residuals = X - plain.means_[plain.space_.locate(codes, plain.groups_)]
        deviation = np.sqrt((residuals**2).mean(axis=0))
        assert shrunk.shrinkage_ == pytest.approx(ledoit_wolf_shrinkage(residuals / deviation, assume_centered=True))
        assert 0.01 < shrunk.shrinkage_ < 0.9
        for model in (shrunk, fit(X, codes, shrinkage=0.3)):
            expected = np.empty((4, 4))
            for i in range(4):
                for j in range(4):
                    share = 1.0 if i == j else 1 - model.shrinkage_
                    expected[i, j] = share * (residuals[:, i] * residuals[:, j]).mean()
            np.testing.assert_allclose(model.covariance_, expected, rtol=1e-9)

    def test_passing_the_automatic_shrinkage_gives_the_same_model(self):
        X, codes = make_data(n=80, p=4)
        X = X * [1.0, 30.0, 0.2, 5.0]
        model = fit(X, codes)
        again = fit(X, codes, shrinkage=model.shrinkage_)
        np.testing.assert_array_equal(again.covariance_, model.covariance_)


class TestUnits:
    @pytest.mark.parametrize("variant", VARIANTS)
    @pytest.mark.parametrize("shrinkage", ["auto", 0, 0.2])
    def test_every_column_may_have_its_own_unit(self, variant, shrinkage):
        X, codes = make_data(n=300, p=4)
        model, other = fit(X, codes, variant, shrinkage=shrinkage), fit(X * UNITS, codes, variant, shrinkage=shrinkage)
        assert other.shrinkage_ == pytest.approx(model.shrinkage_, rel=1e-9)
        np.testing.assert_allclose(other.predict_proba(X * UNITS), model.predict_proba(X), atol=1e-6)
        expected = model.log_density(X) - np.log(UNITS).sum()
        np.testing.assert_allclose(other.log_density(X * UNITS), expected, atol=1e-5)
        for group in range(6):
            expected = covariance_of(model, group) * np.outer(UNITS, UNITS)
            np.testing.assert_allclose(covariance_of(other, group), expected, rtol=1e-4)
        samples = [fitted.sample(3, [0, 0], random_state=0) for fitted in (model, other)]
        np.testing.assert_allclose(samples[1], samples[0] * UNITS, rtol=1e-4)

    def test_a_column_of_large_numbers_does_not_drown_the_others(self):
        truth = Truth((3, 3), p=4, seed=1, shared=True)
        truth.means = 4 * truth.means
        X, codes = truth.sample(range(1, 9), 50)
        test, z = truth.sample(range(9), 100, seed=1)
        for shrinkage in ("auto", 0.05):
            scores = [
                fit(X * [unit, 1, 1, 1], codes, shrinkage=shrinkage).score(test * [unit, 1, 1, 1], z[:, 0])
                for unit in (1.0, 1e4)
            ]
            assert scores[0] > 0.9
            assert scores[1] == scores[0]

    def test_the_extrapolated_bias_does_not_depend_on_units(self):
        X, codes = make_data(n=300, p=4)
        rng = np.random.default_rng(0)
        coef, centre, learned = rng.normal(size=(5, 4)), rng.normal(size=4), rng.normal(size=5)
        for variant in VARIANTS:
            bias = fit(X, codes, variant).extrapolated_bias(coef, centre, learned)
            other = fit(X * UNITS, codes, variant).extrapolated_bias(coef / UNITS, centre * UNITS, learned)
            np.testing.assert_allclose(other, bias, atol=1e-6)

    def test_extreme_units(self):
        X, codes = make_data(n=100, p=3)
        model = fit(X, codes)
        for unit in (1e95, 1e-95):
            other = fit(unit * X, codes)
            np.testing.assert_allclose(other.predict_proba(unit * X), model.predict_proba(X), atol=1e-9)
            np.testing.assert_allclose(other.covariance_ / unit / unit, model.covariance_, rtol=1e-9)
        for unit in (1e160, 1e-170, 1e300):
            with pytest.raises(
                InputError, match=r"column 1 of X has a range of .* may overflow or underflow: rescale the column"
            ):
                fit(X * [1.0, unit, 1.0], codes)
        with pytest.raises(InputError, match=r"X has values up to 1.7e\+308, and sums of values above"):
            fit(np.where(X[:, :1] > 0, 1.7e308, -1.7e308), codes)

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_columns_that_do_not_vary_within_groups(self, variant):
        """Constant columns, with and without rounding, and a column that is a function of the group."""
        X, codes = make_data(n=300, p=3)
        plain = fit(X, codes, variant)
        for column in (np.full(300, 0.1), np.full(300, 1e8 / 3)):
            X_more = np.c_[X, column]
            model = fit(X_more, codes, variant)
            # Per value, the precision of a constant depends on how many rows each group has.
            atol = 1e-9 if variant == "shared" else 0.1
            np.testing.assert_allclose(model.predict_proba(X_more), plain.predict_proba(X), atol=atol)
            other = fit(1e3 * X_more, codes, variant)
            expected = model.log_density(X_more) - 4 * np.log(1e3)
            np.testing.assert_allclose(other.log_density(1e3 * X_more), expected, atol=1e-3)
            with pytest.raises(InputError, match="do not vary within groups"):
                fit(X_more, codes, variant, shrinkage=0)
        for offset in (0.0, 1e9):
            telling = np.c_[X, codes[:, 0] / 3 + codes[:, 1] / 70 + offset]
            with pytest.raises(InputError, match="do not vary within groups"):
                fit(telling, codes, variant, shrinkage=0)
            for unit in (1.0, 1e5):
                for shrinkage in ("auto", 0.3):
                    model = fit(telling * [1, 1, 1, unit], codes, variant, shrinkage=shrinkage)
                    assert model.score(telling * [1, 1, 1, unit], codes[:, 0]) == 1.0
                    expected = unit**2 * np.var(telling[:, 3]) / 300
                    assert model.covariance_[3, 3] == pytest.approx(expected, rel=1e-6)

    def test_one_column_that_varies_beside_one_that_does_not(self):
        X, codes = make_data(n=300, p=1)
        model = fit(np.c_[X, codes[:, 0]], codes)
        assert model.shrinkage_ == 0
        assert model.score(np.c_[X, codes[:, 0]], codes[:, 0]) == 1.0

    def test_rounding_of_a_constant_column_is_no_variation(self):
        """The mean of many equal numbers is off by rounding."""
        columns = standardise_columns(np.full((100_000, 2), [0.1, 0.7]), np.ones(100_000))
        assert (columns.features == 0).all()

    def test_small_weights_do_not_inflate_the_variance_of_a_constant(self):
        X, codes = make_data(n=300, p=3)
        model = fit(np.c_[X, codes[:, 0]], codes, sample_weight=np.full(300, 1e-9))
        assert model.covariance_[3, 3] == pytest.approx(np.var(codes[:, 0]))

    def test_a_row_of_negligible_weight_does_not_make_a_column_vary(self):
        X, codes = make_data(n=100, p=2)
        X = np.c_[X, np.r_[1.0, np.zeros(99)]]
        weight = np.r_[1e-323, np.ones(99)]
        model = fit(X, codes, sample_weight=weight)
        assert np.isfinite(model.log_density(X)).all()


class TestAnchor:
    def test_the_anchor_does_not_depend_on_units(self):
        """Columns that vary within groups, and one that equals the class."""
        X, codes = make_data(n=300, p=3)
        X = np.c_[X, codes[:, 0]]
        space = GroupSpace.from_cardinalities([2, 3])
        groups, position = space.distinct(codes)
        weight, seen = np.full(300, 1 / 300), GroupTable.of(space, groups)
        features = (X - X.mean(axis=0)) / np.sqrt(X.var(axis=0).mean())
        plain = gaussian_energies(features, position, weight, seen)
        for units in ([1e-4, 1, 1, 1], [1, 1e-8, 3, 1], [1, 1, 1, 0.01]):
            other = gaussian_energies(features * units, position, weight, seen)
            np.testing.assert_allclose(other.weight * units, plain.weight, rtol=1e-6)
            np.testing.assert_allclose(other.bias, plain.bias, rtol=1e-6)

    def test_rounding_of_a_constant_column_gets_no_large_weight(self):
        """0.3 and 0.1 + 0.2 differ only by rounding."""
        X, codes = make_data(n=300, p=3)
        X = np.c_[X, np.where(np.arange(300) % 2, 0.3, 0.1 + 0.2)]
        clf = CRMClassifier(1e-2, anchor="gaussian").fit(X, codes[:, 0], attributes=codes[:, 1])
        assert np.abs(clf.coef_).max() < 10
