import logging
import math

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import tests.references as reference
from compshift import CRMClassifier, ExtrapolationWarning, GroupSpace, InputError
from compshift.bench.gaussian2d import run_gaussian2d


def make_data(cardinalities=(2, 3), n=400, p=4, missing=(0,), seed=0):
    """Features around additive means; the groups with the ``missing`` flat indices have no rows."""
    rng = np.random.default_rng(seed)
    space = GroupSpace.from_cardinalities(cardinalities)
    codes = space.codes(rng.choice(np.setdiff1d(np.arange(space.n_groups), missing), size=n))
    means = [rng.normal(size=(size, p)) for size in cardinalities]
    X = rng.normal(size=(n, p)) + sum(mean[column] for mean, column in zip(means, codes.T, strict=True))
    return X, codes


@pytest.fixture(scope="module")
def fitted():
    X, codes = make_data()
    return CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1]), X, codes


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
        from compshift.core.energy import GroupTable
        from compshift.core.objective import log_evidence

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


class TestKindsOfLabels:
    def test_text_categories_and_frames(self, fitted):
        clf, X, codes = fitted
        birds, places = np.array(["landbird", "waterbird"]), np.array(["forest", "lake", "sea"])
        frame = pd.DataFrame({"bird": birds[codes[:, 0]], "place": pd.Categorical(places[codes[:, 1]])})
        named = CRMClassifier().fit(pd.DataFrame(X, columns=list("abcd")), frame["bird"], attributes=frame[["place"]])
        assert named.space_.names == ("bird", "place")
        assert named.classes_.tolist() == ["landbird", "waterbird"]
        assert (named.predict(pd.DataFrame(X, columns=list("abcd"))) == birds[clf.predict(X)]).all()
        expected = clf.predict_group(X)
        found = named.predict_group(pd.DataFrame(X, columns=list("abcd")))
        assert (found == np.stack([birds[expected[:, 0]], places[expected[:, 1]]], axis=1)).all()

    def test_several_targets(self):
        X, codes = make_data((2, 3, 2), n=500)
        clf = CRMClassifier().fit(X, codes[:, :2], attributes=codes[:, 2])
        predicted = clf.predict(X)
        assert predicted.shape == (500, 2)
        assert [part.shape for part in clf.predict_proba(X)] == [(500, 2), (500, 3)]
        assert [classes.tolist() for classes in clf.classes_] == [[0, 1], [0, 1, 2]]
        assert clf.score(X, codes[:, :2]) == pytest.approx((predicted == codes[:, :2]).all(axis=1).mean())

    def test_targets_of_different_types(self):
        X, codes = make_data((2, 3), n=200)
        y = pd.DataFrame({"bird": np.array(["l", "w"])[codes[:, 0]], "age": codes[:, 1]})
        clf = CRMClassifier().fit(X, y)
        numbers = CRMClassifier().fit(X, codes).predict(X)
        assert clf.predict(X).tolist() == [["lw"[bird], age] for bird, age in numbers.tolist()]
        assert clf.score(X, y) == (numbers == codes).all(axis=1).mean()

    def test_marginals_and_joint_agree(self, fitted):
        clf, X, _ = fitted
        joint = np.exp(clf.group_log_proba(X)).reshape(-1, 2, 3)
        np.testing.assert_allclose(joint.sum(axis=2), clf.predict_proba(X), atol=1e-12)
        np.testing.assert_allclose(joint.sum(axis=(1, 2)), 1, atol=1e-12)
        best = joint.reshape(-1, 6).argmax(axis=1)
        assert (clf.predict_group(X) == clf.space_.decode(clf.space_.codes(best))).all()
        listed = clf.group_log_proba(X, [[1, 2], [0, 0]])
        np.testing.assert_allclose(np.exp(listed), joint.reshape(-1, 6)[:, [5, 0]], atol=1e-12)

    def test_explain(self, fitted):
        clf, X, _ = fitted
        frame = clf.explain(X)
        assert (frame[["y", "a"]].to_numpy() == clf.predict_group(X)).all()
        np.testing.assert_allclose(frame["probability"], np.exp(clf.group_log_proba(X)).max(axis=1))
        position = clf.space_.index(clf.space_.encode(frame[["y", "a"]]))
        assert (frame["seen"] == clf.seen_[position]).all()
        assert frame["inside_hull"].all()
        np.testing.assert_allclose(frame["effective_sample_size"], clf.effective_sample_size_[position])

    def test_group_frame_hides_nothing(self, fitted):
        clf, _, codes = fitted
        frame = clf.group_frame()
        assert len(frame) == 6
        assert frame["train_rows"].sum() == len(codes)
        assert frame["learned_bias"].isna().sum() == 1
        assert frame["effective_sample_size"].min() >= 1
        assert frame["prior"].sum() == pytest.approx(1)


