"""What callers pass where tensors are expected."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from compshift._checks import check_same_rows
from compshift._errors import InputError, an


def as_tensor(values: Any, name: str, expected: str, device: Any = None) -> Tensor:
    """A tensor on a device; ``expected`` ends the sentence for what cannot be one."""
    try:
        return torch.as_tensor(values, device=device)
    except (TypeError, ValueError, RuntimeError, KeyError):
        raise InputError(f"{name} cannot be made a tensor ({an(type(values).__name__)}): {expected}") from None


def check_features(features: Any, n_features: int, device: torch.device) -> None:
    """Refuse anything but real features (n, p) on the device where they are used."""
    if not isinstance(features, Tensor):
        raise InputError(f"features are {an(type(features).__name__)}: pass a tensor (n, {n_features})")
    if features.ndim != 2 or features.shape[1] != n_features:
        raise InputError(
            f"features have shape {tuple(features.shape)}: pass (n, {n_features}), what the backbone gives"
        )
    if features.device != device:
        raise InputError(f"features are on {features.device} and the head on {device}: move one to the other by .to()")
    if features.is_complex() or features.layout != torch.strided:
        raise InputError(f"features are {features.dtype}, {features.layout}: pass real numbers in a dense tensor")


def row_weights(sample_weight: Any, n_rows: int, device: torch.device) -> Tensor:
    """Weights (n,) of n rows: finite, none negative."""
    weight = as_tensor(sample_weight, "sample_weight", "pass one number per row", device)
    check_same_rows(n_rows, weight, "sample_weight", "features")
    if weight.ndim != 1 or weight.is_complex():
        raise InputError(f"sample_weight is {weight.dtype} of shape {tuple(weight.shape)}: pass one number per row")
    if not bool((torch.isfinite(weight) & (weight >= 0)).all()):
        raise InputError("sample_weight has entries that are negative or not finite: weights must be 0 or more")
    return weight
