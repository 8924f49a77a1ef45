"""Step 1 as a problem: standardised features at every scale, and the units of the optimiser."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

from compshift import (
    AffineExtrapolation,
    CRMClassifier,
    CRMClassifierCV,
    GroupSpace,
    InputError,
    LogitAdjustedClassifier,
)
from compshift.core.energy import GroupTable
from compshift.crm.blocks import ArrayRows
from compshift.crm.features import unequal_scales
from compshift.crm.problem import StepOneProblem, _spread, softmax_curvature, standardise
from compshift.crm.solver import Parameters, solve
from tests.estimators.made_data import make_data


def test_standardised_features_have_mean_zero_and_mean_square_one():
    rng = np.random.default_rng(0)
    X, weight = rng.normal(size=(50, 3)) * [1, 5, 20] + 100, rng.uniform(0.1, 2, size=50)
    features, (mean, scale, *_) = standardise(X, weight)
    np.testing.assert_allclose(np.average(X, axis=0, weights=weight), mean)
    np.testing.assert_allclose(np.average(features, axis=0, weights=weight), 0, atol=1e-12)
    assert np.average((features**2).mean(axis=1), weights=weight) == pytest.approx(1)
    np.testing.assert_allclose(features * scale + mean, X)


@pytest.mark.parametrize("unit", [1e-200, 1e-20, 1e20, 1e200])
def test_any_unit_can_be_standardised(unit):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 2))
    expected, _ = standardise(X, np.ones(20))
    np.testing.assert_allclose(standardise(X * unit, np.ones(20))[0], expected, rtol=1e-10)


def test_constant_features_are_standardised_to_zero():
    features, (mean, scale, *_) = standardise(np.full((4, 2), 7.0), np.ones(4))
    assert scale == 1.0
    assert (features == 0).all()
    assert (mean == 7).all()


def test_the_curvature_of_a_softmax_is_at_least_one():
    found = softmax_curvature(np.array([0.0, 0.5, 0.1, 1.0]), 3.0, 0.01)
    np.testing.assert_allclose(found, [1, np.sqrt(1.51), 1, 1])
    np.testing.assert_allclose(softmax_curvature(np.array([0.5]), 1.0, 100.0), np.sqrt(100.5))


def test_the_spread_is_exact_with_every_direction_as_a_probe():
    """The spread is the mean of λ² over the mean of λ, which is 1."""
    rng = np.random.default_rng(0)
    X, weight = rng.normal(size=(400, 6)) * [1, 2, 4, 8, 1, 1], rng.uniform(0.5, 2, size=400)
    features, _ = standardise(X, weight)
    moments = np.cov(features.T, aweights=weight, bias=True)
    eigenvalues = np.linalg.eigvalsh(moments)
    assert eigenvalues.mean() == pytest.approx(1)
    assert _spread(moments @ np.eye(6) * np.sqrt(6)) == pytest.approx((eigenvalues**2).mean())


@pytest.mark.parametrize("leading", [1, 30])
def test_a_few_probes_measure_the_spread_to_a_factor_of_two(leading):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 200)) * np.r_[np.full(5, np.sqrt(leading)), np.ones(195)]
    features, standard = standardise(X, np.ones(len(X)))
    exact = (np.linalg.eigvalsh(features.T @ features / len(X)) ** 2).mean()
    assert exact / 2 < standard.spread < 2 * exact


def test_the_spread_does_not_depend_on_order_repetitions_or_units():
    rng = np.random.default_rng(1)
    X, times = rng.normal(size=(300, 4)) * [1, 1, 3, 9], rng.integers(0, 4, size=300)
    _, weighted = standardise(X[times > 0], times[times > 0].astype(np.float64))
    repeated = rng.permutation(np.repeat(X, times, axis=0))
    _, plain = standardise(repeated * 1e-8 + 1, np.ones(len(repeated)))
    assert plain.spread == pytest.approx(weighted.spread, rel=1e-5)
    assert weighted.spread == pytest.approx(3.1, abs=0.3)


def test_constant_features_have_spread_one():
    _, standard = standardise(np.full((5, 2), 3.0), np.ones(5))
    assert standard.spread == 1


class Counted:
    """A problem that counts its evaluations, in any units."""

    single_precision = None

    def __init__(self, problem, curvature):
        self.problem, self.curvature, self.n_evaluations = problem, curvature, 0
        self.shape, self.frequency, self.alpha = problem.shape, problem.frequency, problem.alpha

    def evaluate(self, weight, bias):
        self.n_evaluations += 1
        return self.problem.evaluate(weight, bias)


def test_units_save_evaluations_and_leave_the_solution_unchanged():
    """Groups that are far apart make a few directions of the features vary most."""
    rng = np.random.default_rng(0)
    n, space = 2000, GroupSpace.from_cardinalities([7, 4])
    codes = space.codes(rng.integers(space.n_groups, size=n))
    X = space.one_hot(codes) @ rng.normal(size=(space.width, 200)) + rng.normal(size=(n, 200))
    groups, position = space.distinct(codes)
    features, standard = standardise(X, np.ones(n))
    rows, frequency = ArrayRows(features, position, np.full(n, 1 / n)), np.bincount(position) / n
    problem = StepOneProblem(rows, GroupTable.of(space, groups), frequency, alpha=0.1, spread=standard.spread)
    assert problem.curvature.min() > 1.5
    ours, plain = Counted(problem, problem.curvature), Counted(problem, np.ones(11))
    found, expected = (solve(counted, tol=1e-6, max_iter=500) for counted in (ours, plain))
    assert found.converged
    assert expected.converged
    np.testing.assert_allclose(found.weight, expected.weight, atol=1e-4)
    np.testing.assert_allclose(found.bias, expected.bias, atol=1e-4)
    _, of_weights, of_biases = problem.evaluate(found.weight, found.bias)  # their sizes do not depend on units
    assert found.gradient == pytest.approx(max(np.abs(of_weights).max(), np.abs(of_biases / frequency).max()), rel=1e-6)
    assert ours.n_evaluations < 0.9 * plain.n_evaluations


@pytest.mark.parametrize("clf", [CRMClassifier(), LogitAdjustedClassifier()], ids=lambda clf: type(clf).__name__)
def test_denormal_features_raise(clf):
    """The weights of denormal features would be infinite, and every probability NaN."""
    X = np.random.default_rng(0).normal(size=(30, 2))
    codes = np.array([[0, 0], [0, 1], [1, 1]])[np.arange(30) % 3]
    with pytest.raises(InputError, match="rescale the features, for example multiply them by 1e300"):
        clf.fit(X * 5e-320, codes[:, 0], attributes=codes[:, 1])
    same = clf.fit(np.ldexp(X, -996), codes[:, 0], attributes=codes[:, 1]).predict_proba(np.ldexp(X, -996))
    np.testing.assert_allclose(same, clf.fit(X, codes[:, 0], attributes=codes[:, 1]).predict_proba(X), atol=1e-9)


@pytest.mark.parametrize("spoil", [lambda X: X * [1e-9, 1], lambda X: np.where(X.max() == X, 1e12, X)])
def test_features_far_smaller_than_others_are_warned_of(spoil):
    X = spoil(np.random.default_rng(0).normal(size=(30, 2)))
    codes = np.array([[0, 0], [0, 1], [1, 1]])[np.arange(30) % 3]
    with pytest.warns(UserWarning, match="ineffective: divide each feature by its standard deviation"):
        CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1])


def test_a_feature_that_is_zero_up_to_rounding_is_not_warned_of():
    X = np.random.default_rng(0).normal(size=(30, 4)) * [1, 1, 1e-33, 1]
    codes = np.array([[0, 0], [0, 1], [1, 1]])[np.arange(30) % 3]
    CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1])  # pytest would raise a warning


@pytest.mark.parametrize("vanishing", [5e-324, 1e-320, 1e-309])
@pytest.mark.parametrize("rows", ["some", "a group"])
@pytest.mark.parametrize(
    "clf",
    [
        CRMClassifier(),
        CRMClassifier(anchor="gaussian"),
        AffineExtrapolation(LogisticRegression(), cv=2, random_state=0),
    ],
)
def test_weights_that_vanish_beside_the_others_count_as_zero(clf, rows, vanishing):
    """They give the model of the other samples, without a warning (pytest would raise it)."""
    X, codes = make_data(missing=())
    vanished = np.arange(len(X)) < 6 if rows == "some" else (codes == [1, 2]).all(axis=1)
    one, other = (
        clone(clf).fit(X, codes[:, 0], attributes=codes[:, 1], sample_weight=np.where(vanished, weight, 1.0))
        for weight in (vanishing, 0.0)
    )
    np.testing.assert_array_equal(one.predict_proba(X), other.predict_proba(X))
    np.testing.assert_array_equal(one.seen_, other.seen_)


def test_a_class_whose_weights_vanish_does_not_count():
    X, codes = make_data()
    weight = np.where(codes[:, 0] == 1, 1e-320, 1.0)
    with pytest.raises(InputError, match=r"only one class \(0\) in the rows with a weight above 0"):
        CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1], sample_weight=weight)


@pytest.mark.parametrize("constant", [0.1, 1e-17 * 7, -1 / 3, 1e9 + 0.1])
def test_a_constant_feature_is_not_taken_for_a_small_one(constant):
    """Rounding errors in the mean of a constant feature do not trigger the warning either."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4001, 3))
    X[:, 1] = constant
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        standardise(X, rng.random(4001))
    X[:, 1] += 1e-9 * rng.normal(size=4001)
    if constant < 1:
        with pytest.warns(UserWarning, match="feature 1 by only"):
            standardise(X, rng.random(4001))


