"""Rows with missing attributes against loops over groups, in NumPy and, where it is installed, in PyTorch."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tests.references as reference
from compshift import GroupSpace, InputError
from compshift.core.energy import GroupTable, step_one_risk
from compshift.core.posterior import known_patterns, partial_risk, posterior_sums, posterior_totals
from tests.core.test_crm_equations import convert, same_kind

CARDINALITIES = [[3], [2, 3], [4, 2], [3, 2, 4], [2, 3, 2, 2, 3], [1, 3, 2]]


def random_codes(problem, rng, share=0.5):
    """Codes of the samples' seen groups, each value but the first attribute's missing with a probability."""
    codes = problem["seen"][problem["position"]]
    hidden = rng.random(codes.shape) < share
    hidden[:, 0] &= codes.shape[1] == 1
    return np.where(hidden, -1, codes)


@pytest.fixture(params=CARDINALITIES, ids=str)
def problem(request):
    rng = np.random.default_rng(len(request.param))
    problem = reference.random_problem(rng, request.param)
    return problem | {"known": random_codes(problem, rng)}


@pytest.fixture(params=["numpy", "torch"])
def library(request):
    return request.param


def agreeing_groups(seen, known):
    return [which for which, z in enumerate(seen) if all(k < 0 or k == v for k, v in zip(known, z, strict=True))]


def logits(row, space, seen, log_score):
    return [
        score - reference.group_energy(row, space.cardinalities, z) for z, score in zip(seen, log_score, strict=True)
    ]


def loop_risk(problem, energies, log_score):
    """Σ ω (c − c_K), a row and a group at a time."""
    terms = []
    for row, known, weight in zip(energies, problem["known"], problem["weight"], strict=True):
        all_logits = logits(row, problem["space"], problem["seen"], log_score)
        own = [all_logits[which] for which in agreeing_groups(problem["seen"], known)]
        terms.append(weight * (reference.log_sum_exp(all_logits) - reference.log_sum_exp(own)))
    return math.fsum(terms)


def loop_responsibilities(problem):
    """r_x(z), (n, k)."""
    result = np.zeros((len(problem["energies"]), len(problem["seen"])))
    for number, (row, known) in enumerate(zip(problem["energies"], problem["known"], strict=True)):
        all_logits = logits(row, problem["space"], problem["seen"], problem["log_score"])
        own = agreeing_groups(problem["seen"], known)
        total = reference.log_sum_exp([all_logits[which] for which in own])
        for which in own:
            result[number, which] = math.exp(all_logits[which] - total)
    return result


def patterns_of(problem):
    return known_patterns(problem["space"], problem["seen"], problem["known"])


def whole_risk(problem, library="numpy"):
    """Value, energy gradient (n, D) and score gradient (k,) over all patterns."""
    seen = GroupTable.of(problem["space"], problem["seen"])
    value, energy, score = 0.0, np.full(problem["energies"].shape, np.nan), np.zeros(len(problem["seen"]))
    for pattern in patterns_of(problem):
        rows = pattern.rows
        energies, weight, log_score = convert(
            library, problem["energies"][rows], problem["weight"][rows], problem["log_score"]
        )
        risk = partial_risk(energies, weight, seen, pattern, log_score)
        value += float(risk.value)
        energy[rows] = same_kind(risk.energy_gradient, library)
        score += same_kind(risk.score_gradient, library)
    return value, energy, score


def test_patterns_share_what_is_known(problem):
    patterns = patterns_of(problem)
    assert sorted(np.concatenate([pattern.rows for pattern in patterns])) == list(range(len(problem["known"])))
    assert len(patterns) == len({tuple(row) for row in problem["known"]})
    for pattern in patterns:
        for row in pattern.rows:
            assert pattern.agreeing.tolist() == agreeing_groups(problem["seen"], problem["known"][row])
        assert (pattern.table.codes == problem["seen"][pattern.agreeing]).all()


def test_value_and_gradient(problem, library):
    value, energy, score = whole_risk(problem, library)
    assert value == pytest.approx(loop_risk(problem, problem["energies"], problem["log_score"]), abs=1e-9)
    step = 1e-5
    for row, column in [(0, 0), (3, problem["space"].width - 1), (7, problem["space"].width // 2)]:
        up, down = problem["energies"].copy(), problem["energies"].copy()
        up[row, column] += step
        down[row, column] -= step
        slope = (loop_risk(problem, up, problem["log_score"]) - loop_risk(problem, down, problem["log_score"])) / step
        assert energy[row, column] == pytest.approx(slope / 2, abs=1e-7)
    for which in range(len(problem["seen"])):
        up, down = problem["log_score"].copy(), problem["log_score"].copy()
        up[which] += step
        down[which] -= step
        slope = (loop_risk(problem, problem["energies"], up) - loop_risk(problem, problem["energies"], down)) / step
        assert score[which] == pytest.approx(slope / 2, abs=1e-7)


def test_totals_and_sums_of_the_posterior(problem, library):
    responsibility = loop_responsibilities(problem)
    for pattern in patterns_of(problem):
        rows = pattern.rows
        energies, weight, log_score = convert(
            library, problem["energies"][rows], problem["weight"][rows], problem["log_score"]
        )
        own = responsibility[np.ix_(rows, pattern.agreeing)] * problem["weight"][rows][:, None]
        totals = same_kind(posterior_totals(energies, weight, pattern, log_score), library)
        np.testing.assert_allclose(totals, own.sum(axis=0), atol=1e-10)
        sums = same_kind(posterior_sums(energies, weight, pattern, log_score), library)
        np.testing.assert_allclose(sums, own.T @ problem["energies"][rows], atol=1e-9)


def test_nothing_missing_is_step_one(problem):
    problem = problem | {"known": problem["seen"][problem["position"]]}
    seen = GroupTable.of(problem["space"], problem["seen"])
    expected = step_one_risk(problem["energies"], problem["position"], problem["weight"], seen, problem["log_score"])
    value, energy, score = whole_risk(problem)
    assert value == pytest.approx(float(expected.value), rel=1e-12)
    np.testing.assert_allclose(energy, expected.energy_gradient, atol=1e-12)
    np.testing.assert_allclose(score, expected.score_gradient, atol=1e-12)


def test_nothing_known_costs_nothing(problem):
    value, energy, score = whole_risk(problem | {"known": np.full_like(problem["known"], -1)})
    assert value == pytest.approx(0.0, abs=1e-10)
    np.testing.assert_allclose(energy, 0.0, atol=1e-12)
    np.testing.assert_allclose(score, 0.0, atol=1e-12)


@settings(max_examples=25)
@given(shift=st.floats(-1e4, 1e4), seed=st.integers(0, 20))
def test_a_shift_of_all_energies_changes_nothing(shift, seed):
    rng = np.random.default_rng(seed)
    problem = reference.random_problem(rng, [3, 2, 2], n=8)
    problem["known"] = random_codes(problem, rng)
    moved = problem | {"energies": problem["energies"] + shift}
    for one, other in zip(whole_risk(problem), whole_risk(moved), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-8)


def test_energies_too_far_apart_for_products():
    space = GroupSpace.from_cardinalities([2, 2])
    seen = np.array([[0, 0], [1, 1]])
    problem = {
        "space": space,
        "seen": seen,
        "energies": np.array([[0.0, 900.0, 900.0, 0.0], [0.0, 1e4, 1e4, 0.0]]),
        "known": np.array([[0, -1], [-1, 1]]),
        "weight": np.ones(2),
        "log_score": np.zeros(2),
    }
    value, energy, score = whole_risk(problem)
    assert value == pytest.approx(loop_risk(problem, problem["energies"], problem["log_score"]), abs=1e-9)
    assert np.isfinite(energy).all()
    assert np.isfinite(score).all()


def test_known_values_that_no_seen_group_has():
    space = GroupSpace(("y", "place", "time"), (("cat", "dog"), ("land", "sea"), ("day", "night")))
    seen = np.array([[0, 0, 0], [1, 1, 0], [1, 0, 1]])
    with pytest.raises(
        InputError, match=r"2 rows with missing attributes have y='cat', place='sea', which no complete"
    ):
        known_patterns(space, seen, np.array([[1, -1, -1], [0, 1, -1], [0, 1, -1]]))
    with pytest.raises(InputError, match=r"1 row with missing attributes has y='cat', time='night', which no complete"):
        known_patterns(space, seen, np.array([[0, -1, 1]]))
