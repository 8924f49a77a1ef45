"""The head's loss, biases and probabilities against the equations."""

import copy
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn

from compshift.nn import AdditiveEnergyHead
from tests.nn.heads import noisy_case, random_head
from tests.references import group_log_posterior, step_one_log_probability


def slow_loss(energies, cardinalities, codes, seen, frequency, bias):
    """Mean negative log-likelihood over seen groups."""
    log_score = np.log(frequency) - bias
    which = [seen.tolist().index(list(code)) for code in codes]
    return -np.mean(
        [
            step_one_log_probability(row, cardinalities, seen, log_score, position)
            for row, position in zip(energies, which, strict=True)
        ]
    )


@settings(deadline=None, derandomize=True, max_examples=20)
@given(st.integers(0, 10_000), st.sampled_from([(2, 2), (3, 2), (2, 3, 2), (4,)]), st.booleans())
def test_loss_and_gradient_equal_the_loop(seed, cardinalities, hidden):
    rng = np.random.default_rng(seed)
    k = int(rng.integers(1, math.prod(cardinalities) + 1))
    head, seen, counts = random_head(rng, cardinalities, k, hidden=3 if hidden else None)
    X = torch.as_tensor(rng.normal(size=(6, 4)), dtype=torch.float64)
    codes = seen[rng.integers(k, size=6)]
    loss = head.loss(X, codes)
    energies = head(X).detach().numpy()
    bias = head.learned_bias.detach().numpy()[np.flatnonzero(head.group_weight.numpy())]
    expected = slow_loss(energies, cardinalities, codes, seen, counts / counts.sum(), bias)
    assert loss.item() == pytest.approx(expected, abs=1e-10)
    assert head.loss(X, codes, reduction="sum").item() == pytest.approx(6 * expected, abs=1e-9)
    if k > 1:
        loss.backward()
        for parameter in head.parameters():
            index = int(rng.integers(parameter.numel()))
            with torch.no_grad():
                flat = parameter.view(-1)
                step = 1e-6
                flat[index] += step
                above = head.loss(X, codes).item()
                flat[index] -= 2 * step
                below = head.loss(X, codes).item()
                flat[index] += step
            assert parameter.grad.view(-1)[index].item() == pytest.approx((above - below) / (2 * step), abs=1e-6)


def test_sample_weight_equals_repeated_rows():
    rng = np.random.default_rng(1)
    head, seen, _ = random_head(rng, (2, 3), 4)
    X, codes = torch.as_tensor(rng.normal(size=(3, 4))), seen[[0, 1, 3]]
    weighted = head.loss(X, codes, sample_weight=np.array([1.0, 2.0, 1.0]))
    repeated = head.loss(X[[0, 1, 1, 2]], codes[[0, 1, 1, 2]])
    assert weighted.item() == pytest.approx(repeated.item(), abs=1e-12)


def test_unseen_groups_are_not_in_the_softmax():
    """Energies that make an unseen group far more likely than all others change nothing."""
    head = AdditiveEnergyHead(2, [2, 2])
    head.set_train_groups([[0, 1], [1, 0]], [1, 1])
    with torch.no_grad():
        for layer in head.layers:
            layer.weight[0] = -50.0  # value 0 of both attributes, which only the unseen group combines
    codes = [[0, 1], [1, 0]]
    assert head.loss(torch.ones(2, 2), codes).item() == pytest.approx(math.log(2), abs=1e-5)


def gaussian_model(n, rng):
    """Head whose energies make p(x|z) exactly a Gaussian, so that every bias is known in closed form.

    x ~ N(mu_y + nu_a, I) has −log p(x|z) = const − x·(mu_y + nu_a) + |mu_y + nu_a|²/2 + terms of x alone: energies are
    E = −x·mu, and B(z) = log ∫ exp(−⟨σ(z), E(x)⟩) p₀(x) dx up to a constant, that is |mu_y + nu_a|²/2.
    """
    mu, nu = rng.normal(size=(3, 2)), rng.normal(size=(2, 2))
    head = AdditiveEnergyHead(2, [3, 2]).double()
    seen = np.array([[0, 0], [0, 1], [1, 0], [2, 1]])
    counts = np.array([4, 2, 3, 1]) * n
    codes = np.repeat(seen, counts, axis=0)
    X = rng.normal(size=(len(codes), 2)) + mu[codes[:, 0]] + nu[codes[:, 1]]
    head.set_train_groups(codes)
    closed = np.array([np.sum((mu[y] + nu[a]) ** 2) / 2 for y, a in head.groups])
    with torch.no_grad():
        head.layers[0].weight.copy_(torch.as_tensor(-mu))
        head.layers[1].weight.copy_(torch.as_tensor(-nu))
        head.learned_bias.copy_(torch.as_tensor(closed))
    return head, torch.as_tensor(X), closed


def test_bias_of_an_exact_model_is_the_closed_form():
    head, X, closed = gaussian_model(20_000, np.random.default_rng(0))
    result = head.extrapolate(X.split(1000))
    np.testing.assert_allclose(result.bias.numpy(), closed, atol=0.03)
    assert head.bias_gap < 0.03
    assert (result.effective_sample_size > 100).all()


@pytest.mark.parametrize("batch_size", [1, 7, 37])
def test_bias_does_not_depend_on_the_batch_size_nor_on_the_mode(batch_size):
    backbone, head, X = noisy_case()
    reference = copy.deepcopy(head)
    backbone.eval()
    expected = reference.extrapolate([backbone(X).detach()])
    backbone.train()
    backbone.layers[1].eval()  # a submodule in eval mode stays in eval mode
    statistics = backbone.layers[1].running_mean.clone()
    found = head.extrapolate(X.split(batch_size), backbone)
    np.testing.assert_allclose(found.bias, expected.bias, atol=1e-6)
    np.testing.assert_allclose(found.effective_sample_size, expected.effective_sample_size, rtol=1e-5)
    assert (backbone.training, backbone.layers[1].training, backbone.layers[2].training) == (True, False, True)
    assert torch.equal(backbone.layers[1].running_mean, statistics)
    assert all(parameter.grad is None for parameter in backbone.parameters())


