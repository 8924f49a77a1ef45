"""diagnose: additivity, calibration and biases, and the verdict on them."""

import copy
import json
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression

from compshift import AdditiveGaussian, AffineExtrapolation, CRMClassifier, GroupSpace, InputError
from compshift.core.accuracy import Calibration
from compshift.estimators import diagnose as diagnose_module
from compshift.estimators import interactions
from compshift.estimators.diagnose import diagnose
from compshift.estimators.diagnosis import Difference

ADDITIVE = [(0, 0), (0, 2), (2, 0), (2, 2)]
XOR = [(0, 0), (0, 2), (2, 0), (0, 0.5)]
GROUPS = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])


def rows(means, n, seed, share=None):
    rng = np.random.default_rng(seed)
    group = rng.choice(4, size=n, p=share)
    return rng.normal(size=(n, 2)) + np.array(means, dtype=float)[group], GROUPS[group]


def fitted(means=ADDITIVE, n=1000, clf=None, seed=0, share=None):
    X, codes = rows(means, n, seed, share)
    return (clf or CRMClassifier(1e-3)).fit(X, codes[:, 0], attributes=codes[:, 1])


def look(clf, means=ADDITIVE, n=400, seed=1, share=None, cv=3):
    X, codes = rows(means, n, seed, share)
    return diagnose(clf, X, codes[:, 0], codes[:, 1], cv=cv)


def with_model(clf, **changes):
    """Return a copy of the classifier with some fields of its model replaced."""
    result = copy.copy(clf)
    result._model = replace(clf._model, **changes)
    return result


@cache
def small_look():
    return look(fitted(n=200), n=60)


class TestAdditivity:
    @pytest.mark.parametrize("seed", range(3))
    def test_additive_data_show_no_interactions(self, seed):
        found = look(fitted(seed=seed), seed=100 + seed, cv=5)
        assert found.additive
        assert found.interaction.mean < 0.01
        assert "as well as a saturated one" in found.verdict

    @pytest.mark.parametrize("seed", range(2))
    def test_interactions_are_found_and_reported(self, seed):
        found = look(fitted(XOR, seed=seed), XOR, n=600, seed=100 + seed, cv=5)
        assert not found.additive
        assert found.interaction.mean > 0.05
        assert found.interaction.mean > 4 * found.interaction.error
        assert found.verdict.startswith("The additive model fits worse than a saturated one, by 0.")
        assert "It is worst in (" in found.verdict

    @pytest.mark.parametrize("clf", [AdditiveGaussian(), AffineExtrapolation(LogisticRegression(), random_state=0)])
    @pytest.mark.parametrize("means", [ADDITIVE, XOR])
    def test_other_classifiers_can_be_diagnosed(self, clf, means):
        found = look(fitted(means, clf=clf), means, n=600)
        assert found.additive == (means is ADDITIVE)
        assert np.isnan(found.bias_gap).all()
        assert np.isnan(found.pareto_k).all()

    def test_the_last_ridge_before_the_likelihood_stops_rising_is_chosen(self):
        rng = np.random.default_rng(0)
        X, position = rng.normal(size=(120, 10)), np.arange(120) % 4
        X[:, 0] += position
        sample = interactions._GroupRows(X, position, np.full((120, 4), -np.log(4)), 1.0)
        held_out = np.arange(120) % 5 == 0
        fitting, judging = sample.part(np.flatnonzero(~held_out)), sample.part(np.flatnonzero(held_out))
        likelihood = [judging.true_log_proba(np.eye(4), found).mean() for found in fitting.corrections(np.eye(4))]
        best = int(np.argmax(likelihood))
        assert 0 < best < len(likelihood) - 1
        assert interactions._best_ridge(sample, held_out, np.eye(4)) == best

    def test_other_frequencies_and_a_strong_ridge_are_not_taken_for_interactions(self):
        clf = fitted(clf=CRMClassifier(3.0), share=[0.7, 0.1, 0.1, 0.1])
        found = look(clf, n=600)
        assert found.additive
        assert found.correction.mean > 0.1
        assert "An additive correction" in found.verdict
        assert found.shift == pytest.approx(0.45, abs=0.06)
        assert found.shift > found.shift_limit
        assert "not as frequent here" in found.verdict

    @pytest.mark.parametrize(
        ("mean", "error", "words"),
        [
            (0.05, 0.01, "fits worse than a saturated one, by 0.050 ± 0.010"),
            (0.005, 0.001, "fits slightly worse"),
            (0.05, 0.02, "hints at interactions but does not establish them"),
            (
                0.05,
                0.04,
                "as well as a saturated one, within the noise (0.050 ± 0.040 nats per row in favour of the sat",
            ),
            (-0.01, 0.01, "in favour of the additive one"),
            (-0.05, 0.01, "fits better than a saturated one, by 0.050"),
        ],
    )
    def test_the_verdict_claims_no_more_than_the_numbers(self, mean, error, words):
        found = replace(small_look(), interaction=Difference(mean, error, 60))
        assert words in found.verdict
        assert found.additive == ("fits worse" not in words)


