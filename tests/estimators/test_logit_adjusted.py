"""LogitAdjustedClassifier: the convex problem it solves, its adjustments and parameters."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime, check_grad
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import parametrize_with_checks

from compshift import GroupSpace, InputError, LogitAdjustedClassifier
from compshift.core.candidates import adjustment_offset, correction_offset
from compshift.estimators.logit_adjusted import LogitProblem
from compshift.metrics import worst_group_accuracy
from tests.estimators.made_data import make_data


@parametrize_with_checks([LogitAdjustedClassifier(), LogitAdjustedClassifier("none")])
def test_common_checks(estimator, check):
    check(estimator)


def test_without_adjustment_it_is_logistic_regression():
    X, codes = make_data(cardinalities=(3, 2), n=500)
    alpha = 1e-2
    ours = LogitAdjustedClassifier("none", alpha=alpha).fit(X, codes[:, 0])
    scale = ((X - X.mean(axis=0)) ** 2).mean()
    theirs = LogisticRegression(C=1 / (alpha * scale * len(X)), tol=1e-10, max_iter=10_000).fit(X, codes[:, 0])
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-5)


def slow_risk(X, y, a, coefficients, intercept, offset):
    """Return the mean cross-entropy of adjusted logits, computed with loops."""
    total = 0.0
    for row, own, attribute in zip(X, y, a, strict=True):
        logits = [
            row @ w + b + offset[c, attribute] for c, (w, b) in enumerate(zip(coefficients, intercept, strict=True))
        ]
        total += np.logaddexp.reduce(logits) - logits[own]
    return total / len(X)


@pytest.mark.parametrize("epsilon", [0.0, 1e-3])
def test_attributes_without_counts_have_an_offset(epsilon):
    counts = np.array([[2.0, 0.0], [6.0, 0.0]])
    offset = adjustment_offset(counts, 0.5, 0.0, epsilon)
    np.testing.assert_allclose(offset[:, 0], 0.5 * np.log(np.array([0.25, 0.75]) + epsilon))
    np.testing.assert_array_equal(offset[:, 1], 0.5 * np.log(epsilon) if epsilon else -np.inf)


@pytest.mark.parametrize("adjustment", ["lc", "sla"])
def test_the_fit_minimises_the_penalised_risk(adjustment):
    X, codes = make_data(cardinalities=(3, 2), n=200)
    y, a = codes.T
    alpha = 0.05
    clf = LogitAdjustedClassifier(adjustment, alpha=alpha, epsilon=1e-3, tau=0.7).fit(X, y, attributes=a)
    counts = np.zeros((3, 2))
    np.add.at(counts, (y, a), 1)
    offset = correction_offset(counts, 1e-3) if adjustment == "lc" else adjustment_offset(counts, 0.7, 1.0)
    scale = ((X - X.mean(axis=0)) ** 2).mean()

    def penalised(coefficients, intercept):
        return slow_risk(X, y, a, coefficients, intercept, offset) + alpha / 2 * scale * (coefficients**2).sum()

    lowest = penalised(clf.coef_, clf.intercept_)
    rng = np.random.default_rng(0)
    for _ in range(20):
        step = 1e-2 * rng.normal(size=clf.coef_.shape)
        assert penalised(clf.coef_ + step, clf.intercept_) > lowest
        assert penalised(clf.coef_, clf.intercept_ + 1e-2 * rng.normal(size=3) + [0.01, 0, -0.01]) > lowest


def test_gradient_is_the_derivative_of_the_risk():
    rng = np.random.default_rng(1)
    n, c, p = 30, 3, 4
    weight = rng.random(n)
    problem = LogitProblem(
        features=rng.normal(size=(n, p)),
        classes=rng.integers(c, size=n),
        attribute=rng.integers(2, size=n),
        offset=rng.normal(size=(2, c)),
        sample_weight=weight / weight.sum(),
        frequency=np.full(c, 1 / c),
        alpha=0.1,
    )

    def parts(theta):
        return theta[: c * p].reshape(c, p), theta[c * p :]

    def value(theta):
        return problem.evaluate(*parts(theta)).value

    def gradient(theta):
        found = problem.evaluate(*parts(theta))
        return np.r_[found.weight_gradient.ravel(), found.bias_gradient]

    assert check_grad(value, gradient, rng.normal(size=c * p + c)) < 1e-6


@pytest.mark.parametrize("additive", [True, False])
def test_gradient_with_codes_is_the_derivative_of_the_risk(additive):
    rng = np.random.default_rng(0)
    features, position = rng.normal(size=(12, 3)), np.arange(12) % 4
    offset, omega = rng.normal(size=(12, 4)), np.full(12, 1 / 12)
    codes = GroupSpace.from_cardinalities((2, 2)).one_hot([[0, 0], [0, 1], [1, 0], [1, 1]]) if additive else np.eye(4)
    problem = LogitProblem(features, position, np.arange(12), offset, omega, np.full(4, 0.25), alpha=0.3, codes=codes)
    theta = rng.normal(size=codes.shape[1] * 3 + 4)

    def parts(theta):
        return theta[:-4].reshape(-1, 3), theta[-4:]

    def slow(theta):
        weight, bias = parts(theta)
        total = 0.15 * (weight**2).sum()
        for x, own, known in zip(features, position, offset, strict=True):
            values = [known[z] + bias[z] + sum(codes[z, d] * (weight[d] @ x) for d in range(len(weight)))
                      for z in range(4)]  # fmt: skip
            total += (math.log(sum(map(math.exp, values))) - values[own]) / 12
        return total

    found = problem.evaluate(*parts(theta))
    assert found.value == pytest.approx(slow(theta))
    gradient = np.concatenate([found.weight_gradient.ravel(), found.bias_gradient])
    np.testing.assert_allclose(gradient, approx_fprime(theta, slow), atol=1e-5)


@settings(max_examples=15)
@given(st.integers(0, 1000))
def test_lc_and_sla_are_the_same_where_every_group_is_seen(seed):
    X, codes = make_data(cardinalities=(3, 2), n=300, missing=(), seed=seed)
    fits = [
        LogitAdjustedClassifier(adjustment, epsilon=1e-300, smoothing=1e-300, alpha=0.1).fit(
            X, codes[:, 0], attributes=codes[:, 1]
        )
        for adjustment in ("lc", "sla")
    ]
    np.testing.assert_allclose(fits[0].predict_proba(X), fits[1].predict_proba(X), atol=1e-5)


def test_several_attributes_count_as_one():
    X, codes = make_data(cardinalities=(2, 2, 3), n=400, missing=(0, 5))
    joint = codes[:, 1] * 3 + codes[:, 2]
    first = LogitAdjustedClassifier("sla").fit(X, codes[:, 0], attributes=codes[:, 1:])
    second = LogitAdjustedClassifier("sla").fit(X, codes[:, 0], attributes=joint)
    np.testing.assert_allclose(first.coef_, second.coef_, atol=1e-8)


def test_a_weight_equals_repetition():
    X, codes = make_data(n=120)
    weight = np.random.default_rng(0).integers(0, 3, size=120)
    keep = codes[:, 0] >= 0
    weighted = LogitAdjustedClassifier("lc").fit(X, codes[:, 0], attributes=codes[:, 1], sample_weight=weight)
    rows = np.repeat(np.arange(120)[keep], weight)
    repeated = LogitAdjustedClassifier("lc").fit(X[rows], codes[rows, 0], attributes=codes[rows, 1])
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, atol=1e-5)


def test_adjustment_helps_rare_groups():
    rng = np.random.default_rng(0)
    z = np.repeat([[0, 0], [0, 1], [1, 0], [1, 1]], [1000, 30, 30, 1000], axis=0)
    X = rng.normal(size=z.shape) + 2 * z
    test = np.repeat([[0, 0], [0, 1], [1, 0], [1, 1]], 500, axis=0)
    X_test = rng.normal(size=test.shape) + 2 * test
    worst = {
        adjustment: worst_group_accuracy(
            test[:, 0],
            LogitAdjustedClassifier(adjustment, alpha=1e-4).fit(X, z[:, 0], attributes=z[:, 1]).predict(X_test),
            test[:, 1],
        )
        for adjustment in ("none", "lc", "sla")
    }
    assert worst["lc"] > worst["none"] + 0.2
    assert worst["sla"] == pytest.approx(worst["lc"], abs=0.02)


def test_bad_input_raises_a_clear_message():
    X, codes = make_data(n=60)
    for parameters, sentence in (
        ({"adjustment": "la"}, "adjustment 'la' is not known: use one of 'none', 'lc', 'sla'"),
        ({"alpha": -1}, "alpha is -1"),
        ({"adjustment": "lc", "epsilon": 0}, "epsilon is 0"),
        ({"smoothing": -1}, "smoothing is -1"),
        ({"tau": np.nan}, "tau is nan"),
        ({"max_iter": 0}, "max_iter is 0"),
    ):
        with pytest.raises(InputError, match=sentence):
            LogitAdjustedClassifier(**parameters).fit(X, codes[:, 0], attributes=codes[:, 1])
    with pytest.raises(InputError, match="y has 2 columns: pass one target"):
        LogitAdjustedClassifier().fit(X, codes)
    with pytest.raises(InputError, match="attributes has 3 rows"):
        LogitAdjustedClassifier().fit(X, codes[:, 0], attributes=[1, 2, 3])
    with pytest.warns(ConvergenceWarning, match="raise max_iter"):
        LogitAdjustedClassifier(max_iter=1).fit(X, codes[:, 0], attributes=codes[:, 1])


def test_score_takes_frames_and_counts_unknown_classes_as_wrong():
    X, codes = make_data()
    bird = pd.Series(np.array(["duck", "gull"])[codes[:, 0]], name="bird")
    clf = LogitAdjustedClassifier().fit(X, bird)
    assert clf.score(X, bird.to_frame()) == clf.score(X, bird)
    assert clf.score(X, bird.where(bird == "duck", "owl")) < clf.score(X, bird)
