"""The full state of a run in one file: written whole or not at all, read without running code.

The files of a run.
"""

from __future__ import annotations

import errno
import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from compshift._errors import InputError, an, listing, reason
from compshift._files import append_line, check_folder, check_ordinary, locked, parse_json, read_json_object, replacing
from compshift.methods.base import State

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


RUN_VERSION = 1

OWN_FILES = ("run.json", "result.json", "metrics.jsonl", "last.safetensors", "best.safetensors", "model.safetensors")
"""Names that files beside them cannot have."""


class BusyError(InputError):
    """Another process is at work there."""


@dataclass(frozen=True)
class RunFolder:
    """A folder that holds one run: what it is, how it goes, and in the end its model."""

    path: Path

    @property
    def about(self) -> Path:
        """What the run is, and what its model needs to be built again."""
        return self.path / "run.json"

    @property
    def last(self) -> Path:
        """Full state of the last evaluation."""
        return self.path / "last.safetensors"

    @property
    def best(self) -> Path:
        """Weights of the best evaluation."""
        return self.path / "best.safetensors"

    @property
    def model(self) -> Path:
        """The final weights."""
        return self.path / "model.safetensors"

    @property
    def metrics(self) -> Path:
        """One line of JSON per evaluation."""
        return self.path / "metrics.jsonl"

    @property
    def result(self) -> Path:
        """Written at the very end."""
        return self.path / "result.json"

    @property
    def backbone(self) -> Path:
        """Files of the backbone beside its weights."""
        return self.path / "backbone"

    @property
    def tensorboard(self) -> Path:
        """Logs for TensorBoard."""
        return self.path / "tensorboard"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training in the folder at the same time."""
        check_folder(self.path, "for the run")
        self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path / ".lock") as alone:
            if not alone:
                raise BusyError(f"another process is training in {str(self.path)!r}: wait, or choose a folder")
            yield

    def is_new(self, identity: Mapping[str, Any], *, overwrite: bool) -> bool:
        """Whether the folder holds no run yet. Another run than this one is refused, or on request removed."""
        for torn in self.path.glob(".*.tmp*"):
            torn.unlink()  # of a process that was killed while it wrote
        if overwrite:
            for file in (self.about, self.result, self.model, self.last, self.best, self.metrics):
                file.unlink(missing_ok=True)
            for folder in (self.backbone, self.tensorboard):
                shutil.rmtree(folder, ignore_errors=True)
        if self.about.exists():
            self._check_same(read_json(self.about).get("identity"), identity)
            if self.result.exists():
                self.clear_checkpoints()
            return False
        if any(self.path.glob("[!.]*.safetensors")):
            raise InputError(f"{str(self.path)!r} holds models but no run: choose an empty or a new folder")
        return True

    def start(self, about: Mapping[str, Any], files: Mapping[str, str]) -> None:
        """Write what the run is, with some further files before it."""
        for name, text in files.items():
            with replacing(self.path / name) as temporary:
                temporary.write_text(text, encoding="utf-8", errors="surrogateescape")
        write_json(self.about, about)

    def clear_checkpoints(self) -> None:
        """Remove what a finished run needs no more."""
        for file in (self.last, self.best):
            file.unlink(missing_ok=True)

    def _check_same(self, old: Any, new: Mapping[str, Any]) -> None:
        if not isinstance(old, dict):
            raise InputError(f"{str(self.about)!r} is not what a run writes: choose another folder")
        same = json.loads(json.dumps(new))
        differing = [name for name in same if old.get(name) != same[name]]
        if differing:
            name = differing[0]
            short = len(f"{old.get(name)!r}{same[name]!r}") < 60
            detail = f" ({name}: {old.get(name)!r} there, {same[name]!r} now)" if short else ""
            raise InputError(
                f"{str(self.path)!r} holds a run that differs in {listing(differing, 4)}{detail}: choose another "
                "folder, or start again with --overwrite"
            )

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a line to the log."""
        append_line(self.metrics, json.dumps(record))

    def truncate(self, step: int) -> None:
        """Drop the lines of the log that are later than a step, or torn."""
        kept = [json.dumps(record) for record in self.records() if record["step"] <= step]
        with replacing(self.metrics) as temporary:
            temporary.write_text("".join(line + "\n" for line in kept))

    def records(self) -> Iterator[dict[str, Any]]:
        """The lines of the log that are whole."""
        if self.metrics.exists():
            for line in check_ordinary(self.metrics).read_bytes().splitlines():
                try:
                    record = parse_json(line)
                except ValueError:
                    continue
                if isinstance(record, dict) and isinstance(record.get("step"), int):
                    yield record


def check_extras(inputs: Any, files: Any) -> None:
    """Refuse what cannot be kept with a run: inputs that JSON does not know, and files but for texts beside its own."""
    try:
        json.dumps(dict(inputs), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise InputError(f"inputs is {inputs!r}: pass a mapping of names to texts, numbers or lists of them") from None
    if not isinstance(files, Mapping):
        raise InputError(f"files is {files!r}: pass a mapping of names to texts")
    for name, text in files.items():
        plain = isinstance(name, str) and name == Path(name).name and not name.startswith(".")
        if not plain or not isinstance(text, str) or name in OWN_FILES:
            raise InputError(
                f"files has {name!r} with {an(type(text).__name__)}: pass names without folders, such as 'notes.txt', "
                "and texts"
            )


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object."""
    check_ordinary(path)
    try:
        return read_json_object(path)
    except ValueError as error:
        raise InputError(f"{str(path)!r} is damaged ({error}): train again, with --overwrite or elsewhere") from None
