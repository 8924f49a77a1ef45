"""AdditiveGaussian.extrapolated_bias: the bias of linear energies under the fitted Gaussians."""

import numpy as np
import pytest

from compshift import CRMClassifier, InputError
from tests.estimators.made_data import make_data
from tests.estimators.test_additive_gaussian import VARIANTS, Truth, fit


def test_the_bias_agrees_with_crm_on_gaussians():
    truth = Truth(seed=6, shared=True)
    X, codes = truth.sample(range(1, 6), 4000)
    crm = CRMClassifier(alpha=1e-6).fit(X, codes[:, 0], attributes=codes[:, 1])
    for variant in VARIANTS:
        bias = fit(X, codes, variant).extrapolated_bias(crm.coef_, crm.feature_mean_, crm.learned_bias_[crm.seen_])
        np.testing.assert_array_equal(bias[crm.seen_], crm.learned_bias_[crm.seen_])
        assert bias[0] == pytest.approx(crm.bias_[0], abs=0.1)


def test_the_bias_is_exact_for_the_energies_of_the_fitted_gaussians():
    X, codes = make_data(n=500, p=3)
    model = fit(3 * X + 20, codes)
    centre = np.array([1.0, -2.0, 30.0])
    one_hot = model.space_.one_hot(model.groups_)
    parts = np.linalg.lstsq(one_hot, model.means_ - centre, rcond=None)[
        0
    ]  # means of the values, which add up to the means of the groups
    coef = -np.linalg.solve(model.covariance_, parts.T).T
    true = -0.5 * np.einsum("gi,gi->g", model.means_ - centre, one_hot @ coef)
    found = model.extrapolated_bias(coef, centre, true[model.seen_])
    np.testing.assert_allclose(found, true, rtol=1e-8)
    fewer = fit(3 * X + 20, codes, support=[[0, 0], [1, 2]])
    np.testing.assert_allclose(fewer.extrapolated_bias(coef, centre, true[model.seen_]), true[[0, 5]], rtol=1e-8)


def test_covariances_are_averaged_by_weight():
    """The bias equals that of a loop over seen groups, which have very different numbers of rows."""
    truth = Truth(seed=3)
    parts = [truth.sample([group], n) for group, n in ((1, 40), (2, 900), (3, 60), (4, 300), (5, 90))]
    X, codes = (np.concatenate(part) for part in zip(*parts, strict=True))
    rng = np.random.default_rng(0)
    weight = rng.uniform(0.5, 2, size=len(X))
    model = fit(X, codes, "per-value", sample_weight=weight)
    coef, centre, learned = rng.normal(size=(5, 2)), np.array([0.3, -0.2]), rng.normal(size=5)
    total, pooled = 0.0, np.zeros((2, 2))
    for group in range(1, 6):
        own = weight[(codes == truth.groups[group]).all(axis=1)].sum()
        total, pooled = total + own, pooled + own * np.linalg.inv(model.precisions_[group])
    pooled /= total
    top = bottom = 0.0
    for position, group in enumerate(range(1, 6)):
        change = coef.T @ (
            model.space_.one_hot(model.groups_[[0]])[0] - model.space_.one_hot(model.groups_[[group]])[0]
        )
        variance = change @ pooled @ change
        value = learned[position] - change @ (model.means_[group] - centre) + variance / 2
        top, bottom = top + value / variance**3, bottom + 1 / variance**3
    found = model.extrapolated_bias(coef, centre, learned)
    assert found[0] == pytest.approx(top / bottom, rel=1e-8)
    np.testing.assert_array_equal(found[1:], learned)


def test_too_many_pairs_raise(monkeypatch):
    X, codes = make_data(n=100, p=2)
    model = fit(X, codes)
    monkeypatch.setattr("compshift.core.bias.MAX_PAIRS", 29)
    with pytest.raises(InputError, match=r"6 candidate groups from 5 seen ones.*list fewer groups in support"):
        model.extrapolated_bias(np.zeros((5, 2)), np.zeros(2), np.zeros(5))
    fewer = fit(X, codes, support=[[0, 0], [1, 2]])
    assert np.isfinite(fewer.extrapolated_bias(np.zeros((5, 2)), np.zeros(2), np.zeros(5))).all()
