"""Scores on held-out combinations, and the rules that choose a setting by them."""

import math

import numpy as np
import pytest

from compshift import CombinationKFold, CRMClassifier, GroupSpace, InputError
from compshift.core.candidates import Candidates
from compshift.crm.fit import FitParams, Setting, step_one, step_two
from compshift.crm.held_out import (
    OFFSETS,
    CombinationScores,
    Fold,
    Folds,
    _score_fold,
    combination_scores,
    extrapolated_start,
    row_parts,
)
from compshift.crm.inputs import LabelledSamples
from compshift.crm.selection import (
    OFFSET_SHARE,
    SearchSpace,
    _clearly_better,
    _criterion,
    _search_alphas,
    choose,
    equalising_offset,
    setting_scores,
)
from compshift.crm.solver import Parameters, solve

SPACE = GroupSpace.from_cardinalities([4, 4])


def labelled(n=500, p=30, missing=(0, 5, 10), seed=0):
    """Additive means in noise; the groups with the ``missing`` flat indices have no rows."""
    rng = np.random.default_rng(seed)
    codes = SPACE.codes(rng.choice(np.setdiff1d(np.arange(16), missing), size=n))
    means = np.random.default_rng(99).normal(size=(SPACE.width, p))
    X = SPACE.one_hot(codes) @ means + rng.normal(size=(n, p)) * 2
    groups, position = SPACE.distinct(codes)
    candidates = Candidates.of(SPACE, groups, np.bincount(position).astype(float), "all")
    return LabelledSamples(X, position, np.ones(n), candidates, 1, True)


def table(unseen, seen=None, settings=()):
    """Scores (s, k) of settings."""
    unseen = np.atleast_2d(unseen)
    fold = np.where(np.isnan(unseen[0]), -1, np.arange(unseen.shape[1]))
    return CombinationScores(settings, unseen, unseen if seen is None else np.atleast_2d(seen), fold)


class TestRules:
    def test_points_are_the_mean_over_held_out_groups_or_a_low_quantile(self):
        scores = table([[0.2, 0.9, 1.0, np.nan], [0.6, 0.6, 0.7, np.nan]])
        np.testing.assert_allclose(setting_scores(scores), [0.7, 1.9 / 3])
        np.testing.assert_allclose(setting_scores(scores, "worst"), [0.34, 0.6])

    def test_points_of_a_scorer_are_its_mean_over_folds(self):
        scores = table([[0.2, 0.9], [0.6, 0.6]])._replace(by_scorer=np.array([[0.1, 0.2, 0.6], [0.5, 0.7, 0.6]]))
        np.testing.assert_allclose(setting_scores(scores, len), [0.3, 0.6])
        joined = scores.joined(scores)
        assert joined.by_scorer.shape == (4, 3)
        assert joined.unseen.shape == (4, 2)

    def test_the_units_of_a_scorer_do_not_matter(self):
        by_scorer = np.random.default_rng(0).uniform(size=(3, 4))
        settings = tuple(Setting(FitParams(alpha), "extrapolated") for alpha in (1e-3, 1e-2, 1e-1))
        scores = table(np.full((3, 2), 0.5), settings=settings)
        found = [
            _criterion(scores._replace(by_scorer=units * by_scorer), lambda *_: 0.0, 1e-2) for units in (1.0, -1e3, 1e3)
        ]
        np.testing.assert_allclose(found[2], found[0])
        assert not np.allclose(found[1], found[0])

    def test_only_a_clear_gain_without_a_loss_counts(self):
        """A gain on unseen groups at the cost of seen groups is another prior, not a better model."""
        rng = np.random.default_rng(0)
        base = rng.uniform(0.4, 0.6, size=12)
        gain = rng.uniform(0.05, 0.15, size=12)
        unclear = np.where(np.arange(12) % 2, 0.1, -0.09)
        unseen = np.stack([base, base + gain, base + gain, base + unclear, base])
        seen = np.stack([base, base - 0.001, base, base, base + gain])
        scores = table(unseen, seen)
        assert [_clearly_better(scores, one, 0) for one in range(1, 5)] == [False, True, False, True]


