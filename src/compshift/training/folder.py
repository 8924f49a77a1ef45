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
from compshift.crm.io import CHECKSUM_KEY
from compshift.methods.base import State

RUN_VERSION = 1
"""Version of the format of run folders."""

RESERVED_FILES = (
    "run.json",
    "result.json",
    "metrics.jsonl",
    "last.safetensors",
    "best.safetensors",
    "model.safetensors",
)
"""Names of the files that a run writes; additional files must have other names."""

METADATA_KEY = "compshift"
"""Key in a safetensors file's header under which the metadata is stored, as JSON."""

RETRAIN = "train again with overwrite, or in another folder"
"""Remedy that ends the error messages about damaged or unusable runs."""


class RunFolderError(InputError):
    """Raised when the files of a run cannot be used, because they are damaged or belong to another run."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Write tensors and JSON metadata to a safetensors file, atomically and with a checksum."""
    copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode
        try:
            # A single key: safetensors writes several keys in arbitrary order, so files of equal runs would differ.
            text = json.dumps({**metadata, CHECKSUM_KEY: _checksum(copies, json.dumps(metadata))})
            save_file(copies, temporary, metadata={METADATA_KEY: text})
        except SafetensorError as error:
            number = re.search(r"os error (\d+)", str(error))
            raise OSError(int(number[1]) if number else errno.EIO, str(error)) from None
        temporary.chmod(mode)  # safetensors restricts the file to its owner


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and metadata of a file that ``write_tensors`` wrote, and verify the checksum."""
    check_ordinary(path)
    try:
        with safe_open(path, framework="pt") as stream:
            header = stream.metadata() or {}
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118 - not a mapping
        metadata = parse_json(header[METADATA_KEY])
        checksum = metadata.pop(CHECKSUM_KEY, None)  # files of older releases have none
        if checksum not in (None, _checksum(tensors, json.dumps(metadata))):
            raise ValueError("its checksum differs")
        return tensors, metadata
    except Exception as error:  # readers raise errors of many types on damaged files
        raise RunFolderError(f"{str(path)!r} is damaged, or not a file of a run ({reason(error)}): {RETRAIN}") from None


def _checksum(tensors: Mapping[str, Tensor], text: str) -> str:
    """Return the SHA-256 of a text and of every tensor's name, type, shape and bytes."""
    digest = hashlib.sha256(text.encode(errors="surrogatepass"))
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode(errors="surrogatepass"))
        content: Any = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
        digest.update(content)
    return digest.hexdigest()


def write_checkpoint(
    path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, state: State, metadata: Mapping[str, Any]
) -> None:
    """Write the state of model, optimiser and method after a step.

    Batches and random numbers depend on the seed and the step alone, so they need not be stored.
    """
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"method.{name}": tensor for name, tensor in state.items()}
    for number, moments in optimiser.state_dict()["state"].items():
        tensors |= {
            f"optimiser.{number}.{name}": torch.as_tensor(value) for name, value in moments.items() if value is not None
        }
    write_tensors(path, tensors, metadata)


def read_checkpoint(path: Path, model: nn.Module, optimiser: torch.optim.Optimizer) -> tuple[State, dict[str, Any]]:
    """Load a checkpoint into the model and the optimiser; return the method's state and the metadata."""
    tensors, metadata = read_tensors(path)
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
                raise RunFolderError(f"{str(path)!r} holds the unexpected tensor {name!r}: {RETRAIN}")
            moments.setdefault(int(number), {})[key] = tensor
    load_weights(model, weights, path)
    try:
        optimiser.load_state_dict({"state": moments, "param_groups": optimiser.state_dict()["param_groups"]})
    except (ValueError, KeyError, RuntimeError) as error:
        raise RunFolderError(
            f"the optimiser's state in {str(path)!r} does not fit the run ({error}): {RETRAIN}"
        ) from None
    return state, metadata


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """Load weights into a model of the same architecture, and check that they are finite."""
    try:
        model.load_state_dict(dict(weights))
    except RuntimeError as error:
        raise RunFolderError(
            f"the weights in {str(path)!r} do not fit the model ({reason(error)[:300]}): {RETRAIN}"
        ) from None
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise RunFolderError(
                f"the weights {name!r} in {str(path)!r} are not finite, because the run diverged or the file is "
                f"damaged: {RETRAIN}"
            )


class BusyError(InputError):
    """Raised when another process is training in the folder."""


