"""The paper's two-dimensional example: the Bayes classifier in closed form, CRM close to it, and ERM."""

import math

import numpy as np
import pytest

from compshift import CRMClassifier
from compshift.core.bias import block_sums, extrapolated_bias
from compshift.core.energy import GroupTable, log_evidence
from compshift.core.posterior import group_log_posterior, marginal_log_posterior
from compshift.data.gaussians import GAUSSIAN2D_SPACE, Gaussian2D
from compshift.studies.gaussian2d import run_gaussian2d
from compshift.studies.three_groups import three_groups

SPACE = GAUSSIAN2D_SPACE
GROUPS = SPACE.codes(np.arange(4))
SEEN = GROUPS[1:]  # all but (−1, −1)
UNIFORM = np.full(4, -math.log(4))
TRAIN = np.array([-np.inf, *[-math.log(3)] * 3])


def closed_form(X, log_prior):
    """log p(z|x) of the four groups, (n, 4): log N(x; z, I) is z·x plus a part that is the same for all groups."""
    logits = X @ SPACE.decode(GROUPS).T + log_prior
    return logits - np.logaddexp.reduce(logits, axis=1)[:, None]


def three_group_rule(x1, x2):
    """The paper's Bayes classifier of the three groups in training, by half-planes."""
    if x1 > 0 and x2 > 0:
        return 1, 1
    if x2 < 0 and x1 > x2:
        return 1, -1
    assert x1 < 0
    assert x2 > x1
    return -1, 1


def four_group_rule(x1, x2):
    """The paper's Bayes classifier of all four groups: one quadrant each."""
    return 1 if x1 > 0 else -1, 1 if x2 > 0 else -1


def true_energies(X):
    """The paper's energies ¼‖x − (2 z1, 0)‖² and ¼‖x − (0, 2 z2)‖², (n, 4)."""
    centres = np.array([(-2, 0), (2, 0), (0, -2), (0, 2)])
    return ((X[:, None] - centres) ** 2).sum(axis=2) / 4


@pytest.fixture(scope="module")
def plane():
    """Points of a grid whose trapezoidal sums are exact for Gaussians, and the weight p(x) of the training inputs."""
    axis = np.arange(-11, 11.01, 0.25)
    X = np.stack([part.ravel() for part in np.meshgrid(axis, axis)], axis=1)
    density = np.exp(Gaussian2D().log_density(X)) @ np.exp(TRAIN)
    return X, density / density.sum()


@pytest.fixture(scope="module")
def points():
    return np.random.default_rng(1).normal(scale=2, size=(500, 2))


@pytest.mark.parametrize(("log_prior", "rule"), [(TRAIN, three_group_rule), (UNIFORM, four_group_rule)])
def test_the_closed_form_has_the_papers_regions(points, log_prior, rule):
    best = SPACE.decode(GROUPS[closed_form(points, log_prior).argmax(axis=1)])
    assert best.tolist() == [list(rule(*x)) for x in points]


def test_with_the_true_energies_crm_is_the_bayes_classifier(plane, points):
    """Step 2 in the limit of all training inputs, with the true energies and biases in step 1, then inference."""
    X, weight = plane
    table, everything = GroupTable.of(SPACE, SEEN), GroupTable.of(SPACE, GROUPS)
    log_volume = math.log(2 * math.pi) - 1  # of exp(−E): E is ½‖x − z‖² + 1 for every group
    evidence = log_evidence(true_energies(X), table, TRAIN[1:] - log_volume)
    bias, _ = extrapolated_bias(everything, block_sums(everything, true_energies(X), evidence, weight))
    np.testing.assert_allclose(bias, log_volume, rtol=0, atol=1e-9)
    for log_prior in (UNIFORM, np.log([0.1, 0.2, 0.3, 0.4]), TRAIN):
        found = group_log_posterior(true_energies(points), everything, log_prior - bias)
        np.testing.assert_allclose(np.exp(found), np.exp(closed_form(points, log_prior)), rtol=0, atol=1e-9)
    for attribute in (0, 1):  # with the uniform prior, the odds of z_i = 1 are exp(2 x_i)
        marginal = marginal_log_posterior(true_energies(points), everything, UNIFORM - bias, attribute)
        np.testing.assert_allclose(
            np.exp(marginal[:, 1]), 1 / (1 + np.exp(-2 * points[:, attribute])), rtol=0, atol=1e-9
        )


