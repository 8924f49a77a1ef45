"""
The head in a PyTorch loop of your own
======================================

``AdditiveEnergyHead`` takes the place of the last layer of any network. Its loss is a cross-entropy over the groups
that training has; after the last step one pass over the training data gives the bias of every other group.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import compshift as cs

torch.manual_seed(0)
rng = np.random.default_rng(0)
mixing = rng.normal(size=(4, 20)) / 2


def rows(groups, n):
    """Twenty features that are not linear in what bird (first code) and place (second) do."""
    z = np.array(groups)[rng.integers(len(groups), size=n)]
    hidden = rng.normal(size=(n, 4)) + np.outer(z[:, 0], [2, 1, 0, 1]) + np.outer(z[:, 1], [1, 2, 1, 0])
    return torch.tensor(np.tanh(hidden @ mixing), dtype=torch.float32), torch.tensor(z)


seen = [(0, 0), (0, 1), (1, 1)]
X, codes = rows(seen, 3000)
X_new, codes_new = rows([*seen, (1, 0)], 4000)
loader = DataLoader(TensorDataset(X, codes), batch_size=128, shuffle=True)

# %%
# The loop
# --------
# Everything in it is plain PyTorch. ``set_train_groups`` counts the groups once, before the first step.


def train(backbone, head, loss, epochs=15):
    """Train by Adam; the loss of each epoch."""
    optimiser = torch.optim.Adam([*backbone.parameters(), *head.parameters()], lr=3e-3, weight_decay=1e-4)
    history = []
    for _ in range(epochs):
        total = 0.0
        for x, z in loader:
            optimiser.zero_grad()
            value = loss(backbone(x), z)
            value.backward()
            optimiser.step()
            total += value.item() * len(x)
        history.append(total / len(X))
    backbone.eval()
    return history


def network():
    """Any network that gives features."""
    return torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU())


plain, last_layer = network(), torch.nn.Linear(64, 2)
train(plain, last_layer, lambda features, z: cross_entropy(last_layer(features), z[:, 0]))

backbone, head = network(), cs.nn.AdditiveEnergyHead(in_features=64, cardinalities=[2, 2])
head.set_train_groups(loader)
train(backbone, head, head.loss)
head.extrapolate(loader, backbone)

with torch.no_grad():
    predicted = {
        "cross-entropy": last_layer(plain(X_new)).argmax(dim=1),
        "CRM head": head.marginal_log_prob(backbone(X_new), attribute=0).argmax(dim=1),
    }
reports = {name: cs.metrics.group_report(codes_new[:, 0], found, codes_new[:, 1]) for name, found in predicted.items()}
for name, report in reports.items():
    print(name, report, sep="\n")
print(head.effective_sample_size, head.bias_gap)