@pytest.mark.parametrize("anchored", [False, True])
def test_the_gradient_is_that_of_the_penalised_risk(anchored):
    """Compare with finite differences, for a ridge towards zero and towards an anchor."""
    rng = np.random.default_rng(3)
    space = GroupSpace.from_cardinalities([2, 3])
    seen = GroupTable.of(space, space.codes(np.array([0, 1, 3, 5])))
    position = np.r_[np.arange(4), rng.integers(4, size=26)]
    rows = ArrayRows(rng.normal(size=(30, 2)), position, np.full(30, 1 / 30))
    frequency = np.bincount(position) / 30
    anchor = Parameters(rng.normal(size=(space.width, 2)), np.zeros(4)) if anchored else None
    problem = StepOneProblem(rows, seen, frequency, alpha=0.7, anchor=anchor)
    weight, bias = rng.normal(size=problem.shape), rng.normal(size=4)
    found = problem.evaluate(weight, bias)
    step = 1e-6
    for index in np.ndindex(weight.shape):
        moved = weight.copy()
        moved[index] += step
        slope = (problem.evaluate(moved, bias).value - found.value) / step
        assert slope == pytest.approx(found.weight_gradient[index], abs=1e-5)
    for index in range(4):
        moved = bias.copy()
        moved[index] += step
        slope = (problem.evaluate(weight, moved).value - found.value) / step
        assert slope == pytest.approx(found.bias_gradient[index], abs=1e-5)


