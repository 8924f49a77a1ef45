"""The objective of boosted energies: its derivatives, leaves and biases, beside loops and finite differences."""

import numpy as np
import pytest

from compshift import GroupSpace
from compshift.core.energy import GroupTable

pytest.importorskip("lightgbm")

from compshift.crm.boosted_energies import BoostingParams, TreeRows, _TreeObjective, grow, value_basis
from compshift.crm.trees import leaf_sums

pytestmark = pytest.mark.filterwarnings("ignore::compshift.ExtrapolationWarning")


class TestObjective:
    @pytest.fixture
    def rows(self):
        rng = np.random.default_rng(0)
        space = GroupSpace.from_cardinalities([3, 2, 4])
        groups = space.codes(np.sort(rng.choice(24, 11, replace=False)))
        position = np.concatenate([np.arange(11), rng.integers(11, size=29)])
        return TreeRows(np.zeros((40, 1)), position, rng.uniform(0.5, 2, size=40), GroupTable.of(space, groups), ())

    def risks(self, rows, scores, bias):
        """Weighted risk of each sample, by a loop over groups, (n,)."""
        energies = scores @ value_basis(rows.seen.space).T
        columns = rows.seen.codes + rows.seen.space.offsets
        weight, frequency = rows.weight / rows.weight.mean(), rows.frequency
        result = []
        for energy, position, one in zip(energies, rows.position, weight, strict=True):
            logits = [
                np.log(frequency[group]) - bias[group] - sum(energy[column] for column in columns[group])
                for group in range(len(frequency))
            ]
            result.append(one * (np.log(np.sum(np.exp(logits))) - logits[position]))
        return np.array(result)

    def test_gradient_and_hessian_are_those_of_the_risk(self, rows):
        rng = np.random.default_rng(1)
        width = value_basis(rows.seen.space).shape[1]
        assert width == 3 + 1 + 4  # two values share an output
        scores, bias, step = rng.normal(size=(40, width)), rng.normal(size=11), 1e-4
        objective = _TreeObjective(rows, value_basis(rows.seen.space))
        objective.bias = bias.copy()
        gradient, hessian = objective(scores, None)
        for output in range(width):
            shift = step * np.eye(width)[output]
            up, at, down = (self.risks(rows, scores + sign * shift, bias) for sign in (1, 0, -1))
            np.testing.assert_allclose(gradient[:, output], (up - down) / (2 * step), atol=1e-6)
            np.testing.assert_allclose(hessian[:, output], (up - 2 * at + down) / step**2, atol=1e-5)

    def test_leaves_are_those_of_a_penalised_newton_step(self, rows):
        X = (np.arange(40.0) % 2)[:, None]
        params = BoostingParams(learning_rate=0.3, min_samples_leaf=1, l2_regularization=2.5, n_threads=1)
        booster, scale = grow(rows._replace(X=X), params, 1)
        gradient, hessian = _TreeObjective(rows, value_basis(rows.seen.space))(np.zeros((40, 8)), None)
        for value in (0, 1):
            own = X[:, 0] == value
            expected = -0.3 * gradient[own].sum(axis=0) / (hessian[own].sum(axis=0) + 2.5)
            found = leaf_sums(booster, X[own][:1], scale)[0]
            np.testing.assert_allclose(found[found != 0], expected[found != 0], rtol=1e-5)
            assert (found != 0).sum() >= 4

    def test_the_biases_move_to_the_frequencies(self, rows):
        """At the best biases, the mean of p(z|x) is the frequency of z."""
        scores = np.random.default_rng(1).normal(size=(40, 8))
        objective = _TreeObjective(rows, value_basis(rows.seen.space))
        for _ in range(200):
            before = objective.bias.copy()
            objective(scores, None)
        np.testing.assert_allclose(objective.bias, before, atol=1e-6)
        weight = rows.weight / rows.weight.sum()
        energies = scores @ value_basis(rows.seen.space).T
        logits = np.log(rows.frequency) - objective.bias
        logits = logits - energies[:, rows.seen.codes + rows.seen.space.offsets].sum(axis=2)
        posterior = np.exp(logits - np.logaddexp.reduce(logits, axis=1)[:, None])
        np.testing.assert_allclose(weight @ posterior, rows.frequency, atol=1e-6)
