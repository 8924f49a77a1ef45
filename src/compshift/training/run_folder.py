"""The files of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compshift._errors import InputError, listing
from compshift._files import replacing

RUN_VERSION = 1


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

    def start(self, about: Mapping[str, Any], files: Mapping[str, str], *, overwrite: bool) -> None:
        """Make the folder, with some further files, or take one up that holds the same run."""
        self.path.mkdir(parents=True, exist_ok=True)
        if overwrite:
            for file in (self.result, self.model, self.last, self.best, self.metrics, self.about):
                file.unlink(missing_ok=True)
        if self.about.exists():
            self._check_same(read_json(self.about)["identity"], about["identity"])
            return
        if any(self.path.glob("*.safetensors")):
            raise InputError(f"{str(self.path)!r} holds models but no run: choose an empty or a new folder")
        for name, text in files.items():
            with replacing(self.path / name) as temporary:
                temporary.write_text(text)
        write_json(self.about, about)

    def _check_same(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        differing = [name for name in new if old.get(name) != new[name]]
        if differing:
            name = differing[0]
            digest = isinstance(new[name], str) and len(new[name]) > 40
            detail = "" if digest else f" ({old.get(name)!r} there, {new[name]!r} now)"
            raise InputError(
                f"{str(self.path)!r} holds a run that differs in {listing(differing, 4)}{detail}: choose another "
                "folder, or start again with --overwrite"
            )

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a line to the log."""
        with self.metrics.open("a") as stream:
            stream.write(json.dumps(record) + "\n")

    def truncate(self, step: int) -> None:
        """Drop the lines of the log that are later than a step, or torn."""
        kept = [json.dumps(record) for record in self.records() if record["step"] <= step]
        with replacing(self.metrics) as temporary:
            temporary.write_text("".join(line + "\n" for line in kept))

    def records(self) -> Iterator[dict[str, Any]]:
        """The lines of the log that are whole."""
        if self.metrics.exists():
            for line in self.metrics.read_text().splitlines():
                try:
                    yield json.loads(line)
                except ValueError:
                    continue


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{str(path)!r} cannot be read ({error})") from None
    if not isinstance(content, dict):
        raise InputError(f"{str(path)!r} is not what a run writes")
    return content
