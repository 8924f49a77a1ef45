import json
import math
from dataclasses import replace

import numpy as np
import pytest

from compshift import GroupSpace, InputError
from compshift.crm.fit import Setting
from compshift.crm.held_out import CombinationScores
from compshift.data.gaussians import AdditiveGaussians
from compshift.studies.growth import (
    GrowthCase,
    GrowthOutcome,
    choose_alpha,
    draw_growth,
    plan_cases,
    run_case,
    run_growth,
    training_rows,
)

SMALL = [GrowthCase(2, 3, 0.7, seed, n_train=300) for seed in range(3)]


def test_outcomes_are_reproducible_and_sensible():
    first, second = run_case(SMALL[0]), run_case(SMALL[0])
    assert first == second
    assert first.groups_kept == 6
    assert first.bayes == pytest.approx(0.98, abs=0.01)
    assert 0.8 < first.accuracy <= 1


def test_a_study_that_was_cut_off_goes_on_where_it_stopped(tmp_path):
    store = tmp_path / "growth.jsonl"
    whole = run_growth(SMALL, store)
    lines = store.read_text().splitlines(keepends=True)
    assert len(lines) == 3
    store.write_text(lines[0] + lines[1][:40])  # killed while it wrote the second line
    finished = []
    again = run_growth(SMALL, store, finished.append)
    assert again == whole
    assert finished == whole
    assert sum(line.endswith("}") for line in store.read_text().splitlines()) == 3
    before = store.read_text()
    assert run_growth(SMALL, store) == whole  # no case is run or written twice
    assert store.read_text() == before


@pytest.mark.parametrize(
    "change",
    [
        {"accuracy": "high"},
        {"accuracy": 1.5},
        {"accuracy_unseen": [0.5]},
        {"alpha": None},
        {"groups_kept": 1.5},
        {"job": {"attributes": [2], "values": 2, "share": 0.5, "seed": 0}},
        {"further": 1},
    ],
)
def test_a_store_with_foreign_lines_raises(tmp_path, change):
    store = tmp_path / "growth.jsonl"
    line = GrowthOutcome(GrowthCase(2, 2, 0.5, 0), 1.0, 0.1, 2, 0.5, 0.8, 0.9, math.nan, 0.95).to_line()
    store.write_text(json.dumps(json.loads(line) | change) + "\n")
    with pytest.raises(InputError, match=r"line 1, is not a result of this study"):
        run_growth(SMALL, store)


def test_plans_cover_the_papers_settings():
    cases = plan_cases(quick=False)
    assert {(case.attributes, case.values) for case in cases} == {
        *((2, d) for d in (10, 20, 30, 40, 50)),
        *((m, 2) for m in (7, 8, 9)),
    }
    assert {case.seed for case in cases} == {0, 1, 2}
    assert set(plan_cases(quick=True)) <= set(cases)


@pytest.mark.parametrize("quick", [False, True])
def test_rows_per_group_replace_the_fixed_total(quick):
    cases, fixed = plan_cases(quick=quick, rows_per_group=100), plan_cases(quick=quick)
    assert {case.n_train for case in fixed} == {8000}
    assert [replace(case, n_train=8000) for case in cases] == fixed
    for case in cases:
        assert case.n_train == 100 * max(2, round(case.share * case.values**case.attributes))
    with pytest.raises(InputError, match="rows per group"):
        plan_cases(quick=True, rows_per_group=0)


def test_every_group_has_its_rows_and_the_sentence_says_so():
    outcomes = [run_case(GrowthCase(2, 3, share, 0, n_train=30 * kept)) for share, kept in ((0.7, 6), (1.0, 9))]
    assert [outcome.groups_kept for outcome in outcomes] == [6, 9]
    assert training_rows(outcomes) == "Every group in training has 30 training rows."
    assert training_rows([run_case(case) for case in SMALL[:2]]) == "Every point has 300 training rows in total."


