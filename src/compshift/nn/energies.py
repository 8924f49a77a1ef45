"""Networks that give the energies of an attribute's values."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from torch import nn

from compshift._checks import check_count, check_list
from compshift._errors import InputError, rough

MAX_WEIGHTS = 1 << 38
"""More weights than this, a terabyte of them, are never made."""


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
    sizes = [in_features, *(check_count(width, "hidden") for width in widths)]
    count = len(cardinalities) * sum(a * b for a, b in pairwise(sizes)) + sizes[-1] * sum(cardinalities)
    if count > MAX_WEIGHTS:
        raise InputError(
            f"the head would have {rough(count)} weights, more than a machine can hold: choose fewer in_features "
            f"({in_features!r}), narrower hidden layers ({hidden!r}) or attributes of fewer values"
        )
    return nn.ModuleList(_network(sizes, cardinality) for cardinality in cardinalities)


def _network(sizes: Sequence[int], out_features: int) -> nn.Module:
    layers: list[nn.Module] = [layer for size in pairwise(sizes) for layer in (nn.Linear(*size), nn.ReLU())]
    last = nn.Linear(sizes[-1], out_features, bias=False)
    nn.init.zeros_(last.weight)
    return nn.Sequential(*layers, last) if layers else last
