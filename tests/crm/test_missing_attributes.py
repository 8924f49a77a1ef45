"""Fits to samples with missing attributes, against loops over samples and groups."""

import math

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import compshift
import tests.references as reference
from compshift import CRMClassifier, CRMClassifierCV, GroupSpace
from compshift.core.arrays import BLOCK_CELLS
from compshift.core.bias import energy_moments
from compshift.core.candidates import Candidates
from compshift.core.posterior import known_patterns
from compshift.crm.fit import FitParams, fit_crm
from compshift.crm.inputs import Incomplete, LabelledSamples
from compshift.crm.missing_attributes import PartialProblem, PartialRows, fit_alternating
from compshift.crm.solver import Parameters
from tests.estimators.made_data import hide, make_data


def rows_of(X, codes, attributes, weight=None, n_targets=1):
    """Return the samples as ``fit_alternating`` takes them, and their known codes in the same order."""
    space = GroupSpace.from_cardinalities((codes.max(axis=0) + 1).tolist())
    known = np.concatenate([codes[:, :n_targets], np.where(np.isnan(attributes), -1, attributes).astype(int)], axis=1)
    complete = (known >= 0).all(axis=1)
    weight = np.ones(len(X)) if weight is None else weight
    seen, position = space.distinct(known[complete])
    candidates = Candidates.of(space, seen, np.bincount(position, weights=weight[complete]), "all")
    incomplete = Incomplete(X[~complete], weight[~complete], known_patterns(space, seen, known[~complete]))
    rows = PartialRows.of(X[complete], position, weight[complete], incomplete, candidates)
    return rows, np.concatenate([known[complete], known[~complete]])


def loop_log_likelihood(rows, known, weight, log_score):
    """Σ ω log p̃(known attributes | x), one sample and one group at a time."""
    seen, sizes = rows.seen.codes, rows.seen.space.cardinalities
    total = []
    for row, have, omega in zip(rows.features @ weight.T, known, rows.weight, strict=True):
        logits = [s - reference.group_energy(row, sizes, z) for s, z in zip(log_score, seen, strict=True)]
        own = [logit for logit, z in zip(logits, seen, strict=True) if ((have < 0) | (z == have)).all()]
        total.append(omega * (reference.log_sum_exp(own) - reference.log_sum_exp(logits)))
    return math.fsum(total)


def loop_posterior(rows, known, weight, log_score):
    """Posterior of the seen groups, (n, k)."""
    seen = rows.seen.codes
    logits = log_score - rows.features @ weight.T @ rows.seen.space.one_hot(seen).T
    logits[~((known[:, None] < 0) | (known[:, None] == seen)).all(axis=2)] = -np.inf
    found = np.exp(logits - logits.max(axis=1, keepdims=True))
    return found / found.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module", params=[(2, 3), (3, 2, 2)], ids=str)
def partial(request):
    X, codes = make_data(request.param, n=150, missing=(0, 4))
    rows, known = rows_of(X, codes, hide(codes, 0.5), np.random.default_rng(1).uniform(0.5, 2, size=150))
    return rows, known, fit_alternating(rows, FitParams(0.02), tol=1e-7, max_iter=1000)


