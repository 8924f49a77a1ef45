"""AdditiveGaussian: densities, the classifier they imply, warnings and parameters."""

import numpy as np
import pandas as pd
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from compshift import ExtrapolationWarning, GroupSpace, InputError
from compshift.estimators.additive_gaussian import AdditiveGaussian
from tests.estimators.made_data import make_data

VARIANTS = ("shared", "per-value")


@parametrize_with_checks([AdditiveGaussian(), AdditiveGaussian("per-value")])
@pytest.mark.filterwarnings("ignore::compshift.ExtrapolationWarning")
def test_common_checks(estimator, check):
    check(estimator)


class Truth:
    """A true model with random parameters; it draws samples and computes their densities."""

    def __init__(self, cardinalities=(2, 3), p=2, seed=0, shared=False):
        rng = np.random.default_rng(seed)
        self.space = GroupSpace.from_cardinalities(cardinalities)
        self.groups = self.space.codes(np.arange(self.space.n_groups))
        roots = rng.normal(size=(self.space.width, p, p))
        parts = np.stack([0.3 * np.eye(p) + root @ root.T / p for root in roots])
        parts = np.tile(parts[0], (len(parts), 1, 1)) if shared else parts
        one_hot = self.space.one_hot(self.groups)
        self.covariances = np.linalg.inv(np.tensordot(one_hot, parts, axes=1))  # (g, p, p)
        natural = one_hot @ rng.normal(size=(self.space.width, p))
        self.means = np.einsum("gij,gj->gi", self.covariances, natural)

    def sample(self, groups, n, seed=0):
        """``n`` rows of each of the groups, by flat index."""
        rng = np.random.default_rng(seed)
        X = [rng.multivariate_normal(self.means[g], self.covariances[g], size=n) for g in groups]
        return np.concatenate(X), np.repeat(self.groups[list(groups)], n, axis=0)

    def log_density(self, X, group):
        return multivariate_normal(self.means[group], self.covariances[group]).logpdf(X)


def fit(X, codes, *arguments, sample_weight=None, **parameters):
    model = AdditiveGaussian(*arguments, **parameters)
    return model.fit(X, codes[:, 0], attributes=codes[:, 1:], sample_weight=sample_weight)


def likelihood(model, X, codes):
    """Mean log p(x|z) of the rows."""
    position = model.space_.locate(codes, model.groups_)
    return model.log_density(X)[np.arange(len(X)), position].mean()


def covariance_of(model, group):
    return model.covariance_ if model.covariance == "shared" else np.linalg.inv(model.precisions_[group])


@pytest.fixture(scope="module", params=VARIANTS)
def fitted(request):
    """A model of 2 × 3 groups without (0, 0), offset and scaled so that units matter."""
    X, codes = Truth(seed=3).sample(range(1, 6), 150)
    X = 5.0 * X + 100.0
    return fit(X, codes, request.param), X, codes


