"""EM over step 1 with a pool of unlabelled samples, against loops over samples and groups."""

import logging
import math
import tracemalloc

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import tests.references as reference
from compshift import CRMClassifier, CRMClassifierCV, GroupSpace, InputError, load
from compshift.core.energy import GroupTable, linear_energies
from compshift.core.folds import row_folds
from compshift.crm.coded import coded_samples
from compshift.crm.fit import CROSS_FIT_FOLDS, FitParams, StandardisedRows, step_one
from compshift.crm.unlabelled import (
    FINAL_TOL,
    UNIFORM_SHARE,
    _responsibility,
    fit_with_pool,
    group_bias,
    pool_frequency,
)
from compshift.data import FeatureStore

SPACE = GroupSpace.from_cardinalities([3, 3], names=["y", "a"])
UNSEEN = (0, 4)  # groups (0, 0) and (1, 1)


def gaussians(groups, n, seed, space=SPACE, dimensions=6, distance=1.6, bend=0.0):
    """Samples with additive means; ``bend`` adds an interaction of the attributes, which energies cannot express."""
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(12345)
    directions = distance * fixed.normal(size=(space.width, dimensions))
    interaction = bend * fixed.normal(size=(space.n_groups, dimensions))
    index = np.asarray(groups)[rng.integers(len(groups), size=n)]
    codes = space.codes(index)
    mean = space.one_hot(codes) @ directions + interaction[index]
    return mean + rng.normal(size=(n, dimensions)), codes


def labelled(n=400, seed=0, **options):
    return gaussians([group for group in range(9) if group not in UNSEEN], n, seed, **options)


def fit(X, codes, pool, clf=None, **options):
    clf = CRMClassifier(0.05, prior="hull") if clf is None else clf
    return clf.fit(X, codes[:, 0], attributes=codes[:, 1], space=SPACE, unlabelled=pool, **options)


def plain_parts(alpha=0.05, n=200):
    X, codes = labelled(n)
    data = coded_samples(X, codes, SPACE)
    rows = StandardisedRows.of(data.X, data.position, data.sample_weight, data.candidates)
    return rows, data.candidates, step_one(rows, FitParams(alpha), tol=1e-8, max_iter=1000)


class TestEStep:
    def test_responsibilities_equal_a_loop(self):
        rng = np.random.default_rng(0)
        groups = SPACE.codes(np.array([0, 1, 4, 5, 8]))
        energies, log_score = 5 * rng.normal(size=(7, 6)), rng.normal(size=5)
        code, share = _responsibility(energies, GroupTable.of(SPACE, groups), log_score)
        total = np.zeros(5)
        for row, found in zip(energies, code, strict=True):
            posterior = np.exp(reference.group_log_posterior(row, [3, 3], groups, log_score))
            expected = sum(p * np.array(reference.one_hot([3, 3], z)) for p, z in zip(posterior, groups, strict=True))
            np.testing.assert_allclose(found, expected, atol=1e-12)
            total += posterior
        np.testing.assert_allclose(share, total / 7, atol=1e-12)

    def test_constants_added_to_the_energies_of_a_sample_change_nothing(self):
        rng = np.random.default_rng(0)
        table = GroupTable.of(SPACE, SPACE.codes(np.arange(9)))
        energies, log_score = rng.normal(size=(5, 6)), rng.normal(size=9)
        shifted = energies + 1e4 * rng.normal(size=(5, 1))
        for one, other in zip(
            _responsibility(energies, table, log_score), _responsibility(shifted, table, log_score), strict=True
        ):
            np.testing.assert_allclose(one, other, atol=1e-9)

    def test_frequencies_are_a_fixed_point_of_the_loop(self):
        rng = np.random.default_rng(1)
        groups = SPACE.codes(np.arange(9))
        energies, bias = 4 * rng.normal(size=(60, 6)), rng.normal(size=9)
        found = pool_frequency(energies, GroupTable.of(SPACE, groups), bias, np.full(9, 1 / 9))
        mean = np.mean(
            [np.exp(reference.group_log_posterior(row, [3, 3], groups, np.log(found) - bias)) for row in energies],
            axis=0,
        )
        np.testing.assert_allclose(found, (mean + UNIFORM_SHARE / 9) / (1 + UNIFORM_SHARE), atol=2e-4)


