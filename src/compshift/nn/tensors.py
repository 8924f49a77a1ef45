"""Checks and conversions of the tensors passed to a head, and contexts for eval mode and full precision."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from compshift._checks import check_same_rows
from compshift._errors import InputError, an


def check_content(values: Tensor, name: str, device: torch.device | None = None) -> None:
    """Check that a tensor has data; a meta tensor is accepted only if ``device`` is the meta device."""
    if values.is_meta and (device is None or device.type != "meta"):
        raise InputError(f"{name} is on the device meta, where tensors hold no data: pass a tensor on a real device")


def check_readable(values: Tensor, name: str, device: torch.device | None = None) -> None:
    """Check that a tensor is dense, not quantized, and holds data."""
    if values.is_nested:
        raise InputError(f"{name} is a nested tensor: pass a dense tensor, with rows of equal length")
    if values.is_quantized:
        raise InputError(f"{name} is a quantized tensor ({values.dtype}): pass its .dequantize()")
    if values.layout != torch.strided:
        raise InputError(f"{name} is a sparse tensor ({values.layout}): pass its .to_dense()")
    check_content(values, name, device)


def as_tensor(values: Any, name: str, expected: str, device: torch.device) -> Tensor:
    """Convert values to a tensor on ``device``; if that is impossible, the error message ends with ``expected``."""
    if isinstance(values, Tensor):
        check_content(values, name, device)
    try:
        return torch.as_tensor(values, device=device)
    except (TypeError, ValueError, RuntimeError, KeyError):
        raise InputError(f"{name} cannot be converted to a tensor ({an(type(values).__name__)}): {expected}") from None


def row_tensor(values: Any, name: str, expected: str, device: torch.device) -> Tensor:
    """Convert values with one entry per row, such as codes or weights, to a dense tensor on ``device``."""
    if isinstance(values, Tensor):
        check_readable(values, name, device)
    return as_tensor(values, name, expected, device)


def to_numpy(values: Any, name: str) -> Any:
    """Convert a tensor to an array, with floats in 64 bits; return any other value unchanged."""
    if not isinstance(values, Tensor):
        return values
    check_readable(values, name)
    values = values.detach().cpu()
    if values.is_floating_point() or values.is_complex():  # NumPy has no bfloat16
        values = values.to(torch.complex128 if values.is_complex() else torch.float64)
    return values.numpy(force=True)


def check_features(features: Any, n_features: int, device: torch.device) -> None:
    """Check that features are a tensor (n, n_features) of real numbers on ``device``."""
    if not isinstance(features, Tensor):
        raise InputError(f"features are {an(type(features).__name__)}: pass a tensor (n, {n_features})")
    check_readable(features, "features", device)
    if features.ndim != 2 or features.shape[1] != n_features:
        raise InputError(f"features have shape {tuple(features.shape)}: pass (n, {n_features}), the backbone's output")
    if features.device != device:
        raise InputError(f"features are on {features.device}, but the head is on {device}: move one of them with .to()")
    if features.is_complex():
        raise InputError(f"features are {features.dtype}: pass real numbers")


def check_energies(energies: Tensor) -> Tensor:
    """Return the energies; raise if any is NaN or infinite."""
    if not bool(torch.isfinite(energies).all()):
        raise InputError(
            "energies are NaN or infinite, because training diverged or the inputs are too large or not finite: lower "
            "the learning rate, or rescale the inputs"
        )
    return energies


def row_weights(values: Any, n_rows: int, like: Tensor, name: str) -> Tensor:
    """Convert row weights (n,) to the precision and device of ``like``; check that they are finite and not negative."""
    weight = row_tensor(values, name, "pass one number per row", like.device)
    if weight.ndim != 1 or weight.is_complex():
        raise InputError(f"{name} is {weight.dtype} of shape {tuple(weight.shape)}: pass one number per row")
    check_same_rows(n_rows, weight, name, "features")
    weight = weight.to(like)
    if not bool((torch.isfinite(weight) & (weight >= 0)).all()):
        raise InputError(
            f"{name} has entries that are negative, not finite or too large for {weight.dtype}: pass weights ≥ 0 with "
            "a mean near 1"
        )
    return weight


@contextlib.contextmanager
def evaluation_mode(*modules: nn.Module) -> Iterator[None]:
    """Put modules into eval mode, and restore the mode of every submodule afterwards."""
    training = [(part, part.training) for module in modules for part in module.modules()]
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for part, mode in training:
            part.training = mode


def moved_buffer(buffer: Tensor, fn: Any) -> Tensor:
    """Move a buffer with ``fn`` but keep its precision, or use 32 bits on devices without 64-bit floats."""
    try:
        moved: Tensor = fn(buffer)
        return moved if moved.dtype == buffer.dtype else buffer.to(moved.device)
    except TypeError:
        return fn(buffer.float())  # type: ignore[no-any-return]


def full_precision(energies: Tensor) -> Tensor:
    """Widen 16-bit energies to 32 bits."""
    return energies.float() if energies.dtype in (torch.float16, torch.bfloat16) else energies


def no_autocast(reference: Tensor) -> Any:
    """Return a context that turns autocasting off, if the device supports autocasting."""
    kind = reference.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else contextlib.nullcontext()
