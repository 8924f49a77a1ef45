"""Weight decay, and the gradient that decides convergence."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")

from torch import nn

from compshift.nn import AdditiveEnergyHead
from compshift.training import Settings
from compshift.training.optimiser import largest_gradient, make_optimiser, parameter_groups


def test_weight_decay_leaves_out_biases_and_normalisation():
    model = nn.ModuleDict({"body": nn.Linear(3, 4), "norm": nn.LayerNorm(4), "head": AdditiveEnergyHead(4, [2, 2])})
    decayed, spared = parameter_groups(model, 0.1)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert {names[id(p)] for p in decayed["params"]} == {
        "body.weight", "head.layers.0.weight", "head.layers.1.weight"
    }  # fmt: skip
    assert {names[id(p)] for p in spared["params"]} == {"body.bias", "norm.weight", "norm.bias", "head.learned_bias"}
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)
    for kind, expected in (("text", torch.optim.AdamW), ("images", torch.optim.SGD)):
        optimiser = make_optimiser(model, Settings(weight_decay=0.1).resolved(kind, pretrained=True))
        assert type(optimiser) is expected
        assert [group["weight_decay"] for group in optimiser.param_groups] == [0.1, 0.0]


@pytest.mark.parametrize(
    ("decay", "decayed"),
    [
        ("all", {"body.weight", "body.bias", "norm.weight", "norm.bias", "head.layers.0.weight", "head.learned_bias"}),
        ("vectors", {"body.bias", "norm.weight", "norm.bias"}),
        ("matrices", {"body.weight", "head.layers.0.weight"}),
    ],
)
def test_weight_decay_of_other_parameters(decay, decayed):
    model = nn.ModuleDict({"body": nn.Linear(3, 4), "norm": nn.LayerNorm(4), "head": AdditiveEnergyHead(4, [2])})
    optimiser = make_optimiser(model, Settings(weight_decay=0.1, decay=decay).resolved("images", pretrained=True))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {names[id(p)]: group["weight_decay"] for group in optimiser.param_groups for p in group["params"]}
    assert found == {name: 0.1 if name in decayed else 0.0 for name in names.values()}


def test_the_largest_gradient_includes_weight_decay():
    model = torch.nn.Linear(3, 2)
    settings = Settings(optimiser="sgd", learning_rate=0.1, weight_decay=0.5).resolved("features", pretrained=False)
    optimiser = make_optimiser(model, settings)
    (model(torch.ones(4, 3)) ** 2).sum().backward()
    expected = max(
        float((model.weight.grad + 0.5 * model.weight.detach()).abs().max()), float(model.bias.grad.abs().max())
    )
    assert largest_gradient(optimiser) == pytest.approx(expected)
