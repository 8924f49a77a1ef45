import copy
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from compshift import GroupSpace, InputError  # noqa: E402
from compshift.nn import AdditiveEnergyHead  # noqa: E402
from tests.references import group_log_posterior, step_one_log_probability  # noqa: E402


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


def random_head(rng, cardinalities, k, in_features=4, hidden=None):
    everything = list(itertools.product(*(range(size) for size in cardinalities)))
    seen = np.array([everything[index] for index in np.sort(rng.choice(len(everything), size=k, replace=False))])
    counts = rng.integers(1, 9, size=k)
    head = AdditiveEnergyHead(in_features, cardinalities, hidden)
    head.set_train_groups(seen, counts)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.as_tensor(rng.normal(size=tuple(parameter.shape))))
    return head.double(), seen, counts


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


def test_sample_weight_is_repetition():
    rng = np.random.default_rng(1)
    head, seen, _ = random_head(rng, (2, 3), 4)
    X, codes = torch.as_tensor(rng.normal(size=(3, 4))), seen[[0, 1, 3]]
    weighted = head.loss(X, codes, sample_weight=np.array([1.0, 2.0, 1.0]))
    repeated = head.loss(X[[0, 1, 1, 2]], codes[[0, 1, 1, 2]])
    assert weighted.item() == pytest.approx(repeated.item(), abs=1e-12)


def test_groups_that_training_lacks_are_not_in_the_softmax():
    """Energies that make an absent group far more likely than all others change nothing."""
    head = AdditiveEnergyHead(2, [2, 2])
    head.set_train_groups([[0, 1], [1, 0]], [1, 1])
    with torch.no_grad():
        for layer in head.layers:
            layer.weight[0] = -50.0  # value 0 of both attributes: only the absent group has both
    codes = [[0, 1], [1, 0]]
    assert head.loss(torch.ones(2, 2), codes).item() == pytest.approx(math.log(2), abs=1e-5)


def gaussian_model(n, rng):
    """Energies under which p(x|z) is exactly a Gaussian, so that every bias is known in closed form.

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


class Noisy(nn.Module):
    """BatchNorm and dropout: features depend on the batch, unless it is in eval mode."""

    out_features = 4

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))

    def forward(self, x):
        return self.layers(x)


def noisy_case(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        backbone = Noisy()
        backbone(torch.randn(50, 3) * 2 + 1)  # running statistics
        head = AdditiveEnergyHead(4, [2, 3], hidden=5)
        head.set_train_groups([[0, 0], [0, 1], [1, 1], [1, 2]], [10, 5, 8, 14])
        with torch.no_grad():
            for parameter in head.parameters():
                parameter.copy_(torch.randn(parameter.shape))
        return backbone, head, torch.randn(37, 3)


@pytest.mark.parametrize("batch_size", [1, 7, 37])
def test_bias_does_not_depend_on_the_batch_size_nor_on_the_mode(batch_size):
    backbone, head, X = noisy_case()
    reference = copy.deepcopy(head)
    backbone.eval()
    expected = reference.extrapolate([backbone(X).detach()])
    backbone.train()
    backbone.layers[1].eval()  # a part that was in eval mode stays so
    statistics = backbone.layers[1].running_mean.clone()
    found = head.extrapolate(X.split(batch_size), backbone)
    np.testing.assert_allclose(found.bias, expected.bias, atol=1e-6)
    np.testing.assert_allclose(found.effective_sample_size, expected.effective_sample_size, rtol=1e-5)
    assert (backbone.training, backbone.layers[1].training, backbone.layers[2].training) == (True, False, True)
    assert torch.equal(backbone.layers[1].running_mean, statistics)
    assert all(parameter.grad is None for parameter in backbone.parameters())


def test_weights_of_rows_are_repetition():
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
    """A shift of all features moves constants between energies and biases; the ablation's predictor stays."""
    rng = np.random.default_rng(4)
    head, _, _ = random_head(rng, (2, 2), 3)
    X = torch.as_tensor(rng.normal(size=(8, 4)))
    head.extrapolate([X])
    before = head.log_prob(X, bias="learned")
    shift = torch.as_tensor(rng.normal(size=4))
    energies = torch.cat([layer.weight @ shift for layer in head.layers])  # what the shift adds
    with torch.no_grad():
        head.learned_bias -= energies[torch.as_tensor(head.groups + head.space.offsets)].sum(dim=1)
    head.extrapolate([X + shift])
    np.testing.assert_allclose(head.log_prob(X + shift, bias="learned").detach(), before.detach(), atol=1e-9)


