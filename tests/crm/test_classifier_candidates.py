"""Candidate groups and priors of CRMClassifier."""

import numpy as np
import pytest

from compshift import CRMClassifier, ExtrapolationWarning, GroupSpace, InputError, load
from tests.estimators.made_data import make_data


class TestPriors:
    def test_train_prior_leaves_unseen_groups_out(self, fitted):
        _, X, codes = fitted
        clf = CRMClassifier(prior="train").fit(X, codes[:, 0], attributes=codes[:, 1])
        joint = clf.group_log_proba(X)
        assert (joint[:, ~clf.seen_] == -np.inf).all()
        assert not np.isnan(joint).any()
        assert not np.isnan(clf.predict_proba(X)).any()

    def test_set_prior_equals_a_refit_with_that_prior(self, fitted):
        _, X, codes = fitted
        flat = np.arange(1.0, 7.0) / 21
        mapping = {(y, a): flat[3 * y + a] for y in range(2) for a in range(3)}
        clf = CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1])
        refitted = CRMClassifier(prior=flat).fit(X, codes[:, 0], attributes=codes[:, 1]).predict_proba(X)
        for prior in (flat, flat.reshape(2, 3), mapping):
            np.testing.assert_array_equal(clf.set_prior(prior).predict_proba(X), refitted)
        assert not np.allclose(clf.set_prior("uniform").predict_proba(X), refitted)

    def test_a_prior_over_the_classes_alone(self, fitted, tmp_path):
        _, X, codes = fitted
        clf = CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1])
        clf.set_prior({0: 0.9, 1: 0.1})
        shared = {(y, a): (0.9 if y == 0 else 0.1) / 3 for y in range(2) for a in range(3)}
        refitted = CRMClassifier(prior=shared).fit(X, codes[:, 0], attributes=codes[:, 1])
        np.testing.assert_allclose(clf.predict_proba(X), refitted.predict_proba(X))
        classes = CRMClassifier(prior={0: 0.9, 1: 0.1}).fit(X, codes[:, 0], attributes=codes[:, 1])
        classes.save(tmp_path / "m.safetensors")
        np.testing.assert_allclose(load(tmp_path / "m.safetensors").predict_proba(X), clf.predict_proba(X))

    def test_a_prior_over_one_attribute_takes_values_as_keys(self):
        X, codes = make_data((3,), missing=())
        clf = CRMClassifier(prior={0: 0.5, 2: 0.5}).fit(X, codes[:, 0])
        assert set(clf.predict(X)) == {0, 2}

    @pytest.mark.parametrize(
        ("prior", "message"),
        [
            (np.full(6, 0.2), r"prior sums to 1\.2: .* divide it by its sum"),
            ([0.5, 0.7, -0.2, 0, 0, 0], r"negative entry \(-0\.2\)"),
            (np.full(5, 0.2), r"shape \(5,\): pass .* \(2, 3\) or \(6,\)"),
            ("unifrom", "prior 'unifrom' is not known: .* did you mean 'uniform'"),
            ({(0, 7): 1.0}, r"unknown value 7 .*known values are 0, 1, 2"),
            ({(0, 1, 2): 1.0}, "one value of each attribute"),
            ({}, "empty mapping"),
            ([np.nan] * 6, "NaN"),
            (None, r"shape \(\)"),
            ({(0, 1): "much"}, "pass 'uniform', 'hull', 'train', an array"),
        ],
    )
    def test_bad_priors_raise(self, fitted, prior, message):
        clf, X, codes = fitted
        with pytest.raises(InputError, match=message):
            clf.set_prior(prior)
        with pytest.raises(InputError, match=message):
            CRMClassifier(prior=prior, max_iter=1).fit(X, codes[:, 0], attributes=codes[:, 1])


