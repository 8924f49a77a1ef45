"""Posteriors and partially labelled samples against loops, in NumPy and, if it is installed, in PyTorch."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tests.references as reference
from compshift import GroupSpace, InputError
from compshift.core.energy import GroupTable, step_one_risk
from compshift.core.posterior import (
    group_log_posterior,
    known_patterns,
    marginal_log_posterior,
    partial_risk,
    posterior_sums,
    posterior_totals,
)
from tests.core.conftest import CARDINALITIES
from tests.references import convert, every_group, same_kind


def test_posteriors_equal_loops(problem, library):
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


@pytest.mark.parametrize("offset", [1e4, 1e12, 1e16, 1e150])
def test_posteriors_keep_their_digits_whatever_an_attributes_energies_have_in_common(library, offset):
    """Offsets are multiples of a power of two, so the shifted energies hold their differences exactly."""
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


def random_codes(problem, rng, share=0.5):
    """Return the codes of the samples; values of attributes after the first are missing with probability ``share``."""
    codes = problem["seen"][problem["position"]]
    hidden = rng.random(codes.shape) < share
    hidden[:, 0] &= codes.shape[1] == 1
    return np.where(hidden, -1, codes)


@pytest.fixture(params=CARDINALITIES, ids=str)
def partial(request):
    """A random problem with the codes of its samples, some of them missing."""
    rng = np.random.default_rng(len(request.param))
    problem = reference.random_problem(rng, request.param)
    return problem | {"known": random_codes(problem, rng)}


def agreeing_groups(seen, known):
    return [which for which, z in enumerate(seen) if all(k < 0 or k == v for k, v in zip(known, z, strict=True))]


def logits(row, space, seen, log_score):
    return [
        score - reference.group_energy(row, space.cardinalities, z) for z, score in zip(seen, log_score, strict=True)
    ]


def loop_risk(problem, energies, log_score):
    """Compute Σ ω (c − c_K) by loops over samples and groups."""
    terms = []
    for row, known, weight in zip(energies, problem["known"], problem["weight"], strict=True):
        all_logits = logits(row, problem["space"], problem["seen"], log_score)
        own = [all_logits[which] for which in agreeing_groups(problem["seen"], known)]
        terms.append(weight * (reference.log_sum_exp(all_logits) - reference.log_sum_exp(own)))
    return math.fsum(terms)


def loop_responsibilities(problem):
    """Compute r_x(z), (n, k), by loops."""
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
    """Return the value, energy gradient (n, D) and score gradient (k,) of the risk over all patterns."""
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


def test_patterns_group_rows_by_their_known_values(partial):
    patterns = patterns_of(partial)
    assert sorted(np.concatenate([pattern.rows for pattern in patterns])) == list(range(len(partial["known"])))
    assert len(patterns) == len({tuple(row) for row in partial["known"]})
    for pattern in patterns:
        for row in pattern.rows:
            assert pattern.agreeing.tolist() == agreeing_groups(partial["seen"], partial["known"][row])
        assert (pattern.table.codes == partial["seen"][pattern.agreeing]).all()


def test_partial_risk_and_gradient_equal_loops(partial, library):
    value, energy, score = whole_risk(partial, library)
    assert value == pytest.approx(loop_risk(partial, partial["energies"], partial["log_score"]), abs=1e-9)
    step = 1e-5
    for row, column in [(0, 0), (3, partial["space"].width - 1), (7, partial["space"].width // 2)]:
        up, down = partial["energies"].copy(), partial["energies"].copy()
        up[row, column] += step
        down[row, column] -= step
        slope = (loop_risk(partial, up, partial["log_score"]) - loop_risk(partial, down, partial["log_score"])) / step
        assert energy[row, column] == pytest.approx(slope / 2, abs=1e-7)
    for which in range(len(partial["seen"])):
        up, down = partial["log_score"].copy(), partial["log_score"].copy()
        up[which] += step
        down[which] -= step
        slope = (loop_risk(partial, partial["energies"], up) - loop_risk(partial, partial["energies"], down)) / step
        assert score[which] == pytest.approx(slope / 2, abs=1e-7)


def test_posterior_totals_and_sums_equal_loops(partial, library):
    responsibility = loop_responsibilities(partial)
    for pattern in patterns_of(partial):
        rows = pattern.rows
        energies, weight, log_score = convert(
            library, partial["energies"][rows], partial["weight"][rows], partial["log_score"]
        )
        own = responsibility[np.ix_(rows, pattern.agreeing)] * partial["weight"][rows][:, None]
        totals = same_kind(posterior_totals(energies, weight, pattern, log_score), library)
        np.testing.assert_allclose(totals, own.sum(axis=0), atol=1e-10)
        sums = same_kind(posterior_sums(energies, weight, pattern, log_score), library)
        np.testing.assert_allclose(sums, own.T @ partial["energies"][rows], atol=1e-9)


def test_complete_labels_give_the_risk_of_step_one(partial):
    partial = partial | {"known": partial["seen"][partial["position"]]}
    seen = GroupTable.of(partial["space"], partial["seen"])
    expected = step_one_risk(partial["energies"], partial["position"], partial["weight"], seen, partial["log_score"])
    value, energy, score = whole_risk(partial)
    assert value == pytest.approx(float(expected.value), rel=1e-12)
    np.testing.assert_allclose(energy, expected.energy_gradient, atol=1e-12)
    np.testing.assert_allclose(score, expected.score_gradient, atol=1e-12)


def test_rows_without_labels_have_no_risk(partial):
    value, energy, score = whole_risk(partial | {"known": np.full_like(partial["known"], -1)})
    assert value == pytest.approx(0.0, abs=1e-10)
    np.testing.assert_allclose(energy, 0.0, atol=1e-12)
    np.testing.assert_allclose(score, 0.0, atol=1e-12)


@settings(max_examples=25)
@given(shift=st.floats(-1e4, 1e4), seed=st.integers(0, 20))
def test_partial_risk_does_not_depend_on_shifts(shift, seed):
    rng = np.random.default_rng(seed)
    problem = reference.random_problem(rng, [3, 2, 2], n=8)
    problem["known"] = random_codes(problem, rng)
    moved = problem | {"energies": problem["energies"] + shift}
    for one, other in zip(whole_risk(problem), whole_risk(moved), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-8)


def test_partial_risk_of_energies_whose_products_underflow():
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


def test_known_values_that_no_seen_group_has_are_an_error():
    space = GroupSpace(("y", "place", "time"), (("cat", "dog"), ("land", "sea"), ("day", "night")))
    seen = np.array([[0, 0, 0], [1, 1, 0], [1, 0, 1]])
    with pytest.raises(
        InputError, match=r"2 rows with missing attributes have y='cat', place='sea', which no complete"
    ):
        known_patterns(space, seen, np.array([[1, -1, -1], [0, 1, -1], [0, 1, -1]]))
    with pytest.raises(InputError, match=r"1 row with missing attributes has y='cat', time='night', which no complete"):
        known_patterns(space, seen, np.array([[0, -1, 1]]))
