import math

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

import compshift
import tests.references as reference
from compshift import (
    AdditiveGaussian,
    AffineExtrapolation,
    CombinationKFold,
    CRMClassifier,
    CRMClassifierCV,
    GroupSpace,
    InputError,
    LogitAdjustedClassifier,
)
from compshift.core.arrays import BLOCK_CELLS
from compshift.core.candidates import Candidates
from compshift.core.cumulant_bias import energy_moments
from compshift.core.partial import known_patterns
from compshift.estimators.crm_fit import Recipe, fit_crm
from compshift.estimators.group_classifier import Incomplete
from compshift.estimators.partial_labels import PartialProblem, PartialRows, alternate
from compshift.estimators.solver import Start
from tests.estimators.test_crm import make_data


def hide(codes, share, seed=0, first=1):
    """Codes as floats, with NaN in place of a share of the values from column ``first`` on."""
    table = codes[:, first:].astype(float)
    table[np.random.default_rng(seed).random(table.shape) < share] = np.nan
    return table


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
    return rows, known, alternate(rows, Recipe(0.02), tol=1e-7, max_iter=1000)


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


class TestClassifier:
    def test_nothing_missing_is_the_fit_as_it_was(self):
        X, codes = make_data()
        seen, position = GroupSpace.from_cardinalities([2, 3]).distinct(codes)
        candidates = Candidates.of(GroupSpace.from_cardinalities([2, 3]), seen, np.bincount(position) * 1.0, "all")
        model = fit_crm(X, position, np.ones(len(X)), candidates, Recipe(1e-2), tol=1e-6, max_iter=1000)
        for attributes in (codes[:, 1], codes[:, 1].astype(float), codes[:, 1].astype(object), codes[:, 1:].tolist()):
            clf = CRMClassifier(prior="hull").fit(X, codes[:, 0], attributes=attributes)
            assert (clf.coef_ == model.coef).all()
            assert (clf.bias_ == model.bias).all()
            assert (clf.learned_bias_ == model.learned_bias).all()
            assert clf.n_missing_ == 0

    @pytest.mark.parametrize("cardinalities", [(2, 3), (3, 2, 2)], ids=str)
    @pytest.mark.parametrize("anchor", ["zero", "gaussian"])
    def test_extrapolated_and_learned_bias_agree(self, cardinalities, anchor):
        X, codes = make_data(cardinalities, missing=(0, 4))
        attributes = hide(codes, 0.5)
        clf = CRMClassifier(anchor=anchor, prior="hull").fit(X, codes[:, 0], attributes=attributes)
        assert clf.converged_
        assert clf.bias_gap_ < 1e-4
        assert clf.n_missing_ == np.isnan(attributes).any(axis=1).sum()
        assert clf.group_weight_.sum() == pytest.approx(len(X))
        seen = clf.groups_[clf.seen_]
        score = np.log(clf.group_weight_[clf.seen_] / len(X)) - clf.learned_bias_[clf.seen_]
        energies = (X - X.mean(axis=0)) @ clf.coef_.T  # B* averages over all rows
        for z, learned in zip(seen, clf.learned_bias_[clf.seen_], strict=True):
            bias, _ = reference.extrapolated_bias(energies, cardinalities, seen, score, z, np.ones(len(X)))
            assert learned == pytest.approx(bias, abs=1e-4)

    @pytest.mark.parametrize("bias", ["extrapolated", "cumulant", "shrunk", "auto"])
    def test_every_bias_can_be_used(self, bias):
        X, codes = make_data((3, 3), n=500)
        clf = CRMClassifier(bias=bias, prior="hull").fit(X, codes[:, 0], attributes=hide(codes, 0.3))
        assert np.isfinite(clf.predict_log_proba(X)).all()

    def test_a_row_that_its_known_values_decide(self):
        """If one seen group has the class, hiding the attribute of that class hides nothing."""
        X, codes = make_data((3, 2), missing=(1, 2))
        attributes = np.where(codes[:, 0] == 0, np.nan, codes[:, 1])
        attributes[np.flatnonzero(codes[:, 0] == 0)[0]] = 0
        space = GroupSpace.from_cardinalities([3, 2], ["y", "a"])
        full = CRMClassifier(prior="hull").fit(X, codes[:, 0], attributes=codes[:, 1], space=space)
        part = CRMClassifier(prior="hull").fit(X, codes[:, 0], attributes=attributes, space=space)
        assert part.n_missing_ > 50
        np.testing.assert_allclose(part.group_weight_, full.group_weight_, rtol=1e-9)
        np.testing.assert_allclose(part.coef_, full.coef_, atol=1e-4)
        np.testing.assert_allclose(part.bias_, full.bias_, atol=1e-4)

    def test_weight_two_is_the_row_twice(self):
        X, codes = make_data((2, 2, 2), n=200, missing=(0,))
        attributes = hide(codes, 0.3)
        weight = np.random.default_rng(3).integers(0, 3, size=200)
        twice = np.repeat(np.arange(200), weight)
        one = CRMClassifier(prior="hull").fit(X, codes[:, 0], attributes=attributes, sample_weight=weight)
        other = CRMClassifier(prior="hull").fit(X[twice], codes[twice, 0], attributes=attributes[twice])
        np.testing.assert_allclose(one.coef_, other.coef_, atol=1e-5)
        np.testing.assert_allclose(one.bias_, other.bias_, atol=1e-5)
        np.testing.assert_allclose(one.group_weight_, other.group_weight_, atol=1e-4)

    def test_all_attributes_of_a_row_missing(self):
        X, codes = make_data((2, 2, 2), n=300, missing=(0,))
        attributes = codes[:, 1:].astype(float)
        attributes[::2] = np.nan
        clf = CRMClassifier(prior="hull").fit(X, codes[:, 0], attributes=attributes)
        assert clf.n_missing_ == 150
        assert clf.bias_gap_ < 1e-4

    def test_two_targets(self):
        X, codes = make_data((2, 2, 3), n=300, missing=(0,))
        clf = CRMClassifier(prior="hull").fit(X, codes[:, :2], attributes=hide(codes, 0.5, first=2))
        assert clf.predict(X).shape == (300, 2)
        assert clf.bias_gap_ < 1e-4

    def test_the_training_prior_is_of_expected_counts(self):
        X, codes = make_data()
        clf = CRMClassifier(prior="train").fit(X, codes[:, 0], attributes=hide(codes, 0.5))
        np.testing.assert_allclose(np.exp(clf.log_prior_), clf.group_weight_ / 400, rtol=1e-12)
        complete = CRMClassifier().fit(X, codes[:, 0], attributes=codes[:, 1])
        assert np.abs(clf.group_weight_ - complete.group_weight_).max() < 30

    def test_missing_more_in_one_group_than_in_another(self):
        """Missing at random given the class: the frequencies of the complete rows alone are wrong, these are not."""
        rng = np.random.default_rng(0)
        codes = np.repeat([[0, 0], [0, 1], [1, 0], [1, 1]], [300, 100, 100, 300], axis=0)
        X = rng.normal(size=(800, 2)) + 4 * codes
        attributes = np.where((codes[:, 0] == 0) & (rng.random(800) < 0.8), np.nan, codes[:, 1])
        clf = CRMClassifier().fit(X, codes[:, 0], attributes=attributes)
        np.testing.assert_allclose(clf.group_weight_, [300, 100, 100, 300], atol=10)

    def test_too_few_iterations(self):
        X, codes = make_data()
        with pytest.warns(ConvergenceWarning, match="raise max_iter"):
            clf = CRMClassifier(prior="hull", max_iter=3).fit(X, codes[:, 0], attributes=hide(codes, 0.5))
        assert not clf.converged_

    def test_clone_and_save(self, tmp_path):
        X, codes = make_data()
        attributes = hide(codes, 0.5)
        clf = CRMClassifier(prior="hull").fit(X, codes[:, 0], attributes=attributes)
        again = clone(clf).fit(X, codes[:, 0], attributes=attributes)
        assert (again.coef_ == clf.coef_).all()
        clf.save(tmp_path / "model.safetensors")
        loaded = compshift.load(tmp_path / "model.safetensors")
        assert (loaded.predict_log_proba(X) == clf.predict_log_proba(X)).all()
        assert (loaded.group_weight_ == clf.group_weight_).all()
        assert loaded.bias_gap_ == clf.bias_gap_

    def test_chosen_on_complete_rows_and_fitted_to_all(self):
        X, codes = make_data((3, 3), n=500)
        attributes = hide(codes, 0.4)[:, 0]
        known = ~np.isnan(attributes)
        chosen = {"alphas": [1e-2, 1e-1], "anchor": "zero", "bias": "extrapolated", "prior": "hull"}
        clf = CRMClassifierCV(**chosen).fit(X, codes[:, 0], attributes=attributes)
        complete = CRMClassifierCV(**chosen).fit(X[known], codes[known, 0], attributes=codes[known, 1])
        assert clf.n_missing_ == np.count_nonzero(~known)
        np.testing.assert_array_equal(clf.cv_results_["points"], complete.cv_results_["points"])
        alone = CRMClassifier(clf.alpha_, prior="hull").fit(X, codes[:, 0], attributes=attributes)
        assert (clf.coef_ == alone.coef_).all()