class TestNumbers:
    def test_calibration_uses_the_training_prior_and_the_learned_bias(self):
        clf = with_model(fitted(n=300), learned_bias=np.array([0.8, -0.3, 0.0, 0.1]))  # far from B*
        X, codes = rows(ADDITIVE, 40, seed=1)
        found = diagnose(clf, X, codes[:, 0], codes[:, 1])
        confidence, right = [], []
        for x, (_, a) in zip(X, codes, strict=True):
            energies = clf.coef_ @ (x - clf.feature_mean_)
            scores = {
                (y, b): math.exp(-energies[y] - energies[2 + b] - clf._model.learned_bias[2 * y + b])
                * clf.group_weight_[2 * y + b]
                for y in range(2)
                for b in range(2)
            }
            shares = [sum(scores[y, b] for y in range(2)) / sum(scores.values()) for b in range(2)]
            confidence.append(max(shares))
            right.append(shares.index(max(shares)) == a)
        assert found.calibration["a"].error == pytest.approx(abs(np.mean(confidence) - np.mean(right)))  # one bin of 40
        assert found.calibration["a"].accuracy == np.mean(right)

    def test_an_overconfident_model_is_reported(self):
        clf = fitted()
        assert not look(clf, n=1500).calibration["y"].off
        found = look(with_model(clf, coef=4 * clf.coef_), n=1500)
        assert found.calibration["y"].overconfidence > 0.02
        assert "Probabilities of y are overconfident" in found.verdict
        assert "Probabilities of a are overconfident" in found.verdict
        assert found.additive

    def test_groups_whose_bias_rests_on_few_samples_are_named(self):
        far = [(0, 0), (0, 5), (5, 0), (5, 5)]
        clf = fitted(far, share=[0, 0.4, 0.3, 0.3])
        found = look(clf, far, share=[0, 0.4, 0.3, 0.3])
        assert found.few_samples[0]
        assert found.effective_sample_size[0] < 30
        assert f"(0, 0) ({found.effective_sample_size[0]:.3g}" in found.verdict
        light = replace(found, effective_sample_size=np.full(4, 500.0), pareto_k=np.array([0.8, 0.6, 0.6, 0.6]))
        assert light.few_samples.tolist() == [True, False, False, False]  # the tail is heavy
        assert replace(light, effective_sample_size=np.full(4, 5.0), pareto_k=np.full(4, 0.1)).few_samples.all()
        near = look(fitted(share=[0, 0.4, 0.3, 0.3]), share=[0, 0.4, 0.3, 0.3])
        assert not near.few_samples.any()
        assert "few samples" not in near.verdict

    def test_a_bias_gap_is_reported(self):
        clf = fitted()
        clf.learned_bias_ = clf.learned_bias_ + np.array([0.5, 0, 0, 0])
        found = look(clf)
        np.testing.assert_allclose(found.bias_gap, [0.5, 0, 0, 0], atol=1e-5)
        assert "differ by up to 0.5" in found.verdict

    def test_the_frame_the_dict_and_the_text(self):
        clf = fitted(share=[0, 0.4, 0.3, 0.3])
        found = look(clf, n=500)
        frame = found.to_frame()
        assert frame["rows"].tolist()[0] == 0
        assert frame["rows"].sum() == found.n_rows == 500 - found.n_unseen
        assert found.n_unseen > 80
        assert math.isnan(frame["interaction"][0])
        content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
        assert content["groups"][0]["interaction"] is None
        assert content["interaction"]["mean"] == found.interaction.mean
        assert content["calibration"]["y"]["off"] == found.calibration["y"].off
        weighted = (frame["interaction"] * frame["rows"]).sum() / found.n_rows
        assert weighted == pytest.approx(found.interaction.mean)
        assert "unseen groups" in str(found)
        assert isinstance(found.calibration["a"], Calibration)

    def test_the_classifier_is_not_changed(self):
        clf = fitted().set_prior([0.1, 0.2, 0.3, 0.4])
        before = copy.deepcopy(clf)
        X, _ = rows(ADDITIVE, 20, seed=3)
        first, second = look(clf), look(clf)
        assert first.to_dict() == second.to_dict()
        assert clf.bias == "extrapolated"
        np.testing.assert_array_equal(clf.group_log_proba(X), before.group_log_proba(X))

    def test_three_attributes_two_targets_and_frames(self):
        rng = np.random.default_rng(0)
        space = GroupSpace.from_cardinalities((2, 2, 3))
        codes = space.codes(rng.integers(1, 12, size=1200))
        X = rng.normal(size=(1200, 4)) + space.one_hot(codes) @ rng.normal(size=(7, 4)) * 1.5
        y = pd.DataFrame({"bird": codes[:, 0], "size": codes[:, 1]})
        place = pd.Series(np.array(["a", "b", "c"])[codes[:, 2]], name="place")
        clf = CRMClassifier(1e-3).fit(X[:600], y[:600], attributes=place[:600])
        found = diagnose(clf, X[600:], y[600:], attributes=place[600:], cv=3)
        assert list(found.calibration) == ["bird", "size", "place"]
        assert found.additive
        assert len(found.to_frame()) == 12

    def test_groups_with_few_rows_take_no_part_in_the_comparison(self):
        X, codes = rows(ADDITIVE, 300, seed=1)
        keep = np.concatenate([np.flatnonzero(codes.any(axis=1)), np.flatnonzero(~codes.any(axis=1))[:4]])
        found = diagnose(fitted(), X[keep], codes[keep, 0], codes[keep, 1])
        assert found.rows[0] == 4
        assert math.isnan(found.interaction_by_group[0])
        assert found.interaction.n_rows == len(keep) - 4


