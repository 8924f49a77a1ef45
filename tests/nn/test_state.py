"""State of the head: state dicts, copies, casts, and outdated biases."""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")

from torch.optim.swa_utils import AveragedModel

from compshift import InputError
from compshift.nn import AdditiveEnergyHead
from tests.nn.heads import noisy_case


def test_a_state_dict_is_enough_to_predict(tmp_path):
    _, head, _ = noisy_case()
    features = torch.randn(6, 4)
    head.extrapolate([features])
    torch.save(head.state_dict(), tmp_path / "head.pt")
    other = AdditiveEnergyHead(4, [2, 3], hidden=5)
    other.load_state_dict(torch.load(tmp_path / "head.pt", weights_only=True))
    assert torch.equal(other.log_prob(features), head.log_prob(features))
    assert torch.equal(other.marginal_log_prob(features, 1, "train"), head.marginal_log_prob(features, 1, "train"))
    assert other.loss(features[:1], [[1, 2]]).item() == head.loss(features[:1], [[1, 2]]).item()


def test_other_training_groups_need_new_biases():
    _, head, _ = noisy_case()
    features = torch.randn(6, 4)
    head.extrapolate([features])
    head.set_train_groups([[0, 0], [1, 1], [1, 2]], [5, 1, 1])
    with pytest.raises(InputError, match="the bias was not computed yet: call extrapolate"):
        head.log_prob(features)
    head.extrapolate([features])
    assert torch.isfinite(head.log_prob(features)).all()


def test_casting_keeps_buffers_in_64_bits():
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


def test_the_loss_is_differentiable_once():
    """A penalty on the gradient would be silently wrong, so it raises."""
    head = AdditiveEnergyHead(3, [2, 2])
    head.set_train_groups([[0, 0], [1, 1]], [1, 1])
    with torch.no_grad():
        head.layers[0].weight.normal_()
    X = torch.randn(2, 3, requires_grad=True)
    with pytest.raises(RuntimeError, match="differentiable once"):
        torch.autograd.grad(head.loss(X, [[0, 0], [1, 1]]), X, create_graph=True)


def test_a_failed_move_leaves_the_head_unchanged():
    _, head, _ = noisy_case()
    names = set(head.state_dict())

    def broken(_):
        raise RuntimeError("no such device")

    with pytest.raises(RuntimeError, match="no such device"):
        head._apply(broken)
    assert set(head.state_dict()) == names


def test_outdated_biases_warn():
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
    with pytest.warns(UserWarning, match="trained further since extrapolate"):
        copy.deepcopy(head).log_prob(features)
    with pytest.warns(UserWarning, match="trained further since extrapolate"):
        head.to("cpu").log_prob(features)
    head.load_state_dict(other.state_dict())
    head.log_prob(features)


@pytest.mark.parametrize(
    "same",
    [
        copy.deepcopy,
        lambda head: pickle.loads(pickle.dumps(head)),
        lambda head: head.to("cpu").double(),
        lambda head: _loaded(head.state_dict()),
        lambda head: AveragedModel(head).module,
    ],
    ids=["copied", "pickled", "moved", "loaded", "averaged"],
)
def test_outdated_biases_warn_after_copies_moves_and_loads(same):
    _, head, _ = noisy_case()
    features = torch.randn(4, 4)
    head.extrapolate([features])
    other = same(head)
    other.log_prob(features)
    with torch.no_grad():
        next(other.layers.parameters()).mul_(2)
    with pytest.warns(UserWarning, match="trained further since extrapolate"):
        other.log_prob(features)
    other.extrapolate([features])
    other.log_prob(features)


def _loaded(state):
    head = AdditiveEnergyHead(4, [2, 3], hidden=5)
    head.load_state_dict(state)
    return head


def test_heads_made_in_inference_mode_predict():
    _, head, _ = noisy_case()
    features = torch.randn(4, 4)
    head.extrapolate([features])
    with torch.inference_mode():
        assert torch.equal(_loaded(head.state_dict()).log_prob(features), head.log_prob(features))


def test_loading_a_state_of_other_groups_raises():
    groups = [[0, 0], [0, 1], [1, 1]]
    head = AdditiveEnergyHead(5, [2, 2], groups=groups)
    AdditiveEnergyHead(5, [2, 2], groups=groups[::-1]).load_state_dict(head.state_dict())
    other = AdditiveEnergyHead(5, [2, 2], groups=[[0, 0], [1, 0], [1, 1]])
    with pytest.raises(InputError, match="the state belongs to a head with other groups"):
        other.load_state_dict(head.state_dict())
    earlier = {name: part for name, part in head.state_dict().items() if name != "_extra_state"}
    other.load_state_dict(earlier)  # states of older releases hold no digest of the groups


def test_forward_with_codes_is_the_loss():
    _, head, _ = noisy_case()
    features = torch.randn(2, 4)
    assert head(features, [[0, 0], [1, 2]]).item() == head.loss(features, [[0, 0], [1, 2]]).item()