def additive_gaussians(cardinalities, n, p, spread, dropped, seed):
    """Training rows of all groups but one, and test rows of that one."""
    rng = np.random.default_rng(seed)
    space = GroupSpace.from_cardinalities(cardinalities)
    means = [spread * rng.normal(size=(size, p)) / math.sqrt(p) for size in cardinalities]

    def draw(groups, size):
        codes = space.codes(rng.choice(groups, size=size))
        X = rng.normal(size=(size, p)) + sum(mean[part] for mean, part in zip(means, codes.T, strict=True))
        return X, codes

    return draw(np.setdiff1d(np.arange(space.n_groups), [dropped]), n), draw([dropped], 1000)


class TestWorth:
    """On a group that was dropped, incomplete rows help, and half of the labels cost little."""

    @pytest.mark.parametrize("cardinalities", [(3, 3), (2, 2, 2)], ids=str)
    def test_half_of_the_labels(self, cardinalities):
        accuracies = []
        for seed in range(6):
            (X, codes), (test_X, test_codes) = additive_gaussians(cardinalities, 400, 10, 2.0, 1, seed)
            scores = [
                CRMClassifier(0.03, prior="hull").fit(X, codes[:, 0], attributes=table).score(test_X, test_codes[:, 0])
                for table in (codes[:, 1:], hide(codes, 0.5, seed))
            ]
            accuracies.append(scores)
        full, half = np.mean(accuracies, axis=0)
        assert half > full - 0.03

    def test_few_complete_rows(self):
        accuracies = []
        for seed in range(8):
            (X, codes), (test_X, test_codes) = additive_gaussians((3, 3), 400, 10, 2.0, 1, seed)
            attributes = hide(codes, 0.9, seed)
            known = ~np.isnan(attributes[:, 0])
            clf = CRMClassifier(0.03, prior="hull")
            accuracies.append(
                [
                    clf.fit(X, codes[:, 0], attributes=attributes).score(test_X, test_codes[:, 0]),
                    clf.fit(X[known], codes[known, 0], attributes=codes[known, 1]).score(test_X, test_codes[:, 0]),
                ]
            )
        used, left_out = np.mean(accuracies, axis=0)
        assert used > left_out + 0.04


