"""Small data, short settings and a backbone with dropout and batch normalisation, for tests of training."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")

from torch import nn

import compshift as cs
from compshift import GroupSpace
from compshift.data.dataset import GroupedDataset
from compshift.nn.backbones import Backbone
from compshift.training import Settings
from compshift.training.progress import Listener

QUICK = Settings(steps=12, batch_size=16, eval_every=4, learning_rate=0.1, seed=3)


def gaussians(n=60, seed=0, drop=(1, 0)):
    """Data with two attributes that each shift the features; the group ``drop`` is left out of training."""
    rng = np.random.default_rng(seed)
    codes = np.repeat([[0, 0], [0, 1], [1, 0], [1, 1]], [3 * n, n, n, 2 * n], axis=0)
    X = rng.normal(size=(len(codes), 5)) + codes[:, :1] * [2, 0, 1, 0, 0] + codes[:, 1:] * [0, 2, 1, 0, 0]
    split = rng.integers(0, 3, size=len(codes))
    space = GroupSpace(("bird", "place"), (("land", "water"), ("forest", "sea")))
    data = GroupedDataset(X, space, codes, split)
    if drop is not None:
        (scenario,) = cs.data.scenarios(data, [drop])
        data = scenario.apply(data)
    return data


class Interrupt(Listener):
    """Interrupts a run after the step ``after``."""

    def __init__(self, after):
        self.after = after

    def stepped(self, step, loss):  # noqa: ARG002
        if step == self.after:
            raise KeyboardInterrupt


class Wobbly(Backbone):
    """Custom backbone with dropout and batch normalisation."""

    name, kind, pretrained, out_features = "wobbly", "features", False, 6

    def __init__(self, seed=0, dropout=0.5):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.layers = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(dropout))

    def forward(self, features):
        return self.layers(features)

    def settings(self):
        return {}


def weights(clf):
    return {name: tensor.clone() for name, tensor in clf.model.state_dict().items()}


def assert_same(first, second, tolerance=0.0):
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_allclose(first[name], second[name], atol=tolerance, rtol=tolerance, err_msg=name)