def test_a_checkpoint_predicts_by_itself(tmp_path):
    _, head, _ = noisy_case()
    features = torch.randn(6, 4)
    head.extrapolate([features])
    torch.save(head.state_dict(), tmp_path / "head.pt")
    other = AdditiveEnergyHead(4, [2, 3], hidden=5)
    other.load_state_dict(torch.load(tmp_path / "head.pt", weights_only=True))
    assert torch.equal(other.log_prob(features), head.log_prob(features))
    assert torch.equal(other.marginal_log_prob(features, 1, "train"), head.marginal_log_prob(features, 1, "train"))
    assert other.loss(features[:1], [[1, 2]]).item() == head.loss(features[:1], [[1, 2]]).item()


def test_groups_straight_from_a_loader():
    codes = torch.tensor([[0, 0], [1, 1], [1, 1], [0, 1], [1, 1]])
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(5, 3), codes), batch_size=2)
    head = AdditiveEnergyHead(3, [2, 2])
    head.set_train_groups(loader)
    assert head.group_weight.tolist() == [1, 1, 0, 3]
    head.extrapolate(loader)
    assert head.bias.shape == (4,)


def test_millions_of_groups_need_no_column_each():
    head = AdditiveEnergyHead(3, [2] * 16)
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2, size=(50, 16))
    head.set_train_groups(codes)
    X = torch.randn(50, 3)
    head.loss(X, codes).backward()
    assert head.layers[0].weight.grad.shape == (2, 3)
    assert head.learned_bias.shape == (2**16,)


def test_candidates_that_are_listed():
    listed = np.random.default_rng(0).integers(0, 6, size=(40, 15))
    head = AdditiveEnergyHead(3, [6] * 15, groups=listed)
    head.set_train_groups(listed[:20])
    X = torch.randn(20, 3)
    head.loss(X, listed[:20]).backward()
    head.extrapolate([X])
    assert head.log_prob(X).shape == (20, 40)
    with pytest.raises(InputError, match="not among the candidate groups"):
        head.set_train_groups(np.zeros((1, 15), dtype=int))
    with pytest.raises(InputError, match="pass groups="):
        AdditiveEnergyHead(3, [6] * 15)


def test_casting_leaves_the_statistics_their_precision():
    _, head, _ = noisy_case()
    head.extrapolate([torch.randn(6, 4)])
    bias = head.bias.clone()
    head.to(torch.bfloat16)
    assert head.learned_bias.dtype == torch.bfloat16
    assert head.bias.dtype == torch.float64
    assert torch.equal(head.bias, bias)
    assert head.loss(torch.randn(2, 4, dtype=torch.bfloat16), [[0, 0], [1, 2]]).dtype == torch.float32
    head.float()

    def no_doubles(tensor):
        if tensor.dtype == torch.float64:
            raise TypeError("no float64 on this device")
        return tensor

    head._apply(no_doubles)
    assert head.bias.dtype == torch.float32


def test_under_autocast_sums_are_in_full_precision():
    _, head, _ = noisy_case()
    features, codes = torch.randn(6, 4), [[0, 0], [0, 1], [1, 1], [1, 2], [0, 0], [1, 1]]
    plain = head.loss(features, codes)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = head.loss(features, codes)
    assert mixed.dtype == torch.float32
    assert mixed.item() == pytest.approx(plain.item(), rel=0.02)


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


def test_a_user_loop_learns():
    """Ten lines of a user's own loop."""
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