def missing_forms():
    """The attributes ("a", None, "b", "a", …) and (0, 1, None, …) in every form that can hold them."""
    text = ["a", None, "b", "a", "b", "a", "b", "b"]
    number = [0, 1, None, 0, 1, 1, 0, 1]
    as_nan = [math.nan if value is None else value for value in number]
    text_nan = [math.nan if value is None else value for value in text]
    pairs = list(zip(text, number, strict=True))
    yield "nested list", pairs
    yield "nested list with NaN", list(zip(text_nan, as_nan, strict=True))
    yield "object array", np.array(pairs, dtype=object)
    yield "mapping of lists", {"a1": text, "a2": number}
    yield "mapping of lists with NaN", {"a1": text_nan, "a2": as_nan}
    yield "frame", pd.DataFrame({"a1": text, "a2": number})
    yield "frame with NA", pd.DataFrame({"a1": pd.array(text, dtype="string"), "a2": pd.array(number, dtype="Int64")})
    yield "categoricals", pd.DataFrame({"a1": pd.Categorical(text), "a2": pd.Categorical(number)})
    yield "objects with NA", pd.DataFrame({"a1": text, "a2": [pd.NA if v is None else v for v in number]}, dtype=object)
    yield "mapping of arrays", {"a1": np.array(text, dtype=object), "a2": np.array(as_nan)}