class TestClimb:
    """Another anchor is tried around the best alpha of the first anchor, and at further alphas while scores rise."""

    ALPHAS = (1e-3, 1e-2, 1e-1, 1.0, 10.0)

    def tried(self, accuracy, best_at=2):
        """Return the alphas that are tried, given the other anchor's accuracy at each; the first anchor has 0.5."""
        noise = np.random.default_rng(0).normal(scale=0.01, size=20)
        calls = []

        def score(path):
            calls.append([params.alpha for params in path])
            settings = tuple(Setting(params, "extrapolated") for params in path)
            means = [accuracy[self.ALPHAS.index(params.alpha)] for params in path]
            return table(np.array(means)[:, None] + noise, settings=settings)

        first_accuracy = np.where(np.arange(5) == best_at, 0.5, 0.4)[:, None] + noise[::-1]
        first = table(
            first_accuracy, settings=tuple(Setting(FitParams(alpha), "extrapolated") for alpha in self.ALPHAS)
        )
        path = [FitParams(alpha, "gaussian") for alpha in self.ALPHAS]
        scores = _search_alphas(score, path, first, "accuracy", 0.1)
        looked_at = [setting.params.alpha for setting in scores.settings]
        assert looked_at == [alpha for call in calls for alpha in call]
        assert {setting.params.anchor for setting in scores.settings} == {"gaussian"}
        np.testing.assert_allclose(
            scores.unseen.mean(axis=1) - noise.mean(), [accuracy[self.ALPHAS.index(a)] for a in looked_at]
        )
        return sorted(looked_at)

    @pytest.mark.parametrize(
        ("accuracy", "best_at", "expected"),
        [
            ((0.9, 0.9, 0.3, 0.9, 0.9), 2, [1e-1]),  # far behind
            ((0.9, 0.4, 0.498, 0.4, 0.9), 2, [1e-2, 1e-1, 1.0]),  # behind, but not clearly
            ((0.9, 0.5, 0.52, 0.5, 0.9), 2, [1e-2, 1e-1, 1.0]),
            ((0.3, 0.3, 0.5, 0.6, 0.7), 2, [1e-2, 1e-1, 1.0, 10.0]),
            ((0.7, 0.6, 0.5, 0.3, 0.3), 2, [1e-3, 1e-2, 1e-1, 1.0]),
            ((0.5, 0.6, 0.7, 0.8, 0.75), 0, [1e-3, 1e-2, 1e-1, 1.0, 10.0]),
            ((0.5, 0.4, 0.9, 0.9, 0.9), 0, [1e-3, 1e-2]),
            ((0.5, 0.5, 0.5, 0.4, 0.6), 4, [1.0, 10.0]),
        ],
    )
    def test_alphas_are_tried_while_scores_rise(self, accuracy, best_at, expected):
        assert self.tried(accuracy, best_at) == expected

    def test_the_search_starts_at_the_best_alpha_of_the_plain_bias(self):
        """Each bias is compared with the same bias, not with a bias that favours unseen groups."""
        noise = np.random.default_rng(0).normal(scale=0.01, size=20)
        settings = [Setting(FitParams(alpha), bias) for alpha in self.ALPHAS for bias in ("extrapolated", "cumulant")]
        means = [0.4, 0.5, 0.4, 0.5, 0.5, 0.5, 0.4, 0.9, 0.4, 0.5]  # plain at 1e-1, the other bias at 1
        first = table(np.array(means)[:, None] + noise, settings=tuple(settings))
        calls = []

        def score(path):
            calls.append([params.alpha for params in path])
            own = tuple(Setting(params, bias) for params in path for bias in ("extrapolated", "cumulant"))
            return table(np.full((len(own), 1), 0.5) + noise[::-1], settings=own)

        _search_alphas(score, [FitParams(alpha, "gaussian") for alpha in self.ALPHAS], first, "accuracy", 0.1)
        assert calls[0] == [1e-1]
        assert sorted(calls[1]) == [1e-2, 1.0]

    def test_the_first_way_is_tried_with_every_alpha_and_the_other_around_the_best(self):
        data = labelled(n=300)
        fold = CombinationKFold().group_folds(SPACE, data.candidates.seen_groups)
        options = SearchSpace((1e-3, 1e-2, 1e-1), ("zero", "gaussian"), offset=None)
        found = choose(data, options, fold, "hull", "accuracy", max_iter=1000, seed=0, n_jobs=None)
        kinds = [setting.params.anchor for setting in found.scores.settings]
        assert kinds.count("zero") == 3
        assert 1 <= kinds.count("gaussian") <= 3
        assert found.setting_score.shape == (len(kinds),)
        folds = Folds.of(data, fold, "hull", 0)
        combination_scores(folds, [found.setting.params], ["extrapolated"], max_iter=1000)
        expected = OFFSET_SHARE * equalising_offset(folds.offset_accuracies(found.setting))
        assert found.setting.offset == pytest.approx(expected, abs=0.05)


