"""CRMClassifier: against Bayes, the equations and logistic regression; invariances, convergence and failed fits."""

import logging

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB

import compshift
import tests.references as reference
from compshift import (
    AdditiveGaussian,
    AffineExtrapolation,
    CombinationKFold,
    CRMClassifier,
    CRMClassifierCV,
    ExtrapolationWarning,
    GroupSpace,
    InputError,
    LogitAdjustedClassifier,
)
from compshift.crm.inputs import restored_on_error
from compshift.studies.gaussian2d import run_gaussian2d
from tests.estimators.made_data import make_data


@pytest.fixture(scope="module")
def worst():
    """Worst-group accuracies of every method on the two-dimensional example: 3000 training samples, ten seeds."""
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
    def test_bias_sample_size_and_probabilities_equal_loops(self, cardinalities):
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

    def test_the_bias_of_an_exact_model_is_the_ratio_of_partition_functions(self):
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

    def test_three_classes_equal_logistic_regression(self):
        X, codes = make_data((3,), n=300, missing=())
        ours = CRMClassifier(alpha=0.01, prior="train").fit(X, codes[:, 0])
        theirs = LogisticRegression(C=self.penalty(X, 0.01), tol=1e-8, max_iter=5000).fit(X, codes[:, 0])
        np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-4)

    def test_two_classes_equal_logistic_regression(self):
        # scikit-learn penalises one weight vector w where we penalise ±w/2, which is half as much.
        X, codes = make_data((2,), n=300, missing=())
        ours = CRMClassifier(alpha=0.01, prior="train").fit(X, codes[:, 0])
        theirs = LogisticRegression(C=2 * self.penalty(X, 0.01), tol=1e-8, max_iter=5000).fit(X, codes[:, 0])
        np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-4)

    def test_weighted_samples_equal_logistic_regression(self):
        X, codes = make_data((4,), n=300, missing=())
        weight = np.random.default_rng(0).uniform(0, 2, size=300)
        ours = CRMClassifier(alpha=0.01, prior="train").fit(X, codes[:, 0], sample_weight=weight)
        theirs = LogisticRegression(C=self.penalty(X, 0.01, weight), tol=1e-8, max_iter=5000)
        theirs.fit(X, codes[:, 0], sample_weight=weight)
        np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-4)


class TestInvariances:
    def test_weights_count_as_repetitions(self):
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
    def test_the_unit_of_the_features_does_not_matter(self, fitted, factor):
        clf, X, codes = fitted
        scaled = CRMClassifier().fit(factor * X, codes[:, 0], attributes=codes[:, 1])
        assert (scaled.predict(factor * X) == clf.predict(X)).all()
        np.testing.assert_allclose(scaled.predict_proba(factor * X), clf.predict_proba(X), atol=1e-6)

    def test_an_offset_of_the_features_does_not_matter(self, fitted):
        clf, X, codes = fitted
        moved = CRMClassifier().fit(X + 1e3, codes[:, 0], attributes=codes[:, 1])
        np.testing.assert_allclose(moved.predict_proba(X + 1e3), clf.predict_proba(X), atol=1e-6)

    def test_the_order_of_samples_does_not_matter(self, fitted):
        clf, X, codes = fitted
        order = np.random.default_rng(0).permutation(len(X))
        other = CRMClassifier().fit(X[order], codes[order, 0], attributes=codes[order, 1])
        np.testing.assert_allclose(other.predict_proba(X), clf.predict_proba(X), atol=1e-6)

    def test_the_names_of_values_do_not_matter(self, fitted):
        clf, X, codes = fitted
        renaming = np.array([2, 0, 1])
        other = CRMClassifier().fit(X, 1 - codes[:, 0], attributes=renaming[codes[:, 1]])
        np.testing.assert_allclose(other.predict_proba(X)[:, ::-1], clf.predict_proba(X), atol=1e-6)
        position = other.space_.index(np.stack([1 - clf.groups_[:, 0], renaming[clf.groups_[:, 1]]], axis=1))
        np.testing.assert_allclose(other.bias_[position], clf.bias_, atol=1e-5)
        np.testing.assert_allclose(other.effective_sample_size_[position], clf.effective_sample_size_, rtol=1e-4)


