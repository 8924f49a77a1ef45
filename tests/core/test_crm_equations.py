"""Energies, step-1 risk, B*, ESS and posteriors against the loops, in NumPy and, where it is installed, in PyTorch."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tests.references as reference
from compshift import GroupSpace
from compshift.core.bias import block_sums, empty_sums, extrapolated_bias, merge_sums
from compshift.core.energy import GroupTable, _partition, group_energies, log_evidence, step_one_risk
from compshift.core.posterior import group_log_posterior, marginal_log_posterior

CARDINALITIES = [[3], [2, 3], [4, 2], [3, 2, 4], [2, 3, 2, 2, 3], [1, 3, 2]]
LIBRARIES = ["numpy", "torch"]


def convert(library, *arrays):
    if library == "numpy":
        return arrays
    torch = pytest.importorskip("torch")
    return tuple(torch.tensor(array) for array in arrays)


def same_kind(result, library):
    assert type(result).__module__.split(".")[0] == library
    return np.asarray(result)


@pytest.fixture(params=CARDINALITIES, ids=str)
def problem(request):
    return reference.random_problem(np.random.default_rng(len(request.param)), request.param)


@pytest.fixture(params=LIBRARIES)
def library(request):
    return request.param


def every_group(space):
    return space.codes(np.arange(space.n_groups))


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


def test_extrapolated_bias_and_sample_size(problem, library):
    space = problem["space"]
    seen, everything = GroupTable.of(space, problem["seen"]), GroupTable.of(space, every_group(space))
    energies, log_score, weight = convert(library, problem["energies"], problem["log_score"], problem["weight"])
    evidence = log_evidence(energies, seen, log_score)
    bias, size = extrapolated_bias(everything, block_sums(everything, energies, evidence, weight))
    expected = [
        reference.extrapolated_bias(
            problem["energies"], space.cardinalities, problem["seen"], problem["log_score"], z, problem["weight"]
        )
        for z in every_group(space)
    ]
    np.testing.assert_allclose(same_kind(bias, library), [pair[0] for pair in expected], atol=1e-9)
    np.testing.assert_allclose(same_kind(size, library), [pair[1] for pair in expected], rtol=1e-9)


def test_bias_of_blocks_is_bias_of_all(problem, library):
    space = problem["space"]
    seen, everything = GroupTable.of(space, problem["seen"]), GroupTable.of(space, every_group(space))
    energies, log_score = convert(library, problem["energies"], problem["log_score"])
    evidence = log_evidence(energies, seen, log_score)
    whole = extrapolated_bias(everything, block_sums(everything, energies, evidence))
    for step in (1, 7):
        sums = empty_sums(everything, energies)
        for start in range(0, len(energies), step):
            rows = slice(start, start + step)
            sums = merge_sums(sums, block_sums(everything, energies[rows], evidence[rows]))
        parts = extrapolated_bias(everything, sums)
        np.testing.assert_allclose(np.asarray(parts.bias), np.asarray(whole.bias), atol=1e-12)
        np.testing.assert_allclose(
            np.asarray(parts.effective_sample_size), np.asarray(whole.effective_sample_size), rtol=1e-11
        )


def test_posteriors(problem, library):
    space = problem["space"]
    table = GroupTable.of(space, every_group(space))
    score = np.random.default_rng(1).normal(size=space.n_groups)
    score[:: max(2, space.n_groups // 3)] = -np.inf  # groups without prior
    energies, log_score = convert(library, problem["energies"], score)
    joint = same_kind(group_log_posterior(energies, table, log_score), library)
    expected = [
        reference.group_log_posterior(row, space.cardinalities, every_group(space), score)
        for row in problem["energies"]
    ]
    np.testing.assert_allclose(joint, expected, atol=1e-9)
    position = np.array([space.n_groups - 1, -1, 1])
    listed = same_kind(group_log_posterior(energies, table, log_score, position), library)
    np.testing.assert_allclose(listed[:, [0, 2]], joint[:, [space.n_groups - 1, 1]], atol=1e-12)
    assert (listed[:, 1] == -np.inf).all()
    for attribute in range(len(space.names)):
        marginal = same_kind(marginal_log_posterior(energies, table, log_score, attribute), library)
        expected = [
            reference.marginal_log_posterior(row, space.cardinalities, every_group(space), score, attribute)
            for row in problem["energies"]
        ]
        np.testing.assert_allclose(marginal, expected, atol=1e-9)


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


@pytest.mark.parametrize("offset", [1e4, 1e12, 1e16, 1e150])
def test_posteriors_keep_their_digits_whatever_an_attributes_energies_have_in_common(library, offset):
    """Offsets are multiples of a power of two, so that energies still hold the differences, to their own digits."""
    space = GroupSpace.from_cardinalities([3, 4, 2])
    rng = np.random.default_rng(5)
    unit = np.spacing(8 * offset)
    energies = unit * rng.integers(0, 3, size=(6, space.width))
    shifts = unit * np.round(offset * rng.uniform(-2, 2, size=(6, 3)) / unit)
    table, log_score = GroupTable.of(space, every_group(space)), rng.normal(size=24)
    plain, far, score = convert(library, energies, energies + np.repeat(shifts, [3, 4, 2], axis=1), log_score)
    for function, arguments in ((group_log_posterior, ()), (marginal_log_posterior, (1,))):
        expected, found = function(plain, table, score, *arguments), function(far, table, score, *arguments)
        np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(np.exp(np.asarray(found)).sum(axis=1), 1.0, rtol=1e-12)


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
    """Where the best row and column do not meet in a seen group, the scaled sums underflow and are made again."""
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
    """Samples whose seen groups are far above the unseen one, in a way that splits row and column maxima."""
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


def test_table_split_covers_lists_and_grids():
    space = GroupSpace.from_cardinalities([2] * 12)
    rng = np.random.default_rng(0)
    sparse = GroupTable.of(space, space.codes(np.sort(rng.choice(space.n_groups, 40, replace=False))))
    assert sparse.shape == (40, 1)
    full = GroupTable.of(space, every_group(space))
    assert full.shape == (64, 64)


def test_wide_halves_are_looked_up():
    """A half with many values per attribute takes another way to the same energies."""
    rng = np.random.default_rng(0)
    space = GroupSpace.from_cardinalities([40, 30, 2, 2])
    codes = space.codes(np.sort(rng.choice(space.n_groups, size=60, replace=False)))
    table = GroupTable.of(space, codes)
    energies = rng.normal(size=(5, space.width))
    left, right = table.halves(energies)
    expected = [[reference.group_energy(row, space.cardinalities, z) for z in codes] for row in energies]
    np.testing.assert_allclose(-(left[:, table.row] + right[:, table.column]), expected, atol=1e-12)
    assert table.left.shape[1] > 1
