"""Both steps of CRM: anchors, cross-fitting and the kinds of bias."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

import tests.references as reference
from compshift import AffineHull, CRMClassifier, GroupSpace
from compshift.core.candidates import Candidates
from compshift.core.energy import log_evidence
from compshift.core.folds import row_folds
from compshift.crm.blocks import ArrayRows
from compshift.crm.fit import FitParams, StandardisedRows, check_cross_fit, step_one, step_two
from compshift.crm.gaussian import fit_shared, gaussian_energies
from compshift.crm.problem import TemperatureProblem
from compshift.crm.solver import Parameters, solve

SPACE = GroupSpace.from_cardinalities([3, 3])


def make_data(n=600, p=4, missing=(0, 4), signal=1.0, seed=0):
    rng = np.random.default_rng(seed)
    means = signal * np.random.default_rng(7).normal(size=(6, p))
    codes = SPACE.codes(rng.choice(np.setdiff1d(np.arange(9), missing), size=n))
    return SPACE.one_hot(codes) @ means + rng.normal(size=(n, p)), codes


def training_rows(X, codes):
    groups, position = SPACE.distinct(codes)
    candidates = Candidates.of(SPACE, groups, np.bincount(position).astype(float), "all")
    return StandardisedRows.of(X, position, np.ones(len(X)), candidates), candidates


class TestAnchor:
    def test_gaussian_energies_are_those_of_the_densities(self):
        """log p(x|z) − log p(x|z') of Gaussians with the fitted means and covariance is the energy difference."""
        X, codes = make_data(n=5000)
        rows, _ = training_rows(X, codes)
        weight, bias = gaussian_energies(rows.features, rows.position, rows.weight, rows.seen)
        true = np.random.default_rng(7).normal(size=(6, 4)) * rows.standard.scale  # for covariance 1 in X's units
        for value, other in ((0, 1), (1, 2), (3, 5)):
            np.testing.assert_allclose(
                weight[other] - weight[value], true[value] - true[other], atol=0.35 * rows.standard.scale
            )
        fitted, _ = fit_shared(rows.features, rows.position, rows.weight * 5000, SPACE, rows.seen.codes, None)
        x = rows.features[0]
        common = []
        for group, own in zip(rows.seen.codes, bias, strict=True):
            mean = sum(fitted.value_means[column] for column in SPACE.offsets + group)
            energy = sum(weight[column] @ x for column in SPACE.offsets + group)
            common.append(multivariate_normal(mean, fitted.covariance).logpdf(x) + energy + own)
        np.testing.assert_allclose(common, common[0], rtol=1e-9)

    def test_a_strong_ridge_gives_the_anchor(self):
        X, codes = make_data()
        rows, _ = training_rows(X, codes)
        anchor = gaussian_energies(rows.features, rows.position, rows.weight, rows.seen).weight
        clf = CRMClassifier(1e6, anchor="gaussian").fit(X, codes[:, 0], attributes=codes[:, 1])
        np.testing.assert_allclose(clf.coef_ * rows.standard.scale, anchor, atol=1e-4)
        assert clf.bias_gap_ < 1e-5

    def test_a_weak_ridge_makes_the_anchor_irrelevant(self):
        X, codes = make_data(signal=0.5)
        fits = [
            CRMClassifier(1e-9, anchor=anchor).fit(X, codes[:, 0], attributes=codes[:, 1])
            for anchor in ("zero", "gaussian")
        ]
        np.testing.assert_allclose(fits[0].predict_proba(X), fits[1].predict_proba(X), atol=1e-3)

    def test_weights_count_as_repetitions_and_units_do_not_matter(self):
        X, codes = make_data(n=200)
        weight = np.random.default_rng(0).integers(1, 3, size=200)
        rows = np.repeat(np.arange(200), weight)
        clf = CRMClassifier(anchor="gaussian")
        once = clf.fit(X, codes[:, 0], attributes=codes[:, 1], sample_weight=weight).predict_proba(X)
        often = clf.fit(X[rows], codes[rows, 0], attributes=codes[rows, 1]).predict_proba(X)
        np.testing.assert_allclose(once, often, atol=0.02)  # the shrinkage of the covariance counts rows
        scaled = clf.fit(1e3 * X + 5, codes[:, 0], attributes=codes[:, 1], sample_weight=weight)
        np.testing.assert_allclose(scaled.predict_proba(1e3 * X + 5), once, atol=1e-6)

    def test_features_that_are_constant_within_groups_are_fitted(self):
        _, codes = make_data(n=100)
        clf = CRMClassifier(anchor="gaussian").fit(codes.astype(float), codes[:, 0], attributes=codes[:, 1])
        assert clf.score(codes, codes[:, 0]) == 1.0


class TestCrossFit:
    def test_energies_of_a_sample_come_from_a_fit_without_it(self):
        X, codes = make_data(n=200)
        rows, _ = training_rows(X, codes)
        params = FitParams(1e-2, cross_fit=3)
        fitted = step_one(rows, params, tol=1e-6, max_iter=1000)
        fold = row_folds(rows.position, 3, np.random.default_rng(0))
        for number in range(3):
            own = fold == number
            others, _ = rows.subset(np.flatnonzero(~own))
            alone = solve(others.problem(params), tol=1e-6, max_iter=1000)
            expected = rows.features[own] @ alone.weight.T
            np.testing.assert_allclose(fitted.energies[own] / fitted.temperature, expected, atol=1e-2)

    def test_true_means_five_folds_for_numpy_too(self):
        assert [check_cross_fit(flag) for flag in (True, False, np.True_, np.False_, 3)] == [5, 0, 5, 0, 3]

    def test_learned_and_extrapolated_bias_agree_on_seen_groups(self):
        X, codes = make_data(n=300, p=20)
        clf = CRMClassifier(1e-3, cross_fit=True).fit(X, codes[:, 0], attributes=codes[:, 1])
        assert clf.cross_fit_ == 5
        np.testing.assert_allclose(clf.bias_[clf.seen_], clf.learned_bias_[clf.seen_], atol=1e-5)

    def test_the_temperature_shrinks_overfitted_energies_and_stretches_others(self):
        X, codes = make_data(n=150, p=60, signal=0.3)
        weak = CRMClassifier(1e-5, cross_fit=5).fit(X, codes[:, 0], attributes=codes[:, 1])
        assert weak.temperature_ < 0.7
        strong = CRMClassifier(1.0, cross_fit=5).fit(X, codes[:, 0], attributes=codes[:, 1])
        assert strong.temperature_ > 1
        plain = CRMClassifier(1.0).fit(X, codes[:, 0], attributes=codes[:, 1])
        np.testing.assert_allclose(strong.coef_, strong.temperature_ * plain.coef_, rtol=1e-6)
        assert plain.temperature_ == 1.0

    def test_cross_fitting_raises_the_held_out_likelihood_of_seen_groups_where_energies_overfit(self):
        X, codes = make_data(n=200, p=40)
        X_new, new = make_data(n=2000, p=40, seed=1)
        losses = []
        for parts in (False, 5):
            clf = CRMClassifier(1e-4, cross_fit=parts, prior="train").fit(X, codes[:, 0], attributes=codes[:, 1])
            joint = clf.group_log_proba(X_new)
            losses.append(-joint[np.arange(2000), SPACE.locate(new, clf.groups_)].mean())
        assert losses[1] < 0.8 * losses[0]

    def test_the_gradient_of_the_temperature_equals_finite_differences(self):
        rng = np.random.default_rng(3)
        X, codes = make_data(n=50)
        rows, _ = training_rows(X, codes)
        energies = ArrayRows(rng.normal(size=(50, 6)), rows.position, rows.weight)
        problem = TemperatureProblem(energies, rows.seen, rows.frequency)
        bias, step = rng.normal(size=7), 1e-6
        found = problem.evaluate(np.array([[1.3]]), bias)
        up, down = (problem.evaluate(np.array([[1.3 + sign * step]]), bias).value for sign in (1, -1))
        assert found.weight_gradient[0, 0] == pytest.approx((up - down) / (2 * step), rel=1e-5)
        assert solve(problem, tol=1e-8, max_iter=100, start=Parameters(np.ones((1, 1)), bias)).converged

    def test_a_group_of_one_sample_can_be_cross_fitted(self):
        X, codes = make_data(n=100)
        rare = np.flatnonzero((codes == codes[0]).all(axis=1))[1:]
        X, codes = np.delete(X, rare, axis=0), np.delete(codes, rare, axis=0)
        clf = CRMClassifier(cross_fit=3).fit(X, codes[:, 0], attributes=codes[:, 1])
        assert np.isfinite(clf.bias_).all()


class TestBias:
    def test_each_kind_of_bias_gives_the_probabilities_of_the_equation(self):
        X, codes = make_data()
        clf = CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1])
        trust = clf.effective_sample_size_ / (clf.effective_sample_size_ + 30)
        expected = {
            "extrapolated": clf.bias_,
            "learned": clf.learned_bias_,
            "cumulant": clf.cumulant_bias_,
            "shrunk": trust * clf.bias_ + (1 - trust) * clf.cumulant_bias_,
        }
        energies = (X[:3] - clf.feature_mean_) @ clf.coef_.T
        for kind, bias in expected.items():
            joint = clf.set_params(bias=kind).group_log_proba(X[:3])
            for row, found in zip(energies, joint, strict=True):
                score = clf.log_prior_ - bias
                np.testing.assert_allclose(found, reference.group_log_posterior(row, (3, 3), clf.groups_, score))

    def test_the_cumulant_bias_is_close_to_the_truth_where_samples_are_few(self):
        """Gaussians far apart: B* of a dropped group depends on few samples, but the bias from two moments does not."""
        X, codes = make_data(n=3000, signal=2.5)
        clf = CRMClassifier(1e-3, anchor="gaussian").fit(X, codes[:, 0], attributes=codes[:, 1])
        unseen = ~clf.seen_
        assert clf.effective_sample_size_[unseen].max() < 30
        assert (clf.pareto_k_[unseen] > 0.7).all()
        X_all, all_codes = make_data(n=40_000, missing=(), signal=2.5, seed=5)
        # With the true inputs of every group, B up to one constant is what makes the joint model calibrated.
        groups, position = SPACE.distinct(all_codes)
        energies = (X_all - clf.feature_mean_) @ clf.coef_.T
        table = Candidates(AffineHull(SPACE, groups), np.ones(9), groups).table
        bias = np.zeros(9)
        for _ in range(200):
            evidence = log_evidence(energies, table, np.log(1 / 9) - bias)
            logits = np.log(1 / 9) - bias - energies @ SPACE.one_hot(groups).T - evidence[:, None]
            bias += np.log(np.exp(logits).mean(axis=0) / (np.bincount(position) / len(position)))
        true = bias[unseen] - bias[~unseen].mean()
        for found, limit in ((clf.cumulant_bias_, 1.0), (clf.bias_, np.inf)):
            error = np.abs(found[unseen] - found[~unseen].mean() - true).max()
            assert error < limit
        gap = [np.abs(b[unseen] - b[~unseen].mean() - true).max() for b in (clf.cumulant_bias_, clf.bias_)]
        assert gap[0] < gap[1]

    @pytest.mark.filterwarnings("ignore:the standard deviation of column 2")
    def test_the_cumulant_bias_is_bounded_below_by_the_samples(self):
        """With two moments only, a far unseen group would be predicted for a fifth of the samples of seen groups."""
        codes = np.array([[0, 0], [0, 1], [1, 1], [0, 2], [1, 2]])[np.arange(500) % 5]
        X = np.random.default_rng(0).normal(size=(500, 4)) + 50 * codes @ np.array([[2, 1, 0, 0], [0, 1, 2, 0]])
        clf = CRMClassifier(1e-8, bias="cumulant").fit(X, codes[:, 0], attributes=codes[:, 1])
        assert clf.score(X, codes[:, 0]) == 1

    def test_tail_indices_are_left_out_on_request(self):
        X, codes = make_data(n=100)
        rows, candidates = training_rows(X, codes)
        model = step_two(candidates, step_one(rows, FitParams(1e-2), tol=1e-4, max_iter=100), tails=False)
        assert np.isnan(model.pareto_k).all()


def test_tail_indices_of_too_many_weights_are_nan(monkeypatch):
    X, codes = make_data()
    measured = CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1])
    assert np.isfinite(measured.pareto_k_).any()
    monkeypatch.setattr("compshift.crm.fit.MAX_TAIL_WEIGHTS", len(X) * len(measured.groups_) - 1)
    skipped = CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1])
    assert np.isnan(skipped.pareto_k_).all()
    np.testing.assert_array_equal(skipped.bias_, measured.bias_)