class TestAlternation:
    def test_risk_and_gradient_equal_loops_and_finite_differences(self, partial):
        rows, known, fit = partial
        rng = np.random.default_rng(0)
        shape = (rows.seen.space.width, rows.features.shape[1])
        weight, bias, anchor = rng.normal(size=shape), rng.normal(size=len(fit.frequency)), rng.normal(size=shape)
        problem = PartialProblem(rows, fit.frequency, 0.3, Parameters(anchor, np.zeros(len(bias))))

        def value(weight, bias):
            likelihood = loop_log_likelihood(rows, known, weight, np.log(fit.frequency) - bias)
            return -likelihood + 0.15 * ((weight - anchor) ** 2).sum()

        found = problem.evaluate(weight, bias)
        assert found.value == pytest.approx(value(weight, bias), rel=1e-12)
        for _ in range(5):
            along, along_bias = rng.normal(size=shape), rng.normal(size=len(bias))
            step = 1e-5
            up = value(weight + step * along, bias + step * along_bias)
            down = value(weight - step * along, bias - step * along_bias)
            slope = (found.weight_gradient * along).sum() + found.bias_gradient @ along_bias
            assert slope == pytest.approx((up - down) / (2 * step), abs=1e-7)

    def test_the_likelihood_never_falls(self, partial):
        _, _, fit = partial
        assert len(fit.risks) >= 3
        assert (np.diff(fit.risks) <= 1e-12).all()
        assert fit.risks[-1] < fit.risks[0] - 1e-3

    def test_the_fit_is_a_minimum_of_the_loops(self, partial):
        rows, known, fit = partial
        weight, score = fit.solution.weight, fit.log_score
        best = -loop_log_likelihood(rows, known, weight, score) + 0.01 * (weight**2).sum()
        assert best == pytest.approx(fit.risks[-1], abs=1e-10)
        rng = np.random.default_rng(0)
        for _ in range(20):
            moved = weight + 0.02 * rng.normal(size=weight.shape)
            moved_score = score + 0.02 * rng.normal(size=score.shape)
            risk = -loop_log_likelihood(rows, known, moved, moved_score) + 0.01 * (moved**2).sum()
            assert risk > best

    def test_frequencies_are_expected_counts(self, partial):
        rows, known, fit = partial
        assert fit.solution.converged
        assert fit.frequency.sum() == pytest.approx(1, abs=1e-12)
        expected = rows.weight @ loop_posterior(rows, known, fit.solution.weight, fit.log_score)
        np.testing.assert_allclose(fit.frequency, expected, rtol=1e-9)
        assert fit.frequency @ fit.solution.bias == pytest.approx(0, abs=1e-12)

    def test_energy_moments_are_expectations_under_the_posterior(self, partial):
        rows, known, fit = partial
        posterior = loop_posterior(rows, known, fit.solution.weight, fit.log_score)
        n, k = posterior.shape
        energies = rows.features @ fit.solution.weight.T
        expected = energy_moments(
            np.repeat(energies, k, axis=0), np.tile(np.arange(k), n), (posterior * rows.weight[:, None]).ravel(), k
        )
        found = rows.energy_moments(energies, fit.log_score)
        np.testing.assert_allclose(found.mean, expected.mean, atol=1e-9)
        np.testing.assert_allclose(found.covariance, expected.covariance, atol=1e-9)

    def test_repeating_samples_into_many_blocks_changes_nothing(self):
        X, codes = make_data((2, 3), n=100, p=2)
        attributes = hide(codes, 0.5)
        small, _ = rows_of(X, codes, attributes)
        large, _ = rows_of(*(np.tile(part, (1000, 1)) for part in (X, codes, attributes)))
        assert max(len(pattern.rows) for pattern in large.patterns) > BLOCK_CELLS / 5
        rng = np.random.default_rng(0)
        weight, score = rng.normal(size=(5, 2)), rng.normal(size=len(small.seen.row))
        found = []
        for rows in (small, large):
            energies = rows.features @ weight.T
            risk = PartialProblem(rows, np.exp(score), 0.1).evaluate(weight, np.zeros(len(score)))
            found.append((*risk, rows.expected_frequency(energies, score), *rows.energy_moments(energies, score)))
        for one, other in zip(*found, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-10)


