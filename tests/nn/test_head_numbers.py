"""Weights, tensors, states and sizes that a head cannot use, each with its sentence."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn

from compshift import InputError
from compshift.nn import AdditiveEnergyHead

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
        (None, "weight cannot be made a tensor"),
    ],
)
def test_weights_of_rows_that_cannot_be_used(weight, sentence):
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
def test_batches_without_weights(batch):
    with pytest.raises(InputError, match="with weighted=True, pass tuples"):
        new_head().extrapolate([batch], weighted=True)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"batches": [()]}, r"a batch is \(\), which has no parts"),
        ({"backbone": "resnet"}, "backbone is 'resnet': pass a module or a function"),
        ({"backbone": nn.Linear(7, 4)}, r"the backbone failed on a batch of shape \(27, 4\) \(RuntimeError: mat1 and"),
        ({"batches": [{"x": FEATURES}], "backbone": nn.Linear(4, 4)}, "unexpected keyword argument 'x'"),
        ({"batches": [FEATURES.to("meta")]}, "a batch is on the device meta"),
        ({"weighted": "no"}, "weighted is 'no'"),
        ({"processes": 3}, "processes is 3"),
    ],
)
def test_arguments_of_extrapolate(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        new_head().extrapolate(**{"batches": [FEATURES], **arguments})


def test_a_function_is_a_backbone():
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
def test_codes_that_are_none(codes, sentence):
    with pytest.raises(InputError, match=sentence):
        new_head().set_train_groups(codes)


UNREADABLE = {
    "sparse": lambda values: values.to_sparse(),
    "meta": lambda values: values.to("meta"),
    "quantized": lambda values: torch.quantize_per_tensor(values.float(), 1.0, 0, torch.qint8),
    "nested": lambda values: torch.nested.as_nested_tensor([values]),
}


@pytest.mark.filterwarnings("ignore")  # that such tensors are prototypes
@pytest.mark.parametrize("kind", UNREADABLE)
def test_tensors_without_one_number_per_entry(kind):
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


def test_numbers_of_few_bits():
    head = new_head()
    head.set_train_groups(CODES[:9], torch.ones(9).bfloat16())
    assert head.group_weight.tolist() == [1] * 9
    head.extrapolate([FEATURES])
    first = (torch.arange(9) == 0).bfloat16()
    assert head.log_prob(FEATURES, first)[:, 0].tolist() == pytest.approx([0] * 27, abs=1e-5)
    head.loss(FEATURES, CODES, sample_weight=torch.ones(27).bfloat16())


def test_a_head_without_content_gives_shapes():
    assert new_head().to("meta")(FEATURES.to("meta")).shape == (27, 6)


def test_weights_of_the_loss_that_overflow():
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
def test_a_damaged_state_does_not_predict(name, bias, sentence, entry):
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
        ((10**30, [2, 2]), "in_features is 1e[+]30: pass a whole number that a machine can count to"),
        ((4, [2, 2], 10**15), "the head would have 1.2e[+]16 weights"),
        ((4, [2, 2], [10**9, 10**9]), "the head would have 2e[+]18 weights"),
        ((4, np.full(2000, 2)), "the attributes have 1e[+]602 combinations"),
    ],
)
def test_sizes_that_no_machine_holds(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        AdditiveEnergyHead(*arguments)
