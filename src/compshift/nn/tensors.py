"""What callers pass where tensors are expected.

Training and eval mode of modules.

The precision of numbers, whatever a head is cast to and whatever surrounds it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from compshift._checks import check_same_rows
from compshift._errors import InputError, an


def check_content(values: Tensor, name: str, device: torch.device | None = None) -> None:
    """Refuse tensors on the device meta, unless that is where they are used."""
    if values.is_meta and (device is None or device.type != "meta"):
        raise InputError(f"{name} is on the device meta, where tensors have no content: pass one that has")


def check_readable(values: Tensor, name: str, device: torch.device | None = None) -> None:
    """Refuse tensors that do not hold one number per entry."""
    if values.is_nested:
        raise InputError(f"{name} is a nested tensor: pass a dense one, with rows of one length")
    if values.is_quantized:
        raise InputError(f"{name} is a quantized tensor ({values.dtype}): pass numbers, such as those of .dequantize()")
    if values.layout != torch.strided:
        raise InputError(f"{name} is a sparse tensor ({values.layout}): pass a dense one, such as that of .to_dense()")
    check_content(values, name, device)


def as_tensor(values: Any, name: str, expected: str, device: torch.device) -> Tensor:
    """A tensor on a device; ``expected`` ends the sentence for what cannot be one."""
    if isinstance(values, Tensor):
        check_content(values, name, device)
    try:
        return torch.as_tensor(values, device=device)
    except (TypeError, ValueError, RuntimeError, KeyError):
        raise InputError(f"{name} cannot be made a tensor ({an(type(values).__name__)}): {expected}") from None


def row_tensor(values: Any, name: str, expected: str, device: torch.device) -> Tensor:
    """A tensor on a device, one number per entry, whose rows belong to those of the features."""
    if isinstance(values, Tensor):
        check_readable(values, name, device)
    return as_tensor(values, name, expected, device)


def to_numpy(values: Any, name: str) -> Any:
    """A tensor as an array, numbers that are not whole in 64 bits; anything else as it is."""
    if not isinstance(values, Tensor):
        return values
    check_readable(values, name)
    values = values.detach().cpu()
    if values.is_floating_point() or values.is_complex():  # NumPy has no bfloat16, for one
        values = values.to(torch.complex128 if values.is_complex() else torch.float64)
    return values.numpy(force=True)


def check_features(features: Any, n_features: int, device: torch.device) -> None:
    """Refuse anything but real features (n, p) on the device where they are used."""
    if not isinstance(features, Tensor):
        raise InputError(f"features are {an(type(features).__name__)}: pass a tensor (n, {n_features})")
    check_readable(features, "features", device)
    if features.ndim != 2 or features.shape[1] != n_features:
        raise InputError(
            f"features have shape {tuple(features.shape)}: pass (n, {n_features}), what the backbone gives"
        )
    if features.device != device:
        raise InputError(f"features are on {features.device} and the head on {device}: move one to the other by .to()")
    if features.is_complex():
        raise InputError(f"features are {features.dtype}: pass real numbers")


def check_energies(energies: Tensor) -> Tensor:
    """Energies as they are, unless some are NaN or infinite."""
    if not bool(torch.isfinite(energies).all()):
        raise InputError(
            "energies are NaN or infinite: the network has diverged, or its inputs are too large or not finite"
        )
    return energies


def row_weights(values: Any, n_rows: int, like: Tensor, name: str) -> Tensor:
    """Weights (n,) of n rows, finite and none negative, in the precision and on the device of ``like``."""
    weight = row_tensor(values, name, "pass one number per row", like.device)
    if weight.ndim != 1 or weight.is_complex():
        raise InputError(f"{name} is {weight.dtype} of shape {tuple(weight.shape)}: pass one number per row")
    check_same_rows(n_rows, weight, name, "features")
    weight = weight.to(like)
    if not bool((torch.isfinite(weight) & (weight >= 0)).all()):
        raise InputError(
            f"{name} has entries that are negative, not finite or too large for {weight.dtype}: weights must be 0 or "
            "more, with a mean near 1"
        )
    return weight


@contextlib.contextmanager
def evaluation_mode(*modules: nn.Module) -> Iterator[None]:
    """Eval mode for the modules; afterwards every part of them has the mode it had."""
    training = [(part, part.training) for module in modules for part in module.modules()]
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for part, mode in training:
            part.training = mode


def moved_buffer(buffer: Tensor, fn: Any) -> Tensor:
    """The buffer where ``fn`` puts it, in the precision that it has, or in 32 bits where the device has no more."""
    try:
        moved: Tensor = fn(buffer)
        return moved if moved.dtype == buffer.dtype else buffer.to(moved.device)
    except TypeError:
        return fn(buffer.float())  # type: ignore[no-any-return]


def full_precision(energies: Tensor) -> Tensor:
    """Energies in 32 bits at least."""
    return energies.float() if energies.dtype in (torch.float16, torch.bfloat16) else energies


def no_autocast(reference: Tensor) -> Any:
    """A context without autocasting, on devices that know of it."""
    kind = reference.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else contextlib.nullcontext()
