"""Steps 1 and 2 and inference together: large, shifted and nearly underflowing energies."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tests.references as reference
from compshift import GroupSpace
from compshift.core.bias import block_sums, extrapolated_bias
from compshift.core.energy import GroupTable, _partition, log_evidence, step_one_risk
from compshift.core.posterior import group_log_posterior, marginal_log_posterior
from tests.references import convert, every_group


def all_results(problem, energies):
    """Evidence less its shift, risk, gradient, bias, ESS, joint and marginals, as one list of arrays."""
    space = problem["space"]
    seen, everything = GroupTable.of(space, problem["seen"]), GroupTable.of(space, every_group(space))
    score, weight = problem["log_score"], problem["weight"]
    risk = step_one_risk(energies, problem["position"], weight, seen, score)
    evidence = log_evidence(energies, seen, score)
    bias, size = extrapolated_bias(everything, block_sums(everything, energies, evidence, weight))
    joint = group_log_posterior(energies, everything, -bias)
    marginals = [marginal_log_posterior(energies, everything, -bias, i) for i in range(len(space.names))]
    return [np.asarray(risk.value), risk.energy_gradient, risk.score_gradient, bias, size, np.exp(joint),
            *(np.exp(marginal) for marginal in marginals)]  # fmt: skip


@pytest.mark.parametrize("shift", [1e4, -1e4])
def test_a_constant_added_to_one_samples_energies_changes_nothing(problem, shift):
    shifted = problem["energies"].copy()
    shifted[4] += shift
    for found, expected in zip(all_results(problem, shifted), all_results(problem, problem["energies"]), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@given(st.integers(0, 1000), st.floats(-1e4, 1e4), st.sampled_from([[2, 3], [2, 2, 3]]))
def test_shift_invariance_of_any_sample(seed, shift, cardinalities):
    problem = reference.random_problem(np.random.default_rng(seed), cardinalities, n=6)
    shifted = problem["energies"].copy()
    shifted[seed % 6] += shift
    for found, expected in zip(all_results(problem, shifted), all_results(problem, problem["energies"]), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("cardinalities", [[2, 3], [3, 2, 4]], ids=str)
@pytest.mark.parametrize("scale", [1e4, 250.0])
def test_large_energies_are_exact(cardinalities, scale):
    problem = reference.random_problem(np.random.default_rng(3), cardinalities, n=12)
    energies = problem["energies"] / np.abs(problem["energies"]).max() * scale
    space = problem["space"]
    seen, everything = GroupTable.of(space, problem["seen"]), GroupTable.of(space, every_group(space))
    risk = step_one_risk(energies, problem["position"], problem["weight"], seen, problem["log_score"])
    assert np.isfinite(risk.energy_gradient).all()
    evidence = log_evidence(energies, seen, problem["log_score"])
    bias, size = extrapolated_bias(everything, block_sums(everything, energies, evidence, problem["weight"]))
    for z, found, effective in zip(every_group(space), bias, size, strict=True):
        expected = reference.extrapolated_bias(
            energies, space.cardinalities, problem["seen"], problem["log_score"], z, problem["weight"]
        )
        assert found == pytest.approx(expected[0], rel=1e-12, abs=1e-9)
        assert effective == pytest.approx(expected[1], rel=1e-9)


@pytest.mark.parametrize("scale", [1e4, 1e3])
def test_samples_whose_best_combination_is_unseen(library, scale):
    """If the best row and column do not meet in a seen group, the scaled sums underflow and are recomputed."""
    rng = np.random.default_rng(0)
    space = GroupSpace.from_cardinalities([8, 7])
    seen_codes = space.codes(np.sort(rng.choice(56, size=40, replace=False)))
    seen, everything = GroupTable.of(space, seen_codes), GroupTable.of(space, every_group(space))
    assert seen.shape == (8, 7)
    n = 25
    raw = rng.normal(size=(n, 15)) * scale
    position, weight, score = rng.integers(0, 40, size=n), rng.uniform(0.5, 2, size=n), rng.normal(size=40)
    energies, log_score = convert(library, raw, score)
    doubtful = np.asarray(_partition(energies, seen, log_score).doubtful)
    assert doubtful.any()
    assert not doubtful.all()

    expected = [reference.log_evidence(row, [8, 7], seen_codes, score) for row in raw]
    np.testing.assert_allclose(np.asarray(log_evidence(energies, seen, log_score)), expected, rtol=1e-12)
    posterior = np.exp(
        [[reference.step_one_log_probability(row, [8, 7], seen_codes, score, z) for z in range(40)] for row in raw]
    )
    risk = step_one_risk(energies, *convert(library, position, weight), seen, log_score)
    one_hot = space.one_hot(seen_codes)
    gradient = weight[:, None] * (one_hot[position] - posterior @ one_hot)
    np.testing.assert_allclose(np.asarray(risk.energy_gradient), gradient, atol=1e-9)
    groups = weight @ posterior - np.bincount(position, weights=weight, minlength=40)
    np.testing.assert_allclose(np.asarray(risk.score_gradient), groups, atol=1e-9)
    bias, _ = extrapolated_bias(everything, block_sums(everything, energies, log_evidence(energies, seen, log_score)))
    for z, found in zip(every_group(space), np.asarray(bias), strict=True):
        wanted, _ = reference.extrapolated_bias(raw, [8, 7], seen_codes, score, z, [1.0] * n)
        assert found == pytest.approx(wanted, rel=1e-12, abs=1e-9)


@pytest.mark.parametrize("gap", [650.0, 700.0, 709.0, 730.0, 745.0, 760.0])
def test_gaps_where_exp_is_denormal(gap):
    """The energies of seen groups are far above that of the unseen one, with row and column maxima apart."""
    space = GroupSpace.from_cardinalities([2, 2])
    seen = np.array([[0, 0], [0, 1], [1, 0]])
    log_score = np.log([0.2, 0.3, 0.5])
    energies = np.array([[0.0, gap, gap / 3, 0.0], [gap, 0.0, 0.0, gap], [gap, 0.0, 1.0, gap / 2]])
    table, everything = GroupTable.of(space, seen), GroupTable.of(space, every_group(space))
    evidence = log_evidence(energies, table, log_score)
    bias, _ = extrapolated_bias(everything, block_sums(everything, energies, evidence))
    for z, found in zip(every_group(space), bias, strict=True):
        expected, _ = reference.extrapolated_bias(energies, [2, 2], seen, log_score, z, [1.0, 1.0, 1.0])
        assert found == pytest.approx(expected, abs=1e-9)
    risk = step_one_risk(energies, np.array([0, 1, 2]), np.ones(3), table, log_score)
    posterior = [
        [math.exp(reference.step_one_log_probability(row, [2, 2], seen, log_score, z)) for z in range(3)]
        for row in energies
    ]
    marginals = np.array(posterior) @ space.one_hot(seen)
    np.testing.assert_allclose(risk.energy_gradient, space.one_hot(seen) - marginals, atol=1e-9)