class TestNamesAndOrder:
    """Nothing may be matched by position where names say otherwise."""

    @pytest.fixture
    def named(self):
        X, codes = make_data(missing=(2,))
        frame = pd.DataFrame(
            {"mood": np.array(["happy", "sad"])[codes[:, 0]], "place": np.array(list("xyz"))[codes[:, 1]]}
        )
        return X, frame

    def test_classes_are_sorted_for_scorers(self, named):
        X, frame = named
        plain = CRMClassifier().fit(X, frame["mood"], attributes=frame["place"])
        mood = pd.Categorical(frame["mood"], categories=["sad", "happy"])
        space = GroupSpace(("mood", "place"), (("sad", "happy"), ("z", "x", "y")))
        for other in (
            CRMClassifier().fit(X, mood, attributes=frame["place"]),
            CRMClassifier().fit(X, frame["mood"], attributes=frame["place"], space=space),
        ):
            assert other.classes_.tolist() == ["happy", "sad"]
            np.testing.assert_allclose(other.predict_proba(X), plain.predict_proba(X), atol=1e-6)
            assert roc_auc_score(frame["mood"], other.predict_proba(X)[:, 1]) > 0.8

    def test_space_is_matched_by_name(self, named):
        X, frame = named
        space = GroupSpace(("place", "mood"), (("x", "y", "z"), ("happy", "sad")))
        clf = CRMClassifier().fit(X, frame["mood"], attributes=frame["place"], space=space)
        assert clf.space_.names == ("mood", "place")
        with pytest.raises(InputError, match="agree only in part"):
            CRMClassifier().fit(X, frame["mood"], attributes=frame["place"].to_numpy(), space=space)

    def test_series_priors_keep_their_labels(self, named):
        X, frame = named
        clf = CRMClassifier(prior="train").fit(X, frame["mood"], attributes=frame["place"])
        expected = clf.log_prior_
        counts = frame[["place", "mood"]].value_counts(normalize=True)  # by frequency, and in another order of levels
        np.testing.assert_allclose(clf.set_prior(counts).log_prior_, expected)
        with pytest.raises(InputError, match="prior is a table"):
            clf.set_prior(counts.unstack())

    def test_default_names_make_way(self):
        X, codes = make_data()
        clf = CRMClassifier().fit(X, pd.Series(codes[:, 0], name="a"), attributes=codes[:, 1])
        assert clf.space_.names == ("a", "a1")

    def test_frames_with_numbered_columns(self):
        X, codes = make_data()
        clf = CRMClassifier().fit(X, pd.DataFrame(codes))
        assert 0.3 < clf.score(X, pd.DataFrame(codes)) <= 1

    def test_attributes_named_like_report_columns(self):
        X, codes = make_data()
        clf = CRMClassifier().fit(
            X, pd.Series(codes[:, 0], name="seen"), attributes=pd.Series(codes[:, 1], name="bias")
        )
        assert clf.explain(X)["seen (attribute)"].tolist() == clf.predict_group(X)[:, 0].tolist()
        assert clf.group_frame()["bias (attribute)"].tolist() == [0, 1, 2, 0, 1, 2]
        np.testing.assert_array_equal(clf.group_frame()["bias"], clf.bias_)

    def test_explain_keeps_the_index(self, named):
        X, frame = named
        table = pd.DataFrame(X, columns=list("abcd"), index=np.arange(len(X)) * 10)
        clf = CRMClassifier().fit(table, frame["mood"], attributes=frame["place"])
        assert clf.explain(table).index.tolist() == table.index.tolist()

    def test_column_vectors_are_read_as_one_target(self, fitted):
        clf, X, codes = fitted
        with pytest.warns(DataConversionWarning, match="column-vector y"):
            other = CRMClassifier().fit(X, codes[:, [0]], attributes=codes[:, 1])
        assert (other.predict(X) == clf.predict(X)).all()


