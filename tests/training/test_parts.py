"""Sampling, schedules, optimisers, settings."""

import json
from decimal import Decimal

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from compshift import InputError
from compshift.methods.base import Sampling
from compshift.nn import AdditiveEnergyHead
from compshift.training import Settings
from compshift.training.batches import Sampler
from compshift.training.optimiser import make_optimiser, parameter_groups


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 5))
def test_shuffled_batches_pass_over_all_rows(n, batch_size, seed):
    sampler = Sampler.of(np.zeros(n, dtype=np.int64), Sampling(), batch_size, seed)
    steps = -(-3 * n // batch_size)
    rows = np.concatenate([sampler.batch(step) for step in range(steps)])
    for start in range(0, 3 * n, n):
        assert sorted(rows[start : start + n].tolist()) == list(range(n))
    np.testing.assert_array_equal(sampler.batch(steps - 1), rows[(steps - 1) * batch_size :])  # by the step alone


def test_passes_differ():
    sampler = Sampler.of(np.zeros(50, dtype=np.int64), Sampling(), 25, 0)
    assert not np.array_equal(sampler.batch(0), sampler.batch(2))
    assert not np.array_equal(sampler.batch(0), Sampler.of(np.zeros(50, dtype=np.int64), Sampling(), 25, 1).batch(0))


def test_a_full_batch_is_the_same_in_every_step():
    sampler = Sampler.of(np.zeros(50, dtype=np.int64), Sampling(), 50, 0)
    np.testing.assert_array_equal(sampler.batch(0), sampler.batch(7))
    assert sorted(sampler.batch(0).tolist()) == list(range(50))


def test_weighted_draws_follow_the_weights():
    group = np.repeat([0, 1, 2], [80, 15, 5])
    sampler = Sampler.of(group, Sampling(weight=1 / np.bincount(group)), 64, 0)
    drawn = np.bincount(group[np.concatenate([sampler.batch(step) for step in range(200)])])
    np.testing.assert_allclose(drawn / drawn.sum(), 1 / 3, atol=0.02)
    np.testing.assert_allclose(sampler.group_weight(group, 3), 100 / 3)


def test_a_row_of_weight_zero_is_never_drawn():
    group = np.repeat([0, 1], [3, 3])
    sampler = Sampler.of(group, Sampling(weight=np.array([1.0, 0.0])), 64, 0)
    assert max(sampler.batch(step).max() for step in range(50)) == 2


def test_groups_are_cut_to_a_limit():
    group = np.repeat([0, 1, 2], [80, 15, 5])
    sampler = Sampler.of(group, Sampling(limit=5), 10, 0)
    assert np.bincount(group[sampler.rows]).tolist() == [5, 5, 5]
    assert len(np.unique(sampler.rows)) == 15


def test_rates_rise_and_fall():
    linear = Settings(steps=10, warmup=4, learning_rate=1.0, schedule="linear").resolved("text", pretrained=True)
    np.testing.assert_allclose([linear.rate(step) for step in (0, 1, 3, 4, 7, 9)], [0.25, 0.5, 1, 1, 0.5, 1 / 6])
    constant = Settings(steps=10, learning_rate=1.0).resolved("images", pretrained=True)
    assert [constant.rate(step) for step in (0, 9)] == [1.0, 1.0]


def test_the_papers_optimisers():
    images = Settings().resolved("images", pretrained=True)
    assert (images.optimiser, images.schedule, images.warmup, images.learning_rate) == ("sgd", "constant", 0, 1e-3)
    text = Settings(steps=200).resolved("text", pretrained=True)
    assert (text.optimiser, text.schedule, text.warmup, text.learning_rate) == ("adamw", "linear", 20, 2e-5)
    assert Settings().resolved("features", pretrained=False).learning_rate == 0.05
    given = Settings(optimiser="sgd", learning_rate=0.3).resolved("text", pretrained=True)
    assert (given.optimiser, given.learning_rate, given.schedule) == ("sgd", 0.3, "constant")


def test_weight_decay_spares_biases_norms_and_the_biases_of_groups():
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
    ("name", "value", "sentence"),
    [
        ("steps", 0, "steps is 0: pass a whole number"),
        ("batch_size", 2.5, "batch_size is 2.5: pass a whole number"),
        ("learning_rate", -1.0, "learning_rate is -1.0: pass a finite number above 0"),
        ("weight_decay", -1.0, "weight_decay is -1.0"),
        ("momentum", 1.0, "momentum is 1.0: pass a number below 1"),
        ("warmup", 2000, "warmup is 2000: pass a whole number from 0 to 1000"),
        ("warmup", True, "warmup is True: pass a whole number from 0 to 1000"),
        ("learning_rate", 1e308, r"learning_rate is 1e\+308: pass a finite number above 0, up to 1e\+18"),
        ("weight_decay", 1e308, r"weight_decay is 1e\+308: pass a finite number 0 or more, up to 1e\+18"),
        ("patience", -1, "patience is -1"),
        ("optimiser", "adam", "optimiser 'adam' is not known: use one of 'auto', 'sgd', 'adamw'"),
        ("metric", "f1", "metric 'f1' is not known"),
        ("precision", "int8", "precision 'int8' is not known"),
    ],
)
def test_settings_are_checked(name, value, sentence):
    with pytest.raises(InputError, match=sentence):
        Settings(**{name: value})


def test_settings_as_data():
    settings = Settings(steps=5, learning_rate=0.1)
    assert Settings.from_dict(settings.to_dict()) == settings
    assert json.dumps(Settings(steps=5, learning_rate=Decimal("0.1")).to_dict()) == json.dumps(settings.to_dict())
    with pytest.raises(InputError, match="setting 'step' is not known"):
        Settings.from_dict({"step": 5})