class TestReliability:
    """An unseen group far from all training samples, whose importance weights have a heavy tail."""

    def data(self):
        codes = np.repeat([[0, 1], [1, 0], [1, 1]], 60, axis=0)
        X = np.random.default_rng(0).normal(size=(180, 12)) + 2 * codes @ np.ones((2, 12))
        return X, codes

    def test_a_bias_that_rests_on_few_samples_is_warned_of(self):
        X, codes = self.data()
        with pytest.warns(ExtrapolationWarning, match=r"the bias of the unseen group \(0, 0\) rests on few") as caught:
            clf = CRMClassifier(1e-4).fit(X, codes[:, 0], attributes=codes[:, 1])
        assert clf.pareto_k_[~clf.seen_].max() > 1
        assert len(caught) == 1
        assert caught[0].filename == __file__

    @pytest.mark.parametrize(
        "options", [{"alpha": 3.0}, {"bias": "cumulant"}, {"prior": "train"}, {"support": "observed"}]
    )
    @pytest.mark.filterwarnings("error:the bias")
    def test_nothing_is_said_where_it_is_reliable_or_not_used(self, options):
        X, codes = self.data()
        CRMClassifier(**{"alpha": 1e-4, **options}).fit(X, codes[:, 0], attributes=codes[:, 1])


class TestConvergence:
    def test_an_early_stop_is_warned_of_with_a_remedy(self, fitted):
        _, X, codes = fitted
        with pytest.warns(ConvergenceWarning, match="after 2 iterations .*raise max_iter") as caught:
            clf = CRMClassifier(max_iter=2).fit(X, codes[:, 0], attributes=codes[:, 1])
        assert caught[0].filename == __file__
        assert not clf.converged_
        assert clf.n_iter_ == 2
        assert clf.bias_gap_ > 1e-5

    def test_verbose_logs_every_iteration(self, fitted, caplog):
        _, X, codes = fitted
        clf = CRMClassifier(verbose=True).fit(X, codes[:, 0], attributes=codes[:, 1])
        messages = [record for record in caplog.records if record.message.startswith("iteration")]
        assert len(messages) == clf.n_iter_
        caplog.clear()
        CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1])
        assert not caplog.records

    def test_verbose_reaches_standard_error_without_logging_set_up(self, fitted, capfd, monkeypatch):
        _, X, codes = fitted
        monkeypatch.setattr(logging.getLogger("compshift"), "propagate", False)
        CRMClassifier(verbose=1).fit(X, codes[:, 0], attributes=codes[:, 1])
        assert "iteration 1: risk" in capfd.readouterr().err
        assert not logging.getLogger("compshift").handlers

    @pytest.mark.parametrize("alpha", [1e-6, 1e-4])
    def test_converged_means_that_the_optimum_is_near(self, alpha):
        """On separable data with a weak penalty the gradient is small long before the optimum is reached."""
        rng = np.random.default_rng(186)
        codes = np.array([(0, 0), (0, 1), (1, 1), (1, 2)])[rng.integers(0, 4, size=30)]
        X = rng.normal(size=(30, 40)) + GroupSpace.from_cardinalities([2, 3]).one_hot(codes) @ rng.normal(size=(5, 40))
        new = rng.normal(size=(200, 40))
        loose, tight = (
            CRMClassifier(alpha=alpha, tol=tol).fit(X, codes[:, 0], attributes=codes[:, 1]) for tol in (1e-6, 1e-9)
        )
        assert loose.converged_
        assert tight.converged_
        np.testing.assert_allclose(loose.predict_proba(new), tight.predict_proba(new), atol=1e-3)
        np.testing.assert_allclose(loose.bias_, tight.bias_, atol=5e-3)

    def test_newton_steps_finish_what_rounding_stops(self):
        X, codes = make_data(n=1500)
        clf = CRMClassifier(alpha=0.1, tol=1e-12).fit(X, codes[:, 0], attributes=codes[:, 1])
        assert clf.converged_
        assert clf.bias_gap_ < 1e-12

    def test_weights_of_separable_data_stay_finite(self):
        X = np.array([[-5.0], [-4.0], [4.0], [5.0]] * 10)
        clf = CRMClassifier(alpha=1e-8, max_iter=5000).fit(X, (X[:, 0] > 0).astype(int))
        assert np.isfinite(clf.coef_).all()
        assert np.isfinite(clf.predict_log_proba(X * 1e6)).all()
        assert clf.score(X, X[:, 0] > 0) == 1


