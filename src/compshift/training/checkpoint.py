"""The full state of a run in one file: written whole or not at all, read without running code."""

from __future__ import annotations

import errno
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from compshift._errors import InputError, reason
from compshift._files import check_ordinary, replacing
from compshift._json import parse_json
from compshift.methods.method import State

KEY = "compshift"
CHECKSUM = "sha256"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Tensors, and anything that JSON can hold; what was there stays until the new file is whole."""
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode
        try:
            # Under one key: of several, safetensors writes them in any order, and equal runs would differ.
            text = json.dumps({**about, CHECKSUM: _checksum(own, json.dumps(about))})
            save_file(own, temporary, metadata={KEY: text})
        except SafetensorError as error:
            number = re.search(r"os error (\d+)", str(error))
            raise OSError(int(number[1]) if number else errno.EIO, str(error)) from None
        temporary.chmod(mode)  # as other files, not for the owner alone


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What ``write_tensors`` wrote."""
    check_ordinary(path)
    try:
        with safe_open(path, framework="pt") as stream:
            metadata = stream.metadata() or {}
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118 - not a mapping
        about = parse_json(metadata[KEY])
        checksum = about.pop(CHECKSUM, None)  # files of older releases have none
        if checksum not in (None, _checksum(tensors, json.dumps(about))):
            raise ValueError("its checksum differs")
        return tensors, about
    except Exception as error:  # damaged files make readers fail in every way there is
        raise InputError(
            f"{str(path)!r} is damaged, or not a file of a run ({reason(error)}): train again, with --overwrite or "
            "elsewhere"
        ) from None


def _checksum(tensors: Mapping[str, Tensor], text: str) -> str:
    """SHA-256 of the text and of every tensor's name, type, shape and bytes."""
    digest = hashlib.sha256(text.encode(errors="surrogatepass"))
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode(errors="surrogatepass"))
        content: Any = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
        digest.update(content)
    return digest.hexdigest()


def write_checkpoint(
    path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, state: State, about: Mapping[str, Any]
) -> None:
    """Model, optimiser and method state after a step. Rows and random numbers follow from the step."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"method.{name}": tensor for name, tensor in state.items()}
    for number, moments in optimiser.state_dict()["state"].items():
        tensors |= {
            f"optimiser.{number}.{name}": torch.as_tensor(value) for name, value in moments.items() if value is not None
        }
    write_tensors(path, tensors, about)


def read_checkpoint(path: Path, model: nn.Module, optimiser: torch.optim.Optimizer) -> tuple[State, dict[str, Any]]:
    """Put a checkpoint into the model and the optimiser; the method's state, and what was noted beside it."""
    tensors, about = read_tensors(path)
    state: State = {}
    weights: dict[str, Tensor] = {}
    moments: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        part, _, rest = name.partition(".")
        if part == "model":
            weights[rest] = tensor
        elif part == "method":
            state[rest] = tensor
        else:
            number, _, key = rest.partition(".")
            if not number.isdecimal():
                raise InputError(f"{str(path)!r} holds {name!r}: it is not what a run writes")
            moments.setdefault(int(number), {})[key] = tensor
    load_weights(model, weights, path)
    try:
        optimiser.load_state_dict({"state": moments, "param_groups": optimiser.state_dict()["param_groups"]})
    except (ValueError, KeyError, RuntimeError) as error:
        raise InputError(f"the optimiser's state in {str(path)!r} does not fit the run: {error}") from None
    return state, about


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """Put weights into a model of the same build."""
    try:
        model.load_state_dict(dict(weights))
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"the weights in {str(path)!r} do not fit the model: {reason}") from None
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise InputError(
                f"the weights {name!r} in {str(path)!r} are not finite: the run diverged, or it is damaged"
            )
