"""Boosted energies: unseen groups, held-out groups and samples, weights, mixed columns, model files."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

import compshift as cs
from compshift import CRMBoostingClassifier, CRMClassifier, ExtrapolationWarning, GroupSpace, InputError
from compshift.core.energy import GroupTable

pytest.importorskip("lightgbm")

from compshift.crm import table_energies
from compshift.crm.boosted_energies import BoostingParams, TreeRows, grow, value_basis
from compshift.crm.coded import coded_samples
from compshift.crm.mixed_features import mixed_features
from compshift.crm.problem import Standard
from compshift.crm.table_energies import BoostedFits, FittedEnergies, _Trial
from compshift.crm.trees import leaf_sums
from tests.crm.rings import QUICK, grid

pytestmark = pytest.mark.filterwarnings("ignore::compshift.ExtrapolationWarning")


@parametrize_with_checks(
    [CRMBoostingClassifier(max_iter=5, min_samples_leaf=2, n_jobs=1)],
    expected_failed_checks=lambda _: {
        "check_sample_weight_equivalence_on_dense_data": "leaves count samples, whatever their weight"
    },
)
def test_scikit_learns_common_checks_pass(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def data():
    X, codes, kept = grid(3000)
    return X, codes, kept


@pytest.fixture(scope="module")
def fitted(data):
    X, codes, kept = data
    attributes = pd.DataFrame({"place": codes[kept, 1]})
    return CRMBoostingClassifier(**QUICK).fit(X[kept], codes[kept, 0], attributes=attributes)


class TestFit:
    def test_an_unseen_group_where_linear_energies_fail(self, data, fitted):
        X, codes, kept = data
        linear = CRMClassifier().fit(X[kept], codes[kept, 0], attributes=codes[kept, 1])
        accuracy = {name: clf.score(X[~kept], codes[~kept, 0]) for name, clf in (("t", fitted), ("l", linear))}
        assert accuracy["t"] > 0.75
        assert accuracy["l"] < 0.6

    def test_the_bias_of_seen_groups_is_also_the_extrapolated_one(self, fitted):
        np.testing.assert_allclose(
            fitted.bias_[fitted.seen_] - fitted.bias_[fitted.seen_].mean(),
            fitted.learned_bias_[fitted.seen_] - fitted.learned_bias_[fitted.seen_].mean(),
            atol=1e-4,
        )
        assert fitted.bias_gap_ < 1e-4

    def test_two_fits_are_equal(self, data, fitted):
        X, codes, kept = data
        again = clone(fitted).fit(X[kept], codes[kept, 0], attributes=codes[kept, 1])
        np.testing.assert_array_equal(again.predict_proba(X[:50]), fitted.predict_proba(X[:50]))

    def test_biases_come_from_held_out_samples(self, data, monkeypatch):
        """No fold's trees see the samples whose energies give the biases."""
        X, codes, kept = data
        trained, asked = [], []
        grow, held_out = table_energies.grow, table_energies._try_fold

        def watched(rows, *arguments):
            trained.append({row.tobytes() for row in rows.X})
            return grow(rows, *arguments)

        def watched_fold(rows, *arguments):
            trial = held_out(rows, *arguments)
            asked.append({row.tobytes() for row in rows.X[trial.rows]})
            return trial

        monkeypatch.setattr(table_energies, "grow", watched)
        monkeypatch.setattr(table_energies, "_try_fold", watched_fold)
        CRMBoostingClassifier(**QUICK).fit(X[kept], codes[kept, 0], attributes=codes[kept, 1])
        assert len(asked) == 3
        assert not any(one & other for one, other in zip(trained, asked, strict=False))
        assert set.union(*asked) == {row.tobytes() for row in X[kept]}

    def test_one_fit_gives_the_energies_after_every_number_of_rounds(self, data):
        X, codes, kept = data
        space = GroupSpace.from_cardinalities([3, 3])
        groups, position = space.distinct(codes[kept][:300])
        rows = TreeRows(X[kept][:300], position, np.full(300, 1 / 300), GroupTable.of(space, groups), ())
        params, held = BoostingParams(n_threads=1), np.arange(300) % 3 == 0
        found = BoostedFits(rows, params, np.array([3, 7])).held_out(held)
        for energies, n_rounds in zip(found, (3, 7), strict=True):
            booster, scale = grow(rows.subset(~held)[0], params, n_rounds)
            expected = leaf_sums(booster, rows.X[held], scale) @ value_basis(space).T
            np.testing.assert_allclose(energies, expected, atol=1e-12)

    def test_biases_prefer_fits_that_know_the_group(self, data, fitted, monkeypatch):
        """Energies of a group that was held out as a whole count only where its samples have no others."""
        X, codes, kept = data
        space = GroupSpace.from_cardinalities([3, 3])
        groups, position = space.distinct(codes[kept][:30])
        rows = TreeRows(X[kept][:30], position, np.full(30, 1 / 30), GroupTable.of(space, groups), ())
        lone = np.flatnonzero(position == 0)  # a group that is only ever held out as a whole
        others = np.flatnonzero(position != 0)
        trials = [
            _Trial(np.full((1, 30, 6), 2.0), np.arange(30), np.ones(30, dtype=bool), np.arange(1)),
            _Trial(np.full((1, len(others), 6), 3.0), others, np.zeros(len(others), dtype=bool), np.arange(1)),
        ]
        model, asked = fitted._model, []
        monkeypatch.setattr(table_energies, "calibrated", lambda energies, *_: asked.append(energies) or model)
        whole = FittedEnergies(model.basis, np.eye(6), Standard(np.zeros(6), 1.0), np.full((30, 6), 1.0), 1)
        table_energies._calibrated_model([whole], rows, trials, [0], model.candidates)
        expected = np.full(30, 3.0)
        expected[lone] = 2.0
        np.testing.assert_array_equal(asked[0][:, 0], expected)

    def test_held_out_groups_are_possible_under_the_training_prior(self, data):
        """They would have probability 0 under the prior of a fold's own training samples."""
        X, codes, kept = data
        scores = [
            CRMBoostingClassifier(prior=prior, **QUICK)
            .fit(X[kept], codes[kept, 0], attributes=codes[kept, 1])
            .cv_results_["mean_test_score"]
            for prior in ("train", "hull")
        ]
        np.testing.assert_array_equal(*scores)

    def test_the_number_of_rounds_is_chosen_on_held_out_groups_and_samples(self, data, fitted):
        results = fitted.cv_results_
        assert fitted.n_iter_ == results["n_iter"][fitted.best_index_] == fitted._model.basis.n_rounds
        total = 1 * results["mean_test_score"] + 8 * results["mean_seen_score"]  # one unseen group, eight seen ones
        assert fitted.best_index_ == np.argmax(total)
        X, codes, kept = data
        fixed = CRMBoostingClassifier(max_iter=7, early_stopping=False, n_jobs=1)
        assert fixed.fit(X[kept], codes[kept, 0], attributes=codes[kept, 1]).n_iter_ == 7

    def test_expected_accuracy(self, data):
        """It is estimated for the unseen group, holds there, and is absent where no group is held out."""
        X, codes, kept = data
        arguments = {"attributes": codes[kept, 1]}
        clf = CRMBoostingClassifier(prior="hull", **QUICK).fit(X[kept], codes[kept, 0], **arguments)
        ((_, _, expected, lower, upper),) = clf.expected_group_accuracy_.itertuples(index=False)
        assert lower < expected < upper
        assert abs(expected - clf.score(X[~kept], codes[~kept, 0])) < 0.15
        clf.set_params(early_stopping=False, max_iter=5).fit(X[kept], codes[kept, 0], **arguments)
        with pytest.raises(AttributeError, match="was not estimated"):
            _ = clf.expected_group_accuracy_

    def test_groups_of_one_sample(self):
        X, codes, kept = grid(400)
        rare = (codes == (1, 1)).all(axis=1)
        kept &= ~rare | (np.cumsum(rare) == 1)
        clf = CRMBoostingClassifier(**QUICK).fit(X[kept], codes[kept, 0], attributes=codes[kept, 1])
        assert np.isfinite(clf.bias_).all()
        assert np.isfinite(clf.predict_proba(X)).all()

    def test_weights(self, data):
        """A sample of weight 0 does not count; weights change the model; their scale does not."""
        X, codes, kept = data
        X, codes = X[kept][:600], codes[kept][:600]
        weight = np.where(np.arange(600) < 500, 1.0, 0.0)

        def proba(rows, weight):
            clf = CRMBoostingClassifier(**QUICK)
            return clf.fit(X[rows], codes[rows, 0], attributes=codes[rows, 1], sample_weight=weight).predict_proba(X)

        few, every = slice(0, 500), slice(None)
        plain = proba(few, None)
        np.testing.assert_allclose(proba(every, weight), plain, atol=1e-9)
        np.testing.assert_allclose(proba(few, np.full(500, 4.0)), plain, atol=1e-6)
        assert np.abs(proba(few, np.where(codes[:500, 0] == 1, 5.0, 1.0)) - plain).max() > 0.01

    def test_held_out_samples_count_by_their_weight(self):
        """Three quarters of the samples of each group, of weight 2, have the energies of their class."""
        space = GroupSpace.from_cardinalities([2, 2])
        codes = np.repeat(space.codes(np.arange(4)), 40, axis=0)
        wrong = np.arange(160) % 4 == 0
        shown = np.column_stack([np.where(wrong, 1 - codes[:, 0], codes[:, 0]), codes[:, 1]])
        data = coded_samples(np.zeros((160, 1)), codes, space, np.where(wrong, 1.0, 2.0))
        trial = _Trial(-3 * space.one_hot(shown)[None], np.arange(160), np.zeros(160, dtype=bool), np.arange(4))
        (found,) = table_energies._hold_out(data, [trial], 1, "uniform")
        np.testing.assert_allclose(found.seen, 60 / 70)
        assert np.isnan(found.accuracy).all()

    @pytest.mark.parametrize("scale", [1e-150, 1e150])
    def test_the_scale_of_a_column_does_not_matter(self, data, fitted, scale):
        X, codes, kept = data
        factor = np.array([2.0 ** round(np.log2(scale)), 1.0, 1.0, 1.0])
        scaled = clone(fitted).fit(X[kept] * factor, codes[kept, 0], attributes=codes[kept, 1])
        np.testing.assert_array_equal(scaled.predict_proba(X[:50] * factor), fitted.predict_proba(X[:50]))

    def test_constant_features(self, data):
        """Nothing can be learnt, but the prior is still the answer."""
        _, codes, kept = data
        X = np.ones((len(codes), 2))
        clf = CRMBoostingClassifier(prior="hull", **QUICK).fit(X[kept], codes[kept, 0], attributes=codes[kept, 1])
        np.testing.assert_allclose(clf.predict_proba(X[:2]), 1 / 3, atol=1e-3)

    def test_missing_values_of_a_constant_column_are_informative(self, data):
        _, codes, kept = data
        X = np.where(codes[:, :1] == 2, np.nan, 1.0)
        clf = CRMBoostingClassifier(prior="hull", **QUICK).fit(X[kept], codes[kept, 0], attributes=codes[kept, 1])
        assert (clf.predict(X) == 2).tolist() == (codes[:, 0] == 2).tolist()

    def test_several_targets(self, data):
        X, codes, kept = data
        clf = CRMBoostingClassifier(**QUICK).fit(X[kept], codes[kept])
        assert clf.predict(X[~kept]).shape == (int((~kept).sum()), 2)
        assert (clf.predict(X[~kept]) == 0).all(axis=1).mean() > 0.5