ESTIMATORS = [
    CRMClassifier(),
    CRMClassifierCV([0.1], cv=CombinationKFold(2), bias="extrapolated", anchor="zero", unseen_offset=0.0),
    LogitAdjustedClassifier(),
    AffineExtrapolation(GaussianNB(), random_state=0),
    AdditiveGaussian("per-value"),
]


@pytest.fixture(params=ESTIMATORS, ids=lambda estimator: type(estimator).__name__)
def refitted(request):
    """An estimator fitted to a frame, the frame, and the codes."""
    X, codes = make_data()
    frame = pd.DataFrame(X, columns=list("abcd"))
    return request.param.fit(frame, codes[:, 0], attributes=codes[:, 1]), frame, codes


def test_bad_input_leaves_a_fitted_estimator_unchanged(refitted):
    clf, frame, codes = refitted
    before, predicted = dict(vars(clf)), clf.predict_proba(frame)
    with pytest.raises(InputError, match="attributes has 3 rows but X has 400"):
        clf.fit(frame[["a", "b"]], codes[:, 0], attributes=codes[:3, 1])
    with pytest.raises(InputError, match="attributes has 3 rows but X has 400"):
        clf.fit(frame.to_numpy()[:, :2], codes[:, 0], attributes=codes[:3, 1])
    assert vars(clf).keys() == before.keys()
    assert all(vars(clf)[name] is value for name, value in before.items())
    np.testing.assert_array_equal(clf.predict_proba(frame), predicted)


@pytest.mark.parametrize("estimator", [CRMClassifier(), LogitAdjustedClassifier(), AdditiveGaussian("per-value")])
def test_an_error_at_the_end_of_a_search_leaves_the_estimator_unchanged(estimator):
    X, codes = make_data()
    clf = estimator.fit(X, codes[:, 0], attributes=codes[:, 1]).set_params(max_iter=1, tol=1e-12)
    before = dict(vars(clf))
    with pytest.raises(ConvergenceWarning):  # pytest raises every warning
        clf.fit(X[:, :2], codes[:, 0], attributes=codes[:, 1])
    assert all(vars(clf)[name] is value for name, value in before.items())


def test_an_estimator_whose_first_fit_fails_is_not_fitted():
    X, codes = make_data()
    clf = CRMClassifier()
    with pytest.raises(InputError):
        clf.fit(X, codes[:, 0], attributes=codes[:3, 1])
    assert not hasattr(clf, "n_features_in_")
    with pytest.raises(NotFittedError):
        clf.predict(X)


def test_a_model_can_be_saved_after_a_failed_fit(tmp_path):
    X, codes = make_data()
    clf = CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1])
    with pytest.raises(InputError):
        clf.fit(pd.DataFrame(X[:, :2], columns=["a", "b"]), codes[:, 0], attributes=codes[:3, 1])
    clf.save(tmp_path / "model")
    np.testing.assert_array_equal(compshift.load(tmp_path / "model").predict_proba(X), clf.predict_proba(X))


def test_an_interrupted_fit_restores_the_attributes():
    class Interrupted(BaseEstimator):
        def fit(self):
            with restored_on_error(self):
                self.kept_, self.new_ = 2, 3
                raise KeyboardInterrupt

    estimator = Interrupted()
    estimator.kept_ = 1
    with pytest.raises(KeyboardInterrupt):
        estimator.fit()
    assert vars(estimator) == {"kept_": 1}