class TestSupportAndHull:
    @pytest.fixture
    def split(self):
        """Groups (0,0), (0,1), (1,2) of a 2 × 3 grid: (1,0), (1,1) and (0,2) are outside the hull."""
        X, codes = make_data(missing=(2, 3, 4))
        return X, codes

    def test_groups_outside_the_hull_are_warned_of_once(self, split):
        X, codes = split
        clf = CRMClassifier()
        with pytest.warns(ExtrapolationWarning, match=r'3 of the 6 candidate groups .*prior="hull"') as caught:
            clf.fit(X, codes[:, 0], attributes=codes[:, 1])
        clf.set_prior("hull").set_prior("uniform").predict(X)  # a second warning would be an error here
        assert len(caught) == 1
        assert caught[0].filename == __file__

    def test_hull_prior_and_support_give_no_warning(self, split):
        X, codes = split
        inside = CRMClassifier(prior="hull").fit(X, codes[:, 0], attributes=codes[:, 1])
        np.testing.assert_allclose(np.exp(inside.log_prior_), np.where(inside.inside_hull_, 1 / 3, 0))
        narrow = CRMClassifier(support="hull").fit(X, codes[:, 0], attributes=codes[:, 1])
        assert narrow.groups_.tolist() == [[0, 0], [0, 1], [1, 2]]
        np.testing.assert_allclose(narrow.predict_proba(X), inside.predict_proba(X), atol=1e-12)

    def test_observed_support_leaves_unseen_groups_out(self, fitted):
        whole, X, codes = fitted
        seen = CRMClassifier(support="observed").fit(X, codes[:, 0], attributes=codes[:, 1])
        np.testing.assert_array_equal(seen.groups_, seen.hull_.observed)
        np.testing.assert_allclose(seen.bias_, whole.bias_[whole.seen_], atol=1e-9)

    def test_listed_groups_are_the_only_candidates(self, fitted):
        clf, X, codes = fitted
        listed = [[0, 0], [1, 1], [1, 2]]
        narrow = CRMClassifier(support=[listed[2], *listed]).fit(X, codes[:, 0], attributes=codes[:, 1])
        assert narrow.groups_.tolist() == listed
        position = clf.space_.index(listed)
        np.testing.assert_allclose(narrow.bias_, clf.bias_[position], atol=1e-9)
        assert narrow.bias_gap_ < 1e-5
        joint = clf.group_log_proba(X)[:, position]
        np.testing.assert_allclose(
            narrow.group_log_proba(X), joint - np.logaddexp.reduce(joint, axis=1)[:, None], atol=1e-9
        )
        assert (narrow.group_log_proba(X[:2], [[0, 1]]) == -np.inf).all()
        with pytest.raises(InputError, match=r"prior gives 0.167 to \(0, 1\), which is not among the candidate"):
            narrow.set_prior(np.full(6, 1 / 6))

    def test_space_may_have_values_that_training_lacks(self):
        X, codes = make_data((2, 2))
        space = GroupSpace(("y", "a"), ((0, 1), (0, 1, 9)))
        with pytest.warns(ExtrapolationWarning, match="2 of the 6"):
            clf = CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1], space=space)
        assert clf.space_.values[1] == (0, 1, 9)
        assert np.isfinite(clf.bias_).all()
        assert clf.set_prior("hull").predict_proba(X).shape == (len(X), 2)

    @pytest.mark.parametrize(
        ("support", "message"),
        [
            ("hul", "did you mean 'hull'"),
            ([[0, 5]], "codes run from 0 to 2"),
            ([[0, 0, 0]], r"support has shape \(1, 3\): pass one row per group with 2 integers"),
            (("observed", [[0, 0]]), "support has rows of different lengths: pass 2 integers"),
            ([], "support is empty: pass the codes of at least one group"),
        ],
    )
    def test_bad_support_raises(self, fitted, support, message):
        _, X, codes = fitted
        with pytest.raises(InputError, match=message):
            CRMClassifier(support=support).fit(X, codes[:, 0], attributes=codes[:, 1])

    def test_too_many_combinations_raise_unless_groups_are_listed(self):
        rng = np.random.default_rng(0)
        codes = rng.integers(0, 10, size=(200, 9))
        with pytest.raises(InputError, match="or pass the codes of the groups to predict as support"):
            CRMClassifier().fit(rng.normal(size=(200, 2)), codes[:, 0], attributes=codes[:, 1:])
        clf = CRMClassifier(support=codes[:50], alpha=1.0).fit(
            rng.normal(size=(200, 2)), codes[:, 0], attributes=codes[:, 1:]
        )
        assert clf.predict_proba(np.zeros((1, 2))).sum() == pytest.approx(1)
