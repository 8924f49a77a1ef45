"""Energies of tables: linear ones, boosted ones and weighted sums of both; features, settings and model files."""

import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from sklearn.base import clone

import compshift as cs
from compshift import CRMBoostingClassifier, CRMClassifier, GroupSpace, InputError
from compshift.core.energy import GroupTable

pytest.importorskip("lightgbm")

from compshift.crm.blocks import ArrayRows
from compshift.crm.boosted_energies import TreeRows
from compshift.crm.linear_columns import LinearColumns
from compshift.crm.problem import TemperatureProblem
from compshift.crm.solver import Parameters, solve
from compshift.crm.table_energies import mean_accuracies, mixture
from tests.crm.rings import QUICK, grid

pytestmark = pytest.mark.filterwarnings("ignore::compshift.ExtrapolationWarning")


@pytest.fixture(scope="module")
def data():
    X, codes, kept = grid(3000)
    return X, codes, kept


@pytest.fixture(scope="module")
def fitted(data):
    X, codes, kept = data
    attributes = pd.DataFrame({"place": codes[kept, 1]})
    return CRMBoostingClassifier(**QUICK).fit(X[kept], codes[kept, 0], attributes=attributes)


class TestKindsOfEnergies:
    @pytest.fixture(scope="class")
    @classmethod
    def table(cls):
        """Groups of 3 × 3 that differ a little in each of forty numbers and in a category; one number has gaps."""
        rng = np.random.default_rng(0)
        codes = rng.integers(3, size=(600, 2))
        means = rng.normal(size=(2, 3, 40))
        frame = pd.DataFrame(means[0, codes[:, 0]] + means[1, codes[:, 1]] + 3 * rng.normal(size=(600, 40)))
        frame = frame.rename(columns=lambda number: f"x{number}")
        frame["colour"] = pd.Categorical(np.where(rng.random(600) < 0.5, codes[:, 0], 3).astype(str))
        frame.loc[::7, "x0"] = np.nan
        kept = (codes != (0, 0)).any(axis=1)
        return frame, codes, kept

    def fit(self, table, **parameters):
        frame, codes, kept = table
        clf = CRMBoostingClassifier(**QUICK, **parameters)
        return clf.fit(frame[kept], codes[kept, 0], attributes=pd.DataFrame({"place": codes[kept, 1]}))

    @pytest.fixture(scope="class")
    @classmethod
    def linear(cls, table):
        return cls().fit(table, energies="linear")

    def test_linear_energies_are_those_of_crm_classifier(self, table, linear):
        frame, codes, kept = table
        X = linear._model.basis.scores(linear._check_features(frame[kept], fitted=True))
        alpha = linear.cv_results_["alpha"][linear.best_index_]
        direct = CRMClassifier(alpha).fit(X, codes[kept, 0], attributes=codes[kept, 1])
        np.testing.assert_allclose(linear._model.coef, linear.temperature_ * direct._model.coef, atol=1e-3)
        assert linear.energies_ == "linear"
        assert linear.score(frame[~kept], codes[~kept, 0]) > 0.7

    @pytest.fixture(scope="class")
    @classmethod
    def both(cls, table):
        return cls().fit(table, energies="auto")

    def test_both_kinds_are_added(self, table, linear, both):
        """Energies are a sum of those of trees and of columns; little is left to the trees where effects are linear."""
        frame, codes, kept = table
        assert both.energies_ == "both"
        X = both._check_features(frame[:50], fitted=True)
        basis, model = both._model.basis, both._model
        n_outputs = basis.trees.n_outputs
        boosted = basis.trees.scores(X) @ model.coef[:, :n_outputs].T
        columns = (basis.columns.scores(X) - model.feature_mean[n_outputs:]) @ model.coef[:, n_outputs:].T
        np.testing.assert_allclose(model.energies(X), boosted + columns, atol=1e-9)
        assert np.std(columns) > np.std(boosted)
        accuracy, alone = (clf.score(frame[~kept], codes[~kept, 0]) for clf in (both, linear))
        assert accuracy > alone - 0.03
        np.testing.assert_allclose(both.feature_importances_.sum(), 1.0)

    def test_linear_energies_do_not_disturb_trees(self, data, fitted):
        """No linear energy tells the radii apart, so they get little weight or none."""
        X, codes, kept = data
        rings = clone(fitted).set_params(energies="auto").fit(X[kept], codes[kept, 0], attributes=codes[kept, 1])
        assert rings.energies_ in ("boosted", "both")
        assert rings.score(X[~kept], codes[~kept, 0]) > fitted.score(X[~kept], codes[~kept, 0]) - 0.02
        results = rings.cv_results_
        assert results["energies"][-1] == "both"
        assert set(results["energies"][:-1]) == {"boosted", "linear"}
        assert np.isnan(results["alpha"][results["energies"] == "boosted"]).all()
        assert rings.best_index_ == len(results["energies"]) - 1
        assert results["n_iter"][-1] == rings.n_iter_

    def kinds(self, signs=(1.0, 1.0), n=400):
        """Two kinds of energies of 2 × 2 groups, in which the own group is lower by a noisy amount, and the samples."""
        rng = np.random.default_rng(0)
        space = GroupSpace.from_cardinalities([2, 2])
        codes = rng.integers(2, size=(n, 2))
        own = space.one_hot(codes)
        energies = np.stack([sign * (rng.normal(size=(n, 4)) - own) for sign in signs], axis=1)  # (n, 2, D)
        groups, position = space.distinct(codes)
        rows = TreeRows(np.empty((n, 0)), position, rng.uniform(0.5, 2, n), GroupTable.of(space, groups), ())
        return energies, rows

    def test_factors_minimise_the_risk_of_step_1(self):
        energies, rows = self.kinds()
        frequency = np.array([0.1, 0.2, 0.3, 0.4])
        factors = mixture(energies, rows, frequency, 1e-8)
        weight = rows.weight * (frequency / rows.frequency)[rows.position]
        code = rows.seen.space.one_hot(rows.seen.codes)

        def risk(values):
            """Risk by a loop over the samples; three free biases."""
            (one, two), bias, total = values[:2], np.append(values[2:], 0.0), 0.0
            for own, omega, (first, second) in zip(rows.position, weight / weight.sum(), energies, strict=True):
                score = np.log(frequency) - bias - code @ (one * first + two * second)
                total += omega * (np.logaddexp.reduce(score) - score[own])
            return total

        found = minimize(risk, np.zeros(5), tol=1e-8)
        np.testing.assert_allclose(factors, found.x[:2], atol=1e-3)
        assert (factors > 0.3).all()

    def test_a_kind_that_points_the_wrong_way_is_left_out(self):
        energies, rows = self.kinds(signs=(1.0, -1.0))
        factors = mixture(energies, rows, rows.frequency, 1e-6)
        assert factors[1] == 0
        alone = TemperatureProblem(
            ArrayRows(energies[:, 0], rows.position, rows.weight / rows.weight.sum()), rows.seen, rows.frequency
        )
        start = Parameters(np.ones((1, 1)), np.zeros(4))
        np.testing.assert_allclose(
            factors[0], solve(alone, tol=1e-6, max_iter=100, start=start).weight[0, 0], atol=1e-5
        )
        assert not mixture(-energies[:, :1].repeat(2, axis=1), rows, rows.frequency, 1e-6).any()

    def test_settings_are_compared_by_accuracy_over_all_groups(self):
        """Three groups unseen of nine: held-out groups count a third, by hand; NaN is a group not held out."""
        unseen = np.array([[0.2, np.nan, 0.4], [0.6, np.nan, 0.5]])
        seen = np.array([[0.5, 0.7, 0.6], [0.6, 0.7, 0.8]])
        candidates = SimpleNamespace(inside_hull=np.ones(9, dtype=bool), in_seen=np.r_[np.arange(6), -1, -1, -1])
        held_out = [SimpleNamespace(accuracy=one, seen=other) for one, other in zip(unseen, seen, strict=True)]
        found = mean_accuracies(held_out, candidates)
        np.testing.assert_allclose(found, [(0.3 + 2 * 0.6) / 3, (0.55 + 2 * 0.7) / 3])

    def test_a_model_of_both_kinds_survives_a_file(self, table, both, tmp_path):
        path = tmp_path / "both.safetensors"
        both.save(path)
        loaded = cs.load(path)
        np.testing.assert_array_equal(loaded.predict_proba(table[0]), both.predict_proba(table[0]))
        np.testing.assert_array_equal(loaded.feature_importances_, both.feature_importances_)
        assert (loaded.energies_, loaded.energies, loaded.n_iter_) == ("both", "auto", both.n_iter_)
        header, arrays = both._packed(None)
        header["columns"]["n_features"] += 1
        with pytest.raises(InputError, match=r"the trees take 41 columns but the linear energies 42"):
            CRMBoostingClassifier._from_file(header, arrays)

    def test_the_strongest_ridge_is_tried_first(self, linear):
        """Of equally accurate settings the first is used."""
        assert (np.diff(linear.cv_results_["alpha"]) < 0).all()

    def test_accuracy_is_expected_of_groups_inside_the_hull_only(self):
        rng = np.random.default_rng(0)
        codes = rng.integers(4, size=(900, 2))
        outside = (codes == 3).sum(axis=1) == 1
        kept = ~outside & (codes != (0, 0)).any(axis=1)
        X = codes @ rng.normal(size=(2, 5)) + rng.normal(size=(900, 5))
        clf = CRMBoostingClassifier(energies="linear", prior="hull").fit(
            X[kept], codes[kept, 0], attributes=codes[kept, 1]
        )
        assert (~clf.inside_hull_).sum() == 6
        assert clf.expected_group_accuracy_[["y", "a"]].to_numpy().tolist() == [[0, 0]]

    def test_features_of_mixed_columns(self):
        """A feature per number, per category and per column with gaps, by a loop."""
        rng = np.random.default_rng(0)
        X = np.column_stack([rng.normal(5, 3, 40), rng.integers(3, size=40).astype(float), np.full(40, 2.0)])
        X[::4, 0], X[1, 1] = np.nan, np.nan
        columns = LinearColumns.of(X, (1,))
        known = X[~np.isnan(X[:, 0]), 0]
        for row, found in zip(X, columns.scores(X), strict=True):
            number = np.median(known) if np.isnan(row[0]) else row[0]
            own = [float(row[1] == level) for level in range(3)]
            expected = [(number - known.mean()) / known.std(), np.isnan(row[0]), *own, np.isnan(row[1]), 0.0]
            np.testing.assert_allclose(found, expected, atol=1e-12)

    def test_only_frequent_categories_have_a_feature(self):
        X = np.concatenate([np.repeat(np.arange(60.0), 2), [59.0, 58.0]])[:, None]
        level = LinearColumns.of(X, (0,)).level
        assert len(level) == 50
        assert {58, 59} <= set(level.tolist())

    def test_columns_without_values(self):
        X, codes, kept = grid(200)
        X = np.full((len(X), 2), np.nan)
        clf = CRMBoostingClassifier(energies="linear", prior="hull").fit(
            X[kept], codes[kept, 0], attributes=codes[kept, 1]
        )
        np.testing.assert_allclose(clf.predict_proba(X[:1]), 1 / 3, atol=1e-3)

    def test_linear_energies_do_not_need_lightgbm(self, table, linear, monkeypatch, tmp_path):
        monkeypatch.setitem(sys.modules, "lightgbm", None)
        again = self.fit(table, energies="linear")
        again.save(tmp_path / "m.safetensors")
        loaded = cs.load(tmp_path / "m.safetensors")
        np.testing.assert_array_equal(loaded.predict_proba(table[0]), linear.predict_proba(table[0]))
        assert (loaded.energies_, loaded.energies) == ("linear", "linear")
        np.testing.assert_array_equal(loaded.feature_importances_, linear.feature_importances_)
        with pytest.raises(InputError, match="need LightGBM"):
            self.fit(table, energies="auto")

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            (
                lambda _, arrays: arrays.update(column_column=arrays["column_column"] + 3),
                "columns of the model are damag",
            ),
            (
                lambda _, arrays: arrays.update(column_column=arrays["column_column"] - 1),
                "columns of the model are damag",
            ),
            (
                lambda _, arrays: arrays.update(column_level=arrays["column_level"] - 5),
                "columns of the model are damag",
            ),
            (
                lambda _, arrays: arrays.update(column_scale=arrays["column_scale"] * 0),
                "columns of the model are damaged",
            ),
            (
                lambda _, arrays: arrays.update(column_mean=arrays["column_mean"] * np.nan),
                "columns of the model are damag",
            ),
            (
                lambda _, arrays: arrays.update(column_fill=arrays["column_fill"][:1]),
                "columns of the model are damaged",
            ),
            (lambda _, arrays: arrays.update(column_fill=arrays["column_level"]), "column_fill has type int64"),
            (lambda header, _: header.pop("columns"), "has neither trees nor columns|feature_names"),
            (lambda header, _: header["columns"].update(n_features=0), "n_features"),
            (lambda header, _: header["parameters"].update(energies="quantum"), "energies 'quantum' is not known"),
        ],
    )
    def test_damaged_files(self, linear, tmp_path, change, sentence):
        from compshift.crm import io

        linear.save(tmp_path / "m.safetensors")
        _, header, arrays = io.read(tmp_path / "m.safetensors")
        change(header, arrays)
        io.write(tmp_path / "bad.safetensors", "CRMBoostingClassifier", header, arrays)
        with pytest.raises(InputError, match=sentence):
            cs.load(tmp_path / "bad.safetensors")
