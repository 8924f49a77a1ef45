"""Energies and the risk of step 1 against loops, in NumPy and, if it is installed, in PyTorch."""

import math

import numpy as np
import pytest

import tests.references as reference
from compshift import GroupSpace
from compshift.core.energy import GroupTable, expected_risk, group_energies, log_evidence, step_one_risk
from tests.references import convert, every_group, same_kind


def test_group_energies(problem, library):
    space, codes = problem["space"], every_group(problem["space"])
    (energies,) = convert(library, problem["energies"])
    expected = [[reference.group_energy(row, space.cardinalities, z) for z in codes] for row in problem["energies"]]
    np.testing.assert_allclose(same_kind(group_energies(energies, space, codes), library), expected, atol=1e-12)


def test_table_halves_add_up(problem):
    table = GroupTable.of(problem["space"], problem["seen"])
    left, right = table.halves(problem["energies"])
    assert (table.codes == problem["seen"]).all()
    expected = group_energies(problem["energies"], problem["space"], problem["seen"])
    np.testing.assert_allclose(left[:, table.row] + right[:, table.column], -expected, atol=1e-12)


def test_log_evidence(problem, library):
    table = GroupTable.of(problem["space"], problem["seen"])
    energies, log_score = convert(library, problem["energies"], problem["log_score"])
    expected = [
        reference.log_evidence(row, problem["space"].cardinalities, problem["seen"], problem["log_score"])
        for row in problem["energies"]
    ]
    np.testing.assert_allclose(same_kind(log_evidence(energies, table, log_score), library), expected, atol=1e-9)


def test_step_one_value_and_gradient(problem, library):
    space, table = problem["space"], GroupTable.of(problem["space"], problem["seen"])
    energies, position, weight, log_score = convert(
        library, problem["energies"], problem["position"], problem["weight"], problem["log_score"]
    )
    risk = step_one_risk(energies, position, weight, table, log_score)

    def value(E, score):
        return -math.fsum(
            w * reference.step_one_log_probability(row, space.cardinalities, problem["seen"], score, which)
            for row, which, w in zip(E, problem["position"], problem["weight"], strict=True)
        )

    assert float(risk.value) == pytest.approx(value(problem["energies"], problem["log_score"]), abs=1e-9)
    step = 1e-5
    for row, column in [(0, 0), (3, space.width - 1), (7, space.width // 2)]:
        up, down = problem["energies"].copy(), problem["energies"].copy()
        up[row, column] += step
        down[row, column] -= step
        slope = (value(up, problem["log_score"]) - value(down, problem["log_score"])) / (2 * step)
        assert float(risk.energy_gradient[row, column]) == pytest.approx(slope, abs=1e-7)
    for which in range(len(problem["seen"])):
        up, down = problem["log_score"].copy(), problem["log_score"].copy()
        up[which] += step
        down[which] -= step
        slope = (value(problem["energies"], up) - value(problem["energies"], down)) / (2 * step)
        assert float(risk.score_gradient[which]) == pytest.approx(slope, abs=1e-7)


def test_the_risk_of_expected_groups_is_the_mean_over_groups(problem, library):
    """With responsibilities r, it is Σ_z r(z) times the risk of group z, without the part of the scores."""
    space, table = problem["space"], GroupTable.of(problem["space"], problem["seen"])
    rng, n, k = np.random.default_rng(0), len(problem["energies"]), len(problem["seen"])
    responsibility = rng.dirichlet(np.ones(k), size=n)
    code = responsibility @ np.array([reference.one_hot(space.cardinalities, z) for z in problem["seen"]])
    energies, expected, weight, log_score = convert(
        library, problem["energies"], code, problem["weight"], problem["log_score"]
    )
    risk = expected_risk(energies, expected, weight, table, log_score)
    value, gradient, score_gradient = 0.0, np.zeros(problem["energies"].shape), np.zeros(k)
    for group in range(k):
        one = step_one_risk(
            problem["energies"],
            np.full(n, group),
            problem["weight"] * responsibility[:, group],
            table,
            problem["log_score"],
        )
        value += float(one.value)
        gradient += one.energy_gradient
        score_gradient += one.score_gradient
    share = problem["weight"] @ responsibility  # (k,)
    assert float(risk.value) - share @ problem["log_score"] == pytest.approx(value, abs=1e-9)
    np.testing.assert_allclose(same_kind(risk.energy_gradient, library), gradient, atol=1e-9)
    np.testing.assert_allclose(same_kind(risk.score_gradient, library) - share, score_gradient, atol=1e-9)


def test_table_split_covers_lists_and_grids():
    space = GroupSpace.from_cardinalities([2] * 12)
    rng = np.random.default_rng(0)
    sparse = GroupTable.of(space, space.codes(np.sort(rng.choice(space.n_groups, 40, replace=False))))
    assert sparse.shape == (40, 1)
    full = GroupTable.of(space, every_group(space))
    assert full.shape == (64, 64)


def test_wide_halves_are_looked_up():
    """A half with many values per attribute is computed by look-ups, with the same result."""
    rng = np.random.default_rng(0)
    space = GroupSpace.from_cardinalities([40, 30, 2, 2])
    codes = space.codes(np.sort(rng.choice(space.n_groups, size=60, replace=False)))
    table = GroupTable.of(space, codes)
    energies = rng.normal(size=(5, space.width))
    left, right = table.halves(energies)
    expected = [[reference.group_energy(row, space.cardinalities, z) for z in codes] for row in energies]
    np.testing.assert_allclose(-(left[:, table.row] + right[:, table.column]), expected, atol=1e-12)
    assert table.left.shape[1] > 1
