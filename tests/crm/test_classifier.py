"""The fit of CRM: close to Bayes, equal to the equations and to logistic regression, and what leaves it unchanged."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import tests.references as reference
from compshift import CRMClassifier, GroupSpace
from compshift.studies.gaussian2d import run_gaussian2d
from tests.estimators.made_data import make_data


@pytest.fixture(scope="module")
def worst():
    """Worst-group accuracies of every method on the two-dimensional example, 3000 training points, ten seeds."""
    studies = [run_gaussian2d(3000, 4000, seed) for seed in range(10)]
    names = studies[0].classes
    return {
        task: {name: np.array([getattr(study, task)[name].worst for study in studies]) for name in names}
        for task in ("classes", "groups")
    }


class TestTwoDimensionalExample:
    """CRM is close to Bayes, ERM is not."""

    @pytest.mark.parametrize("task", ["classes", "groups"])
    def test_crm_is_close_to_bayes(self, worst, task):
        gap = worst[task]["Bayes"] - worst[task]["CRM (B*)"]
        assert gap.mean() <= 0.01
        assert gap.max() <= 0.04

    @pytest.mark.parametrize("task", ["classes", "groups"])
    def test_erm_fails(self, worst, task):
        assert worst[task]["ERM"].mean() < 0.60

    @pytest.mark.parametrize("task", ["classes", "groups"])
    def test_extrapolated_bias_beats_the_learned_one(self, worst, task):
        assert (worst[task]["CRM (B*)"] - worst[task]["CRM (B̂)"]).mean() > 0.05


class TestAgainstEquations:
    @pytest.mark.parametrize("cardinalities", [(2, 3), (3, 2, 2), (2, 2, 2, 3, 2)], ids=str)
    def test_bias_sample_size_and_probabilities(self, cardinalities):
        X, codes = make_data(cardinalities, n=60, missing=(0, 4))
        weight = np.random.default_rng(1).uniform(0.2, 3, size=60)
        clf = CRMClassifier(alpha=0.05).fit(X, codes[:, :2], attributes=codes[:, 2:] if codes.shape[1] > 2 else None,
                                            sample_weight=weight)  # fmt: skip
        energies = (X - np.average(X, axis=0, weights=weight)) @ clf.coef_.T
        seen = clf.groups_[clf.seen_]
        log_score = np.log(clf.group_weight_[clf.seen_] / weight.sum()) - clf.learned_bias_[clf.seen_]
        for position, z in enumerate(clf.groups_):
            bias, size = reference.extrapolated_bias(energies, cardinalities, seen, log_score, z, weight)
            assert clf.bias_[position] == pytest.approx(bias, abs=1e-9)
            assert clf.effective_sample_size_[position] == pytest.approx(size, rel=1e-9)
        score = clf.log_prior_ - clf.bias_
        joint, proba = clf.group_log_proba(X), clf.predict_proba(X)
        for row in range(0, 60, 7):
            expected = reference.group_log_posterior(energies[row], cardinalities, clf.groups_, score)
            np.testing.assert_allclose(joint[row], expected, atol=1e-9)
            for target in range(2):
                marginal = reference.marginal_log_posterior(energies[row], cardinalities, clf.groups_, score, target)
                np.testing.assert_allclose(proba[target][row], np.exp(marginal), atol=1e-9)

    def test_learned_and_extrapolated_bias_agree_on_seen_groups(self, fitted):
        clf, _, _ = fitted
        assert clf.converged_
        assert np.abs(clf.bias_ - clf.learned_bias_)[clf.seen_].max() < 1e-5
        assert clf.bias_gap_ < 1e-5
        assert not clf.seen_.all()

    def test_learned_bias_is_centred_and_zero_where_unseen(self, fitted):
        clf, _, _ = fitted
        assert clf.group_weight_ @ clf.learned_bias_ == pytest.approx(0, abs=1e-9)
        assert (clf.learned_bias_[~clf.seen_] == 0).all()

    def test_bias_of_an_exact_model(self):
        """With the true energies of unit Gaussians, B* has a closed form: the log of a ratio of partition functions."""
        from compshift.core.bias import block_sums, extrapolated_bias
        from compshift.core.energy import GroupTable, log_evidence

        rng = np.random.default_rng(0)
        space = GroupSpace.from_cardinalities([2, 2])
        means = np.array([[-0.5, 0.0], [0.5, 0.0], [0.0, -0.5], [0.0, 0.5]])  # of the four values
        codes = np.array([[0, 1], [1, 0], [1, 1]])[rng.integers(0, 3, size=400_000)]
        group_mean = means[codes[:, 0]] + means[2 + codes[:, 1]]
        X = rng.normal(size=group_mean.shape) + group_mean
        energies = -X @ means.T  # −⟨σ(z), E⟩ = x·μ(z), so p(x|z) ∝ exp(x·μ(z)) up to a factor in x alone
        true = np.array([0.5 * np.sum((means[z[0]] + means[2 + z[1]]) ** 2) for z in space.codes(np.arange(4))])
        seen = GroupTable.of(space, np.array([[0, 1], [1, 0], [1, 1]]))
        table = GroupTable.of(space, space.codes(np.arange(4)))
        evidence = log_evidence(energies, seen, np.log(1 / 3) - true[1:])
        bias, _ = extrapolated_bias(table, block_sums(table, energies, evidence))
        np.testing.assert_allclose(bias, true, atol=0.01)


class TestLogisticRegression:
    """With one attribute and the training prior the model is multinomial logistic regression."""

    def penalty(self, X, alpha, weight=None):
        weight = np.ones(len(X)) if weight is None else weight
        centred = X - np.average(X, axis=0, weights=weight)
        return 1 / (weight.sum() * alpha * np.average((centred**2).mean(axis=1), weights=weight))

    def test_three_classes(self):
        X, codes = make_data((3,), n=300, missing=())
        ours = CRMClassifier(alpha=0.01, prior="train").fit(X, codes[:, 0])
        theirs = LogisticRegression(C=self.penalty(X, 0.01), tol=1e-8, max_iter=5000).fit(X, codes[:, 0])
        np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-4)

    def test_two_classes(self):
        # scikit-learn penalises one weight vector w where we penalise ±w/2: half of what it would be.
        X, codes = make_data((2,), n=300, missing=())
        ours = CRMClassifier(alpha=0.01, prior="train").fit(X, codes[:, 0])
        theirs = LogisticRegression(C=2 * self.penalty(X, 0.01), tol=1e-8, max_iter=5000).fit(X, codes[:, 0])
        np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-4)

    def test_weighted(self):
        X, codes = make_data((4,), n=300, missing=())
        weight = np.random.default_rng(0).uniform(0, 2, size=300)
        ours = CRMClassifier(alpha=0.01, prior="train").fit(X, codes[:, 0], sample_weight=weight)
        theirs = LogisticRegression(C=self.penalty(X, 0.01, weight), tol=1e-8, max_iter=5000)
        theirs.fit(X, codes[:, 0], sample_weight=weight)
        np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-4)


class TestInvariances:
    def test_weights_are_repetitions(self):
        X, codes = make_data(n=150)
        times = np.random.default_rng(0).integers(0, 4, size=150)
        weighted = CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1], sample_weight=times)
        rows = np.repeat(np.arange(150), times)
        repeated = CRMClassifier().fit(X[rows], codes[rows, 0], attributes=codes[rows, 1])
        np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=1e-6)
        np.testing.assert_allclose(weighted.bias_, repeated.bias_, atol=1e-5)
        np.testing.assert_allclose(weighted.group_weight_, repeated.group_weight_)
        assert (weighted.effective_sample_size_ <= repeated.effective_sample_size_ + 1e-9).all()

    def test_sample_sizes_do_not_depend_on_the_unit_of_weights(self, fitted):
        clf, X, codes = fitted
        weighted = CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1], sample_weight=np.full(len(X), 1e-3))
        np.testing.assert_allclose(weighted.effective_sample_size_, clf.effective_sample_size_, rtol=1e-4)

    @pytest.mark.parametrize("factor", [1000.0, 1e-6, 1e15])
    def test_unit_of_the_features(self, fitted, factor):
        clf, X, codes = fitted
        scaled = CRMClassifier().fit(factor * X, codes[:, 0], attributes=codes[:, 1])
        assert (scaled.predict(factor * X) == clf.predict(X)).all()
        np.testing.assert_allclose(scaled.predict_proba(factor * X), clf.predict_proba(X), atol=1e-6)

    def test_offset_of_the_features(self, fitted):
        clf, X, codes = fitted
        moved = CRMClassifier().fit(X + 1e3, codes[:, 0], attributes=codes[:, 1])
        np.testing.assert_allclose(moved.predict_proba(X + 1e3), clf.predict_proba(X), atol=1e-6)

    def test_order_of_rows(self, fitted):
        clf, X, codes = fitted
        order = np.random.default_rng(0).permutation(len(X))
        other = CRMClassifier().fit(X[order], codes[order, 0], attributes=codes[order, 1])
        np.testing.assert_allclose(other.predict_proba(X), clf.predict_proba(X), atol=1e-6)

    def test_names_of_values(self, fitted):
        clf, X, codes = fitted
        renaming = np.array([2, 0, 1])
        other = CRMClassifier().fit(X, 1 - codes[:, 0], attributes=renaming[codes[:, 1]])
        np.testing.assert_allclose(other.predict_proba(X)[:, ::-1], clf.predict_proba(X), atol=1e-6)
        position = other.space_.index(np.stack([1 - clf.groups_[:, 0], renaming[clf.groups_[:, 1]]], axis=1))
        np.testing.assert_allclose(other.bias_[position], clf.bias_, atol=1e-5)
        np.testing.assert_allclose(other.effective_sample_size_[position], clf.effective_sample_size_, rtol=1e-4)