class TestEM:
    def test_the_penalised_likelihood_never_decreases(self):
        """Of the labels and the pool, with h profiled out over all samples, evaluated by loops after every round."""
        rows, candidates, plain = plain_parts()
        pool, _ = gaussians(range(9), 150, 7)
        alpha, likelihoods = 0.05, []
        groups = SPACE.codes(np.arange(9))
        table = GroupTable.of(SPACE, groups)
        features = np.concatenate([rows.features, rows.standard.of(pool)])

        def watch(_, fitted):
            bias, n = group_bias(fitted, table), len(rows.features)
            energies = linear_energies(features, fitted.solution.weight)
            frequency = pool_frequency(energies[n:], table, bias, np.full(9, 1 / 9))
            log_score = np.log(fitted.frequency) - fitted.bias
            total = 0.0
            for number, row in enumerate(energies):
                log_h = -reference.log_evidence(row, [3, 3], fitted.seen.codes, log_score)
                logs = [-reference.group_energy(row, [3, 3], z) - b for z, b in zip(groups, bias, strict=True)]
                if number < n:
                    total += log_h + logs[int(SPACE.index(rows.seen.codes[[rows.position[number]]])[0])]
                else:
                    total += log_h + reference.log_sum_exp(
                        [a + math.log(q) for a, q in zip(logs, frequency, strict=True)]
                    )
            total += len(pool) * UNIFORM_SHARE * np.log(frequency).mean()
            likelihoods.append(total / len(features) - alpha / 2 * np.square(fitted.solution.weight).sum())

        fit_with_pool(rows, candidates, plain, pool, FitParams(alpha), tol=1e-7, max_iter=500, n_rounds=6, watch=watch)
        assert len(likelihoods) >= 4
        assert likelihoods[-1] > likelihoods[0] + 1e-4
        assert (np.diff(likelihoods) > -1e-5).all(), likelihoods

    def test_the_bias_of_groups_in_the_pool_is_that_of_the_fit(self):
        """B* = B also for groups without labels, the free check of a converged step 1."""
        X, codes = labelled()
        clf = fit(X, codes, gaussians(range(9), 300, 3)[0])
        assert clf.bias_gap_ <= FINAL_TOL
        assert clf.n_rounds_ > 1
        assert clf.converged_
        assert (clf.learned_bias_[list(UNSEEN)] == 0).all()

    def test_unseen_groups_are_predicted_better_where_energies_do_not_add_up(self):
        X, codes = labelled(500, distance=2.5, bend=0.4)
        pool, _ = gaussians(range(9), 900, 5, distance=2.5, bend=0.4)
        X_new, new = gaussians(UNSEEN, 2000, 6, distance=2.5, bend=0.4)
        clf = fit(X, codes, pool)
        after, before = clf.score(X_new, new[:, 0]), clf.without_unlabelled().score(X_new, new[:, 0])
        assert after > before + 0.04, (before, after)

    def test_the_frequencies_of_the_pool_are_found(self):
        X, codes = labelled(1200, distance=3.0)
        pool, truth = gaussians([0, 0, 0, 1, 2, 5], 1500, 5, distance=3.0)
        frame = fit(X, codes, pool, CRMClassifier(0.01, prior="hull")).unlabelled_prior_
        share = np.bincount(SPACE.index(truth), minlength=9) / 1500
        np.testing.assert_allclose(frame.probability, share, atol=0.05)
        assert frame.seen.tolist() == [group not in UNSEEN for group in range(9)]
        assert ((frame.lower <= frame.probability) & (frame.probability <= frame.upper)).all()

    def test_weights_are_relative(self):
        X, codes = labelled()
        pool = gaussians(range(9), 200, 3)[0]
        one, two = fit(X, codes, pool), fit(X, codes, pool, sample_weight=np.full(len(X), 7.0))
        np.testing.assert_allclose(one.predict_proba(pool), two.predict_proba(pool), atol=1e-5)

    def test_a_sample_of_weight_two_equals_a_repeated_one(self):
        X, codes = labelled(300)
        first, second, rest = np.arange(50), np.arange(50, 100), np.arange(100, 300)
        repeated = np.r_[first, first, second, rest]
        weighted, weight = np.r_[first, second, second, rest], np.repeat([2.0, 0.5, 1.0], [50, 100, 200])
        pool = gaussians(range(9), 200, 3)[0]
        one = fit(X[repeated], codes[repeated], pool)
        two = fit(X[weighted], codes[weighted], pool, sample_weight=weight)
        np.testing.assert_allclose(one.predict_proba(pool), two.predict_proba(pool), atol=1e-5)

    def test_frequencies_of_the_pool_do_not_depend_on_the_prior(self):
        X, codes = labelled()
        pool = gaussians(range(9), 200, 3)[0]
        frames = [
            fit(X, codes, pool, CRMClassifier(0.05, prior=prior)).unlabelled_prior_ for prior in ("train", "hull")
        ]
        assert len(frames[0]) == 9
        np.testing.assert_allclose(frames[0].probability, frames[1].probability, atol=1e-6)

    def test_a_gaussian_anchor_and_several_targets_can_be_used(self):
        X, codes = labelled()
        clf = CRMClassifier(0.05, prior="hull", anchor="gaussian").fit(X, codes, unlabelled=X[:50])
        assert clf.n_rounds_ > 0
        assert clf.predict(X).shape == codes.shape

    def test_groups_outside_support_and_hull_get_no_samples(self):
        codes = np.array([[0, 0], [0, 1], [1, 0], [2, 2]])[np.random.default_rng(0).integers(4, size=200)]
        X = 3 * SPACE.one_hot(codes) + np.random.default_rng(1).normal(size=(200, 6))
        clf = CRMClassifier(0.1, support="observed", prior="train").fit(
            X, codes[:, 0], attributes=codes[:, 1], unlabelled=X
        )
        assert len(clf.groups_) == 4
        assert len(clf.unlabelled_prior_) == 4

    def test_no_array_of_samples_times_groups_is_made(self):
        space = GroupSpace.from_cardinalities([40, 30])
        rng = np.random.default_rng(0)
        codes = space.codes(rng.integers(space.n_groups, size=3000))
        X = space.one_hot(codes) @ rng.normal(size=(70, 5)) + rng.normal(size=(3000, 5))
        data = coded_samples(X, codes, space)
        rows = StandardisedRows.of(data.X, data.position, data.sample_weight, data.candidates)
        params = FitParams(0.1)
        plain = step_one(rows, params, tol=1e-1, max_iter=5)
        pool = X[rng.integers(len(X), size=20_000)]
        tracemalloc.start()
        fit_with_pool(rows, data.candidates, plain, pool, params, tol=1e-1, max_iter=5, n_rounds=1)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 0.5 * 8 * len(pool) * space.n_groups, f"{peak / 1e6:.0f} MB"

    def test_rounds_are_logged(self, caplog):
        X, codes = labelled(100)
        with caplog.at_level(logging.INFO, logger="compshift"):
            fit(X, codes, X[:60])
        assert any("round 1: frequencies of the pool" in message for message in caplog.messages)


