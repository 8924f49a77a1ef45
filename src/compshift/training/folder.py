"""Files of a training run: the folder, its checkpoints, its log and its model.

Files are written atomically, and read without running any code.
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

RUN_VERSION = 1
"""Version of the format of run folders."""

OWN_FILES = ("run.json", "result.json", "metrics.jsonl", "last.safetensors", "best.safetensors", "model.safetensors")
"""Names of the run's own files, which additional files cannot have."""

KEY = "compshift"
CHECKSUM = "sha256"
"""Keys of the metadata of a safetensors file, and of the checksum inside it."""

_RETRAIN = "train again with overwrite, or in another folder"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write tensors with metadata for JSON to a safetensors file, atomically and with a checksum."""
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode
        try:
            # One key only: safetensors writes several in arbitrary order, and files of equal runs would differ.
            text = json.dumps({**about, CHECKSUM: _checksum(own, json.dumps(about))})
            save_file(own, temporary, metadata={KEY: text})
        except SafetensorError as error:
            number = re.search(r"os error (\d+)", str(error))
            raise OSError(int(number[1]) if number else errno.EIO, str(error)) from None
        temporary.chmod(mode)  # safetensors makes it readable by its owner only


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and metadata that ``write_tensors`` wrote, and check them against their checksum."""
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
    except Exception as error:  # readers raise errors of many types on damaged files
        raise InputError(f"{str(path)!r} is damaged, or not a file of a run ({reason(error)}): {_RETRAIN}") from None


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
    """Write the state of model, optimiser and method after a step; rows and random numbers follow from the step."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"method.{name}": tensor for name, tensor in state.items()}
    for number, moments in optimiser.state_dict()["state"].items():
        tensors |= {
            f"optimiser.{number}.{name}": torch.as_tensor(value) for name, value in moments.items() if value is not None
        }
    write_tensors(path, tensors, about)


def read_checkpoint(path: Path, model: nn.Module, optimiser: torch.optim.Optimizer) -> tuple[State, dict[str, Any]]:
    """Load a checkpoint into the model and the optimiser; return the method's state and the metadata."""
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
                raise InputError(f"{str(path)!r} holds {name!r}, which a run does not write: {_RETRAIN}")
            moments.setdefault(int(number), {})[key] = tensor
    load_weights(model, weights, path)
    try:
        optimiser.load_state_dict({"state": moments, "param_groups": optimiser.state_dict()["param_groups"]})
    except (ValueError, KeyError, RuntimeError) as error:
        raise InputError(f"the optimiser's state in {str(path)!r} does not fit the run: {error}") from None
    return state, about


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """Load weights into a model of the same architecture, and check that they are finite."""
    try:
        model.load_state_dict(dict(weights))
    except RuntimeError as error:
        raise InputError(f"the weights in {str(path)!r} do not fit the model: {reason(error)[:300]}") from None
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise InputError(
                f"the weights {name!r} in {str(path)!r} are not finite: the run diverged, or it is damaged"
            )


class BusyError(InputError):
    """Another process is training in the folder."""


@dataclass(frozen=True)
class RunFolder:
    """Folder of one run: its identity, its log, its checkpoints and, in the end, its model."""

    path: Path

    @property
    def about(self) -> Path:
        """Identity of the run, and everything but the weights that its model needs to be rebuilt."""
        return self.path / "run.json"

    @property
    def last(self) -> Path:
        """Checkpoint of the last evaluation."""
        return self.path / "last.safetensors"

    @property
    def best(self) -> Path:
        """Weights of the best evaluation so far."""
        return self.path / "best.safetensors"

    @property
    def model(self) -> Path:
        """Final weights."""
        return self.path / "model.safetensors"

    @property
    def metrics(self) -> Path:
        """Log with one line of JSON per evaluation."""
        return self.path / "metrics.jsonl"

    @property
    def result(self) -> Path:
        """Summary that is written when the run is finished."""
        return self.path / "result.json"

    @property
    def backbone(self) -> Path:
        """Configuration files of the backbone."""
        return self.path / "backbone"

    @property
    def tensorboard(self) -> Path:
        """Logs for TensorBoard."""
        return self.path / "tensorboard"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder, and keep other processes from training in it at the same time."""
        check_folder(self.path, "for the run")
        self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path / ".lock") as alone:
            if not alone:
                raise BusyError(f"another process is training in {str(self.path)!r}: wait, or choose another folder")
            yield

    def is_new(self, identity: Mapping[str, Any], *, overwrite: bool) -> bool:
        """Whether the folder holds no run yet; raise if it holds another run, or remove that with ``overwrite``."""
        for leftover in self.path.glob(".*.tmp*"):
            leftover.unlink()  # of a process that was killed while writing
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
        """Write the additional files, then the run's identity and description."""
        for name, text in files.items():
            with replacing(self.path / name) as temporary:
                temporary.write_text(text, encoding="utf-8", errors="surrogateescape")
        write_json(self.about, about)

    def clear_checkpoints(self) -> None:
        """Remove the checkpoints of a finished run."""
        for file in (self.last, self.best):
            file.unlink(missing_ok=True)

    def _check_same(self, old: Any, new: Mapping[str, Any]) -> None:
        """Check that the identity of the run in the folder is that of this run."""
        if not isinstance(old, dict):
            raise InputError(f"{str(self.about)!r} is damaged, or not written by a run: choose another folder")
        same = json.loads(json.dumps(new))
        differing = [name for name in same if old.get(name) != same[name]]
        if differing:
            name = differing[0]
            short = len(f"{old.get(name)!r}{same[name]!r}") < 60
            detail = f" ({name}: {old.get(name)!r} there, {same[name]!r} now)" if short else ""
            raise InputError(
                f"{str(self.path)!r} holds a run that differs in {listing(differing, 4)}{detail}: choose another "
                "folder, or start again with overwrite"
            )

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a line to the log."""
        append_line(self.metrics, json.dumps(record))

    def truncate(self, step: int) -> None:
        """Remove incomplete lines of the log, and those later than a step."""
        kept = [json.dumps(record) for record in self.records() if record["step"] <= step]
        with replacing(self.metrics) as temporary:
            temporary.write_text("".join(line + "\n" for line in kept))

    def records(self) -> Iterator[dict[str, Any]]:
        """Complete lines of the log."""
        if self.metrics.exists():
            for line in check_ordinary(self.metrics).read_bytes().splitlines():
                try:
                    record = parse_json(line)
                except ValueError:
                    continue
                if isinstance(record, dict) and isinstance(record.get("step"), int):
                    yield record


def check_extras(inputs: Any, files: Any) -> None:
    """Check that ``inputs`` can be written as JSON, and that ``files`` are texts with names of their own."""
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
    """Write a JSON object atomically."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of a run."""
    check_ordinary(path)
    try:
        return read_json_object(path)
    except ValueError as error:
        raise InputError(f"{str(path)!r} is damaged ({error}): {_RETRAIN}") from None