class TestLevels:
    @pytest.mark.parametrize("missing", [(0, 5, 10), (0, 5, 3, 7, 11, 12, 13, 14)])
    def test_accuracies_at_each_offset_equal_loops_over_groups(self, missing):
        """In the second case (3, 3) is the only group of its values: groups with one of them are outside the hull."""
        data = labelled(n=200, missing=missing)
        groups = data.candidates.seen_groups
        fold = Fold(data, np.arange(len(groups)) == 3, row_parts(data.position, 0) == 1, "uniform")
        assert fold.candidates.inside_hull.all() == (len(missing) == 3)
        assert fold.candidates.hull.contains(groups[3:4]).all()
        model = step_two(fold.candidates, step_one(fold.rows, FitParams(0.05), tol=1e-4, max_iter=1000))
        found = fold.offset_accuracies(model, "extrapolated")
        assert found.shape == (len(OFFSETS), 2, len(groups))
        inside = fold.candidates.inside_hull
        energies = (fold.X - model.feature_mean) @ model.coef.T
        for number in (0, 4, 6, 12):
            right = {}
            for row, x in enumerate(energies):
                classes = np.zeros(4)
                for position, group in enumerate(fold.candidates.groups):
                    if inside[position]:
                        logit = (
                            -sum(x[SPACE.offsets[i] + value] for i, value in enumerate(group)) - model.bias[position]
                        )
                        lacking = tuple(group) not in {tuple(own) for own in fold.candidates.seen_groups}
                        classes[group[0]] += math.exp(logit + OFFSETS[number] * lacking)
                own = fold.position[row]
                right.setdefault((0 if own == 3 else 1, own), []).append(classes.argmax() == groups[own, 0])
            for (part, own), values in right.items():
                assert found[number, part, own] == pytest.approx(np.mean(values))
            assert np.isnan(found[number]).sum() == 2 * len(groups) - len(right)
        inside = Fold(data, np.arange(len(groups)) == 3, row_parts(data.position, 0) == 1, "hull")
        middle = len(OFFSETS) // 2
        np.testing.assert_array_equal(found[middle], inside.accuracy(model, "extrapolated"))
        np.testing.assert_array_equal(found[8], inside.accuracy(model, "extrapolated", OFFSETS[8]))

    @pytest.mark.parametrize(
        ("shift", "expected"),
        [(0.0, 0.0), (0.7, 0.7), (-1.3, -1.3), (2.9, 2.9), (5.0, 3.0), (-5.0, -3.0), (math.nan, 0.0)],
    )
    def test_the_levelling_offset_makes_both_accuracies_equal(self, shift, expected):
        offset_accuracies = np.stack([0.6 + 0.05 * (OFFSETS - shift), np.full(len(OFFSETS), 0.6)], axis=1)
        assert equalising_offset(offset_accuracies) == pytest.approx(expected, abs=1e-12)

    def test_the_smallest_levelling_offset_is_taken(self):
        flat = np.ones((len(OFFSETS), 2))
        assert equalising_offset(flat) == 0.0
        ahead = np.where(OFFSETS < 1, -0.2, 0.0)
        assert equalising_offset(np.stack([0.8 + ahead, np.full(len(OFFSETS), 0.8)], axis=1)) == 1.0

    def test_an_offset_multiplies_the_prior_of_unseen_groups(self):
        data = labelled(n=300, p=5)
        codes = data.candidates.seen_groups[data.position]
        clf = CRMClassifier(prior="hull").fit(data.X, codes[:, 0], attributes=codes[:, 1])
        weights = np.exp(clf.log_prior_ + 0.8 * ~clf.seen_)
        plain = clf.predict_proba(data.X)
        clf.set_params(unseen_offset=0.8)
        shifted = clf.predict_proba(data.X)
        assert np.abs(shifted - plain).max() > 0.01
        clf.set_params(unseen_offset=0.0).set_prior(
            {tuple(group): weight for group, weight in zip(clf.groups_.tolist(), weights / weights.sum(), strict=True)}
        )
        np.testing.assert_allclose(clf.predict_proba(data.X), shifted, atol=1e-12)
        again = CRMClassifier(prior="hull", unseen_offset=0.8).fit(data.X, codes[:, 0], attributes=codes[:, 1])
        np.testing.assert_allclose(again.predict_proba(data.X), shifted, atol=1e-12)
        with pytest.raises(InputError, match="unseen_offset is None"):
            again.set_params(unseen_offset=None).predict(data.X)