class TestUnequalScales:
    """Columns that are not standardised: the ridge acts on those of small scale only."""

    def fit(self, factors, clf=None, *, named=False):
        """Fit columns of standard deviation about 1, multiplied by factors, and return the sentences of warnings."""
        X, codes = make_data(n=120)
        X = X[:, : len(factors)] / X.std(axis=0)[: len(factors)] * factors
        X = pd.DataFrame(X).add_prefix("f") if named else X
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            (clf or CRMClassifier()).fit(X, codes[:, 0], attributes=codes[:, 1])
        return [str(warning.message) for warning in caught if "times that of" in str(warning.message)]

    @pytest.mark.parametrize("clf", [CRMClassifier(), CRMClassifierCV([0.1])])
    def test_one_warning_names_the_columns_and_the_remedy(self, clf):
        (sentence,) = self.fit([1, 400, 5], clf, named=True)
        assert sentence == (
            "the standard deviation of 'f1' is 400 times that of 'f0', so the penalty mostly shrinks the weights of "
            "the latter: standardise the columns, as in make_pipeline(StandardScaler(), CRMClassifierCV()) or "
            "compshift.table_classifier"
        )
        (sentence,) = self.fit([400, 1, 5], clf)
        assert sentence.startswith("the standard deviation of column 0 is 400 times that of column 1, so")

    def test_scales_that_hardly_differ_are_accepted(self):
        assert self.fit([1, 29, 5], named=True) == []
        assert self.fit([1e-200, 2e-199, 5e-200]) == []

    def test_without_a_ridge_scales_do_not_matter(self):
        assert self.fit([1, 400, 5], CRMClassifier(0, tol=1e-2)) == []

    def test_extents_have_a_warning_of_their_own(self):
        X, codes = make_data(n=120)
        with pytest.warns(UserWarning, match="deviates from its mean"):
            CRMClassifier().fit(X[:, :2] * [1, 1e9], codes[:, 0], attributes=codes[:, 1])
        assert self.fit([1, 1e9, 5]) == []

    def test_wide_arrays_are_embeddings(self):
        rng = np.random.default_rng(0)
        X, codes = rng.normal(size=(200, 65)) * np.r_[400, np.ones(64)], rng.integers(0, 2, size=(200, 2))
        CRMClassifier(10.0).fit(X, codes[:, 0], attributes=codes[:, 1])  # would raise, because warnings are errors
        with pytest.warns(UserWarning, match="the standard deviation of column 0 is"):
            CRMClassifier(10.0).fit(X[:, :64], codes[:, 0], attributes=codes[:, 1])

    def test_rare_categories_and_constants_have_no_small_scale(self):
        X = np.random.default_rng(0).normal(size=(10_000, 3))
        X[:, 1] = 7.0
        X[:, 2] = np.arange(10_000) < 2  # its standard deviation is 0.014
        assert unequal_scales(X) is None
        large, small, ratio = unequal_scales(X * [1, 1, 1e-3])
        assert (large, small) == (0, 2)
        assert ratio == pytest.approx(2000 * X[:, 0].std())
        assert unequal_scales(np.full((3, 2), 5.0)) is None
        assert unequal_scales(X * 1e300) is None