def log_odds(theta, X, plane):
    """log q(z|x) / q(1, 1|x), (n, 3), of CRM with parameters ``theta`` in the limit of all training inputs.

    ``theta`` (6,) has a slope in x (2,) and an intercept for (−1, 1), then for (1, −1), against (1, 1), whose logits
    are 0. Energies are additive, so the slope of the unseen group is the sum of the two; its bias is that of step 2.
    """
    inputs, weight = plane
    left, right = theta[:3], theta[3:]
    slopes = np.stack([left[:2] + right[:2], left[:2], right[:2]])  # (3, 2)
    seen = inputs @ slopes[1:].T + [left[2], right[2]]  # step-1 logits against (1, 1), with a uniform prior
    evidence = np.logaddexp(0, np.logaddexp(*seen.T))
    unseen_bias = math.log(weight @ np.exp(inputs @ slopes[0] - evidence))
    one_bias = math.log(weight @ np.exp(-evidence))
    return X @ slopes.T + [one_bias - unseen_bias, left[2], right[2]]


@pytest.mark.parametrize("n", [3000, 48_000])
def test_a_fit_is_as_close_to_the_closed_form_as_its_sample_size_allows(plane, n):
    """Within four standard errors, by the Fisher information of step 1 and the variance of the weights in step 2."""
    inputs, weight = plane
    truth = np.array([-2.0, 0, 0, 0, -2, 0])
    seen = np.exp(closed_form(inputs, TRAIN))[:, 1:3]  # (n, 2) probabilities of (−1, 1) and (1, −1)
    design = np.column_stack([inputs, np.ones(len(inputs))])  # (n, 3)
    spread = seen[:, :, None] * np.eye(2) - seen[:, :, None] * seen[:, None, :]  # (n, 2, 2)
    information = np.einsum("n,nij,na,nb->iajb", weight, spread, design, design).reshape(6, 6)
    X = np.array([(-1.0, -1), (-2, -2), (0, 0), (1, 1), (-1, 2), (2, -1)])
    steps = 1e-5 * np.eye(6)
    slope = np.stack([(log_odds(truth + h, X, plane) - log_odds(truth - h, X, plane)) / 2e-5 for h in steps])
    first = np.sqrt(np.einsum("axz,ab,bxz->xz", slope, np.linalg.inv(information), slope) / n)
    ratio = np.exp(Gaussian2D().log_density(inputs))[:, 0] / (np.exp(Gaussian2D().log_density(inputs)) @ np.exp(TRAIN))
    second = np.array([math.sqrt((weight @ ratio**2 - 1) / n), 0, 0])  # of the unseen group's bias
    data = Gaussian2D(0).sample(n, 4).part("train")
    z = data.columns(["z1", "z2"])
    crm = CRMClassifier(alpha=1e-9).fit(data.X, z["z1"], attributes=z["z2"])
    found, expected = crm.group_log_proba(X), closed_form(X, UNIFORM)
    error = (found - found[:, 3:])[:, :3] - (expected - expected[:, 3:])[:, :3]  # (points, groups)
    assert (np.abs(error) <= 4 * (first + second)).all()
    assert (first + second).max() < 25 / math.sqrt(n)  # 0.11 at the larger size


@pytest.fixture(scope="module")
def study():
    return run_gaussian2d(n_train=600, n_test=400)


def test_erm_predicts_each_attribute_by_its_own_classifier(study):
    test = study.data.part("test")
    values = study.data.space.decode(test.codes)
    seen = study.crm.seen_[study.data.space.index(test.codes)]
    right = (study.erm_group(test.X) == values)[seen].mean(axis=0)  # (2,)
    assert (right > 0.75).all()


def test_crm_predicts_the_missing_group_where_erm_does_not(study):
    missing = int(np.flatnonzero(~study.crm.seen_)[0])
    accuracy = {name: report.accuracy[missing] for name, report in study.groups.items()}
    erm = next(value for name, value in accuracy.items() if "ERM" in name)
    assert max(accuracy.values()) > erm + 0.2


def test_the_marginals_are_sums_over_the_other_attribute(study):
    test = study.data.part("test")
    np.testing.assert_allclose(study.crm_marginals(test.X)[:, 0], study.crm.predict_proba(test.X)[:, 1], atol=1e-12)
    rows = study.numbers(study.marginal_tasks)
    values = study.data.space.decode(test.codes)
    erm = {
        (row["z1"], row["z2"]): row["accuracy"] for row in rows if (row["predicting"], row["method"]) == ("z2", "ERM")
    }
    for group, accuracy in erm.items():
        inside = (values == group).all(axis=1)
        assert accuracy == (study.erm[1].predict(test.X[inside]) == group[1]).mean()


def test_three_groups_determine_the_code_and_the_energy_of_the_fourth():
    groups = three_groups()
    (unseen,) = [group for group in groups if not group["seen"]]
    assert (unseen["z1"], unseen["z2"]) == (-1, -1)
    weights = [group["weight"] for group in groups]
    assert sum(weights) == 1
    codes = np.array([[int(bit) for bit in group["code"].split()] for group in groups])
    assert (weights @ codes).tolist() == [int(bit) for bit in unseen["code"].split()]
    assert np.dot(weights, [group["energy"] for group in groups]) == pytest.approx(unseen["energy"], abs=1e-12)