class TestPriors:
    def test_train_prior_leaves_unseen_groups_out(self, fitted):
        _, X, codes = fitted
        clf = CRMClassifier(prior="train").fit(X, codes[:, 0], attributes=codes[:, 1])
        joint = clf.group_log_proba(X)
        assert (joint[:, ~clf.seen_] == -np.inf).all()
        assert not np.isnan(joint).any()
        assert not np.isnan(clf.predict_proba(X)).any()

    def test_set_prior_is_a_refit_with_that_prior(self, fitted):
        _, X, codes = fitted
        flat = np.arange(1.0, 7.0) / 21
        mapping = {(y, a): flat[3 * y + a] for y in range(2) for a in range(3)}
        clf = CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1])
        refitted = CRMClassifier(prior=flat).fit(X, codes[:, 0], attributes=codes[:, 1]).predict_proba(X)
        for prior in (flat, flat.reshape(2, 3), mapping):
            np.testing.assert_array_equal(clf.set_prior(prior).predict_proba(X), refitted)
        assert not np.allclose(clf.set_prior("uniform").predict_proba(X), refitted)

    def test_one_attribute_takes_values_as_keys(self):
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
    def test_bad_priors(self, fitted, prior, message):
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

    def test_outside_groups_are_announced_once(self, split):
        X, codes = split
        clf = CRMClassifier()
        with pytest.warns(ExtrapolationWarning, match=r'3 of the 6 candidate groups .*prior="hull"') as caught:
            clf.fit(X, codes[:, 0], attributes=codes[:, 1])
        clf.set_prior("hull").set_prior("uniform").predict(X)  # a second warning would be an error here
        assert len(caught) == 1
        assert caught[0].filename == __file__

    def test_hull_prior_and_support_are_silent(self, split):
        X, codes = split
        inside = CRMClassifier(prior="hull").fit(X, codes[:, 0], attributes=codes[:, 1])
        np.testing.assert_allclose(np.exp(inside.log_prior_), np.where(inside.inside_hull_, 1 / 3, 0))
        narrow = CRMClassifier(support="hull").fit(X, codes[:, 0], attributes=codes[:, 1])
        assert narrow.groups_.tolist() == [[0, 0], [0, 1], [1, 2]]
        np.testing.assert_allclose(narrow.predict_proba(X), inside.predict_proba(X), atol=1e-12)

    def test_observed_support(self, fitted):
        _, X, codes = fitted
        seen = CRMClassifier(support="observed").fit(X, codes[:, 0], attributes=codes[:, 1])
        np.testing.assert_array_equal(seen.groups_, seen.hull_.observed)
        unseen = seen.hull_.missing()[:1]
        more = CRMClassifier(support=("observed", unseen)).fit(X, codes[:, 0], attributes=codes[:, 1])
        assert more.seen_.sum() == len(seen.groups_) == len(more.groups_) - 1
        assert {tuple(group) for group in more.groups_[~more.seen_]} == {tuple(unseen[0])}
        whole = CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1])
        position = whole.space_.locate(more.groups_, whole.groups_)
        np.testing.assert_allclose(more.bias_, whole.bias_[position], atol=1e-9)
        with pytest.raises(InputError, match="support 'seen' is not known: use one of 'observed'"):
            CRMClassifier(support=("seen", unseen)).fit(X, codes[:, 0], attributes=codes[:, 1])

    def test_listed_support(self, fitted):
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

    def test_values_known_but_absent(self):
        X, codes = make_data((2, 2))
        space = GroupSpace(("y", "a"), ((0, 1), (0, 1, 9)))
        with pytest.warns(ExtrapolationWarning, match="2 of the 6"):
            clf = CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1], space=space)
        assert clf.space_.values[1] == (0, 1, 9)
        assert np.isfinite(clf.bias_).all()
        assert clf.set_prior("hull").predict_proba(X).shape == (len(X), 2)

    @pytest.mark.parametrize(
        ("support", "message"),
        [("hul", "did you mean 'hull'"), ([[0, 5]], "codes run from 0 to 2"), ([], "no group")],
    )  # fmt: skip
    def test_bad_support(self, fitted, support, message):
        _, X, codes = fitted
        with pytest.raises(InputError, match=message):
            CRMClassifier(support=support).fit(X, codes[:, 0], attributes=codes[:, 1])

    def test_too_many_groups_name_the_option(self):
        rng = np.random.default_rng(0)
        codes = rng.integers(0, 10, size=(200, 9))
        with pytest.raises(InputError, match='pass support=\\("observed", codes\\)'):
            CRMClassifier().fit(rng.normal(size=(200, 2)), codes[:, 0], attributes=codes[:, 1:])
        clf = CRMClassifier(support=codes[:50], alpha=1.0).fit(
            rng.normal(size=(200, 2)), codes[:, 0], attributes=codes[:, 1:]
        )
        assert clf.predict_proba(np.zeros((1, 2))).sum() == pytest.approx(1)