class TestClassifier:
    def test_without_missing_values_it_is_the_plain_fit(self):
        X, codes = make_data()
        seen, position = GroupSpace.from_cardinalities([2, 3]).distinct(codes)
        candidates = Candidates.of(GroupSpace.from_cardinalities([2, 3]), seen, np.bincount(position) * 1.0, "all")
        data = LabelledSamples(X, position, np.ones(len(X)), candidates, n_targets=1, one_dimensional=True)
        model = fit_crm(data, FitParams(1e-2), tol=1e-6, max_iter=1000)
        for attributes in (codes[:, 1], codes[:, 1].astype(float), codes[:, 1].astype(object), codes[:, 1:].tolist()):
            clf = CRMClassifier(prior="hull").fit(X, codes[:, 0], attributes=attributes)
            assert (clf.coef_ == model.coef).all()
            assert (clf.bias_ == model.bias).all()
            assert (clf.learned_bias_ == model.learned_bias).all()
            assert clf.n_missing_ == 0

    @pytest.mark.parametrize("cardinalities", [(2, 3), (3, 2, 2)], ids=str)
    @pytest.mark.parametrize("anchor", ["zero", "gaussian"])
    def test_extrapolated_and_learned_bias_agree(self, cardinalities, anchor):
        X, codes = make_data(cardinalities, missing=(0, 4))
        attributes = hide(codes, 0.5)
        clf = CRMClassifier(anchor=anchor, prior="hull").fit(X, codes[:, 0], attributes=attributes)
        assert clf.converged_
        assert clf.bias_gap_ < 1e-4
        assert clf.n_missing_ == np.isnan(attributes).any(axis=1).sum()
        assert clf.group_weight_.sum() == pytest.approx(len(X))
        seen = clf.groups_[clf.seen_]
        score = np.log(clf.group_weight_[clf.seen_] / len(X)) - clf.learned_bias_[clf.seen_]
        energies = (X - X.mean(axis=0)) @ clf.coef_.T  # B* averages over all rows
        for z, learned in zip(seen, clf.learned_bias_[clf.seen_], strict=True):
            bias, _ = reference.extrapolated_bias(energies, cardinalities, seen, score, z, np.ones(len(X)))
            assert learned == pytest.approx(bias, abs=1e-4)

    @pytest.mark.parametrize("bias", ["extrapolated", "cumulant", "shrunk"])
    def test_every_kind_of_bias_can_be_used(self, bias):
        X, codes = make_data((3, 3), n=500)
        clf = CRMClassifier(bias=bias, prior="hull").fit(X, codes[:, 0], attributes=hide(codes, 0.3))
        assert np.isfinite(clf.predict_log_proba(X)).all()
        plain = CRMClassifier(prior="hull").fit(X, codes[:, 0], attributes=hide(codes, 0.3))
        np.testing.assert_array_equal(clf.bias_, plain.bias_)
        same = np.allclose(clf.predict_log_proba(X), plain.predict_log_proba(X), atol=1e-6)
        assert same == (bias == "extrapolated")

    def test_hiding_an_attribute_that_the_class_determines_changes_nothing(self):
        X, codes = make_data((3, 2), missing=(1, 2))
        attributes = np.where(codes[:, 0] == 0, np.nan, codes[:, 1])
        attributes[np.flatnonzero(codes[:, 0] == 0)[0]] = 0
        space = GroupSpace.from_cardinalities([3, 2], ["y", "a"])
        full = CRMClassifier(prior="hull").fit(X, codes[:, 0], attributes=codes[:, 1], space=space)
        part = CRMClassifier(prior="hull").fit(X, codes[:, 0], attributes=attributes, space=space)
        assert part.n_missing_ > 50
        np.testing.assert_allclose(part.group_weight_, full.group_weight_, rtol=1e-9)
        np.testing.assert_allclose(part.coef_, full.coef_, atol=1e-4)
        np.testing.assert_allclose(part.bias_, full.bias_, atol=1e-4)

    def test_weights_count_as_repetitions(self):
        X, codes = make_data((2, 2, 2), n=200, missing=(0,))
        attributes = hide(codes, 0.3)
        weight = np.random.default_rng(3).integers(0, 3, size=200)
        twice = np.repeat(np.arange(200), weight)
        one = CRMClassifier(prior="hull").fit(X, codes[:, 0], attributes=attributes, sample_weight=weight)
        other = CRMClassifier(prior="hull").fit(X[twice], codes[twice, 0], attributes=attributes[twice])
        np.testing.assert_allclose(one.coef_, other.coef_, atol=1e-5)
        np.testing.assert_allclose(one.bias_, other.bias_, atol=1e-5)
        np.testing.assert_allclose(one.group_weight_, other.group_weight_, atol=1e-4)

    def test_samples_without_any_attribute_are_used(self):
        X, codes = make_data((2, 2, 2), n=300, missing=(0,))
        attributes = codes[:, 1:].astype(float)
        attributes[::2] = np.nan
        clf = CRMClassifier(prior="hull").fit(X, codes[:, 0], attributes=attributes)
        assert clf.n_missing_ == 150
        assert clf.bias_gap_ < 1e-4

    def test_several_targets_can_be_fitted(self):
        X, codes = make_data((2, 2, 3), n=300, missing=(0,))
        clf = CRMClassifier(prior="hull").fit(X, codes[:, :2], attributes=hide(codes, 0.5, first=2))
        assert clf.predict(X).shape == (300, 2)
        assert clf.bias_gap_ < 1e-4

    def test_the_training_prior_is_that_of_expected_counts(self):
        X, codes = make_data()
        clf = CRMClassifier(prior="train").fit(X, codes[:, 0], attributes=hide(codes, 0.5))
        np.testing.assert_allclose(np.exp(clf.log_prior_), clf.group_weight_ / 400, rtol=1e-12)
        complete = CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1])
        assert np.abs(clf.group_weight_ - complete.group_weight_).max() < 30

    def test_expected_counts_are_right_where_values_are_missing_more_in_one_class(self):
        """The frequencies among the complete samples alone would be wrong."""
        rng = np.random.default_rng(0)
        codes = np.repeat([[0, 0], [0, 1], [1, 0], [1, 1]], [300, 100, 100, 300], axis=0)
        X = rng.normal(size=(800, 2)) + 4 * codes
        attributes = np.where((codes[:, 0] == 0) & (rng.random(800) < 0.8), np.nan, codes[:, 1])
        clf = CRMClassifier().fit(X, codes[:, 0], attributes=attributes)
        np.testing.assert_allclose(clf.group_weight_, [300, 100, 100, 300], atol=10)

    def test_too_few_iterations_are_warned_of(self):
        X, codes = make_data()
        with pytest.warns(ConvergenceWarning, match="raise max_iter"):
            clf = CRMClassifier(prior="hull", max_iter=3).fit(X, codes[:, 0], attributes=hide(codes, 0.5))
        assert not clf.converged_

    def test_it_can_be_cloned_and_saved(self, tmp_path):
        X, codes = make_data()
        attributes = hide(codes, 0.5)
        clf = CRMClassifier(prior="hull").fit(X, codes[:, 0], attributes=attributes)
        again = clone(clf).fit(X, codes[:, 0], attributes=attributes)
        assert (again.coef_ == clf.coef_).all()
        clf.save(tmp_path / "model.safetensors")
        loaded = compshift.load(tmp_path / "model.safetensors")
        assert (loaded.predict_log_proba(X) == clf.predict_log_proba(X)).all()
        assert (loaded.group_weight_ == clf.group_weight_).all()
        assert loaded.bias_gap_ == clf.bias_gap_

    def test_settings_are_chosen_on_complete_samples_and_fitted_to_all(self):
        X, codes = make_data((3, 3), n=500)
        attributes = hide(codes, 0.4)[:, 0]
        known = ~np.isnan(attributes)
        chosen = {"alphas": [1e-2, 1e-1], "anchor": "zero", "bias": "extrapolated", "prior": "hull"}
        clf = CRMClassifierCV(**chosen).fit(X, codes[:, 0], attributes=attributes)
        complete = CRMClassifierCV(**chosen).fit(X[known], codes[known, 0], attributes=codes[known, 1])
        assert clf.n_missing_ == np.count_nonzero(~known)
        np.testing.assert_array_equal(clf.cv_results_["mean_test_score"], complete.cv_results_["mean_test_score"])
        alone = CRMClassifier(clf.alpha_, prior="hull").fit(X, codes[:, 0], attributes=attributes)
        assert (clf.coef_ == alone.coef_).all()


