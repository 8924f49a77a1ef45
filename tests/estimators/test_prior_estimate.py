"""estimate_prior: recovered priors, intervals, warnings and messages."""

import functools

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB

from compshift import AdditiveGaussian, AffineExtrapolation, CRMClassifier, InputError, diagnose
from compshift.estimators import prior_estimate
from compshift.estimators.prior_estimate import estimate_prior

GROUPS = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
SKEWED = np.array([0.55, 0.05, 0.3, 0.1])


def rows(share, n=800, seed=0, spread=3.0):
    rng = np.random.default_rng(seed)
    codes = GROUPS[rng.choice(4, size=n, p=share)]
    return rng.normal(size=(n, 2)) + spread * codes, codes


def fitted(clf=None, spread=3.0, n=6000):
    X, codes = rows([0, 1 / 3, 1 / 3, 1 / 3], n=n, seed=9, spread=spread)
    names = np.array(["land", "water"])[codes[:, 1]]
    return (clf or CRMClassifier(1e-3)).fit(X, codes[:, 0], attributes=pd.Series(names, name="place"))


@pytest.mark.parametrize(
    "clf",
    [CRMClassifier(1e-3), AdditiveGaussian(), AffineExtrapolation(LogisticRegression(), random_state=0)],
    ids=["crm", "gaussian", "affine"],
)
def test_a_skewed_prior_is_found_with_every_classifier(clf):
    fitted(clf)
    X, codes = rows(SKEWED)
    found = estimate_prior(clf, X)
    share = np.bincount(clf.space_.index(codes), minlength=4) / len(codes)
    np.testing.assert_allclose(np.exp(found.log_prior), share, atol=0.04)
    assert (found.lower < share).all()
    assert (found.upper > share).all()
    assert found.converged
    assert found.log_likelihood > 50


def test_coverage_with_a_classifier_that_has_the_densities_right():
    clf = fitted(AdditiveGaussian(), n=30_000)
    held = [
        (found.lower < SKEWED) & (found.upper > SKEWED)
        for found in (estimate_prior(clf, rows(SKEWED, n=300, seed=seed)[0]) for seed in range(100))
    ]
    assert 0.85 < np.mean(held) < 0.97


def test_set_prior_accepts_the_estimate_and_accuracy_rises():
    clf = fitted(spread=1.5)
    X, codes = rows(SKEWED, n=3000, spread=1.5)
    before = clf.score(X, codes[:, 0])
    found = estimate_prior(clf, X)
    clf.set_prior(found)
    np.testing.assert_allclose(clf.log_prior_, found.log_prior, atol=1e-9)
    np.testing.assert_array_equal(clf.log_prior_, clf.set_prior(found.as_mapping()).log_prior_)
    assert clf.score(X, codes[:, 0]) > before + 0.005


def test_only_zeros_of_the_current_prior_matter():
    clf, (X, _) = fitted(), rows(SKEWED)
    found = estimate_prior(clf, X)
    clf.set_prior([0.1, 0.2, 0.3, 0.4])
    np.testing.assert_allclose(estimate_prior(clf, X).log_prior, found.log_prior, atol=1e-5)
    clf.set_prior("train")
    without = estimate_prior(clf, X)
    assert without.log_prior[0] == -np.inf
    assert without.lower[0] == without.upper[0] == 0
    assert np.isnan(without.effective_rows[0])
    assert len(without.as_mapping()) == 3
    np.testing.assert_allclose(np.exp(without.log_prior).sum(), 1)


def test_the_frame_has_a_row_per_group():
    found = estimate_prior(fitted(), rows(SKEWED)[0], confidence=0.5)
    frame = found.to_frame()
    assert list(frame.columns) == ["y", "place", "probability", "lower", "upper", "effective_rows"]
    assert frame["place"].tolist() == ["land", "water"] * 2
    assert found.as_mapping()[(1, "land")] == frame["probability"][2]
    wider = estimate_prior(fitted(), rows(SKEWED)[0], confidence=0.9)
    assert (wider.upper - wider.lower > found.upper - found.lower).all()
    assert "place" in str(found)


def test_weights_count_rows_and_zero_leaves_them_out():
    clf, (X, _) = fitted(), rows(SKEWED, n=200)
    weight = np.repeat([2.0, 1.0, 0.0], [50, 100, 50])
    found = estimate_prior(clf, X, sample_weight=weight)
    twice = estimate_prior(clf, np.concatenate([X[:150], X[:50]]))
    np.testing.assert_allclose(found.log_prior, twice.log_prior, atol=1e-6)
    np.testing.assert_allclose(found.upper, twice.upper, atol=1e-6)


def test_confused_groups_are_named():
    clf = fitted(spread=0.3)
    X, _ = rows(SKEWED, spread=0.3)
    with pytest.warns(
        UserWarning, match=r"hardly distinguish \(\d, \w+\) from \(\d, \w+\).*the sum of their frequencies is estimated"
    ):
        found = estimate_prior(clf, X)
    assert len(found.confused) > 0
    assert (found.lower <= SKEWED).all()
    assert (found.upper >= SKEWED).all()