class TestConvergence:
    def test_not_converged_is_told_with_the_remedy(self, fitted):
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

    def test_separable_data_stay_finite(self):
        X = np.array([[-5.0], [-4.0], [4.0], [5.0]] * 10)
        clf = CRMClassifier(alpha=1e-8, max_iter=5000).fit(X, (X[:, 0] > 0).astype(int))
        assert np.isfinite(clf.coef_).all()
        assert np.isfinite(clf.predict_log_proba(X * 1e6)).all()
        assert clf.score(X, X[:, 0] > 0) == 1


class TestBadInput:
    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_not_finite(self, fitted, bad):
        clf, X, codes = fitted
        spoilt = X.copy()
        spoilt[5, 2] = bad
        with pytest.raises(
            InputError, match=r"X has 1 NaN or infinite .* row 5, column 2: remove those rows or impute"
        ):
            CRMClassifier().fit(spoilt, codes[:, 0], attributes=codes[:, 1])
        with pytest.raises(InputError, match="row 5, column 2"):
            clf.predict(spoilt)

    def test_far_inputs_have_probabilities_that_sum_to_one(self, fitted):
        clf, X, _ = fitted
        far = X * 1e12
        np.testing.assert_allclose(np.exp(clf.group_log_proba(far)).sum(axis=1), 1, atol=1e-9)
        joint = np.exp(clf.group_log_proba(far)).reshape(-1, 2, 3).sum(axis=2)
        np.testing.assert_allclose(joint, clf.predict_proba(far), atol=1e-9)

    def test_constant_features_say_nothing(self):
        clf = CRMClassifier().fit(np.full((30, 2), 0.1), np.arange(30) % 3)
        assert (clf.coef_ == 0).all()
        np.testing.assert_allclose(clf.predict_proba([[100.0, -100.0]]), 1 / 3)

    def test_huge_but_finite_features_are_fine(self, fitted):
        _, X, codes = fitted
        clf = CRMClassifier().fit(X * 1e300, codes[:, 0], attributes=codes[:, 1])
        assert np.isfinite(clf.predict_proba(X * 1e300)).all()

    @pytest.mark.parametrize("name", ["y", "attributes", "sample_weight"])
    def test_row_counts(self, fitted, name):
        _, X, codes = fitted
        columns = {"y": codes[:, 0], "attributes": codes[:, 1], "sample_weight": np.ones(len(X))}
        columns[name] = columns[name][:3]
        with pytest.raises(InputError, match=f"{name} has 3 rows but X has 400: pass one row of {name} per sample"):
            CRMClassifier().fit(X, **columns)

    def test_one_class(self, fitted):
        _, X, codes = fitted
        with pytest.raises(InputError, match=r"target 'y' has only one class \(0\): pass rows of at least two classes"):
            CRMClassifier().fit(X, np.zeros(len(X), dtype=int), attributes=codes[:, 1])

    def test_attribute_with_one_value_is_accepted(self, fitted):
        _, X, codes = fitted
        with pytest.warns(UserWarning, match="attribute 'a' has the single value 'same'") as caught:
            clf = CRMClassifier().fit(X, codes[:, 0], attributes=["same"] * len(X))
        assert caught[0].filename == __file__
        alone = CRMClassifier().fit(X, codes[:, 0])
        np.testing.assert_allclose(clf.predict_proba(X), alone.predict_proba(X), atol=1e-6)

    def test_unfitted(self):
        for call in ("predict", "predict_proba", "predict_group", "explain", "group_log_proba"):
            with pytest.raises(NotFittedError, match=r"not fitted yet\. Call 'fit'"):
                getattr(CRMClassifier(), call)([[0.0]])
        with pytest.raises(NotFittedError):
            CRMClassifier().score([[0.0]], [0])
        with pytest.raises(NotFittedError):
            CRMClassifier().set_prior("train")
        with pytest.raises(NotFittedError):
            CRMClassifier().save("nowhere")

    def test_wrong_number_of_features(self, fitted):
        clf, X, _ = fitted
        with pytest.raises(InputError, match=r"X has 3 features, but CRMClassifier is expecting 4 .*pass the columns"):
            clf.predict(X[:, :3])
        named = CRMClassifier().fit(pd.DataFrame(X, columns=list("abcd")), np.arange(len(X)) % 2)
        with pytest.raises(InputError, match=r"(?s)feature names.*Pass the columns it was fitted on"):
            named.predict(pd.DataFrame(X[:, :3], columns=list("abc")))

    def test_continuous_labels(self, fitted):
        _, X, codes = fitted
        with pytest.raises(InputError, match=r"Unknown label type: target 'y' is continuous .*for example by binning"):
            CRMClassifier().fit(X, X[:, 0])
        with pytest.raises(
            InputError, match=r"attribute 'a' has 400 different values in 400 rows: it looks continuous"
        ):
            CRMClassifier().fit(X, codes[:, 0], attributes=X[:, 0])

    def test_unknown_values_in_score(self, fitted):
        clf, X, codes = fitted
        with pytest.raises(InputError, match="attribute 'y' has the unknown value 5"):
            clf.score(X, np.where(codes[:, 0] == 0, 5, 1))
        with pytest.raises(InputError, match="y has 2 rows but X has 400"):
            clf.score(X, [0, 1])

    @pytest.mark.parametrize(
        ("parameters", "message"),
        [
            ({"alpha": -1}, "alpha is -1: pass a finite number 0 or more"),
            ({"alpha": "0.1"}, "alpha is '0.1': pass a number"),
            ({"alpha": math.nan}, "alpha is nan"),
            ({"tol": 0}, "tol is 0: pass a finite number above 0"),
            ({"max_iter": 0}, "max_iter is 0: pass a whole number of 1 or more"),
            ({"max_iter": 1.5}, "max_iter is 1.5"),
            ({"bias": "extrapolate"}, "did you mean 'extrapolated'"),
        ],
    )
    def test_parameters(self, fitted, parameters, message):
        _, X, codes = fitted
        with pytest.raises(InputError, match=message):
            CRMClassifier(**parameters).fit(X, codes[:, 0], attributes=codes[:, 1])

    @pytest.mark.parametrize(
        ("weight", "message"),
        [
            (-1.0, r"negative \(-1 at row 0\)"),
            (np.nan, "NaN"),
            (0.0, "zero for every row"),
            (1e308, "too large to add"),
        ],
    )
    def test_weights(self, fitted, weight, message):
        _, X, codes = fitted
        with pytest.raises(InputError, match=message):
            CRMClassifier().fit(X, codes[:, 0], sample_weight=np.full(len(X), weight))

    def test_space_must_describe_every_column(self, fitted):
        _, X, codes = fitted
        with pytest.raises(InputError, match=r"there are 2 columns .* for 1 attributes"):
            CRMClassifier().fit(
                X, codes[:, 0], attributes=codes[:, 1], space=GroupSpace.from_cardinalities([2], names=["y"])
            )