class TestPredictions:
    def test_known_attributes(self, data, fitted):
        X, codes, kept = data
        known = fitted.predict_proba(X[~kept], attributes=pd.DataFrame({"place": codes[~kept, 1]}))
        log_proba = fitted.group_log_proba(X[~kept])
        own = log_proba[:, fitted.groups_[:, 1] == 0]
        np.testing.assert_allclose(known, np.exp(own - np.logaddexp.reduce(own, axis=1)[:, None]), atol=1e-9)

    def test_priors_sets_and_explanations(self, data, fitted):
        X, codes, kept = data
        clf = pickle.loads(pickle.dumps(fitted))
        assert (clf.set_prior("train").predict_group(X[~kept]) != [0, 0]).any(axis=1).all()
        sets = fitted.predict_set(X, coverage=0.9)
        assert sets.contains[np.arange(len(X)), codes[:, 0]].mean() > 0.85
        frame = fitted.explain(X[~kept][:5]).to_frame()
        assert not frame["seen"].any()
        assert len(fitted.group_frame()) == 9
        assert fitted.feature_importances_.shape == (4,)


class TestColumns:
    @pytest.fixture(scope="class")
    @classmethod
    def table(cls):
        rng = np.random.default_rng(0)
        codes = rng.integers(2, size=(1200, 2))
        frame = pd.DataFrame(
            {
                "size": codes[:, 0] + rng.normal(size=1200),
                "colour": pd.Categorical(np.where(rng.random(1200) < 0.8, codes[:, 1], 1 - codes[:, 1]).astype(str)),
                "wet": rng.random(1200) < 0.2 + 0.6 * codes[:, 0],
                "shop": rng.choice(["north", "south", None], 1200),
            }
        )
        frame.loc[::5, "size"] = np.nan
        kept = (codes != (0, 0)).any(axis=1)
        return frame, codes, kept

    @pytest.fixture(scope="class")
    @classmethod
    def clf(cls, table):
        frame, codes, kept = table
        return CRMBoostingClassifier(**QUICK).fit(frame[kept], codes[kept, 0], attributes=codes[kept, 1])

    def test_kinds_of_columns(self, table, clf):
        frame, codes, _ = table
        assert clf._columns.categories == (None, ("0", "1"), (False, True), ("north", "south"))
        assert clf.score(frame, codes[:, 0]) > 0.75
        assert list(clf.feature_names_in_) == list(frame.columns)

    def test_a_new_category_is_missing(self, table, clf):
        frame = table[0].head(20).astype({"colour": object})
        new, missing = frame.assign(colour="2"), frame.assign(colour=None)
        np.testing.assert_array_equal(clf.predict_proba(new), clf.predict_proba(missing))

    def test_the_order_of_categories_does_not_matter(self, table, clf):
        frame = table[0].head(50)
        turned = frame.assign(colour=frame["colour"].cat.reorder_categories(["1", "0"]))
        np.testing.assert_array_equal(clf.predict_proba(turned), clf.predict_proba(frame))

    def test_numbers_can_be_categories(self, table):
        frame, codes, kept = table
        number = frame[["size"]].assign(colour=frame["colour"].astype(int) * 7)
        arguments = {"y": codes[kept, 0], "attributes": codes[kept, 1]}
        by_name = CRMBoostingClassifier(categorical_features=["colour"], **QUICK).fit(number[kept], **arguments)
        assert by_name._columns.categories == (None, (0, 7))
        by_index = CRMBoostingClassifier(categorical_features=[1], **QUICK)
        by_index.fit(number[kept].to_numpy(dtype=float), **arguments)
        np.testing.assert_array_equal(
            by_index.predict_proba(number.to_numpy(dtype=float)), by_name.predict_proba(number)
        )

    def test_columns_of_text_are_categories_beside_those_that_are_named(self, table):
        frame = table[0][["shop", "wet"]].assign(number=np.arange(len(table[0])) % 2)
        _, columns = mixed_features(CRMBoostingClassifier(), frame, None, ["number"])
        assert columns.categories == (("north", "south"), (False, True), (0, 1))

    def test_too_many_categories(self):
        frame = pd.DataFrame({"name": [f"n{number}" for number in range(10_001)]})
        with pytest.raises(InputError, match="column 'name' has 10001 categories: drop it, or group its values"):
            mixed_features(CRMBoostingClassifier(), frame, None)
        assert mixed_features(CRMBoostingClassifier(), frame[1:], None)[1].categorical == (0,)

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            (lambda f: f.assign(size=np.inf), "X contains infinite values"),
            (lambda f: f.assign(size=pd.Timestamp("2020-01-01")), "column 'size' of X holds times"),
            (lambda f: f.drop(columns="shop"), "Pass the columns used in fit, in the same order"),
            (lambda f: f.assign(size="large"), "column 'size' of X holds values that are not numbers"),
        ],
    )
    def test_bad_columns_of_a_prediction(self, table, clf, change, sentence):
        with pytest.raises(InputError, match=sentence):
            clf.predict(change(table[0].head(5)))