class TestDensities:
    def test_log_densities_equal_scipys(self, fitted):
        model, X, _ = fitted
        logs = model.log_density(X[:20])
        for group in range(6):
            covariance = covariance_of(model, group)
            for row in range(20):
                expected = multivariate_normal(model.means_[group], covariance).logpdf(X[row])
                assert logs[row, group] == pytest.approx(expected, abs=1e-9)
        np.testing.assert_array_equal(model.log_density(X[:20], [[1, 2], [0, 0]]), logs[:, [5, 0]])

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_densities_integrate_to_one(self, variant):
        for p, n in ((1, 4001), (2, 401)):
            X, codes = Truth(p=p, seed=1).sample(range(1, 6), 200)
            model = fit(X, codes, variant)
            axis = np.linspace(-15, 15, n)
            grid = np.stack(np.meshgrid(*[axis] * p), axis=-1).reshape(-1, p)
            total = np.exp(model.log_density(grid)).sum(axis=0) * (axis[1] - axis[0]) ** p
            np.testing.assert_allclose(total, 1.0, atol=1e-6)

    def test_the_unseen_density_is_that_of_the_paper(self, fitted):
        """Eq. "test-train-cond-density-rel": the affine combination of log densities, normalised by an integral."""
        model, _, _ = fitted
        assert not model.seen_[0]
        weights = model.hull_.weights([0, 0]).astype(float)
        middle, width = model.means_[0], 12 * np.sqrt(np.diag(model.covariance_))
        axes = [np.linspace(m - w, m + w, 601) for m, w in zip(middle, width, strict=True)]
        grid = np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, 2)
        cell = np.prod([axis[1] - axis[0] for axis in axes])
        combined = model.log_density(grid, model.hull_.observed) @ weights
        near = np.abs(grid - middle).max(axis=1) < 3 * np.sqrt(model.covariance_.max())
        expected = combined - (logsumexp(combined) + np.log(cell))
        np.testing.assert_allclose(model.log_density(grid[near], [0, 0])[:, 0], expected[near], atol=1e-6)

    def test_samples_of_an_unseen_group_have_its_moments(self, fitted):
        model, _, _ = fitted
        n = 200_000
        sample = model.sample(n, [0, 0], random_state=0)
        covariance = covariance_of(model, 0)
        assert sample.shape == (n, 2)
        np.testing.assert_allclose(sample.mean(axis=0), model.means_[0], atol=5 * np.sqrt(covariance.max() / n))
        np.testing.assert_allclose(np.cov(sample.T), covariance, atol=0.02 * covariance.max())
        several = model.sample(4, [[0, 0], [1, 2]], random_state=0)
        assert several.shape == (2, 4, 2)
        np.testing.assert_array_equal(several, model.sample(4, [[0, 0], [1, 2]], random_state=0))
        assert not np.array_equal(several, model.sample(4, [[0, 0], [1, 2]], random_state=1))

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_the_dropped_group_comes_close_to_the_truth(self, variant):
        truth = Truth(seed=2, shared=variant == "shared")
        test = truth.sample([0], 500, seed=9)[0]
        errors = []
        for n in (100, 10_000):
            X, codes = truth.sample(range(1, 6), n)
            logs = fit(X, codes, variant).log_density(test, [0, 0])[:, 0]
            errors.append(np.abs(logs - truth.log_density(test, 0)).mean())
        assert errors[1] < 0.05
        assert errors[1] < 0.5 * errors[0]

    def test_three_attributes_come_close_to_the_truth(self):
        truth = Truth((2, 2, 3), p=2, seed=5)
        seen = [0, 1, 3, 5, 6, 7, 8, 10, 11]
        X, codes = truth.sample(seen, 8000)
        model = fit(X, codes, "per-value")
        unseen = np.setdiff1d(np.arange(12), seen)
        assert model.inside_hull_[unseen].all()
        for group in unseen:
            test = truth.sample([group], 300, seed=7)[0]
            error = np.abs(model.log_density(test)[:, group] - truth.log_density(test, group)).mean()
            assert error < 0.08

    def test_groups_far_apart_keep_precision(self):
        rng = np.random.default_rng(0)
        codes = np.repeat([[0, 1], [1, 0], [1, 1]], 100, axis=0)
        X = rng.normal(size=(300, 2)) + 1e6 * codes
        model = fit(X, codes)
        logs = model.log_density(X)
        for row in range(0, 300, 30):
            group = int(model.space_.locate(codes[[row]], model.groups_)[0])
            expected = multivariate_normal(model.means_[group], covariance_of(model, group)).logpdf(X[row])
            assert logs[row, group] == pytest.approx(expected, abs=1e-7)

    def test_values_that_have_their_own_precision_need_per_value(self):
        truth = Truth(seed=2)
        X, codes = truth.sample(range(1, 6), 2000)
        shared, each = fit(X, codes), fit(X, codes, "per-value")
        test = truth.sample([0], 500, seed=9)
        assert likelihood(each, *test) > likelihood(shared, *test) + 0.05


