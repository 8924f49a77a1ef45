"""The classifier fitted to rows with missing attributes, and what such rows are worth."""

import math

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import compshift
import tests.references as reference
from compshift import CRMClassifier, CRMClassifierCV, GroupSpace
from compshift.core.candidates import Candidates
from compshift.crm.fit import FitParams, fit_crm
from tests.estimators.made_data import hide, make_data


class TestClassifier:
    def test_nothing_missing_is_the_fit_as_it_was(self):
        X, codes = make_data()
        seen, position = GroupSpace.from_cardinalities([2, 3]).distinct(codes)
        candidates = Candidates.of(GroupSpace.from_cardinalities([2, 3]), seen, np.bincount(position) * 1.0, "all")
        model = fit_crm(X, position, np.ones(len(X)), candidates, FitParams(1e-2), tol=1e-6, max_iter=1000)
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

    @pytest.mark.parametrize("bias", ["extrapolated", "cumulant", "shrunk", "auto"])
    def test_every_bias_can_be_used(self, bias):
        X, codes = make_data((3, 3), n=500)
        clf = CRMClassifier(bias=bias, prior="hull").fit(X, codes[:, 0], attributes=hide(codes, 0.3))
        assert np.isfinite(clf.predict_log_proba(X)).all()
        plain = CRMClassifier(prior="hull").fit(X, codes[:, 0], attributes=hide(codes, 0.3))
        np.testing.assert_array_equal(clf.bias_, plain.bias_)
        same = np.allclose(clf.predict_log_proba(X), plain.predict_log_proba(X), atol=1e-6)
        assert same == (clf.selected_bias_ == "extrapolated")

    def test_a_row_that_its_known_values_decide(self):
        """If one seen group has the class, hiding the attribute of that class hides nothing."""
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

    def test_weight_two_is_the_row_twice(self):
        X, codes = make_data((2, 2, 2), n=200, missing=(0,))
        attributes = hide(codes, 0.3)
        weight = np.random.default_rng(3).integers(0, 3, size=200)
        twice = np.repeat(np.arange(200), weight)
        one = CRMClassifier(prior="hull").fit(X, codes[:, 0], attributes=attributes, sample_weight=weight)
        other = CRMClassifier(prior="hull").fit(X[twice], codes[twice, 0], attributes=attributes[twice])
        np.testing.assert_allclose(one.coef_, other.coef_, atol=1e-5)
        np.testing.assert_allclose(one.bias_, other.bias_, atol=1e-5)
        np.testing.assert_allclose(one.group_weight_, other.group_weight_, atol=1e-4)

    def test_all_attributes_of_a_row_missing(self):
        X, codes = make_data((2, 2, 2), n=300, missing=(0,))
        attributes = codes[:, 1:].astype(float)
        attributes[::2] = np.nan
        clf = CRMClassifier(prior="hull").fit(X, codes[:, 0], attributes=attributes)
        assert clf.n_missing_ == 150
        assert clf.bias_gap_ < 1e-4

    def test_two_targets(self):
        X, codes = make_data((2, 2, 3), n=300, missing=(0,))
        clf = CRMClassifier(prior="hull").fit(X, codes[:, :2], attributes=hide(codes, 0.5, first=2))
        assert clf.predict(X).shape == (300, 2)
        assert clf.bias_gap_ < 1e-4

    def test_the_training_prior_is_of_expected_counts(self):
        X, codes = make_data()
        clf = CRMClassifier(prior="train").fit(X, codes[:, 0], attributes=hide(codes, 0.5))
        np.testing.assert_allclose(np.exp(clf.log_prior_), clf.group_weight_ / 400, rtol=1e-12)
        complete = CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1])
        assert np.abs(clf.group_weight_ - complete.group_weight_).max() < 30

    def test_missing_more_in_one_group_than_in_another(self):
        """Missing at random given the class: the frequencies of the complete rows alone are wrong, these are not."""
        rng = np.random.default_rng(0)
        codes = np.repeat([[0, 0], [0, 1], [1, 0], [1, 1]], [300, 100, 100, 300], axis=0)
        X = rng.normal(size=(800, 2)) + 4 * codes
        attributes = np.where((codes[:, 0] == 0) & (rng.random(800) < 0.8), np.nan, codes[:, 1])
        clf = CRMClassifier().fit(X, codes[:, 0], attributes=attributes)
        np.testing.assert_allclose(clf.group_weight_, [300, 100, 100, 300], atol=10)

    def test_too_few_iterations(self):
        X, codes = make_data()
        with pytest.warns(ConvergenceWarning, match="raise max_iter"):
            clf = CRMClassifier(prior="hull", max_iter=3).fit(X, codes[:, 0], attributes=hide(codes, 0.5))
        assert not clf.converged_

    def test_clone_and_save(self, tmp_path):
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

    def test_chosen_on_complete_rows_and_fitted_to_all(self):
        X, codes = make_data((3, 3), n=500)
        attributes = hide(codes, 0.4)[:, 0]
        known = ~np.isnan(attributes)
        chosen = {"alphas": [1e-2, 1e-1], "anchor": "zero", "bias": "extrapolated", "prior": "hull"}
        clf = CRMClassifierCV(**chosen).fit(X, codes[:, 0], attributes=attributes)
        complete = CRMClassifierCV(**chosen).fit(X[known], codes[known, 0], attributes=codes[known, 1])
        assert clf.n_missing_ == np.count_nonzero(~known)
        np.testing.assert_array_equal(clf.cv_results_["points"], complete.cv_results_["points"])
        alone = CRMClassifier(clf.alpha_, prior="hull").fit(X, codes[:, 0], attributes=attributes)
        assert (clf.coef_ == alone.coef_).all()


def additive_gaussians(cardinalities, n, p, spread, dropped, seed):
    """Training rows of all groups but one, and test rows of that one."""
    rng = np.random.default_rng(seed)
    space = GroupSpace.from_cardinalities(cardinalities)
    means = [spread * rng.normal(size=(size, p)) / math.sqrt(p) for size in cardinalities]

    def draw(groups, size):
        codes = space.codes(rng.choice(groups, size=size))
        X = rng.normal(size=(size, p)) + sum(mean[part] for mean, part in zip(means, codes.T, strict=True))
        return X, codes

    return draw(np.setdiff1d(np.arange(space.n_groups), [dropped]), n), draw([dropped], 1000)


class TestWorth:
    """On a group that was dropped, incomplete rows help, and half of the labels cost little."""

    @pytest.mark.parametrize("cardinalities", [(3, 3), (2, 2, 2)], ids=str)
    def test_half_of_the_labels(self, cardinalities):
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

    def test_few_complete_rows(self):
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
