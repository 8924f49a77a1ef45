"""Heads with random weights, and a backbone whose features depend on the whole batch in train mode."""

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn

from compshift.nn import AdditiveEnergyHead


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


class Noisy(nn.Module):
    """Backbone with batch normalisation and dropout: in train mode, features depend on the whole batch."""

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
        backbone(torch.randn(50, 3) * 2 + 1)  # sets the running statistics
        head = AdditiveEnergyHead(4, [2, 3], hidden=5)
        head.set_train_groups([[0, 0], [0, 1], [1, 1], [1, 2]], [10, 5, 8, 14])
        with torch.no_grad():
            for parameter in head.parameters():
                parameter.copy_(torch.randn(parameter.shape))
        return backbone, head, torch.randn(37, 3)
