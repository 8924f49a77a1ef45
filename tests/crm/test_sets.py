"""Prediction sets: the equations as loops, coverage in simulations, priors, files, few samples and bad input."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import NotFittedError

import compshift
from compshift import CRMClassifier, CRMClassifierCV, GroupSpace, InputError
from compshift.crm import io as model_file
from compshift.crm import model as crm_model
from compshift.crm.model import OutOfFold
from compshift.crm.sets import MIN_OWN_SAMPLES
from tests import references
from tests.crm.stores import sightings, write_store
from tests.estimators.made_data import hide, make_data

CARDINALITIES = (2, 3)


@pytest.fixture(scope="module")
def fitted():
    """A fit with one unseen group, and one seen group with fewer than MIN_OWN_SAMPLES samples."""
    X, codes = make_data(CARDINALITIES, n=400)
    rare = np.flatnonzero((codes == [1, 1]).all(axis=1))[MIN_OWN_SAMPLES - 5 :]
    X, codes = np.delete(X, rare, axis=0), np.delete(codes, rare, axis=0)
    weight = np.random.default_rng(1).uniform(0.5, 2.0, size=len(X))
    clf = CRMClassifier(cross_fit=True).fit(X, codes[:, 0], attributes=codes[:, 1], sample_weight=weight)
    return clf, make_data(CARDINALITIES, n=12, missing=(), seed=3)[0]


def p_values_by_loops(clf, X, target, needed):
    """p-values (n, c) of the classes of one target, and the effective sample size by group, from the equations."""
    model, known = clf._model, clf._model.out_of_fold
    sizes, groups, seen = clf.space_.cardinalities, clf.groups_.tolist(), clf.hull_.observed.tolist()
    log_score = clf._log_score().tolist()
    frequency = model.candidates.seen_weight / model.candidates.seen_weight.sum()
    seen_score = (np.log(frequency) - known.bias).tolist()
    weight, position = known.weight.tolist(), known.position.tolist()

    def scores(energies):
        return [-value for value in references.marginal_log_posterior(energies, sizes, groups, log_score, target)]

    def log_importance(energies, group):
        scaled = [known.temperature * value for value in energies]
        evidence = references.log_evidence(scaled, sizes, seen, seen_score)
        return -references.group_energy(scaled, sizes, group) - evidence

    rows = known.energies.tolist()
    row_scores = [scores(row) for row in rows]
    found, effective = np.zeros((len(X), sizes[target])), {}
    for group, log_prior, inside in zip(groups, clf.log_prior_, clf.inside_hull_, strict=True):
        if log_prior == -math.inf or not inside:
            continue
        own = [seen[where] == group for where in position]
        own_weights = [one for one, belongs in zip(weight, own, strict=True) if belongs]
        alone = sum(own_weights) ** 2 / sum(one**2 for one in own_weights) if own_weights else 0.0
        if alone >= MIN_OWN_SAMPLES:
            logs = [math.log(one) if belongs else -math.inf for one, belongs in zip(weight, own, strict=True)]
            new_logs = [math.log(sum(own_weights) / len(own_weights))] * len(X)
        else:
            logs = [math.log(one) + log_importance(row, group) for one, row in zip(weight, rows, strict=True)]
            mean = math.log(sum(weight) / len(weight))
            new_logs = [mean + log_importance(row, group) for row in model.energies(X).tolist()]
        importance = [math.exp(value) for value in logs]
        effective[tuple(group)] = sum(importance) ** 2 / sum(value**2 for value in importance)
        y = group[target]
        for row, (energies, own_log) in enumerate(zip(model.energies(X).tolist(), new_logs, strict=True)):
            p = references.weighted_p_value([one[y] for one in row_scores], logs, scores(energies)[y], own_log)
            found[row, y] = max(found[row, y], 1.0 if effective[tuple(group)] < needed else p)
    return found, effective


@pytest.mark.parametrize("temperature", [1.0, 1.7])
@pytest.mark.parametrize("prior", ["uniform", "train", {(0, 0): 0.5, (1, 1): 0.3, (1, 2): 0.2}])
def test_sets_equal_the_loops(fitted, prior, temperature):
    clf, X = fitted
    clf = CRMClassifier._from_model(clf._model).set_prior(prior)
    clf._model = replace(clf._model, out_of_fold=clf._model.out_of_fold._replace(temperature=temperature))
    sets = clf.predict_set(X, coverage=0.8)
    expected, effective = p_values_by_loops(clf, X, 0, needed=5)
    np.testing.assert_allclose(sets.p_values, expected, rtol=1e-9)
    np.testing.assert_array_equal(sets.contains, expected > 0.2)
    assert sets.groups.tolist() == [list(group) for group in effective]
    np.testing.assert_allclose(sets.effective_sample_size, list(effective.values()))


def test_sets_follow_the_prior_and_the_kind_of_bias(fitted):
    clf, X = fitted
    clf = CRMClassifier._from_model(clf._model)
    before = clf.predict_set(X).p_values
    clf.set_params(bias="cumulant")
    np.testing.assert_allclose(clf.predict_set(X).p_values, p_values_by_loops(clf, X, 0, needed=10)[0], rtol=1e-9)
    assert (clf.predict_set(X).p_values != before).any()
    clf.set_params(bias="extrapolated").set_prior({(0, 1): 1.0})
    assert not clf.predict_set(X).contains[:, 1].any()  # no group of this class can occur


@pytest.mark.filterwarnings("ignore::compshift.ExtrapolationWarning")
def test_groups_outside_the_hull_are_left_out():
    X, codes = make_data((2, 4), n=300, missing=(2, 3, 4, 5))
    clf = CRMClassifier(cross_fit=2).fit(X, codes[:, 0], attributes=codes[:, 1])
    sets = clf.predict_set(X[:5])
    assert len(sets.groups) == 4
    np.testing.assert_allclose(sets.p_values, p_values_by_loops(clf, X[:5], 0, needed=10)[0], rtol=1e-9)


def test_several_targets_have_a_set_each():
    X, codes = make_data((2, 3, 2), n=500, missing=(0, 5))
    clf = CRMClassifier(cross_fit=2).fit(X, codes[:, :2], attributes=codes[:, 2])
    new = X[:6] + 0.1
    sets = clf.predict_set(new)
    assert [part.contains.shape for part in sets] == [(6, 2), (6, 3)]
    for target, part in enumerate(sets):
        np.testing.assert_array_equal(part.classes, clf.classes_[target])
        np.testing.assert_allclose(part.p_values, p_values_by_loops(clf, new, target, needed=10)[0], rtol=1e-9)


@settings(max_examples=20)
@given(low=st.floats(0.05, 0.98), high=st.floats(0.05, 0.98))
def test_sets_grow_with_the_coverage(fitted, low, high):
    clf, X = fitted
    low, high = min(low, high), max(low, high)
    small, large = clf.predict_set(X, low), clf.predict_set(X, high)
    assert (small.contains <= large.contains).all()
    assert (small.p_values <= large.p_values).all()


@settings(max_examples=5)
@given(scale=st.floats(1e-3, 1e3), shift=st.floats(-100, 100))
def test_scaled_and_shifted_features_give_the_same_sets(scale, shift):
    X, codes = make_data(n=300)
    clf, other = (
        CRMClassifier(cross_fit=2, tol=1e-9).fit(features, codes[:, 0], attributes=codes[:, 1])
        for features in (X, scale * X + shift)
    )
    new = make_data(n=50, seed=2)[0]
    assert np.abs(clf.predict_set(new).p_values - other.predict_set(scale * new + shift).p_values).max() < 0.02


@settings(max_examples=20)
@given(shift=st.floats(-1e4, 1e4))
def test_a_constant_added_to_all_energies_of_a_sample_changes_nothing(fitted, shift):
    clf, X = fitted
    shifted = CRMClassifier._from_model(clf._model)
    known = clf._model.out_of_fold
    constant = shift * np.random.default_rng(0).normal(size=(len(known.energies), 1))
    shifted._model = replace(clf._model, out_of_fold=known._replace(energies=known.energies + constant))
    before, after = clf.predict_set(X), shifted.predict_set(X)
    assert np.abs(after.p_values - before.p_values).max() < 0.02
    np.testing.assert_allclose(after.effective_sample_size, before.effective_sample_size, rtol=1e-6)


def gaussian_rows(rng, groups, n):
    """Return unit Gaussians around the codes of random groups, twice as far apart, and the codes."""
    codes = np.asarray(groups)[rng.integers(len(groups), size=n)]
    return rng.normal(size=codes.shape) + 2 * codes, codes


def test_sets_cover_seen_and_unseen_groups_where_the_model_is_right():
    """Coverage 0.8 on average over 30 fits of additive Gaussians; sets of unseen groups rest on weighted samples."""
    cover = {"seen": [], "unseen": []}
    for seed in range(30):
        rng = np.random.default_rng(seed)
        X, codes = gaussian_rows(rng, [[0, 1], [1, 0], [1, 1]], 300)
        clf = CRMClassifier(cross_fit=5, alpha=1e-3, tol=1e-4).fit(X, codes[:, 0], attributes=codes[:, 1])
        for part, groups in (("seen", [[0, 1], [1, 0], [1, 1]]), ("unseen", [[0, 0]])):
            X_new, codes_new = gaussian_rows(rng, groups, 500)
            sets = clf.predict_set(X_new, coverage=0.8)
            cover[part].append(sets.contains[np.arange(500), codes_new[:, 0]].mean())
    assert 0.79 < np.mean(cover["seen"]) < 0.86
    assert 0.78 < np.mean(cover["unseen"]) < 0.88


def test_cross_validation_computes_what_sets_need():
    X, codes = make_data((3, 3), n=600, missing=(0,))
    clf = CRMClassifierCV(alphas=[1e-2, 1e-1]).fit(X, codes[:, 0], attributes=codes[:, 1])
    assert clf.cross_fit_ == 0
    sets = clf.predict_set(X)
    assert 0.85 < sets.contains[np.arange(600), codes[:, 0]].mean() < 1
    assert (sets.sizes < 3).any()


@pytest.mark.parametrize("make", [lambda: CRMClassifierCV(alphas=[1.0]), lambda: CRMClassifier(1.0, cross_fit=True)])
def test_out_of_fold_energies_are_on_the_scale_of_the_models(make):
    """At this ridge the energies are too even, and their temperature is far from 1."""
    X, codes = make_data((3, 3), n=600, missing=(0,))
    clf = make().fit(X, codes[:, 0], attributes=codes[:, 1])
    known, own = clf._model.out_of_fold, clf._model.energies(X)
    assert clf.temperature_ * known.temperature > 1.5
    assert np.vdot(known.energies, own) / np.vdot(own, own) == pytest.approx(1, abs=0.05)


class TestFewSamples:
    def fit(self, rows):
        X, codes = make_data(n=rows)
        return CRMClassifier(cross_fit=2).fit(X, codes[:, 0], attributes=codes[:, 1]), X

    def test_a_group_with_too_few_samples_excludes_nothing(self):
        clf, X = self.fit(60)
        sets = clf.predict_set(X, coverage=0.99)
        assert sets.needed_sample_size == 100
        assert (sets.effective_sample_size < 100).all()
        assert sets.contains.all()
        assert (sets.p_values == 1).all()
        assert not sets.group_frame()["enough"].any()
        assert "6 of 6 groups with too few samples" in repr(sets)

    def test_just_enough_samples_exclude_a_class(self):
        space = GroupSpace.from_cardinalities([2, 2])
        codes = np.repeat(space.codes(np.arange(4)), 40, axis=0)
        X = codes + 0.5 * np.random.default_rng(0).normal(size=codes.shape)
        clf = CRMClassifier(cross_fit=2).fit(X, codes[:, 0], attributes=codes[:, 1])
        sets = clf.predict_set([[9.0, 0.5]], coverage=0.975)
        assert sets.needed_sample_size == 40
        assert sets.effective_sample_size.tolist() == [40] * 4
        assert sets.group_frame()["enough"].all()
        assert sets[0].tolist() == [1]

    def test_other_classes_can_still_be_excluded(self, fitted):
        clf, X = fitted
        few = clf.predict_set(5 * X, 0.98)
        poor = few.effective_sample_size < few.needed_sample_size
        classes = np.unique(few.groups[poor, 0])
        assert classes.tolist() == [0]
        assert few.contains[:, 0].all()
        assert not few.contains[:, 1].all()


def test_small_groups_keep_their_samples_when_others_are_left_out(monkeypatch):
    monkeypatch.setattr(crm_model, "MAX_FOLD_ROWS", 50)
    rng = np.random.default_rng(0)
    position, weight = np.repeat([0, 1, 2], [100, 5, 60]), rng.uniform(0.5, 2, size=165)
    energies = rng.normal(size=(165, 4))
    kept = OutOfFold.of(energies, position, weight, 1.0, np.zeros(3))
    assert np.bincount(kept.position).tolist() == [23, 5, 22]
    np.testing.assert_allclose(np.bincount(kept.position, kept.weight), np.bincount(position, weight))
    np.testing.assert_array_equal(kept.energies[kept.position == 1], energies[position == 1])
    np.testing.assert_allclose(kept.weight[kept.position == 1], weight[position == 1])
    np.testing.assert_array_equal(OutOfFold.of(energies, position, weight, 1.0, np.zeros(3)).energies, kept.energies)


class TestFiles:
    def test_a_file_keeps_what_sets_need(self, fitted, tmp_path):
        clf, X = fitted
        clf.save(tmp_path / "m.safetensors")
        np.testing.assert_array_equal(
            compshift.load(tmp_path / "m.safetensors").predict_set(X).p_values, clf.predict_set(X).p_values
        )

    def test_a_file_without_them_loads(self, fitted, tmp_path):
        clf, X = fitted
        clf.save(tmp_path / "m.safetensors")
        self.rewrite(tmp_path / "m.safetensors", **dict.fromkeys(model_file.FOLD_ARRAYS))
        loaded = compshift.load(tmp_path / "m.safetensors")
        np.testing.assert_array_equal(loaded.predict_proba(X), clf.predict_proba(X))
        with pytest.raises(InputError, match="predict_set needs out-of-fold energies"):
            loaded.predict_set(X)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"fold_energies": None}, "'fold_energies'"),
            ({"fold_position": None}, "fold_energies has shape"),
            ({"fold_position": np.zeros(0, dtype=np.int64)}, "fold_position is empty"),
            ({"fold_position": np.full(3, 9)}, "fold_position has 9"),
            ({"fold_position": np.zeros(3)}, "fold_position has type float64"),
            ({"fold_weight": np.ones(2)}, r"fold_weight has shape \(2,\)"),
            ({"fold_bias": np.full(5, np.nan)}, "fold_bias contains nan"),
            ({"fold_temperature": np.array([-1.0])}, "fold_temperature contains -1"),
        ],
    )
    def test_damaged_files(self, fitted, tmp_path, changes, message):
        fitted[0].save(tmp_path / "m.safetensors")
        self.rewrite(tmp_path / "m.safetensors", **changes)
        with pytest.raises(InputError, match=message):
            compshift.load(tmp_path / "m.safetensors")

    @staticmethod
    def rewrite(path, **changes):
        """Write a model file again with other arrays; None leaves one out."""
        kind, header, arrays = model_file.read(path)
        header = {name: header[name] for name in header if name not in ("format_version", "compshift_version", "kind")}
        arrays = {name: array for name, array in (arrays | changes).items() if array is not None}
        model_file.write(path, kind, header, arrays)


class TestBadInput:
    @pytest.mark.parametrize("coverage", [0, 1, 1.5, -0.1, np.nan, "most", None, True])
    def test_coverage(self, fitted, coverage):
        with pytest.raises((InputError, TypeError), match="coverage is"):
            fitted[0].predict_set(fitted[1], coverage=coverage)

    def test_not_fitted(self):
        with pytest.raises(NotFittedError):
            CRMClassifier().predict_set(np.zeros((1, 2)))

    def test_other_columns(self, fitted):
        with pytest.raises(InputError, match="pass the columns used in fit"):
            fitted[0].predict_set(np.zeros((1, 9)))

    def test_fits_without_out_of_fold_energies(self, tmp_path):
        X, codes = make_data(n=300)
        plain = CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1])
        missing = CRMClassifierCV(alphas=[1e-2]).fit(X, codes[:, 0], attributes=hide(codes, 0.2))
        store = write_store(tmp_path / "store", *sightings(300))
        streamed = CRMClassifier().fit(store, "bird", attributes="place")
        for clf in (plain, missing, streamed):
            with pytest.raises(InputError, match=r"or a CRMClassifier with cross_fit=True .*--alpha auto"):
                clf.predict_set(np.zeros((1, clf.n_features_in_)))

    def test_a_prior_without_groups_inside_the_hull(self):
        X, codes = make_data((2, 2), n=200, missing=(1, 2))
        with pytest.warns(compshift.ExtrapolationWarning):
            clf = CRMClassifier(cross_fit=2).fit(X, codes[:, 0], attributes=codes[:, 1])
        with pytest.raises(InputError, match="no group inside the affine hull"):
            clf.set_prior({(0, 1): 1.0}).predict_set(X)


def test_a_result_is_a_sequence_of_arrays_of_classes(fitted):
    clf, X = fitted
    sets = clf.predict_set(X)
    assert len(sets) == len(list(sets)) == len(X)
    for row, classes in enumerate(sets):
        assert classes.tolist() == clf.classes_[sets.contains[row]].tolist()
    np.testing.assert_array_equal(sets.sizes, [len(classes) for classes in sets])
    frame = sets.group_frame()
    assert list(frame.columns) == ["y", "a", "seen", "effective_sample_size", "enough"]
    assert frame.loc[~frame["seen"], ["y", "a"]].to_numpy().tolist() == [[0, 0]]