class TestClassifier:
    def test_predictions_follow_bayes_rule(self, fitted):
        model, X, _ = fitted
        prior = np.array([0.1, 0.0, 0.2, 0.3, 0.15, 0.25])
        model = clone(model).set_params(prior=prior).fit(X, fitted[2][:, 0], attributes=fitted[2][:, 1])
        density = np.exp(model.log_density(X[:50]))
        joint, proba, score = model.group_log_proba(X[:50]), model.predict_proba(X[:50]), model.outlier_score(X[:50])
        for row in range(50):
            total = sum(prior[z] * density[row, z] for z in range(6))
            assert score[row] == pytest.approx(-np.log(total), abs=1e-9)
            for z in range(6):
                assert np.exp(joint[row, z]) == pytest.approx(prior[z] * density[row, z] / total, abs=1e-9)
            for y in range(2):
                expected = sum(prior[z] * density[row, z] for z in range(3 * y, 3 * y + 3)) / total
                assert proba[row, y] == pytest.approx(expected, abs=1e-9)
        np.testing.assert_array_equal(model.predict(X[:50]), np.argmax(proba, axis=1))
        np.testing.assert_array_equal(model.predict_group(X[:50]), model.groups_[np.argmax(joint, axis=1)])
        np.testing.assert_array_equal(model.group_log_proba(X[:50], [[1, 1], [0, 1]]), joint[:, [4, 1]])
        assert model.set_prior("train").log_prior_[0] == -np.inf

    def test_the_unseen_group_is_recognised(self):
        truth = Truth(seed=4, shared=True)
        truth.means = 3 * truth.means
        X, codes = truth.sample(range(1, 6), 300)
        model = fit(X, codes)
        test, z = truth.sample(range(6), 200, seed=1)
        found = (model.predict_group(test) == z).all(axis=1)
        bayes = np.argmax([truth.log_density(test, g) for g in range(6)], axis=0) == np.repeat(np.arange(6), 200)
        assert abs(found[:200].mean() - bayes[:200].mean()) < 0.05

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_several_targets(self, variant):
        X, codes = make_data((2, 3, 2), n=500, missing=(0, 5))
        y = pd.DataFrame({"shape": np.array(["disc", "square"])[codes[:, 0]], "colour": codes[:, 1]})
        model = AdditiveGaussian(variant).fit(X, y, attributes=codes[:, 2])
        assert model.targets_.names == ("shape", "colour")
        assert [part.tolist() for part in model.classes_] == [["disc", "square"], [0, 1, 2]]
        joint = np.exp(model.group_log_proba(X))
        for target, part in enumerate(model.predict_proba(X)):
            for value in range(part.shape[1]):
                expected = joint[:, model.groups_[:, target] == value].sum(axis=1)
                np.testing.assert_allclose(part[:, value], expected, atol=1e-12)
        predicted = model.predict(X)
        assert predicted.shape == (500, 2)
        assert model.score(X, y) == (predicted == y.to_numpy()).all(axis=1).mean()
        np.testing.assert_allclose(np.exp(model.predict_log_proba(X)[0]), model.predict_proba(X)[0])

    def test_support_restricts_the_candidates(self):
        X, codes = make_data()
        model = fit(X, codes, support=[[0, 0], [1, 1]])
        assert model.groups_.tolist() == [[0, 0], [1, 1]]
        assert (model.group_log_proba(X[:3], [[0, 1]]) == -np.inf).all()
        everything = fit(X, codes)
        np.testing.assert_allclose(model.log_density(X), everything.log_density(X)[:, [0, 4]])
        np.testing.assert_allclose(model.log_density(X, [[0, 1]]), everything.log_density(X)[:, [1]])

    def test_predictions_far_from_the_data_are_finite(self):
        X, codes = make_data()
        log_proba = fit(X, codes).predict_log_proba(1e9 * X)
        np.testing.assert_allclose(np.logaddexp.reduce(log_proba, axis=1), 0, atol=1e-9)
        assert np.isfinite(fit(X, codes).outlier_score(1e9 * X)).all()

    def test_outliers_score_higher_than_an_unseen_group(self):
        truth = Truth(seed=4, shared=True)
        X, codes = truth.sample(range(1, 6), 500)
        model = fit(X, codes)
        unseen, far = truth.sample([0], 200, seed=1)[0], truth.sample([0], 200, seed=2)[0] + 30
        assert np.median(model.outlier_score(unseen)) < np.quantile(model.outlier_score(X), 0.99)
        assert model.outlier_score(far).min() > model.outlier_score(X).max()