class TestFiles:
    def test_a_saved_model_predicts_the_same(self, data, fitted, tmp_path):
        fitted.save(tmp_path / "m.safetensors")
        loaded = cs.load(tmp_path / "m.safetensors")
        assert isinstance(loaded, CRMBoostingClassifier)
        np.testing.assert_array_equal(loaded.predict_proba(data[0]), fitted.predict_proba(data[0]))
        np.testing.assert_array_equal(loaded.predict_set(data[0]).contains, fitted.predict_set(data[0]).contains)
        assert loaded.n_iter_ == fitted.n_iter_
        assert loaded.get_params()["max_iter"] == 20

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            (lambda _, arrays: arrays.update(tree_left=arrays["tree_left"] * 0), "trees of the model are damaged"),
            (lambda _, arrays: arrays.update(tree_value=arrays["tree_left"]), "tree_value has type int64"),
            (lambda _, arrays: arrays.pop("tree_words"), "tree_words"),
            (lambda header, _: header.pop("trees"), "max_iter|has neither trees nor columns|invalid"),
            (lambda header, _: header["trees"].update(n_outputs=3), "6 coefficients per energy for 3 features"),
            (lambda header, _: header["trees"].update(n_features=10**12), "the number of scales is invalid"),
            (lambda header, _: header.update(categories=[None]), "categories must have"),
            (lambda header, _: header.update(categories=[None, None, None, [[]]]), "categories must have"),
            (lambda header, _: header["parameters"].update(learning_rate="x"), "learning_rate"),
        ],
    )
    def test_damaged_files(self, fitted, tmp_path, change, sentence):
        from compshift.crm import io

        fitted.save(tmp_path / "m.safetensors")
        _, header, arrays = io.read(tmp_path / "m.safetensors")
        change(header, arrays)
        io.write(tmp_path / "bad.safetensors", "CRMBoostingClassifier", header, arrays)
        with pytest.raises(InputError, match=sentence):
            cs.load(tmp_path / "bad.safetensors")


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"energies": "cubic"}, "energies 'cubic' is not known: use one of 'boosted', 'linear', 'auto'"),
        ({"max_iter": 0}, "max_iter"),
        ({"learning_rate": 0}, "learning_rate"),
        ({"learning_rate": 1e308}, r"learning_rate is 1e\+308: pass a number above 0 and at most 10"),
        ({"max_leaf_nodes": 1}, "max_leaf_nodes is 1: pass an integer from 2"),
        ({"min_samples_leaf": 0}, "min_samples_leaf"),
        ({"l2_regularization": -1}, "l2_regularization"),
        ({"n_folds": 1}, "n_folds is 1: pass a number of folds"),
        ({"early_stopping": "auto"}, "early_stopping is 'auto': pass True or False"),
        ({"categorical_features": "all"}, "categorical_features is 'all'"),
        ({"categorical_features": ["x9"]}, "categorical_features has 'x9', which is not a column of X"),
        ({"categorical_features": [4]}, "categorical_features has 4, which is not a column of X"),
        ({"bias": "none"}, "bias"),
        ({"n_jobs": 0}, "n_jobs"),
        ({"confidence": 1}, "confidence"),
    ],
)
def test_invalid_parameters(data, parameters, sentence):
    X, codes, kept = data
    with pytest.raises(InputError, match=sentence):
        CRMBoostingClassifier(**parameters).fit(pd.DataFrame(X[kept]), codes[kept, 0], attributes=codes[kept, 1])


def test_one_group(data):
    X, codes, _ = data
    own = (codes == (1, 1)).all(axis=1)
    with pytest.raises(InputError, match=r"one group|one class"):
        CRMBoostingClassifier().fit(X[own], codes[own, 0], attributes=codes[own, 1])


def test_a_bias_that_rests_on_few_samples_is_reported():
    rng = np.random.default_rng(0)
    codes = np.repeat([[0, 1], [1, 0], [1, 1]], 500, axis=0)
    X = rng.normal(size=codes.shape) + 4 * codes
    with pytest.warns(ExtrapolationWarning, match="rests on few samples .* collect samples of the group"):
        CRMBoostingClassifier(max_iter=60, n_jobs=1).fit(X, codes[:, 0], attributes=codes[:, 1])