class TestUse:
    def test_the_fit_without_the_pool_is_kept(self):
        X, codes = labelled()
        pool = gaussians(range(9), 200, 3)[0]
        clf = fit(X, codes, pool)
        alone = CRMClassifier(0.05, prior="hull").fit(X, codes[:, 0], attributes=codes[:, 1], space=SPACE)
        plain = clf.without_unlabelled()
        np.testing.assert_allclose(plain.predict_proba(pool), alone.predict_proba(pool), atol=1e-9)
        assert (plain.n_rounds_, plain.unlabelled_decision_) == (0, None)
        assert clf.n_rounds_ > 0

    def test_fits_without_a_pool_have_no_frequencies(self):
        X, codes = labelled(100)
        clf = fit(X, codes, None)
        assert not hasattr(clf, "unlabelled_prior_")
        np.testing.assert_array_equal(clf.without_unlabelled().predict_proba(X), clf.predict_proba(X))

    def test_a_frame_needs_the_columns_of_the_labelled_samples(self):
        X, codes = labelled(100)
        frame = pd.DataFrame(X, columns=list("abcdef"))
        fit(frame, codes, frame[:50])
        with pytest.raises(InputError, match="feature names"):
            fit(frame, codes, frame[list("fedcba")][:50])

    def test_a_pipeline_transforms_the_pool(self):
        X, codes = labelled()
        pool = gaussians(range(9), 200, 3)[0]
        with sklearn.config_context(enable_metadata_routing=True):
            clf = CRMClassifier(0.05).set_fit_request(attributes=True, unlabelled=True)
            pipe = make_pipeline(StandardScaler(), clf)
            pipe.set_params(transform_input=["unlabelled"])
            pipe.fit(X, codes[:, 0], attributes=codes[:, 1], unlabelled=pool)
        scaler = StandardScaler().fit(X)
        alone = CRMClassifier(0.05).fit(
            scaler.transform(X), codes[:, 0], attributes=codes[:, 1], unlabelled=scaler.transform(pool)
        )
        np.testing.assert_allclose(pipe.predict_proba(X), alone.predict_proba(scaler.transform(X)))

    @pytest.mark.parametrize(
        ("pool", "message"),
        [
            (np.zeros((5, 4)), "unlabelled has 4 features, but CRMClassifier is expecting 6"),
            (np.zeros((0, 6)), "unlabelled cannot be .*0 sample"),
            (np.full((5, 6), np.nan), "unlabelled .*NaN"),
            (np.zeros(6), "unlabelled has 1 dimension: pass features"),
            (np.full((5, 6), "label"), "unlabelled holds 'label'|unlabelled has values that are not numbers"),
            ("pool.csv", "unlabelled is a str: pass an array or DataFrame"),
        ],
        ids=["columns", "no rows", "NaN", "labels", "text", "file name"],
    )
    def test_unusable_pools_raise(self, pool, message):
        X, codes = labelled(60)
        with pytest.raises(InputError, match=message):
            fit(X, codes, pool)

    def test_other_arguments_that_rule_it_out_are_named(self, tmp_path):
        X, codes = labelled(60)
        with pytest.raises(InputError, match="unlabelled cannot be used if cross_fit is 3: leave out unlabelled"):
            fit(X, codes, X, CRMClassifier(cross_fit=3))
        attributes = codes[:, 1].astype(float)
        attributes[:5] = np.nan
        with pytest.raises(InputError, match="unlabelled cannot be used if attributes are missing in some rows"):
            CRMClassifier().fit(X, codes[:, 0], attributes=attributes, unlabelled=X)
        frame = pd.DataFrame({"y": codes[:, 0], "a": codes[:, 1], **{f"f{i}": column for i, column in enumerate(X.T)}})
        frame.to_parquet(tmp_path / "rows.parquet")
        with pytest.raises(InputError, match="unlabelled cannot be used if X is streamed"):
            CRMClassifier().fit(FeatureStore(tmp_path / "rows.parquet"), "y", attributes="a", unlabelled=X)