class TestPaths:
    def test_scores_are_means_over_folds(self):
        data = labelled(n=300)
        groups = data.candidates.seen_groups
        fold = CombinationKFold(4).group_folds(SPACE, groups)
        path = [FitParams(1e-1), FitParams(1e-2)]
        folds = Folds.of(data, fold, "hull", 3)
        scores = combination_scores(folds, path, ["shrunk"], max_iter=1000)
        assert [setting.params for setting in scores.settings] == path
        turned = combination_scores(Folds.of(data, fold, "hull", 3), path[::-1], ["shrunk"], max_iter=1000)
        assert [setting.params for setting in turned.settings] == path[::-1]
        np.testing.assert_array_equal(turned.unseen[::-1], scores.unseen)
        part = row_parts(data.position, 3)
        parts = [Fold(data, fold == number, part == number, "hull") for number in range(4)]
        found = [_score_fold(rows, path, ["shrunk"], 1000, None) for rows in parts]
        for group in range(len(groups)):
            own = [accuracy[1, 1, group] for accuracy, *_ in found if not np.isnan(accuracy[1, 1, group])]
            assert scores.seen[1, group] == pytest.approx(np.mean(own))
            assert scores.unseen[1, group] == found[fold[group]][0][1, 0, group]
        models = [fits[path[1]].model for _, _, fits, _ in found]
        by_fold = [rows.offset_accuracies(model, "shrunk") for rows, model in zip(parts, models, strict=True)]
        expected = np.nanmean(by_fold, axis=0).mean(axis=2)  # (offsets, 2)
        np.testing.assert_allclose(folds.offset_accuracies(scores.settings[1]), expected)

    def test_every_group_is_spread_over_the_parts_except_one_sample(self):
        position = np.repeat([0, 1, 2], [1, 2, 52])
        part = row_parts(position, 0)
        assert part[0] == -1  # the only row of a group is never held out
        assert sorted((part[1:3] == -1).tolist()) == [False, True]
        assert sorted(np.bincount(part[3:] + 1).tolist()) == [1, 10, 10, 10, 10, 11]

    def test_a_start_extrapolates_a_path_that_is_straight_in_the_logarithm_of_alpha(self):
        rng = np.random.default_rng(0)
        origin, slope = rng.normal(size=(2, 3, 4))
        bias, bias_slope = rng.normal(size=(2, 5))

        def at(alpha):
            return Parameters(origin + math.log(alpha) * slope, bias + math.log(alpha) * bias_slope)

        ends = [(FitParams(alpha), at(alpha)) for alpha in (1.0, 0.3, 0.05)]
        assert extrapolated_start([], FitParams(1.0)) is None
        assert extrapolated_start(ends[:1], FitParams(0.3)) is ends[0][1]
        for found, expected in zip(extrapolated_start(ends, FitParams(0.01)), at(0.01), strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-12)
        assert extrapolated_start(ends, FitParams(0.0)) is ends[-1][1]

    def test_warm_starts_along_a_path_save_iterations(self, monkeypatch):
        data = labelled()
        fold = CombinationKFold().group_folds(SPACE, data.candidates.seen_groups)
        path = [FitParams(alpha) for alpha in (1e-3, 1e-2, 3e-2, 1e-1)]

        def iterations(warm):
            counts = []

            def counting(problem, *, start=None, **options):
                found = solve(problem, start=start if warm else None, **options)
                counts.append(found.n_iter)
                return found

            monkeypatch.setattr("compshift.crm.fit.solve", counting)
            combination_scores(Folds.of(data, fold, "hull", 0), path, ["extrapolated"], max_iter=1000)
            return sum(counts)

        assert iterations(warm=True) < 0.8 * iterations(warm=False)