def test_bad_input_raises_a_clear_message(monkeypatch):
    clf, (X, _) = fitted(), rows(SKEWED, n=20)
    with pytest.raises(InputError, match="LogisticRegression: pass a fitted classifier over groups"):
        estimate_prior(LogisticRegression(), X)
    with pytest.raises(NotFittedError):
        estimate_prior(CRMClassifier(), X)
    with pytest.raises(InputError, match=r"concentration is 0\.5: pass 1 for maximum likelihood, or more"):
        estimate_prior(clf, X, concentration=0.5)
    with pytest.raises(InputError, match=r"confidence is 1\.5: pass a number between 0 and 1"):
        estimate_prior(clf, X, confidence=1.5)
    with pytest.raises(InputError, match="sample_weight has 3 rows but X has 20"):
        estimate_prior(clf, X, sample_weight=[1, 2, 3])
    with pytest.raises(InputError, match=r"sample_weight adds up to 2e\+301.*divide it by its mean"):
        estimate_prior(clf, X, sample_weight=1e300)
    with pytest.raises(InputError, match="X has 1 features"):
        estimate_prior(clf, X[:, :1])
    monkeypatch.setattr(prior_estimate, "MAX_PRIOR_CELLS", 50)
    with pytest.raises(InputError, match=r"4 groups from 20 rows is too large to estimate.*set_prior"):
        estimate_prior(clf, X)


def test_absent_groups_far_from_the_others_leave_every_interval_narrow():
    clf = fitted(spread=30.0, n=1500)
    X, codes = rows([0, 0.5, 0, 0.5], n=300, spread=30.0)
    found = clf.estimate_prior(X)
    assert (found.upper - found.lower)[[0, 2]].max() < 0.02
    assert (found.upper - found.lower)[[1, 3]].max() < 0.11
    share = np.bincount(clf.space_.index(codes), minlength=4) / 300
    assert (found.lower <= share).all()
    assert (found.upper >= share).all()


def test_the_log_likelihood_is_relative_to_the_uniform_prior():
    clf, (X, _) = fitted(), rows(SKEWED, n=200)
    weight = np.random.default_rng(0).uniform(0.5, 2, size=200)
    log_density = clf.set_prior([0.25] * 4).group_log_proba(X)  # up to a term that depends only on x
    for prior in ([0.25] * 4, [0.1, 0.2, 0.3, 0.4], [0.6, 0.0, 0.3, 0.1]):
        clf.set_prior(prior)
        considered = np.flatnonzero(prior)
        found = estimate_prior(clf, X, sample_weight=weight)
        expected = 0.0
        for row, omega in zip(np.exp(log_density), weight, strict=True):
            estimated = sum(np.exp(found.log_prior[z]) * row[z] for z in considered)
            expected += omega * np.log(estimated / np.mean(row[considered]))
        assert found.log_likelihood == pytest.approx(expected, rel=1e-6)
        uniform = estimate_prior(clf, X, sample_weight=weight, concentration=1e9)
        assert uniform.log_likelihood == pytest.approx(0, abs=1e-3)


def test_warnings_point_at_the_caller_of_the_function_and_of_the_method(monkeypatch):
    clf, (X, _) = fitted(spread=0.3), rows(SKEWED, spread=0.3)
    few = functools.partial(prior_estimate.estimate_log_prior, max_iter=1)
    monkeypatch.setattr(prior_estimate, "estimate_log_prior", few)
    with pytest.warns(UserWarning, match="hardly distinguish|stopped after 1 iterations") as of_function:
        estimate_prior(clf, X)
    with pytest.warns(UserWarning, match="hardly distinguish|stopped after 1 iterations") as of_method:
        clf.estimate_prior(X)
    for record in (of_function, of_method):
        assert [str(warning.message).split()[1] for warning in record] == ["inputs", "estimate"]
        assert {warning.filename for warning in record} == {__file__}
    assert of_function[0].lineno < of_method[0].lineno


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_classifier_over_groups_has_the_method():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2, size=(400, 2))
    X = 3 * codes + rng.normal(size=(400, 2))
    skewed = X[codes[:, 0] == 1]
    for clf in (CRMClassifier(), AdditiveGaussian(), AffineExtrapolation(GaussianNB(), random_state=0)):
        clf.fit(X, codes[:, 0], attributes=codes[:, 1])
        found = clf.estimate_prior(skewed, concentration=1.5, confidence=0.8)
        same = estimate_prior(clf, skewed, concentration=1.5, confidence=0.8)
        np.testing.assert_array_equal(found.log_prior, same.log_prior)
        clf.set_prior(found.as_mapping())
        assert np.exp(clf.log_prior_)[clf.groups_[:, 0] == 1].sum() > 0.9


def test_a_frame_with_the_columns_of_the_fit_does_not_warn():
    """Warnings are errors in tests; scikit-learn would warn if column names got lost."""
    rng = np.random.default_rng(0)
    z = np.repeat([[0, 0], [0, 1], [1, 0], [1, 1]], 30, axis=0)
    frame = pd.DataFrame(3 * z + rng.normal(size=z.shape), columns=["height", "width"])
    clf = CRMClassifier().fit(frame, z[:, 0], attributes=z[:, 1])
    assert clf.estimate_prior(frame).to_frame().shape[0] == 4
    assert diagnose(clf, frame, z[:, 0], z[:, 1]).rows.sum() == 120
