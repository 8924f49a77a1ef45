"""Inputs of the head: groups, loaders, batches and weights, and the errors for bad input."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn

from compshift import GroupSpace, InputError
from compshift.nn import AdditiveEnergyHead


def test_train_groups_from_a_loader():
    codes = torch.tensor([[0, 0], [1, 1], [1, 1], [0, 1], [1, 1]])
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(5, 3), codes), batch_size=2)
    head = AdditiveEnergyHead(3, [2, 2])
    head.set_train_groups(loader)
    assert head.group_weight.tolist() == [1, 1, 0, 3]
    head.extrapolate(loader)
    assert head.bias.shape == (4,)


def test_the_loss_of_many_groups_is_a_softmax_over_seen_groups():
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


def test_listed_candidate_groups():
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


def test_bad_input_raises_a_clear_error():
    head = AdditiveEnergyHead(3, GroupSpace(("bird", "place"), (("land", "water"), ("forest", "sea"))))
    X = torch.randn(2, 3)
    with pytest.raises(InputError, match="call set_train_groups first"):
        head.loss(X, [[0, 0], [0, 1]])
    head.set_train_groups([[0, 0], [0, 1]], [1, 2])
    with pytest.raises(InputError, match=r"row 1 belongs to the group \(water, sea\), which is not a training group"):
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
    with pytest.raises(InputError, match="batches has no rows"):
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
    with pytest.raises(InputError, match="cardinalities is 2: pass a list of integers, one for each attribute"):
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


CODES = torch.cartesian_prod(torch.arange(3), torch.arange(3)).repeat(3, 1)


FEATURES = torch.randn(27, 4, generator=torch.Generator().manual_seed(0))


WEIGHT = torch.linspace(0.5, 1.5, 27, dtype=torch.float64)


DOUBLES = {"dtype": torch.float64}


def new_head():
    head = AdditiveEnergyHead(4, [3, 3])
    head.set_train_groups(CODES)
    with torch.no_grad():
        for layer in head.layers:
            layer.weight.copy_(torch.linspace(-1, 1, 12).reshape(3, 4))
    return head


def with_entry(values, entry):
    values = values.clone()
    values.view(-1)[1] = entry
    return values


@pytest.mark.parametrize(
    ("weight", "sentence"),
    [
        (with_entry(WEIGHT, math.nan), "weight has entries that are negative, not finite"),
        (with_entry(WEIGHT, math.inf), "weight has entries that are negative, not finite"),
        (with_entry(WEIGHT, -1.0), "weight has entries that are negative, not finite"),
        (torch.full((27,), 1e308, **DOUBLES), "too large or too small to add up: divide the weights by their mean"),
        (torch.full((27,), 5e-324, **DOUBLES), "too large or too small to add up: divide the weights by their mean"),
        (torch.zeros(27), "none with a weight above 0"),
        (torch.ones(1), "weight has 1 rows but features has 27"),
        (WEIGHT[:-1], "weight has 26 rows but features has 27"),
        (WEIGHT[:, None], r"weight is torch.float64 of shape \(27, 1\): pass one number per row"),
        (torch.tensor(2.0), r"weight is torch.float32 of shape \(\): pass one number per row"),
        (WEIGHT.to_sparse(), "weight is a sparse tensor"),
        (None, "weight cannot be converted to a tensor"),
    ],
)
def test_bad_row_weights_raise(weight, sentence):
    head = new_head()
    with pytest.raises(InputError, match=sentence):
        head.extrapolate([(FEATURES, weight)], weighted=True)
    assert torch.isnan(head.bias).all()


@pytest.mark.parametrize("scale", [1e-290, 1e290])
def test_the_scale_of_weights_changes_nothing(scale):
    expected, found = new_head(), new_head()
    expected.extrapolate([(FEATURES, WEIGHT)], weighted=True)
    found.extrapolate([(FEATURES, torch.zeros(27)), (FEATURES, WEIGHT * scale)], weighted=True)
    torch.testing.assert_close(found.bias, expected.bias)
    torch.testing.assert_close(found.mean_energy, expected.mean_energy)


@pytest.mark.parametrize("batch", [FEATURES, (FEATURES,), []])
def test_batches_without_weights_raise(batch):
    with pytest.raises(InputError, match="with weighted=True, pass tuples"):
        new_head().extrapolate([batch], weighted=True)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"batches": [()]}, r"a batch is \(\), which is empty"),
        ({"backbone": "resnet"}, "backbone is 'resnet': pass a module or a function"),
        ({"backbone": nn.Linear(7, 4)}, r"the backbone failed on a batch of shape \(27, 4\) \(RuntimeError: mat1 and"),
        ({"batches": [{"x": FEATURES}], "backbone": nn.Linear(4, 4)}, "unexpected keyword argument 'x'"),
        ({"batches": [FEATURES.to("meta")]}, "a batch is on the device meta"),
        ({"weighted": "no"}, "weighted is 'no'"),
        ({"processes": 3}, "processes is 3"),
    ],
)
def test_bad_arguments_of_extrapolate_raise(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        new_head().extrapolate(**{"batches": [FEATURES], **arguments})


def test_a_function_can_be_the_backbone():
    head, expected = new_head(), new_head()
    head.extrapolate([FEATURES], lambda features: 2 * features)
    expected.extrapolate([2 * FEATURES])
    torch.testing.assert_close(head.bias, expected.bias)


@pytest.mark.parametrize(
    ("codes", "sentence"),
    [
        (None, "codes is None: pass the codes of all training rows"),
        (5, "codes is 5: pass the codes of all training rows"),
        ([()], r"codes has shape \(1, 0\)"),
        (iter([()]), "does not end in integer codes"),
        ([(FEATURES, CODES), (FEATURES, CODES[:, :1])], r"integer codes \(b, 2\) but in int64 \(27, 1\)"),
    ],
)
def test_bad_codes_raise(codes, sentence):
    with pytest.raises(InputError, match=sentence):
        new_head().set_train_groups(codes)


@pytest.mark.parametrize("code", [[-1, 0], [0, -1], [9, 0], [0, 9]])
def test_codes_without_a_value_raise_in_the_loss(code):
    with pytest.raises(InputError, match="codes"):
        new_head().loss(FEATURES[:2], [[0, 0], code])


UNREADABLE = {
    "sparse": lambda values: values.to_sparse(),
    "meta": lambda values: values.to("meta"),
    "quantized": lambda values: torch.quantize_per_tensor(values.float(), 1.0, 0, torch.qint8),
    "nested": lambda values: torch.nested.as_nested_tensor([values]),
}


@pytest.mark.filterwarnings("ignore")  # PyTorch warns that such tensors are prototypes
@pytest.mark.parametrize("kind", UNREADABLE)
def test_sparse_nested_quantized_and_meta_tensors_raise(kind):
    head = new_head()
    head.extrapolate([FEATURES])
    change = UNREADABLE[kind]
    codes, features, ones = change(CODES), change(FEATURES), change(torch.ones(27))
    calls = [
        lambda: head.set_train_groups(codes),
        lambda: head.set_train_groups(CODES, ones),
        lambda: head.loss(FEATURES, codes),
        lambda: head.loss(features, CODES),
        lambda: head.loss(FEATURES, CODES, sample_weight=ones),
        lambda: head.log_prob(features),
        lambda: head.log_prob(FEATURES, codes=codes),
        lambda: head.log_prob(FEATURES, change(torch.full((9,), 1 / 9))),
        lambda: head.marginal_log_prob(features),
        lambda: head.extrapolate([features]),
        lambda: head.extrapolate([(FEATURES, ones)], weighted=True),
    ]
    for call in calls:
        with pytest.raises(InputError, match=f"{kind}.*: pass"):
            call()


def test_inputs_of_low_precision():
    head = new_head()
    head.set_train_groups(CODES[:9], torch.ones(9).bfloat16())
    assert head.group_weight.tolist() == [1] * 9
    head.extrapolate([FEATURES])
    first = (torch.arange(9) == 0).bfloat16()
    assert head.log_prob(FEATURES, first)[:, 0].tolist() == pytest.approx([0] * 27, abs=1e-5)
    head.loss(FEATURES, CODES, sample_weight=torch.ones(27).bfloat16())


def test_a_head_on_the_meta_device_gives_shapes():
    assert new_head().to("meta")(FEATURES.to("meta")).shape == (27, 6)


def test_sample_weights_that_overflow_raise():
    head = new_head()
    with pytest.raises(InputError, match=r"too large for torch\.float32"):
        head.loss(FEATURES, CODES, sample_weight=torch.full((27,), 1e300, **DOUBLES))
    with pytest.raises(InputError, match="too large to add up"):
        head.loss(FEATURES, CODES, sample_weight=torch.full((27,), 1e38))


@pytest.mark.parametrize("entry", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize(
    ("name", "bias", "sentence"),
    [
        ("bias", "extrapolated", "the extrapolated bias is NaN or infinite|call extrapolate"),
        ("learned_bias", "learned", "the learned bias is NaN or infinite"),
        ("group_weight", "extrapolated", "group_weight is negative, NaN or infinite"),
        ("layers.0.weight", "extrapolated", "energies are NaN or infinite"),
    ],
)
def test_a_damaged_state_raises_on_prediction(name, bias, sentence, entry):
    trained, loaded = new_head(), new_head()
    trained.extrapolate([FEATURES])
    state = trained.state_dict()
    loaded.load_state_dict({**state, name: with_entry(state[name], entry)})
    for predict in (loaded.marginal_log_prob, loaded.log_prob):
        with pytest.raises(InputError, match=sentence):
            predict(FEATURES, bias=bias)
    if name != "bias":
        with pytest.raises(InputError, match=sentence):
            loaded.extrapolate([FEATURES])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((4, [2**40, 2]), "cardinalities add up to 1.1e[+]12, too many values to hold"),
        ((10**15, [2, 2]), "the head would have 4e[+]15 weights"),
        ((10**30, [2, 2]), "in_features is 1e[+]30: pass an integer up to 9223372036854775807"),
        ((4, [2, 2], 10**15), "the head would have 1.2e[+]16 weights"),
        ((4, [2, 2], [10**9, 10**9]), "the head would have 2e[+]18 weights"),
        ((4, np.full(2000, 2)), "the attributes have 1e[+]602 combinations"),
    ],
)
def test_sizes_beyond_any_memory_raise(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        AdditiveEnergyHead(*arguments)