@dataclass(frozen=True)
class RunFolder:
    """Folder of one run: its description, log and checkpoints and, once it is finished, its model and result."""

    path: Path

    @property
    def about_path(self) -> Path:
        """Path of the file with the run's identity and with everything about the model but its weights."""
        return self.path / "run.json"

    @property
    def last_path(self) -> Path:
        """Path of the checkpoint that the last evaluation wrote."""
        return self.path / "last.safetensors"

    @property
    def best_path(self) -> Path:
        """Path of the weights with the best evaluation so far."""
        return self.path / "best.safetensors"

    @property
    def model_path(self) -> Path:
        """Path of the final weights."""
        return self.path / "model.safetensors"

    @property
    def metrics_path(self) -> Path:
        """Path of the log, with one line of JSON per evaluation."""
        return self.path / "metrics.jsonl"

    @property
    def result_path(self) -> Path:
        """Path of the summary, which is written when the run is finished."""
        return self.path / "result.json"

    @property
    def backbone_path(self) -> Path:
        """Path of the folder with the backbone's configuration files."""
        return self.path / "backbone"

    @property
    def trackers_path(self) -> Path:
        """Path of the folder with logs and ids of experiment trackers."""
        return self.path / "trackers"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder and lock it, so that no other process trains in it at the same time."""
        check_folder(self.path, "for the run")
        self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path / ".lock") as alone:
            if not alone:
                raise BusyError(f"another process is training in {str(self.path)!r}: wait, or choose another folder")
            yield

    def prepare(self, identity: Mapping[str, Any], *, overwrite: bool) -> bool:
        """Prepare the folder for the run with this identity; return whether the run is new.

        Delete temporary files of killed processes and, with ``overwrite``, the run in the folder. Raise if the folder
        holds a run with another identity.
        """
        for leftover in self.path.glob(".*.tmp*"):
            leftover.unlink()
        if overwrite:
            for name in RESERVED_FILES:
                (self.path / name).unlink(missing_ok=True)
            for folder in (self.backbone_path, self.trackers_path):
                shutil.rmtree(folder, ignore_errors=True)
        if self.about_path.exists():
            self._check_same(read_json(self.about_path).get("identity"), identity)
            if self.result_path.exists():
                self.clear_checkpoints()
            return False
        if any(self.path.glob("[!.]*.safetensors")):
            raise RunFolderError(
                f"{str(self.path)!r} holds .safetensors files but no run: choose an empty or a new folder"
            )
        return True

    def start(self, about: Mapping[str, Any], files: Mapping[str, str]) -> None:
        """Write the additional files, then the run's identity and the model's description."""
        for name, text in files.items():
            with replacing(self.path / name) as temporary:
                temporary.write_text(text, encoding="utf-8", errors="surrogateescape")
        write_json(self.about_path, about)

    def clear_checkpoints(self) -> None:
        """Delete the checkpoints of a finished run."""
        for file in (self.last_path, self.best_path):
            file.unlink(missing_ok=True)

    def _check_same(self, old: Any, new: Mapping[str, Any]) -> None:
        """Check that the run in the folder has the identity ``new``."""
        if not isinstance(old, dict):
            raise RunFolderError(f"{str(self.about_path)!r} is damaged, or not written by a run: {RETRAIN}")
        same = json.loads(json.dumps(new))
        differing = [name for name in same if old.get(name) != same[name]]
        if differing:
            name = differing[0]
            short = len(f"{old.get(name)!r}{same[name]!r}") < 60
            detail = f" ({name} was {old.get(name)!r} and is now {same[name]!r})" if short else ""
            raise RunFolderError(
                f"{str(self.path)!r} holds a run that differs in {listing(differing, 4)}{detail}: choose another "
                "folder, or start again with overwrite"
            )

    def append(self, record: Mapping[str, Any]) -> None:
        """Append a record to the log."""
        append_line(self.metrics_path, json.dumps(record))

    def truncate(self, step: int) -> None:
        """Remove incomplete lines and the records of steps after ``step`` from the log."""
        kept = [json.dumps(record) for record in self.records() if record["step"] <= step]
        with replacing(self.metrics_path) as temporary:
            temporary.write_text("".join(line + "\n" for line in kept))

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the records of the log; skip incomplete lines."""
        if self.metrics_path.exists():
            for line in check_ordinary(self.metrics_path).read_bytes().splitlines():
                try:
                    record = parse_json(line)
                except ValueError:
                    continue
                if isinstance(record, dict) and isinstance(record.get("step"), int):
                    yield record


def check_extras(inputs: Any, files: Any) -> None:
    """Check that ``inputs`` can be written as JSON, and that ``files`` holds texts with valid file names."""
    try:
        json.dumps(dict(inputs), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise InputError(f"inputs is {inputs!r}: pass a mapping of names to texts, numbers or lists of them") from None
    if not isinstance(files, Mapping):
        raise InputError(f"files is {files!r}: pass a mapping of names to texts")
    for name, text in files.items():
        if not (isinstance(name, str) and name == Path(name).name and not name.startswith(".")):
            raise InputError(f"files has the name {name!r}: pass names without folders, such as 'notes.txt'")
        if name in RESERVED_FILES:
            raise InputError(f"files has the name {name!r}, which the run itself uses: choose another name")
        if not isinstance(text, str):
            raise InputError(f"files[{name!r}] is {an(type(text).__name__)}: pass text")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object atomically."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file of a run."""
    check_ordinary(path)
    try:
        return read_json_object(path)
    except ValueError as error:
        raise RunFolderError(f"{str(path)!r} is damaged ({error}): {RETRAIN}") from None