class TestWarnings:
    def test_groups_outside_the_hull_warn_once(self):
        X, codes = make_data((3, 3), missing=(0, 1, 5, 8))  # (0, 2), (1, 0), (1, 1), (2, 0), (2, 1)
        with pytest.warns(ExtrapolationWarning, match="4 of the 9 candidate groups lie outside the affine hull"):
            model = fit(X, codes)
        model.set_prior("uniform")  # does not warn again
        assert fit(X, codes, prior="hull").inside_hull_.sum() == 5

    def test_a_group_without_a_density_warns_and_gets_no_prior(self):
        rng = np.random.default_rng(0)
        z = np.repeat([[0, 1], [1, 0], [1, 1]], 400, axis=0)
        wide = np.where((z == 1).all(axis=1), 0.2, 1.0)  # precisions 1 + 1 − 25 < 0
        X = rng.normal(size=(1200, 2)) * wide[:, None] + z
        with pytest.warns(ExtrapolationWarning, match=r"1 of the 4 candidate groups have no density.*\(0, 0\)"):
            model = fit(X, z, "per-value", penalty=1e-4)
        assert model.proper_.tolist() == [False, True, True, True]
        assert model.log_prior_[0] == -np.inf
        np.testing.assert_allclose(np.exp(model.log_prior_[1:]), 1 / 3)
        assert np.linalg.eigvalsh(model.precisions_[0])[0] < 0
        assert np.isnan(model.means_[0]).all()
        assert np.isnan(model.log_density(X[:5])[:, 0]).all()
        assert (model.group_log_proba(X[:5])[:, 0] == -np.inf).all()
        assert np.isfinite(model.outlier_score(X)).all()
        np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1)
        with pytest.raises(InputError, match=r"no density, '\(0, 0\)': leave them out"):
            model.sample(3, [[0, 0], [1, 1]])
        with pytest.raises(InputError, match=r"prior is above 0 for groups that have no density"):
            model.set_prior([0.25, 0.25, 0.25, 0.25])
        with pytest.warns(ExtrapolationWarning), pytest.raises(InputError, match="none of its groups has a density"):
            fit(X, z, "per-value", penalty=1e-4, support=[[0, 0]])

    def test_a_fit_that_does_not_converge_warns(self):
        X, codes = make_data(n=100)
        with pytest.warns(ConvergenceWarning, match="stopped after 1 steps.*raise max_iter"):
            model = fit(X, codes, "per-value", max_iter=1)
        assert not model.converged_


def test_a_second_fit_forgets_the_first():
    X, codes = make_data(n=100)
    model = fit(X, codes, "per-value")
    model.set_params(covariance="shared").fit(X, codes[:, 0], attributes=codes[:, 1])
    assert not hasattr(model, "precisions_")


def test_clone_and_parameters():
    model = AdditiveGaussian("per-value", shrinkage=0.1, penalty=0.3, prior="hull", support="hull", tol=0.1, max_iter=7)
    assert clone(model).get_params() == model.get_params()
    assert set(model.get_params()) == {"covariance", "shrinkage", "penalty", "prior", "support", "tol", "max_iter"}