def test_the_axis_is_logarithmic_for_more_than_two_attributes(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    saved = []
    monkeypatch.setattr("compshift.studies.growth.save_figure", lambda figure, *_, **__: saved.append(figure))
    cases = [GrowthCase(m, d, share, 0) for m, d in ((2, 10), (7, 2)) for share in (0.1, 1.0)]
    draw_growth(
        [GrowthOutcome(case, 1.0, 0.1, case.n_kept, 1.0, 0.9, 0.9, 0.9, 0.98) for case in cases], tmp_path / "g.png"
    )
    scales = {panel.get_title(): panel.get_xscale() for panel in saved[0].axes}
    assert scales == {"$m = 2$, $d = 10$": "linear", "$m = 7$, $d = 2$": "log"}


def test_the_alpha_that_is_good_on_unseen_and_on_seen_groups_is_chosen(monkeypatch):
    def scored(folds, path, *_, **__):
        fold = folds.number
        unseen, seen = ([[value] * len(fold) for value in values] for values in ((0.9, 0.7, 0.2), (0.1, 0.6, 0.95)))
        settings = tuple(Setting(params, "extrapolated") for params in path)
        return CombinationScores(settings, np.array(unseen), np.array(seen), fold)

    monkeypatch.setattr("compshift.studies.growth.combination_scores", scored)
    rng, space = np.random.default_rng(0), GroupSpace.from_cardinalities([3, 3])
    codes = space.codes(np.arange(90) % 9)
    assert choose_alpha(rng.normal(size=(90, 2)), codes, space, (0.01, 0.1, 1.0), rng) == 0.1


def test_groups_outside_the_hull_do_not_count_as_unseen():
    outcome = run_case(GrowthCase(2, 4, 0.2, 0, n_train=90))
    assert outcome.groups_kept == 3
    assert outcome.share_inside == 3 / 16  # the hull of these three groups has no other group
    assert math.isnan(outcome.accuracy_unseen)


@pytest.mark.slow
def test_twenty_values_a_fifth_of_the_groups():
    """Accuracies on seen groups and on unseen ones inside the hull are, on average, within 1.5 points of Bayes."""
    outcomes = [run_case(GrowthCase(2, 20, 0.2, seed)) for seed in range(3)]
    for name in ("accuracy_seen", "accuracy_unseen"):
        assert np.mean([outcome.bayes - getattr(outcome, name) for outcome in outcomes]) <= 0.015


class TestAdditiveGaussians:
    @pytest.mark.parametrize(("d", "expected"), [(10, 0.34), (20, 0.23), (50, 0.13)])
    def test_unit_norm_has_the_known_bayes_accuracy(self, d, expected):
        source = AdditiveGaussians(2, d, bayes_accuracy=expected)
        assert source.norm == pytest.approx(1.0, abs=0.05)

    def test_bayes_accuracy_is_the_one_asked_for(self):
        rng = np.random.default_rng(0)
        source = AdditiveGaussians(3, 5, bayes_accuracy=0.9)
        codes = source.space.codes(rng.integers(0, 125, size=40_000))
        assert (source.bayes(source.sample(codes, rng)) == codes[:, 0]).mean() == pytest.approx(0.9, abs=0.01)

    def test_moments(self):
        rng = np.random.default_rng(0)
        source = AdditiveGaussians(2, 4, n_features=10)
        X = source.sample(np.tile([[1, 2]], (50_000, 1)), rng)
        mean = np.zeros(10)
        mean[[1, 4 + 2]] = source.norm / 2
        np.testing.assert_allclose(X.mean(axis=0), mean, atol=0.01)
        np.testing.assert_allclose(np.cov(X.T), np.eye(10) / 4, atol=0.01)

    def test_impossible_settings(self):
        with pytest.raises(InputError, match="orthogonal means"):
            AdditiveGaussians(2, 60)
        with pytest.raises(InputError, match="between 1/4 and 1"):
            AdditiveGaussians(2, 4, bayes_accuracy=0.2)


@pytest.mark.parametrize("alphas", [(1e4, 0.1), (0.1, 1e4)])
def test_the_better_alpha_is_chosen_in_any_order(alphas):
    rng = np.random.default_rng(0)
    source = AdditiveGaussians(2, 4)
    codes = source.space.codes(rng.choice(12, size=400))
    assert choose_alpha(source.sample(codes, rng), codes, source.space, alphas, rng) == 0.1  # accuracy .97 against .96
    tree = source.space.codes(np.array([0, 1, 2, 3, 4, 8, 12]))[np.arange(400) % 7]  # no group can be held out
    assert (
        choose_alpha(source.sample(tree, rng), tree, source.space, alphas, rng) == 1e4
    )  # accuracy on held-out rows .95 against .88