class TestInput:
    @pytest.mark.parametrize("table", [pytest.param(table, id=name) for name, table in missing_forms()])
    def test_forms(self, table):
        X = np.random.default_rng(0).normal(size=(8, 2))
        y = [0, 0, 1, 1, 0, 1, 0, 1]
        clf = CRMClassifier(1.0, prior="train").fit(X, y, attributes=table)
        assert clf.n_missing_ == 2
        assert clf.space_.values == ((0, 1), ("a", "b"), (0, 1))
        assert all(type(value) is int for value in clf.space_.values[2])
        expected = CRMClassifier(1.0, prior="train").fit(X, y, attributes=next(missing_forms())[1])
        assert (clf.coef_ == expected.coef_).all()

    def test_one_column_of_floats(self):
        X, codes = make_data()
        table = hide(codes, 0.5)
        space = GroupSpace.from_cardinalities([2, 3], ["y", "a"])
        one = CRMClassifier(prior="hull").fit(X, codes[:, 0], attributes=table[:, 0])
        assert one.space_ == space
        other = CRMClassifier(prior="hull").fit(
            X, codes[:, 0], attributes=pd.Series(table[:, 0], name="a"), space=space
        )
        assert (one.coef_ == other.coef_).all()

    def test_values_that_are_no_whole_numbers_stay(self):
        X, codes = make_data()
        table = hide(codes, 0.5)[:, 0] / 2
        assert CRMClassifier(prior="hull").fit(X, codes[:, 0], attributes=table).space_.values[1] == (0.0, 0.5, 1.0)

    def test_rows_without_weight_are_not_looked_at(self):
        X, codes = make_data()
        table = hide(codes, 0.5)
        X, y = np.concatenate([X, X[:1]]), np.append(codes[:, 0], 5)
        clf = CRMClassifier(prior="hull").fit(
            X, y, attributes=np.concatenate([table, [[np.nan]]]), sample_weight=np.append(np.ones(400), 0)
        )
        assert clf.n_missing_ == np.isnan(table).sum()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"y": [0, 0, None, 1, 1, 1]}, r"attribute 'y' has 1 missing \(NaN\) value, the first at row 2"),
            ({"attributes": [None] * 6}, "every row has a missing value among the attributes 'a'"),
            (
                {"attributes": [(0, None)] * 3 + [(None, 1)] * 3},
                "every row has a missing value among the attributes 'a1', 'a2': .* pass some, or leave",
            ),
            (
                {"attributes": ["s", "t", "s", None, None, None]},
                "3 rows with missing attributes have y=1, which no complete row has: complete one such row, or leave",
            ),
            ({"attributes": ["s", 1, None, "t", "s", "t"]}, "mixes text and numbers"),
            ({"attributes": [0.0, np.inf, np.nan, 0.0, 1.0, 1.0]}, "infinite"),
            ({"cross_fit": True}, "cross_fit is True and attributes are missing in some rows: use cross_fit=False"),
        ],
    )
    def test_bad_input(self, change, message):
        X = np.random.default_rng(0).normal(size=(6, 2))
        given = {"y": [0, 0, 0, 1, 1, 1], "attributes": ["s", "t", None, "t", "s", "t"]} | change
        clf = CRMClassifier(cross_fit=given.pop("cross_fit", False))
        with pytest.raises(InputError, match=message):
            clf.fit(X, given["y"], attributes=given["attributes"])

    def test_an_attribute_that_hardly_repeats(self):
        X = np.random.default_rng(0).normal(size=(100, 2))
        table = np.where(np.arange(100) < 12, np.arange(100.0), np.nan)
        with pytest.raises(InputError, match="12 different values in 12 rows"):
            CRMClassifier().fit(X, np.arange(100) % 2, attributes=table)

    @pytest.mark.parametrize(
        "estimator",
        [AdditiveGaussian(), AffineExtrapolation(LogisticRegression()), LogitAdjustedClassifier("sla")],
        ids=str,
    )
    def test_others_refuse_missing_values(self, estimator):
        X, codes = make_data()
        table = codes[:, 1].astype(float)
        table[3] = np.nan
        with pytest.raises(InputError, match=r"attribute 'a' has 1 missing \(NaN\) value, the first at row 3"):
            estimator.fit(X, codes[:, 0], attributes=table)

    def test_folds_refuse_missing_values(self):
        with pytest.raises(InputError, match="1 missing"):
            list(CombinationKFold().split(None, [0, 1, 0, 1], ["a", "b", "b", None]))
