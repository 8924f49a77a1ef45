"""The alternation on rows with missing attributes, against loops over rows and groups."""

import math

import numpy as np
import pytest

import tests.references as reference
from compshift import GroupSpace
from compshift.core.arrays import BLOCK_CELLS
from compshift.core.bias import energy_moments
from compshift.core.candidates import Candidates
from compshift.core.posterior import known_patterns
from compshift.crm.base import Incomplete
from compshift.crm.fit import FitParams
from compshift.crm.partial import PartialProblem, PartialRows, alternate
from compshift.crm.solver import Start
from tests.estimators.made_data import hide, make_data


def rows_of(X, codes, attributes, weight=None, n_targets=1):
    """The rows as the alternation gets them, with the order of the original ones."""
    space = GroupSpace.from_cardinalities((codes.max(axis=0) + 1).tolist())
    known = np.concatenate([codes[:, :n_targets], np.where(np.isnan(attributes), -1, attributes).astype(int)], axis=1)
    complete = (known >= 0).all(axis=1)
    weight = np.ones(len(X)) if weight is None else weight
    seen, position = space.distinct(known[complete])
    candidates = Candidates.of(space, seen, np.bincount(position, weights=weight[complete]), "all")
    incomplete = Incomplete(X[~complete], weight[~complete], known_patterns(space, seen, known[~complete]))
    rows = PartialRows.of(X[complete], position, weight[complete], incomplete, candidates)
    return rows, np.concatenate([known[complete], known[~complete]])


def loop_log_likelihood(rows, known, weight, log_score):
    """Σ ω log p̃(what is known | x), a row and a group at a time."""
    seen, sizes = rows.seen.codes, rows.seen.space.cardinalities
    total = []
    for row, have, omega in zip(rows.features @ weight.T, known, rows.weight, strict=True):
        logits = [s - reference.group_energy(row, sizes, z) for s, z in zip(log_score, seen, strict=True)]
        own = [logit for logit, z in zip(logits, seen, strict=True) if ((have < 0) | (z == have)).all()]
        total.append(omega * (reference.log_sum_exp(own) - reference.log_sum_exp(logits)))
    return math.fsum(total)


def loop_posterior(rows, known, weight, log_score):
    """Responsibilities (n, k)."""
    seen = rows.seen.codes
    logits = log_score - rows.features @ weight.T @ rows.seen.space.one_hot(seen).T
    logits[~((known[:, None] < 0) | (known[:, None] == seen)).all(axis=2)] = -np.inf
    found = np.exp(logits - logits.max(axis=1, keepdims=True))
    return found / found.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module", params=[(2, 3), (3, 2, 2)], ids=str)
def partial(request):
    X, codes = make_data(request.param, n=150, missing=(0, 4))
    rows, known = rows_of(X, codes, hide(codes, 0.5), np.random.default_rng(1).uniform(0.5, 2, size=150))
    return rows, known, alternate(rows, FitParams(0.02), tol=1e-7, max_iter=1000)


class TestAlternation:
    def test_problem_against_loops(self, partial):
        rows, known, fit = partial
        rng = np.random.default_rng(0)
        shape = (rows.seen.space.width, rows.features.shape[1])
        weight, bias, anchor = rng.normal(size=shape), rng.normal(size=len(fit.frequency)), rng.normal(size=shape)
        problem = PartialProblem(rows, fit.frequency, 0.3, Start(anchor, np.zeros(len(bias))))

        def value(weight, bias):
            likelihood = loop_log_likelihood(rows, known, weight, np.log(fit.frequency) - bias)
            return -likelihood + 0.15 * ((weight - anchor) ** 2).sum()

        found = problem.evaluate(weight, bias)
        assert found.value == pytest.approx(value(weight, bias), rel=1e-12)
        for _ in range(5):
            along, along_bias = rng.normal(size=shape), rng.normal(size=len(bias))
            step = 1e-5
            up = value(weight + step * along, bias + step * along_bias)
            down = value(weight - step * along, bias - step * along_bias)
            slope = (found.weight_gradient * along).sum() + found.bias_gradient @ along_bias
            assert slope == pytest.approx((up - down) / (2 * step), abs=1e-7)

    def test_the_likelihood_never_falls(self, partial):
        _, _, fit = partial
        assert len(fit.risks) >= 3
        assert (np.diff(fit.risks) <= 1e-12).all()
        assert fit.risks[-1] < fit.risks[0] - 1e-3

    def test_the_end_is_a_minimum_of_the_loops(self, partial):
        rows, known, fit = partial
        weight, score = fit.solution.weight, fit.log_score
        best = -loop_log_likelihood(rows, known, weight, score) + 0.01 * (weight**2).sum()
        assert best == pytest.approx(fit.risks[-1], abs=1e-10)
        rng = np.random.default_rng(0)
        for _ in range(20):
            moved = weight + 0.02 * rng.normal(size=weight.shape)
            moved_score = score + 0.02 * rng.normal(size=score.shape)
            risk = -loop_log_likelihood(rows, known, moved, moved_score) + 0.01 * (moved**2).sum()
            assert risk > best

    def test_frequencies_are_expected_counts(self, partial):
        rows, known, fit = partial
        assert fit.solution.converged
        assert fit.frequency.sum() == pytest.approx(1, abs=1e-12)
        expected = rows.weight @ loop_posterior(rows, known, fit.solution.weight, fit.log_score)
        np.testing.assert_allclose(fit.frequency, expected, rtol=1e-9)
        assert fit.frequency @ fit.solution.bias == pytest.approx(0, abs=1e-12)

    def test_energy_moments_are_expected_ones(self, partial):
        rows, known, fit = partial
        posterior = loop_posterior(rows, known, fit.solution.weight, fit.log_score)
        n, k = posterior.shape
        energies = rows.features @ fit.solution.weight.T
        expected = energy_moments(
            np.repeat(energies, k, axis=0), np.tile(np.arange(k), n), (posterior * rows.weight[:, None]).ravel(), k
        )
        found = rows.energy_moments(energies, fit.log_score)
        np.testing.assert_allclose(found.mean, expected.mean, atol=1e-9)
        np.testing.assert_allclose(found.covariance, expected.covariance, atol=1e-9)

    def test_many_rows_are_taken_in_blocks(self):
        X, codes = make_data((2, 3), n=100, p=2)
        attributes = hide(codes, 0.5)
        small, _ = rows_of(X, codes, attributes)
        large, _ = rows_of(*(np.tile(part, (1000, 1)) for part in (X, codes, attributes)))
        assert max(len(pattern.rows) for pattern in large.patterns) > BLOCK_CELLS / 5
        rng = np.random.default_rng(0)
        weight, score = rng.normal(size=(5, 2)), rng.normal(size=len(small.seen.row))
        found = []
        for rows in (small, large):
            energies = rows.features @ weight.T
            risk = PartialProblem(rows, np.exp(score), 0.1).evaluate(weight, np.zeros(len(score)))
            found.append((*risk, rows.expected_frequency(energies, score), *rows.energy_moments(energies, score)))
        for one, other in zip(*found, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-10)