class TestGrid:
    def choose(self, data, fold, alphas=()):
        return choose(data, SearchSpace(alphas), fold, "hull", "accuracy", max_iter=1000, seed=0)

    def test_default_alphas_lie_around_the_typical_one(self):
        data = labelled(n=300)
        found = self.choose(data, CombinationKFold().group_folds(SPACE, data.candidates.seen_groups))
        assert len(found.scores.settings) >= 7
        assert 0.05 in found.scores.alphas  # 30 / (2 · 300)
        best = found.criterion.argmin()
        assert found.setting.params.alpha == found.scores.alphas[best]

    def test_the_grid_is_extended_where_the_best_lies_at_its_end(self, monkeypatch):
        data = labelled(n=300, p=30)
        fold = CombinationKFold().group_folds(SPACE, data.candidates.seen_groups)
        monkeypatch.setattr("compshift.crm.selection.typical_alpha", lambda *_: 1e-4)
        found = self.choose(data, fold)
        assert len(found.scores.settings) > 7
        assert found.setting.params.alpha > 3.2e-3
        assert list(found.scores.alphas) == sorted(found.scores.alphas)
        given = self.choose(data, fold, (1e-5, 1e-4))
        assert sorted(given.scores.alphas) == [1e-5, 1e-4]


class TestLoneClass:
    """The class 3 has a single group, which no other group determines."""

    def test_it_counts_by_held_out_samples(self):
        data = labelled(missing=(12, 13, 14))
        fold = CombinationKFold().group_folds(SPACE, data.candidates.seen_groups)
        scores = combination_scores(Folds.of(data, fold, "hull", 0), [FitParams(0.1)], ["extrapolated"], max_iter=1000)
        lone = data.candidates.seen_groups[:, 0] == 3
        assert lone.sum() == 1
        assert fold[lone] == -1
        np.testing.assert_array_equal(scores.lone, lone)
        expected = [*scores.unseen[0, ~lone], *scores.seen[0, lone]]
        np.testing.assert_allclose(scores.test_scores[0], expected)

    def test_other_groups_that_are_never_held_out_do_not_count(self):
        data = labelled(missing=(4, 8, 12))  # place 0 occurs with one class only
        fold = CombinationKFold().group_folds(SPACE, data.candidates.seen_groups)
        scores = combination_scores(Folds.of(data, fold, "hull", 0), [FitParams(0.1)], ["extrapolated"], max_iter=1000)
        assert (fold < 0).sum() == 1
        assert not scores.lone.any()
        np.testing.assert_allclose(scores.test_scores, scores.unseen[:, fold >= 0])
