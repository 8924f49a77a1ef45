"""What a head is given: groups, loaders and batches, and the sentences that bad input gets."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from compshift import GroupSpace, InputError
from compshift.nn import AdditiveEnergyHead


def test_groups_straight_from_a_loader():
    codes = torch.tensor([[0, 0], [1, 1], [1, 1], [0, 1], [1, 1]])
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(5, 3), codes), batch_size=2)
    head = AdditiveEnergyHead(3, [2, 2])
    head.set_train_groups(loader)
    assert head.group_weight.tolist() == [1, 1, 0, 3]
    head.extrapolate(loader)
    assert head.bias.shape == (4,)


def test_the_loss_of_many_groups_is_that_over_the_seen_ones():
    head = AdditiveEnergyHead(3, [2] * 16)
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2, size=(50, 16))  # all different
    head.set_train_groups(codes)
    X = torch.as_tensor(rng.normal(size=(50, 3)), dtype=torch.float32)
    with torch.no_grad():
        for layer in head.layers:
            layer.weight.copy_(torch.as_tensor(rng.normal(size=layer.weight.shape)))
    energies = [layer(X).detach().double().numpy() for layer in head.layers]
    logits = -sum(part[:, codes[:, attribute]] for attribute, part in enumerate(energies))  # (n, k)
    expected = -(np.diag(logits) - np.log(np.exp(logits).sum(axis=1))).mean()
    assert head.loss(X, codes).item() == pytest.approx(expected, rel=1e-5)


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
    with pytest.raises(InputError, match="pass groups with the codes"):
        AdditiveEnergyHead(3, [6] * 15)


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
    with pytest.raises(InputError, match="cardinalities is 2: pass a list of whole numbers, one for each attribute"):
        AdditiveEnergyHead(3, 2)
    with pytest.raises(InputError, match=r"features have shape \(2, 5\): pass \(n, 3\)"):
        head(torch.randn(2, 5))
    with pytest.raises(InputError, match="does not end in integer codes"):
        head.set_train_groups([(torch.zeros(2, 2, dtype=torch.long), torch.randn(2, 3))])
    with pytest.raises(InputError, match="codes is empty"):
        head.set_train_groups(np.zeros((0, 2), dtype=int))


def test_an_empty_batch():
    head = AdditiveEnergyHead(3, [2, 2])
    head.set_train_groups([[0, 0], [0, 1], [1, 1]])
    features, codes = torch.zeros(0, 3), torch.zeros(0, 2, dtype=torch.int64)
    with pytest.raises(InputError, match="features has no rows to average over: pass at least one"):
        head.loss(features, codes)
    assert head.loss(features, codes, reduction="sum").item() == 0
