"""What a model expects to get right on a group."""

import math

import numpy as np
import pytest

import tests.references as reference
from compshift import CRMClassifier, GroupSpace
from compshift.core.accuracy import importance_accuracy

SPACE = GroupSpace.from_cardinalities([2, 3])
GROUPS = SPACE.codes(np.arange(6))


@pytest.mark.parametrize("n_targets", [1, 2])
def test_against_a_loop(n_targets):
    rng = np.random.default_rng(0)
    energies, evidence, weight = rng.normal(size=(20, 5)), rng.normal(size=20), rng.uniform(0.5, 2, size=20)
    marginals = [np.log(rng.dirichlet(np.ones(size), size=20)) for size in (2, 3)[:n_targets]]
    found = importance_accuracy(SPACE, GROUPS, energies, evidence, weight, marginals)
    for group, value in zip(GROUPS, found, strict=True):
        top = bottom = 0.0
        for x in range(20):
            w = weight[x] * math.exp(-reference.group_energy(energies[x], (2, 3), group) - evidence[x])
            bottom += w
            top += w * math.exp(sum(marginals[target][x, group[target]] for target in range(n_targets)))
        assert value == pytest.approx(top / bottom, rel=1e-10)


def test_a_right_model_is_right_about_itself():
    """Well-specified Gaussians: its expectation for a dropped group is the accuracy there."""
    rng = np.random.default_rng(1)
    means = rng.normal(size=(5, 3))
    codes = SPACE.codes(rng.choice([1, 2, 3, 4, 5], size=6000))
    X = SPACE.one_hot(codes) @ means + rng.normal(size=(6000, 3))
    clf = CRMClassifier(1e-4).fit(X, codes[:, 0], attributes=codes[:, 1])
    model = clf._model
    energies = (X - clf.feature_mean_) @ clf.coef_.T
    log_score = np.log(clf.group_weight_[clf.seen_] / 6000) - clf.learned_bias_[clf.seen_]
    evidence = np.array([reference.log_evidence(row, (2, 3), GROUPS[clf.seen_], log_score) for row in energies])
    marginals = model.marginals(X, clf.log_prior_ - clf.bias_, range(1))
    found = importance_accuracy(SPACE, GROUPS[:1], energies, evidence, np.ones(6000), marginals)[0]
    new = means[0] + means[2] + rng.normal(size=(4000, 3))
    assert found == pytest.approx(clf.predict_proba(new)[:, 0].mean(), abs=0.05)


def test_shifts_change_nothing():
    rng = np.random.default_rng(2)
    energies, evidence = rng.normal(size=(20, 5)), rng.normal(size=20)
    marginals = [np.log(rng.dirichlet(np.ones(2), size=20))]
    plain = importance_accuracy(SPACE, GROUPS, energies, evidence, np.ones(20), marginals)
    far = importance_accuracy(SPACE, GROUPS, energies + 1e4, evidence - 2e4, np.ones(20), marginals)
    np.testing.assert_allclose(far, plain, rtol=1e-6)
