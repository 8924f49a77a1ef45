"""Networks that give the energies of an attribute's values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn

from compshift._checks import check_count, check_list


def energy_layers(
    in_features: int, cardinalities: Sequence[int], hidden: int | Sequence[int] | None = None
) -> nn.ModuleList:
    """One network per attribute, linear or with hidden layers; the last layer is zero and has no intercept.

    An intercept would be one number per value, which the bias of the groups takes in. Energies that start at zero are
    nearer to their optimum than random ones, which few steps never forget.
    """
    widths: list[Any] = []
    if hidden is not None:
        widths = [hidden] if np.ndim(hidden) == 0 else check_list(hidden, "hidden", "widths of layers")
    return nn.ModuleList(_network(in_features, widths, cardinality) for cardinality in cardinalities)


def _network(in_features: int, widths: Sequence[int], out_features: int) -> nn.Module:
    layers: list[nn.Module] = []
    for width in widths:
        out = check_count(width, "hidden")
        layers += [nn.Linear(in_features, out), nn.ReLU()]
        in_features = out
    last = nn.Linear(in_features, out_features, bias=False)
    nn.init.zeros_(last.weight)
    return nn.Sequential(*layers, last) if layers else last