def test_bad_input_raises_a_clear_message():
    X, codes = make_data(n=60)
    for parameters, sentence in (
        ({"covariance": "per_value"}, "covariance 'per_value' is not known.*did you mean 'per-value'"),
        ({"shrinkage": "lw"}, "shrinkage is 'lw': pass 'auto', or a number from 0 to 1"),
        ({"shrinkage": 1.5}, "shrinkage is 1.5: pass 'auto', or a number from 0 to 1"),
        ({"shrinkage": -1}, "shrinkage is -1"),
        ({"penalty": 0}, "penalty is 0"),
        ({"penalty": "none"}, "penalty is 'none': pass 'auto', or a number above 0"),
        ({"prior": "flat"}, "prior 'flat' is not known"),
        ({"support": "seen"}, "support 'seen' is not known"),
        ({"tol": 0}, "tol is 0"),
        ({"max_iter": 0}, "max_iter is 0"),
    ):
        with pytest.raises(InputError, match=sentence):
            fit(X, codes, **parameters)
    with pytest.raises(InputError, match="attributes has 3 rows"):
        AdditiveGaussian().fit(X, codes[:, 0], attributes=[1, 2, 3])
    with pytest.raises(InputError, match="target y is None"):
        AdditiveGaussian().fit(X, None)
    with pytest.raises(InputError, match="within-group covariance of the 5 features is singular"):
        fit(np.c_[X, X[:, 0]], codes, shrinkage=0)
    with pytest.raises(InputError, match="singular"):
        fit(np.zeros_like(X), codes)
    with pytest.raises(InputError, match="6 matrices of 7000 × 7000, which would take more than 2 GB"):
        fit(np.zeros((60, 7000)), codes, "per-value")
    with pytest.raises(NotFittedError):
        AdditiveGaussian().sample(3, [0, 0])
    model = fit(X, codes)
    with pytest.raises(InputError, match="X has 2 features"):
        model.log_density(X[:, :2])
    with pytest.raises(InputError, match="codes has 3 for attribute 1"):
        model.log_density(X, [[0, 3]])
    with pytest.raises(InputError, match="n is 0"):
        model.sample(0, [0, 0])
    for nothing in ([], np.empty((0, 2), dtype=np.int64)):
        with pytest.raises(InputError, match="the list of groups is empty: pass at least one group"):
            model.sample(3, nothing)
        with pytest.raises(InputError, match="the list of groups is empty: pass at least one group"):
            model.log_density(X, nothing)
    with pytest.raises(InputError, match="the list of groups is empty: pass at least one group"):
        model.sample(3, groups=[])
    with pytest.raises(InputError, match="neither codes nor groups is passed: pass codes, or groups as a tuple"):
        model.sample(3)
    with pytest.raises(InputError, match="both codes and groups are passed: pass codes, or groups as a tuple"):
        model.log_density(X, [0, 0], groups=(0, 0))
    with pytest.raises(InputError, match="groups is 'land': pass a tuple of values, or a list of such tuples"):
        model.sample(3, groups="land")
    with pytest.raises(InputError, match=r"groups has the key \(1,\): pass one value of each attribute"):
        model.sample(3, groups=(1,))
    with pytest.raises(InputError, match=r"coef has shape \(2, 2\): pass an array of shape \(5, 4\)"):
        model.extrapolated_bias(np.zeros((2, 2)), np.zeros(4), np.zeros(5))
    with pytest.raises(InputError, match=r"feature_mean is 'mean': pass an array of numbers of shape \(4,\)"):
        model.extrapolated_bias(np.zeros((5, 4)), "mean", np.zeros(5))
    with pytest.raises(InputError, match=r"learned_bias has shape \(6,\): pass an array of shape \(5,\)"):
        model.extrapolated_bias(np.zeros((5, 4)), np.zeros(4), np.zeros(6))


def test_groups_takes_values_and_codes_takes_codes():
    X, codes = Truth((2, 2)).sample([1, 2, 3], 200)
    bird, place = np.array(["landbird", "waterbird"])[codes[:, 0]], np.array(["land", "water"])[codes[:, 1]]
    model = AdditiveGaussian().fit(X, bird, attributes=place)
    listed = [("waterbird", "land"), ("landbird", "land")]
    by_code = [[1, 0], [0, 0]]
    np.testing.assert_array_equal(model.log_density(X, groups=listed), model.log_density(X, by_code))
    np.testing.assert_array_equal(
        model.sample(5, groups=listed, random_state=0), model.sample(5, by_code, random_state=0)
    )
    np.testing.assert_array_equal(
        model.sample(5, groups=listed[0], random_state=0), model.sample(5, by_code[0], random_state=0)
    )
    assert model.sample(5, groups=listed[0]).shape == (5, X.shape[1])