@pytest.fixture(scope="module")
def fitted():
    X, codes = labelled(900, bend=1.2)
    pool, _ = gaussians(range(9), 900, 5, bend=1.2)
    return fit(X, codes, pool, CRMClassifierCV(alphas=[0.05], prior="hull", use_unlabelled="always"))


class TestPredictionSets:
    def test_a_pool_makes_sets_smaller_and_covers_unseen_groups_more_often(self, fitted):
        X_new, codes_new = gaussians(range(9), 4000, 6, bend=1.2)
        group = SPACE.index(codes_new)

        def coverage_and_size(clf):
            sets = clf.predict_set(X_new, coverage=0.9)
            covered = sets.contains[np.arange(len(X_new)), codes_new[:, 0]]
            return np.array([covered[group == g].mean() for g in range(9)]), sets.sizes.mean()

        coverage, size = coverage_and_size(fitted)
        plain_coverage, plain_size = coverage_and_size(fitted.without_unlabelled())
        seen = np.setdiff1d(np.arange(9), UNSEEN)
        assert coverage[seen].min() > 0.85
        assert coverage[list(UNSEEN)].mean() > plain_coverage[list(UNSEEN)].mean() + 0.03
        assert size < 0.8 * plain_size

    def test_out_of_fold_energies_come_from_em_without_the_fold(self, fitted):
        X, codes = labelled(900, bend=1.2)
        pool, _ = gaussians(range(9), 900, 5, bend=1.2)
        data = coded_samples(X, codes, SPACE)
        fold = row_folds(data.position, CROSS_FIT_FOLDS, np.random.default_rng(0))
        held_out = fold == 2
        rows = StandardisedRows.of(data.X, data.position, data.sample_weight, data.candidates)
        others, _ = rows.subset(np.flatnonzero(~held_out))
        plain = step_one(others, FitParams(0.05), tol=1e-6, max_iter=1000)
        found, _ = fit_with_pool(
            others, data.candidates, plain, pool, FitParams(0.05), tol=1e-6, max_iter=1000, n_rounds=fitted.n_rounds_
        )
        expected = linear_energies(rows.features[held_out], found.solution.weight)
        np.testing.assert_allclose(fitted._model.out_of_fold.energies[held_out], expected, atol=0.05)
        alone = linear_energies(rows.features[held_out], plain.solution.weight)
        assert np.abs(alone - expected).max() > 0.2

    def test_sets_are_the_same_after_save_and_load(self, fitted, tmp_path):
        fitted.save(tmp_path / "model.npz")
        X_new, _ = gaussians(range(9), 50, 7, bend=1.2)
        found = load(tmp_path / "model.npz").predict_set(X_new)
        np.testing.assert_array_equal(found.p_values, fitted.predict_set(X_new).p_values)