def test_bad_input_gets_a_sentence():
    head = AdditiveEnergyHead(3, GroupSpace(("bird", "place"), (("land", "water"), ("forest", "sea"))))
    X = torch.randn(2, 3)
    with pytest.raises(InputError, match="call set_train_groups first"):
        head.loss(X, [[0, 0], [0, 1]])
    head.set_train_groups([[0, 0], [0, 1]], [1, 2])
    with pytest.raises(InputError, match=r"row 1 belongs to the group \(water, sea\), which training does not have"):
        head.loss(X, [[0, 0], [1, 1]])
    with pytest.raises(InputError, match="codes run from 0 to 1"):
        head.loss(X, [[0, 0], [0, 2]])
    with pytest.raises(InputError, match="codes has 1 rows but features has 2"):
        head.loss(X, [[0, 0]])
    with pytest.raises(InputError, match="integer codes"):
        head.loss(X, torch.zeros(2, 2))
    with pytest.raises(InputError, match="reduction 'none' is not known"):
        head.loss(X, [[0, 0], [0, 1]], reduction="none")
    with pytest.raises(InputError, match="call extrapolate with the training inputs first"):
        head.log_prob(X)
    with pytest.raises(InputError, match="given no rows"):
        head.extrapolate([])
    with torch.no_grad():
        head.layers[0].weight.fill_(1.0)
    with pytest.raises(InputError, match="NaN or infinite"):
        head.extrapolate([torch.full((1, 3), math.nan)])
    head.extrapolate([X])
    with pytest.raises(InputError, match="from 0 to 1"):
        head.marginal_log_prob(X, 2)
    with pytest.raises(InputError, match="bias 'best' is not known"):
        head.log_prob(X, bias="best")
    with pytest.raises(InputError, match="in_features"):
        AdditiveEnergyHead(0, [2])
    with pytest.raises(InputError, match=r"as in \[2, 3\]"):
        AdditiveEnergyHead(3, 2)
    with pytest.raises(InputError, match=r"features have shape \(2, 5\): pass \(n, 3\)"):
        head(torch.randn(2, 5))
    with pytest.raises(InputError, match="does not end in integer codes"):
        head.set_train_groups([(torch.zeros(2, 2, dtype=torch.long), torch.randn(2, 3))])
    with pytest.raises(InputError, match="codes is empty"):
        head.set_train_groups(np.zeros((0, 2), dtype=int))


def test_the_loss_is_differentiable_once():
    """A penalty on the gradient would be silently wrong: it is refused."""
    head = AdditiveEnergyHead(3, [2, 2])
    head.set_train_groups([[0, 0], [1, 1]], [1, 1])
    with torch.no_grad():
        head.layers[0].weight.normal_()
    X = torch.randn(2, 3, requires_grad=True)
    with pytest.raises(RuntimeError, match="differentiable once"):
        torch.autograd.grad(head.loss(X, [[0, 0], [1, 1]]), X, create_graph=True)


def test_a_move_that_fails_leaves_the_head_whole():
    _, head, _ = noisy_case()
    with pytest.raises(RuntimeError):
        head.to("meta").to("cpu")
    _, head, _ = noisy_case()
    names = set(head.state_dict())

    def broken(_):
        raise RuntimeError("no such device")

    with pytest.raises(RuntimeError, match="no such device"):
        head._apply(broken)
    assert set(head.state_dict()) == names


def test_biases_of_earlier_weights_are_announced():
    _, head, _ = noisy_case()
    features = torch.randn(4, 4)
    head.extrapolate([features])
    head.log_prob(features)
    other = copy.deepcopy(head)
    with torch.no_grad():
        head.learned_bias += 1
    with pytest.warns(UserWarning, match="trained further since extrapolate"):
        head.log_prob(features)
    other.log_prob(features)
    head.load_state_dict(other.state_dict())
    head.log_prob(features)


def test_forward_with_codes_is_the_loss():
    _, head, _ = noisy_case()
    features = torch.randn(2, 4)
    assert head(features, [[0, 0], [1, 2]]).item() == head.loss(features, [[0, 0], [1, 2]]).item()


def test_batches_in_a_list_and_attributes_by_name():
    head = AdditiveEnergyHead(3, GroupSpace(("bird", "place"), (("land", "water"), ("forest", "sea"))))
    batches = [(torch.randn(2, 3), torch.tensor([[0, 0], [0, 1]])), (torch.randn(1, 3), torch.tensor([[1, 1]]))]
    head.set_train_groups(batches)
    assert head.group_weight.tolist() == [1, 1, 0, 1]
    head.extrapolate(batches)
    by_name, by_number = (head.marginal_log_prob(batches[0][0], name) for name in ("place", 1))
    assert torch.equal(by_name, by_number)
    with pytest.raises(InputError, match="attribute 'plaice' is not known"):
        head.marginal_log_prob(batches[0][0], "plaice")
    with pytest.raises(InputError, match="pass a list of batches"):
        head.extrapolate(batches[0][0])
    with pytest.raises(InputError, match="sample_weight is zero"):
        head.loss(*batches[0], sample_weight=torch.zeros(2))