def test_row_weights_of_extrapolate_equal_repeated_rows():
    _, head, _ = noisy_case()
    features = torch.randn(5, 4)
    first = head.extrapolate([(features, torch.tensor([1.0, 1, 3, 1, 1]))], weighted=True)
    second = head.extrapolate([features[[0, 1, 2, 2, 2, 3, 4]]])
    np.testing.assert_allclose(first.bias, second.bias, atol=1e-6)


def test_probabilities_equal_the_definition():
    rng = np.random.default_rng(3)
    head, _, _ = random_head(rng, (2, 3, 2), 7)
    X = torch.as_tensor(rng.normal(size=(5, 4)))
    head.extrapolate([X])
    prior = rng.dirichlet(np.ones(12)).reshape(2, 3, 2)
    joint = head.log_prob(X, prior).detach().numpy()
    log_score = np.log(prior.reshape(-1)) - head.bias.numpy()
    for row, found in zip(head(X).detach().numpy(), joint, strict=True):
        np.testing.assert_allclose(found, group_log_posterior(row, (2, 3, 2), head.groups, log_score), atol=1e-10)
    table = np.exp(joint).reshape(5, 2, 3, 2)
    for attribute, others in ((0, (2, 3)), (1, (1, 3)), (2, (1, 2))):
        marginal = head.marginal_log_prob(X, attribute, prior).detach().numpy()
        np.testing.assert_allclose(np.exp(marginal), table.sum(axis=others), atol=1e-10)
    listed = head.log_prob(X, prior, codes=[[1, 2, 0], [0, 0, 1]]).detach().numpy()
    np.testing.assert_allclose(listed, joint[:, [10, 1]], atol=1e-10)


def test_learned_bias_does_not_depend_on_where_the_features_are_centred():
    """Shifting all features moves constants from energies to biases; predictions stay the same."""
    rng = np.random.default_rng(4)
    head, _, _ = random_head(rng, (2, 2), 3)
    X = torch.as_tensor(rng.normal(size=(8, 4)))
    head.extrapolate([X])
    before = head.log_prob(X, bias="learned")
    shift = torch.as_tensor(rng.normal(size=4))
    energies = torch.cat([layer.weight @ shift for layer in head.layers])  # added by the shift
    with torch.no_grad():
        head.learned_bias -= energies[torch.as_tensor(head.groups + head.space.offsets)].sum(dim=1)
    head.extrapolate([X + shift])
    np.testing.assert_allclose(head.log_prob(X + shift, bias="learned").detach(), before.detach(), atol=1e-9)


@pytest.mark.parametrize("shift", [1e4, -1e4])
def test_a_constant_on_all_energies_changes_nothing(shift):
    rng = np.random.default_rng(0)
    head, seen, _ = random_head(rng, (3, 2), 4)
    X = torch.as_tensor(rng.normal(size=(9, 4)))
    before = head.loss(X, seen[[0, 1, 2, 3, 0, 1, 2, 3, 0]]).item()
    weights = [layer.weight.detach().clone() for layer in head.layers]
    ones = torch.cat([X, torch.ones(9, 1, dtype=torch.float64)], dim=1)
    head.in_features = 5
    with torch.no_grad():
        for layer, weight in zip(head.layers, weights, strict=True):
            layer.weight = nn.Parameter(torch.cat([weight, torch.full((len(weight), 1), shift / 2)], dim=1))
    assert head.loss(ones, seen[[0, 1, 2, 3, 0, 1, 2, 3, 0]]).item() == pytest.approx(before, abs=1e-9)


def test_a_training_loop_of_ten_lines_learns():
    """The head in a hand-written training loop."""
    rng = torch.Generator().manual_seed(0)
    codes = torch.tensor([[0, 0], [0, 1], [1, 1]]).repeat(200, 1)
    X = torch.randn(600, 2, generator=rng) + 4 * codes
    head = AdditiveEnergyHead(2, [2, 2])
    head.set_train_groups(codes)
    optimiser = torch.optim.Adam(head.parameters(), lr=0.1)
    for _ in range(150):
        optimiser.zero_grad()
        head.loss(X, codes).backward()
        optimiser.step()
    head.extrapolate([X])
    unseen = torch.randn(100, 2, generator=rng) + torch.tensor([4.0, 0.0])
    assert (head.marginal_log_prob(unseen, 0).argmax(dim=1) == 1).float().mean() > 0.9


@pytest.mark.parametrize("cardinalities", [(3, 2), (2, 3, 2), (4,)])
def test_log_probabilities_can_be_differentiated(cardinalities):
    rng = np.random.default_rng(0)
    head, seen, _ = random_head(rng, cardinalities, k=2)
    X = torch.as_tensor(rng.normal(size=(20, 4)), dtype=torch.float64)
    head.extrapolate([(X, torch.as_tensor(seen[rng.integers(2, size=20)]))])
    point = X[:3].clone().requires_grad_()

    def probability(x):
        return head.log_prob(x).exp()[:, 0].sum()

    probability(point).backward()
    step = torch.zeros_like(point)
    step[1, 2] = 1e-6
    with torch.no_grad():
        slope = (probability(point + step) - probability(point - step)) / 2e-6
    assert point.grad[1, 2].item() == pytest.approx(slope.item(), abs=1e-7)