def additive_gaussians(cardinalities, n, p, spread, dropped, seed):
    """Return training samples of all groups but one, and test samples of the left-out group."""
    rng = np.random.default_rng(seed)
    space = GroupSpace.from_cardinalities(cardinalities)
    means = [spread * rng.normal(size=(size, p)) / math.sqrt(p) for size in cardinalities]

    def draw(groups, size):
        codes = space.codes(rng.choice(groups, size=size))
        X = rng.normal(size=(size, p)) + sum(mean[part] for mean, part in zip(means, codes.T, strict=True))
        return X, codes

    return draw(np.setdiff1d(np.arange(space.n_groups), [dropped]), n), draw([dropped], 1000)


class TestAccuracy:
    """Accuracy on a group that was dropped: incomplete samples help, and half of the labels cost little."""

    @pytest.mark.parametrize("cardinalities", [(3, 3), (2, 2, 2)], ids=str)
    def test_half_of_the_labels_cost_little(self, cardinalities):
        accuracies = []
        for seed in range(6):
            (X, codes), (test_X, test_codes) = additive_gaussians(cardinalities, 400, 10, 2.0, 1, seed)
            scores = [
                CRMClassifier(0.03, prior="hull").fit(X, codes[:, 0], attributes=table).score(test_X, test_codes[:, 0])
                for table in (codes[:, 1:], hide(codes, 0.5, seed))
            ]
            accuracies.append(scores)
        full, half = np.mean(accuracies, axis=0)
        assert half > full - 0.03

    def test_incomplete_samples_help_where_complete_ones_are_few(self):
        accuracies = []
        for seed in range(8):
            (X, codes), (test_X, test_codes) = additive_gaussians((3, 3), 400, 10, 2.0, 1, seed)
            attributes = hide(codes, 0.9, seed)
            known = ~np.isnan(attributes[:, 0])
            clf = CRMClassifier(0.03, prior="hull")
            accuracies.append(
                [
                    clf.fit(X, codes[:, 0], attributes=attributes).score(test_X, test_codes[:, 0]),
                    clf.fit(X[known], codes[known, 0], attributes=codes[known, 1]).score(test_X, test_codes[:, 0]),
                ]
            )
        used, left_out = np.mean(accuracies, axis=0)
        assert used > left_out + 0.04