def test_bad_input_raises_a_clear_message(monkeypatch):
    clf, (X, codes) = fitted(share=[0, 0.4, 0.3, 0.3]), rows(ADDITIVE, 200, seed=1)
    y, a = codes.T
    with pytest.raises(NotFittedError):
        diagnose(CRMClassifier(), X, y, a)
    with pytest.raises(InputError, match="LogisticRegression: pass a fitted classifier over groups"):
        diagnose(LogisticRegression(), X, y, a)
    with pytest.raises(InputError, match="attribute 'a' has the unknown value 7"):
        diagnose(clf, X, y, np.where(a == 0, 7, a))
    with pytest.raises(InputError, match=r"none of the \d+ rows belongs to a group seen in training, such as \(0, 1\)"):
        diagnose(clf, X[y + a == 0], y[y + a == 0], a[y + a == 0])
    with pytest.raises(
        InputError,
        match=r"1 of the seen groups have 5 rows or more in X, but the comparison .* needs two: pass more rows",
    ):
        diagnose(clf, X[y * a == 1], y[y * a == 1], a[y * a == 1])
    with pytest.raises(InputError, match=r"there are 1 columns .* for 2 attributes"):
        diagnose(clf, X, y)
    with pytest.raises(InputError, match="attributes has 5 rows but X has 200"):
        diagnose(clf, X, y, a[:5])
    with pytest.raises(InputError, match="cv is 2: pass 3 folds or more"):
        diagnose(clf, X, y, a, cv=2)
    with pytest.raises(InputError, match="y is None"):
        diagnose(clf, X, None, a)
    with pytest.raises(InputError, match="random_state is 'one': pass an integer from 0"):
        diagnose(clf, X, y, a, random_state="one")
    keep = y + a > 0
    unseen = CRMClassifier(support=[[0, 0]]).fit(X[keep], y[keep], attributes=a[keep])
    with pytest.raises(InputError, match="none of the groups that clf can predict was seen in training"):
        diagnose(unseen, X, y, a)
    monkeypatch.setattr(diagnose_module, "MAX_DIAGNOSED_CELLS", 50)
    with pytest.raises(InputError, match="are too many to hold in memory: pass fewer rows"):
        diagnose(clf, X, y, a)
